//! The order of things between request and answer.

use tokio::sync::mpsc;

use super::*;

/// A connection and the far end of it.
fn pair() -> (Connection<DuplexStream>, DuplexStream) {
    let (near, far) = duplex(64 << 10);
    (Connection::new(near), far)
}

fn begin(connection: &mut Connection<DuplexStream>, request: Request<Body>) -> HeaderMap {
    let (head, body) = request.into_parts();
    connection.begin(head, body, &HeaderValue::from_static("shard"), &Stamp::default())
}

async fn head(connection: &mut Connection<DuplexStream>, headers: &mut HeaderMap) -> Result<Answer, Error> {
    poll_fn(|cx| connection.poll_head(headers, cx)).await
}

async fn text(connection: &mut Connection<DuplexStream>) -> Result<Vec<u8>, BoxError> {
    let mut all = Vec::new();
    while !connection.is_done() {
        if let Some(frame) = poll_fn(|cx| connection.poll_frame(cx)).await {
            all.extend(frame?.into_data().unwrap_or_default());
        }
    }
    Ok(all)
}

async fn read_until(far: &mut DuplexStream, end: &str) -> String {
    let mut got = Vec::new();
    while !got.ends_with(end.as_bytes()) {
        assert_ne!(far.read_buf(&mut got).await.unwrap(), 0, "{}", String::from_utf8_lossy(&got));
    }
    String::from_utf8(got).unwrap()
}

/// A body of unknown length that is written piece by piece.
fn channel() -> (mpsc::UnboundedSender<Frame<Bytes>>, Body) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx).map(|f| f.map(Ok::<_, BoxError>)));
    (sender, Body::new(http_body_util::StreamBody::new(frames)))
}

fn post(body: Body) -> Request<Body> {
    Request::post("/up?load=1").header("accept", "*/*").body(body).unwrap()
}

#[tokio::test]
async fn heads_are_written_as_they_are_and_lengths_are_ours() {
    for (request, want) in [
        (request(Method::GET), "GET /x?y=1 HTTP/1.1\r\nhost: shard\r\n\r\n"),
        (
            Request::get("/").header("host", "door").header("a", "1").header("a", "2").body(Body::empty()).unwrap(),
            "GET / HTTP/1.1\r\nhost: shard\r\na: 1\r\na: 2\r\n\r\n",
        ),
        (post(Body::empty()), "POST /up?load=1 HTTP/1.1\r\nhost: shard\r\naccept: */*\r\ncontent-length: 0\r\n\r\n"),
        (
            Request::delete("/")
                .header("content-length", "0")
                .header("expect", "100-continue")
                .body(Body::empty())
                .unwrap(),
            "DELETE / HTTP/1.1\r\nhost: shard\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            Request::put("/").header("content-length", "9").body(Body::from(Bytes::from("abc"))).unwrap(),
            "PUT / HTTP/1.1\r\nhost: shard\r\ncontent-length: 3\r\n\r\nabc",
        ),
    ] {
        let (mut connection, mut far) = pair();
        let mut headers = begin(&mut connection, request);
        assert!(headers.is_empty());
        let (answer, got) = tokio::join!(head(&mut connection, &mut headers), async {
            let got = read_until(&mut far, want).await;
            far.write_all(b"HTTP/1.1 200 Fine\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n").await.unwrap();
            got
        });
        let answer = answer.unwrap();
        assert_eq!((got.as_str(), answer.status.as_u16()), (want, 200));
        assert_eq!(answer.reason.unwrap().as_bytes(), b"Fine");
        assert_eq!(headers.len(), 1, "{headers:?}");
        assert!(connection.is_done() && connection.is_reusable() && connection.is_quiet());
    }
}

#[tokio::test]
async fn uploads_are_streamed_in_chunks_with_trailers() {
    let (mut connection, mut far) = pair();
    let (sender, body) = channel();
    let mut headers = begin(&mut connection, post(body));
    let shard = tokio::spawn(async move {
        read_until(&mut far, "transfer-encoding: chunked\r\n\r\n").await;
        sender.send(Frame::data(Bytes::from("one"))).unwrap();
        read_until(&mut far, "3\r\none\r\n").await;
        let large = Bytes::from(vec![b'x'; 100_000]);
        sender.send(Frame::data(large)).unwrap();
        sender
            .send(Frame::trailers([("x-sum".parse().unwrap(), HeaderValue::from_static("9"))].into_iter().collect()))
            .unwrap();
        let rest = read_until(&mut far, "\r\n0\r\nx-sum: 9\r\n\r\n").await;
        assert!(rest.starts_with("186a0\r\nxxx") && rest.len() == 100_000 + 7 + 17, "{}", rest.len());
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        far
    });
    head(&mut connection, &mut headers).await.unwrap();
    assert_eq!(text(&mut connection).await.unwrap(), b"ok");
    let _far = shard.await.unwrap();
    assert!(connection.is_reusable());
}

/// The answer begins, goes on and ends while the request is being sent.
#[tokio::test]
async fn answers_and_uploads_flow_at_the_same_time() {
    let (mut connection, mut far) = pair();
    let (sender, body) = channel();
    let mut headers = begin(&mut connection, post(body));
    let shard = tokio::spawn(async move {
        read_until(&mut far, "\r\n\r\n").await;
        far.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        for part in ["a", "b"] {
            sender.send(Frame::data(Bytes::from(part))).unwrap();
            let chunk = format!("1\r\n{part}\r\n");
            read_until(&mut far, &chunk).await;
            far.write_all(chunk.as_bytes()).await.unwrap();
        }
        drop(sender);
        read_until(&mut far, "0\r\n\r\n").await;
        far.write_all(b"0\r\n\r\n").await.unwrap();
        far
    });
    head(&mut connection, &mut headers).await.unwrap();
    assert_eq!(text(&mut connection).await.unwrap(), b"ab");
    let _far = shard.await.unwrap();
    assert!(connection.is_reusable());
}

#[tokio::test]
async fn a_complete_answer_before_the_request_ended_closes_the_connection() {
    for ends in [false, true] {
        let (mut connection, mut far) = pair();
        let (sender, body) = channel();
        let mut headers = begin(&mut connection, post(body));
        far.write_all(b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 1\r\n\r\nx").await.unwrap();
        assert_eq!(head(&mut connection, &mut headers).await.unwrap().status, 413);
        assert_eq!(text(&mut connection).await.unwrap(), b"x");
        if ends {
            drop(sender);
        }
        assert_eq!(connection.is_reusable(), ends, "if only the end was missing, it is sent");
    }
}

/// The body is neither asked for nor sent before the shard wants it.
#[tokio::test]
async fn a_body_waits_for_the_shards_invitation() {
    let ask = |body| Request::post("/").header("expect", "100-continue").body(body).unwrap();
    for (answer, sent) in [
        (&b"HTTP/1.1 100 Continue\r\n\r\n"[..], true),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100\r\n\r\n", true),
        (b"HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n", false),
        // It is sent all the same after a while.
        (b"", true),
    ] {
        let (mut connection, mut far) = pair();
        let (sender, body) = channel();
        sender.send(Frame::data(Bytes::from("body"))).unwrap();
        drop(sender);
        let mut headers = begin(&mut connection, ask(body));
        let shard = tokio::spawn(async move {
            let head = read_until(&mut far, "\r\n\r\n").await;
            assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
            assert!(tokio::time::timeout(Duration::from_millis(20), far.read_u8()).await.is_err());
            far.write_all(answer).await.unwrap();
            if sent {
                read_until(&mut far, "4\r\nbody\r\n0\r\n\r\n").await;
                far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            }
            far
        });
        let status = head(&mut connection, &mut headers).await.unwrap().status;
        assert_eq!(status.as_u16(), if sent { 200 } else { 417 });
        assert_eq!(connection.is_reusable(), sent);
        shard.await.unwrap();
    }
}

#[tokio::test]
async fn bounds() {
    let interim = |n: usize| ["HTTP/1.1 103 X\r\n\r\n".repeat(n).as_str(), "HTTP/1.1 204 X\r\n\r\n"].concat();
    let fields = |n: usize| format!("HTTP/1.1 200 OK\r\n{}content-length: 0\r\n\r\n", "a: b\r\n".repeat(n - 1));
    let long = |n: usize| format!("HTTP/1.1 204 OK\r\na: {}\r\n\r\n", "x".repeat(n));
    for (answer, is_refused) in [
        (interim(INTERIM_MAX as usize), false),
        (interim(INTERIM_MAX as usize + 1), true),
        (fields(100), false),
        (fields(101), true),
        (long(HEAD_MAX - 1000), false),
        (long(2 * HEAD_MAX), true),
        ("HTTP/1.1 200 OK\r\n".to_owned() + &"x: y\r\n".repeat(1 << 20), true),
        ("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n".to_owned(), true),
    ] {
        let seen = ours(Method::GET, answer.as_bytes().chunks(10_000).map(<[u8]>::to_vec).collect()).await;
        assert_eq!(seen.is_none(), is_refused, "{}", &answer[..60]);
    }
}

/// What comes behind the answer is nobody's, and its connection is not used again.
#[tokio::test]
async fn leftovers_spoil_a_connection() {
    for (answer, fit) in [
        (&b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"[..], true),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP", false),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok", false),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", false),
        (b"HTTP/1.1 200 OK\r\nconnection: keep-alive, close\r\ncontent-length: 2\r\n\r\nok", false),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", false),
        (b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 2\r\n\r\nok", true),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", true),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\na: b\r\n\r\n", true),
    ] {
        let (mut connection, mut far) = pair();
        let mut headers = begin(&mut connection, request(Method::GET));
        far.write_all(answer).await.unwrap();
        head(&mut connection, &mut headers).await.unwrap();
        text(&mut connection).await.unwrap();
        assert_eq!(connection.is_reusable(), fit, "{}", String::from_utf8_lossy(answer));
        assert!(connection.is_quiet());
        far.write_all(b"x").await.unwrap();
        assert!(!connection.is_quiet(), "bytes nobody asked for");
    }
    let (mut connection, far) = pair();
    drop(far);
    assert!(!connection.is_quiet(), "it was closed");
}

#[tokio::test]
async fn only_what_is_unanswered_and_harmless_or_unsent_can_be_sent_again() {
    // Read by the shard and not answered.
    for (ask, end, again) in
        [(request(Method::GET), "\r\n\r\n", true), (post(Body::from(Bytes::from("x"))), "x", false)]
    {
        let (mut connection, mut far) = pair();
        let mut headers = begin(&mut connection, ask);
        let (failed, _) = tokio::join!(head(&mut connection, &mut headers), async move {
            read_until(&mut far, end).await;
        });
        assert!(matches!(failed, Err(Error::Io(_))));
        assert_eq!(connection.unanswered().is_some(), again);
    }
    // Half an answer.
    let (mut connection, mut far) = pair();
    let mut headers = begin(&mut connection, request(Method::GET));
    far.write_all(b"HTTP/1.1 2").await.unwrap();
    drop(far);
    assert!(head(&mut connection, &mut headers).await.is_err() && connection.unanswered().is_none());
    // Closed before anything was written: even a body can go another way, all of it.
    let (mut connection, far) = pair();
    drop(far);
    let large = Bytes::from(vec![b'x'; 10_000]);
    let mut headers = begin(&mut connection, post(Body::from(large)));
    assert!(head(&mut connection, &mut headers).await.is_err());
    let sending = connection.unanswered().unwrap();
    let (mut connection, mut far) = pair();
    connection.begin_again(sending);
    let shard = tokio::spawn(async move {
        let got = read_until(&mut far, "xxx").await;
        let mut rest = vec![0; 10_000 - got.matches('x').count()];
        far.read_exact(&mut rest).await.unwrap();
        far.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        (got.starts_with("POST /up"), far)
    });
    assert_eq!(head(&mut connection, &mut headers).await.unwrap().status, 201);
    assert!(shard.await.unwrap().0 && connection.is_reusable());
}

/// A client that breaks its promise.
#[tokio::test]
async fn an_upload_that_breaks_off_is_the_clients_fault() {
    let (mut connection, _far) = pair();
    let broken = futures_util::stream::iter([Ok(Frame::data(Bytes::from("x"))), Err(BoxError::from("gone"))]);
    let mut headers = begin(&mut connection, post(Body::new(http_body_util::StreamBody::new(broken))));
    assert!(matches!(head(&mut connection, &mut headers).await, Err(Error::Upload(_))));
    assert!(!tokio::time::timeout(Duration::from_secs(5), async { connection.is_reusable() }).await.unwrap());
}
