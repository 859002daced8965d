//! Random operations against the server and against a plain map: what a list says and what a list followed by a
//! watch adds up to is always the state.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::collections::{BTreeMap, btree_map::Entry};

use apiserver_server::ApiServer;
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};
use support::{Client, Watch, meta, server};

#[derive(Clone, Debug)]
enum Op {
    Create {
        cluster: usize,
        name: usize,
        label: usize,
    },
    Update {
        cluster: usize,
        name: usize,
        label: usize,
    },
    /// Writes what is there already.
    Touch {
        cluster: usize,
        name: usize,
    },
    Delete {
        cluster: usize,
        name: usize,
    },
    /// A write with a version that is not the present one.
    Stale {
        cluster: usize,
        name: usize,
    },
}

const CLUSTERS: [&str; 2] = ["one", "two"];
const NAMES: [&str; 4] = ["a", "ab", "b", "c"];
const LABELS: [&str; 2] = ["x", "y"];
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// (cluster, name) → (label, resourceVersion).
type Model = BTreeMap<(usize, usize), (usize, String)>;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (cluster, name, label) = (0..CLUSTERS.len(), 0..NAMES.len(), 0..LABELS.len());
    let place = (cluster, name);
    let op = prop_oneof![
        4 => (place.clone(), label.clone()).prop_map(|((cluster, name), label)| Op::Create { cluster, name, label }),
        4 => (place.clone(), label).prop_map(|((cluster, name), label)| Op::Update { cluster, name, label }),
        1 => place.clone().prop_map(|(cluster, name)| Op::Touch { cluster, name }),
        3 => place.clone().prop_map(|(cluster, name)| Op::Delete { cluster, name }),
        1 => place.prop_map(|(cluster, name)| Op::Stale { cluster, name }),
    ];
    prop::collection::vec(op, 1..40)
}

fn body(name: usize, label: usize) -> Value {
    json!({"metadata": {"name": NAMES[name], "labels": {"l": LABELS[label]}}})
}

/// Carries the operation out on both and compares the outcome.
async fn apply(server: &ApiServer, model: &mut Model, op: &Op) {
    let item = |name: usize| format!("{MAPS}/{}", NAMES[name]);
    let client = |cluster: usize| Client::new(server, CLUSTERS[cluster]);
    match *op {
        Op::Create { cluster, name, label } => {
            let answer = client(cluster).post(MAPS, &body(name, label)).await;
            match model.entry((cluster, name)) {
                Entry::Occupied(_) => assert_eq!(answer.code, 409),
                Entry::Vacant(free) => {
                    free.insert((label, meta(&answer.ok(), "resourceVersion").to_owned()));
                }
            }
        }
        Op::Update { cluster, name, label } => {
            let answer = client(cluster).put(&item(name), &body(name, label)).await;
            let Some(known) = model.get_mut(&(cluster, name)) else { return assert_eq!(answer.code, 404) };
            let version = meta(&answer.ok(), "resourceVersion").to_owned();
            assert_eq!(version == known.1, label == known.0, "the version changes exactly with the object");
            *known = (label, version);
        }
        Op::Touch { cluster, name } => {
            let answer = client(cluster).merge(&item(name), &json!({})).await;
            let Some(known) = model.get(&(cluster, name)) else { return assert_eq!(answer.code, 404) };
            assert_eq!(meta(&answer.ok(), "resourceVersion"), known.1);
        }
        Op::Delete { cluster, name } => {
            let answer = client(cluster).delete(&item(name)).await;
            assert_eq!(answer.code, if model.remove(&(cluster, name)).is_some() { 200 } else { 404 });
        }
        Op::Stale { cluster, name } => {
            let mut stale = body(name, 0);
            stale["metadata"]["resourceVersion"] = json!("1");
            let answer = client(cluster).put(&item(name), &stale).await;
            assert_eq!(answer.code, if model.contains_key(&(cluster, name)) { 409 } else { 404 });
        }
    }
}

fn entry(object: &Value) -> ((usize, usize), (usize, String)) {
    let at = |all: &[&str], text: &Value| all.iter().position(|x| text == *x).unwrap();
    let metadata = &object["metadata"];
    let place = (at(&CLUSTERS, &metadata["annotations"]["kcp.io/cluster"]), at(&NAMES, &metadata["name"]));
    (place, (at(&LABELS, &metadata["labels"]["l"]), meta(object, "resourceVersion").to_owned()))
}

async fn pages(client: &Client, path: &str, limit: usize) -> Model {
    let mut seen = Model::new();
    let mut token = String::new();
    loop {
        let next = if token.is_empty() { String::new() } else { format!("&continue={token}") };
        let page = client.get(&format!("{path}limit={limit}{next}")).await.ok();
        seen.extend(page["items"].as_array().unwrap().iter().map(entry));
        match page["metadata"]["continue"].as_str() {
            Some(more) => token = more.to_owned(),
            None => return seen,
        }
    }
}

/// Applies the events of a watch up to the object `end`.
async fn follow(mut watch: Watch, mut state: Model) -> Model {
    let mut version = 0;
    loop {
        let event = watch.next().await.expect("the stream goes on");
        let object = &event["object"];
        let at: u64 = meta(object, "resourceVersion").parse().unwrap();
        assert!(at > version, "versions grow");
        version = at;
        if meta(object, "name") == "end" {
            return state;
        }
        let (place, value) = entry(object);
        match event["type"].as_str().unwrap() {
            "DELETED" => assert!(state.remove(&place).is_some(), "only what is there is deleted"),
            "ADDED" => assert!(state.insert(place, value).is_none(), "only what is not there is added"),
            "MODIFIED" => assert!(state.insert(place, value).is_some(), "only what is there is changed"),
            other => panic!("{other}"),
        }
    }
}

async fn scenario(ops: Vec<Op>, split: usize) {
    let server = server().await;
    let mut model = Model::new();
    let split = split.min(ops.len());
    for op in &ops[..split] {
        apply(&server, &mut model, op).await;
    }
    let all = Client::new(&server, "*");
    let then = model.clone();
    let from = all.get("/api/v1/configmaps").await.ok();
    for op in &ops[split..] {
        apply(&server, &mut model, op).await;
    }
    for limit in [0, 1, 3] {
        assert_eq!(pages(&all, "/api/v1/configmaps?", limit).await, model, "limit {limit}");
    }
    let of = |cluster: usize, label: Option<usize>| -> Model {
        model
            .iter()
            .filter(|((c, _), (l, _))| *c == cluster && label.is_none_or(|want| want == *l))
            .map(|(k, v)| (*k, v.clone()))
            .collect()
    };
    for (index, cluster) in CLUSTERS.iter().enumerate() {
        let client = Client::new(&server, cluster);
        assert_eq!(pages(&client, &format!("{MAPS}?"), 2).await, of(index, None));
        for (l, label) in LABELS.iter().enumerate() {
            assert_eq!(pages(&client, &format!("{MAPS}?labelSelector=l%3D{label}&"), 1).await, of(index, Some(l)));
        }
    }
    let version = meta(&from, "resourceVersion");
    let one = Client::new(&server, "one");
    for (l, label) in LABELS.iter().enumerate() {
        let end = json!({"metadata": {"name": "end", "labels": {"l": label}}});
        one.post(MAPS, &end).await.ok();
        let start: Model = then.iter().filter(|(_, (x, _))| *x == l).map(|(k, v)| (*k, v.clone())).collect();
        let want: Model = model.iter().filter(|(_, (x, _))| *x == l).map(|(k, v)| (*k, v.clone())).collect();
        let path = format!("/api/v1/configmaps?watch=1&labelSelector=l%3D{label}&resourceVersion={version}");
        assert_eq!(follow(all.watch(&path).await, start).await, want);
        one.delete(&format!("{MAPS}/end")).await.ok();
    }
    // The first `end` came behind everything else here too.
    let path = format!("/api/v1/configmaps?watch=1&resourceVersion={version}");
    assert_eq!(follow(all.watch(&path).await, then).await, model);
}

#[test]
fn list_and_watch_add_up_to_the_state() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() });
    runner
        .run(&(ops(), 0..40_usize), |(ops, split)| {
            runtime.block_on(scenario(ops, split));
            Ok(())
        })
        .unwrap();
}
