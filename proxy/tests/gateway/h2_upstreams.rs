//! Shards that speak HTTP/2: what passes, stream limits, GOAWAY, and which protocol is chosen.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use crate::support::{frames::*, tls::Ca, *};
use bytes::Bytes;
use config::Protocol;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header::UPGRADE};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proxy::{Body, Gateway, GatewayOptions, Limits, RemoteOptions, ShardOptions, Upstream};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;

fn h2c(address: SocketAddr) -> ShardOptions {
    speaking(address, Protocol::Http2)
}

#[tokio::test]
async fn requests_and_answers_pass_unchanged() {
    let seen = Seen::default();
    let noted = seen.clone();
    let answer = move |request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), HeaderValue::from_static("1"))]);
        noted.push(parts);
        async move {
            let echo = body.collect().await.unwrap();
            assert_eq!(echo.trailers().map(|t| t["x-up"].clone()), Some(HeaderValue::from_static("2")));
            let frames = [Ok::<_, Infallible>(Frame::data(echo.to_bytes())), Ok(Frame::trailers(trailers))];
            let mut response = Response::new(Body::new(StreamBody::new(futures_util::stream::iter(frames))));
            response.headers_mut().append("x-twice", HeaderValue::from_static("a"));
            response.headers_mut().append("x-twice", HeaderValue::from_static("b"));
            response.headers_mut().append("trailer", HeaderValue::from_static("x-sum"));
            response
        }
    };
    let gateway = Gateway::start(options(vec![h2c(upstream_h2(answer).await)])).unwrap();
    let path = "/clusters/root:org/api/v1/namespaces/n/pods?x=%2f&&x=a%2Bb";
    for is_h2 in [false, true] {
        let up = HeaderMap::from_iter([(http::HeaderName::from_static("x-up"), HeaderValue::from_static("2"))]);
        let large = Bytes::from(vec![b'x'; 3 << 20]);
        let frames = [Ok::<_, Infallible>(Frame::data(large.clone())), Ok(Frame::trailers(up))];
        let body = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
        let uri = if is_h2 { format!("http://door{path}") } else { path.to_owned() };
        let request = Request::post(uri).header("te", "trailers").header("trailer", "x-up");
        let request = if is_h2 { request } else { request.header("host", "door").header("connection", "te") };
        let request = request.body(body).unwrap();
        let response = match is_h2 {
            true => h2(&gateway).await.send_request(request).await.unwrap(),
            false => h1(&gateway).await.send_request(request).await.unwrap(),
        };
        assert_eq!(response.headers().get_all("x-twice").iter().collect::<Vec<_>>(), ["a", "b"]);
        let whole = response.into_body().collect().await.unwrap();
        assert_eq!(whole.trailers().unwrap()["x-sum"], "1");
        assert!(whole.to_bytes() == large);
        let parts = seen.take().remove(0);
        assert_eq!(parts.version, Version::HTTP_2);
        assert_eq!(parts.uri.path_and_query().unwrap().as_str(), path);
        assert_eq!(parts.headers["x-forwarded-prefix"], "/clusters/root:org");
        assert_eq!(parts.headers["x-remote-user"], "system:anonymous");
        assert!(!parts.headers.contains_key("host"));
    }
}

#[tokio::test]
async fn bodies_are_streamed_both_ways_at_once_and_answers_without_one_keep_their_length() {
    let echo = |request: Request<Incoming>| async move {
        if request.method() == http::Method::HEAD {
            return Response::builder().header("content-length", 42).body(Body::empty()).unwrap();
        }
        Response::new(Body::from(request.into_body()))
    };
    let gateway = Gateway::start(options(vec![h2c(upstream_h2(echo).await)])).unwrap();
    let (sender, body) = channel();
    let request = Request::post("/clusters/a/api").header("host", "door").body(body).unwrap();
    let response = h1(&gateway).await.send_request(request).await.unwrap();
    let mut answer = response.into_body();
    for part in ["one", "two", "three"] {
        sender.send(Bytes::from(part)).unwrap();
        assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), part);
    }
    drop(sender);
    assert_eq!(answer.collect().await.unwrap().to_bytes(), "");
    let head = Request::head("/clusters/a/api").header("host", "door").body(Body::empty()).unwrap();
    let (status, headers, _) = once(&gateway, head).await;
    assert_eq!((status, &headers["content-length"]), (StatusCode::OK, &HeaderValue::from_static("42")));
}

/// With `Expect: 100-continue` the body waits for the shard's word.
#[tokio::test]
async fn the_shard_decides_whether_the_body_is_sent() {
    let refuse = |_| async { Response::builder().status(403).body(Body::empty()).unwrap() };
    let gateway = Gateway::start(options(vec![h2c(upstream_h2(refuse).await)])).unwrap();
    let ask = b"POST /clusters/a/api HTTP/1.1\r\nhost: d\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
    let seen = raw(gateway.address(), ask, |seen| seen.contains("\r\n\r\n")).await;
    assert!(seen.starts_with("HTTP/1.1 403"), "{seen}");
}

/// PX-05: watches use up the streams of connections, and nobody waits for that.
#[tokio::test]
async fn a_full_connection_is_not_waited_for_and_a_free_place_is_used() {
    let (address, mut inbox) = scripted(|_| Some(4)).await;
    let gateway = Gateway::start(options(vec![h2c(address)])).unwrap();
    let mut client = h2(&gateway).await;
    let mut watches = Vec::new();
    let mut connections = Vec::new();
    for _ in 0..8 {
        let watch = tokio::spawn(client.send_request(get_h2("/clusters/a/api/v1/pods?watch=1")));
        let asked = inbox.request().await;
        connections.push(asked.connection);
        asked.begin().await;
        watches.push(watch.await.unwrap().unwrap());
    }
    assert_eq!(connections, [0, 0, 0, 0, 1, 1, 1, 1]);
    drop(watches.remove(2));
    metric_becomes(&gateway, "fairgate_requests_in_flight", 7.0).await;
    let answer = tokio::spawn(client.send_request(get_h2("/clusters/a/api")));
    let asked = inbox.request().await;
    assert_eq!(asked.connection, 0, "the place of the watch that has ended");
    asked.answer().await;
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
}

/// PX-06: of three requests the shard goes away behind the first; the others, a write among them, run once each on
/// another connection.
#[tokio::test]
async fn requests_behind_a_goodbye_are_sent_once_more() {
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let gateway = Gateway::start(options(vec![h2c(address)])).unwrap();
    let mut client = h2(&gateway).await;
    let post = Request::post("http://door/clusters/a/api").body(full("written")).unwrap();
    let mut answers = Vec::new();
    let mut first = None;
    for request in [get_h2("/clusters/a/api"), get_h2("/clusters/a/api"), post] {
        answers.push(tokio::spawn(client.send_request(request)));
        let asked = inbox.request().await;
        assert_eq!(asked.connection, 0);
        first.get_or_insert(asked);
    }
    let first = first.unwrap();
    first.goaway(1).await;
    for _ in 0..2 {
        let asked = inbox.request().await;
        assert_eq!(asked.connection, 1, "a new connection for both");
        asked.answer().await;
    }
    first.answer().await;
    for answer in answers {
        assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    }
    assert!(inbox.rest().is_empty(), "each of them once");
}

/// A client that does not read its answer holds up nobody else's on the same connection.
#[tokio::test]
async fn an_answer_that_is_not_read_holds_up_no_other() {
    let large = |request: Request<Incoming>| async move {
        let length = if request.uri().path().ends_with("large") { 8 << 20 } else { 10 };
        Response::new(full(vec![b'x'; length]))
    };
    let gateway = Gateway::start(options(vec![h2c(upstream_h2(large).await)])).unwrap();
    let mut deaf = Vec::new();
    for _ in 0..90 {
        let mut client = h2(&gateway).await;
        deaf.push((client.send_request(get_h2("/clusters/a/api/large")).await.unwrap(), client));
    }
    let (status, _, body) = once(&gateway, get("/clusters/a/api/small")).await;
    assert_eq!((status, body.len()), (StatusCode::OK, 10));
}

/// A TLS shard that offers these protocols, and notes what its connections speak.
async fn tls_upstream(ca: &Ca, offer: &[&[u8]], spoken: Arc<Mutex<Vec<Version>>>) -> SocketAddr {
    let mut config = ca.server_config();
    config.alpn_protocols = offer.iter().map(|p| p.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    raw_upstream(move |socket, _| {
        let (acceptor, spoken) = (acceptor.clone(), spoken.clone());
        async move {
            let Ok(stream) = acceptor.accept(socket).await else { return };
            let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let service = service_fn(move |mut request: Request<Incoming>| {
                spoken.lock().unwrap().push(request.version());
                let switch = request.headers().contains_key(UPGRADE).then(|| hyper::upgrade::on(&mut request));
                async move {
                    let Some(switch) = switch else { return Ok::<_, Infallible>(ok("ok")) };
                    tokio::spawn(async move {
                        let mut tunnel = TokioIo::new(switch.await.unwrap());
                        tunnel.write_all(b"hello").await.unwrap();
                    });
                    let response = Response::builder().status(101).header(UPGRADE, "x").header("connection", "upgrade");
                    Ok(response.body(Body::empty()).unwrap())
                }
            });
            let io = TokioIo::new(stream);
            if is_h2 {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(io, service).await;
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(io, service).with_upgrades().await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_shard_chooses_its_protocol_and_switches_it_over_http1() {
    let ca = Ca::new();
    let (h1, h2): (&[u8], &[u8]) = (b"http/1.1", b"h2");
    for (offer, protocol, want) in [
        (vec![h2, h1], Protocol::Auto, Some(Version::HTTP_2)),
        (vec![h2, h1], Protocol::Http1, Some(Version::HTTP_11)),
        (vec![h2, h1], Protocol::Http2, Some(Version::HTTP_2)),
        (vec![h1], Protocol::Auto, Some(Version::HTTP_11)),
        (vec![], Protocol::Auto, Some(Version::HTTP_11)),
        (vec![], Protocol::Http2, None),
    ] {
        let spoken = Arc::<Mutex<Vec<Version>>>::default();
        let address = tls_upstream(&ca, &offer, spoken.clone()).await;
        let url = format!("https://localhost:{}", address.port());
        let remote = RemoteOptions { url, protocol, tls: Some(Arc::new(ca.client_config())) };
        let gateway = Gateway::start(options(vec![shard(Upstream::Remote(remote))])).unwrap();
        for _ in 0..3 {
            let (status, ..) = once(&gateway, get("/clusters/a/api")).await;
            assert_eq!(status == StatusCode::OK, want.is_some(), "{protocol:?} {offer:?}: {status}");
        }
        let got = std::mem::take(&mut *spoken.lock().unwrap());
        assert_eq!(got, vec![want; 3].into_iter().flatten().collect::<Vec<_>>(), "{protocol:?} {offer:?}");
        if want.is_none() {
            continue;
        }
        let exec = b"GET /clusters/a/api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nhost: d\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
        let seen = raw(gateway.address(), exec, |seen| seen.ends_with("hello")).await;
        assert!(seen.starts_with("HTTP/1.1 101"), "{protocol:?} {offer:?}: {seen}");
        assert_eq!(spoken.lock().unwrap()[..], [Version::HTTP_11]);
    }
}

/// One connection is opened for all that come at once, not one for each.
#[tokio::test]
async fn requests_that_come_at_once_share_a_connection() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let address = raw_upstream(move |socket, _| {
        counted.fetch_add(1, SeqCst);
        async move {
            let service = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(ok("ok")));
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(socket), service).await;
        }
    })
    .await;
    let gateway = Gateway::start(options(vec![h2c(address)])).unwrap();
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = h1(&gateway).await;
        clients.push(tokio::spawn(async move { client.send_request(get("/clusters/a/api")).await.unwrap().status() }));
    }
    for client in clients {
        assert_eq!(client.await.unwrap(), 200);
    }
    assert_eq!(connections.load(SeqCst), 1);
}

/// The first connection tells that the shard speaks HTTP/1.1; those that others need are made at once, not in a row.
#[tokio::test]
async fn the_first_connections_to_a_shard_of_http1_are_made_at_once() {
    let ca = Ca::new();
    let mut config = ca.server_config();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    // None but the first gets its handshake before there are four, and none its answer before there are four requests.
    let (connections, requests) = (Arc::new(tokio::sync::Barrier::new(3)), Arc::new(tokio::sync::Barrier::new(4)));
    let address = raw_upstream(move |socket, number| {
        let (acceptor, connections, requests) = (acceptor.clone(), connections.clone(), requests.clone());
        async move {
            if number > 0 {
                connections.wait().await;
            }
            let stream = acceptor.accept(socket).await.unwrap();
            let service = service_fn(move |_: Request<Incoming>| {
                let requests = requests.clone();
                async move {
                    requests.wait().await;
                    Ok::<_, Infallible>(ok("ok"))
                }
            });
            let builder = hyper::server::conn::http1::Builder::new();
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await;
    let url = format!("https://localhost:{}", address.port());
    let remote = RemoteOptions { url, protocol: Protocol::Auto, tls: Some(Arc::new(ca.client_config())) };
    let limits = Limits { connect_timeout: 2 * PATIENCE, ..Limits::default() };
    let shards = vec![shard(Upstream::Remote(remote))];
    let gateway = Gateway::start(GatewayOptions { limits, ..options(shards) }).unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let mut client = h1(&gateway).await;
        clients.spawn(async move { client.send_request(get("/clusters/a/api")).await.unwrap().status() });
    }
    let answers = tokio::time::timeout(PATIENCE, clients.join_all()).await.expect("one waits for the other");
    assert_eq!(answers, [StatusCode::OK; 4]);
}
