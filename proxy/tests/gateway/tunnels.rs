//! Tunnels after an upgrade: bytes, half-close, back-pressure, either end gone, silence; and what opens none.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::time::Duration;

use crate::support::*;
use proxy::{Gateway, GatewayOptions, Limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};

const EXEC: &str = "/clusters/a/api/v1/namespaces/n/pods/p/exec?command=cat&stdin=true&stdout=true";
/// Longer than a socket's buffers, which the system may grow to some megabytes.
const FLOOD: usize = 64 << 20;
const PART: usize = 64 << 10;

fn ask(protocol: &str) -> String {
    format!("GET {EXEC} HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n")
}

async fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).await.unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

/// A gateway whose shard switches to whatever it is asked for and hands its end of each tunnel to the test.
async fn tunnels(limits: Limits) -> (Gateway, mpsc::UnboundedReceiver<TcpStream>) {
    let (ends, shard) = mpsc::unbounded_channel();
    let address = raw_upstream(move |mut socket, _| {
        let ends = ends.clone();
        async move {
            let head = read_head(&mut socket).await.to_lowercase();
            let protocol = head.lines().find_map(|line| line.strip_prefix("upgrade: ")).unwrap();
            let answer =
                format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
            socket.write_all(answer.as_bytes()).await.unwrap();
            let _ = ends.send(socket);
        }
    })
    .await;
    (Gateway::start(GatewayOptions { limits, ..options(vec![remote(address)]) }).unwrap(), shard)
}

/// Both ends of a new tunnel: the client's, then the shard's.
async fn open(
    gateway: &Gateway,
    shard: &mut mpsc::UnboundedReceiver<TcpStream>,
    protocol: &str,
) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(gateway.address()).await.unwrap();
    client.write_all(ask(protocol).as_bytes()).await.unwrap();
    let head = read_head(&mut client).await.to_lowercase();
    assert!(head.starts_with("http/1.1 101 ") && head.contains(&format!("upgrade: {}", protocol.to_lowercase())));
    (client, shard.recv().await.unwrap())
}

/// Writes the whole flood in a recognisable pattern.
async fn pour(write: &mut (impl AsyncWriteExt + Unpin), sent: &std::sync::atomic::AtomicUsize) {
    let part: Vec<u8> = (0..PART).map(|n| (n % 251) as u8).collect();
    for _ in 0..FLOOD / PART {
        write.write_all(&part).await.unwrap();
        sent.fetch_add(PART, std::sync::atomic::Ordering::Relaxed);
    }
    write.shutdown().await.unwrap();
}

async fn drink(read: &mut (impl AsyncReadExt + Unpin)) {
    let mut part = vec![0; PART];
    for _ in 0..FLOOD / PART {
        read.read_exact(&mut part).await.unwrap();
        assert!(part.iter().enumerate().all(|(n, byte)| *byte == (n % 251) as u8));
    }
    assert_eq!(read.read(&mut part).await.unwrap(), 0, "the end follows");
}

/// Whoever writes is held up while nobody reads, nothing is lost, and the other direction is not concerned: both ends
/// in turn read nothing at first, then everything.
#[tokio::test]
async fn a_slow_reader_holds_the_writer_up() {
    let (gateway, mut shard) = tunnels(Limits::default()).await;
    for protocol in ["SPDY/3.1", "websocket"] {
        for client_writes in [true, false] {
            let (client, shard) = open(&gateway, &mut shard, protocol).await;
            let (mut writer, mut reader) = if client_writes { (client, shard) } else { (shard, client) };
            let sent = std::sync::atomic::AtomicUsize::new(0);
            let (mut from_reader, mut to_reader) = writer.split();
            let (mut read, mut write) = reader.split();
            let reading = async {
                // Held up: no progress over a hundred looks of the other direction, each of them a round trip.
                let (mut before, mut still) = (0, 0);
                while still < 100 {
                    write.write_all(b"?").await.unwrap();
                    let mut byte = [0];
                    from_reader.read_exact(&mut byte).await.unwrap();
                    let now = sent.load(std::sync::atomic::Ordering::Relaxed);
                    still = if now == before && now > 0 { still + 1 } else { 0 };
                    before = now;
                    assert!(now < FLOOD, "nobody reads, and all of it is written: somebody keeps it");
                }
                drink(&mut read).await;
                write.shutdown().await.unwrap();
                assert_eq!(from_reader.read(&mut [0]).await.unwrap(), 0);
            };
            let both = async { tokio::join!(pour(&mut to_reader, &sent), reading) };
            timeout(4 * PATIENCE, both).await.expect("the tunnel hangs");
        }
    }
}

/// PX-11: the end of one direction leaves the other open, whichever it is.
#[tokio::test]
async fn either_end_may_finish_first() {
    let (gateway, mut shard) = tunnels(Limits::default()).await;
    for client_first in [true, false] {
        let (client, shard) = open(&gateway, &mut shard, "SPDY/3.1").await;
        let (mut first, mut second) = if client_first { (client, shard) } else { (shard, client) };
        first.write_all(b"last words").await.unwrap();
        first.shutdown().await.unwrap();
        let mut got = String::new();
        second.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "last words");
        second.write_all(b"and an answer").await.unwrap();
        second.shutdown().await.unwrap();
        got.clear();
        first.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "and an answer");
    }
}

/// Whoever is gone takes the other end along: a process is not left running for a client that has crashed.
#[tokio::test]
async fn an_end_that_is_gone_closes_the_other() {
    let (gateway, mut shard) = tunnels(Limits::default()).await;
    for client_goes in [true, false] {
        for by_reset in [true, false] {
            let (client, shard) = open(&gateway, &mut shard, "websocket").await;
            let (going, mut staying) = if client_goes { (client, shard) } else { (shard, client) };
            if by_reset {
                socket2::SockRef::from(&going).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(going);
            let ended = async {
                // A close is an end, a reset is one or the other.
                let read = staying.read(&mut [0]).await;
                assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
                // Without a reset the other direction stays open until it is written to.
                while staying.write_all(b"anybody?").await.is_ok() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(PATIENCE, ended).await.unwrap_or_else(|_| panic!("{client_goes} {by_reset}: still open"));
        }
    }
    metric_becomes(&gateway, "fairgate_connections", 0.0).await;
}

/// PX-03: a terminal at which nobody types outlives the idle limit; a connection without a request does not.
#[tokio::test]
async fn silence_ends_no_tunnel() {
    let limits = Limits { idle_timeout: Duration::from_millis(100), ..Limits::default() };
    let (gateway, mut shard) = tunnels(limits).await;
    let (mut client, mut shard) = open(&gateway, &mut shard, "SPDY/3.1").await;
    for _ in 0..2 {
        let mut idle = TcpStream::connect(gateway.address()).await.unwrap();
        idle.write_all(b"GET /livez HTTP/1.1\r\nHost: d\r\n\r\n").await.unwrap();
        timeout(PATIENCE, idle.read_to_end(&mut Vec::new())).await.expect("an idle connection is closed").unwrap();
    }
    for _ in 0..2 {
        client.write_all(b"ls").await.unwrap();
        let mut got = [0; 2];
        shard.read_exact(&mut got).await.unwrap();
        shard.write_all(&got).await.unwrap();
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"ls");
    }
}

/// What the client sends before it has its 101 is the tunnel's if it comes, and a request of its own if not (SE-01).
#[tokio::test]
async fn bytes_sent_too_early_belong_to_the_answer() {
    let (gateway, mut shard) = tunnels(Limits::default()).await;
    let mut client = TcpStream::connect(gateway.address()).await.unwrap();
    client.write_all(format!("{}early", ask("SPDY/3.1")).as_bytes()).await.unwrap();
    let mut got = [0; 5];
    timeout(PATIENCE, shard.recv().await.unwrap().read_exact(&mut got)).await.expect("they do not arrive").unwrap();
    assert_eq!(&got, b"early");
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 101"));

    let answers = [
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n",
        "HTTP/1.1 101\r\n\r\n",
    ];
    for answer in answers {
        let (heads, mut seen) = mpsc::unbounded_channel();
        let address = raw_upstream(move |mut socket, _| {
            let heads = heads.clone();
            async move {
                let head = read_head(&mut socket).await;
                let is_exec = head.contains("/exec");
                heads.send(head).unwrap();
                let yes = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes";
                socket.write_all(if is_exec { answer } else { yes }.as_bytes()).await.unwrap();
                // Whatever else comes on the connection of the refused switch is a request that nobody judged.
                let mut more = Vec::new();
                let _ = socket.read_to_end(&mut more).await;
                if is_exec && !more.is_empty() {
                    heads.send(format!("SMUGGLED {}", String::from_utf8_lossy(&more))).unwrap();
                }
            }
        })
        .await;
        let gateway = Gateway::start(options(vec![remote(address)])).unwrap();
        let smuggled =
            "GET /clusters/b/api/v1/secrets HTTP/1.1\r\nHost: d\r\nX-Remote-User: admin\r\nConnection: close\r\n\r\n";
        let bytes = format!("{}{smuggled}", ask("SPDY/3.1"));
        let got = raw(gateway.address(), bytes.as_bytes(), |_| false).await;
        assert!(!got.contains("HTTP/1.1 101"), "{answer}: {got}");
        gateway.shutdown(std::time::Duration::ZERO, PATIENCE).await;
        let mut others = Vec::new();
        while let Ok(head) = seen.try_recv() {
            others.push(head);
        }
        assert!(others.remove(0).starts_with(&format!("GET {EXEC} ")));
        for other in others {
            assert!(other.starts_with("GET /clusters/b/api/v1/secrets "), "{answer}: {other}");
            assert!(other.to_lowercase().contains("x-remote-user: system:anonymous\r\n"), "{answer}: {other}");
        }
    }
}

/// A client that leaves is noticed although the shard takes nothing, so that nobody's place is kept by who has gone.
#[tokio::test]
async fn a_client_that_leaves_while_the_shard_does_not_read_ends_the_tunnel() {
    let (gateway, mut shard) = tunnels(Limits::default()).await;
    let (mut client, mut shard) = open(&gateway, &mut shard, "SPDY/3.1").await;
    // As much as there is room for, and more.
    let flood = async {
        for _ in 0..FLOOD / PART {
            client.write_all(&[0; PART]).await.unwrap();
        }
    };
    timeout(Duration::from_millis(500), flood).await.expect_err("somebody reads it");
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    metric_becomes(&gateway, "fairgate_requests_in_flight", 0.0).await;
    let ended = timeout(PATIENCE, shard.read_to_end(&mut Vec::new())).await;
    ended.expect("the shard is not told").ok();
}

/// A client that has said all waits for its answer as long as that takes.
#[tokio::test]
async fn a_client_that_only_listens_is_not_cut() {
    let short = Duration::from_millis(100);
    let limits = Limits { idle_timeout: short, stall_timeout: short, ..Limits::default() };
    let (gateway, mut shard) = tunnels(limits).await;
    let (mut client, mut shard) = open(&gateway, &mut shard, "SPDY/3.1").await;
    client.write_all(b"all").await.unwrap();
    client.shutdown().await.unwrap();
    let mut read = Vec::new();
    shard.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, b"all");
    // The sweep comes by, and more than once.
    for _ in 0..3 {
        let mut idle = TcpStream::connect(gateway.address()).await.unwrap();
        idle.write_all(b"GET /livez HTTP/1.1\r\nHost: d\r\n\r\n").await.unwrap();
        timeout(PATIENCE, idle.read_to_end(&mut Vec::new())).await.expect("an idle connection is closed").unwrap();
    }
    shard.write_all(b"answer").await.unwrap();
    drop(shard);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"answer");
}

/// One workspace cannot take all the places, and there is one left for a workspace that has none.
#[tokio::test]
async fn a_workspace_has_its_share_of_the_tunnels() {
    let (gateway, mut shard) = tunnels(Limits { tunnels: 4, ..Limits::default() }).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        kept.push(open(&gateway, &mut shard, "SPDY/3.1").await);
    }
    let more = raw(gateway.address(), ask("SPDY/3.1").as_bytes(), |seen| seen.contains("its share")).await;
    assert!(more.starts_with("HTTP/1.1 429") && more.to_lowercase().contains("retry-after: 1"), "{more}");
    let other = ask("SPDY/3.1").replace("/clusters/a/", "/clusters/b/");
    let seen = raw(gateway.address(), other.as_bytes(), |seen| seen.contains("\r\n\r\n")).await;
    assert!(seen.starts_with("HTTP/1.1 101"), "{seen}");
}
