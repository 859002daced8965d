//! Events of core/v1 and events.k8s.io/v1: two forms of the same objects.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use serde_json::{Value, json};
use support::{Client, PARTIAL, TABLE, meta, server};

const CORE: &str = "/api/v1/namespaces/default/events";
const NEW: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn event(name: &str) -> Value {
    json!({
        "metadata": {"name": name}, "eventTime": "2026-01-01T00:00:00.000001Z", "reportingController": "a.dev/c",
        "reportingInstance": "i", "action": "Do", "reason": "Why", "type": "Normal", "note": "n",
        "regarding": {"kind": "ConfigMap", "name": "m", "namespace": "default"},
    })
}

#[tokio::test]
async fn one_object_in_two_forms() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let made = one.post(NEW, &event("a")).await.ok();
    assert_eq!((&made["apiVersion"], &made["note"]), (&json!("events.k8s.io/v1"), &json!("n")));
    let core = one.get(&format!("{CORE}/a")).await.ok();
    assert_eq!((&core["apiVersion"], &core["message"]), (&json!("v1"), &json!("n")));
    assert_eq!((&core["involvedObject"]["name"], &core["regarding"]), (&json!("m"), &Value::Null));
    assert_eq!(
        (meta(&core, "uid"), meta(&core, "resourceVersion")),
        (meta(&made, "uid"), meta(&made, "resourceVersion"))
    );

    // The other way: one of the older kind.
    let body =
        json!({"metadata": {"name": "b"}, "involvedObject": {"namespace": "default", "name": "x"}, "message": "old"});
    one.post(CORE, &body).await.ok();
    let list = one.get(NEW).await.ok();
    assert_eq!(list["kind"], "EventList");
    let notes: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|e| &e["note"]).collect();
    assert_eq!(notes, ["n", "old"]);
    let found = one.get(&format!("{NEW}?fieldSelector=regarding.name%3Dx")).await.ok();
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    assert_eq!(one.get(&format!("{NEW}?fieldSelector=involvedObject.name%3Dx")).await.code, 400);
    let rows = one.wants(TABLE).get(NEW).await.ok();
    assert_eq!(rows["rows"][1]["cells"][6], "old");
    assert_eq!(meta(&one.wants(PARTIAL).get(&format!("{NEW}/b")).await.ok(), "name"), "b");
}

#[tokio::test]
async fn changed_and_watched_in_both() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.post(NEW, &event("a")).await.ok();
    let mut core = one.watch(&format!("{CORE}?watch=true")).await;
    let mut new = one.watch(&format!("{NEW}?watch=true")).await;
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}});
    let changed = one.merge(&format!("{NEW}/a"), &series).await.ok();
    assert_eq!(changed["series"]["count"], 2);
    assert_eq!(one.merge(&format!("{NEW}/a"), &series).await.ok()["metadata"], changed["metadata"]);
    assert_eq!(one.merge(&format!("{NEW}/a"), &json!({"note": "x"})).await.code, 422);
    for (watch, field) in [(&mut core, "message"), (&mut new, "note")] {
        assert_eq!(watch.event().await.unwrap().0, "ADDED");
        let (kind, _, object) = watch.event().await.unwrap();
        assert_eq!((&*kind, &object[field]), ("MODIFIED", &json!("n")));
    }
    let applied =
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a", "labels": {"l": "1"}}});
    let path = format!("{NEW}/a?fieldManager=m");
    one.send("PATCH", &path, "application/apply-patch+yaml", applied.to_string()).await.ok();
    assert_eq!(one.get(&format!("{CORE}/a")).await.ok()["metadata"]["labels"]["l"], "1");
    let gone = one.delete(NEW).await.ok();
    assert_eq!(gone["items"].as_array().unwrap().len(), 1);
    assert_eq!(one.get(&format!("{CORE}/a")).await.code, 404);
}
