//! Requests and answers pass through unchanged, streamed, over HTTP/1.1 and HTTP/2.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use crate::support::*;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use proxy::{Body, Gateway};

#[tokio::test]
async fn a_request_reaches_a_remote_and_a_local_shard_over_both_protocols() {
    let seen = Seen::default();
    for options in [options(vec![noting(&seen)]), options(vec![noting_upstream(&seen).await])] {
        let gateway = Gateway::start(options).unwrap();
        gateway.ready().await;
        let path = "/clusters/root:org/apis/apps/v1/deployments?watch=false&x=a%2Fb&x=&y=+";
        let (status, _, body) = once(&gateway, get(path)).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, "ok"));
        let response = h2(&gateway).await.send_request(get_h2(path)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        for parts in seen.take() {
            assert_eq!(parts.uri.to_string(), path);
            assert_eq!(parts.headers["x-forwarded-prefix"], "/clusters/root:org");
            assert_eq!(parts.headers["x-forwarded-for"], "127.0.0.1");
            assert_eq!(parts.headers["x-forwarded-host"], "door");
            assert_eq!(parts.headers["x-remote-user"], "system:anonymous");
            assert_eq!(parts.headers["audit-id"].len(), 36);
        }
        gateway.shutdown(std::time::Duration::ZERO, PATIENCE).await;
    }
}

#[tokio::test]
async fn paths_are_forwarded_byte_for_byte() {
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting_upstream(&seen).await])).unwrap();
    for path in [
        "/clusters/a/api/v1/namespaces/n/services/s/proxy/a%2Fb?x=%2f&&x",
        "/clusters/a%3Ab/api/v1/pods?command=sh&command=-c&command=echo+a%2Bb&tty=",
        "/clusters/a/apis/example.io/v1/namespaces/n1/clusters/x",
        "/clusters/%2A/api/v1/pods",
        "/services/apiexport/root/x/clusters/*/api",
        "/version",
    ] {
        let (status, _, _) = once(&gateway, get(path)).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert_eq!(seen.take()[0].uri.to_string(), path);
    }
    let (status, _, _) = once(&gateway, get("/clusters//api/v1?x=1")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(seen.take()[0].uri.to_string(), "/api/v1?x=1", "an empty cluster is none");
}

#[tokio::test]
async fn hop_by_hop_headers_stay_and_all_others_pass() {
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting_upstream(&seen).await])).unwrap();
    let mut request = get("/clusters/a/api");
    for (name, value) in [
        ("connection", "keep-alive, x-private"),
        ("x-private", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("accept", "a"),
        ("accept", "b"),
        ("authorization", "Bearer t"),
        ("audit-id", "mine"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-prefix", "/evil"),
    ] {
        request.headers_mut().append(name, HeaderValue::from_static(value));
    }
    once(&gateway, request).await;
    let headers = seen.take().remove(0).headers;
    assert!(!headers.contains_key("x-private") && !headers.contains_key("keep-alive"));
    assert_eq!(headers.get_all("accept").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((&headers["te"], &headers["audit-id"]), (&"trailers".parse().unwrap(), &"mine".parse().unwrap()));
    assert_eq!(
        (headers["x-forwarded-for"].as_bytes(), headers["x-forwarded-prefix"].as_bytes()),
        (&b"127.0.0.1"[..], &b"/clusters/a"[..])
    );
    assert_eq!(headers["authorization"], "Bearer t");
    assert!(!headers.contains_key("x-remote-user"), "the shard judges the token");
}

/// The client has each part of the answer before the next one is written, and the shard each part of the request.
#[tokio::test]
async fn bodies_are_streamed_both_ways() {
    let echo = |request: Request<hyper::body::Incoming>| async move { Response::new(Body::from(request.into_body())) };
    let gateway = Gateway::start(options(vec![remote(upstream(echo).await)])).unwrap();
    for protocol in ["h1", "h2"] {
        let (sender, body) = channel();
        let request = |uri: &str| Request::post(uri).header("host", "door").body(body).unwrap();
        let response = match protocol {
            "h1" => h1(&gateway).await.send_request(request("/clusters/a/api")).await.unwrap(),
            _ => h2(&gateway).await.send_request(request("http://door/clusters/a/api")).await.unwrap(),
        };
        assert_eq!(response.status(), StatusCode::OK, "the answer's head comes before the request's end");
        let mut answer = response.into_body();
        for part in ["one", "two", "three"] {
            sender.send(Bytes::from(part)).unwrap();
            let frame = answer.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), part, "{protocol}");
        }
        drop(sender);
        assert_eq!(answer.collect().await.unwrap().to_bytes(), "", "{protocol}");
    }
}

#[tokio::test]
async fn trailers_pass() {
    let answer = |_| async {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("abc"));
        let frames = [Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from("x"))), Ok(Frame::trailers(trailers))];
        let mut response = Response::new(Body::new(StreamBody::new(futures_util::stream::iter(frames))));
        response.headers_mut().insert("trailer", HeaderValue::from_static("x-checksum"));
        response
    };
    let gateway = Gateway::start(options(vec![remote(upstream(answer).await)])).unwrap();
    let mut request = get("/clusters/a/api");
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    let over_h1 = h1(&gateway).await.send_request(request).await.unwrap();
    let over_h2 = h2(&gateway).await.send_request(get_h2("/clusters/a/api")).await.unwrap();
    for response in [over_h1, over_h2] {
        let whole = response.into_body().collect().await.unwrap();
        assert_eq!(whole.trailers().unwrap()["x-checksum"], "abc");
        assert_eq!(whole.to_bytes(), "x");
    }
}

#[tokio::test]
async fn answers_without_a_body_keep_their_length() {
    let answer = |request: Request<hyper::body::Incoming>| async move {
        let status = if request.uri().path().ends_with("none") { StatusCode::NO_CONTENT } else { StatusCode::OK };
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        if request.method() == http::Method::HEAD {
            response.headers_mut().insert("content-length", HeaderValue::from_static("42"));
        }
        response
    };
    let gateway = Gateway::start(options(vec![remote(upstream(answer).await)])).unwrap();
    let mut client = h1(&gateway).await;
    for _ in 0..2 {
        let head = Request::head("/clusters/a/api").header("host", "door").body(Body::empty()).unwrap();
        let response = client.send_request(head).await.unwrap();
        assert_eq!(response.headers()["content-length"], "42");
        response.into_body().collect().await.unwrap();
        client.ready().await.unwrap();
        let response = client.send_request(get("/clusters/a/none")).await.unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        client.ready().await.unwrap();
    }
}

#[tokio::test]
async fn lengths_and_split_cookies_arrive_as_http_1_wants_them() {
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting_upstream(&seen).await])).unwrap();
    let empty = "POST /clusters/a/api HTTP/1.1\r\nHost: d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert!(raw(gateway.address(), empty.as_bytes(), |_| false).await.starts_with("HTTP/1.1 200"));
    let headers = seen.take().remove(0).headers;
    assert_eq!((&headers["content-length"], headers.contains_key("transfer-encoding")), (&"0".parse().unwrap(), false));
    let mut request = get_h2("/clusters/a/api");
    for cookie in ["a=1", "b=2"] {
        request.headers_mut().append("cookie", HeaderValue::from_static(cookie));
    }
    assert_eq!(h2(&gateway).await.send_request(request).await.unwrap().status(), StatusCode::OK);
    let headers = seen.take().remove(0).headers;
    assert_eq!(headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    assert_eq!(headers["te"], "trailers");
}

#[tokio::test]
async fn a_large_body_arrives_whole() {
    let bytes: Bytes = (0..3_000_000u32).map(|n| (n % 251) as u8).collect::<Vec<_>>().into();
    let echo = |request: Request<hyper::body::Incoming>| async move { Response::new(Body::from(request.into_body())) };
    let gateway = Gateway::start(options(vec![remote(upstream(echo).await)])).unwrap();
    let post = |uri: &str| Request::post(uri).header("host", "door").body(Body::from(bytes.clone())).unwrap();
    let over_h1 = h1(&gateway).await.send_request(post("/clusters/a/api")).await.unwrap();
    let over_h2 = h2(&gateway).await.send_request(post("http://door/clusters/a/api")).await.unwrap();
    for response in [over_h1, over_h2] {
        assert!(response.into_body().collect().await.unwrap().to_bytes() == bytes);
    }
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_invited() {
    let echo = |request: Request<hyper::body::Incoming>| async move {
        assert_eq!(request.headers()["expect"], "100-continue", "the shard is asked");
        ok(request.into_body().collect().await.unwrap().to_bytes())
    };
    let gateway = Gateway::start(options(vec![remote(upstream(echo).await)])).unwrap();
    let head = "POST /clusters/a/api HTTP/1.1\r\nhost: d\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
    let mut socket = tokio::net::TcpStream::connect(gateway.address()).await.unwrap();
    let (mut read, mut write) = socket.split();
    tokio::io::AsyncWriteExt::write_all(&mut write, head.as_bytes()).await.unwrap();
    let mut buffer = [0; 25];
    tokio::io::AsyncReadExt::read_exact(&mut read, &mut buffer).await.unwrap();
    assert_eq!(&buffer, b"HTTP/1.1 100 Continue\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut write, b"abc").await.unwrap();
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut read, &mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 200") && rest.ends_with("\r\n\r\nabc"), "{rest}");
    // A refusal comes without an invitation.
    let refused = raw(gateway.address(), head.replace("/clusters/a/", "/clusters/A/").as_bytes(), |_| false).await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
}
