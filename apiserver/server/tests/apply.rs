//! Server-side apply and `managedFields` through the whole server.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use serde_json::{Value, json};
use support::{Answer, Client, PARTIAL, meta, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

async fn apply(one: &Client, path: &str, config: &Value) -> Answer {
    one.send("PATCH", path, "application/apply-patch+yaml", config.to_string()).await
}

/// Who manages an object, with the fields.
fn managers(object: &Value) -> Vec<(&str, &str, &Value)> {
    let list = object["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |entry: &'_ Value, key: &str| entry[key].as_str().unwrap().to_owned();
    assert!(list.iter().all(|entry| text(entry, "fieldsType") == "FieldsV1"));
    list.iter().map(|e| (e["manager"].as_str().unwrap(), e["operation"].as_str().unwrap(), &e["fieldsV1"])).collect()
}

#[tokio::test]
async fn an_apply_makes_the_object_and_a_second_one_nothing() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let path = format!("{MAPS}/a?fieldManager=m");
    let dry = apply(&one, &format!("{path}&dryRun=All"), &map("a", json!({"k": "1"}))).await;
    assert_eq!((dry.code, one.get(&format!("{MAPS}/a")).await.code), (201, 404));
    let made = apply(&one, &path, &map("a", json!({"k": "1"}))).await;
    assert_eq!(made.code, 201);
    let made = made.ok();
    assert_eq!(managers(&made), [("m", "Apply", &json!({"f:data": {"f:k": {}}}))]);
    let again = apply(&one, &path, &map("a", json!({"k": "1"}))).await;
    assert_eq!((again.code, again.ok()), (200, made.clone()));
    // YAML, and a version that is no longer the present one.
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  resourceVersion: '1'\ndata:\n  k: '2'\n";
    let stale = one.send("PATCH", &path, "application/apply-patch+yaml", yaml).await;
    assert_eq!(stale.refusal().0, 409);
    let fresh = yaml.replace("'1'", &format!("'{}'", meta(&made, "resourceVersion")));
    let changed = one.send("PATCH", &path, "application/apply-patch+yaml; charset=utf-8", fresh).await.ok();
    assert_eq!(changed["data"]["k"], "2");
    let partial = one.wants(PARTIAL).get(&format!("{MAPS}/a")).await.ok();
    assert_eq!(partial["metadata"], changed["metadata"]);
    // What needs an object does not make one.
    let schema =
        json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "f"}});
    let status = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/f/status?fieldManager=m";
    assert_eq!(apply(&one, status, &schema).await.refusal().0, 404);
}

#[tokio::test]
async fn writes_are_put_down_to_who_sends_them() {
    let server = server().await;
    let one = Client::new(&server, "one");
    // The test's client calls itself `test/1`.
    let made = one.map("a", "1").await;
    assert_eq!(managers(&made), [("test", "Update", &json!({"f:data": {".": {}, "f:k": {}}}))]);
    // A client that does not know of managers changes everything by PUT.
    let put = one.put(&format!("{MAPS}/a?fieldManager=putter"), &map("a", json!({"l": "1"}))).await.ok();
    assert_eq!(
        managers(&put),
        [("putter", "Update", &json!({"f:data": {"f:l": {}}})), ("test", "Update", &json!({"f:data": {}}))]
    );
    let conflict = apply(&one, &format!("{MAPS}/a?fieldManager=m"), &map("a", json!({"l": "2"}))).await;
    let (code, reason, message) = conflict.refusal();
    assert_eq!((code, &*reason), (409, "Conflict"));
    assert_eq!(message, "Apply failed with 1 conflict: conflict with \"putter\" using v1: .data.l");
    assert_eq!(
        conflict.json()["details"],
        json!({"causes": [{"reason": "FieldManagerConflict", "message": "conflict with \"putter\" using v1", "field": ".data.l"}]})
    );
    let forced = apply(&one, &format!("{MAPS}/a?fieldManager=m&force=true"), &map("a", json!({"l": "2"}))).await.ok();
    assert_eq!(managers(&forced)[0], ("m", "Apply", &json!({"f:data": {"f:l": {}}})));
    // As kubectl moves to server-side apply: a JSON patch that writes the entries, at a version.
    let patch = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": [{"manager": "kubectl", "operation": "Apply",
            "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:l": {}}}}]},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta(&forced, "resourceVersion")},
    ]);
    let moved = one.send("PATCH", &format!("{MAPS}/a"), "application/json-patch+json", patch.to_string()).await.ok();
    assert_eq!(managers(&moved), [("kubectl", "Apply", &json!({"f:data": {"f:l": {}}}))]);
    let reset = one.merge(&format!("{MAPS}/a"), &json!({"metadata": {"managedFields": []}})).await.ok();
    assert_eq!(managers(&reset), []);
}

/// The annotation that says where an object is belongs to nobody, whoever sends it back.
#[tokio::test]
async fn places_are_not_managed() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let mut config = map("a", json!({"k": "1"}));
    config["metadata"]["annotations"] = json!({"kcp.io/cluster": "elsewhere"});
    let made = apply(&one, &format!("{MAPS}/a?fieldManager=m"), &config).await.ok();
    assert_eq!(managers(&made), [("m", "Apply", &json!({"f:data": {"f:k": {}}}))]);
    assert_eq!(made["metadata"]["annotations"]["kcp.io/cluster"], "one");
    let mut same = made.clone();
    same["metadata"]["managedFields"] = Value::Null;
    assert_eq!(one.put(&format!("{MAPS}/a?fieldManager=n"), &same).await.ok(), made);
    let two = Client::new(&server, "two");
    assert_eq!(two.get(&format!("{MAPS}/a")).await.code, 404);
}

#[tokio::test]
async fn a_namespace_and_its_parts() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let made = one.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await.ok();
    // The label is set for the client, spec and status are the server's.
    let label = json!({"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}});
    assert_eq!(managers(&made), [("test", "Update", &label)]);
    let config = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": {"a": "b"}}});
    let applied = apply(&one, "/api/v1/namespaces/n?fieldManager=m", &config).await.ok();
    assert_eq!(managers(&applied)[0], ("m", "Apply", &json!({"f:metadata": {"f:labels": {"f:a": {}}}})));
    assert_eq!(applied["status"]["phase"], "Active");
    let new = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "made"}});
    assert_eq!(apply(&one, "/api/v1/namespaces/made?fieldManager=m", &new).await.code, 201);
}

/// Managers that apply at the same time each get what they want.
#[tokio::test]
async fn at_the_same_time() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let wishes = ["m0", "m1", "m2", "m3"].map(|manager| {
        let one = one.clone();
        tokio::spawn(async move {
            let config = map("a", json!({manager: "1"}));
            apply(&one, &format!("{MAPS}/a?fieldManager={manager}"), &config).await.ok()
        })
    });
    for wish in wishes {
        wish.await.unwrap();
    }
    let all = one.get(&format!("{MAPS}/a")).await.ok();
    assert_eq!(all["data"], json!({"m0": "1", "m1": "1", "m2": "1", "m3": "1"}));
    assert_eq!(managers(&all).len(), 4);
}

#[tokio::test]
async fn large_answers_are_packed_for_those_who_take_it() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.post(MAPS, &map("small", json!({"k": "v"}))).await.ok();
    one.post(MAPS, &map("large", json!({"k": "abcdefgh".repeat(20_000)}))).await.ok();
    let ask = async |path: &str| {
        let request = http::Request::get(format!("/clusters/one{path}"))
            .header("x-remote-user", "admin")
            .header("x-remote-group", "system:masters")
            .header("accept-encoding", "gzip");
        let body = http_body_util::Empty::<bytes::Bytes>::new();
        let answer = server.handle(request.body(body).unwrap(), one.trust).await;
        let is_packed = answer.headers().get("content-encoding").is_some_and(|e| e == "gzip");
        let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        if !is_packed {
            return (false, serde_json::from_slice::<Value>(&bytes).unwrap());
        }
        (true, serde_json::from_reader(flate2::read::GzDecoder::new(&bytes[..])).unwrap())
    };
    for (path, packed) in [
        (format!("{MAPS}/small"), false),
        (format!("{MAPS}/large"), true),
        (MAPS.to_owned(), true),
        (format!("{MAPS}?fieldSelector=metadata.name=small"), false),
        (format!("{MAPS}?fieldSelector=metadata.name=large"), true),
        ("/openapi/v2".to_owned(), true),
        ("/apis".to_owned(), true),
    ] {
        let (is_packed, value) = ask(&path).await;
        assert_eq!((is_packed, value), (packed, one.get(&path).await.ok()), "{path}");
    }
}
