//! The fault table: what a client sees of a shard that hangs, resets, answers garbage or half an answer, over HTTP/1.1
//! and over HTTP/2, that the next request is served as if nothing had been, and that the clients of another shard
//! notice nothing. `docs/faults/shards.md` is this table.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

mod h2;

use std::{fmt::Write, time::Duration};

use crate::support::*;
use config::Protocol;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use proxy::{Gateway, GatewayOptions, Limits, ShardOptions};
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
    /// Stays silent from the start, and only the time limit of new connections ends that.
    StallAtOnce,
    /// Stays silent, and only a ping shows that.
    Ping,
}
use Then::{Close, Hang, Ping, Reset, Stall, StallAtOnce};

impl Then {
    async fn end(self, mut socket: TcpStream) {
        match self {
            Close => {}
            Reset => socket.set_zero_linger().unwrap(),
            Hang | Stall => drop(socket.read_u8().await),
            StallAtOnce | Ping => drop(socket.read_to_end(&mut Vec::new()).await),
        }
    }
}

/// One fault.
#[derive(Clone)]
struct Row<S> {
    name: &'static str,
    script: S,
    then: Then,
    sees: Sees,
}

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

fn table() -> Vec<Row<String>> {
    let text = |parts: &[&str]| parts.concat();
    let rows = vec![
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
    ];
    rows.into_iter().map(|(name, script, then, sees)| Row { name, script, then, sees }).collect()
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

/// How a kind of shard goes wrong, and how it serves.
trait Fault: Clone + Send + Sync + 'static {
    const PROTOCOL: Protocol;
    fn fail(self, socket: TcpStream, then: Then) -> impl Future<Output = ()> + Send;
    fn serve(socket: TcpStream) -> impl Future<Output = ()> + Send;
}

impl Fault for String {
    const PROTOCOL: Protocol = Protocol::Http1;

    async fn fail(self, mut socket: TcpStream, then: Then) {
        read_head(&mut socket).await;
        // The gateway may have heard enough before the end.
        let _ = socket.write_all(self.as_bytes()).await;
        then.end(socket).await;
    }

    async fn serve(mut socket: TcpStream) {
        while read_head(&mut socket).await {
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine").await.unwrap();
        }
    }
}

impl Fault for h2::Script {
    const PROTOCOL: Protocol = Protocol::Http2;

    async fn fail(self, socket: TcpStream, then: Then) {
        h2::fail(socket, self, then).await;
    }

    async fn serve(socket: TcpStream) {
        h2::serve(socket).await;
    }
}

/// A gateway in front of a shard whose first connection goes wrong, while all others serve, and of one that is well.
async fn faulty<F: Fault>(fault: F, then: Then, limit: Duration) -> Gateway {
    let address = raw_upstream(move |socket, number| {
        let fault = fault.clone();
        async move {
            match number {
                0 => fault.fail(socket, then).await,
                _ => F::serve(socket).await,
            }
        }
    })
    .await;
    let well = raw_upstream(|socket, _| String::serve(socket)).await;
    let mut limits = Limits { request_timeout: LONG, connect_timeout: LONG, ping_interval: LONG, ..Limits::default() };
    match then {
        Stall => limits.request_timeout = limit,
        StallAtOnce => limits.connect_timeout = limit,
        Ping => (limits.ping_interval, limits.ping_timeout) = (limit, limit),
        Close | Reset | Hang => {}
    }
    let named = |name: &str, shard: ShardOptions| ShardOptions { name: name.into(), ..shard };
    let shards = vec![named("amber", speaking(address, F::PROTOCOL)), named("root", remote(well))];
    Gateway::start(GatewayOptions { limits, ..options(shards) }).unwrap()
}

async fn seen(response: hyper::Result<Response<Incoming>>) -> Sees {
    let Ok(response) = response else { return Broken };
    let status = response.status().as_u16();
    let is_status = response.headers().get("content-type").is_some_and(|t| t == "application/json");
    if is_status {
        assert_eq!(response.headers()["retry-after"], "1");
    }
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

async fn ask(gateway: &Gateway, path: &str, is_h2: bool) -> Sees {
    if is_h2 {
        seen(h2(gateway).await.send_request(get_h2(path)).await).await
    } else {
        seen(h1(gateway).await.send_request(get(path)).await).await
    }
}

/// What a client sees of the fault, what clients of another shard see meanwhile, and what is seen of the request after
/// it. A shard that could not be connected to is asked again after a moment; the time for all of it is [`check`]'s.
async fn all<F: Fault>(row: &Row<F>, limit: Duration, is_h2: bool) -> [Sees; 3] {
    let gateway = faulty(row.script.clone(), row.then, limit).await;
    let others = async {
        let mut saw = FINE;
        for _ in 0..3 {
            saw = ask(&gateway, "/api", is_h2).await;
            if saw != FINE {
                break;
            }
        }
        saw
    };
    let (first, other) = tokio::join!(ask(&gateway, "/clusters/a/api", is_h2), others);
    let mut next = ask(&gateway, "/clusters/a/api", is_h2).await;
    while first == Status(503) && next == first {
        tokio::time::sleep(Duration::from_millis(20)).await;
        next = ask(&gateway, "/clusters/a/api", is_h2).await;
    }
    [first, other, next]
}

const FINE: Sees = Answer(200, "fine");

async fn check<F: Fault>(row: Row<F>, is_h2: bool) {
    let name = row.name;
    let want = [row.sees, FINE, FINE];
    let limits = if matches!(row.then, Stall | StallAtOnce | Ping) { &SHORT[..] } else { &[LONG] };
    let mut saw = None;
    for limit in limits {
        let seen = all(&row, *limit, is_h2);
        let answers = tokio::time::timeout(*limit.min(&PATIENCE) * 2 + PATIENCE, seen).await;
        saw = Some(answers.unwrap_or_else(|_| panic!("{name}, client over HTTP/2: {is_h2}: nobody ends it")));
        if saw == Some(want) {
            break;
        }
    }
    let what = "of the fault, of another shard meanwhile, and of the request after it";
    assert_eq!(saw, Some(want), "{name}, client over HTTP/2: {is_h2}: {what}");
}

async fn check_all<F: Fault>(table: Vec<Row<F>>) {
    let mut running = tokio::task::JoinSet::new();
    for row in table {
        for is_h2 in [false, true] {
            if running.len() >= ROWS_AT_ONCE {
                running.join_next().await.unwrap().unwrap();
            }
            let row = row.clone();
            running.spawn(async move { check(row, is_h2).await });
        }
    }
    running.join_all().await;
}

#[tokio::test]
async fn what_clients_see_of_a_faulty_shard_over_http1() {
    check_all(table()).await;
}

#[tokio::test]
async fn what_clients_see_of_a_faulty_shard_over_http2() {
    check_all(h2::table()).await;
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

fn markdown<S>(out: &mut String, table: &[Row<S>]) {
    out.push_str("| the shard | its client sees | clients of another shard, and the next request |\n|---|---|---|\n");
    for row in table {
        let sees = match row.sees {
            Status(503) => "503, `Status`, `Retry-After`; nothing was sent".to_owned(),
            Status(504) => "504, `Status`, `Retry-After`, after the request's time limit".to_owned(),
            Status(code) => format!("{code}, `Status`, `Retry-After`"),
            FINE => "200: the request is sent once more".to_owned(),
            Answer(code, "") => format!("{code}, no body"),
            Answer(code, text) => format!("{code}, `{text}`"),
            Broken => "an answer that breaks off".to_owned(),
        };
        let then = match row.then {
            Close if !row.name.contains("closes") => ", then closes",
            Reset if !row.name.contains("reset") => ", then resets",
            Close | Reset | Hang => "",
            Stall | StallAtOnce => " (for ever)",
            Ping => " (found by a ping)",
        };
        writeln!(out, "| {}{then} | {sees} | 200 |", row.name).unwrap();
    }
}

#[test]
fn the_table_is_documented_and_names_each_fault_once() {
    let names: Vec<Vec<_>> =
        vec![table().iter().map(|r| r.name).collect(), h2::table().iter().map(|r| r.name).collect()];
    for mut names in names {
        assert!(names.len() >= 45, "{}", names.len());
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\n## Over HTTP/1.1\n\n");
    markdown(&mut text, &table());
    text.push_str("\n## Over HTTP/2\n\n");
    markdown(&mut text, &h2::table());
    println!("{text}");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/faults/shards.md");
    assert!(std::fs::read_to_string(file).unwrap() == text, "docs/faults/shards.md is not what is printed above");
}

const INTRODUCTION: &str = "\
# Shards that go wrong

What is seen of a shard whose first connection goes wrong in one of these ways, while its others serve. Each row is
tried on sockets by `proxy/tests/gateway/faults`, with clients over HTTP/1.1 and over HTTP/2, which see the same; \"breaks off\"
is a chunk or a length that is not completed over HTTP/1.1 and a reset of the stream over HTTP/2. Meanwhile a client of
another shard sends requests, and afterwards another one goes to the faulty shard: all of these get 200. Only after a 503
the shard is left alone for a moment, from 0.1 s on, and its requests get 503 at once until then.
";
