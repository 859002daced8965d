//! The streams of shards that speak HTTP/2: who waits for one gets the first that is free, limits may change, shards
//! reset and leave in the middle, and clients that leave leave nothing behind.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{frames::*, *};
use bytes::Bytes;
use config::Protocol;
use http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proxy::{Body, Gateway, GatewayOptions, Limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

const IN_FLIGHT: &str = "fairgate_requests_in_flight";

/// Longer than anybody waits: nothing but what the test does ends a wait.
const LONG: Duration = Duration::from_secs(3600);

fn gateway(address: SocketAddr, connections: usize) -> Gateway {
    let limits = Limits {
        connect_timeout: LONG,
        request_timeout: LONG,
        ping_interval: LONG,
        resets_per_minute: 1_000_000,
        upstream_connections: connections,
        ..Limits::default()
    };
    Gateway::start(GatewayOptions { limits, ..options(vec![speaking(address, Protocol::Http2)]) }).unwrap()
}

type Answer = JoinHandle<hyper::Result<http::Response<hyper::body::Incoming>>>;

fn ask(client: &mut H2, path: &str) -> Answer {
    tokio::spawn(client.send_request(get_h2(&format!("/clusters/a/api/v1/{path}"))))
}

async fn status(answer: Answer) -> u16 {
    tokio::time::timeout(PATIENCE, answer).await.expect("no answer").unwrap().unwrap().status().as_u16()
}

/// Somebody else's watch on the same connection.
struct Neighbour {
    shard: Heard,
    body: hyper::body::Incoming,
}

impl Neighbour {
    async fn watch(client: &mut H2, inbox: &mut Inbox) -> Self {
        let watch = ask(client, "pods?watch=1");
        let shard = inbox.request().await;
        shard.begin().await;
        Self { shard, body: watch.await.unwrap().unwrap().into_body() }
    }

    /// It still goes on.
    async fn hears(mut self) {
        self.shard.data("event", 0).await;
        let event = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("no event");
        assert_eq!(event.unwrap().unwrap().into_data().unwrap(), "event");
    }
}

/// A client that takes little of each answer before it is read.
async fn slow_reader(gateway: &Gateway) -> H2 {
    let socket = TcpStream::connect(gateway.address()).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (reader, connection) = builder.initial_stream_window_size(1000).handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    reader
}

/// The other connection is never open, or there may be none: a stream that ends is enough.
#[tokio::test]
async fn a_stream_that_ends_serves_who_waits() {
    for connections in [1, 10] {
        let (address, mut inbox) = scripted(|connection| (connection == 0).then_some(1)).await;
        let gateway = gateway(address, connections);
        let mut client = h2(&gateway).await;
        let watch = ask(&mut client, "pods?watch=1");
        let watched = inbox.request().await;
        watched.begin().await;
        let watch = watch.await.unwrap().unwrap();
        let waiting = [ask(&mut client, "a"), ask(&mut client, "b"), ask(&mut client, "c")];
        metric_becomes(&gateway, IN_FLIGHT, 4.0).await;
        watched.data("", END_STREAM).await;
        assert!(watch.into_body().collect().await.is_ok());
        for answer in waiting {
            let asked = inbox.request().await;
            assert_eq!(asked.connection, 0, "of {connections}");
            asked.answer().await;
            assert_eq!(status(answer).await, 200);
        }
    }
}

/// Who waits for a connection that is being opened has it when it stands, however many they are.
#[tokio::test]
async fn all_that_wait_share_what_is_opened() {
    let (address, mut inbox) = scripted(|_| Some(3)).await;
    let gateway = gateway(address, 10);
    let mut client = h2(&gateway).await;
    let answers: Vec<_> = (0..10).map(|_| ask(&mut client, "pods")).collect();
    let mut asked = Vec::new();
    for _ in 0..10 {
        asked.push(inbox.request().await);
    }
    let on = |connection| asked.iter().filter(|asked| asked.connection == connection).count();
    assert_eq!([on(0), on(1), on(2), on(3)], [3, 3, 3, 1]);
    for asked in asked {
        asked.answer().await;
    }
    for answer in answers {
        assert_eq!(status(answer).await, 200);
    }
}

#[tokio::test]
async fn the_limit_of_streams_may_change_while_requests_wait() {
    let (address, mut inbox) = scripted(|_| Some(1)).await;
    let gateway = gateway(address, 1);
    let mut client = h2(&gateway).await;
    let first = ask(&mut client, "first");
    let first_asked = inbox.request().await;
    let second = ask(&mut client, "second");
    metric_becomes(&gateway, IN_FLIGHT, 2.0).await;
    first_asked.allow(2).await;
    let second_asked = inbox.request().await;
    let third = ask(&mut client, "third");
    metric_becomes(&gateway, IN_FLIGHT, 3.0).await;
    // None, not even in the place of those that end.
    first_asked.allow(0).await;
    first_asked.answer().await;
    second_asked.answer().await;
    assert_eq!((status(first).await, status(second).await), (200, 200));
    metric_becomes(&gateway, IN_FLIGHT, 1.0).await;
    assert!(inbox.rest().is_empty(), "it allows no stream");
    first_asked.allow(1).await;
    let asked = inbox.request().await;
    assert_eq!(asked.connection, 0);
    asked.answer().await;
    assert_eq!(status(third).await, 200);
}

/// Of many streams at all stages those in front of the goodbye end as if nothing had been, and each of the others runs
/// once on another connection.
#[tokio::test]
async fn a_goodbye_in_the_middle_of_many_streams() {
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let gateway = gateway(address, 10);
    let mut client = h2(&gateway).await;
    let (mut answers, mut asked) = (Vec::new(), Vec::new());
    for n in 0..60 {
        let request = match n % 3 {
            0 => Request::post("http://door/clusters/a/api").body(full("written")).unwrap(),
            _ => get_h2("/clusters/a/api"),
        };
        answers.push(tokio::spawn(client.send_request(request)));
        asked.push(inbox.request().await);
    }
    for (n, asked) in asked.iter().enumerate().take(30).filter(|(n, _)| n % 2 == 0) {
        asked.begin().await;
        asked.data(&format!("{n} "), 0).await;
    }
    asked[0].goaway(asked[29].stream).await;
    let mut moved = Vec::new();
    for _ in 30..60 {
        let asked = inbox.request().await;
        assert_eq!(asked.connection, 1);
        asked.answer().await;
        moved.push(asked.stream);
    }
    for (n, asked) in asked.iter().enumerate().take(30) {
        if n % 2 == 1 {
            asked.begin().await;
        }
        asked.data("whole", END_STREAM).await;
    }
    for (n, answer) in answers.into_iter().enumerate() {
        let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap().unwrap();
        assert_eq!(answer.status(), 200, "{n}");
        let want = match n {
            30.. => String::new(),
            _ if n % 2 == 0 => format!("{n} whole"),
            _ => "whole".to_owned(),
        };
        assert_eq!(text(answer.into_body()).await, want, "{n}");
    }
    assert!(inbox.rest().is_empty(), "each once");
}

/// RFC 9113 section 6.8: whoever leaves in good order says goodbye to nobody in particular first, and later behind whom.
#[tokio::test]
async fn a_goodbye_in_two_steps() {
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let gateway = gateway(address, 10);
    let mut client = h2(&gateway).await;
    let (mut answers, mut asked) = (Vec::new(), Vec::new());
    for name in ["first", "second", "third"] {
        answers.push(ask(&mut client, name));
        asked.push(inbox.request().await);
    }
    asked[0].goaway(0x7fff_ffff).await;
    loop {
        let answer = ask(&mut client, "next");
        let next = inbox.request().await;
        next.answer().await;
        assert_eq!(status(answer).await, 200);
        if next.connection == 1 {
            break;
        }
    }
    asked[0].goaway(asked[1].stream).await;
    let again = inbox.request().await;
    assert_eq!(again.connection, 1);
    for asked in [&asked[1], &again, &asked[0]] {
        asked.answer().await;
    }
    for answer in answers {
        assert_eq!(status(answer).await, 200);
    }
    assert!(inbox.rest().is_empty(), "each once");
}

/// A reset ends one request, whatever its reason, and none but REFUSED_STREAM lets it run again.
#[tokio::test]
async fn a_reset_of_any_reason_ends_one_stream() {
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let gateway = gateway(address, 10);
    let mut client = h2(&gateway).await;
    let neighbour = Neighbour::watch(&mut client, &mut inbox).await;
    for reason in (0..=14).chain([0xff, u32::MAX]) {
        let answer = ask(&mut client, "pods");
        let asked = inbox.request().await;
        asked.reset(reason).await;
        if reason == 7 {
            let again = inbox.request().await;
            assert_eq!(again.connection, 1, "another one than that which has refused");
            again.answer().await;
            assert_eq!(status(answer).await, 200);
        } else {
            assert_eq!(status(answer).await, 502, "{reason}, before the head");
        }
        let answer = ask(&mut client, "pods");
        let asked = inbox.request().await;
        asked.begin().await;
        asked.data("half", 0).await;
        let answer = answer.await.unwrap().unwrap();
        asked.reset(reason).await;
        assert!(answer.into_body().collect().await.is_err(), "{reason}, in the middle: it must not look whole");
        let answer = ask(&mut client, "pods");
        let asked = inbox.request().await;
        asked.begin().await;
        asked.data("whole", END_STREAM).await;
        asked.reset(reason).await;
        assert_eq!(text(answer.await.unwrap().unwrap().into_body()).await, "whole", "{reason}, behind the end");
    }
    neighbour.hears().await;
}

/// RFC 9113 section 8.1: who has said all may ask with a reset without error that the rest of the upload is not sent.
#[tokio::test]
async fn an_answer_before_the_end_of_the_upload_is_whole() {
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let gateway = gateway(address, 10);
    for is_h2 in [false, true] {
        let (part, body) = channel();
        part.send(Bytes::from("half")).unwrap();
        let uri = if is_h2 { "http://door/clusters/a/api" } else { "/clusters/a/api" };
        let post = Request::post(uri).header("host", "door").body(body).unwrap();
        let answer = match is_h2 {
            true => tokio::spawn(h2(&gateway).await.send_request(post)),
            false => {
                let mut client = h1(&gateway).await;
                tokio::spawn(async move { client.send_request(post).await })
            }
        };
        let asked = inbox.request().await;
        inbox.next(DATA).await;
        asked.send(HEADERS, END_HEADERS, asked.stream, &[0x08, 3, b'4', b'1', b'3']).await;
        asked.data("too large", END_STREAM).await;
        asked.reset(0).await;
        let answer = tokio::time::timeout(PATIENCE, answer).await.expect("no answer").unwrap().unwrap();
        assert_eq!(answer.status(), 413);
        assert_eq!(text(answer.into_body()).await, "too large");
    }
}

/// How far a request has come when its client leaves.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Waits for a stream: there is none.
    Waiting,
    Asked,
    /// Its body has been sent by half.
    Uploading,
    /// Its answer has been read by half.
    Reading,
    /// The same while its body is sent.
    Both,
}

/// On a shard with one connection and one stream on it: whatever a client leaves behind would be in the next one's way.
#[tokio::test]
async fn clients_that_leave_leave_nothing_behind() {
    let (address, mut inbox) = scripted(|_| Some(1)).await;
    let gateway = gateway(address, 1);
    for round in 0..5 {
        for phase in [Phase::Waiting, Phase::Asked, Phase::Uploading, Phase::Reading, Phase::Both] {
            for is_h2 in [false, true] {
                let what = format!("{phase:?}, round {round}, over HTTP/2: {is_h2}");
                leave(&gateway, &mut inbox, phase, is_h2).await;
                let mut client = h2(&gateway).await;
                let answer = ask(&mut client, "pods");
                let asked = inbox.request().await;
                assert_eq!(asked.connection, 0, "{what}");
                asked.answer().await;
                assert_eq!(status(answer).await, 200, "{what}");
                metric_becomes(&gateway, IN_FLIGHT, 0.0).await;
            }
        }
    }
}

/// A request whose client leaves at that point.
async fn leave(gateway: &Gateway, inbox: &mut Inbox, phase: Phase, is_h2: bool) {
    let mut holder = h2(gateway).await;
    let held = match phase {
        Phase::Waiting => Some((ask(&mut holder, "held"), inbox.request().await)),
        _ => None,
    };
    let client = Leaver::ask(gateway, matches!(phase, Phase::Uploading | Phase::Both), is_h2).await;
    if let Some((answer, asked)) = held {
        metric_becomes(gateway, IN_FLIGHT, 2.0).await;
        drop(client);
        metric_becomes(gateway, IN_FLIGHT, 1.0).await;
        asked.answer().await;
        assert_eq!(status(answer).await, 200);
        return;
    }
    let asked = inbox.request().await;
    if matches!(phase, Phase::Uploading | Phase::Both) {
        assert_eq!(inbox.next(DATA).await.payload, b"half");
    }
    if matches!(phase, Phase::Reading | Phase::Both) {
        asked.begin().await;
        asked.data("half", 0).await;
        client.leave_in_the_middle().await;
    } else {
        drop(client);
    }
    let reset = inbox.next(RST_STREAM).await;
    assert_eq!(reset.stream, asked.stream);
}

/// A client with one request, which leaves when this is dropped.
enum Leaver {
    Http1(TcpStream),
    Http2 { asking: Answer, _upload: tokio::sync::mpsc::UnboundedSender<Bytes> },
}

impl Leaver {
    async fn ask(gateway: &Gateway, is_upload: bool, is_h2: bool) -> Self {
        if is_h2 {
            let (part, upload) = channel();
            part.send(Bytes::from("half")).unwrap();
            let body = if is_upload { upload } else { Body::empty() };
            let request = Request::put("http://door/clusters/a/api").body(body).unwrap();
            let asking = tokio::spawn(h2(gateway).await.send_request(request));
            return Self::Http2 { asking, _upload: part };
        }
        let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
        let rest = if is_upload { "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n" } else { "\r\n" };
        let request = format!("PUT /clusters/a/api HTTP/1.1\r\nhost: door\r\n{rest}");
        socket.write_all(request.as_bytes()).await.unwrap();
        Self::Http1(socket)
    }

    /// Reads the beginning of the answer's body.
    async fn leave_in_the_middle(mut self) {
        match &mut self {
            Self::Http1(socket) => {
                let mut seen = Vec::new();
                while !seen.windows(4).any(|bytes| bytes == b"half") {
                    assert_ne!(socket.read_buf(&mut seen).await.unwrap(), 0, "closed after {seen:?}");
                }
            }
            Self::Http2 { asking, .. } => {
                let mut answer = asking.await.unwrap().unwrap();
                assert_eq!(answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "half");
            }
        }
    }
}

impl Drop for Leaver {
    fn drop(&mut self) {
        if let Self::Http2 { asking, .. } = self {
            asking.abort();
        }
    }
}

/// What the shard still sends to clients that have left costs those that stay nothing.
#[tokio::test]
async fn late_parts_of_answers_that_nobody_wants_do_not_end_the_connection() {
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let gateway = gateway(address, 1);
    let mut client = h2(&gateway).await;
    let neighbour = Neighbour::watch(&mut client, &mut inbox).await;
    for _ in 0..25 {
        let mut asked = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..99 {
            answers.push(ask(&mut client, "pods"));
            asked.push(inbox.request().await);
        }
        answers.into_iter().for_each(|answer| answer.abort());
        for asked in &asked {
            let reset = inbox.next(RST_STREAM).await;
            assert_eq!(reset.connection, 0);
            asked.begin().await;
            for _ in 0..4 {
                asked.data(&"late".repeat(100), 0).await;
            }
            asked.data("late", END_STREAM).await;
        }
        metric_becomes(&gateway, IN_FLIGHT, 1.0).await;
    }
    neighbour.hears().await;
}

/// A log in tiny pieces whose reader has stopped costs those on the same connection nothing, and arrives whole.
#[tokio::test]
async fn small_parts_that_nobody_reads_do_not_end_the_connection() {
    // Nearly what the window of a stream has, once its size is acknowledged.
    const PARTS: usize = 240_000;
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let gateway = gateway(address, 1);
    let mut client = h2(&gateway).await;
    let neighbour = Neighbour::watch(&mut client, &mut inbox).await;

    let mut reader = slow_reader(&gateway).await;
    let log = ask(&mut reader, "namespaces/n/pods/p/log?follow=true");
    let asked = inbox.request().await;
    asked.begin().await;
    let log = log.await.unwrap().unwrap().into_body();
    asked.send(SETTINGS, ACK, 0, b"").await;
    asked.crumbs(PARTS).await;
    neighbour.hears().await;
    asked.data(&"d".repeat(1000), 0).await;
    asked.data("e", END_STREAM).await;
    let log = tokio::time::timeout(PATIENCE, log.collect()).await.expect("no end").unwrap().to_bytes();
    assert!(log == format!("{}{}e", "abc".repeat(PARTS / 3), "d".repeat(1000)), "{} bytes", log.len());
}

/// A head that is too long is the fault of its own request, and not of those on the same connection.
#[tokio::test]
async fn a_head_that_is_too_long_ends_one_stream() {
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let gateway = gateway(address, 1);
    let mut client = h2(&gateway).await;
    let neighbour = Neighbour::watch(&mut client, &mut inbox).await;
    for (bytes, want) in [(12_000, 200), (70_000, 502), (120_000, 502), (200_000, 502), (1_000_000, 502)] {
        let answer = ask(&mut client, "pods");
        let asked = inbox.request().await;
        asked.begin_with(bytes).await;
        assert_eq!(status(answer).await, want, "{bytes} bytes");
    }
    neighbour.hears().await;
}

/// What nobody reads is bounded for all answers of a worker: the one too many is ended, and no other.
#[tokio::test]
async fn what_nobody_reads_is_bounded() {
    let (address, mut inbox) = scripted(|_| Some(100)).await;
    let limits = Limits { ahead_bytes_per_worker: 100_000, resets_per_minute: 1_000_000, ..Limits::default() };
    let shards = vec![speaking(address, Protocol::Http2)];
    let gateway = Gateway::start(GatewayOptions { limits, ..options(shards) }).unwrap();
    let mut reader = slow_reader(&gateway).await;
    let mut logs = Vec::new();
    let mut shard = Vec::new();
    for _ in 0..3 {
        let log = ask(&mut reader, "namespaces/n/pods/p/log?follow=true");
        let asked = inbox.request().await;
        asked.begin().await;
        logs.push(log.await.unwrap().unwrap().into_body());
        shard.push(asked);
    }
    for asked in &shard {
        for _ in 0..6 {
            asked.data(&"x".repeat(10_000), 0).await;
        }
    }
    let reset = inbox.next(RST_STREAM).await;
    let mut ended = 0;
    for (log, asked) in logs.into_iter().zip(&shard) {
        if asked.stream == reset.stream {
            ended += usize::from(tokio::time::timeout(PATIENCE, log.collect()).await.expect("no end").is_err());
            continue;
        }
        asked.data("end", END_STREAM).await;
        let read = tokio::time::timeout(PATIENCE, log.collect()).await.expect("no end").unwrap();
        assert_eq!(read.to_bytes().len(), 60_003);
    }
    assert_eq!(ended, 1, "its end can be told from that of a whole log");
}

/// A shard whose connections end as soon as they are open is not dialled for ever.
#[tokio::test]
async fn connections_that_end_at_once_are_not_opened_in_a_loop() {
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = opened.clone();
    let address = raw_upstream(move |mut socket, _| {
        counted.fetch_add(1, SeqCst);
        async move {
            let hello = [frame(SETTINGS, 0, 0, &[]), frame(GOAWAY, 0, 0, &[0; 8])].concat();
            let _ = socket.write_all(&hello).await;
            let _ = socket.read_to_end(&mut Vec::new()).await;
        }
    })
    .await;
    let gateway = gateway(address, 10);
    let (status, headers, _) = once(&gateway, get("/clusters/a/api")).await;
    assert_eq!((status.as_u16(), &headers["retry-after"]), (503, &http::HeaderValue::from_static("1")));
    assert!(opened.load(SeqCst) <= 10);
}
