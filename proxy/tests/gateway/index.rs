//! The index of workspaces, fed by shards that speak kcp's API.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::*;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use observers::WorkspaceEvent;
use proxy::{Body, Directory, Gateway, GatewayOptions, Limits, ShardOptions};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// A shard of kcp: two kinds of objects, lists in pages of one, watches that the test writes.
#[derive(Clone, Default)]
struct Kcp(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    items: HashMap<&'static str, Vec<Value>>,
    watches: HashMap<&'static str, mpsc::UnboundedSender<Bytes>>,
    lists: usize,
    /// What lists of a kind are answered instead.
    broken: HashMap<&'static str, (StatusCode, String)>,
    seen: Seen,
}

const CLUSTERS: &str = "LogicalCluster";
const WORKSPACES: &str = "Workspace";

fn cluster(name: &str) -> Value {
    json!({ "metadata": { "name": "cluster", "annotations": { "kcp.io/cluster": name }, "resourceVersion": "5" } })
}

fn workspace(parent: &str, name: &str, phase: &str, cluster: &str) -> Value {
    json!({
        "metadata": { "name": name, "annotations": { "kcp.io/cluster": parent }, "resourceVersion": "6" },
        "spec": { "cluster": cluster },
        "status": { "phase": phase },
    })
}

impl Kcp {
    fn with(clusters: Vec<Value>, workspaces: Vec<Value>) -> Self {
        let kcp = Self::default();
        kcp.0.lock().unwrap().items.extend([(CLUSTERS, clusters), (WORKSPACES, workspaces)]);
        kcp
    }

    fn shard(&self, name: &str) -> ShardOptions {
        let kcp = self.clone();
        ShardOptions { name: name.into(), ..local(move |request| std::future::ready(kcp.answer(request))) }
    }

    fn answer(&self, request: Request<Body>) -> Response<Body> {
        let mut state = self.0.lock().unwrap();
        let kind = match request.uri().path() {
            "/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters" => CLUSTERS,
            "/clusters/*/apis/tenancy.kcp.io/v1alpha1/workspaces" => WORKSPACES,
            _ => {
                state.seen.push(request.into_parts().0);
                return ok("ok");
            }
        };
        assert_eq!(request.headers()["x-remote-group"], "system:masters");
        let query = request.uri().query().unwrap();
        if query.contains("watch=true") {
            assert!(query.contains("resourceVersion=7") && query.contains("allowWatchBookmarks=true"), "{query}");
            let (sender, body) = channel();
            state.watches.insert(kind, sender);
            return Response::new(body);
        }
        if let Some((code, body)) = state.broken.get(kind) {
            let mut response = ok(body.clone());
            *response.status_mut() = *code;
            return response;
        }
        let items = state.items.get(kind).cloned().unwrap_or_default();
        let at = query.split("continue=").nth(1).map_or(0, |n| n.parse().unwrap());
        state.lists += usize::from(at == 0);
        let more = if at + 1 < items.len() { (at + 1).to_string() } else { String::new() };
        let page: Vec<_> = items.iter().skip(at).take(1).collect();
        let metadata = json!({ "resourceVersion": "7", "continue": more });
        ok(json!({ "kind": format!("{kind}List"), "metadata": metadata, "items": page }).to_string())
    }

    async fn event(&self, kind: &'static str, event: &str, object: Value) {
        let line = format!("{}\n", json!({ "type": event, "object": object }));
        eventually("the watch is open", || self.0.lock().unwrap().watches.contains_key(kind)).await;
        self.0.lock().unwrap().watches[kind].send(line.into()).unwrap();
    }
}

fn watching(shards: Vec<ShardOptions>) -> GatewayOptions {
    GatewayOptions { directory: Directory::Watch, ..options(shards) }
}

async fn status(gateway: &Gateway, path: &str) -> StatusCode {
    once(gateway, get(path)).await.0
}

/// Asks until the answer is as wanted.
async fn becomes(gateway: &Gateway, path: &str, want: StatusCode) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let got = status(gateway, path).await;
        if got == want {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{path} stays {got}, not {want}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An answer that is no list says nothing about what there is: nothing is refused for certain, and what the shard had to say is
/// shown.
#[tokio::test]
async fn a_list_that_cannot_be_used_fills_no_index() {
    let kcp = Kcp::with(vec![cluster("root"), cluster("one")], vec![workspace("root", "org", "Ready", "one")]);
    let other = Kcp::with(vec![cluster("two")], vec![]);
    let message = format!("workspaces is forbidden: {}", "x".repeat(1000));
    let forbidden = json!({ "kind": "Status", "message": message }).to_string();
    kcp.0.lock().unwrap().broken.insert(WORKSPACES, (StatusCode::OK, "<html>".into()));
    other.0.lock().unwrap().broken.insert(WORKSPACES, (StatusCode::FORBIDDEN, forbidden));
    let gateway = Gateway::start(watching(vec![kcp.shard("root"), other.shard("amber")])).unwrap();
    let shown = async |line: &str| {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let text = admin(&gateway, "/readyz?verbose").await;
            if text.contains(line) {
                return text;
            }
            assert!(std::time::Instant::now() < deadline, "no {line} in {text}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let path = "/clusters/*/apis/tenancy.kcp.io/v1alpha1/workspaces";
    shown(&format!("its answer to the list of {path} is none: ")).await;
    let text =
        shown(&format!("the list of {path} as system:fairgate is answered 403 Forbidden: \"workspaces is")).await;
    assert!(text.contains("shards[].tls.clientCertificateFile") && text.len() < 1500, "{text}");
    for path in ["/clusters/root:org/api", "/clusters/root:none/api"] {
        assert_eq!(status(&gateway, path).await, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    let metrics = admin(&gateway, "/metrics").await;
    assert!(metrics.contains("fairgate_index_synced{shard=\"root\"} 0"), "{metrics}");
    kcp.0.lock().unwrap().broken.clear();
    other.0.lock().unwrap().broken.clear();
    becomes(&gateway, "/clusters/root:org/api", StatusCode::OK).await;
    becomes(&gateway, "/clusters/root:none/api", StatusCode::FORBIDDEN).await;
    shown("[+]shard/root ok\n[+]shard/amber ok").await;
}

#[tokio::test]
async fn workspaces_come_move_and_go() {
    let kcp = Kcp::with(
        vec![cluster("root"), cluster("one"), cluster("two")],
        vec![workspace("root", "org", "Ready", "one"), workspace("one", "team", "Ready", "two")],
    );
    let (feed, mut events) = mpsc::channel(100);
    let observers = observers::Observers::new(observers::Options::default());
    let shard = ShardOptions { observers: Some((observers, feed)), ..kcp.shard("root") };
    let gateway = Gateway::start(watching(vec![shard])).unwrap();
    gateway.ready().await;
    becomes(&gateway, "/clusters/root:org:team/api/v1/pods?a=b", StatusCode::OK).await;
    let seen = kcp.0.lock().unwrap().seen.clone();
    let parts = seen.take().pop().unwrap();
    assert_eq!(parts.uri.to_string(), "/clusters/two/api/v1/pods?a=b");
    assert_eq!(parts.headers["x-forwarded-prefix"], "/clusters/root:org:team");
    assert_eq!(status(&gateway, "/clusters/root:new").await, StatusCode::FORBIDDEN);

    kcp.event(CLUSTERS, "ADDED", cluster("three")).await;
    kcp.event(WORKSPACES, "ADDED", workspace("root", "new", "Scheduling", "")).await;
    becomes(&gateway, "/clusters/root:new", StatusCode::SERVICE_UNAVAILABLE).await;
    kcp.event(WORKSPACES, "MODIFIED", workspace("root", "new", "Initializing", "three")).await;
    becomes(&gateway, "/clusters/root:new", StatusCode::OK).await;
    kcp.event(WORKSPACES, "MODIFIED", workspace("root", "new", "Unavailable", "three")).await;
    becomes(&gateway, "/clusters/root:new", StatusCode::SERVICE_UNAVAILABLE).await;
    kcp.event(CLUSTERS, "BOOKMARK", json!({ "metadata": { "resourceVersion": "8" } })).await;
    kcp.event(WORKSPACES, "DELETED", workspace("root", "new", "Ready", "three")).await;
    becomes(&gateway, "/clusters/root:new", StatusCode::FORBIDDEN).await;
    assert_eq!(status(&gateway, "/clusters/three").await, StatusCode::OK);
    kcp.event(CLUSTERS, "DELETED", cluster("three")).await;
    becomes(&gateway, "/clusters/three", StatusCode::FORBIDDEN).await;

    let mut told = Vec::new();
    while told.len() < 5 {
        told.push(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap());
    }
    let name = |n: &str| n.parse().unwrap();
    let appeared = ["root", "one", "two", "three"].map(|n| WorkspaceEvent::Appeared(name(n)));
    assert_eq!(told[..4], appeared);
    assert_eq!(told[4], WorkspaceEvent::Disappeared(name("three")));
}

#[tokio::test]
async fn an_expired_watch_leads_to_a_new_list() {
    let kcp = Kcp::with(vec![cluster("root"), cluster("old")], Vec::new());
    let gateway = Gateway::start(watching(vec![kcp.shard("root")])).unwrap();
    gateway.ready().await;
    becomes(&gateway, "/clusters/old/api", StatusCode::OK).await;
    kcp.0.lock().unwrap().items.insert(CLUSTERS, vec![cluster("root"), cluster("new")]);
    kcp.event(CLUSTERS, "ERROR", json!({ "kind": "Status", "status": "Failure", "code": 410 })).await;
    becomes(&gateway, "/clusters/old/api", StatusCode::FORBIDDEN).await;
    becomes(&gateway, "/clusters/new/api", StatusCode::OK).await;
    assert!(kcp.0.lock().unwrap().lists >= 3);
}

/// A request may come a moment before the index learns of its workspace.
#[tokio::test]
async fn a_request_waits_a_moment_for_a_new_workspace() {
    let kcp = Kcp::with(vec![cluster("root")], Vec::new());
    let limits = Limits { lookup_wait: PATIENCE, ..Limits::default() };
    let gateway = Gateway::start(GatewayOptions { limits, ..watching(vec![kcp.shard("root")]) }).unwrap();
    gateway.ready().await;
    let mut client = h1(&gateway).await;
    let asking = tokio::spawn(async move { client.send_request(get("/clusters/new/api")).await.unwrap().status() });
    kcp.event(CLUSTERS, "ADDED", cluster("other")).await;
    kcp.event(CLUSTERS, "ADDED", cluster("new")).await;
    assert_eq!(asking.await.unwrap(), StatusCode::OK);
}

#[tokio::test]
async fn nothing_is_forbidden_while_a_shard_has_not_spoken() {
    let kcp = Kcp::with(vec![cluster("root")], Vec::new());
    let free = listener();
    let down = ShardOptions { name: "down".into(), ..remote(free.local_addr().unwrap()) };
    drop(free);
    let gateway = Gateway::start(watching(vec![kcp.shard("root"), down])).unwrap();
    gateway.ready().await;
    becomes(&gateway, "/clusters/root/api", StatusCode::OK).await;
    let (status, headers, _) = once(&gateway, get("/clusters/elsewhere/api")).await;
    assert_eq!((status, headers["retry-after"].as_bytes()), (StatusCode::SERVICE_UNAVAILABLE, &b"1"[..]));
}

/// The logical cluster of a workspace is there before the workspace has its labels, and both before anybody sends a request.
#[tokio::test]
async fn seats_are_kept_for_a_workspace_as_soon_as_its_label_says_so() {
    let text = "apiVersion: fairgate.dev/v1alpha1\nkind: WorkspaceClass\nmetadata: { name: gold }\n\
                spec: { match: { labels: { tier: gold } }, seats: 4 }\n";
    let gold = || config::FairnessConfig::parse(text, std::path::Path::new("fairness.yaml")).unwrap();
    let labelled = |labels: Value| {
        let mut object = workspace("root", "one", "Ready", "cluster-one");
        object["metadata"]["labels"] = labels;
        object
    };
    for compat in [config::Compat::Fairgate, config::Compat::Upstream] {
        let kcp = Kcp::with(vec![cluster("root"), cluster("cluster-one")], vec![labelled(json!({}))]);
        let options = GatewayOptions { compat, fairness: Some(gold()), ..watching(vec![kcp.shard("root")]) };
        let gateway = Gateway::start(options).unwrap();
        gateway.ready().await;
        for (labels, kept) in [(json!({ "tier": "gold" }), true), (json!({}), false), (json!({ "tier": "gold" }), true)]
        {
            kcp.event(WORKSPACES, "MODIFIED", labelled(labels)).await;
            let path = "/debug/api_priority_and_fairness/dump_priority_levels?workspace=*";
            let deadline = std::time::Instant::now() + PATIENCE;
            while admin(&gateway, path).await.contains("cluster-one") != kept {
                assert!(std::time::Instant::now() < deadline, "{compat:?}: should it be kept: {kept}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// Names that clients make up do not get shares without end.
#[tokio::test]
async fn invented_names_share_a_node_where_nobody_says_which_workspaces_there_are() {
    let not_found = |_: Request<Body>| async {
        let mut response = ok("{}");
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    };
    let fairness = Some(config::FairnessConfig::default());
    // Kubernetes' rules keep a node for ten minutes, and leave levels of a small workspace without seats for the first ten
    // seconds: these are not small.
    let shard = ShardOptions { seats: 100_000, ..local(not_found) };
    let compat = config::Compat::Upstream;
    let gateway = Gateway::start(GatewayOptions { fairness, compat, ..watching(vec![shard]) }).unwrap();
    gateway.ready().await;
    let mut client = h1(&gateway).await;
    for n in 0..400 {
        let response = client.send_request(get(&format!("/clusters/made-up-{n}/api"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        text(response.into_body()).await;
        client.ready().await.unwrap();
    }
    // With the platform's, and the one that they share.
    assert_eq!(metric(&gateway, "fairgate_shard_active_workspaces").await, 258.0);
}

/// A plain kube-apiserver, or anything else that has no logical clusters.
#[tokio::test]
async fn a_single_shard_without_logical_clusters_serves_every_path() {
    let not_found = |_: Request<Body>| async {
        let mut response = ok("{}");
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    };
    let config_map = |_: Request<Body>| async { ok(r#"{"kind":"ConfigMap","metadata":{"name":"sample"}}"#) };
    for (shard, want) in [(local(not_found), StatusCode::NOT_FOUND), (local(config_map), StatusCode::OK)] {
        let gateway = Gateway::start(watching(vec![shard])).unwrap();
        gateway.ready().await;
        let (status, _, body) = once(&gateway, get("/clusters/root:bench/api/v1/namespaces/n/configmaps/sample")).await;
        assert_eq!(status, want);
        assert!(body.starts_with('{'), "{body}");
    }
}

/// Every case of the vectors with a URL, through the door.
#[tokio::test]
async fn urls_lead_where_kcp_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/kcp/path-lookup.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let fixture = &vectors["fixture"];
    let seen = Seen::default();
    let shards = fixture["shards"].as_object().unwrap().keys().map(|shard| {
        let clusters = fixture["logicalClusters"][shard].as_array().unwrap().iter();
        let workspaces = fixture["workspaces"].as_array().unwrap().iter().filter(|w| w["shard"] == **shard);
        let kcp = Kcp::with(
            clusters.map(|c| cluster(c.as_str().unwrap())).collect(),
            workspaces
                .map(|w| {
                    let text = |key: &str| w[key].as_str().unwrap();
                    let mut object = workspace(text("cluster"), text("name"), text("phase"), text("specCluster"));
                    if w["mount"] == true {
                        object["spec"]["mount"] = json!({ "ref": {} });
                        object["spec"]["URL"] = w["url"].clone();
                    }
                    object
                })
                .collect(),
        );
        kcp.0.lock().unwrap().seen = seen.clone();
        kcp.shard(shard)
    });
    let gateway = Gateway::start(watching(shards.collect())).unwrap();
    becomes(&gateway, "/clusters/kid/api", StatusCode::OK).await;
    becomes(&gateway, "/clusters/root:org:rh/apis", StatusCode::OK).await;
    becomes(&gateway, "/clusters/nosuch/api", StatusCode::FORBIDDEN).await;
    seen.take();
    let mut cases = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let Some(url) = case["url"].as_str() else { continue };
        cases += 1;
        let expect = &case["expect"];
        let got = status(&gateway, url).await.as_u16();
        if expect["target"].as_str().is_some_and(|t| t.starts_with("https://kcp.example/")) {
            // Differs on purpose: "/clusters/root:mnt/..." is found, but mounted workspaces are not served yet.
            assert_eq!((got, url), (501, "/clusters/root:mnt/api/v1/pods"));
        } else if url.starts_with("/clusters/root:pending") {
            // Differs on purpose: kcp answers 403, which clients take for good (kcp issue 3811).
            assert_eq!((got, &expect["status"]), (503, &json!(403)), "{url}");
        } else if expect["status"].is_null() {
            assert_eq!(got, 200, "{url}");
            let target = expect["target"].as_str().unwrap();
            let base = fixture["shards"][expect["shard"].as_str().unwrap()].as_str().unwrap().trim_end_matches('/');
            let parts = seen.take().pop().unwrap();
            assert_eq!(format!("{base}{}", parts.uri), target);
        } else {
            assert_eq!(got, expect["status"], "{url}");
        }
    }
    assert_eq!(cases, 12);
}

/// A watch that breaks goes on where it broke, and one that ends at once is not asked for again at full speed.
#[tokio::test]
async fn a_watch_goes_on_where_it_ended_and_not_in_a_hot_loop() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let shard = local(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let is_clusters = request.uri().path().ends_with("/logicalclusters");
        let answer = match query.split("resourceVersion=").nth(1) {
            None if is_clusters => ok(r#"{"kind":"LogicalClusterList","metadata":{"resourceVersion":"1"},"items":[]}"#),
            Some(from) => {
                let from: usize = from.parse().unwrap();
                noted.lock().unwrap().push((from, std::time::Instant::now()));
                let event = json!({ "metadata": { "resourceVersion": (from + 1).to_string() } });
                let line = format!("{}\n", json!({ "type": "BOOKMARK", "object": event }));
                // Every second watch breaks, the others end in good order.
                let end = if from.is_multiple_of(2) { Ok(Bytes::new()) } else { Err(std::io::Error::other("broken")) };
                let parts = [Ok(Bytes::from(line)), end].map(|part| part.map(http_body::Frame::data));
                Response::new(Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(parts))))
            }
            None => {
                let mut none = ok("{}");
                *none.status_mut() = StatusCode::NOT_FOUND;
                none
            }
        };
        std::future::ready(answer)
    });
    let _gateway = Gateway::start(watching(vec![shard])).unwrap();
    eventually("the watch is asked for again", || asked.lock().unwrap().len() >= 5).await;
    let asked = asked.lock().unwrap();
    assert_eq!(asked.iter().take(5).map(|(from, _)| *from).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    // At least half of 100, 200, 400 and 800 ms.
    assert!(asked[4].1 - asked[0].1 >= Duration::from_millis(750), "{asked:?}");
}

/// A shard without logical clusters is asked on: it is shown when it goes, and when it is there again.
#[tokio::test]
async fn a_shard_that_is_not_followed_is_known_to_be_there_or_not() {
    let up = Arc::new(AtomicBool::new(true));
    let is_up = up.clone();
    let shard = local(move |request: Request<Body>| {
        let code = match request.uri().path() {
            _ if !is_up.load(SeqCst) => StatusCode::SERVICE_UNAVAILABLE,
            path if path.starts_with("/clusters/*/apis") => StatusCode::NOT_FOUND,
            _ => StatusCode::OK,
        };
        let mut response = ok("{}");
        *response.status_mut() = code;
        std::future::ready(response)
    });
    let gateway = Gateway::start(watching(vec![shard])).unwrap();
    becomes(&gateway, "/clusters/a/x", StatusCode::OK).await;
    let reachable = r#"fairgate_shard_reachable{shard="root"}"#;
    metric_becomes(&gateway, reachable, 1.0).await;
    for is_up in [false, true] {
        up.store(is_up, SeqCst);
        metric_becomes(&gateway, reachable, f64::from(u8::from(is_up))).await;
    }
}
