//! The fairness configuration is replaced while requests wait: nobody is lost, and no seat is given twice.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{
    rules::{class, parse},
    *,
};
use bytes::Bytes;
use config::FairnessConfig;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use proxy::{Body, ShardOptions};
use tokio::{sync::mpsc::UnboundedSender, task::JoinSet};

const SEATS: u32 = 4;
const WAITING: &str = "apiserver_flowcontrol_current_inqueue_requests";
const EXECUTING: &str = "apiserver_flowcontrol_current_executing_requests";
const IN_USE: &str = "apiserver_flowcontrol_current_executing_seats";

/// A level and a FlowSchema that puts these resources there.
fn level(name: &str, resources: &str, shares: u32, queuing: &str) -> String {
    let limited = format!(
        "nominalConcurrencyShares: {shares}, lendablePercent: 50, limitResponse: {{ type: Queue, queuing: {queuing} }}"
    );
    rules::level(name, &limited) + &rules::schema(name, 100, "distinguisherMethod: { type: ByNamespace }", resources)
}

const QUEUE: &str = "{ queues: 1, handSize: 1, queueLengthLimit: 1000 }";
const HANDS: &str = "{ queues: 16, handSize: 3, queueLengthLimit: 1000 }";

/// Levels present and absent, other shares, other queues, other classes.
fn variants() -> Vec<FairnessConfig> {
    let three = [level("a", "pods", 10, HANDS), level("b", "secrets", 30, QUEUE), level("c", "'*'", 5, HANDS)].concat();
    [
        three.clone(),
        level("all", "'*'", 10, QUEUE),
        [level("c", "pods", 1, QUEUE), level("a", "'*'", 90, HANDS)].concat(),
        three.clone() + &class("gold", "w0", "nominalConcurrencyShares: 100"),
        three.clone() + &class("fixed", "w1", "seats: 2, lendablePercent: 100"),
        three + &class("all", "*", "nominalConcurrencyShares: 1, borrowingLimitPercent: 100"),
        class("gold", "w2", "seats: 1"),
    ]
    .iter()
    .map(|text| parse(text))
    .collect()
}

/// Counts what a shard runs at the same time.
#[derive(Default)]
struct Load {
    running: AtomicU64,
    most: AtomicU64,
    served: AtomicU64,
}

impl Load {
    /// A shard for which each request is a moment's work; the answer names the request.
    fn shard(self: &Arc<Self>) -> ShardOptions {
        let load = self.clone();
        let shard = local(move |request: Request<Body>| {
            let load = load.clone();
            async move {
                let running = load.running.fetch_add(1, SeqCst) + 1;
                load.most.fetch_max(running, SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
                load.running.fetch_sub(1, SeqCst);
                load.served.fetch_add(1, SeqCst);
                ok(request.uri().path().to_owned())
            }
        });
        ShardOptions { seats: SEATS, ..shard }
    }
}

/// Forty clients without privileges share four seats, so that most of them wait at any time, while the configuration
/// changes two hundred times below them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_outlive_every_change_and_seats_are_never_exceeded() {
    const CLIENTS: usize = 40;
    const RELOADS: usize = 200;
    let variants = variants();
    let load = Arc::new(Load::default());
    let gateway = Arc::new(fair(load.shard(), variants[0].clone()));
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (gateway, stop, answered) = (gateway.clone(), stop.clone(), answered.clone());
        clients.spawn(async move {
            let mut connection = h1(&gateway).await;
            let (mut served, mut refused, mut sent) = (0_u64, 0_u64, 0_u64);
            while !stop.load(SeqCst) {
                let resource = ["pods", "secrets", "configmaps"][(client + sent as usize) % 3];
                let rest = format!("/api/v1/namespaces/n{client}/{resource}/x{sent}");
                sent += 1;
                connection.ready().await.unwrap();
                let path = format!("/clusters/w{}{rest}", client % 4);
                let response = connection.send_request(get(&path)).await.unwrap();
                let status = response.status();
                let body = text(response.into_body()).await;
                match status {
                    StatusCode::OK => {
                        assert!(body.ends_with(&rest), "the answer to another request: {body}, not {rest}");
                        served += 1;
                    }
                    StatusCode::TOO_MANY_REQUESTS => refused += 1,
                    other => panic!("{other}: {body}"),
                }
                answered.fetch_add(1, SeqCst);
            }
            (sent, served, refused)
        });
    }
    let mut with_waiters = 0;
    for n in 1..=RELOADS {
        let before = answered.load(SeqCst);
        with_waiters += u32::from(metric(&gateway, WAITING).await > 0.0);
        let seats = metric(&gateway, "fairgate_shard_seats_in_use").await;
        assert!(seats <= f64::from(SEATS), "{seats} seats in use");
        gateway.reload_fairness(&variants[n % variants.len()]);
        eventually("answers go on after a reload", || answered.load(SeqCst) >= before + 5).await;
    }
    stop.store(true, SeqCst);
    let (mut sent, mut served, mut refused) = (0, 0, 0);
    while let Some(client) = clients.join_next().await {
        let (a, b, c) = client.unwrap();
        (sent, served, refused) = (sent + a, served + b, refused + c);
    }
    assert_eq!(sent, served + refused, "each request has one answer");
    assert_eq!(served, load.served.load(SeqCst), "and the shard saw each of those once");
    assert!(served > 5 * RELOADS as u64 / 2 && with_waiters > RELOADS as u32 / 2, "{served} {refused} {with_waiters}");
    let most = load.most.load(SeqCst);
    assert!((2..=u64::from(SEATS)).contains(&most), "{most} at the same time");
    metric_becomes(&gateway, WAITING, 0.0).await;
    metric_becomes(&gateway, IN_USE, 0.0).await;
    metric_becomes(&gateway, "fairgate_shard_seats_in_use", 0.0).await;
}

/// A shard whose answers end when the test says so.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Vec<UnboundedSender<Bytes>>>>);

impl Held {
    fn shard(&self) -> ShardOptions {
        let held = self.clone();
        let shard = local(move |_: Request<Body>| {
            let (sender, body) = channel();
            held.0.lock().unwrap().push(sender);
            std::future::ready(Response::new(body))
        });
        ShardOptions { seats: SEATS, ..shard }
    }

    fn running(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|sender| !sender.is_closed()).count()
    }
}

/// Those that wait in a level keep waiting when it goes, when its queue becomes too short for them and when the class
/// changes; what runs keeps its seats; all are served in the end.
#[tokio::test]
async fn waiting_requests_stay_when_their_level_goes_or_shrinks() {
    const CLIENTS: usize = 10;
    let short = "{ queues: 1, handSize: 1, queueLengthLimit: 1 }";
    for after in [
        level("other", "'*'", 10, QUEUE),
        level("all", "'*'", 10, short),
        level("all", "'*'", 10, HANDS) + &class("all", "*", "seats: 1"),
        class("all", "*", "nominalConcurrencyShares: 7"),
    ] {
        let held = Held::default();
        let gateway = fair(held.shard(), parse(&level("all", "'*'", 10, QUEUE)));
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS {
            let mut connection = h1(&gateway).await;
            clients.spawn(async move {
                let response = connection.send_request(get(&format!("/clusters/a/api/v1/pods/p{n}"))).await.unwrap();
                let status = response.status();
                response.into_body().collect().await.unwrap();
                status
            });
        }
        // A seat may be kept for another workspace.
        eventually("all but one seat is taken", || held.running() + 1 >= SEATS as usize).await;
        let running = held.running();
        metric_becomes(&gateway, WAITING, (CLIENTS - running) as f64).await;
        gateway.reload_fairness(&parse(&after));
        // Whoever waits or runs is still shown, under the level that is gone too.
        let text = admin(&gateway, "/metrics").await;
        let shown = |at: &str| sum(&text, &format!("{WAITING}{at}")) + sum(&text, &format!("{EXECUTING}{at}"));
        assert_eq!(shown(""), CLIENTS as f64, "{after}");
        assert_eq!(shown("{priority_level=\"all\""), CLIENTS as f64, "{after}\n{text}");
        for _ in 0..CLIENTS {
            eventually("somebody runs", || held.running() > 0).await;
            assert!(held.running() <= SEATS as usize);
            held.0.lock().unwrap().remove(0);
            assert_eq!(clients.join_next().await.unwrap().unwrap(), StatusCode::OK, "{after}");
        }
        metric_becomes(&gateway, "fairgate_shard_seats_in_use", 0.0).await;
    }
}

/// What was used of a rate is not given back by a reload that does not change it, nor by one that changes others.
#[tokio::test]
async fn a_rate_that_stays_keeps_what_was_used_and_one_that_changes_begins_full() {
    const BURST: u32 = 60;
    let load = Arc::new(Load::default());
    let rate = |burst: u32, shares: u32, perhaps: &str| {
        let spec = format!(
            "nominalConcurrencyShares: {shares}, rateLimit: {{ requestsPerSecond: 1, burst: {burst} {perhaps} }}"
        );
        parse(&(class("slow", "slow", &spec) + &class("rest", "*", &format!("nominalConcurrencyShares: {shares}"))))
    };
    let gateway = fair(load.shard(), rate(BURST, 10, ""));
    let mut connection = h1(&gateway).await;
    // How many are served before the first refusal: at most one for each second that it takes, but for the burst.
    let mut served = async || {
        for n in 0.. {
            connection.ready().await.unwrap();
            let response = connection.send_request(get("/clusters/slow/api/v1/pods/a")).await.unwrap();
            let (parts, body) = response.into_parts();
            body.collect().await.unwrap();
            if parts.status == StatusCode::TOO_MANY_REQUESTS {
                assert_eq!(parts.headers["retry-after"], "1");
                return n;
            }
        }
        unreachable!("the loop has no end")
    };
    assert!(served().await >= BURST);
    gateway.reload_fairness(&rate(BURST, 10, ""));
    assert!(served().await < BURST, "the same");
    gateway.reload_fairness(&rate(BURST, 99, ""));
    assert!(served().await < BURST, "another weight");
    gateway.reload_fairness(&rate(BURST, 99, ", perUser: { requestsPerSecond: 1000000 }"));
    assert!(served().await < BURST, "another limit for users");
    gateway.reload_fairness(&rate(2 * BURST, 99, ", perUser: { requestsPerSecond: 1000000 }"));
    assert!(served().await >= 2 * BURST, "another limit");
    gateway.reload_fairness(&rate(2 * BURST, 99, ", perUser: { requestsPerSecond: 1, burst: 7 }"));
    assert!(served().await < BURST, "the workspace has used up its own");
    gateway.reload_fairness(&FairnessConfig::default());
    for _ in 0..3 * BURST {
        assert_eq!(once(&gateway, get("/clusters/slow/api/v1/pods/a")).await.0, StatusCode::OK, "no limit");
    }
}
