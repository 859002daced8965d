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
