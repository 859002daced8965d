//! What many watches share, what keeps one from harming the others, and which version answers a list.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use apiserver_storage::{Condition, Txn, TxnOutcome};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::{Client, PARTIAL, TABLE, meta, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The bytes that a watch is sent next.
async fn chunk(watch: &mut http::Response<apiserver_server::Body>) -> Bytes {
    watch.body_mut().frame().await.unwrap().unwrap().into_data().unwrap()
}

#[tokio::test]
async fn an_event_is_written_once_for_all_who_want_it_in_the_same_form() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let labels = json!({"metadata": {"name": "a", "labels": {"l": "x"}}, "data": {"k": "1"}});
    let a = one.post(MAPS, &labels).await.ok();
    let from = format!("watch=1&resourceVersion={}", meta(&a, "resourceVersion"));
    let everybody = Client::new(&server, "*");
    let (plain, partial, table) = ("application/json", PARTIAL, TABLE);
    let mut watches = Vec::new();
    for (client, accept, path) in [
        (&one, plain, format!("{MAPS}?{from}")),
        (&one, plain, format!("{MAPS}?{from}&labelSelector=l%3Dx")),
        (&one, plain, format!("{MAPS}?{from}&fieldSelector=metadata.name%3Da")),
        (&everybody, plain, format!("/api/v1/configmaps?{from}")),
        (&one, partial, format!("{MAPS}?{from}")),
        (&one, partial, format!("{MAPS}?{from}&labelSelector=l")),
        (&one, table, format!("{MAPS}?{from}")),
        (&one, table, format!("{MAPS}?{from}")),
    ] {
        watches.push(client.wants(accept).response("GET", &path, "", Bytes::new()).await);
    }
    one.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "2"}})).await.ok();
    let mut frames = Vec::new();
    for watch in &mut watches {
        frames.push(chunk(watch).await);
    }
    let event: Value = serde_json::from_slice(&frames[0]).unwrap();
    assert_eq!((&event["type"], &event["object"]["data"]["k"]), (&json!("MODIFIED"), &json!("2")));
    let place = |at: usize| frames[at].as_ptr();
    for at in 1..4 {
        assert_eq!(place(at), place(0), "watch {at} has the same bytes in memory of its own");
    }
    assert_eq!(place(5), place(4));
    assert!(frames[4] != frames[0] && place(6) != place(7));
    // For who did not see it before, the same change is another event.
    let mut entering =
        one.watch(&format!("{MAPS}?watch=1&resourceVersion={}&labelSelector=m", meta(&a, "resourceVersion"))).await;
    one.merge(&format!("{MAPS}/a"), &json!({"metadata": {"labels": {"m": "1"}}})).await.ok();
    assert_eq!(entering.event().await.unwrap().0, "ADDED");
    let event: Value = serde_json::from_slice(&chunk(&mut watches[0]).await).unwrap();
    assert_eq!(event["type"], "MODIFIED");
}

/// A present state of several pages is that of one moment: what changes while it is told comes behind it.
#[tokio::test]
async fn a_large_present_state_is_of_one_revision() {
    const OBJECTS: usize = 2100;
    let server = server().await;
    let one = Client::new(&server, "one");
    let store = server.registry().store();
    for n in 0..OBJECTS {
        let name = format!("m{n:04}");
        let metadata =
            json!({"labels": {"half": (n % 2).to_string()}, "name": name, "namespace": "default", "uid": name});
        let value = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}).to_string();
        let key = format!("/registry/core/configmaps/one/default/{name}").into();
        let txn = Txn { key, condition: Condition::Absent, guard: None, value: Some(value.into()), ttl: None };
        store.txn(txn).await.unwrap();
    }
    let list = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for (selector, told) in [("", OBJECTS), ("&labelSelector=half%3D1", OBJECTS / 2)] {
        let mut watch = one.watch(&format!("{MAPS}?{list}{selector}")).await;
        let mut names = vec![watch.event().await.unwrap().1];
        let last = format!("{MAPS}/m{:04}", OBJECTS - 1);
        one.merge(&last, &json!({"data": {"selector": selector}})).await.ok();
        for _ in 1..told {
            let (kind, name, object) = watch.event().await.unwrap();
            assert_eq!(kind, "ADDED");
            assert_ne!(object["data"]["selector"], selector, "{name} is as it was");
            names.push(name);
        }
        assert!(names.is_sorted());
        assert_eq!(watch.next().await.unwrap()["type"], "BOOKMARK");
        let (kind, _, object) = watch.event().await.unwrap();
        assert_eq!((&*kind, object["data"]["selector"].as_str()), ("MODIFIED", Some(selector)));
    }
}

/// An hour into a watch a new object is new, and an old one as old as it is.
#[tokio::test]
async fn ages_in_a_table_are_those_of_the_event() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let a = one.map("a", "0").await;
    let path = format!("{MAPS}?watch=1&resourceVersion={}", meta(&a, "resourceVersion"));
    let mut watch = one.wants(TABLE).watch(&path).await;
    let mut ages = std::collections::BTreeSet::new();
    let begin = std::time::Instant::now();
    // The clock needs up to two seconds for another age.
    for change in 1.. {
        one.merge(&format!("{MAPS}/a"), &json!({"data": {"k": change.to_string()}})).await.ok();
        ages.insert(watch.next().await.unwrap()["object"]["rows"][0]["cells"][2].to_string());
        if ages.len() > 1 || begin.elapsed() > std::time::Duration::from_secs(60) {
            break;
        }
    }
    assert!(ages.len() == 2 && !ages.contains("\"<invalid>\""), "{ages:?}");
}

#[tokio::test]
async fn who_does_not_read_is_dropped_alone() {
    const CHANGES: usize = 10_000;
    let server = server().await;
    let one = Client::new(&server, "one");
    let a = one.map("a", "0").await;
    let path = format!("{MAPS}?watch=1&resourceVersion={}", meta(&a, "resourceVersion"));
    let (mut slow, mut quick) = (one.watch(&path).await, one.watch(&path).await);
    one.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "1"}})).await.ok();
    assert_eq!(slow.event().await.unwrap().0, "MODIFIED");
    let reader = tokio::spawn(async move {
        for _ in 0..=CHANGES {
            assert_eq!(quick.event().await.unwrap().0, "MODIFIED");
        }
        quick
    });
    let store = server.registry().store();
    let key = "/registry/core/configmaps/one/default/a";
    let mut kv = store.get(key).await.unwrap().unwrap();
    for _ in 0..CHANGES {
        let condition = Condition::ModRevision(kv.mod_revision);
        let txn = Txn { key: key.into(), condition, guard: None, value: Some(kv.value.clone()), ttl: None };
        let TxnOutcome::Done { revision } = store.txn(txn).await.unwrap() else { panic!("somebody else writes") };
        kv.mod_revision = revision;
    }
    let mut quick = reader.await.unwrap();
    // What waited for the slow one is gone, and its stream ends; it may watch on from what it saw last.
    assert_eq!(slow.event().await, None);
    one.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "2"}})).await.ok();
    assert_eq!(quick.event().await.unwrap().2["data"]["k"], "2");
}

/// The table of api-server.md 3.2. `OLD` is replaced by the version at which there was one object, `GONE` by one that
/// is compacted.
#[tokio::test]
async fn the_version_that_answers_a_list() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let gone = one.map("a", "1").await;
    let old = one.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "2"}})).await.ok();
    one.map("b", "1").await;
    let [gone, old] = [gone, old].map(|object| meta(&object, "resourceVersion").to_owned());
    server.registry().store().compact(old.parse().unwrap()).await.unwrap();
    for (query, expected) in [
        ("", Ok(2)),
        ("limit=5", Ok(2)),
        ("resourceVersion=0", Ok(2)),
        ("resourceVersion=0&limit=5", Ok(2)),
        ("resourceVersion=0&resourceVersionMatch=NotOlderThan", Ok(2)),
        ("resourceVersion=OLD", Ok(2)),
        ("resourceVersion=OLD&limit=5", Ok(1)),
        ("resourceVersion=OLD&resourceVersionMatch=NotOlderThan", Ok(2)),
        ("resourceVersion=OLD&resourceVersionMatch=NotOlderThan&limit=5", Ok(2)),
        ("resourceVersion=OLD&resourceVersionMatch=Exact", Ok(1)),
        ("resourceVersion=OLD&resourceVersionMatch=Exact&limit=5", Ok(1)),
        ("resourceVersion=GONE", Ok(2)),
        ("resourceVersion=GONE&resourceVersionMatch=NotOlderThan", Ok(2)),
        ("resourceVersion=GONE&limit=5", Err((410, "Expired"))),
        ("resourceVersion=GONE&resourceVersionMatch=Exact", Err((410, "Expired"))),
        ("resourceVersion=99999999", Err((504, "Timeout"))),
        ("resourceVersion=99999999&resourceVersionMatch=NotOlderThan", Err((504, "Timeout"))),
        ("resourceVersion=99999999&resourceVersionMatch=Exact", Err((504, "Timeout"))),
        ("resourceVersionMatch=Exact", Err((422, "Invalid"))),
        ("resourceVersionMatch=NotOlderThan", Err((422, "Invalid"))),
        ("resourceVersion=0&resourceVersionMatch=Exact", Err((422, "Invalid"))),
        ("resourceVersion=OLD&resourceVersionMatch=Newest", Err((422, "Invalid"))),
    ] {
        let answer = one.get(&format!("{MAPS}?{}", query.replace("OLD", &old).replace("GONE", &gone))).await;
        match expected {
            Ok(objects) => assert_eq!(answer.ok()["items"].as_array().unwrap().len(), objects, "{query}"),
            Err((code, reason)) => {
                let refusal = answer.refusal();
                assert_eq!((refusal.0, refusal.1.as_str()), (code, reason), "{query}: {}", refusal.2);
            }
        }
    }
}
