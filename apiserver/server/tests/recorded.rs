//! Raw requests and the answers of Kubernetes v1.34 to them (`tests/vectors/kubectl/http-probes.json`), one after the other
//! as they were recorded: same code, same Status or same object, `managedFields` included. Every request counts: it is
//! equal, or stands in [`DIFFERENT`] with the reason, or fails the test.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod different;
mod support;

use std::collections::BTreeSet;

use apiserver_server::{ApiServer, Trust};
use bytes::Bytes;
use different::{DIFFERENT, GROUPS};
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use support::{Client, server};

/// An answer, as far as it does not differ from run to run.
#[derive(Debug, PartialEq)]
struct Answer {
    code: u64,
    body: Value,
}

fn probes() -> Vec<Value> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/kubectl/http-probes.json");
    let mut all: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    std::mem::take(all["entries"].as_array_mut().unwrap())
}

/// Sends a recorded request to the cluster `one`.
async fn send(server: &ApiServer, probe: &Value) -> (Answer, Option<Value>) {
    let request = &probe["request"];
    let (user, group) = match request["user"].as_str().unwrap() {
        "admin" => ("admin", "system:masters"),
        _ => ("system:anonymous", "system:unauthenticated"),
    };
    let body = match &request["body"] {
        Value::Null => Bytes::new(),
        Value::String(text) => Bytes::from(text.clone()),
        other => Bytes::from(other.to_string()),
    };
    let mut built = Request::builder()
        .method(request["method"].as_str().unwrap())
        .uri(format!("/clusters/one{}", request["path"].as_str().unwrap()))
        .header("x-remote-user", user)
        .header("x-remote-group", group)
        .header("user-agent", "probe/1");
    for (name, field) in [("accept", "accept"), ("content-type", "content_type")] {
        if let Some(value) = request[field].as_str().filter(|v| !v.is_empty()) {
            built = built.header(name, value);
        }
    }
    let response = server.handle(built.body(Full::new(body)).unwrap(), Trust::Gateway).await;
    let code = response.status().as_u16().into();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body: Option<Value> = serde_json::from_slice(&bytes).ok();
    (Answer { code, body: comparable(body.as_ref().unwrap_or(&Value::Null)) }, body)
}

/// A text with numbers and UUIDs made equal.
fn masked(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let is_uuid = word.len() == 36 && word.matches('-').count() == 4;
        let is_number = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        out.push_str(if is_uuid || is_number { "#" } else { word });
        out.extend(tail.chars().take(1));
        rest = tail.get(tail.chars().next().map_or(0, char::len_utf8)..).unwrap_or_default();
    }
    out
}

fn comparable(body: &Value) -> Value {
    let mut body = body.clone();
    if !body.is_object() {
        return Value::Null;
    }
    match body["kind"].as_str() {
        Some("Status") => {
            body["message"] = json!(masked(body["message"].as_str().unwrap_or_default()));
            if let Some(details) = body.get_mut("details").and_then(Value::as_object_mut) {
                details.remove("uid");
                // Upstream repeats causes of patches; we send each once.
                let mut seen = Vec::new();
                for cause in
                    details.get_mut("causes").and_then(Value::as_array_mut).map(std::mem::take).into_iter().flatten()
                {
                    if !seen.contains(&cause) {
                        seen.push(cause);
                    }
                }
                details.insert("causes".into(), json!(seen));
            }
        }
        Some("Table") => body = json!({"kind": "Table"}),
        _ => {}
    }
    if let Some(items) = body.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(|item| *item = comparable(item));
    }
    let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) else { return body };
    for field in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "continue", "remainingItemCount"]
    {
        metadata.remove(field);
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kcp.io/cluster");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    if metadata.contains_key("generateName") {
        let name = metadata["name"].as_str().unwrap();
        metadata["name"] = json!(name[..name.len() - 5]);
    }
    for entry in metadata.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
        drop(entry.as_object_mut().and_then(|e| e.remove("time")));
    }
    body
}

/// What the recording did between its requests.
async fn before(id: &str, one: &Client) {
    let map = |name: &str| json!({"metadata": {"name": name}});
    let post = async |object: Value| one.post("/api/v1/namespaces/r/configmaps?fieldManager=probe", &object).await.ok();
    match id {
        "create" => one.namespace("p").await,
        "jsonpatch-test-fail" => {
            one.namespace("r").await;
            post(json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).await;
        }
        "ssa-conflict-two" => {
            let path = "/api/v1/namespaces/r/configmaps/s";
            one.merge(&format!("{path}?fieldManager=upd"), &json!({"data": {"k": "9"}})).await.ok();
        }
        "delete-bad-uid-precond" => {
            post(json!({"metadata": {"name": "f", "finalizers": ["example.dev/x"]}})).await;
        }
        "foreground" => {
            post(map("fg")).await;
            post(map("or")).await;
            post(map("dr")).await;
        }
        _ => {}
    }
}

/// A recorded request whose body names an object's version and uid, with those of the object that we have.
fn adapted(probe: &Value, last: Option<&Value>) -> Value {
    let mut probe = probe.clone();
    let id = probe["id"].as_str().unwrap().to_owned();
    if let (Some(last), Some(metadata)) = (last, probe.pointer_mut("/request/body/metadata")) {
        // These bodies were kept by reference, and show what was changed in them for later requests.
        match &*id {
            "update-no-rv" => metadata["name"] = json!("x"),
            "update-bad-uid" => (metadata["name"], metadata["uid"]) = (json!("x"), json!("bad")),
            _ => {}
        }
        for field in ["uid", "resourceVersion"] {
            let is_real = metadata
                .get(field)
                .unwrap_or(&Value::Null)
                .as_str()
                .is_some_and(|v| v.len() == 36 || v.parse::<u64>().is_ok_and(|n| n > 5));
            if is_real {
                metadata[field] = last["metadata"][field].clone();
            }
        }
    }
    probe
}

#[tokio::test]
async fn the_recorded_answers() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let (mut equal, mut different, mut wrong, mut listed) = (0, 0, Vec::new(), BTreeSet::new());
    let mut newest: Option<Value> = None;
    let mut seen = BTreeSet::new();
    for probe in probes() {
        let (set, id) = (probe["set"].as_str().unwrap(), probe["id"].as_str().unwrap());
        let path = probe["request"]["path"].as_str().unwrap();
        if let Some((group, _, _)) = GROUPS.iter().find(|(_, applies, _)| applies(set, path, &probe)) {
            listed.insert(*group);
            different += 1;
            continue;
        }
        before(id, &one).await;
        let asked = if id == "update-conflict" { probe.clone() } else { adapted(&probe, newest.as_ref()) };
        let (got, body) = send(&server, &asked).await;
        if body.as_ref().is_some_and(|b| b["kind"] == "ConfigMap" && b["metadata"]["name"] == "x") {
            newest = body;
        }
        let want = Answer {
            code: probe["response"]["status"].as_u64().unwrap(),
            body: comparable(&probe["response"]["body"]),
        };
        seen.insert(id.to_owned());
        match DIFFERENT.iter().find(|(name, _)| *name == id) {
            _ if got == want => equal += 1,
            Some((name, _)) => {
                listed.insert(*name);
                different += 1;
            }
            None => {
                wrong.push(format!("{set}/{id}: got {} {}\n  want {} {}", got.code, got.body, want.code, want.body))
            }
        }
    }
    println!("{equal} equal, {different} different on purpose, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let names: Vec<&str> = DIFFERENT.iter().map(|(name, _)| *name).chain(GROUPS.iter().map(|(g, ..)| *g)).collect();
    let unused: Vec<&&str> = names.iter().filter(|name| !listed.contains(*name)).collect();
    assert!(unused.is_empty(), "listed as different, but equal or not recorded: {unused:?}");
}
