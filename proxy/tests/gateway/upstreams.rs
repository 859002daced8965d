//! Shards that hang up, refuse, are slow or gone, and clients that leave.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::*;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use proxy::{Body, Gateway, GatewayOptions, Limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Reads one request without a body, or with one of a declared length that comes at once.
async fn read_head(socket: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if socket.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(String::from_utf8(head).unwrap())
}

async fn status_of(client: &mut H1, request: Request<Body>) -> StatusCode {
    client.ready().await.unwrap();
    let response = client.send_request(request).await.unwrap();
    let status = response.status();
    response.into_body().collect().await.unwrap();
    status
}

/// PX-16, with the shard's hang-up always on its way while the connection is picked again.
#[tokio::test]
async fn a_shard_that_closes_after_each_answer_fails_no_read_and_doubles_no_write() {
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = writes.clone();
    let address = raw_upstream(move |mut socket, _| {
        let writes = counted.clone();
        async move {
            if let Some(head) = read_head(&mut socket).await {
                writes.fetch_add(usize::from(head.starts_with("POST")), SeqCst);
                let _ = socket.write_all(OK).await;
            }
        }
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let mut client = h1(&gateway).await;
    for _ in 0..100 {
        assert_eq!(status_of(&mut client, get("/clusters/a/api")).await, StatusCode::OK);
    }
    let mut succeeded = 0;
    for _ in 0..100 {
        let post = Request::post("/clusters/a/api").header("host", "d").body(full("x")).unwrap();
        match status_of(&mut client, post).await {
            StatusCode::OK => succeeded += 1,
            status => assert_eq!(status, StatusCode::BAD_GATEWAY),
        }
    }
    assert!(writes.load(SeqCst) >= succeeded && writes.load(SeqCst) <= 100, "{succeeded} {writes:?}");
}

/// The second request on a connection is read and never answered: a read is repeated on a fresh one, a write is not.
#[tokio::test]
async fn only_reads_are_repeated_when_a_reused_connection_breaks() {
    for (method, want, connections) in [("GET", StatusCode::OK, 2), ("POST", StatusCode::BAD_GATEWAY, 1)] {
        let opened = Arc::new(AtomicUsize::new(0));
        let counted = opened.clone();
        let address = raw_upstream(move |mut socket, _| {
            counted.fetch_add(1, SeqCst);
            async move {
                read_head(&mut socket).await;
                socket.write_all(OK).await.unwrap();
                read_head(&mut socket).await;
            }
        })
        .await;
        let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
        let mut client = h1(&gateway).await;
        assert_eq!(status_of(&mut client, get("/clusters/a/api")).await, StatusCode::OK);
        let body = if method == "POST" { full("x") } else { Body::empty() };
        let request = Request::builder().method(method).uri("/clusters/a/api").header("host", "d").body(body).unwrap();
        assert_eq!(status_of(&mut client, request).await, want, "{method}");
        assert_eq!(opened.load(SeqCst), connections, "{method}");
    }
}

#[tokio::test]
async fn connections_are_reused() {
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = opened.clone();
    let address = raw_upstream(move |mut socket, _| {
        counted.fetch_add(1, SeqCst);
        async move {
            while read_head(&mut socket).await.is_some() {
                socket.write_all(OK).await.unwrap();
            }
        }
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let mut client = h1(&gateway).await;
    for _ in 0..50 {
        assert_eq!(status_of(&mut client, get("/clusters/a/api")).await, StatusCode::OK);
    }
    assert!(opened.load(SeqCst) <= 2, "{opened:?}");
}

/// A shard that answers uploads before they end: their connections are busy, and in nobody's way.
#[tokio::test]
async fn early_answers_hide_no_ready_connection() {
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = opened.clone();
    let (answer, asked) = tokio::sync::watch::channel("");
    let address = raw_upstream(move |mut socket, _| {
        counted.fetch_add(1, SeqCst);
        let mut asked = asked.clone();
        async move {
            while let Some(head) = read_head(&mut socket).await {
                asked.wait_for(|methods| methods.contains(head.split(' ').next().unwrap())).await.unwrap();
                socket.write_all(OK).await.unwrap();
            }
        }
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let mut reader = h1(&gateway).await;
    let first = reader.send_request(get("/clusters/a/api"));
    let mut uploads = Vec::new();
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (part, body) = channel();
        uploads.push(part);
        let mut client = h1(&gateway).await;
        let post = Request::post("/clusters/a/api").header("host", "d").body(body).unwrap();
        asking.spawn(async move {
            let response = client.send_request(post).await.unwrap();
            assert_eq!(text(response.into_body()).await, "ok");
            client
        });
    }
    let first = tokio::spawn(first);
    eventually("all are at the shard", || opened.load(SeqCst) == 9).await;
    answer.send_replace("GET");
    assert_eq!(text(first.await.unwrap().unwrap().into_body()).await, "ok");
    answer.send_replace("GET POST");
    let _clients = asking.join_all().await;
    assert_eq!(status_of(&mut reader, get("/clusters/a/api")).await, StatusCode::OK);
    assert_eq!(opened.load(SeqCst), 9, "the ready connection is used");
}

/// A shard that takes no more connections still serves those it has.
#[tokio::test]
async fn a_failed_connect_refuses_nothing_that_has_a_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let held = Arc::new(tokio::sync::Notify::new());
    let release = held.clone();
    let waiting = Arc::new(AtomicUsize::new(0));
    let counted = waiting.clone();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        drop(listener);
        while let Some(head) = read_head(&mut socket).await {
            if head.contains("/slow") {
                counted.fetch_add(1, SeqCst);
                held.notified().await;
            }
            socket.write_all(OK).await.unwrap();
        }
    });
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let mut client = h1(&gateway).await;
    assert_eq!(status_of(&mut client, get("/clusters/a/api")).await, StatusCode::OK);
    let slow = tokio::spawn(async move { (status_of(&mut client, get("/clusters/a/slow")).await, client) });
    eventually("the only connection is busy", || waiting.load(SeqCst) == 1).await;
    let mut other = h1(&gateway).await;
    let mut refused = 0;
    // Others are tried in vain, and the circuit opens for longer and longer.
    while refused < 20 {
        refused += usize::from(status_of(&mut other, get("/clusters/a/api")).await == StatusCode::SERVICE_UNAVAILABLE);
    }
    release.notify_one();
    assert_eq!(slow.await.unwrap().0, StatusCode::OK);
    for _ in 0..20 {
        assert_eq!(status_of(&mut other, get("/clusters/a/api")).await, StatusCode::OK);
    }
}

/// PX-17: at most one retry.
#[tokio::test]
async fn a_shard_that_hangs_up_at_once_is_not_asked_in_a_loop() {
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = opened.clone();
    let address = raw_upstream(move |socket, _| {
        counted.fetch_add(1, SeqCst);
        async move { drop(socket) }
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let (status, headers, body) = once(&gateway, get("/clusters/a/api")).await;
    assert!(matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE), "{status}");
    assert_eq!(headers["retry-after"], "1");
    assert!(body.contains("\"kind\":\"Status\""), "{body}");
    assert!(opened.load(SeqCst) <= 2);
}

#[tokio::test]
async fn a_shard_that_is_down_fails_fast_and_comes_back() {
    let free = listener();
    let address = free.local_addr().unwrap();
    drop(free);
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    for _ in 0..20 {
        let (status, headers, body) = once(&gateway, get("/clusters/a/api")).await;
        assert_eq!((status, headers["retry-after"].as_bytes()), (StatusCode::SERVICE_UNAVAILABLE, &b"1"[..]));
        assert!(body.contains("\"reason\":\"ServiceUnavailable\""), "{body}");
    }
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                while read_head(&mut socket).await.is_some() {
                    socket.write_all(OK).await.unwrap();
                }
            });
        }
    });
    let deadline = std::time::Instant::now() + PATIENCE;
    while once(&gateway, get("/clusters/a/api")).await.0 != StatusCode::OK {
        assert!(std::time::Instant::now() < deadline, "the circuit stays open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_shard_that_does_not_answer_gets_504() {
    let silent = |_| std::future::pending::<Response<Body>>();
    let limits = Limits { request_timeout: Duration::from_millis(500), ..Limits::default() };
    let gateway = Gateway::start(GatewayOptions { limits, ..options(vec![remote(upstream(silent).await)]) }).unwrap();
    let (status, headers, body) = once(&gateway, get("/clusters/a/api")).await;
    assert_eq!((status, headers["retry-after"].as_bytes()), (StatusCode::GATEWAY_TIMEOUT, &b"1"[..]));
    assert!(body.contains("\"reason\":\"Timeout\""), "{body}");
    let (status, headers, body) = once(&gateway, write("/clusters/a/api")).await;
    assert_eq!((status, headers.get("retry-after")), (StatusCode::GATEWAY_TIMEOUT, None));
    assert!(body.contains("\"reason\":\"Timeout\"") && body.contains(UNDECIDED), "{body}");
}

/// What a write is told that may have been carried out: nobody is to send it again without a look.
const UNDECIDED: &str = "whether it has carried the request out is not known";

fn write(path: &str) -> Request<Body> {
    Request::post(path).header("host", "door").body(Body::from(Bytes::from("{}"))).unwrap()
}

#[tokio::test]
async fn clients_are_not_asked_to_repeat_a_write_that_may_have_been_carried_out() {
    let address = raw_upstream(|mut socket, _| async move {
        read_head(&mut socket).await;
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let (status, headers, body) = once(&gateway, write("/clusters/a/api")).await;
    assert_eq!((status, headers.get("retry-after")), (StatusCode::BAD_GATEWAY, None));
    assert!(body.contains(UNDECIDED), "{body}");
}

#[tokio::test]
async fn an_answer_with_two_framings_is_not_believed() {
    let address = raw_upstream(|mut socket, _| async move {
        read_head(&mut socket).await;
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nok";
        socket.write_all(answer).await.unwrap();
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    assert_eq!(once(&gateway, get("/clusters/a/api")).await.0, StatusCode::BAD_GATEWAY);
}

/// An answer that breaks off must not look complete.
#[tokio::test]
async fn a_broken_answer_breaks_towards_the_client() {
    for answer in ["content-length: 10\r\n\r\nabc", "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"] {
        let address = raw_upstream(move |mut socket, _| async move {
            read_head(&mut socket).await;
            socket.write_all(format!("HTTP/1.1 200 OK\r\n{answer}").as_bytes()).await.unwrap();
        })
        .await;
        let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
        let over_h1 = h1(&gateway).await.send_request(get("/clusters/a/api")).await;
        let over_h2 = h2(&gateway).await.send_request(get_h2("/clusters/a/api")).await;
        for answer in [over_h1, over_h2] {
            // The breaking off may be known before the head has left.
            let Ok(response) = answer else { continue };
            assert!(response.into_body().collect().await.is_err());
        }
    }
}

/// Counts itself for as long as it lives.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_work() {
    let (working, started) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (working, started) = (working.clone(), started.clone());
        move || {
            let alive = Alive::new(&working);
            started.fetch_add(1, SeqCst);
            async move {
                let _alive = alive;
                std::future::pending::<Response<Body>>().await
            }
        }
    };
    let over_socket = handler.clone();
    let remote_shard = remote(upstream(move |_| over_socket()).await);
    for shard in [local(move |_| handler()), remote_shard] {
        let gateway = Gateway::start(options(vec![shard])).unwrap();
        started.store(0, SeqCst);
        let mut one = h1(&gateway).await;
        let mut two = h2(&gateway).await;
        let asking = tokio::spawn(async move {
            tokio::select! {
                _ = one.send_request(get("/clusters/a/api")) => {}
                _ = two.send_request(get_h2("/clusters/a/api")) => {}
            }
        });
        eventually("both requests are at the shard", || started.load(SeqCst) == 2).await;
        assert_eq!(working.load(SeqCst), 2);
        asking.abort();
        eventually("both are cancelled", || working.load(SeqCst) == 0).await;
    }
}

/// The same in the middle of an answer.
#[tokio::test]
async fn a_client_that_leaves_a_watch_ends_it() {
    let watches = Arc::new(AtomicUsize::new(0));
    let counted = watches.clone();
    let handler = move |_| {
        let alive = Alive::new(&counted);
        let (sender, body) = channel();
        async move {
            sender.send(Bytes::from("event\n")).unwrap();
            tokio::spawn(async move {
                sender.closed().await;
                drop(alive);
            });
            Response::new(body)
        }
    };
    let gateway = Gateway::start(options(vec![remote(upstream(handler).await)])).unwrap();
    let path = "/clusters/a/api/v1/pods?watch=1";
    let mut over_h1 = h1(&gateway).await.send_request(get(path)).await.unwrap();
    let mut over_h2 = h2(&gateway).await.send_request(get_h2(path)).await.unwrap();
    for response in [&mut over_h1, &mut over_h2] {
        assert_eq!(response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "event\n");
    }
    assert_eq!(watches.load(SeqCst), 2);
    drop((over_h1, over_h2));
    eventually("both watches ended", || watches.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let panics = |request: Request<Body>| async move {
        assert!(!request.uri().path().ends_with("boom"), "as asked");
        ok("ok")
    };
    let gateway = Gateway::start(options(vec![local(panics)])).unwrap();
    let mut client = h1(&gateway).await;
    assert_eq!(status_of(&mut client, get("/clusters/a/boom")).await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(status_of(&mut client, get("/clusters/a/api")).await, StatusCode::OK);
    let mut client = h2(&gateway).await;
    for (path, want) in [("/clusters/a/boom", 500), ("/clusters/a/api", 200)] {
        assert_eq!(client.send_request(get_h2(path)).await.unwrap().status().as_u16(), want);
    }
}

const EXEC: &str = "/clusters/a/api/v1/namespaces/n/pods/p/exec?command=sh&command=-c&command=echo+a%2Bb&tty=";

/// PX-11: bytes pass both ways, and one end may close before the other.
#[tokio::test]
async fn an_upgrade_becomes_a_tunnel() {
    let address = raw_upstream(|mut socket, _| async move {
        let head = read_head(&mut socket).await.unwrap();
        assert!(head.starts_with(&format!("GET {EXEC} HTTP/1.1\r\n")), "{head}");
        let head = head.to_lowercase();
        assert!(head.contains("\r\nconnection: upgrade\r\n") && head.contains("\r\nupgrade: spdy/3.1\r\n"), "{head}");
        assert!(head.contains("\r\nx-stream-protocol-version: v4"), "{head}");
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-A: b\r\n\r\nhello";
        socket.write_all(answer.as_bytes()).await.unwrap();
        let (mut read, mut write) = socket.split();
        tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.write_all(b"bye").await.unwrap();
    })
    .await;
    let limits = Limits { idle_timeout: Duration::from_millis(1), ..Limits::default() };
    let gateway = Gateway::start(GatewayOptions { limits, ..options(vec![remote(address)]) }).unwrap();
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    let ask = format!(
        "GET {EXEC} HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4\r\n\r\n"
    );
    socket.write_all(ask.as_bytes()).await.unwrap();
    let head = read_until(&mut socket, "hello").await.to_lowercase();
    assert!(
        head.starts_with("http/1.1 101") && head.contains("upgrade: spdy/3.1") && head.contains("x-a: b"),
        "{head}"
    );
    let sent: Vec<u8> = (0..1_000_000u32).map(|n| (n % 253) as u8).collect();
    let (mut read, mut write) = socket.split();
    let mut got = Vec::new();
    let (written, received) = tokio::join!(
        async {
            write.write_all(&sent).await?;
            write.shutdown().await
        },
        read.read_to_end(&mut got)
    );
    written.unwrap();
    received.unwrap();
    assert!(got.len() == sent.len() + 3 && got.starts_with(&sent) && got.ends_with(b"bye"));
}

async fn read_until(socket: &mut TcpStream, end: &str) -> String {
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).ends_with(end) {
        assert!(socket.read_buf(&mut got).await.unwrap() > 0, "closed after {got:?}");
    }
    String::from_utf8(got).unwrap()
}

/// What asks for another protocol has to get its answer in time, like all others.
#[tokio::test]
async fn an_upgrade_that_is_not_answered_gets_504() {
    let silent = |_| std::future::pending::<Response<Body>>();
    let limits = Limits { request_timeout: Duration::from_millis(500), ..Limits::default() };
    let gateway = Gateway::start(GatewayOptions { limits, ..options(vec![remote(upstream(silent).await)]) }).unwrap();
    let ask =
        format!("GET {EXEC} HTTP/1.1\r\nHost: d\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let answer = raw(gateway.address(), ask.as_bytes(), |seen| seen.contains("\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
}

/// Nobody asked for it.
#[tokio::test]
async fn a_switch_that_nobody_asked_for_is_a_failure() {
    let address = raw_upstream(|mut socket, _| async move {
        read_head(&mut socket).await;
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
        socket.write_all(answer).await.unwrap();
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    assert_eq!(once(&gateway, get("/clusters/a/api")).await.0, StatusCode::BAD_GATEWAY);
}

/// SE-01: after a refused upgrade the client's bytes are requests like all others.
#[tokio::test]
async fn a_refused_upgrade_opens_nothing() {
    let seen = Seen::default();
    let noted = seen.clone();
    let refuse = move |request: Request<hyper::body::Incoming>| {
        let is_exec = request.uri().path().ends_with("/exec");
        noted.push(request.into_parts().0);
        async move {
            let mut response = ok("no");
            *response.status_mut() = if is_exec { StatusCode::FORBIDDEN } else { StatusCode::OK };
            response
        }
    };
    let gateway = Gateway::start(options(vec![remote(upstream(refuse).await)])).unwrap();
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    let upgrade = format!("GET {EXEC} HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    socket.write_all(upgrade.as_bytes()).await.unwrap();
    assert!(read_until(&mut socket, "\r\n\r\nno").await.starts_with("HTTP/1.1 403"));
    let smuggled = "GET /clusters/b/api/v1/secrets HTTP/1.1\r\nHost: d\r\nX-Remote-Group: system:masters\r\n\r\n";
    socket.write_all(smuggled.as_bytes()).await.unwrap();
    assert!(read_until(&mut socket, "\r\n\r\nno").await.starts_with("HTTP/1.1 200"));
    let requests = seen.take();
    let groups: Vec<_> = requests[1].headers.get_all("x-remote-group").iter().collect();
    assert_eq!(groups, ["system:unauthenticated"]);
}
