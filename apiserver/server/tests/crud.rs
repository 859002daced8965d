//! Every kind of the table is created, read, changed, listed and deleted in two clusters at once, under the same
//! names; the two never meet.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use apiserver_machinery::{Resource, builtin};
use serde_json::{Value, json};
use support::{Client, meta, server};

fn collection(resource: &Resource) -> String {
    let root = if resource.group.is_empty() {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let namespace = if resource.is_namespaced() { "/namespaces/default" } else { "" };
    format!("{root}{namespace}/{}", resource.plural)
}

/// The least that the kind accepts, with what it must have beside its metadata.
fn sample(resource: &Resource, name: &str) -> Value {
    let mut object = json!({"metadata": {"name": name, "labels": {"l": "a"}}});
    let more = match resource.kind {
        "Event" => {
            json!({"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "R", "type": "Normal"})
        }
        "FlowSchema" => json!({"spec": {"priorityLevelConfiguration": {"name": "exempt"}, "rules": []}}),
        "PriorityLevelConfiguration" => {
            json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}})
        }
        "Lease" => json!({"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}),
        _ => json!({}),
    };
    for (key, value) in more.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

async fn both(resource: &Resource, one: &Client, two: &Client) {
    let path = collection(resource);
    // The singleton of the cluster exists already.
    let fixed = resource.kind == "LogicalCluster";
    let name = if fixed { "cluster" } else { "same" };
    let item = format!("{path}/{name}");
    if !fixed {
        for (client, other) in [(one, two), (two, one)] {
            let created = client.post(&path, &sample(resource, name)).await;
            assert_eq!(created.code, 201, "{}: {:?}", resource.plural, created.bytes);
            let created = created.json();
            assert_eq!(
                created["metadata"]["annotations"]["kcp.io/cluster"],
                client.prefix.trim_start_matches("/clusters/")
            );
            assert_eq!(
                (&created["kind"], &created["apiVersion"]),
                (&json!(resource.kind), &json!(resource.api_version()))
            );
            assert_eq!(client.post(&path, &sample(resource, name)).await.code, 409, "{}", resource.plural);
            let _ = other;
        }
    }
    let (a, b) = (one.get(&item).await.ok(), two.get(&item).await.ok());
    assert_ne!(meta(&a, "uid"), meta(&b, "uid"));
    assert_ne!(meta(&a, "resourceVersion"), meta(&b, "resourceVersion"));
    // A change in one is not seen in the other.
    let patched = one.merge(&item, &json!({"metadata": {"labels": {"only": "one"}}})).await.ok();
    assert!(
        meta(&patched, "resourceVersion").parse::<u64>().unwrap() > meta(&b, "resourceVersion").parse::<u64>().unwrap()
    );
    assert_eq!(two.get(&item).await.ok(), b, "{}", resource.plural);
    // Putting back what was read changes nothing, not even the version.
    let again = one.put(&item, &patched).await.ok();
    assert_eq!(again, patched, "{}", resource.plural);
    let listed = one.get(&path).await.ok();
    assert_eq!(listed["kind"], resource.list_kind());
    let names =
        |list: &Value| list["items"].as_array().unwrap().iter().map(|o| meta(o, "name").to_owned()).collect::<Vec<_>>();
    assert!(names(&listed).iter().any(|n| n == name));
    for object in listed["items"].as_array().unwrap() {
        assert_eq!(object.get("kind"), None);
        assert_eq!(object["metadata"]["annotations"]["kcp.io/cluster"], "one");
    }
    if fixed {
        return;
    }
    one.delete(&item).await.ok();
    assert_eq!(two.get(&item).await.code, 200, "{}", resource.plural);
    if resource.kind != "Namespace" {
        assert_eq!(one.get(&item).await.code, 404, "{}", resource.plural);
        assert_eq!(one.delete(&item).await.code, 404);
    }
}

#[tokio::test]
async fn every_kind_in_two_clusters() {
    let server = server().await;
    let (one, two) = (Client::new(&server, "one"), Client::new(&server, "two"));
    for resource in builtin::all() {
        both(resource, &one, &two).await;
    }
}

#[tokio::test]
async fn the_wildcard_sees_both_and_says_whose_they_are() {
    let server = server().await;
    let (one, two) = (Client::new(&server, "one"), Client::new(&server, "two"));
    one.map("a", "1").await;
    two.map("a", "2").await;
    let all = Client { prefix: "/clusters/*".into(), ..one.clone() };
    let list = all.get("/api/v1/configmaps").await.ok();
    let seen: Vec<(&str, &str)> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| (o["metadata"]["annotations"]["kcp.io/cluster"].as_str().unwrap(), o["data"]["k"].as_str().unwrap()))
        .collect();
    assert_eq!(seen, [("one", "1"), ("two", "2")]);
    let encoded = Client { prefix: "/clusters/%2A".into(), ..one.clone() };
    assert_eq!(encoded.get("/api/v1/configmaps").await.ok()["items"], list["items"]);
    let limited = all.get("/api/v1/configmaps?limit=1").await.ok();
    assert_eq!(limited["metadata"]["remainingItemCount"], 1);
    let token = limited["metadata"]["continue"].as_str().unwrap();
    let rest = all.get(&format!("/api/v1/configmaps?limit=1&continue={token}")).await.ok();
    assert_eq!(rest["items"][0]["data"]["k"], "2");
    let mut watch = all.watch("/api/v1/configmaps?watch=1&resourceVersion=0").await;
    assert_eq!(watch.event().await.unwrap().0, "ADDED");
    assert_eq!(watch.event().await.unwrap().0, "ADDED");
    two.delete("/api/v1/namespaces/default/configmaps/a").await.ok();
    let (kind, _, object) = watch.event().await.unwrap();
    assert_eq!((&*kind, &object["metadata"]["annotations"]["kcp.io/cluster"]), ("DELETED", &json!("two")));
}

#[tokio::test]
async fn what_the_client_writes_as_its_cluster_does_not_count() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let body = json!({"metadata": {"name": "a", "annotations": {"kcp.io/cluster": "two", "x": "y"}}});
    let created = one.post("/api/v1/namespaces/default/configmaps", &body).await.ok();
    assert_eq!(created["metadata"]["annotations"], json!({"kcp.io/cluster": "one", "x": "y"}));
    let patched = one
        .merge(
            "/api/v1/namespaces/default/configmaps/a",
            &json!({"metadata": {"annotations": {"kcp.io/cluster": "two"}}}),
        )
        .await
        .ok();
    assert_eq!(meta(&patched, "resourceVersion"), meta(&created, "resourceVersion"));
    assert_eq!(Client::new(&server, "two").get("/api/v1/namespaces/default/configmaps/a").await.code, 404);
}

#[tokio::test]
async fn the_namespace_must_exist_and_stay() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let maps = |ns: &str| format!("/api/v1/namespaces/{ns}/configmaps");
    let body = json!({"metadata": {"name": "a"}});
    let missing = one.post(&maps("none"), &body).await;
    assert_eq!(missing.refusal(), (404, "NotFound".into(), "namespaces \"none\" not found".into()));
    one.namespace("x").await;
    one.post(&maps("x"), &body).await.ok();
    let dying = one.delete("/api/v1/namespaces/x").await.ok();
    assert_eq!(dying["status"]["phase"], "Terminating");
    assert_ne!(meta(&dying, "deletionTimestamp"), "");
    let again = one.delete("/api/v1/namespaces/x").await.ok();
    assert_eq!(again, dying);
    let refused = one.post(&maps("x"), &json!({"metadata": {"name": "b"}})).await;
    assert_eq!(refused.refusal().0, 403);
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    // What is there can still be changed.
    one.merge(&format!("{}/a", maps("x")), &json!({"data": {"k": "v"}})).await.ok();
    let mut finalize = dying.clone();
    finalize["spec"]["finalizers"] = json!([]);
    one.put("/api/v1/namespaces/x/finalize", &finalize).await.ok();
    assert_eq!(one.get("/api/v1/namespaces/x").await.code, 404);
    let immortal = one.delete("/api/v1/namespaces/default").await;
    assert_eq!(
        immortal.refusal(),
        (403, "Forbidden".into(), "namespaces \"default\" is forbidden: this namespace may not be deleted".into())
    );
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let path = "/api/v1/namespaces/default/configmaps";
    one.post(path, &json!({"metadata": {"name": "f", "finalizers": ["a.dev/x", "a.dev/y"]}})).await.ok();
    let mut watch = one.watch(&format!("{path}?watch=1&resourceVersion=0")).await;
    watch.event().await.unwrap();
    let item = format!("{path}/f");
    let dying = one.delete(&item).await.ok();
    assert_eq!((&dying["kind"], &dying["metadata"]["deletionGracePeriodSeconds"]), (&json!("ConfigMap"), &json!(0)));
    assert_eq!(watch.event().await.unwrap().0, "MODIFIED");
    let added = one.merge(&item, &json!({"metadata": {"finalizers": ["a.dev/x", "a.dev/y", "a.dev/z"]}})).await;
    assert_eq!(added.code, 422, "{:?}", added.bytes);
    one.merge(&item, &json!({"metadata": {"finalizers": ["a.dev/x"]}})).await.ok();
    assert_eq!(watch.event().await.unwrap().0, "MODIFIED");
    let last = one.merge(&item, &json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(meta(&last, "name"), "f");
    let (kind, _, gone) = watch.event().await.unwrap();
    assert_eq!(kind, "DELETED");
    assert!(
        meta(&gone, "resourceVersion").parse::<u64>().unwrap()
            > meta(&dying, "resourceVersion").parse::<u64>().unwrap()
    );
    assert_eq!(one.get(&item).await.code, 404);
    // The policy is word for the garbage collector, which takes these finalizers off (it does not run here); the last
    // policy counts, and Background takes them off at once.
    for (policy, finalizer) in
        [("Foreground", "foregroundDeletion"), ("Orphan", "orphan"), ("Foreground", "foregroundDeletion")]
    {
        one.send("POST", path, "application/json", json!({"metadata": {"name": "p"}}).to_string()).await;
        let dying = one.delete(&format!("{path}/p?propagationPolicy={policy}")).await.ok();
        assert_eq!(dying["metadata"]["finalizers"], json!([finalizer]), "{policy}");
        assert_ne!(meta(&dying, "deletionTimestamp"), "");
    }
    assert_eq!(meta(&one.delete(&format!("{path}/p")).await.ok(), "name"), "p");
    let gone = one.delete(&format!("{path}/p?propagationPolicy=Background")).await.ok();
    assert_eq!(gone["status"], "Success");
}

#[tokio::test]
async fn status_and_object_are_written_apart() {
    let server = server().await;
    let root = Client::new(&server, "root");
    let path = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    let created = root.post(path, &json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "w"}, "status": {"phase": "Ready"}})).await.ok();
    assert_eq!(created["status"]["phase"], "Scheduling", "{created}");
    assert_eq!(created["metadata"]["generation"], 1);
    let status = root
        .merge(&format!("{path}/w/status"), &json!({"spec": {"cluster": "abc"}, "status": {"phase": "Initializing"}}))
        .await
        .ok();
    assert_eq!((&status["status"]["phase"], status["spec"].get("cluster")), (&json!("Initializing"), None));
    assert_eq!(status["metadata"]["generation"], 1);
    let spec =
        root.merge(&format!("{path}/w"), &json!({"spec": {"cluster": "abc"}, "status": {"phase": "Ready"}})).await.ok();
    assert_eq!((&spec["status"]["phase"], &spec["spec"]["cluster"]), (&json!("Initializing"), &json!("abc")));
    assert_eq!(spec["metadata"]["generation"], 2);
    let owner: Value =
        serde_json::from_str(spec["metadata"]["annotations"]["experimental.tenancy.kcp.io/owner"].as_str().unwrap())
            .unwrap();
    assert_eq!(owner["username"], "admin");
}

#[tokio::test]
async fn dry_runs_write_nothing() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let path = "/api/v1/namespaces/default/configmaps";
    let before = server.registry().store().revision();
    let created = one.post(&format!("{path}?dryRun=All"), &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(created.code, 201);
    assert_eq!(created.json()["metadata"].get("resourceVersion"), None);
    assert_ne!(meta(&created.json(), "uid"), "");
    assert_eq!(one.get(&format!("{path}/a")).await.code, 404);
    assert_eq!(server.registry().store().revision(), before);
    let real = one.map("a", "1").await;
    let patched = one.merge(&format!("{path}/a?dryRun=All"), &json!({"data": {"k": "2"}})).await.ok();
    assert_eq!(patched["data"]["k"], "2");
    assert_eq!(one.delete(&format!("{path}/a?dryRun=All")).await.ok()["status"], "Success");
    assert_eq!(one.get(&format!("{path}/a")).await.ok(), real);
}
