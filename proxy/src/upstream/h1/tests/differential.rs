//! Beside hyper's client. Where the two differ on purpose, we are the stricter: what hyper passes on and we refuse is
//! listed by name in [`stricter`].

use super::*;

async fn hypers(method: Method, parts: Vec<Vec<u8>>) -> Outcome {
    let (near, far) = duplex(1 << 20);
    let shard = tokio::spawn(play(far, parts));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut ask = request(method);
    ask.headers_mut().insert("host", HeaderValue::from_static("s"));
    let seen = match sender.send_request(ask).await {
        Err(_) => None,
        Ok(response) => {
            let (head, mut body) = response.into_parts();
            let mut seen = Seen {
                status: head.status,
                headers: sorted(&head.headers),
                body: Vec::new(),
                trailers: None,
                is_whole: true,
            };
            while let Some(frame) = body.frame().await {
                match frame.map(Frame::into_data) {
                    Ok(Ok(data)) => seen.body.extend_from_slice(&data),
                    Ok(Err(last)) => seen.trailers = last.into_trailers().ok(),
                    Err(_) => seen.is_whole = false,
                }
            }
            Some(seen)
        }
    };
    drop(sender);
    let _ = driver.await;
    shard.await.unwrap();
    seen
}

#[derive(Clone, Debug)]
enum Coded {
    Length(Vec<u8>),
    Chunked(Vec<(Vec<u8>, &'static str)>, Vec<(&'static str, &'static str)>),
    Close(Vec<u8>),
}

/// An answer as a shard writes it.
#[derive(Clone, Debug)]
struct Written {
    version: &'static str,
    status: u16,
    interim: Vec<u16>,
    fields: Vec<(&'static str, &'static str)>,
    body: Coded,
}

impl Written {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for status in &self.interim {
            out.extend_from_slice(format!("HTTP/1.1 {status} X\r\nlink: a\r\n\r\n").as_bytes());
        }
        out.extend_from_slice(format!("{} {} Some Reason\r\n", self.version, self.status).as_bytes());
        for (name, value) in &self.fields {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        match &self.body {
            Coded::Length(body) => {
                out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                out.extend_from_slice(body);
            }
            Coded::Chunked(chunks, trailers) => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for (chunk, extension) in chunks.iter().filter(|(chunk, _)| !chunk.is_empty()) {
                    out.extend_from_slice(format!("{:X}{extension}\r\n", chunk.len()).as_bytes());
                    out.extend_from_slice(chunk);
                    out.extend_from_slice(b"\r\n");
                }
                out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers {
                    out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
                }
                out.extend_from_slice(b"\r\n");
            }
            Coded::Close(body) => {
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(body);
            }
        }
        out
    }
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (1usize..200_000).prop_map(|n| (0..n).map(|b| (b % 251) as u8).collect()),
    ]
}

fn written() -> impl Strategy<Value = Written> {
    let fields = prop::sample::select(vec![
        ("Content-Type", "application/json"),
        ("Date", "Sun, 29 Nov 2026 18:00:00 GMT"),
        ("X-Empty", ""),
        ("set-cookie", "a=b; Path=/"),
        ("Connection", "keep-alive"),
        ("connection", "close"),
        ("Connection", "x-private, close"),
        ("X-Private", "\t padded \t"),
        ("Audit-Id", "\u{e4}"),
    ]);
    let extensions = prop::sample::select(vec!["", "", ";a=b", " ", " ; x=\"y\""]);
    let trailers = prop::sample::select(vec![("X-Sum", "abc"), ("x-sum", "d"), ("X-Other", "")]);
    let coded = prop_oneof![
        body().prop_map(Coded::Length),
        (prop::collection::vec((body(), extensions), 0..4), prop::collection::vec(trailers, 0..3))
            .prop_map(|(chunks, trailers)| Coded::Chunked(chunks, trailers)),
        body().prop_map(Coded::Close),
    ];
    (
        prop::sample::select(vec!["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"]),
        prop::sample::select(vec![200, 200, 201, 204, 304, 404, 429, 500, 599]),
        prop::collection::vec(prop::sample::select(vec![100, 102, 103]), 0..3),
        prop::collection::vec(fields, 0..6),
        coded,
    )
        .prop_map(|(version, status, interim, fields, body)| Written { version, status, interim, fields, body })
}

/// Why we refuse an answer that hyper takes, if that is on purpose.
fn stricter(written: &Written) -> Option<&'static str> {
    match written.body {
        Coded::Chunked(..) if written.version == "HTTP/1.0" => {
            Some("RFC 9112 section 6.1: a transfer coding in HTTP/1.0 is faulty framing")
        }
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a shard sends in whatever pieces, whole or broken off: both see the same.
    #[test]
    fn both_see_the_same(
        answer in written(),
        is_head in prop::bool::weighted(0.1),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let method = if is_head { Method::HEAD } else { Method::GET };
        let mut bytes = answer.bytes();
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let parts = split(&bytes, &places);
        let (ours, hypers) =
            block_on(async { (ours(method.clone(), parts.clone()).await, hypers(method, parts).await) });
        match stricter(&answer) {
            Some(why) => prop_assert_eq!(ours, None, "{}", why),
            None => prop_assert_eq!(ours, hypers),
        }
    }

    /// With bytes changed at random, we never pass on what hyper does not take for the same.
    #[test]
    fn what_we_pass_on_hyper_reads_alike(
        answer in written(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(&b"\r\n :;,0159aA\x00\x80-+"[..])), 1..4),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let mut bytes = answer.bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let parts = split(&bytes, &places);
        let (ours, hypers) =
            block_on(async { (ours(Method::GET, parts.clone()).await, hypers(Method::GET, parts).await) });
        if let Some(ours) = ours.filter(|ours| ours.is_whole) {
            prop_assert_eq!(Some(ours), hypers);
        }
    }

    /// Any bytes at all: no panic, an end, and the same result however they are cut into reads.
    #[test]
    fn any_bytes_give_one_result(
        prefix in prop::sample::select(vec![
            "", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "HTTP/1.1 100 \r\n\r\n", "HTTP/1.0 200 A\r\n\r\n",
        ]),
        tail in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            "[0-9a-f;: \r\nHTP/.x,-]{0,80}".prop_map(String::into_bytes),
            "([0-9a-f]{1,2}\r\n[a-z]{0,12}\r\n){0,6}(0\r\n)?([a-z]: [a-z]\r\n)?(\r\n)?".prop_map(String::into_bytes),
        ],
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let bytes = [prefix.as_bytes(), &tail].concat();
        let parts = split(&bytes, &places);
        let (whole, cut) = block_on(async { (ours(Method::GET, vec![bytes]).await, ours(Method::GET, parts).await) });
        prop_assert_eq!(whole, cut);
    }
}

/// Answers that hyper's client takes and we refuse, each with its reason.
#[test]
fn refused_on_purpose() {
    for (head, why) in [
        ("Content-Length: 2\r\nTransfer-Encoding: chunked", "hyper drops the length (SE-02)"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 2", "the same the other way round"),
        ("Transfer-Encoding: gzip, chunked", "the coding would be lost: it belongs to the connection"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "chunked may be applied once only"),
        ("Transfer-Encoding: identity", "no coding of RFC 9112"),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n2\r\nok\r\n0\r\n\r\n").into_bytes();
        let (ours, hypers) = block_on(async {
            (ours(Method::GET, vec![answer.clone()]).await, hypers(Method::GET, vec![answer]).await)
        });
        assert_eq!(ours, None, "{why}");
        assert!(hypers.is_some(), "not a difference any more: {head}");
    }
}
