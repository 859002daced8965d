//! When seats come back: with the shard's last byte, however slow the client is; with the end of a watch's
//! initialisation; and at once when the client leaves.

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
use config::Protocol;
use http::Response;
use http_body_util::BodyExt;
use proxy::{Body, Gateway, GatewayOptions, Limits, ShardOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::Notify,
};

const HOUR: Duration = Duration::from_secs(3600);

/// One seat.
fn gateway(shard: ShardOptions, limits: Limits) -> Gateway {
    let shard = ShardOptions { seats: 1, ..shard };
    Gateway::start(GatewayOptions { fairness: Some(rules::one_level(rules::QUEUE)), limits, ..options(vec![shard]) })
        .unwrap()
}

/// The sum of a gauge's series.
async fn gauge(gateway: &Gateway, name: &str) -> f64 {
    let ask = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let text = raw(gateway.admin_address(), ask, |_| false).await;
    let lines = text.lines().filter(|l| l.starts_with(&format!("{name}{{")));
    lines.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

async fn becomes(gateway: &Gateway, what: &str, name: &str, want: f64) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let got = gauge(gateway, name).await;
        if got == want {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{what}: {name} stays {got}, not {want}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const WAITING: &str = "apiserver_flowcontrol_current_inqueue_requests";
const IN_USE: &str = "apiserver_flowcontrol_current_executing_seats";

/// More than sockets and hyper hold.
const LARGE: usize = 24 << 20;

fn pattern(at: usize) -> u8 {
    u8::try_from(at % 251).unwrap()
}

/// A shard with a large answer, which counts the answers it has sent whole and those it could not.
async fn large(sent: Arc<[AtomicUsize; 2]>, protocol: Protocol) -> ShardOptions {
    let answer = move |_| {
        let sent = sent.clone();
        async move {
            let (sender, body) = bounded();
            tokio::spawn(async move {
                for from in (0..LARGE).step_by(64 << 10) {
                    let part: Vec<u8> = (from..from + (64 << 10)).map(pattern).collect();
                    if sender.send(Bytes::from(part)).await.is_err() {
                        sent[1].fetch_add(1, SeqCst);
                        return;
                    }
                }
                sent[0].fetch_add(1, SeqCst);
            });
            Response::new(body)
        }
    };
    match protocol {
        Protocol::Http2 => speaking(upstream_h2(answer).await, protocol),
        _ => remote(upstream(answer).await),
    }
}

/// A client that does not read, with as little room as the kernel lets it have.
async fn deaf(gateway: &Gateway, request: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(gateway.address()).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

const LIST: &str = "GET /clusters/a/api/v1/pods?limit=1 HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn seats_come_back_while_a_slow_client_still_reads_and_it_gets_every_byte() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let limits = Limits { ahead_bytes: 2 * LARGE, ahead_bytes_per_worker: 4 * LARGE, ..Limits::default() };
        let sent = Arc::<[AtomicUsize; 2]>::default();
        let gateway = gateway(large(sent.clone(), protocol).await, limits);
        let mut slow = deaf(&gateway, LIST).await;
        eventually("the shard has sent all", || sent[0].load(SeqCst) == 1).await;
        becomes(&gateway, "HTTP/1.1 client", IN_USE, 0.0).await;
        let mut over_h2 = h2(&gateway).await;
        let response = over_h2.send_request(get_h2("/clusters/a/api/v1/pods?limit=1")).await.unwrap();
        eventually("the shard has sent all", || sent[0].load(SeqCst) == 2).await;
        becomes(&gateway, "HTTP/2 client", IN_USE, 0.0).await;
        let mut got = Vec::new();
        slow.read_to_end(&mut got).await.unwrap();
        let text = String::from_utf8_lossy(&got[..200]).into_owned();
        assert!(text.starts_with("HTTP/1.1 200") && got.len() > LARGE && got.ends_with(b"\r\n0\r\n\r\n"), "{text}");
        let whole = response.into_body().collect().await.unwrap().to_bytes();
        assert!(whole.len() == LARGE && whole.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
    }
}

#[tokio::test]
async fn a_client_slower_than_the_buffer_keeps_its_seats_and_is_cut() {
    let limits = Limits { stall_timeout: Duration::from_secs(1), ..Limits::default() };
    let sent = Arc::<[AtomicUsize; 2]>::default();
    let gateway = gateway(large(sent.clone(), Protocol::Http1).await, limits);
    let _slow = deaf(&gateway, LIST).await;
    becomes(&gateway, "HTTP/1.1 client", IN_USE, 1.0).await;
    eventually("the shard is told", || sent[1].load(SeqCst) == 1).await;
    becomes(&gateway, "HTTP/1.1 client", IN_USE, 0.0).await;
    let mut over_h2 = h2(&gateway).await;
    let response = over_h2.send_request(get_h2("/clusters/a/api/v1/pods?limit=1")).await.unwrap();
    eventually("the shard is told", || sent[1].load(SeqCst) == 2).await;
    becomes(&gateway, "HTTP/2 client", IN_USE, 0.0).await;
    assert!(response.into_body().collect().await.is_err(), "the stream is reset");
    assert_eq!(sent[0].load(SeqCst), 0, "the shard was held back");
}

/// Answers that always have more, and so are read in one go as far as there is room: only the worker's limit holds the
/// second one back, and nothing but the first one's client makes room.
#[tokio::test]
async fn what_a_client_has_read_makes_room_for_another_answer() {
    const PART: usize = 64 << 10;
    let taken = Arc::<[AtomicUsize; 2]>::default();
    let counted = taken.clone();
    let answer = move |request: http::Request<Body>| {
        let (counted, second) = (counted.clone(), usize::from(request.uri().path().ends_with("/second")));
        let frames = (0..LARGE / PART).map(move |_| {
            counted[second].fetch_add(1, SeqCst);
            Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from_static(&[b'x'; PART])))
        });
        let body = Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames)));
        std::future::ready(Response::new(body))
    };
    let all = LARGE / PART;
    let room = LARGE + LARGE / 4;
    let limits =
        Limits { ahead_bytes: 2 * LARGE, ahead_bytes_per_worker: room, stall_timeout: HOUR, ..Limits::default() };
    let shard = ShardOptions { seats: 2, ..local(answer) };
    let gateway = Gateway::start(GatewayOptions {
        fairness: Some(rules::one_level(rules::QUEUE)),
        limits,
        ..options(vec![shard])
    })
    .unwrap();
    let ask =
        |name: &str| format!("GET /clusters/a/api/v1/pods/{name} HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n");
    let mut first = deaf(&gateway, &ask("first")).await;
    eventually("the first has been read", || taken[0].load(SeqCst) == all).await;
    let mut second = deaf(&gateway, &ask("second")).await;
    eventually("the second is being read", || taken[1].load(SeqCst) >= all / 8).await;
    // Answered by the same thread: it has read all that there is room for.
    assert_eq!(once(&gateway, get("/livez")).await.0, 200);
    assert!(taken[1].load(SeqCst) < all);
    becomes(&gateway, "the second is held back", IN_USE, 1.0).await;
    let mut got = Vec::new();
    first.read_to_end(&mut got).await.unwrap();
    assert!(got.len() > LARGE);
    eventually("the second has been read", || taken[1].load(SeqCst) == all).await;
    becomes(&gateway, "both have been read", IN_USE, 0.0).await;
    got.clear();
    second.read_to_end(&mut got).await.unwrap();
    assert!(got.len() > LARGE);
}

/// A watch whose list has no end and whose shard never pauses gives its seats back in time, read or not.
#[tokio::test]
async fn a_list_without_an_end_keeps_no_seats() {
    for client in ["deaf", "deaf over HTTP/2", "reads"] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let events = Bytes::from(ADDED.repeat(1000));
        let shard = local(move |_| {
            counted.fetch_add(1, SeqCst);
            let events = events.clone();
            let frames = std::iter::repeat_with(move || {
                Ok::<_, std::convert::Infallible>(http_body::Frame::data(events.clone()))
            });
            let body = Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames)));
            std::future::ready(Response::builder().header("content-type", "application/json").body(body).unwrap())
        });
        let limits = Limits { watch_start_timeout: Duration::from_secs(1), stall_timeout: HOUR, ..Limits::default() };
        let gateway = gateway(shard, limits);
        let path = "/clusters/a/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let mut reading = None;
        let mut unread = None;
        if client.ends_with("HTTP/2") {
            let mut over_h2 = h2(&gateway).await;
            unread = Some((over_h2.send_request(get_h2(path)).await.unwrap(), over_h2));
        } else {
            let mut socket = deaf(&gateway, &format!("GET {path} HTTP/1.1\r\nhost: d\r\n\r\n")).await;
            reading = Some(AbortOnDrop(tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while client == "reads" && socket.read(&mut buffer).await.unwrap() > 0 {}
                std::future::pending::<()>().await;
            })));
        }
        eventually("the shard is asked", || asked.load(SeqCst) == 1).await;
        becomes(&gateway, client, IN_USE, 0.0).await;
        drop((reading, unread));
    }
}

/// A body that its writer waits for.
fn bounded() -> (tokio::sync::mpsc::Sender<Bytes>, Body) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
    let stream = futures_util::stream::poll_fn(move |cx| {
        let frame = |bytes| Ok::<_, std::convert::Infallible>(http_body::Frame::data(bytes));
        receiver.poll_recv(cx).map(|item: Option<Bytes>| item.map(frame))
    });
    (sender, Body::new(http_body_util::StreamBody::new(stream)))
}

const ADDED: &str = "{\"type\":\"ADDED\",\"object\":{}}\n";
const BOOKMARK: &str =
    "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n";

const HALF: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"annotations\":{\"k8s.io/ini";
const REST: &str = "tial-events-end\":\"true\"}}}}\n";

/// A watch: its query, the encoding of its answer, the events that leave it uninitialised, those that initialise it
/// (nothing: quiet does), and the limit.
struct Watch {
    query: &'static str,
    encoding: &'static str,
    before: &'static [&'static str],
    then: &'static [&'static str],
    limit: Duration,
}

#[tokio::test]
async fn watches_give_their_seats_back_when_they_are_initialised() {
    let list = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let (plain, head) = ("identity", "watch=1&resourceVersion=7");
    for watch in [
        Watch { query: head, encoding: plain, before: &[], then: &[], limit: HOUR },
        Watch { query: list, encoding: plain, before: &[ADDED, ADDED], then: &[BOOKMARK], limit: HOUR },
        Watch { query: list, encoding: plain, before: &[ADDED, HALF], then: &[REST], limit: HOUR },
        Watch { query: list, encoding: plain, before: &[ADDED], then: &[], limit: Duration::from_secs(1) },
        Watch { query: list, encoding: "gzip", before: &[], then: &[ADDED], limit: HOUR },
        Watch { query: "watch=1&resourceVersion=0", encoding: plain, before: &[], then: &[ADDED], limit: HOUR },
        Watch { query: "watch=1", encoding: plain, before: &[], then: &[], limit: HOUR },
    ] {
        // Where time ends it, that may be over before we look: then once more.
        let mut is_held = false;
        for _ in 0..5 {
            is_held = is_held || initialised(&watch).await;
        }
        let Watch { query, encoding, .. } = watch;
        assert_eq!(is_held, query != head, "{query}, {encoding}: held behind the head");
    }
}

/// Whether its seats were held when its head had come.
async fn initialised(watch: &Watch) -> bool {
    let Watch { query, encoding, before, then, limit } = *watch;
    let (sender, body) = channel();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let shard = local(move |_| {
        let answer = Response::builder().header("content-type", "application/json");
        let answer = answer.header("content-encoding", encoding).body(body.lock().unwrap().take().unwrap());
        std::future::ready(answer.unwrap())
    });
    let gateway = gateway(shard, Limits { watch_start_timeout: limit, ..Limits::default() });
    let watch = h1(&gateway).await.send_request(get(&format!("/clusters/a/api/v1/pods?{query}"))).await.unwrap();
    let is_held = gauge(&gateway, IN_USE).await > 0.0;
    let mut events = watch.into_body();
    for event in before {
        sender.send(Bytes::from_static(event.as_bytes())).unwrap();
        assert_eq!(events.frame().await.unwrap().unwrap().into_data().unwrap(), *event);
        if limit == HOUR {
            assert!(gauge(&gateway, IN_USE).await > 0.0, "{query}: {event} is not the end");
        }
    }
    for event in then {
        sender.send(Bytes::from_static(event.as_bytes())).unwrap();
        assert_eq!(events.frame().await.unwrap().unwrap().into_data().unwrap(), *event);
    }
    becomes(&gateway, query, IN_USE, 0.0).await;
    sender.send(Bytes::from_static(b"later")).unwrap();
    assert_eq!(events.frame().await.unwrap().unwrap().into_data().unwrap(), "later", "{query}: it goes on");
    is_held
}

/// How far a request has got when its client leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Queue,
    Head,
    Body,
}

/// How the client sends it and leaves.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Closes,
    ClosesBehindItsBody,
    ResetsBehindItsBody,
    ClosesBehindAnother,
    ResetsStream,
    ClosesHttp2,
}

/// A shard that holds `/hold` until it is told, and answers nothing to `/head` and the beginning of an answer to
/// `/body`. Counts the requests that it gets, and the connections that end on it after one.
async fn holding(release: Arc<Notify>, asked: Arc<AtomicUsize>, ends: Arc<AtomicUsize>) -> ShardOptions {
    let address = raw_upstream(move |mut socket, _| {
        let (release, asked, ends) = (release.clone(), asked.clone(), ends.clone());
        async move {
            let mut head = Vec::new();
            while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                if socket.read_buf(&mut head).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            asked.fetch_add(1, SeqCst);
            let head = String::from_utf8_lossy(&head).into_owned();
            if head.contains("/hold ") {
                release.notified().await;
                socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            } else if head.contains("/body ") {
                socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nbeginning").await.unwrap();
            }
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest).await;
            ends.fetch_add(1, SeqCst);
        }
    })
    .await;
    remote(address)
}

/// A client in that state; dropping what comes back makes it leave.
async fn client(gateway: &Gateway, at: At, leaves: Leaves) -> Box<dyn std::any::Any> {
    let path = if at == At::Body { "/clusters/a/api/body" } else { "/clusters/a/api/head" };
    if let Leaves::ResetsStream | Leaves::ClosesHttp2 = leaves {
        let socket = TcpStream::connect(gateway.address()).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(socket);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) = hyper::client::conn::http2::handshake::<_, _, Body>(executor, io).await.unwrap();
        let connection = tokio::spawn(connection);
        let answer = sender.send_request(get_h2(path));
        if at == At::Body {
            let answer = answer.await.unwrap();
            return match leaves {
                Leaves::ResetsStream => {
                    // The connection stays.
                    std::mem::forget(sender);
                    Box::new(answer)
                }
                _ => Box::new((AbortOnDrop(connection), answer, sender)),
            };
        }
        let pending = tokio::spawn(answer);
        return match leaves {
            Leaves::ResetsStream => {
                std::mem::forget(sender);
                Box::new(AbortOnDrop(pending))
            }
            _ => Box::new((AbortOnDrop(connection), AbortOnDrop(pending), sender)),
        };
    }
    let get = format!("GET {path} HTTP/1.1\r\nhost: d\r\n\r\n");
    let post = format!("POST {path} HTTP/1.1\r\nhost: d\r\ncontent-length: 100000000\r\n\r\n");
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    match leaves {
        Leaves::Closes => socket.write_all(get.as_bytes()).await.unwrap(),
        Leaves::ClosesBehindAnother => socket.write_all(get.repeat(2).as_bytes()).await.unwrap(),
        _ => {
            socket.write_all(post.as_bytes()).await.unwrap();
            socket.write_all(&[b'x'; 1000]).await.unwrap();
        }
    }
    if at == At::Body {
        let mut seen = Vec::new();
        while !seen.ends_with(b"beginning") {
            assert_ne!(socket.read_buf(&mut seen).await.unwrap(), 0);
        }
    }
    if let Leaves::ResetsBehindItsBody = leaves {
        socket.set_zero_linger().unwrap();
    }
    Box::new(socket)
}

/// Ends a task when it is dropped.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_along() {
    for leaves in [
        Leaves::Closes,
        Leaves::ClosesBehindItsBody,
        Leaves::ResetsBehindItsBody,
        Leaves::ClosesBehindAnother,
        Leaves::ResetsStream,
        Leaves::ClosesHttp2,
    ] {
        for at in [At::Queue, At::Head, At::Body] {
            let what = format!("{leaves:?} at {at:?}");
            let (release, asked, ends) = (Arc::new(Notify::new()), Arc::default(), Arc::<AtomicUsize>::default());
            let shard = holding(release.clone(), Arc::clone(&asked), ends.clone()).await;
            let gateway = gateway(shard, Limits::default());
            let mut holder = h1(&gateway).await;
            let held = (at == At::Queue).then(|| holder.send_request(get("/clusters/a/api/hold")));
            let held = held.map(tokio::spawn);
            if held.is_some() {
                becomes(&gateway, &what, IN_USE, 1.0).await;
            }
            let client = client(&gateway, at, leaves).await;
            eventually("the shard is asked", || asked.load(SeqCst) == 1).await;
            match at {
                At::Queue => becomes(&gateway, &what, WAITING, 1.0).await,
                At::Head | At::Body => becomes(&gateway, &what, IN_USE, 1.0).await,
            }
            drop(client);
            match held {
                Some(held) => {
                    becomes(&gateway, &what, WAITING, 0.0).await;
                    release.notify_one();
                    held.await.unwrap().unwrap();
                }
                None => eventually(&what, || ends.load(SeqCst) == 1).await,
            }
            becomes(&gateway, &what, IN_USE, 0.0).await;
            assert!(ends.load(SeqCst) <= 1, "{what}: the shard has seen no more than one");
        }
    }
}
