//! Access reviews say what the server would do.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use serde_json::{Value, json};
use support::{Client, server};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

async fn may(client: &Client, spec: Value) -> bool {
    let answer = client.post(&format!("{REVIEWS}/selfsubjectaccessreviews"), &json!({ "spec": spec })).await;
    assert_eq!(answer.code, 201);
    answer.json()["status"]["allowed"].as_bool().unwrap()
}

#[tokio::test]
async fn about_oneself() {
    let server = server().await;
    let admin = Client::new(&server, "one").user("ann", &["system:kcp:admin", "system:authenticated"]);
    let other = admin.user("bob", &["system:authenticated"]);
    let maps = json!({"resourceAttributes": {"verb": "list", "resource": "configmaps", "namespace": "default"}});
    let odd = json!({"resourceAttributes": {"verb": "escalate", "group": "x.dev", "resource": "y"}});
    for (spec, of_admin, of_other) in [
        (maps, true, false),
        (odd, true, false),
        (json!({"nonResourceAttributes": {"verb": "get", "path": "/apis/tenancy.kcp.io"}}), true, true),
        (json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}), true, false),
        (
            json!({"resourceAttributes": {"verb": "create", "group": "authentication.k8s.io", "resource": "selfsubjectreviews"}}),
            true,
            true,
        ),
    ] {
        assert_eq!((may(&admin, spec.clone()).await, may(&other, spec.clone()).await), (of_admin, of_other), "{spec}");
    }
    // What it says is what happens.
    assert_eq!(other.get("/api/v1/namespaces/default/configmaps").await.code, 403);
    assert_eq!(other.get("/apis/tenancy.kcp.io").await.code, 200);
    let path = format!("{REVIEWS}/selfsubjectrulesreviews");
    let all = admin.post(&path, &json!({"spec": {"namespace": "default"}})).await.ok();
    assert_eq!(all["status"]["resourceRules"][0]["verbs"], json!(["*"]));
    let few = other.post(&path, &json!({"spec": {"namespace": "default"}})).await.ok();
    assert_eq!(few["status"]["resourceRules"][0]["resources"], json!(["selfsubjectreviews"]));
    assert_eq!(other.post(&path, &json!({})).await.code, 400);
}

#[tokio::test]
async fn about_others() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let spec = |groups: Value| {
        json!({"spec": {"user": "eve", "groups": groups,
            "resourceAttributes": {"verb": "delete", "resource": "secrets", "namespace": "default"}}})
    };
    for path in ["subjectaccessreviews", "namespaces/default/localsubjectaccessreviews"] {
        let path = format!("{REVIEWS}/{path}");
        for (groups, allowed) in [(json!(["system:kcp:admin"]), true), (json!(["devs"]), false)] {
            let answer = one.post(&path, &spec(groups)).await;
            assert_eq!((answer.code, &answer.json()["status"]["allowed"]), (201, &json!(allowed)), "{path}");
        }
        let bob = one.user("bob", &["system:authenticated"]);
        assert_eq!(bob.post(&path, &spec(json!([]))).await.code, 403, "{path}");
    }
    let elsewhere = one.post(&format!("{REVIEWS}/namespaces/two/localsubjectaccessreviews"), &spec(json!([]))).await;
    assert!(elsewhere.refusal().2.contains("must match metadata.namespace"));
}

#[tokio::test]
async fn what_asks_nothing() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let both = json!({"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"verb": "get", "path": "/"}});
    for (path, spec, want) in [
        ("selfsubjectaccessreviews", json!({}), "spec.resourceAttributes: Invalid value: null: exactly one of"),
        ("selfsubjectaccessreviews", both, "cannot be specified in combination with resourceAttributes"),
        ("subjectaccessreviews", json!({"resourceAttributes": {"verb": "get"}}), "at least one of user or group"),
        (
            "namespaces/default/localsubjectaccessreviews",
            json!({"user": "a", "nonResourceAttributes": {"verb": "get", "path": "/"}}),
            "disallowed on this kind of request",
        ),
    ] {
        let (code, _, message) = one.post(&format!("{REVIEWS}/{path}"), &json!({ "spec": spec })).await.refusal();
        assert!(code == 422 && message.contains(want), "{code} {message}");
    }
}

/// Series of `/metrics` that begin with this.
fn series<'a>(text: &'a str, begins: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(begins)).collect()
}

#[tokio::test]
async fn metrics_have_upstreams_names_and_no_cluster() {
    let server = server().await;
    let one = Client::new(&server, "one");
    for name in ["a", "b"] {
        one.map(name, "v").await;
    }
    let list = one.get("/api/v1/namespaces/default/configmaps").await;
    one.get("/api/v1/namespaces/default/configmaps/none").await;
    let mut watch = one.watch("/api/v1/configmaps?watch=1").await;
    watch.event().await.unwrap();
    let bare = Client { prefix: String::new(), ..one.clone() };
    let answer = bare.get("/metrics").await;
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
    let of_maps = |scope: &str, verb: &str| {
        let scope = format!("scope=\"{scope}\",subresource=\"\",verb=\"{verb}\"");
        format!("group=\"\",resource=\"configmaps\",{scope},version=\"v1\"")
    };
    let total = |code: u16, scope: &str, verb: &str| {
        format!("apiserver_request_total{{code=\"{code}\",dry_run=\"\",{}}}", of_maps(scope, verb))
    };
    let lists = of_maps("namespace", "LIST");
    for (begins, value) in [
        (total(200, "namespace", "LIST"), "1".to_owned()),
        (total(404, "resource", "GET"), "1".into()),
        (total(201, "resource", "POST"), "2".into()),
        (format!("apiserver_request_duration_seconds_bucket{{dry_run=\"\",{lists},le=\"+Inf\"}}"), "1".into()),
        (format!("apiserver_response_sizes_sum{{{lists}}}"), list.bytes.len().to_string()),
        (format!("apiserver_longrunning_requests{{{}}}", of_maps("cluster", "WATCH")), "1".into()),
        ("apiserver_current_inflight_requests{request_kind=\"readOnly\"}".into(), "1".into()),
        ("apiserver_current_inflight_requests{request_kind=\"mutating\"}".into(), "0".into()),
        ("apiserver_watch_events_total{group=\"\",resource=\"configmaps\",version=\"v1\"}".into(), "2".into()),
        ("apiserver_resource_objects{group=\"\",resource=\"configmaps\"}".into(), "2".into()),
        ("apiserver_storage_objects{resource=\"leases.coordination.k8s.io\"}".into(), "0".into()),
    ] {
        assert_eq!(series(&text, &begins), [format!("{begins} {value}")], "{text}");
    }
    assert!(!text.contains("one\""), "{text}");
    // Every family says what it is before its first line.
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        assert_eq!(series(&text, &format!("# TYPE {family} ")).len(), 1, "{line}");
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
    drop(watch);
    let text = String::from_utf8(bare.get("/metrics").await.bytes.to_vec()).unwrap();
    let ended = series(&text, "apiserver_longrunning_requests{");
    assert!(!ended.is_empty() && ended.iter().all(|line| line.ends_with(" 0")), "{ended:?}");
    assert_eq!(bare.user("alice", &["system:authenticated"]).get("/metrics").await.code, 403);
    assert_eq!(bare.post("/metrics", &json!({})).await.code, 405);
}
