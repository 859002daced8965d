//! Time limits, drain and the admin address.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::time::Duration;

use crate::support::{frames::*, *};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use proxy::{Body, Gateway, GatewayOptions, Limits};
use tokio::{io::AsyncReadExt, io::AsyncWriteExt, net::TcpStream};

/// Below the defaults of all limits: so only what is configured explains that a connection ends within it.
const SHORT: Duration = Duration::from_secs(12);

async fn closed(mut socket: TcpStream) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(SHORT, socket.read_to_end(&mut rest)).await.is_ok()
}

fn short() -> Limits {
    let Limits { head_timeout, idle_timeout, stall_timeout, .. } = Limits::default();
    assert!(head_timeout.min(idle_timeout).min(stall_timeout) > SHORT);
    let (head_timeout, idle_timeout) = (Duration::from_millis(500), Duration::from_millis(500));
    Limits { head_timeout, idle_timeout, stall_timeout: Duration::from_millis(500), ..Limits::default() }
}

#[tokio::test]
async fn silent_slow_and_idle_connections_are_closed_and_quiet_watches_are_not() {
    let (events, body) = channel();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let shard = local(move |request: Request<Body>| {
        let body = if request.uri().query() == Some("watch=1") { body.lock().unwrap().take() } else { None };
        async move { Response::new(body.unwrap_or_else(Body::empty)) }
    });
    let gateway = Gateway::start(GatewayOptions { limits: short(), ..options(vec![shard]) }).unwrap();
    let mut watch = h1(&gateway).await.send_request(get("/clusters/a/api/v1/pods?watch=1")).await.unwrap();
    let silent = TcpStream::connect(gateway.address()).await.unwrap();
    let mut slow = TcpStream::connect(gateway.address()).await.unwrap();
    slow.write_all(b"GET /clusters/a/api HTTP/1.1\r\nHost:").await.unwrap();
    let mut idle = TcpStream::connect(gateway.address()).await.unwrap();
    idle.write_all(b"GET /clusters/a/api HTTP/1.1\r\nHost: d\r\n\r\n").await.unwrap();
    let mut upload = TcpStream::connect(gateway.address()).await.unwrap();
    upload.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    for socket in [silent, slow, idle, upload] {
        assert!(closed(socket).await);
    }
    events.send(Bytes::from("late\n")).unwrap();
    let frame = watch.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "late\n", "longer than every limit, and still open");
}

/// FA-05: who does not read its answer is cut off.
#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let (held, body) = channel();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let shard = local(move |_| {
        let body = body.lock().unwrap().take();
        async move { Response::new(body.unwrap_or_else(Body::empty)) }
    });
    let gateway = Gateway::start(GatewayOptions { limits: short(), ..options(vec![shard]) }).unwrap();
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    socket.write_all(b"GET /clusters/a/api HTTP/1.1\r\nHost: d\r\n\r\n").await.unwrap();
    for _ in 0..400 {
        held.send(Bytes::from(vec![0; 64 << 10])).unwrap();
    }
    tokio::time::timeout(PATIENCE, held.closed()).await.expect("the shard is still asked for more");
}

/// On HTTP/2 only the stream that is not read, or not written on, is cut off: the others go on.
#[tokio::test]
async fn a_stream_that_stalls_is_cut_off_alone() {
    let (held, body) = channel();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let shard = local(move |request: Request<Body>| {
        let body = if request.uri().query() == Some("large") { body.lock().unwrap().take() } else { None };
        async move {
            let whole = request.into_body().collect().await;
            Response::new(body.unwrap_or_else(|| full(if whole.is_ok() { "whole" } else { "broken" })))
        }
    });
    let gateway = Gateway::start(GatewayOptions { limits: short(), ..options(vec![shard]) }).unwrap();
    let mut client = h2(&gateway).await;
    let unread = client.send_request(get_h2("/clusters/a/api?large")).await.unwrap();
    for _ in 0..400 {
        held.send(Bytes::from(vec![0; 64 << 10])).unwrap();
    }
    let (part, upload) = channel();
    part.send(Bytes::from("abc")).unwrap();
    let stalled = client.send_request(Request::post("http://door/clusters/a/api").body(upload).unwrap());
    tokio::time::timeout(PATIENCE, held.closed()).await.expect("the shard is still asked for more");
    let stalled = tokio::time::timeout(PATIENCE, stalled).await.expect("the upload is still waited for").unwrap();
    assert_eq!(stalled.status(), StatusCode::REQUEST_TIMEOUT);
    assert!(text(stalled.into_body()).await.contains("does not go on"));
    assert!(unread.into_body().collect().await.is_err(), "a cut answer must not look complete");
    let other = client.send_request(get_h2("/clusters/a/api")).await.unwrap();
    assert_eq!(text(other.into_body()).await, "whole");
}

/// Whatever a bundled shard makes of a body that does not come whole.
#[tokio::test]
async fn what_is_wrong_with_an_upload_is_told_by_the_gateway() {
    let shard = local(|request: Request<Body>| async move {
        let whole = request.into_body().collect().await;
        let mut response = ok("whole");
        if whole.is_err() {
            *response.status_mut() = StatusCode::BAD_REQUEST;
        }
        response
    });
    let limits = Limits { body_bytes: Some(1024), ..short() };
    let gateway = Gateway::start(GatewayOptions { limits, ..options(vec![shard]) }).unwrap();
    let head = "POST /clusters/a/api HTTP/1.1\r\nHost: d\r\n";
    let large = format!("{head}Transfer-Encoding: chunked\r\n\r\n800\r\n{}\r\n0\r\n\r\n", "x".repeat(2048));
    for (bytes, code) in [(large, 413), (format!("{head}Content-Length: 10\r\n\r\nabc"), 408)] {
        let answer = raw(gateway.address(), bytes.as_bytes(), |_| false).await.to_ascii_lowercase();
        assert!(answer.starts_with(&format!("http/1.1 {code} ")) && answer.contains("connection: close"), "{answer}");
    }
}

/// An upload that stops in the middle ends, and its work at the shard with it.
#[tokio::test]
async fn an_upload_that_stalls_is_cut_off() {
    let shard = local(|request: Request<Body>| async move {
        let whole = request.into_body().collect().await;
        ok(if whole.is_ok() { "whole" } else { "broken" })
    });
    let gateway = Gateway::start(GatewayOptions { limits: short(), ..options(vec![shard]) }).unwrap();
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    socket.write_all(b"POST /clusters/a/api HTTP/1.1\r\nHost: d\r\nContent-Length: 10\r\n\r\nabc").await.unwrap();
    assert!(closed(socket).await);
}

#[tokio::test]
async fn a_drain_lets_requests_finish_and_ends_watches() {
    let (answer, body) = channel();
    let bodies = std::sync::Arc::new(std::sync::Mutex::new(vec![body]));
    let (watching, watch_body) = channel();
    let watches = std::sync::Arc::new(std::sync::Mutex::new(vec![watch_body]));
    let shard = local(move |request: Request<Body>| {
        let of = if request.uri().query() == Some("watch=1") { &watches } else { &bodies };
        let body = of.lock().unwrap().pop();
        async move { Response::new(body.unwrap_or_else(Body::empty)) }
    });
    let gateway = Gateway::start(options(vec![shard])).unwrap();
    let address = gateway.address();
    let silent = TcpStream::connect(address).await.unwrap();
    let mut idle_h2 = h2(&gateway).await;
    assert_eq!(idle_h2.send_request(get_h2("/livez")).await.unwrap().status(), StatusCode::OK);
    let mut running = h1(&gateway).await.send_request(get("/clusters/a/api")).await.unwrap();
    let mut watch = h1(&gateway).await.send_request(get("/clusters/a/api/v1/pods?watch=1")).await.unwrap();
    watching.send(Bytes::from("event\n")).unwrap();
    assert!(watch.body_mut().frame().await.unwrap().is_ok());
    let shutdown = tokio::spawn(gateway.shutdown(Duration::ZERO, PATIENCE));
    assert!(closed(silent).await);
    assert!(watch.body_mut().frame().await.is_none(), "the watch ends in good order");
    answer.send(Bytes::from("late")).unwrap();
    drop(answer);
    let frame = running.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "late");
    assert!(running.body_mut().frame().await.is_none());
    tokio::time::timeout(PATIENCE, shutdown).await.expect("ends before its grace is over").unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

/// PX-08: readiness is down while everything is still served; then clients are asked to go, then refused, never cut off.
#[tokio::test]
async fn during_the_delay_all_is_served_and_clients_are_asked_to_go() {
    let (rest, body) = channel();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let shard = local(move |request: Request<Body>| {
        let body = if request.uri().query() == Some("long") { body.lock().unwrap().take() } else { None };
        async move { Response::new(body.unwrap_or_else(|| full("ok"))) }
    });
    let gateway = Gateway::start(options(vec![shard])).unwrap();
    let (address, admin) = (gateway.address(), gateway.admin_address());
    // As long as it runs the gateway is there, and says why it serves nothing.
    let running = h1(&gateway).await.send_request(get("/clusters/a/api?long")).await.unwrap();
    let (mut kept, mut streams) = (h1(&gateway).await, h2(&gateway).await);
    let shutdown = tokio::spawn(gateway.shutdown(Duration::from_secs(1), PATIENCE));
    let probe = async |path: &str| {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        raw(admin, bytes.as_bytes(), |_| false).await
    };
    let down = probe("/readyz").await;
    assert!(
        down.starts_with("HTTP/1.1 503") && down.contains("[-]shutdown failed: this gateway is shutting down"),
        "{down}"
    );
    assert!(probe("/livez").await.ends_with("\r\n\r\nok"));
    // Every answer on the connection is good, and the last one says that it is.
    loop {
        let response = kept.send_request(get("/clusters/a/api")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let is_last = response.headers().get("connection").is_some_and(|v| v == "close");
        response.into_body().collect().await.unwrap();
        if is_last {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // On HTTP/2 it ends between two requests.
    while streams.ready().await.is_ok() {
        match streams.send_request(get_h2("/clusters/a/api")).await {
            Ok(response) => assert_eq!(response.status(), StatusCode::OK),
            Err(error) => assert!(error.is_canceled(), "{error:?}: it was on its way"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // New connections are served until the delay is over, and told why not then.
    loop {
        let bytes = b"GET /clusters/a/api HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n";
        let answer = raw(address, bytes, |_| false).await;
        if answer.starts_with("HTTP/1.1 503") {
            assert!(answer.to_lowercase().contains("retry-after: 1") && answer.contains("shutting down"), "{answer}");
            break;
        }
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(rest);
    assert!(running.into_body().collect().await.is_ok(), "it finishes");
    assert_eq!(tokio::time::timeout(PATIENCE, shutdown).await.unwrap().unwrap(), 0, "nothing was cut off");
}

/// An HTTP/2 connection that comes while the gateway drains gets an answer, and the goodbye behind it: clients do not send
/// again elsewhere what they have not sent on a connection that was new.
#[tokio::test]
async fn a_new_http2_connection_gets_its_answer_before_the_goodbye() {
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(PING, 0, 0, b"ask once")].concat();
    let shard = local(|request: Request<Body>| async move {
        if request.uri().query() == Some("long") {
            std::future::pending::<()>().await;
        }
        ok("ok")
    });
    let gateway = Gateway::start(options(vec![shard])).unwrap();
    let (address, admin) = (gateway.address(), gateway.admin_address());
    // As long as it runs the gateway is there.
    let mut client = h1(&gateway).await;
    let asking = tokio::spawn(async move { client.send_request(get("/clusters/a/api?long")).await });
    let in_flight = async || {
        let bytes = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        raw(admin, bytes, |_| false).await.contains("fairgate_requests_in_flight 1\n")
    };
    let deadline = std::time::Instant::now() + PATIENCE;
    while !in_flight().await {
        assert!(std::time::Instant::now() < deadline, "the request does not run");
    }
    let shutdown = tokio::spawn(gateway.shutdown(Duration::ZERO, Duration::from_secs(3600)));
    while !raw(address, b"GET /clusters/a/api HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n", |_| false)
        .await
        .starts_with("HTTP/1.1 503")
    {
        assert!(std::time::Instant::now() < deadline, "it does not drain");
    }
    // A connection that is silent for seconds is told to go too: on a busy machine that may be the first.
    let mut orders = Vec::new();
    while orders.len() < 10 && !orders.contains(&vec![PING, HEADERS, GOAWAY]) {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(&hello).await.unwrap();
        let mut order = Vec::new();
        while let Some((kind, flags, ..)) = tokio::time::timeout(PATIENCE, next(&mut socket)).await.expect("no end") {
            match kind {
                PING if flags == ACK => socket.write_all(&get_frame(1)).await.unwrap(),
                HEADERS | GOAWAY if !order.contains(&kind) => {}
                _ => continue,
            }
            order.push(kind);
            if order.contains(&HEADERS) && order.contains(&GOAWAY) {
                break;
            }
        }
        orders.push(order);
    }
    assert_eq!(orders.last(), Some(&vec![PING, HEADERS, GOAWAY]), "{orders:?}");
    shutdown.abort();
    assert!(asking.await.unwrap().is_err());
}

#[tokio::test]
async fn what_does_not_end_is_cut_off_after_the_grace() {
    let shard = local(|_| std::future::pending::<Response<Body>>());
    let gateway = Gateway::start(options(vec![shard])).unwrap();
    let mut client = h1(&gateway).await;
    let asking = tokio::spawn(async move { client.send_request(get("/clusters/a/api")).await });
    let admin = gateway.admin_address();
    loop {
        let metrics = raw(admin, b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", |_| false).await;
        if metrics.contains("fairgate_requests_in_flight 1") {
            break;
        }
    }
    tokio::time::timeout(PATIENCE, gateway.shutdown(Duration::ZERO, Duration::from_millis(100))).await.expect("hangs");
    assert!(asking.await.unwrap().is_err());
}

#[tokio::test]
async fn the_admin_address_tells_and_takes_no_orders() {
    let gateway = Gateway::start(options(vec![local(|_| async { ok("ok") })])).unwrap();
    once(&gateway, get("/clusters/a/api")).await;
    once(&gateway, get("/clusters/A/api")).await;
    let ask = async |method: &str, path: &str| {
        let bytes = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        raw(gateway.admin_address(), bytes.as_bytes(), |_| false).await
    };
    for path in ["/livez", "/readyz", "/healthz"] {
        assert!(ask("GET", path).await.ends_with("\r\n\r\nok"), "{path}");
    }
    let metrics = ask("GET", "/metrics").await;
    for line in [
        "apiserver_request_total{code=\"200\",verb=\"GET\"} 1",
        "apiserver_request_total{code=\"403\",verb=\"other\"} 1",
        "fairgate_door_rejections_total{reason=\"workspace\"} 1",
        "fairgate_index_ready 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(ask("HEAD", "/metrics").await.starts_with("HTTP/1.1 200"));
    let lost = ask("GET", "/debug").await;
    assert!(lost.starts_with("HTTP/1.1 404") && lost.contains("\"kind\":\"Status\""), "{lost}");
    assert!(ask("POST", "/metrics").await.starts_with("HTTP/1.1 405"));
}
