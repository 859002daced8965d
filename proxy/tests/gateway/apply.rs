//! Settings that are replaced in a running gateway: TLS towards shards, the access log, and what cannot be.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use crate::support::{tls::Ca, *};
use config::{AccessLog, Protocol, Sink};
use http::StatusCode;
use proxy::{ApplyError, Gateway, Limits, RemoteOptions, Settings, ShardOptions, StartError, Upstream};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

fn settings() -> Settings {
    Settings {
        tls: None,
        anonymous: true,
        drop_groups: Vec::new(),
        shards: None,
        limits: Limits::default(),
        access_log: None,
    }
}

/// Asks until the answer is as wanted: a shard that was not there a moment ago is not asked at once.
async fn becomes(gateway: &Gateway, want: StatusCode) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let (got, _, text) = once(gateway, get("/clusters/a/api")).await;
        if got == want {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "stays {got}, not {want}: {text}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// A shard's certificate comes from another authority, which the gateway is told: its next connections trust that one.
#[tokio::test]
async fn another_authority_of_a_shard_counts_for_the_next_connection() {
    let (old, new) = (Ca::new(), Ca::new());
    let shown: Arc<Mutex<Arc<ServerConfig>>> = Arc::new(Mutex::new(Arc::new(old.server_config())));
    let config = shown.clone();
    let address = raw_upstream(move |socket, _| {
        let acceptor = TlsAcceptor::from(config.lock().unwrap().clone());
        async move {
            let Ok(mut stream) = acceptor.accept(socket).await else { return };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
        }
    })
    .await;
    let shard = |ca: &Ca, seats| {
        let url = format!("https://localhost:{}", address.port());
        let tls = Some(Arc::new(ca.client_config()));
        let upstream = Upstream::Remote(RemoteOptions { url, protocol: Protocol::Http1, tls });
        ShardOptions { name: "root".into(), seats, upstream, observers: None }
    };
    let gateway = Gateway::start(options(vec![shard(&old, 10)])).unwrap();
    becomes(&gateway, StatusCode::OK).await;
    *shown.lock().unwrap() = Arc::new(new.server_config());
    becomes(&gateway, StatusCode::SERVICE_UNAVAILABLE).await;
    gateway.apply(&Settings { shards: Some(vec![shard(&new, 10)]), ..settings() }).unwrap();
    becomes(&gateway, StatusCode::OK).await;
}

fn log(file: &Path, per_million: u32) -> Option<AccessLog> {
    Some(AccessLog { sink: Sink::File(file.to_owned()), per_million, errors_per_second: 0 })
}

/// Lines go where the settings in force say, from the first reload that asks for them on.
#[tokio::test]
async fn the_access_log_begins_moves_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
    let gateway = Gateway::start(options(vec![local(|_| async { ok("ok") })])).unwrap();
    let lines = |path: &Path| std::fs::read_to_string(path).map_or(0, |text| text.lines().count());
    let ask = async |times: usize| {
        for _ in 0..times {
            assert_eq!(once(&gateway, get("/clusters/a/api")).await.0, StatusCode::OK);
        }
    };
    let apply = |access_log| gateway.apply(&Settings { access_log, ..settings() });
    ask(2).await;
    apply(log(&first, 1_000_000)).unwrap();
    ask(3).await;
    eventually("three lines", || lines(&first) == 3).await;
    apply(log(&second, 1_000_000)).unwrap();
    ask(4).await;
    eventually("four lines elsewhere", || lines(&second) == 4).await;
    // A directory that is not there: nothing has changed.
    let refused = apply(log(&directory.path().join("none/log"), 0)).unwrap_err();
    assert!(
        refused.to_string().starts_with("accessLog.file: ") && refused.to_string().contains("none/log"),
        "{refused}"
    );
    ask(1).await;
    eventually("one more", || lines(&second) == 5).await;
    apply(log(&second, 0)).unwrap();
    ask(1).await;
    apply(None).unwrap();
    ask(1).await;
    apply(log(&second, 1_000_000)).unwrap();
    ask(1).await;
    eventually("the last", || lines(&second) == 6).await;
    drop(gateway);
    assert_eq!((lines(&first), lines(&second)), (3, 6));
}

/// What cannot be is said, and nothing of it is in force.
#[tokio::test]
async fn what_is_refused_changes_nothing() {
    let gateway = Gateway::start(options(vec![local(|_| async { ok("ok") })])).unwrap();
    let no_longer = |settings: Settings| Settings { anonymous: false, ..settings };
    let refused = |settings: Settings| gateway.apply(&no_longer(settings)).unwrap_err();
    for shards in [Vec::new(), vec![ShardOptions { name: "other".into(), ..local(|_| async { ok("ok") }) }]] {
        let is_empty = shards.is_empty();
        match refused(Settings { shards: Some(shards), ..settings() }) {
            ApplyError::Shard(StartError::NoShard) => assert!(is_empty),
            ApplyError::Static => assert!(!is_empty),
            other => panic!("{other}"),
        }
    }
    let upstream = Upstream::Remote(RemoteOptions { url: "ftp://x".into(), protocol: Protocol::Auto, tls: None });
    let shards = Some(vec![ShardOptions { name: "root".into(), seats: 1, upstream, observers: None }]);
    assert!(matches!(refused(Settings { shards, ..settings() }), ApplyError::Shard(StartError::Url { .. })));
    let mut tries = 1..5000;
    let limits = |streams| Limits { streams, ..Limits::default() };
    assert!(tries.any(|streams| gateway.apply(&Settings { limits: limits(streams), ..settings() }).is_err()));
    let error = refused(Settings { limits: limits(5000), ..settings() });
    assert!(matches!(error, ApplyError::TooManyLimits), "{error}");
    assert_eq!(once(&gateway, get("/clusters/a/api")).await.0, StatusCode::OK, "anonymous is let in still");
    gateway.apply(&no_longer(settings())).unwrap();
    assert_eq!(once(&gateway, get("/clusters/a/api")).await.0, StatusCode::UNAUTHORIZED);
}
