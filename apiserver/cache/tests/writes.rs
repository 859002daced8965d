//! Writes, and what is refused.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use apiserver_machinery::options::{DeleteOptions, ListOptions, WriteOptions};
use apiserver_server::{Registry, registry::Collection};
use serde_json::{Value, json};
use support::{Client, EXPORTS, Events, admin, at, export, place};

const CLUSTERS: &str = "/apis/core.kcp.io/v1alpha1/logicalclusters";

#[tokio::test]
async fn from_creation_to_end_in_one_place() {
    let client = admin();
    client.put("ruby", "root", "a").await;
    client.put("amber", "one", "a").await;
    let created = client.put("amber", "root", "a").await;
    let one = at("amber", "root", &format!("{EXPORTS}/a"));
    assert_eq!(client.refused("POST", &at("amber", "root", EXPORTS), Some(&export("a", 1))).await.0, 409);

    // The status is written with the rest: there is no subresource.
    let mut new = created.clone();
    (new["spec"], new["status"]) = (json!({"b": [1, 2]}), json!({"c": true}));
    let (code, updated) = client.send("PUT", &one, Some(&new)).await;
    assert_eq!((code, &updated["spec"], &updated["status"]), (200, &new["spec"], &new["status"]), "{updated}");
    assert_eq!(client.refused("PUT", &format!("{one}/status"), Some(&new)).await.0, 404);
    assert_eq!(client.refused("PUT", &one, Some(&new)).await.0, 409);
    let (code, patched) = client.send("PATCH", &one, Some(&json!({"status": {"c": null, "d": 0}}))).await;
    assert_eq!((code, &patched["status"]), (200, &json!({"d": 0})), "{patched}");
    let (code, gone) = client.send("DELETE", &one, None).await;
    assert_eq!((code, &gone["status"]), (200, &json!("Success")));
    assert_eq!(client.get(&one).await.0, 404);
    // The same name in other places was never touched.
    for (shard, cluster) in [("ruby", "root"), ("amber", "one")] {
        let (code, other) = client.get(&at(shard, cluster, &format!("{EXPORTS}/a"))).await;
        assert_eq!((code, &other["spec"]), (200, &json!({})));
    }
}

#[tokio::test]
async fn wildcards_are_not_written() {
    let client = admin();
    client.put("amber", "root", "a").await;
    let (body, named) = (export("a", 1), format!("{EXPORTS}/a"));
    for (shard, cluster, star) in [("*", "root", "shard"), ("amber", "*", "logical cluster"), ("*", "*", "shard")] {
        for (method, path) in [("POST", EXPORTS), ("PUT", &*named), ("PATCH", &named), ("DELETE", &named)] {
            let (code, message) = client.refused(method, &at(shard, cluster, path), Some(&body)).await;
            assert_eq!(code, 405, "{method} {shard} {cluster}: {message}");
            assert!(message.ends_with(&format!(" in the `*` {star}")), "{message}");
        }
    }
    for cluster in ["root", "*"] {
        assert_eq!(client.refused("DELETE", &at("*", cluster, EXPORTS), None).await.0, 405);
    }
    assert_eq!(client.list(&at("*", "*", EXPORTS)).await, ["amber|root/a"]);
}

#[tokio::test]
async fn the_copies_of_one_shard_can_be_dropped() {
    let client = admin();
    for (shard, cluster) in [("amber", "root"), ("amber", "one"), ("ruby", "root")] {
        client.put(shard, cluster, "a").await;
    }
    let (code, dropped) = client.send("DELETE", &at("amber", "*", EXPORTS), None).await;
    assert_eq!(code, 200, "{dropped}");
    assert_eq!(
        dropped["items"].as_array().unwrap().iter().map(place).collect::<Vec<_>>(),
        ["amber|one/a", "amber|root/a"]
    );
    assert_eq!(client.list(&at("*", "*", EXPORTS)).await, ["ruby|root/a"]);
}

#[tokio::test]
async fn a_copy_keeps_what_is_its_originals() {
    let client = admin();
    let mut object = export("a", 1);
    let original = json!({"uid": "u-1", "generation": 11, "creationTimestamp": "2020-01-01T00:00:00Z"});
    for (field, value) in original.as_object().unwrap() {
        object["metadata"][field] = value.clone();
    }
    object["metadata"]["finalizers"] = json!(["doNotRemove"]);
    // Who does not say that it is a copy gets an identity of its own.
    let (_, own) = client.send("POST", &at("amber", "one", EXPORTS), Some(&object)).await;
    object["metadata"]["annotations"] = json!({"kcp.io/shard": "amber"});
    let (_, copy) = client.send("POST", &at("amber", "root", EXPORTS), Some(&object)).await;
    for (field, value) in original.as_object().unwrap() {
        assert_eq!(&copy["metadata"][field], value, "{field}");
        assert_ne!(&own["metadata"][field], value, "{field}");
    }
    // The content moves no generation; the writer does.
    let path = at("amber", "root", &format!("{EXPORTS}/a"));
    let (_, changed) = client.send("PATCH", &path, Some(&json!({"spec": 2}))).await;
    assert_eq!(changed["metadata"]["generation"], 11);
    let later = json!({"metadata": {"generation": 12, "creationTimestamp": "2021-01-01T00:00:00Z"}});
    let (_, changed) = client.send("PATCH", &path, Some(&later)).await;
    assert_eq!(changed["metadata"]["generation"], 12);
    assert_eq!(changed["metadata"]["creationTimestamp"], "2021-01-01T00:00:00Z");
    // Finalizers hold the original, not the copy.
    assert_eq!(client.send("DELETE", &path, None).await.1["status"], "Success");
    assert_eq!(client.get(&path).await.0, 404);
}

#[tokio::test]
async fn a_deleted_copy_of_a_logical_cluster_ends_nothing() {
    let client = admin();
    let object = json!({"metadata": {"name": "cluster"}, "status": {"phase": "Ready"}});
    let (code, created) = client.send("POST", &at("amber", "one", CLUSTERS), Some(&object)).await;
    assert_eq!((code, &created["status"]["phase"]), (201, &json!("Ready")), "{created}");
    let path = at("amber", "one", &format!("{EXPORTS}?watch=true&resourceVersion=1"));
    let mut events = Events::open(&client, &path).await;
    assert_eq!(client.send("DELETE", &at("amber", "one", &format!("{CLUSTERS}/cluster")), None).await.0, 200);
    client.put("amber", "one", "a").await;
    assert_eq!(events.told().await, "ADDED amber|one/a");
}

#[tokio::test]
async fn places_are_refused_by_name() {
    let client = admin();
    for (path, words) in [
        ("/services/cache/shards/Amber/clusters/*/apis".to_owned(), "invalid shard"),
        ("/shards//clusters/root/apis".to_owned(), "a shard name is required"),
        (EXPORTS.to_owned(), "a shard name is required"),
        (at("amber", "root:org", EXPORTS), "\"root:org\" is not a logical cluster name"),
        (format!("/shards/amber{EXPORTS}"), "a logical cluster name is required"),
    ] {
        let (code, message) = client.refused("GET", &path, None).await;
        assert!(code == 400 && message.contains(words), "{path}: {code} {message}");
    }
    for path in ["/shards/amber/metrics", "/services/cache/shards/*/clusters/root/metrics"] {
        let (code, message) = client.refused("GET", path, None).await;
        assert_eq!(
            (code, &*message),
            (501, "shard-level endpoint not available at shard or workspace scope\n"),
            "{path}"
        );
    }
    for path in
        ["/apis/tenancy.kcp.io/v1alpha1/workspaces", "/api/v1/configmaps", "/apis/apis.kcp.io/v1alpha1/apiexports"]
    {
        assert_eq!(client.refused("GET", &at("amber", "root", path), None).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn only_masters_come_in() {
    let masters = admin();
    masters.put("amber", "root", "a").await;
    for groups in [&[][..], &["system:kcp:admin", "system:authenticated"]] {
        let client = Client { groups, ..masters.clone() };
        for path in [EXPORTS, "/apis", "/version", "/healthz"] {
            assert_eq!(client.refused("GET", &at("amber", "root", path), None).await.0, 403, "{path}");
        }
        assert_eq!(client.refused("POST", &at("amber", "root", EXPORTS), Some(&export("b", 1))).await.0, 403);
        assert_eq!(client.refused("GET", "/metrics", None).await.0, 403);
        for path in ["/livez", "/readyz", "/services/cache/healthz"] {
            assert_eq!(client.get(path).await, (200, json!("ok")), "{path}");
        }
    }
}

#[tokio::test]
async fn discovery_names_what_is_held() {
    let client = admin();
    let (code, groups) = client.get(&at("*", "*", "/apis")).await;
    let names: Vec<&Value> = groups["groups"].as_array().unwrap().iter().map(|g| &g["name"]).collect();
    assert_eq!((code, names.len()), (200, 7), "{groups}");
    let (_, list) = client.get(&at("*", "*", "/apis/apis.kcp.io/v1alpha1")).await;
    let names: Vec<&Value> = list["resources"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert_eq!(names, ["apiconversions", "apiexportendpointslices", "apiresourceschemas"]);
    assert_eq!(client.get(&at("*", "*", "/openapi/v3")).await.0, 404);
}

#[tokio::test]
async fn contents_are_free_but_not_the_envelope() {
    let client = admin();
    let path = at("amber", "root", EXPORTS);
    let roles = at("amber", "root", "/apis/rbac.authorization.k8s.io/v1/clusterroles");
    for (path, body, want, words) in [
        (&path, json!({"spec": 1}), 422, "metadata.name: Required value"),
        (&path, json!({"metadata": {"name": "a/b"}}), 422, "may not contain '/'"),
        (&path, json!({"kind": "Shard", "metadata": {"name": "a"}}), 400, "cannot be handled as a APIExport"),
        (&path, json!({"apiVersion": "v1", "metadata": {"name": "a"}}), 400, "does not match the expected API version"),
        (&path, json!({"metadata": {"name": "a", "labels": 1}}), 400, "labels"),
        (&path, json!([1]), 400, "want an object"),
        (&roles, json!({"metadata": {"name": "system:kcp:Admin"}, "rules": null}), 201, ""),
    ] {
        let (code, message) = client.refused("POST", path, Some(&body)).await;
        assert!(code == want && message.contains(words), "{body}: {code} {message}");
    }
    let kept = client.get(&format!("{roles}/system:kcp:Admin")).await;
    assert_eq!((kept.0, kept.1.get("rules")), (200, Some(&Value::Null)));
}

#[tokio::test]
async fn without_http_a_write_needs_its_shard_too() {
    let server = admin().server;
    let exports = apiserver_cache::resources::find("apis.kcp.io", "apiexports").unwrap();
    let root = "root".parse().unwrap();
    let create =
        async |registry: &Registry| registry.create(exports, &root, "", export("a", 1), &WriteOptions::default()).await;
    assert_eq!(create(server.registry()).await.unwrap_err().code, 500);
    let amber = server.registry().of_shard("amber");
    let created = create(&amber).await.unwrap();
    assert_eq!((created.shard(), created.cluster(), created.name()), (Some("amber"), "root", "a"));
    let (list, delete) = (ListOptions::default(), DeleteOptions::default());
    let everywhere = Collection::everywhere();
    assert_eq!(
        server.registry().delete_collection(exports, &everywhere, &list, &delete, |_| Ok(())).await.unwrap_err().code,
        500
    );
    assert_eq!(server.registry().list(exports, &everywhere, &list).await.unwrap().items.len(), 1);
    assert_eq!(
        amber.delete_collection(exports, &everywhere, &list, &delete, |_| Ok(())).await.unwrap().0.items.len(),
        1
    );
    assert_eq!(server.registry().list(exports, &everywhere, &list).await.unwrap().items.len(), 0);
}
