//! Replays what the real filter of Kubernetes v1.34 answered (`http_filter.json`) through a whole gateway under
//! `compat: upstream`: sockets, classification, pricing, queues, refusals, headers, debug endpoints, metrics. Only the
//! clock is not the gateway's own.
//!
//! Where we differ on purpose:
//! * **UIDs**: workspaces inherit the operator's objects and never see their UIDs (apf.md 9, row 18). Each UID of the
//!   vectors stands for one of ours, and no two for the same.
//! * **Paths**: requests go to `/clusters/a`, whose prefix is cut off before anything is read.
//! * **Wait limit**: it is a quarter of `timeout=`; the step that times out after 250 ms asks for one second.
//! * **Retry-After**: the recorded filter counted refusals by the real clock, on which the whole replay took a moment:
//!   always 1. Ours counts by the clock that the replay moves; it is what [`RetryAfter`] says (`retry_after.json`).
//! * **Late waiters**: three requests that were started at 8.605 s noticed it at 8.62 s in the recorder, which shows in
//!   two sums: [`LATE`].
//! * **Order of rows**: upstream's is that of a hash table in two of the dumps; ours is sorted. They are compared as sets.
//! * **Metrics**: see [`NOT_SERVED`].

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use apiserver_api::{ClusterName, RequestInfo, UserInfo};
use bytes::Bytes;
use config::{Compat, FairnessConfig};
use fairness::{Counts, Gate, WatchGuard, WatchTracker, upstream::RetryAfter};
use http::{Request, Response, header::CONTENT_TYPE};
use observers::{Change, CountEvent, CountSource, CountStream, Observers, SourceError, WorkspaceEvent};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::{
    Body, Directory, Gateway, GatewayOptions, Limits, LocalService, ShardOptions, Upstream, clock::WallClock,
    core::Core, identity::Identity,
};

const PATIENCE: Duration = Duration::from_secs(20);
const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/apf/");

/// Names of upstream that the gateway has no series of, and why.
const NOT_SERVED: [(&str, &str); 12] = [
    ("apiserver_flowcontrol_current_r", METER),
    ("apiserver_flowcontrol_dispatch_r", METER),
    ("apiserver_flowcontrol_latest_s", METER),
    ("apiserver_flowcontrol_next_s_bounds", METER),
    ("apiserver_flowcontrol_next_discounted_s_bounds", METER),
    ("apiserver_flowcontrol_seat_fair_frac", "each workspace has a fraction of its own, which add up to nothing"),
    ("apiserver_flowcontrol_demand_seats", TIMED),
    ("apiserver_flowcontrol_priority_level_request_utilization", TIMED),
    ("apiserver_flowcontrol_priority_level_seat_utilization", TIMED),
    ("apiserver_flowcontrol_read_vs_write_current_requests", TIMED),
    (
        "apiserver_flowcontrol_request_queue_length_after_enqueue",
        "dump_queues tells lengths; a histogram is not kept yet",
    ),
    ("apiserver_request_terminations_total", "rejected_requests_total and apiserver_request_total{code} count them"),
];
/// Seconds by which a sum of ours is larger.
const LATE: [(&str, f64); 2] = [
    ("apiserver_flowcontrol_request_execution_seconds_sum", 0.045),
    ("apiserver_flowcontrol_request_wait_duration_seconds_sum", -0.045),
];
const METER: &str = "each workspace has progress meters of its own, which add up to nothing; dump_queues shows them";
const TIMED: &str = "samples every nanosecond of real time: not comparable, and a top cost of upstream's (#108272)";

fn workspace() -> ClusterName {
    ClusterName::standing_for("a")
}

/// Counts as the vectors have them.
struct Fixed(i64, i64);

impl CountSource for Fixed {
    async fn open(&mut self) -> Result<CountStream, SourceError> {
        let pods = Change {
            cluster: workspace(),
            group: "".into(),
            resource: "pods".into(),
            namespace: "".into(),
            objects: self.0,
            bytes: self.0 * self.1,
        };
        let mut events = vec![CountEvent::Synced, CountEvent::Change(pods)];
        let next = move |_: &mut std::task::Context<'_>| match events.pop() {
            Some(event) => std::task::Poll::Ready(Some(Ok(event))),
            None => std::task::Poll::Pending,
        };
        Ok(Box::pin(futures_util::stream::poll_fn(next)))
    }
}

/// What a client got.
struct Answer {
    status: u64,
    headers: BTreeMap<String, String>,
    body: String,
}

async fn fetch(address: SocketAddr, head: String) -> Answer {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, socket.read_to_end(&mut bytes)).await.expect("an answer in time").unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()));
    let headers = lines.filter_map(header).filter(|(n, _)| n != "date" && n != "connection").collect();
    Answer { status, headers, body: body.to_owned() }
}

type Parked = Arc<Mutex<HashMap<String, oneshot::Sender<()>>>>;

/// The stub behind the filter: answers at once, or when it is told to.
fn shard(parked: &Parked, observers: (Observers, mpsc::Sender<WorkspaceEvent>)) -> ShardOptions {
    let parked = parked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let name = request.headers().get("x-park").map(|name| name.to_str().unwrap().to_owned());
        let (tell, told) = oneshot::channel();
        let wait = name.map(|name| parked.lock().unwrap().insert(name, tell));
        async move {
            if wait.is_some() {
                let _ = told.await;
            }
            let mut response = Response::new(Body::from(Bytes::from_static(b"{\"ok\":true}")));
            response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let upstream = Upstream::Local(LocalService::new(service));
    ShardOptions { name: "root".into(), seats: 16, upstream, observers: Some(observers) }
}

struct Replay {
    gateway: Gateway,
    gate: Arc<Gate>,
    clock: Arc<WallClock>,
    _watches: Vec<WatchGuard>,
    parked: Parked,
    waiting: HashMap<String, JoinHandle<Answer>>,
    uids: BTreeMap<String, String>,
    /// By UID of the level.
    retries: BTreeMap<String, RetryAfter>,
}

fn options(vectors: &Value, shard: ShardOptions) -> GatewayOptions {
    // Not from a file: the catch-all of the vectors is smaller than the one that a file must have.
    let config = FairnessConfig {
        flow_schemas: serde_json::from_value(vectors["flowSchemas"].clone()).unwrap(),
        priority_levels: serde_json::from_value(vectors["priorityLevels"].clone()).unwrap(),
        ..FairnessConfig::default()
    };
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    GatewayOptions {
        listener: listener(),
        tls: None,
        admin: listener(),
        workers: 1,
        anonymous: true,
        drop_groups: Vec::new(),
        shards: vec![shard],
        fairness: Some(config),
        compat: Compat::Upstream,
        healthy: None,
        directory: Directory::Static,
        limits: Limits::default(),
        access_log: None,
    }
}

fn watches(tracker: &Arc<WatchTracker>, vectors: &Value) -> Vec<WatchGuard> {
    let mut guards = Vec::new();
    for (resource, count) in vectors["watchCounts"].as_object().unwrap() {
        let path = format!("/api/v1/{resource}");
        let info = RequestInfo::parse("GET", &path, "watch=1").unwrap();
        let register = |_| tracker.register(Some(&workspace()), &info).unwrap();
        guards.extend((0..count.as_u64().unwrap()).map(register));
    }
    guards
}

impl Replay {
    async fn start(vectors: &Value) -> Self {
        let counts = Observers::new(observers::Options::default());
        let (feed, workspaces) = mpsc::channel(8);
        let number = |field: &str| vectors["objectCounts"][field].as_i64().unwrap();
        let source = Fixed(number("pods"), number("averageObjectSizeBytes"));
        tokio::spawn(counts.clone().run(source, workspaces, tokio_util::sync::CancellationToken::new()));
        feed.send(WorkspaceEvent::Appeared(workspace())).await.unwrap();
        until("counts", || {
            matches!(counts.counts(&workspace(), "", "pods", ""), Counts::Fresh { objects: 450, mean_bytes: 700 })
        })
        .await;
        let parked = Parked::default();
        let origin = OffsetDateTime::parse("2024-01-01T00:00:00Z", &Rfc3339).unwrap();
        let mut taken = None;
        let look = |core: &mut Core| {
            // Whom the tests speak through; every request says on whose behalf.
            let front = UserInfo::new("front", &["system:masters", "system:authenticated"]);
            let anonymous = Some(Arc::new(Identity::new(front, &[]).unwrap()));
            core.access.store(Arc::new(crate::core::Access { anonymous, drop_groups: Box::default() }));
            let gate = core.shards.get(0).unwrap().gate.clone().unwrap();
            taken = Some((gate, core.clock.clone(), watches(&core.watches, vectors)));
        };
        let options = options(vectors, shard(&parked, (counts, feed)));
        let gateway = Gateway::start_with(options, WallClock::at_rest(origin), look).unwrap();
        let (gate, clock, guards) = taken.unwrap();
        Self {
            gateway,
            gate,
            clock,
            _watches: guards,
            parked,
            waiting: HashMap::new(),
            uids: BTreeMap::new(),
            retries: BTreeMap::new(),
        }
    }

    /// Moves the clock, stopping where a tail ends. The adjustment comes only when the vectors say so: at the end.
    async fn advance(&self, to: &Value) {
        let origin = OffsetDateTime::parse("2024-01-01T00:00:00Z", &Rfc3339).unwrap();
        let to = OffsetDateTime::parse(to.as_str().unwrap(), &Rfc3339).unwrap() - origin;
        let to = u64::try_from(to.whole_nanoseconds()).unwrap();
        let now = fairness::Clock::now_ns(&*self.clock);
        let tail = self.gate.tick(now).filter(|at| (now + 1..to.min(10_000_000_000)).contains(at));
        for at in tail.into_iter().chain([to]) {
            self.clock.set(at);
            self.gate.tick(at);
            // Whoever was started has noticed before time goes on.
            until("all that run have reached the shard", || self.at_shard() == self.totals().0).await;
        }
    }

    fn at_shard(&self) -> u64 {
        self.parked.lock().unwrap().len() as u64
    }

    fn totals(&self) -> (u64, u64) {
        let flows = self.gate.level_stats().flows;
        let sum = |of: fn(&fairness::gate::FlowStats) -> u64| flows.iter().map(of).sum::<u64>();
        (sum(|f| f.executing_requests), sum(|f| f.waiting_requests))
    }

    fn send(&self, step: &Value, park: Option<&str>) -> JoinHandle<Answer> {
        let uri = step["uri"].as_str().unwrap();
        let timeout = if step["step"].as_str().unwrap().contains("timed out") { "?timeout=1s" } else { "" };
        let mut head =
            format!("{} /clusters/a{uri}{timeout} HTTP/1.1\r\nHost: a\r\n", step["method"].as_str().unwrap());
        head.push_str("Connection: close\r\nContent-Length: 0\r\n");
        head.push_str(&format!("Impersonate-User: {}\r\n", step["user"].as_str().unwrap()));
        for group in step["groups"].as_array().unwrap() {
            head.push_str(&format!("Impersonate-Group: {}\r\n", group.as_str().unwrap()));
        }
        park.iter().for_each(|name| head.push_str(&format!("X-Park: {name}\r\n")));
        tokio::spawn(fetch(self.gateway.address(), head + "\r\n"))
    }

    fn check(&mut self, got: &Answer, want: &Value, what: &str) {
        assert_eq!(
            (got.status, got.body.as_str()),
            (want["status"].as_u64().unwrap(), want["body"].as_str().unwrap()),
            "{what}"
        );
        let lower =
            |(name, value): (&String, &Value)| (name.to_ascii_lowercase(), value[0].as_str().unwrap().to_owned());
        let mut want: BTreeMap<_, _> = want["headers"].as_object().unwrap().iter().map(lower).collect();
        if let Some(seconds) = want.get("retry-after") {
            assert_eq!(seconds, "1", "{what}");
            let second = (1 << 32) + fairness::Clock::now_ns(&*self.clock) / 1_000_000_000;
            let level = want["x-kubernetes-pf-prioritylevel-uid"].clone();
            let answer = self.retries.entry(level).or_default().refused(second);
            want.insert("retry-after".to_owned(), answer.to_string());
        }
        for name in ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"] {
            if let (Some(uid), Some(ours)) = (want.get_mut(name), got.headers.get(name)) {
                *uid = self.uids.entry(uid.clone()).or_insert_with(|| ours.clone()).clone();
            }
        }
        assert_eq!(got.headers, want, "{what}");
    }

    async fn dump(&self, path: &str) -> Answer {
        let separator = if path.contains('?') { '&' } else { '?' };
        let head = format!("GET {path}{separator}workspace=a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        fetch(self.gateway.admin_address(), head).await
    }

    async fn dumps(&self, step: &Value) {
        for (path, want) in step["responses"].as_object().unwrap() {
            let got = self.dump(path).await;
            let (what, text) = (format!("{} {path}", step["step"]), want["body"].as_str().unwrap());
            let kind = want["headers"]["Content-Type"][0].as_str().unwrap();
            assert_eq!((got.status, got.headers["content-type"].as_str()), (200, kind), "{what}");
            if path.ends_with("dump_priority_levels") {
                assert_eq!(got.body, text, "{what}");
            } else {
                assert_eq!(got.body.lines().next(), text.lines().next(), "{what}");
                let rows = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
                let (mut got, mut want) = (rows(&got.body), rows(text));
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "{what}");
            }
        }
    }

    async fn step(&mut self, step: &Value) {
        let what = step["step"].as_str().unwrap();
        self.advance(&step["clock"]).await;
        if step.get("responses").is_some() {
            return self.dumps(step).await;
        }
        let released =
            what.strip_prefix("release parked request ").or_else(|| what.starts_with("m1 released").then_some("m1"));
        if let Some(name) = released {
            let before = self.gate.level_stats().flows.iter().map(|f| f.dispatched).sum::<u64>();
            let (executing, waiting) = self.totals();
            until("the shard has it", || self.parked.lock().unwrap().contains_key(name)).await;
            self.parked.lock().unwrap().remove(name).unwrap().send(()).unwrap();
            let answer = self.waiting.remove(name).unwrap().await.unwrap();
            self.check(&answer, &step["response"], what);
            // Its seats are back, and whoever that started runs.
            let gate = &self.gate;
            let dispatched = || gate.level_stats().flows.iter().map(|f| f.dispatched).sum::<u64>() - before;
            until(what, || {
                let (now, started) = (self.totals(), dispatched());
                now.0 == executing + started - 1 && now.1 + started == waiting && self.at_shard() == now.0
            })
            .await;
            return;
        }
        let park = what.strip_prefix("parked request ").map(|name| name.split(' ').next().unwrap());
        let sent = self.send(step, park);
        match step.get("state") {
            None => {
                let answer = sent.await.unwrap();
                self.check(&answer, &step["response"], what);
            }
            Some(state) => {
                let want = (step["executingAfter"].as_u64().unwrap(), step["waitingAfter"].as_u64().unwrap());
                until(what, || self.totals() == want).await;
                let runs = state == "executing";
                let name = park.unwrap();
                if runs {
                    until(what, || self.parked.lock().unwrap().contains_key(name)).await;
                }
                assert_eq!(self.parked.lock().unwrap().contains_key(name), runs, "{what}");
                self.waiting.insert(name.to_owned(), sent);
            }
        }
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// By name and labels.
type Series = BTreeMap<(String, BTreeSet<String>), f64>;

/// Type of each name, and value of each series.
fn parse(text: &str) -> (BTreeMap<String, String>, Series) {
    let (mut kinds, mut series) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            kinds.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') && !line.is_empty() {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.split_once('{').unwrap_or((name, "}"));
            let labels = labels.trim_end_matches('}').split(',').filter(|l| !l.is_empty()).map(str::to_owned).collect();
            series.insert((name.to_owned(), labels), value.parse().unwrap());
        }
    }
    (kinds, series)
}

#[tokio::test]
async fn the_gateway_answers_as_the_filter_of_kubernetes_does() {
    let text = std::fs::read_to_string(format!("{VECTORS}http_filter.json")).unwrap();
    let vectors: Value = serde_json::from_str(&text).unwrap();
    let mut replay = Replay::start(&vectors).await;
    let steps = vectors["steps"].as_array().unwrap();
    for step in steps {
        replay.step(step).await;
    }
    assert_eq!(steps.len(), 81);
    let distinct: BTreeSet<_> = replay.uids.values().collect();
    assert_eq!((replay.uids.len(), distinct.len()), (9, 9), "each object has a UID of its own");
    compare_metrics(&replay).await;
}

async fn compare_metrics(replay: &Replay) {
    let want = std::fs::read_to_string(format!("{VECTORS}metrics_exposition.txt")).unwrap();
    let ask = "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let got = fetch(replay.gateway.admin_address(), ask.to_owned()).await.body;
    let ((kinds, want), (our_kinds, ours)) = (parse(&want), parse(&got));
    let absent: BTreeSet<&str> = NOT_SERVED.iter().map(|(name, _)| *name).collect();
    let is_absent = |name: &str| {
        absent.iter().any(|a| {
            name == *a || name.strip_prefix(a).is_some_and(|rest| ["_bucket", "_sum", "_count"].contains(&rest))
        })
    };
    let mut faults = Vec::new();
    for (name, why) in NOT_SERVED {
        assert!(kinds.contains_key(name) && !our_kinds.contains_key(name) && !why.is_empty(), "{name}");
    }
    for (name, kind) in kinds.iter().filter(|(name, _)| !is_absent(name)) {
        if our_kinds.get(name) != Some(kind) {
            faults.push(format!("{name}: is {:?}, not {kind}", our_kinds.get(name)));
        }
    }
    // Upstream shows the target of some other level for this one.
    let random = |name: &str, labels: &BTreeSet<String>| {
        name == "apiserver_flowcontrol_target_seats" && labels.contains("priority_level=\"exempt\"")
    };
    let compared = want.iter().filter(|((name, labels), _)| !is_absent(name) && !random(name, labels));
    for ((name, labels), value) in compared {
        let late = LATE.iter().find(|(late, _)| late == name && *value > 30.0).map_or(0.0, |(_, seconds)| *seconds);
        let value = value + late;
        let ours = ours.get(&(name.clone(), labels.clone()));
        if !ours.is_some_and(|v| (v - value).abs() <= 1e-9 * value.abs()) {
            faults.push(format!("{name}{labels:?}: is {ours:?}, not {value}"));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
