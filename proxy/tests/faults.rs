//! The fault table: what a client sees of a shard that hangs, resets, answers garbage or half an answer, over HTTP/1.1
//! and over HTTP/2, and that the next request is served as if nothing had been.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

mod support;

use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use proxy::{Gateway, GatewayOptions, Limits};
use support::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// What a shard does after its bytes.
#[derive(Clone, Copy, Debug)]
enum Then {
    Close,
    Reset,
    /// Stays silent; the gateway has heard enough.
    Hang,
    /// Stays silent, and only the request's time limit ends that.
    Stall,
}
use Then::{Close, Hang, Reset, Stall};

/// What the client sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sees {
    /// A Status of the gateway.
    Status(u16),
    /// This answer, whole.
    Answer(u16, &'static str),
    /// An answer that breaks off, with its head or without.
    Broken,
}
use Sees::{Answer, Broken, Status};

/// Rows at a time: a gateway and its clients each.
const ROWS_AT_ONCE: usize = 4;

/// Time limits of requests that only the limit ends, tried one after the other until one is not too short for the
/// machine to do the rest.
const SHORT: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(4), Duration::from_secs(15)];

/// The limit of all other requests: longer than anybody waits.
const LONG: Duration = Duration::from_secs(3600);

const SIZED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

fn table() -> Vec<(&'static str, String, Then, Sees)> {
    let text = |parts: &[&str]| parts.concat();
    vec![
        ("closes at once", text(&[]), Close, Status(502)),
        ("resets at once", text(&[]), Reset, Status(502)),
        ("says nothing", text(&[]), Stall, Status(504)),
        ("half a status line", text(&["HTTP/1.1 2"]), Close, Status(502)),
        ("half a status line, then nothing", text(&["HTTP/1.1 2"]), Stall, Status(504)),
        ("half a head", text(&["HTTP/1.1 200 OK\r\ncontent-le"]), Close, Status(502)),
        ("half a head, reset", text(&["HTTP/1.1 200 OK\r\ncontent-le"]), Reset, Status(502)),
        ("garbage", text(&["\u{1}\u{2}\u{3} not HTTP at all\r\n\r\n"]), Hang, Status(502)),
        ("TLS alert", text(&["\u{15}\u{3}\u{3}\0\u{2}\u{2}("]), Close, Status(502)),
        ("HTTP/2 settings", text(&["\0\0\0\u{4}\0\0\0\0\0"]), Close, Status(502)),
        ("another version", text(&["HTTP/3.0 200 OK\r\n\r\n"]), Hang, Status(502)),
        ("status of two digits", text(&["HTTP/1.1 20 OK\r\n\r\n"]), Hang, Status(502)),
        ("status 000", text(&["HTTP/1.1 000 OK\r\n\r\n"]), Hang, Status(502)),
        ("space before a colon", text(&["HTTP/1.1 200 OK\r\ncontent-length : 4\r\n\r\nabcd"]), Hang, Status(502)),
        ("folded field", text(&["HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n"]), Hang, Status(502)),
        ("NUL in a value", text(&["HTTP/1.1 200 OK\r\na: b\0\r\n\r\n"]), Hang, Status(502)),
        ("no length, closed", text(&["HTTP/1.1 200 OK\r\n\r\nabcd"]), Close, Answer(200, "abcd")),
        (
            "two lengths",
            text(&["HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nok"]),
            Hang,
            Status(502),
        ),
        ("a list of lengths", text(&["HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\nok"]), Hang, Status(502)),
        (
            "the same length twice",
            text(&["HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok"]),
            Hang,
            Answer(200, "ok"),
        ),
        ("a signed length", text(&["HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok"]), Hang, Status(502)),
        ("an empty length", text(&["HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\nok"]), Hang, Status(502)),
        (
            "a length beyond 64 bits",
            text(&["HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551616\r\n\r\nok"]),
            Hang,
            Status(502),
        ),
        (
            "a length beside chunks",
            text(&["HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"]),
            Hang,
            Status(502),
        ),
        (
            "chunks beside a length",
            text(&["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n"]),
            Hang,
            Status(502),
        ),
        (
            "another transfer coding",
            text(&["HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"]),
            Hang,
            Status(502),
        ),
        (
            "chunks in HTTP/1.0",
            text(&["HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"]),
            Hang,
            Status(502),
        ),
        ("half a body", text(&[SIZED, "ab"]), Close, Broken),
        ("half a body, reset", text(&[SIZED, "ab"]), Reset, Broken),
        ("half a body, then nothing", text(&[SIZED, "ab"]), Stall, Broken),
        ("nothing of a body", text(&[SIZED]), Close, Broken),
        ("more than the body", text(&[SIZED, "abcdHTTP/1.1 200 OK\r\n\r\n"]), Hang, Answer(200, "abcd")),
        ("chunks without an end", text(&[CHUNKED, "2\r\nok\r\n"]), Close, Broken),
        ("half a chunk", text(&[CHUNKED, "4\r\nok"]), Close, Broken),
        ("half a chunk, then nothing", text(&[CHUNKED, "4\r\nok"]), Stall, Broken),
        ("a chunk longer than it says", text(&[CHUNKED, "2\r\nokay\r\n0\r\n\r\n"]), Hang, Broken),
        ("a chunk's size with a sign", text(&[CHUNKED, "+2\r\nok\r\n0\r\n\r\n"]), Hang, Broken),
        ("a chunk's size in words", text(&[CHUNKED, "two\r\nok\r\n0\r\n\r\n"]), Hang, Broken),
        ("a chunk's size beyond 64 bits", text(&[CHUNKED, "10000000000000000\r\nok\r\n"]), Hang, Broken),
        ("an endless chunk extension", text(&[CHUNKED, "2;", &"x".repeat(100_000)]), Hang, Broken),
        ("endless trailers", text(&[CHUNKED, "2\r\nok\r\n0\r\n", &"a: b\r\n".repeat(10_000)]), Hang, Broken),
        ("an endless field", text(&["HTTP/1.1 200 OK\r\na: ", &"x".repeat(200_000)]), Hang, Status(502)),
        ("endless fields", text(&["HTTP/1.1 200 OK\r\n", &"a: b\r\n".repeat(50_000)]), Hang, Status(502)),
        ("200 fields", text(&["HTTP/1.1 200 OK\r\n", &"a: b\r\n".repeat(200), "\r\n"]), Hang, Status(502)),
        ("endless interim answers", "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000), Hang, Status(502)),
        ("interim answers, then nothing", text(&["HTTP/1.1 100 Continue\r\n\r\n"]), Stall, Status(504)),
        (
            "interim answers, then a real one",
            text(&["HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n", SIZED, "abcd"]),
            Hang,
            Answer(200, "abcd"),
        ),
        ("switches unasked", text(&["HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"]), Hang, Status(502)),
        ("a body where none may be", text(&["HTTP/1.1 204 No Content\r\n\r\nabcd"]), Hang, Answer(204, "")),
        ("an error of its own", text(&["HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno"]), Close, Answer(500, "no")),
    ]
}

async fn read_head(socket: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if socket.read_buf(&mut head).await.unwrap_or(0) == 0 {
            return false;
        }
    }
    true
}

/// A shard whose first connection goes wrong; on all others it serves.
async fn faulty(bytes: String, then: Then, request_timeout: Duration) -> Gateway {
    let address = raw_upstream(move |mut socket, number| {
        let bytes = bytes.clone();
        async move {
            if number > 0 {
                while read_head(&mut socket).await {
                    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine").await.unwrap();
                }
                return;
            }
            read_head(&mut socket).await;
            // The gateway may have heard enough before the end.
            let _ = socket.write_all(bytes.as_bytes()).await;
            match then {
                Close => {}
                Reset => socket.set_zero_linger().unwrap(),
                Hang | Stall => drop(socket.read_u8().await),
            }
        }
    })
    .await;
    let limits = Limits { request_timeout, ..Limits::default() };
    Gateway::start(GatewayOptions { limits, ..options(vec![remote(address)]) }).unwrap()
}

async fn seen(response: hyper::Result<Response<Incoming>>) -> Sees {
    let Ok(response) = response else { return Broken };
    let status = response.status().as_u16();
    let is_status = response.headers().get("content-type").is_some_and(|t| t == "application/json");
    match response.into_body().collect().await {
        Err(_) => Broken,
        Ok(body) if is_status => {
            let document: serde_json::Value = serde_json::from_slice(&body.to_bytes()).unwrap();
            assert_eq!((&document["kind"], &document["code"]), (&"Status".into(), &status.into()));
            Status(status)
        }
        Ok(body) => Answer(status, String::from_utf8(body.to_bytes().to_vec()).unwrap().leak()),
    }
}

/// What a client sees of the fault, and of the request after it.
async fn both(bytes: String, then: Then, limit: Duration, is_h2: bool) -> (Sees, Sees) {
    let gateway = faulty(bytes, then, limit).await;
    if is_h2 {
        let mut client = h2(&gateway).await;
        let mut ask = async || client.send_request(get_h2("/clusters/a/api")).await;
        (seen(ask().await).await, seen(ask().await).await)
    } else {
        let ask = async || h1(&gateway).await.send_request(get("/clusters/a/api")).await;
        (seen(ask().await).await, seen(ask().await).await)
    }
}

async fn check(name: &str, bytes: String, then: Then, want: Sees, is_h2: bool) {
    let want = (want, Answer(200, "fine"));
    let limits = if matches!(then, Stall) { &SHORT[..] } else { &[LONG] };
    let mut saw = None;
    for limit in limits {
        let row = both(bytes.clone(), then, *limit, is_h2);
        let answers = tokio::time::timeout(*limit.min(&PATIENCE) + PATIENCE, row).await;
        saw = Some(answers.unwrap_or_else(|_| panic!("{name}, HTTP/2: {is_h2}: nobody ends it")));
        if saw == Some(want) {
            break;
        }
    }
    assert_eq!(saw, Some(want), "{name}, HTTP/2: {is_h2}: of the fault, and of the request after it");
}

#[tokio::test]
async fn what_clients_see_of_a_faulty_shard() {
    let mut running = tokio::task::JoinSet::new();
    let mut rows = 0;
    for (name, bytes, then, want) in table() {
        for is_h2 in [false, true] {
            if running.len() >= ROWS_AT_ONCE {
                running.join_next().await.unwrap().unwrap();
            }
            let bytes = bytes.clone();
            running.spawn(async move { check(name, bytes, then, want, is_h2).await });
            rows += 1;
        }
    }
    running.join_all().await;
    assert!(rows >= 90, "{rows}");
}

/// The shard has said no and closed before it has read the upload: its no arrives all the same.
#[tokio::test]
async fn a_refusal_before_the_upload_has_ended_arrives() {
    let address = raw_upstream(|mut socket, _| async move {
        read_head(&mut socket).await;
        socket.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno").await.unwrap();
        // What the client goes on to send is read, so that the answer is not lost to a reset.
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
    })
    .await;
    let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
    let (sender, body) = channel();
    let post = Request::post("/clusters/a/api").header("host", "d").body(body).unwrap();
    let response = h1(&gateway).await.send_request(post).await;
    assert_eq!(seen(response).await, Answer(413, "no"));
    eventually("the upload is given up", || sender.is_closed()).await;
}

/// With `Expect: 100-continue` it is the shard that decides whether the body is sent at all.
#[tokio::test]
async fn the_shard_decides_whether_the_body_is_sent() {
    for (interim, want) in
        [("", "HTTP/1.1 403"), ("HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")]
    {
        let address = raw_upstream(move |mut socket, _| async move {
            read_head(&mut socket).await;
            if interim.is_empty() {
                socket.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                assert_eq!(socket.read(&mut [0; 9]).await.unwrap(), 0, "not a byte of the body");
                return;
            }
            socket.write_all(interim.as_bytes()).await.unwrap();
            socket.read_exact(&mut [0; 4]).await.unwrap();
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        })
        .await;
        let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
        let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
        let head = "POST /clusters/a/api HTTP/1.1\r\nhost: d\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        let mut sent = false;
        while !String::from_utf8_lossy(&got).starts_with(want) {
            assert_ne!(socket.read_buf(&mut got).await.unwrap(), 0, "{}", String::from_utf8_lossy(&got));
            if !sent && got.starts_with(b"HTTP/1.1 100") {
                sent = true;
                socket.write_all(b"body").await.unwrap();
            }
        }
        assert_eq!(sent, !interim.is_empty());
    }
}

#[test]
fn the_table_names_each_fault_once() {
    let mut names: Vec<_> = table().into_iter().map(|(name, ..)| name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
    assert!(table().iter().any(|(_, _, _, sees)| *sees == Status(StatusCode::GATEWAY_TIMEOUT.as_u16())));
}
