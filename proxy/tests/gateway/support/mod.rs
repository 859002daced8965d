//! Small upstreams, clients and gateways on loopback ports that the kernel chooses.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    convert::Infallible,
    future::Future,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use config::Protocol;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proxy::{Body, Directory, Gateway, GatewayOptions, Limits, LocalService, RemoteOptions, ShardOptions, Upstream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub mod frames;
pub mod rules;
pub mod tls;

/// What a test waits for at most.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A gateway in front of `shards`, everything else at its simplest.
pub fn options(shards: Vec<ShardOptions>) -> GatewayOptions {
    GatewayOptions {
        listener: listener(),
        tls: None,
        admin: listener(),
        workers: 1,
        anonymous: true,
        drop_groups: Vec::new(),
        shards,
        fairness: None,
        compat: config::Compat::Fairgate,
        healthy: None,
        directory: Directory::Static,
        limits: Limits::default(),
        access_log: None,
    }
}

pub fn shard(upstream: Upstream) -> ShardOptions {
    ShardOptions { name: "root".into(), seats: 10, upstream, observers: None }
}

pub fn remote(address: SocketAddr) -> ShardOptions {
    speaking(address, Protocol::Auto)
}

/// A shard in plain text that is spoken to in this way.
pub fn speaking(address: SocketAddr, protocol: Protocol) -> ShardOptions {
    shard(Upstream::Remote(RemoteOptions { url: format!("http://{address}"), protocol, tls: None }))
}

/// A shard in this process.
pub fn local<F, R>(handler: F) -> ShardOptions
where
    F: Fn(Request<Body>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let service = tower::service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    shard(Upstream::Local(LocalService::new(service)))
}

/// An HTTP/1.1 and HTTP/2 server; ends with the test's runtime.
pub async fn upstream<F, R>(handler: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let handler = handler.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let answer = handler(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let mut builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.half_close(false).serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    address
}

/// The same over HTTP/2 with prior knowledge.
pub async fn upstream_h2<F, R>(handler: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    raw_upstream(move |socket, _| {
        let handler = handler.clone();
        async move {
            let service = service_fn(move |request| {
                let answer = handler(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(socket), service).await;
        }
    })
    .await
}

/// An upstream whose every byte is up to the test: `script` gets the socket and its number.
pub async fn raw_upstream<F, R>(script: F) -> SocketAddr
where
    F: Fn(TcpStream, usize) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(script(socket, number));
        }
    });
    address
}

pub fn full(text: impl Into<Bytes>) -> Body {
    Body::from(text.into())
}

pub fn ok(text: impl Into<Bytes>) -> Response<Body> {
    Response::new(full(text))
}

pub type H1 = hyper::client::conn::http1::SendRequest<Body>;
pub type H2 = hyper::client::conn::http2::SendRequest<Body>;

pub async fn h1(gateway: &Gateway) -> H1 {
    let socket = TcpStream::connect(gateway.address()).await.unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub async fn h2(gateway: &Gateway) -> H2 {
    let socket = TcpStream::connect(gateway.address()).await.unwrap();
    h2_on(socket).await
}

pub async fn h2_on<S>(socket: S) -> H2
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let executor = TokioExecutor::new();
    let (sender, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub fn get(path: &str) -> Request<Body> {
    Request::get(path).header("host", "door").body(Body::empty()).unwrap()
}

/// The same request for an HTTP/2 client, which wants a whole URL.
pub fn get_h2(path: &str) -> Request<Body> {
    Request::get(format!("http://door{path}")).body(Body::empty()).unwrap()
}

pub async fn text<B>(body: B) -> String
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// One request on a connection of its own.
pub async fn once(gateway: &Gateway, request: Request<Body>) -> (StatusCode, http::HeaderMap, String) {
    let response = h1(gateway).await.send_request(request).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, text(body).await)
}

/// Sends `bytes` as they are and reads until the gateway closes or `enough` says so.
pub async fn raw(address: SocketAddr, bytes: &[u8], enough: impl Fn(&str) -> bool) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut seen = Vec::new();
    let reading = async {
        while !enough(&String::from_utf8_lossy(&seen)) {
            if socket.read_buf(&mut seen).await.unwrap_or(0) == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("neither closed nor enough");
    String::from_utf8(seen).unwrap()
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A body that the test writes piece by piece.
pub fn channel() -> (tokio::sync::mpsc::UnboundedSender<Bytes>, Body) {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let stream = futures_util::stream::poll_fn(move |cx| {
        receiver.poll_recv(cx).map(|item| item.map(|bytes: Bytes| Ok::<_, Infallible>(http_body::Frame::data(bytes))))
    });
    (sender, Body::new(http_body_util::StreamBody::new(stream)))
}

/// Requests as a shard saw them.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<http::request::Parts>>>);

impl Seen {
    pub fn push(&self, parts: http::request::Parts) {
        self.0.lock().unwrap().push(parts);
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn take(&self) -> Vec<http::request::Parts> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A shard that notes each request and answers 200.
pub fn noting(seen: &Seen) -> ShardOptions {
    let seen = seen.clone();
    local(move |request| {
        seen.push(request.into_parts().0);
        async { ok("ok") }
    })
}

pub async fn noting_upstream(seen: &Seen) -> ShardOptions {
    let seen = seen.clone();
    remote(
        upstream(move |request| {
            seen.push(request.into_parts().0);
            async { ok("ok") }
        })
        .await,
    )
}

pub fn boxed(text: &'static str) -> Body {
    Body::new(Full::new(Bytes::from_static(text.as_bytes())))
}

/// What the admin address answers.
pub async fn admin(gateway: &Gateway, path: &str) -> String {
    let ask = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    raw(gateway.admin_address(), ask.as_bytes(), |_| false).await
}

/// The sum of a metric's series in an exposition.
pub fn sum(text: &str, name: &str) -> f64 {
    let lines = text.lines().filter(|l| l.starts_with(name) && !l.starts_with(&format!("{name}_")));
    lines.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// The same at this moment.
pub async fn metric(gateway: &Gateway, name: &str) -> f64 {
    sum(&admin(gateway, "/metrics").await, name)
}

/// Looks until it has the value.
pub async fn metric_becomes(gateway: &Gateway, name: &str, want: f64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let got = metric(gateway, name).await;
        if got == want {
            return;
        }
        assert!(Instant::now() < deadline, "{name} stays {got}, not {want}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A shard under fairness.
pub fn fair(shard: ShardOptions, config: config::FairnessConfig) -> Gateway {
    Gateway::start(GatewayOptions { fairness: Some(config), ..options(vec![shard]) }).unwrap()
}
