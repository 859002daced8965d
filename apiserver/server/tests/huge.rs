//! Lists that are large, in every form, and clients that do not read them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::{Client, TABLE, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const YAML: &str = "application/yaml";
const YAML_TABLE: &str = "application/yaml;as=Table;v=v1;g=meta.k8s.io";

/// 30 MB, which the store keeps in far less.
async fn fill(one: &Client) {
    for n in 0..300 {
        one.map(&format!("m{n:03}"), &format!("{n:03}").repeat(33_000)).await;
    }
}

#[test]
fn who_does_not_read_holds_little() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let one = runtime.block_on(async {
        let one = Client::new(&server().await, "one");
        fill(&one).await;
        one
    });
    let watch = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for (accept, query) in [
        ("application/json", ""),
        ("application/json", "limit=299"),
        ("application/json", "labelSelector=%21a"),
        ("application/json", "fieldSelector=metadata.name%21%3Da"),
        (TABLE, "includeObject=Object"),
        (YAML, ""),
        (PROTOBUF, ""),
        ("application/json", watch),
    ] {
        let client = one.wants(accept);
        let mut idle = Vec::new();
        let used = allocation_counter::measure(|| {
            runtime.block_on(async {
                for _ in 0..4 {
                    let response = client.response("GET", &format!("{MAPS}?{query}"), "", Bytes::new()).await;
                    assert_eq!(response.status(), 200);
                    let mut body = response.into_body();
                    let first = body.frame().await.unwrap().unwrap();
                    idle.push((body, first));
                }
            });
        });
        assert!(used.bytes_max < 8 << 20, "{} bytes for {accept} {query}", used.bytes_max);
    }
}

#[tokio::test]
async fn every_form_says_the_same() {
    let one = Client::new(&server().await, "one");
    let read = |bytes: &[u8]| serde_yaml::from_slice::<Value>(bytes).unwrap();
    let is_empty = |list: &Value| list["items"] == json!([]);
    assert!(is_empty(&read(&one.wants(YAML).get(MAPS).await.bytes)));
    for n in 0..40 {
        let map = json!({"metadata": {"name": format!("m{n}"), "labels": {"n": n.to_string()}},
            "data": {"a": "- x: #\n---\n", "b": "no".repeat(n * 100), "c": ""}});
        one.post(MAPS, &map).await.ok();
    }
    for query in ["", "?limit=3", "?labelSelector=n+in+(3,4)", "?fieldSelector=metadata.name%3Dm7"] {
        let path = format!("{MAPS}{query}");
        let json = one.get(&path).await.ok();
        assert_eq!(read(&one.wants(YAML).get(&path).await.bytes), json, "{query}");
        let (table, mut yaml) =
            (one.wants(TABLE).get(&path).await.ok(), read(&one.wants(YAML_TABLE).get(&path).await.bytes));
        // Ages may have changed between the two.
        for (row, other) in table["rows"].as_array().unwrap().iter().zip(yaml["rows"].as_array_mut().unwrap()) {
            other["cells"] = row["cells"].clone();
        }
        assert_eq!(yaml, table, "{query}");
    }
}
