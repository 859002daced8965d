//! Who may do what, and how each refusal looks.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use apiserver_server::{BODY_LIMIT, Trust};
use serde_json::json;
use support::{Client, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn groups_and_clusters() {
    let server = server().await;
    let masters = Client::new(&server, "one");
    let admin = masters.user("kate", &["system:kcp:admin"]);
    let alice = masters.user("alice", &["system:authenticated"]);
    let at = |client: &Client, prefix: &str| Client { prefix: prefix.into(), ..client.clone() };
    for (client, path, code) in [
        (&masters, MAPS, 200),
        (&admin, MAPS, 200),
        (&alice, MAPS, 403),
        (&alice, "/apis", 200),
        (&alice, "/version", 200),
        (&alice, "/healthz", 200),
        (&at(&masters, "/clusters/*"), "/api/v1/configmaps", 200),
        (&at(&admin, "/clusters/*"), "/api/v1/configmaps", 403),
        (&at(&alice, "/clusters/*"), "/api/v1/configmaps", 403),
        (&at(&masters, "/clusters/none"), MAPS, 200),
        (&at(&admin, "/clusters/none"), MAPS, 403),
        (&at(&alice, "/clusters/none"), "/apis", 403),
        (&at(&admin, ""), "/api/v1/namespaces", 403),
        (&at(&masters, ""), "/api/v1/namespaces", 400),
        (&at(&alice, ""), "/apis", 200),
        (&at(&masters, "/clusters/Bad_Name"), "/api", 400),
        (&at(&masters, "/clusters/root:nowhere"), "/api", 404),
        (&at(&masters, "/clusters/one"), "/metrics", 501),
    ] {
        assert_eq!(client.get(path).await.code, code, "{} {}{path}", client.user, client.prefix);
    }
    let refused = alice.get(&format!("{MAPS}/x")).await;
    assert_eq!(refused.headers["x-content-type-options"], "nosniff");
    let text = "configmaps \"x\" is forbidden: User \"alice\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"default\": access denied";
    assert_eq!(refused.refusal(), (403, "Forbidden".into(), text.into()));
    // Nobody else's word about the user counts.
    let stranger = Client { trust: Trust::None, ..masters.clone() };
    assert!(stranger.get(MAPS).await.refusal().2.contains("User \"system:anonymous\""));
    assert_eq!(stranger.get("/livez").await.code, 200);
}

#[tokio::test]
async fn the_wildcard_is_for_reading_collections() {
    let server = server().await;
    let all = Client::new(&server, "*");
    let body = json!({"metadata": {"name": "a"}});
    for answer in [
        all.post(MAPS, &body).await,
        all.get(&format!("{MAPS}/a")).await,
        all.put(&format!("{MAPS}/a"), &body).await,
        all.merge(&format!("{MAPS}/a"), &body).await,
        all.delete(MAPS).await,
        all.delete(&format!("{MAPS}/a")).await,
    ] {
        let text = "the server does not allow this method on the requested resource in the `*` logical cluster";
        assert_eq!(answer.refusal(), (405, "MethodNotAllowed".into(), text.into()));
    }
    assert_eq!(all.get("/apis").await.code, 200);
}

#[tokio::test]
async fn paths_lead_through_workspaces() {
    let server = server().await;
    let root = Client::new(&server, "root");
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    for (name, cluster) in [("org", "one"), ("gone", "")] {
        root.post(workspaces, &json!({"metadata": {"name": name}, "spec": if cluster.is_empty() { json!({}) } else { json!({"cluster": cluster}) }})).await.ok();
    }
    Client::new(&server, "one")
        .post(workspaces, &json!({"metadata": {"name": "team"}, "spec": {"cluster": "two"}}))
        .await
        .ok();
    Client::new(&server, "one").map("a", "1").await;
    Client::new(&server, "two").map("b", "2").await;
    assert_eq!(
        Client::new(&server, "root:org").get(&format!("{MAPS}/a")).await.ok()["metadata"]["annotations"]["kcp.io/cluster"],
        "one"
    );
    for prefix in ["root:org:team", "one:team"] {
        assert_eq!(
            Client::new(&server, prefix).get(&format!("{MAPS}/b")).await.ok()["metadata"]["annotations"]["kcp.io/cluster"],
            "two"
        );
    }
    for prefix in ["root:gone", "root:org:none", "two:x"] {
        let refused = Client::new(&server, prefix).get(MAPS).await.refusal();
        assert_eq!(refused, (404, "NotFound".into(), format!("workspaces.tenancy.kcp.io \"{prefix}\" not found")));
    }
    root.merge(&format!("{workspaces}/org/status"), &json!({"status": {"phase": "Unavailable"}})).await.ok();
    let refused = Client::new(&server, "root:org:team").get(MAPS).await;
    assert_eq!((refused.code, refused.headers["retry-after"].to_str().unwrap()), (503, "1"));
    let logical = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster";
    let one = Client::new(&server, "one");
    one.merge(logical, &json!({"metadata": {"annotations": {"core.kcp.io/inactive": "true"}}})).await.ok();
    assert_eq!(
        one.get(MAPS).await.refusal().2,
        "logicalclusters.core.kcp.io \"one\" is forbidden: logical cluster is marked inactive"
    );
    one.get(logical).await.ok();
}

#[tokio::test]
async fn what_is_not_there_and_what_does_not_fit() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.map("x", "v").await;
    let body = json!({"metadata": {"name": "x"}});
    let lost = "the server could not find the requested resource";
    for (method, path, code, message) in [
        ("GET", "/api/v1/namespaces/default/frobs", 404, lost),
        ("GET", "/apis/none.dev/v1/foos", 404, lost),
        ("GET", "/foo/bar", 404, lost),
        ("GET", "/api/v1/configmaps/x", 404, lost),
        ("GET", "/api/v1/namespaces/default/workspaces", 404, lost),
        ("GET", "/api/v1/namespaces/default/configmaps/x/status", 404, lost),
        ("GET", "/api/v1/namespaces/default/configmaps/none", 404, "configmaps \"none\" not found"),
        ("GET", "/apis/tenancy.kcp.io/v1alpha1/workspaces/none", 404, "workspaces.tenancy.kcp.io \"none\" not found"),
        ("POST", "/api/v1/configmaps", 405, "the server does not allow this method on the requested resource"),
        ("PUT", MAPS, 405, "the server does not allow this method on the requested resource"),
        (
            "POST",
            "/api/v1/namespaces/default/configmaps/x",
            405,
            "the server does not allow this method on the requested resource",
        ),
        ("DELETE", "/api/v1/namespaces", 405, "the server does not allow this method on the requested resource"),
        ("POST", "/version", 405, "the server does not allow this method on the requested resource"),
        ("POST", MAPS, 409, "configmaps \"x\" already exists"),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps?limit=abc",
            400,
            "strconv.ParseInt: parsing \"abc\": invalid syntax",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps?timeout=abc",
            400,
            "invalid timeout specified in the request URL - time: invalid duration \"abc\"",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps?resourceVersion=99999999&resourceVersionMatch=NotOlderThan",
            504,
            "Timeout: Too large resource version: 99999999, current: ",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps/x?resourceVersion=99999999",
            504,
            "Timeout: Too large resource version: 99999999, current: ",
        ),
        ("GET", "/api/v1/namespaces/default/configmaps?continue=abc", 400, "invalid continue token: "),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps?fieldSelector=data.k%3Dv",
            400,
            "\"data.k\" is not a known field selector",
        ),
    ] {
        let answer = one.send(method, path, "application/json", body.to_string()).await;
        let (got, _, text) = answer.refusal();
        assert_eq!(got, code, "{method} {path}: {text}");
        assert!(text.starts_with(message), "{method} {path}: {text}");
        assert_eq!(answer.headers["cache-control"], "no-cache, private");
        assert!(answer.headers.contains_key("audit-id"));
        assert_eq!(answer.headers.contains_key("retry-after"), code == 504, "{path}");
    }
}

#[tokio::test]
async fn concurrent_changes() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let mut old = one.map("x", "1").await;
    let item = format!("{MAPS}/x");
    one.merge(&item, &json!({"data": {"k": "2"}})).await.ok();
    let text = "Operation cannot be fulfilled on configmaps \"x\": the object has been modified; please apply your changes to the latest version and try again";
    assert_eq!(one.put(&item, &old).await.refusal(), (409, "Conflict".into(), text.into()));
    let stale = json!({"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}});
    assert_eq!(one.merge(&item, &stale).await.refusal().0, 409);
    old["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(one.put(&item, &old).await.ok()["data"]["k"], "1");
    old["metadata"]["resourceVersion"] = json!("abc");
    assert_eq!(one.put(&item, &old).await.refusal().0, 400);
    for (field, value, text) in [
        ("uid", "bad", "the UID in the precondition (bad) does not match the UID in record ("),
        (
            "resourceVersion",
            "1",
            "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (",
        ),
    ] {
        let options = json!({"preconditions": {field: value}});
        let (code, reason, message) =
            one.send("DELETE", &item, "application/json", options.to_string()).await.refusal();
        assert_eq!((code, &*reason), (409, "Conflict"));
        assert!(message.starts_with(&format!("Operation cannot be fulfilled on ConfigMap \"x\": {text}")), "{message}");
    }
    // Patches that race are all carried out.
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let (one, item) = (one.clone(), item.clone());
            tokio::spawn(async move { one.merge(&item, &json!({"data": {format!("p{n}"): "v"}})).await.code })
        })
        .collect();
    for client in clients {
        assert_eq!(client.await.unwrap(), 200);
    }
    assert_eq!(one.get(&item).await.ok()["data"].as_object().unwrap().len(), 5);
}

#[tokio::test]
async fn bodies_are_bounded() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let answer = one.send("POST", MAPS, "application/json", vec![b' '; BODY_LIMIT + 1]).await;
    assert_eq!(
        answer.refusal(),
        (413, "RequestEntityTooLarge".into(), format!("Request entity too large: limit is {BODY_LIMIT}"))
    );
}

/// What says that it is another object than the URL names is refused, whether that is there or not; a namespace in what lies
/// in none is forgotten, as upstream does it.
#[tokio::test]
async fn names_and_namespaces_that_do_not_fit() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.map("a", "v").await;
    for name in ["a", "none"] {
        let other = json!({"metadata": {"name": "b"}});
        let put = one.put(&format!("/api/v1/namespaces/default/configmaps/{name}"), &other).await;
        let message = format!("the name of the object (b) does not match the name on the URL ({name})");
        assert_eq!(put.refusal(), (400, "BadRequest".into(), message));
    }
    let lost = json!({"metadata": {"name": "lost", "namespace": "elsewhere"}});
    let path = "/api/v1/namespaces/lost";
    for answer in [
        one.post("/api/v1/namespaces", &lost).await,
        one.put(path, &lost).await,
        one.merge(path, &lost).await,
        one.get(path).await,
    ] {
        assert_eq!(answer.ok()["metadata"].get("namespace"), None);
    }
}

#[tokio::test]
async fn generated_names() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let created = one.post(MAPS, &json!({"metadata": {"generateName": "g-"}})).await.ok();
    let name = support::meta(&created, "name");
    assert!(name.starts_with("g-") && name.len() == 7, "{name}");
    assert_eq!(
        one.post(MAPS, &json!({"metadata": {}})).await.refusal().2,
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required"
    );
}

#[tokio::test]
async fn only_the_system_ties_workspaces_to_clusters() {
    let server = server().await;
    let admin = Client::new(&server, "root").user("kate", &["system:kcp:admin"]);
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    assert_eq!(admin.post(workspaces, &json!({"metadata": {"name": "w"}, "spec": {"cluster": "two"}})).await.code, 403);
    admin.post(workspaces, &json!({"metadata": {"name": "w"}})).await.ok();
    assert_eq!(admin.merge(&format!("{workspaces}/w"), &json!({"spec": {"URL": "https://x"}})).await.code, 403);
    admin.merge(&format!("{workspaces}/w"), &json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
    assert_eq!(admin.delete("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").await.code, 403);
}

#[tokio::test]
async fn a_logical_cluster_goes_only_by_its_name_and_those_of_the_system_never() {
    let server = server().await;
    let clusters = "/apis/core.kcp.io/v1alpha1/logicalclusters";
    for cluster in ["one", "root", "system:admin"] {
        let masters = Client::new(&server, cluster);
        for client in [masters.user("kate", &["system:kcp:admin"]), masters] {
            assert_eq!(client.delete(clusters).await.code, 405, "{cluster}");
        }
    }
    for cluster in ["root", "system:admin"] {
        let refused = Client::new(&server, cluster).delete(&format!("{clusters}/cluster")).await.refusal();
        assert_eq!((refused.0, refused.2.contains("may not be deleted")), (403, true), "{cluster}");
    }
    Client::new(&server, "one").delete(&format!("{clusters}/cluster")).await.ok();
}

/// A copied manifest names the cluster of another workspace; believed, it would adopt and delete that one.
#[tokio::test]
async fn clients_do_not_choose_the_cluster_of_a_workspace() {
    const TIE: &str = "internal.tenancy.kcp.io/cluster";
    let server = server().await;
    let masters = Client::new(&server, "root");
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    for client in [masters.user("kate", &["system:kcp:admin"]), masters] {
        let name = client.user.clone();
        let copied = json!({"metadata": {"name": name, "annotations": {TIE: "one", "core.kcp.io/shard": "x", "a": "b"},
            "finalizers": ["core.kcp.io/logicalcluster", "a.dev/x"]}});
        let created = client.post(workspaces, &copied).await.ok();
        assert_eq!(
            (&created["metadata"]["annotations"]["a"], created["metadata"]["annotations"].get(TIE)),
            (&json!("b"), None)
        );
        assert_eq!(created["metadata"]["annotations"].get("core.kcp.io/shard"), None);
        assert_eq!(created["metadata"]["finalizers"], json!(["a.dev/x"]));
        let forged = json!({"metadata": {"name": name, "annotations": {TIE: "root"}}});
        let own = format!("{workspaces}/{name}");
        assert_eq!(client.merge(&own, &forged).await.code, 403);
        assert_eq!(client.put(&own, &forged).await.code, 403);
        let key = apiserver_server::registry::ObjectKey::new(&"root".parse().unwrap(), "", &name);
        let resource = apiserver_machinery::builtin::find("tenancy.kcp.io", "v1alpha1", "workspaces").unwrap();
        let controller = |old: Option<&serde_json::Value>| {
            let mut new = old.cloned().unwrap();
            new["metadata"]["annotations"][TIE] = json!("abc");
            new["metadata"]["finalizers"] = json!(["core.kcp.io/logicalcluster"]);
            Ok(new)
        };
        server.registry().modify(resource, &key, &Default::default(), controller).await.unwrap();
        assert_eq!(client.merge(&own, &forged).await.code, 403);
        let bare = client.put(&own, &json!({"metadata": {"name": name}})).await.ok();
        assert_eq!(bare["metadata"]["annotations"][TIE], "abc");
        assert_eq!(bare["metadata"]["finalizers"], json!(["core.kcp.io/logicalcluster"]));
        client.put(&own, &bare).await.ok();
    }
}

#[tokio::test]
async fn impersonated_users_have_their_own_rights() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let request = |user: &str| {
        http::Request::get(format!("/clusters/one{MAPS}"))
            .header("x-remote-user", "admin")
            .header("x-remote-group", "system:masters")
            .header("impersonate-user", user.to_owned())
            .body(http_body_util::Empty::<bytes::Bytes>::new())
            .unwrap()
    };
    assert_eq!(one.server.handle(request("jane"), Trust::Gateway).await.status(), 403);
}
