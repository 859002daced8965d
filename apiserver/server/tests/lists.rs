//! Lists, pages, selectors, tables, watches.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use serde_json::{Value, json};
use support::{Client, PARTIAL, PARTIAL_LIST, TABLE, meta, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn names(list: &Value) -> Vec<String> {
    list["items"].as_array().unwrap().iter().map(|o| meta(o, "name").to_owned()).collect()
}

#[tokio::test]
async fn pages_are_of_one_revision_while_somebody_writes() {
    let server = server().await;
    let one = Client::new(&server, "one");
    for name in ["a", "b", "c", "d", "e"] {
        one.map(name, "old").await;
    }
    let first = one.get(&format!("{MAPS}?limit=2")).await.ok();
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a".into(), "b".into()], &json!(3)));
    one.delete(&format!("{MAPS}/c")).await.ok();
    one.map("bb", "new").await;
    one.merge(&format!("{MAPS}/d"), &json!({"data": {"k": "new"}})).await.ok();
    let mut token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let mut seen = Vec::new();
    while !token.is_empty() {
        let page = one.get(&format!("{MAPS}?limit=2&continue={token}")).await.ok();
        assert_eq!(page["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        for object in page["items"].as_array().unwrap() {
            assert_eq!(object["data"]["k"], "old");
        }
        seen.extend(names(&page));
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    }
    assert_eq!(seen, ["c", "d", "e"]);
    let old = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = one.get(&format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact")).await.ok();
    assert_eq!(names(&exact), ["a", "b", "c", "d", "e"]);
    assert_eq!(names(&one.get(MAPS).await.ok()), ["a", "b", "bb", "d", "e"]);
}

#[tokio::test]
async fn a_forgotten_page_comes_with_a_token_to_go_on() {
    let server = server().await;
    let one = Client::new(&server, "one");
    for name in ["a", "b", "c"] {
        one.map(name, "old").await;
    }
    let first = one.get(&format!("{MAPS}?limit=1")).await.ok();
    one.map("d", "new").await;
    let store = server.registry().store();
    store.compact(store.revision()).await.unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let refused = one.get(&format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!((refused.code, refused.refusal().1.as_str()), (410, "Expired"));
    let token = refused.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let rest = one.get(&format!("{MAPS}?continue={token}")).await.ok();
    assert_eq!(names(&rest), ["b", "c", "d"]);
    let old = first["metadata"]["resourceVersion"].as_str().unwrap();
    let refused = one.get(&format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact")).await;
    assert_eq!(
        (refused.code, refused.refusal().2.as_str()),
        (410, "The resourceVersion for the provided list is too old.")
    );
    let mut watch = one.watch(&format!("{MAPS}?watch=1&resourceVersion={old}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"], &event["object"]["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn selectors_choose_and_pages_stay_full() {
    let server = server().await;
    let one = Client::new(&server, "one");
    for n in 0..20 {
        let labels = json!({"parity": if n % 2 == 0 { "even" } else { "odd" }});
        one.post(MAPS, &json!({"metadata": {"name": format!("m{n:02}"), "labels": labels}})).await.ok();
    }
    let first = one.get(&format!("{MAPS}?labelSelector=parity%3Deven&limit=4")).await.ok();
    assert_eq!(names(&first), ["m00", "m02", "m04", "m06"]);
    assert_eq!(first["metadata"].get("remainingItemCount"), None);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = one.get(&format!("{MAPS}?labelSelector=parity%3Deven&limit=6&continue={token}")).await.ok();
    assert_eq!(names(&rest).len(), 6);
    // Exactly the last match: no token that would lead to an empty page.
    assert_eq!(rest["metadata"].get("continue"), None);
    let by_name = one.get(&format!("{MAPS}?fieldSelector=metadata.name%3Dm03")).await.ok();
    assert_eq!(names(&by_name), ["m03"]);
    let none = one.get(&format!("{MAPS}?fieldSelector=metadata.name%3Dm0")).await.ok();
    assert_eq!(names(&none), Vec::<String>::new());
    let everywhere = one.get("/api/v1/configmaps?fieldSelector=metadata.name%3Dm03").await.ok();
    assert_eq!(names(&everywhere), ["m03"]);
}

#[tokio::test]
async fn a_watch_resumes_where_it_ended() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let a = one.map("a", "1").await;
    one.map("b", "1").await;
    one.merge(&format!("{MAPS}/a"), &json!({"data": {"k": "2"}})).await.ok();
    one.delete(&format!("{MAPS}/b")).await.ok();
    let mut watch = one.watch(&format!("{MAPS}?watch=true&resourceVersion={}", meta(&a, "resourceVersion"))).await;
    let mut seen = Vec::new();
    let mut last = 0;
    for _ in 0..3 {
        let (kind, name, object) = watch.event().await.unwrap();
        assert_eq!(object["kind"], "ConfigMap");
        let version: u64 = meta(&object, "resourceVersion").parse().unwrap();
        assert!(version > last);
        last = version;
        seen.push((kind, name));
    }
    let want = [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")].map(|(k, n)| (k.to_owned(), n.to_owned()));
    assert_eq!(seen, want);
    drop(watch);
    let mut watch = one.watch(&format!("{MAPS}?watch=true&resourceVersion={last}")).await;
    one.map("c", "1").await;
    assert_eq!(watch.event().await.unwrap().1, "c");
}

#[tokio::test]
async fn an_object_enters_and_leaves_a_selector() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let a = one.map("a", "1").await;
    let mut watch =
        one.watch(&format!("{MAPS}?watch=1&labelSelector=l%3Dx&resourceVersion={}", meta(&a, "resourceVersion"))).await;
    let label = |l: &str| json!({"metadata": {"labels": {"l": l}}});
    let item = format!("{MAPS}/a");
    one.merge(&item, &json!({"data": {"k": "2"}})).await.ok();
    one.merge(&item, &label("x")).await.ok();
    one.merge(&item, &json!({"data": {"k": "3"}})).await.ok();
    let left = one.merge(&item, &label("y")).await.ok();
    one.merge(&item, &label("x")).await.ok();
    one.delete(&item).await.ok();
    let mut seen = Vec::new();
    for n in 0..5 {
        let (kind, _, object) = watch.event().await.unwrap();
        if n == 2 {
            // As it was before the change, at the version of the change.
            assert_eq!(object["metadata"]["labels"]["l"], "x");
            assert_eq!(meta(&object, "resourceVersion"), meta(&left, "resourceVersion"));
        }
        seen.push(kind);
    }
    assert_eq!(seen, ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]);
}

#[tokio::test]
async fn a_watch_can_begin_with_the_state() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let list = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut empty = one.watch(&format!("{MAPS}?watch=1&{list}")).await;
    let mark = empty.next().await.unwrap();
    assert_eq!(
        (&mark["type"], &mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"]),
        (&json!("BOOKMARK"), &json!("true"))
    );
    one.map("a", "1").await;
    let b = one.map("b", "1").await;
    let mut watch = one.wants(PARTIAL).watch(&format!("{MAPS}?watch=1&{list}")).await;
    for name in ["a", "b"] {
        let event = watch.next().await.unwrap();
        assert_eq!((meta(&event["object"], "name"), &event["object"]["kind"]), (name, &json!("PartialObjectMetadata")));
        assert_eq!(event["object"].get("data"), None);
    }
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(meta(&mark["object"], "resourceVersion"), meta(&b, "resourceVersion"));
    let mut future = one.watch(&format!("{MAPS}?watch=1&{list}&resourceVersion=99999999")).await;
    assert_eq!(future.next().await.unwrap()["object"]["code"], 504);
    let refused = one.get(&format!("{MAPS}?watch=1&sendInitialEvents=true")).await;
    assert_eq!(refused.code, 422);
    // Without initial events: only what comes.
    let mut later =
        one.watch(&format!("{MAPS}?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")).await;
    one.map("c", "1").await;
    assert_eq!(later.event().await.unwrap().1, "c");
}

#[tokio::test]
async fn reads_wait_for_a_revision() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let wanted = meta(&one.map("a", "1").await, "resourceVersion").parse::<u64>().unwrap() + 1;
    let object = format!("{MAPS}/a?resourceVersion={wanted}");
    let whole = format!("{MAPS}?resourceVersion={wanted}");
    let page = format!("{whole}&resourceVersionMatch=NotOlderThan&limit=1");
    let stream = format!("{whole}&resourceVersionMatch=NotOlderThan&watch=true&sendInitialEvents=true");
    // In this order: the reads are asked for before the write.
    let (object, whole, page, mut stream, _) =
        tokio::join!(one.get(&object), one.get(&whole), one.get(&page), one.watch(&stream), one.map("b", "2"));
    assert_eq!(meta(&object.ok(), "name"), "a");
    assert_eq!(names(&whole.ok()), ["a", "b"]);
    assert_eq!(names(&page.ok()), ["a"]);
    assert_eq!(stream.event().await.unwrap().1, "a");

    // Only for a while; an exact version not at all.
    tokio::time::pause();
    let never = format!("{MAPS}?resourceVersion=99999999&resourceVersionMatch=");
    for (path, retry) in [
        (format!("{MAPS}/a?resourceVersion=99999999"), Some(1)),
        (format!("{never}NotOlderThan"), Some(1)),
        (format!("{never}Exact"), None),
    ] {
        let answer = one.get(&path).await;
        assert_eq!(answer.code, 504, "{path}");
        assert_eq!(answer.json()["details"]["retryAfterSeconds"].as_i64(), retry, "{path}");
    }
    let refused =
        one.watch(&format!("{never}NotOlderThan&watch=true&sendInitialEvents=true")).await.next().await.unwrap();
    assert_eq!((&refused["type"], &refused["object"]["code"]), (&json!("ERROR"), &json!(504)));
}

#[tokio::test]
async fn any_state_comes_whole() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.map("a", "1").await;
    one.map("b", "2").await;
    let list = one.get(&format!("{MAPS}?limit=1&resourceVersion=0")).await.ok();
    assert_eq!(names(&list), ["a", "b"]);
    assert_eq!(list["metadata"]["continue"].as_str(), None);
}

#[tokio::test]
async fn bookmarks_advance_although_nothing_changed_here() {
    let server = server().await;
    let (one, two) = (Client::new(&server, "one"), Client::new(&server, "two"));
    let a = one.map("a", "1").await;
    let from = meta(&a, "resourceVersion");
    let mut watch =
        one.watch(&format!("{MAPS}?watch=1&resourceVersion={from}&allowWatchBookmarks=true&timeoutSeconds=4")).await;
    let other = two.map("a", "1").await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("BOOKMARK"), &json!("ConfigMap")));
    let told: u64 = meta(&event["object"], "resourceVersion").parse().unwrap();
    assert!(told >= meta(&other, "resourceVersion").parse().unwrap());
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn tables() {
    let server = server().await;
    let one = Client::new(&server, "one").wants(TABLE);
    let created = one.post(MAPS, &json!({"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})).await.ok();
    assert_eq!(created["kind"], "Table");
    one.map("b", "1").await;
    let list = one.get(MAPS).await;
    assert_eq!(list.headers["content-type"], "application/json");
    let list = list.ok();
    assert_eq!(list["columnDefinitions"][0]["format"], "name");
    let cells: Vec<&Value> = list["rows"].as_array().unwrap().iter().map(|r| &r["cells"][1]).collect();
    assert_eq!(cells, [&json!(2), &json!(1)]);
    let row = &list["rows"][0]["object"];
    assert_eq!(
        (&row["kind"], &row["metadata"]["annotations"]["kcp.io/cluster"]),
        (&json!("PartialObjectMetadata"), &json!("one"))
    );
    assert_eq!(one.get(&format!("{MAPS}?includeObject=Object")).await.ok()["rows"][0]["object"]["data"]["x"], "1");
    assert_eq!(one.get(&format!("{MAPS}?includeObject=None")).await.ok()["rows"][0]["object"], Value::Null);
    assert_eq!(one.get(&format!("{MAPS}?includeObject=Foo")).await.code, 400);
    let mut watch = one.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    assert!(watch.next().await.unwrap()["object"]["columnDefinitions"].is_array());
    assert_eq!(watch.next().await.unwrap()["object"]["columnDefinitions"], Value::Null);
}

#[tokio::test]
async fn metadata_only() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let whole = one.post(MAPS, &json!({"metadata": {"name": "a", "annotations": {"q": "{\\\"}"}, "labels": {"l": "x"}}, "data": {"k": "}"}})).await.ok();
    let part = one.wants(PARTIAL).get(&format!("{MAPS}/a")).await.ok();
    assert_eq!(
        part,
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": whole["metadata"]})
    );
    let list = one.wants(PARTIAL_LIST).get(MAPS).await.ok();
    assert_eq!(
        (&list["kind"], &list["items"][0]["metadata"]),
        (&json!("PartialObjectMetadataList"), &whole["metadata"])
    );
    assert_eq!(one.wants(PARTIAL).get(MAPS).await.code, 406);
    assert_eq!(one.wants(PARTIAL_LIST).get(&format!("{MAPS}/a")).await.code, 406);
}

#[tokio::test]
async fn a_long_list_is_whole() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let long = "x".repeat(10_000);
    for n in 0..40 {
        one.post(MAPS, &json!({"metadata": {"name": format!("m{n:02}")}, "data": {"k": long}})).await.ok();
    }
    let list = one.get(MAPS).await.ok();
    assert_eq!(list["items"].as_array().unwrap().len(), 40);
    assert_eq!(list["items"][39]["data"]["k"], json!(long));
}

#[tokio::test]
async fn a_removed_cluster_ends_its_watches_after_its_last_events() {
    let server = server().await;
    let (one, two) = (Client::new(&server, "one"), Client::new(&server, "two"));
    one.map("a", "1").await;
    let mut watch = one.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    let mut other = two.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    assert_eq!(watch.event().await.unwrap().0, "ADDED");
    one.delete(&format!("{MAPS}/a")).await.ok();
    let gone = one.delete("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").await;
    assert_eq!(gone.code, 200, "{:?}", gone.bytes);
    assert_eq!(watch.event().await.unwrap().0, "DELETED");
    assert!(watch.event().await.is_none());
    two.map("b", "1").await;
    assert_eq!(other.event().await.unwrap().1, "b");
}
