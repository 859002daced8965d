//! What passes untouched: trailers of requests, compressed answers, repeated headers; and what each method gets.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::convert::Infallible;

use crate::support::*;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use proxy::{Body, Gateway};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// One gzip member each: what a server that ends the stream with every event writes (PX-15).
const MEMBERS: [&[u8]; 3] = [
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b\x04\x00\x43\xbe\xb7\xe8\x01\x00\x00\x00",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b\x02\x00\xf9\xef\xbe\x71\x01\x00\x00\x00",
];

/// Sends the request over `protocol`.
async fn send(gateway: &Gateway, protocol: &str, mut request: Request<Body>) -> Response<Incoming> {
    if protocol == "h1" {
        request.headers_mut().insert("host", HeaderValue::from_static("door"));
        return h1(gateway).await.send_request(request).await.unwrap();
    }
    *request.uri_mut() = format!("http://door{}", request.uri()).parse().unwrap();
    h2(gateway).await.send_request(request).await.unwrap()
}

/// PX-19: also those of a request, over both protocols, and none of them as a header; but nobody's identity.
#[tokio::test]
async fn trailers_of_requests_arrive() {
    let echo = |request: Request<Incoming>| async move {
        assert!(!request.headers().contains_key("x-checksum"));
        let whole = request.into_body().collect().await.unwrap();
        let mut names: Vec<_> = whole.trailers().into_iter().flatten().map(|(n, v)| format!("{n}={v:?}")).collect();
        names.sort();
        let mut answer = ok(whole.to_bytes());
        answer.headers_mut().insert("x-was-trailer", names.join(",").parse().unwrap());
        answer
    };
    let gateway = Gateway::start(options(vec![remote(upstream(echo).await)])).unwrap();
    for protocol in ["h1", "h2"] {
        let mut trailers = HeaderMap::new();
        for name in
            ["x-checksum", "x-remote-user", "x-remote-group", "impersonate-user", "authorization", "x-forwarded-for"]
        {
            trailers.insert(name, HeaderValue::from_static("abc"));
        }
        let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from("body"))), Ok(Frame::trailers(trailers))];
        let request = Request::post("/clusters/a/api")
            .header(
                "trailer",
                "x-checksum, x-remote-user, x-remote-group, impersonate-user, authorization, x-forwarded-for",
            )
            .body(Body::new(StreamBody::new(stream::iter(frames))))
            .unwrap();
        let answer = send(&gateway, protocol, request).await;
        assert_eq!(answer.headers()["x-was-trailer"], "x-checksum=\"abc\"", "{protocol}");
        assert!(answer.headers().get("x-checksum").is_none());
        assert_eq!(text(answer.into_body()).await, "body");
    }
}

/// PX-15: each event as its own gzip member, each with the client before the next is written.
#[tokio::test]
async fn a_compressed_watch_passes_member_by_member() {
    for protocol in ["h1", "h2"] {
        let (members, body) = channel();
        let body = std::sync::Mutex::new(Some(body));
        let body = std::sync::Arc::new(body);
        let answer = move |request: Request<Incoming>| {
            assert_eq!(request.headers()["accept-encoding"], "gzip");
            let body = body.lock().unwrap().take().unwrap();
            async move {
                let answer = Response::builder().header("content-encoding", "gzip").header("vary", "Accept-Encoding");
                answer.body(body).unwrap()
            }
        };
        let gateway = Gateway::start(options(vec![remote(upstream(answer).await)])).unwrap();
        let request = Request::get("/clusters/a/api/v1/pods?watch=true").header("accept-encoding", "gzip");
        let answer = send(&gateway, protocol, request.body(Body::empty()).unwrap()).await;
        assert_eq!(
            (&answer.headers()["content-encoding"], &answer.headers()["vary"]),
            (&"gzip".parse().unwrap(), &"Accept-Encoding".parse().unwrap())
        );
        let mut body = answer.into_body();
        for member in MEMBERS {
            members.send(Bytes::from_static(member)).unwrap();
            let mut got = Vec::new();
            while got.len() < member.len() {
                got.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
            }
            assert_eq!(got, member, "{protocol}");
        }
        drop(members);
        assert_eq!(text(body).await, "", "the end");
    }
}

#[tokio::test]
async fn a_compressed_list_keeps_its_bytes_and_what_describes_them() {
    let list = MEMBERS.concat();
    let answer = {
        let list = list.clone();
        move |_: Request<Incoming>| {
            let answer = Response::builder()
                .header("content-encoding", "gzip")
                .header("vary", "Accept-Encoding")
                .header("etag", "\"1\"")
                .header("cache-control", "no-cache, private")
                .header("warning", "299 - \"first\"")
                .header("warning", "299 - \"second\"")
                .header("set-cookie", "a=1")
                .header("set-cookie", "b=2")
                .body(Body::from(Bytes::from(list.clone())));
            std::future::ready(answer.unwrap())
        }
    };
    let gateway = Gateway::start(options(vec![remote(upstream(answer).await)])).unwrap();
    for protocol in ["h1", "h2"] {
        let request = Request::get("/clusters/a/api/v1/pods").header("accept-encoding", "gzip").body(Body::empty());
        let answer = send(&gateway, protocol, request.unwrap()).await;
        let headers = answer.headers();
        for (name, want) in [
            ("content-encoding", &["gzip"][..]),
            ("content-length", &[&*list.len().to_string()]),
            ("vary", &["Accept-Encoding"]),
            ("etag", &["\"1\""]),
            ("cache-control", &["no-cache, private"]),
            ("warning", &["299 - \"first\"", "299 - \"second\""]),
            ("set-cookie", &["a=1", "b=2"]),
        ] {
            assert_eq!(headers.get_all(name).iter().collect::<Vec<_>>(), want, "{protocol} {name}");
        }
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), list);
    }
}

/// HEAD and OPTIONS are the shard's to answer, CONNECT is nobody's; an answer to HEAD has no body, whatever its length
/// says, and the connection lives on.
#[tokio::test]
async fn each_method_gets_the_answer_it_should() {
    let seen = Seen::default();
    let noted = seen.clone();
    let answer = move |request: Request<Incoming>| {
        let is_options = *request.method() == Method::OPTIONS;
        noted.push(request.into_parts().0);
        let answer = if is_options {
            Response::builder().status(204).header("allow", "GET, HEAD").body(Body::empty())
        } else {
            Response::builder().header("content-length", "5").body(full("hello"))
        };
        std::future::ready(answer.unwrap())
    };
    let gateway = Gateway::start(options(vec![remote(upstream(answer).await)])).unwrap();
    for protocol in ["h1", "h2"] {
        let ask =
            |method: Method| Request::builder().method(method).uri("/clusters/a/api").body(Body::empty()).unwrap();
        let head = send(&gateway, protocol, ask(Method::HEAD)).await;
        assert_eq!((head.status(), &head.headers()["content-length"]), (StatusCode::OK, &"5".parse().unwrap()));
        assert_eq!(text(head.into_body()).await, "", "{protocol}");
        let options = send(&gateway, protocol, ask(Method::OPTIONS)).await;
        assert_eq!(
            (options.status(), &options.headers()["allow"]),
            (StatusCode::NO_CONTENT, &"GET, HEAD".parse().unwrap())
        );
        let methods: Vec<_> = seen.take().into_iter().map(|parts| parts.method).collect();
        assert_eq!(methods, [Method::HEAD, Method::OPTIONS], "{protocol}");
        // The gateway's own.
        for path in ["/livez", "/readyz?verbose"] {
            let ask = |method: Method| Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let head = send(&gateway, protocol, ask(Method::HEAD)).await;
            let get = send(&gateway, protocol, ask(Method::GET)).await;
            assert_eq!(head.status(), get.status(), "{protocol} {path}");
            let length = head.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
            assert_eq!(text(head.into_body()).await, "", "{protocol} {path}");
            assert_eq!(text(get.into_body()).await.len(), length, "{protocol} {path}");
        }
    }
    let mut connect = Request::new(Body::empty());
    (*connect.method_mut(), *connect.uri_mut()) = (Method::CONNECT, "other:443".parse().unwrap());
    let refused = h2(&gateway).await.send_request(connect).await.unwrap();
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(text(refused.into_body()).await.contains(r#""kind":"Status""#));
    assert_eq!(seen.len(), 0);

    // Three on one connection: nothing of an answer is taken for the next one.
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    let line = |method: &str, more: &str| format!("{method} /clusters/a/api HTTP/1.1\r\nHost: d\r\n{more}\r\n");
    let all = [line("HEAD", ""), line("OPTIONS", ""), line("GET", "Connection: close\r\n")].concat();
    socket.write_all(all.as_bytes()).await.unwrap();
    let mut got = String::new();
    socket.read_to_string(&mut got).await.unwrap();
    let statuses: Vec<_> = got.match_indices("HTTP/1.1 ").map(|(at, found)| &got[at + found.len()..][..3]).collect();
    assert_eq!(statuses, ["200", "204", "200"], "{got}");
    assert_eq!(got.matches("hello").count(), 1, "{got}");
}

/// Interim answers of the shard do not end the request, and the client gets its own.
#[tokio::test]
async fn a_shard_may_answer_in_between() {
    let address = raw_upstream(|mut socket, _| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(socket.read_buf(&mut head).await.unwrap() > 0);
        }
        let answers = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n\
                       HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        socket.write_all(answers.as_bytes()).await.unwrap();
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let (status, headers, body) = once(&gateway, get("/clusters/a/api")).await;
    assert_eq!((status, body.as_str(), headers.get("link")), (StatusCode::OK, "ok", None));
}

/// PX-14: whether a body is wanted is the shard's to say. One that refuses without it is not sent it, and its client is
/// never invited; over HTTP/2 the client need not wait, and its body arrives all the same.
#[tokio::test]
async fn the_shard_invites_the_body_or_does_not() {
    let (all, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let address = raw_upstream(move |mut socket, _| {
        let all = all.clone();
        async move {
            let mut got = Vec::new();
            while !got.ends_with(b"\r\n\r\n") {
                assert!(socket.read_buf(&mut got).await.unwrap() > 0);
            }
            let no = "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
            socket.write_all(no.as_bytes()).await.unwrap();
            let _ = socket.read_to_end(&mut got).await;
            all.send(String::from_utf8(got).unwrap()).unwrap();
        }
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let ask = "POST /clusters/a/api HTTP/1.1\r\nHost: d\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n";
    let answer = raw(gateway.address(), ask.as_bytes(), |got| got.ends_with("\r\n\r\nno")).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let seen = seen.recv().await.unwrap().to_lowercase();
    assert!(seen.contains("\r\nexpect: 100-continue\r\n"), "{seen}");
    assert!(seen.ends_with("\r\n\r\n"), "nothing of the body: {seen}");

    let echo = |request: Request<Incoming>| async move { ok(request.into_body().collect().await.unwrap().to_bytes()) };
    let gateway = Gateway::start(options(vec![remote(upstream(echo).await)])).unwrap();
    let request = Request::post("/clusters/a/api").header("expect", "100-continue").body(full("body")).unwrap();
    let answer = send(&gateway, "h2", request).await;
    assert_eq!((answer.status(), text(answer.into_body()).await.as_str()), (StatusCode::OK, "body"));
}
