//! Which requests are logged, and what is said of one that no test from outside can bring about.

use std::{convert::Infallible, net::TcpListener, time::Instant};

use fairness::{WatchOptions, WatchTracker};
use http::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::{Body, Gateway, GatewayOptions, Limits, LocalService, ShardOptions, Upstream, clock::WallClock};

fn quota(max: u32) -> Quota {
    Quota { max: max.into(), used: 0.into() }
}

fn log(per_million: u32) -> AccessLog {
    let (lines, _) = std::sync::mpsc::sync_channel(1);
    let place = Arc::new(Mutex::new(Place { sink: Sink::Stdout, next: None }));
    AccessLog { lines, below: threshold(per_million).into(), quota: quota(0), counts: Arc::default(), place }
}

#[test]
fn the_sample_is_as_large_as_it_is_said_to_be() {
    let logged = |per_million| {
        let log = log(per_million);
        (0..100_000).filter(|number| log.is_sampled(*number)).count()
    };
    assert_eq!((logged(0), logged(1_000_000)), (0, 100_000));
    // The numbers are the same each time: five standard deviations are no matter of luck.
    for (per_million, want, tolerance) in [(10_000, 1_000, 160), (500_000, 50_000, 800), (999_000, 99_900, 50)] {
        let got = logged(per_million);
        assert!(got.abs_diff(want) < tolerance, "{got} of 100,000 at {per_million} in a million");
    }
    assert!(log(1_000_000).is_sampled(u64::MAX));
}

#[test]
fn what_goes_wrong_is_logged_up_to_a_limit_a_second() {
    let quota = quota(2);
    let taken = [7, 7, 7, 8, 7, 8, 9, 9, 9].map(|second: u64| quota.take(second * 1_000_000_000 + 5));
    assert_eq!(
        taken,
        [true, true, false, true, true, false, true, true, false],
        "one that is late counts for the newest"
    );
    assert!(!Quota { max: 0.into(), used: 0.into() }.take(1));
}

#[test]
fn a_draft_that_is_used_again_says_nothing_of_the_last_request() {
    let mut draft = Box::new(Draft { verb: "get", groups: Some(1), rest_at: 5, ..Draft::default() });
    draft.texts.put(Piece::User, "alice");
    let counter = draft.count_bytes();
    counter.fetch_add(7, Relaxed);
    draft.clear();
    let next = draft.count_bytes();
    counter.fetch_add(7, Relaxed);
    assert_eq!(next.load(Relaxed), 0, "the last body is still being read");
    drop((counter, next));
    draft.count_bytes().fetch_add(7, Relaxed);
    let place = Arc::as_ptr(&draft.bytes_in);
    draft.clear();
    assert_eq!((draft.bytes_in.load(Relaxed), Arc::as_ptr(&draft.bytes_in)), (0, place), "the same, from the start");
    assert_eq!((draft.texts.get(Piece::User), draft.verb, draft.groups, draft.rest_at), (None, "", None, 0));
}

#[test]
fn what_counts_as_wrong() {
    for (outcome, code, is_stream, want) in [
        (Outcome::Served, Some(200), false, false),
        (Outcome::Served, Some(404), false, false),
        (Outcome::Served, Some(500), false, true),
        (Outcome::Served, Some(429), false, true),
        (Outcome::Refused("workspace"), Some(403), false, false),
        (Outcome::Refused("workspace"), Some(503), false, true),
        (Outcome::Rejected("queue-full"), Some(429), false, true),
        (Outcome::UpstreamError("broken-off"), Some(200), false, true),
        (Outcome::TimedOut("silent"), Some(200), false, true),
        (Outcome::Cut("time-limit"), Some(200), false, true),
        (Outcome::Cut("drain"), Some(200), true, false),
        (Outcome::Cancelled, None, false, true),
        (Outcome::Cancelled, Some(200), false, true),
        (Outcome::Cancelled, Some(200), true, false),
        (Outcome::Cancelled, None, true, true),
    ] {
        let mut trail = Trail::new(0);
        trail.code = code.map(|code| StatusCode::from_u16(code).unwrap());
        (trail.outcome, trail.is_stream) = (outcome, is_stream);
        assert_eq!(is_wrong(&trail), want, "{outcome:?} {code:?} {is_stream}");
    }
}

/// There may be 20,000 watches; here, one.
#[tokio::test]
async fn one_watch_too_many_is_rejected_and_told_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("access.log");
    let watch = |_| {
        let events = futures_util::stream::pending::<Result<http_body::Frame<bytes::Bytes>, Infallible>>();
        std::future::ready(Ok(http::Response::new(Body::new(http_body_util::StreamBody::new(events)))))
    };
    let upstream = Upstream::Local(LocalService::new(tower::service_fn(watch)));
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = config::Sink::File(file.clone());
    let empty = "{ apiVersion: v1, kind: List, items: [] }";
    let fairness = config::FairnessConfig::parse(empty, std::path::Path::new("fairness.yaml")).unwrap();
    let options = GatewayOptions {
        listener: listener(),
        tls: None,
        admin: listener(),
        workers: 1,
        anonymous: true,
        drop_groups: Vec::new(),
        shards: vec![ShardOptions { name: "root".into(), seats: 10, upstream, observers: None }],
        fairness: Some(fairness),
        compat: config::Compat::Fairgate,
        directory: crate::Directory::Static,
        limits: Limits::default(),
        access_log: Some(config::AccessLog { sink, per_million: 1_000_000, errors_per_second: 0 }),
        healthy: None,
    };
    let one = WatchOptions { per_workspace_max: 1, ..WatchOptions::default() };
    let gateway = Gateway::start_with(options, WallClock::new(), |core| core.watches = WatchTracker::new(one)).unwrap();
    let ask = async |address, path: &str, head: &str| {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: d\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !String::from_utf8_lossy(&answer).contains(head) && socket.read_buf(&mut answer).await.unwrap() > 0 {}
        (socket, String::from_utf8(answer).unwrap())
    };
    let path = "/clusters/a/api/v1/pods?watch=1";
    let (_first, answer) = ask(gateway.address(), path, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (_, answer) = ask(gateway.address(), path, "nothing like it").await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.to_lowercase().contains("retry-after: 1"), "{answer}");
    let deadline = Instant::now() + std::time::Duration::from_secs(20);
    let line = loop {
        let text = std::fs::read_to_string(&file).unwrap();
        if let Some(line) = text.lines().next() {
            break serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
        assert!(Instant::now() < deadline, "nothing is logged");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!((&line["outcome"], &line["status"]), (&"rejected:watches".into(), &429.into()), "{line:#}");
    let (_, metrics) = ask(gateway.admin_address(), "/metrics", "nothing like it").await;
    let series = r#"fairgate_request_phase_duration_seconds_count{phase="total",verb="WATCH",outcome="rejected"} 1"#;
    assert!(metrics.contains(series), "{metrics}");
}
