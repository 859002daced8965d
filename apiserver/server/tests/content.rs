//! Bodies, patches, field validation.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use serde_json::{Value, json};
use support::{Client, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

#[tokio::test]
async fn yaml_bodies_and_none_at_all() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\ndata:\n  answer: \"yes\"\n";
    let created = one.send("POST", MAPS, "application/yaml", yaml).await;
    assert_eq!(created.ok()["data"], json!({"answer": "yes"}));
    // In YAML 1.2 a bare `yes` is text; what is no text is refused, never converted.
    let wrong =
        one.send("POST", MAPS, "application/yaml", yaml.replace("\"yes\"", "true").replace("name: y", "name: z")).await;
    assert_eq!(wrong.code, 400);
    one.send("POST", MAPS, "", json!({"metadata": {"name": "untyped"}}).to_string()).await.ok();
    assert_eq!(one.send("POST", MAPS, "application/json", "").await.code, 400);
    assert_eq!(one.send("POST", MAPS, "text/plain", "x").await.refusal().1, "UnsupportedMediaType");
    let other =
        one.post(MAPS, &json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}})).await.refusal();
    assert!(
        other.0 == 400 && other.2.starts_with("Secret in version \"v1\" cannot be handled as a ConfigMap"),
        "{other:?}"
    );
}

#[tokio::test]
async fn protobuf_bodies() {
    let server = server().await;
    let one = Client::new(&server, "one");
    // k8s\0, Unknown{typeMeta{v1, Namespace}, raw: Namespace{metadata{name: "pb"}}}: what kubectl 1.32 sends.
    let raw = b"\x0a\x04\x0a\x02pb";
    let mut body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12".to_vec();
    body.push(raw.len() as u8);
    body.extend_from_slice(raw);
    let created = one
        .wants("application/vnd.kubernetes.protobuf,application/json")
        .send("POST", "/api/v1/namespaces", "application/vnd.kubernetes.protobuf", body)
        .await;
    assert_eq!(
        (created.code, &created.headers["content-type"]),
        (201, &"application/vnd.kubernetes.protobuf".parse().unwrap())
    );
    assert_eq!(one.get("/api/v1/namespaces/pb").await.ok()["metadata"]["name"], "pb");
    let garbage = one.send("POST", MAPS, "application/vnd.kubernetes.protobuf", "junk").await;
    assert_eq!(garbage.code, 400);
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    assert_eq!(one.send("POST", workspaces, "application/vnd.kubernetes.protobuf", "k8s\0").await.code, 415);
}

#[tokio::test]
async fn fields_that_nobody_knows() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let body = json!({"metadata": {"name": "a"}, "bogus": 1});
    let strict = one.post(&format!("{MAPS}?fieldValidation=Strict"), &body).await.refusal();
    assert_eq!(strict, (400, "BadRequest".into(), "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"bogus\"".into()));
    let warned = one.post(MAPS, &body).await;
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"bogus\\\"\"");
    assert_eq!(warned.ok().get("bogus"), None);
    let silent = one.merge(&format!("{MAPS}/a?fieldValidation=Ignore"), &json!({"bogus": 2})).await;
    assert!(silent.ok().get("bogus").is_none() && !silent.headers.contains_key("warning"));
    assert_eq!(one.merge(&format!("{MAPS}/a?fieldValidation=Strict"), &json!({"bogus": 2})).await.code, 422);
    for (query, text) in
        [("fieldValidation=Foo", "fieldValidation: Unsupported value"), ("dryRun=Foo", "dryRun: Unsupported value")]
    {
        let refused = one.post(&format!("{MAPS}?{query}"), &body).await.refusal();
        assert!(refused.0 == 422 && refused.2.contains(text), "{refused:?}");
    }
    let long = "a".repeat(129);
    assert_eq!(one.post(&format!("{MAPS}?fieldManager={long}"), &body).await.refusal().0, 422);
}

#[tokio::test]
async fn three_kinds_of_patches() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.post(MAPS, &json!({"metadata": {"name": "a", "finalizers": ["a.dev/x"]}, "data": {"k": "v", "l": "w"}}))
        .await
        .ok();
    let item = format!("{MAPS}/a");
    let patch = |kind: &'static str, body: Value| {
        let (one, item) = (one.clone(), item.clone());
        async move { one.send("PATCH", &item, kind, body.to_string()).await }
    };
    assert_eq!(patch(MERGE, json!({"data": {"k": null, "m": "x"}})).await.ok()["data"], json!({"l": "w", "m": "x"}));
    let tested =
        json!([{"op": "test", "path": "/data/l", "value": "w"}, {"op": "replace", "path": "/data/l", "value": "z"}]);
    assert_eq!(patch(JSON_PATCH, tested.clone()).await.ok()["data"]["l"], "z");
    let failed = patch(JSON_PATCH, tested).await.refusal();
    assert_eq!(
        failed,
        (422, "Invalid".into(), "the server rejected our request due to an error in our request".into())
    );
    let strategic = json!({"metadata": {"finalizers": ["a.dev/y"], "$setElementOrder/finalizers": ["a.dev/x", "a.dev/y"]}, "data": {"$patch": "replace", "n": "1"}});
    let merged = patch(STRATEGIC, strategic).await.ok();
    assert_eq!(
        (&merged["metadata"]["finalizers"], &merged["data"]),
        (&json!(["a.dev/x", "a.dev/y"]), &json!({"n": "1"}))
    );
    for (kind, body, code) in [
        (MERGE, json!([]), 400),
        (JSON_PATCH, json!({}), 400),
        (JSON_PATCH, json!([{"op": "remove", "path": "/data/none"}]), 422),
        (MERGE, json!({"data": {"k": 5}}), 422),
        (MERGE, json!({"metadata": {"name": "b"}}), 400),
        (MERGE, json!({"metadata": {"labels": {"a": "not a label!"}}}), 422),
        ("application/json", json!({}), 415),
        ("application/apply-patch+cbor", json!({}), 415),
    ] {
        assert_eq!(patch(kind, body.clone()).await.refusal().0, code, "{kind} {body}");
    }
    let missing = one.merge(&format!("{MAPS}/none"), &json!({})).await.refusal();
    assert_eq!(missing.2, "configmaps \"none\" not found");
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces/x";
    assert_eq!(one.send("PATCH", workspaces, STRATEGIC, "{}").await.code, 415);
}

#[tokio::test]
async fn puts_that_create_and_deletes_of_collections() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let body = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}});
    assert_eq!(one.put(lease, &body).await.code, 201);
    assert_eq!(one.put(lease, &body).await.code, 200);
    assert_eq!(one.put("/apis/coordination.k8s.io/v1/namespaces/default/leases/other", &body).await.code, 400);
    assert_eq!(one.put(&format!("{MAPS}/none"), &json!({"metadata": {"name": "none"}})).await.code, 404);
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        one.post(MAPS, &json!({"metadata": {"name": name, "labels": {"l": label}}})).await.ok();
    }
    let dry = one.delete(&format!("{MAPS}?dryRun=All")).await.ok();
    assert_eq!((&dry["kind"], dry["items"].as_array().unwrap().len()), (&json!("ConfigMapList"), 3));
    let gone = one.delete(&format!("{MAPS}?labelSelector=l%3Dx")).await.ok();
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    let left = one.get(MAPS).await.ok();
    assert_eq!((left["items"].as_array().unwrap().len(), &left["items"][0]["metadata"]["name"]), (1, &json!("b")));
    let bad = one.delete(&format!("{MAPS}/b?propagationPolicy=Foo")).await.refusal();
    assert_eq!(bad.0, 422);
}
