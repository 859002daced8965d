//! Limits of connections: how many, how old, and what becomes of those that have switched protocols.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::support::{frames::*, *};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use proxy::{Body, Gateway, GatewayOptions, Limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

fn start(limits: Limits, shard: proxy::ShardOptions) -> Gateway {
    Gateway::start(GatewayOptions { limits, ..options(vec![shard]) }).unwrap()
}

/// A connection that has been answered once and stays open; `None` if it was closed instead.
async fn probe(gateway: &Gateway) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    let _ = socket.write_all(b"GET /livez HTTP/1.1\r\nHost: d\r\n\r\n").await;
    let mut read = Vec::new();
    while !read.ends_with(b"ok") {
        let n = timeout(PATIENCE, socket.read_buf(&mut read)).await.expect("answered or closed");
        if n.unwrap_or(0) == 0 {
            return None;
        }
    }
    Some(socket)
}

async fn is_closed(mut socket: TcpStream) -> bool {
    let mut rest = Vec::new();
    let read = timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("closed");
    read.is_err() || rest.is_empty()
}

async fn metrics(gateway: &Gateway) -> String {
    raw(gateway.admin_address(), b"GET /metrics HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n", |_| false).await
}

#[tokio::test]
async fn connections_are_limited_altogether_and_by_address() {
    for (limits, reason) in [
        (Limits { connections_per_address: 2, ..Limits::default() }, "connections-per-address"),
        (Limits { connections: 2, ..Limits::default() }, "connections"),
    ] {
        let gateway = start(limits, noting(&Seen::default()));
        let (first, second) = (probe(&gateway).await.unwrap(), probe(&gateway).await.unwrap());
        assert!(probe(&gateway).await.is_none(), "a third");
        drop(first);
        let third = loop {
            // The gateway has to notice first that the place is free.
            if let Some(third) = probe(&gateway).await {
                break third;
            }
        };
        drop((second, third));
        let text = metrics(&gateway).await;
        let line = text.lines().find(|l| l.contains(&format!("rejections_total{{reason=\"{reason}\"}}"))).unwrap();
        assert_ne!(line.rsplit(' ').next(), Some("0"), "{line}");
    }
}

/// Who opens connections and says nothing does not keep others out: the oldest of them goes.
#[tokio::test]
async fn silent_connections_make_room_for_those_that_speak() {
    let gateway = start(Limits { handshakes: 2, ..Limits::default() }, noting(&Seen::default()));
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(TcpStream::connect(gateway.address()).await.unwrap());
        assert!(probe(&gateway).await.is_some());
    }
    for socket in silent.drain(..8) {
        assert!(is_closed(socket).await);
    }
}

/// PX-10: a connection that is old takes no new requests, and what runs on it is not touched.
#[tokio::test]
async fn old_connections_are_left_for_others() {
    let (events, body) = channel();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let shard = local(move |request: Request<Body>| {
        let body = if request.uri().query() == Some("watch=1") { body.lock().unwrap().take() } else { None };
        async move { Response::new(body.unwrap_or_else(|| full("ok"))) }
    });
    let gateway = start(Limits { connection_age: Some(Duration::from_secs(1)), ..Limits::default() }, shard);
    let mut client = h2(&gateway).await;
    let mut watch = client.send_request(get_h2("/clusters/a/api/v1/pods?watch=1")).await.unwrap();
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    let mut heads = 0;
    let told = loop {
        heads += 1;
        socket.write_all(b"GET /clusters/a/api HTTP/1.1\r\nHost: d\r\n\r\n").await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"ok") {
            assert_ne!(
                timeout(PATIENCE, socket.read_buf(&mut read)).await.unwrap().unwrap(),
                0,
                "closed without a word"
            );
        }
        if String::from_utf8(read).unwrap().to_ascii_lowercase().contains("connection: close") {
            break heads;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(told > 1 && is_closed(socket).await);
    let deadline = std::time::Instant::now() + PATIENCE;
    while client.ready().await.is_ok()
        && let Ok(answer) = client.send_request(get_h2("/clusters/a/api")).await
    {
        assert_eq!(text(answer.into_body()).await, "ok");
        assert!(std::time::Instant::now() < deadline, "HTTP/2 says no GOAWAY");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    events.send(Bytes::from("late")).unwrap();
    assert_eq!(watch.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "late");
}

/// PX-10 again: some of the requests are followed by a GOAWAY, and none of them fails.
#[tokio::test]
async fn a_small_share_of_requests_moves_its_client() {
    let (events, body) = channel();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let shard = local(move |request: Request<Body>| {
        let body = if request.uri().query() == Some("watch=1") { body.lock().unwrap().take() } else { None };
        async move { Response::new(body.unwrap_or_else(|| full("ok"))) }
    });
    let gateway = start(Limits { goaways_per_million: 20_000, ..Limits::default() }, shard);
    let mut client = h2(&gateway).await;
    let mut watch = client.send_request(get_h2("/clusters/a/api/v1/pods?watch=1")).await.unwrap();
    let mut connections = 1;
    for _ in 0..2000 {
        let answer = loop {
            if client.ready().await.is_ok()
                && let Ok(answer) = client.send_request(get_h2("/clusters/a/api")).await
            {
                break answer;
            }
            // Only a connection that has said goodbye may refuse.
            assert!(client.is_closed());
            client = h2(&gateway).await;
            connections += 1;
        };
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(text(answer.into_body()).await, "ok");
    }
    assert!((10..=80).contains(&connections), "{connections} connections where 40 are due");
    events.send(Bytes::from("late")).unwrap();
    assert_eq!(watch.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "late");
}

const EXEC: &[u8] = b"GET /clusters/a/api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: d\r\n\
                      Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";

/// Asks for a tunnel; the answer's head and what came behind it.
async fn exec(gateway: &Gateway) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    socket.write_all(EXEC).await.unwrap();
    let mut read = Vec::new();
    while !read.windows(4).any(|w| w == b"\r\n\r\n") {
        assert_ne!(timeout(PATIENCE, socket.read_buf(&mut read)).await.unwrap().unwrap(), 0);
    }
    (socket, String::from_utf8(read).unwrap())
}

/// A shard that switches protocols and then says nothing.
async fn switching() -> proxy::ShardOptions {
    let address = raw_upstream(|mut socket, _| async move {
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") && socket.read_buf(&mut read).await.unwrap() > 0 {}
        let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
        socket.write_all(head).await.unwrap();
        let _ = socket.read_to_end(&mut read).await;
    });
    remote(address.await)
}

#[tokio::test]
async fn tunnels_are_limited() {
    let gateway = start(Limits { tunnels: 1, ..Limits::default() }, switching().await);
    let (first, head) = exec(&gateway).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let (_, head) = exec(&gateway).await;
    assert!(head.starts_with("HTTP/1.1 503") && head.to_lowercase().contains("retry-after: 1"), "{head}");
    drop(first);
    while !exec(&gateway).await.1.starts_with("HTTP/1.1 101") {}
    assert!(metrics(&gateway).await.contains("fairgate_door_rejections_total{reason=\"tunnels\"}"));
}

#[tokio::test]
async fn a_tunnel_without_a_byte_is_closed() {
    let limits = Limits { tunnel_idle_timeout: Duration::from_secs(1), ..Limits::default() };
    let gateway = start(limits, switching().await);
    let (socket, head) = exec(&gateway).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert!(is_closed(socket).await);
}

/// SE-05: resets of requests that run already are limited too, and each ends its work at the shard.
#[tokio::test]
async fn a_client_that_resets_its_requests_again_and_again_is_left() {
    const RESETS: usize = 20;
    struct Running(Arc<AtomicUsize>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    let (begun, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (begun.clone(), running.clone());
    let shard = remote(
        upstream(move |_| {
            counts.0.fetch_add(1, SeqCst);
            counts.1.fetch_add(1, SeqCst);
            let running = Running(counts.1.clone());
            async move {
                let _running = running;
                std::future::pending::<Response<Body>>().await
            }
        })
        .await,
    );
    let gateway = start(Limits { resets_per_minute: RESETS as u32, ..Limits::default() }, shard);
    let mut client = h2(&gateway).await;
    let mut resets = 0;
    while resets < 10 * RESETS && client.ready().await.is_ok() {
        let before = begun.load(SeqCst);
        let asking = tokio::spawn(client.send_request(get_h2("/clusters/a/api")));
        eventually("it runs, or the connection is gone", || begun.load(SeqCst) > before || asking.is_finished()).await;
        asking.abort();
        resets += 1;
    }
    // Within a second or two some of the budget comes back.
    assert!((RESETS..4 * RESETS).contains(&resets), "{resets}");
    eventually("nothing runs at the shard any more", || running.load(SeqCst) == 0).await;
    assert!(metrics(&gateway).await.contains("fairgate_door_rejections_total{reason=\"resets\"} 1"));
}

/// Who has no credential gets one answer for each HTTP/2 connection.
#[tokio::test]
async fn without_a_credential_an_http2_connection_is_soon_over() {
    let options = GatewayOptions { anonymous: false, ..options(vec![noting(&Seen::default())]) };
    let gateway = Gateway::start(options).unwrap();
    let mut client = h2(&gateway).await;
    let answer = client.send_request(get_h2("/clusters/a/api")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    assert!(text(answer.into_body()).await.contains("Unauthorized"));
    let mut more = 0;
    while client.ready().await.is_ok() && client.send_request(get_h2("/clusters/a/api")).await.is_ok() {
        more += 1;
        assert!(more < 1000, "it goes on and on");
    }
}

/// Nor does it last when its client does not want to hear that: h2 closes only what the other end lets go.
#[tokio::test]
async fn who_does_not_hear_the_goodbye_is_served_no_more() {
    let limits = Limits { stall_timeout: Duration::from_secs(10), ..Limits::default() };
    let options = GatewayOptions { anonymous: false, limits, ..options(vec![noting(&Seen::default())]) };
    let gateway = Gateway::start(options).unwrap();
    let socket = TcpStream::connect(gateway.address()).await.unwrap();
    let (mut read, mut write) = socket.into_split();
    write.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    let deadline = Instant::now() + 3 * PATIENCE;
    let (mut stream, mut bodies) = (1, Vec::new());
    // PINGs are not answered.
    while Instant::now() < deadline && write.write_all(&get_frame(stream)).await.is_ok() {
        stream += 2;
        loop {
            match timeout(PATIENCE, next(&mut read)).await.expect("neither an answer nor an end") {
                Some((DATA, _, _, body)) => break bodies.push(String::from_utf8(body).unwrap()),
                Some(_) => {}
                None => break,
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(bodies[0].contains("Unauthorized"), "{}", bodies[0]);
    assert!(bodies.last().unwrap().contains("open another"), "{}", bodies.last().unwrap());
    assert!(Instant::now() < deadline, "it is open for ever");
}

/// What is not TLS, and TLS that does not go on, ends on the TLS port; and who speaks it is served.
#[tokio::test]
async fn what_is_no_tls_ends_at_the_handshake() {
    let ca = tls::Ca::new();
    let seen = Seen::default();
    let limits = Limits { head_timeout: Duration::from_secs(1), ..Limits::default() };
    let tls = Some(Arc::new(ca.server_config()));
    let gateway = Gateway::start(GatewayOptions { tls, limits, ..options(vec![noting(&seen)]) }).unwrap();
    for bytes in [
        &b"GET /clusters/a/api HTTP/1.1\r\nHost: d\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        // A record longer than TLS has any, and half a hello.
        b"\x16\x03\x01\xff\xff\x01",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"",
    ] {
        let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("closed");
        // Nothing but an alert.
        assert!(answer.is_empty() || answer[0] == 0x15, "{answer:?}");
    }
    assert_eq!(seen.len(), 0);
    let mut client = h2_on(ca.connect(gateway.address(), None, true).await).await;
    assert_eq!(client.send_request(get_h2("/clusters/a/api")).await.unwrap().status(), StatusCode::OK);
}

/// Neither empty lines nor what is below HTTP/2's requests is a use of a connection.
#[tokio::test]
async fn chatter_does_not_keep_an_idle_connection() {
    let limits = Limits { idle_timeout: Duration::from_millis(100), head_timeout: PATIENCE, ..Limits::default() };
    let gateway = Gateway::start(GatewayOptions { limits, ..options(vec![noting(&Seen::default())]) }).unwrap();
    let preface = [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat();
    let ping = frame(PING, 0, 0, &[0; 8]);
    for (hello, chatter) in [(b"\r\n".to_vec(), b"\r\n".to_vec()), (preface, ping)] {
        let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
        socket.write_all(&hello).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        // Until the other end is closed.
        loop {
            assert!(Instant::now() < deadline, "it is open for ever");
            if socket.write_all(&chatter).await.is_err() {
                break;
            }
            let mut read = [0; 4096];
            if let Ok(Ok(0) | Err(_)) = timeout(Duration::from_millis(50), socket.read(&mut read)).await {
                break;
            }
        }
    }
}
