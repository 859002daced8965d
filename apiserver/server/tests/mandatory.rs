//! The objects that every cluster has without anything being stored: FlowSchemas and priority levels `exempt` and `catch-all`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;

use apiserver_api::{ClusterName, flowcontrol::AUTO_UPDATE};
use apiserver_machinery::builtin;
use apiserver_server::{ApiServer, registry::Collection};
use serde_json::{Value, json};
use support::{Client, TABLE, meta, server};

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| meta(item, "name")).collect()
}

fn schema(name: &str) -> Value {
    let rule = json!({"subjects": [{"kind": "User", "user": {"name": "u"}}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/a"]}]});
    json!({"metadata": {"name": name, "labels": {"l": name}},
        "spec": {"priorityLevelConfiguration": {"name": "catch-all"}, "rules": [rule]}})
}

fn stored(server: &ApiServer, plural: &str) -> u64 {
    let resource = builtin::find("flowcontrol.apiserver.k8s.io", "v1", plural).unwrap();
    let one: ClusterName = "one".parse().unwrap();
    server.registry().count(resource, &Collection::cluster(&one)).unwrap()
}

#[tokio::test]
async fn every_cluster_has_them_and_none_is_stored() {
    let server = server().await;
    let [one, two, nobody] = ["one", "two", "*"].map(|cluster| Client::new(&server, cluster));
    for path in [SCHEMAS, LEVELS] {
        let list = one.get(path).await.ok();
        assert_eq!(names(&list), ["catch-all", "exempt"]);
        for item in list["items"].as_array().unwrap() {
            let alone = one.get(&format!("{path}/{}", meta(item, "name"))).await.ok();
            let other = two.get(&format!("{path}/{}", meta(item, "name"))).await.ok();
            assert_eq!((&alone["metadata"], &alone["spec"]), (&item["metadata"], &item["spec"]));
            assert_eq!(other["spec"], item["spec"]);
            assert_ne!(meta(&other, "uid"), meta(&alone, "uid"));
            assert_eq!(alone["metadata"]["annotations"][AUTO_UPDATE], "true");
            let number = |value: &Value| meta(value, "resourceVersion").parse::<u64>().unwrap();
            assert!((1..=number(&list)).contains(&number(&alone)));
        }
        let table = one.wants(TABLE).get(path).await.ok();
        assert_eq!(table["rows"].as_array().unwrap().len(), 2);
        let selected = one.get(&format!("{path}?fieldSelector=metadata.name%3Dexempt")).await.ok();
        assert_eq!(names(&selected), ["exempt"]);
        assert_eq!(one.get(&format!("{path}/none")).await.code, 404);
        assert_eq!(names(&nobody.get(path).await.ok()), [""; 0]);
    }
    assert_eq!((stored(&server, "flowschemas"), stored(&server, "prioritylevelconfigurations")), (0, 0));
    assert_eq!(names(&Client::new(&server, "gone").get(SCHEMAS).await.ok()), [""; 0]);
}

#[tokio::test]
async fn pages_hold_them_in_their_order() {
    let server = server().await;
    let one = Client::new(&server, "one");
    for name in ["a", "d", "z"] {
        one.post(SCHEMAS, &schema(name)).await.ok();
    }
    one.merge(&format!("{SCHEMAS}/exempt"), &json!({"metadata": {"labels": {"l": "e"}}})).await.ok();
    let all = ["a", "catch-all", "d", "exempt", "z"];
    for limit in 1..=6 {
        let (mut path, mut seen) = (format!("{SCHEMAS}?limit={limit}"), Vec::new());
        loop {
            let page = one.get(&path).await.ok();
            seen.extend(names(&page).into_iter().map(str::to_owned));
            let left = page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
            assert_eq!(seen.len() as u64 + left, 5);
            let token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            assert_eq!(token.is_empty(), left == 0);
            if token.is_empty() {
                break;
            }
            path = format!("{SCHEMAS}?limit={limit}&continue={token}");
        }
        assert_eq!(seen, all, "limit {limit}");
    }
    assert_eq!(names(&one.get(&format!("{SCHEMAS}?labelSelector=l&limit=2")).await.ok()), ["a", "d"]);
    // As it was before the cluster had them, and before one of them was written.
    let before = one.get(&format!("{SCHEMAS}?resourceVersion=1&resourceVersionMatch=Exact")).await.ok();
    assert_eq!(names(&before), [""; 0]);
}

/// Who lists once and then only watches knows at every moment what a list would tell.
#[tokio::test]
async fn a_watch_tells_what_lists_show() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let list = one.get(SCHEMAS).await.ok();
    let keep = |items: &Value| -> BTreeMap<String, Value> {
        items.as_array().unwrap().iter().map(|i| (meta(i, "name").to_owned(), i["metadata"].clone())).collect()
    };
    let mut known = keep(&list["items"]);
    let mut watch = one.watch(&format!("{SCHEMAS}?watch=1&resourceVersion={}", meta(&list, "resourceVersion"))).await;
    let exempt = format!("{SCHEMAS}/exempt");
    let label = |value: &str| json!({"metadata": {"labels": {"l": value}}});
    let mut told = Vec::new();
    for step in 0..7 {
        match step {
            0 => one.merge(&exempt, &label("1")).await,
            1 => one.merge(&exempt, &label("2")).await,
            2 | 3 => one.delete(&exempt).await,
            4 => one.delete(&format!("{SCHEMAS}/catch-all")).await,
            5 => one.post(SCHEMAS, &schema("b")).await,
            _ => one.delete(&format!("{SCHEMAS}/b")).await,
        }
        .ok();
        let (kind, name, object) = watch.event().await.unwrap();
        match (kind.as_str(), known.contains_key(&name)) {
            ("ADDED", false) | ("MODIFIED", true) => drop(known.insert(name.clone(), object["metadata"].clone())),
            ("DELETED", true) => drop(known.remove(&name)),
            _ => panic!("{kind} of {name} after {told:?}"),
        }
        told.push((kind, name));
        assert_eq!(known, keep(&one.get(SCHEMAS).await.ok()["items"]));
    }
    let kinds: Vec<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["MODIFIED", "MODIFIED", "MODIFIED", "MODIFIED", "MODIFIED", "ADDED", "DELETED"]);

    // One that asks for the state gets them too, and who selects is told who enters and leaves.
    let mut state = one.watch(&format!("{SCHEMAS}?watch=1")).await;
    for expected in ["catch-all", "exempt"] {
        let (kind, name, _) = state.event().await.unwrap();
        assert_eq!((kind.as_str(), name.as_str()), ("ADDED", expected));
    }
    let mut selected = one.watch(&format!("{LEVELS}?watch=1&labelSelector=l")).await;
    one.merge(&format!("{LEVELS}/exempt"), &label("1")).await.ok();
    one.delete(&format!("{LEVELS}/exempt")).await.ok();
    for expected in ["ADDED", "DELETED"] {
        assert_eq!(selected.event().await.unwrap().0, expected);
    }
}

#[tokio::test]
async fn what_may_be_written() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let (schema_path, level_path) = (format!("{SCHEMAS}/catch-all"), format!("{LEVELS}/exempt"));
    assert_eq!(one.post(SCHEMAS, &schema("exempt")).await.code, 422);
    let mut again = one.get(&schema_path).await.ok();
    again["metadata"] = json!({"name": "catch-all"});
    for path in [SCHEMAS.to_owned(), format!("{SCHEMAS}?dryRun=All")] {
        assert_eq!(one.post(&path, &again).await.refusal().1, "AlreadyExists");
    }
    let refused = one.merge(&schema_path, &json!({"spec": {"matchingPrecedence": 9}})).await;
    assert_eq!((refused.code, refused.json()["details"]["causes"][0]["field"].clone()), (422, json!("spec")));
    assert_eq!(one.merge(&level_path, &json!({"spec": {"type": "Limited"}})).await.code, 422);
    // Nothing was written, and what changes nothing is no write.
    let before = one.get(&schema_path).await.ok();
    assert_eq!(one.put(&schema_path, &before).await.ok(), before);
    assert_eq!(one.delete(&format!("{schema_path}?dryRun=All")).await.code, 200);
    assert_eq!((stored(&server, "flowschemas"), stored(&server, "prioritylevelconfigurations")), (0, 0));

    let stale = json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}});
    assert_eq!(one.merge(&schema_path, &stale).await.code, 409);
    let change = json!({"metadata": {"annotations": {AUTO_UPDATE: "false", "mine": "1"}},
        "spec": {"exempt": {"nominalConcurrencyShares": 7}}});
    let virgin = one.get(&level_path).await.ok();
    let changed = one.merge(&level_path, &change).await.ok();
    assert_eq!(changed["spec"]["exempt"], json!({"nominalConcurrencyShares": 7, "lendablePercent": 0}));
    assert_eq!(changed["metadata"]["annotations"][AUTO_UPDATE], "true");
    assert_eq!(changed["metadata"]["annotations"]["mine"], "1");
    assert_eq!((meta(&changed, "uid"), &changed["metadata"]["generation"]), (meta(&virgin, "uid"), &json!(2)));
    assert_eq!(stored(&server, "prioritylevelconfigurations"), 1);
    assert_eq!(names(&Client::new(&server, "*").get(LEVELS).await.ok()), ["exempt"]);

    // Whoever deletes it gets it as it was at first: another object.
    let deleted = one.delete(&level_path).await.ok();
    assert_eq!(deleted["details"]["uid"], changed["metadata"]["uid"]);
    let fresh = one.get(&level_path).await.ok();
    assert_eq!(fresh["spec"], virgin["spec"]);
    assert_ne!(meta(&fresh, "uid"), meta(&virgin, "uid"));
    // Also when it goes with its last finalizer.
    one.merge(&level_path, &json!({"metadata": {"finalizers": ["a.b/c"]}})).await.ok();
    assert!(!meta(&one.delete(&level_path).await.ok(), "deletionTimestamp").is_empty());
    one.merge(&level_path, &json!({"metadata": {"finalizers": null}})).await.ok();
    let last = one.get(&level_path).await.ok();
    assert_eq!((meta(&last, "deletionTimestamp"), &last["spec"]), ("", &virgin["spec"]));
    assert_ne!(meta(&last, "uid"), meta(&fresh, "uid"));
    // A collection may be deleted too.
    one.post(SCHEMAS, &schema("b")).await.ok();
    assert_eq!(names(&one.delete(SCHEMAS).await.ok()), ["b", "catch-all", "exempt"]);
    assert_eq!(names(&one.get(SCHEMAS).await.ok()), ["catch-all", "exempt"]);
}
