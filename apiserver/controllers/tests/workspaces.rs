//! Workspaces, clusters and namespaces from their creation to their end, on the real registry and store.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use apiserver_api::{ClusterName, Status};
use apiserver_controllers::Options;
use apiserver_machinery::{
    Resource, builtin,
    options::{DeleteOptions, ListOptions, WriteOptions},
    selector::Selector,
};
use apiserver_server::{
    ApiServer, Registry,
    registry::{Collection, ObjectKey, UpdateOptions, WatchOptions, WatchStart},
};
use apiserver_storage::Embedded;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

struct Fixture {
    registry: Registry,
    shutdown: CancellationToken,
    controllers: tokio::task::JoinHandle<()>,
    begun: Instant,
}

/// What a test takes at most, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(120);

impl Fixture {
    async fn start() -> Self {
        let server = ApiServer::new(Arc::new(Embedded::in_memory()), apiserver_server::Options::default());
        server.bootstrap().await.unwrap();
        Self::over(server.registry().clone())
    }

    fn over(registry: Registry) -> Self {
        Self::at("https://door", registry)
    }

    /// With this address.
    fn at(external_url: &str, registry: Registry) -> Self {
        let shutdown = CancellationToken::new();
        let options = Options { external_url: external_url.into(), shard: "root".into() };
        let controllers = tokio::spawn(apiserver_controllers::run(registry.clone(), options, shutdown.clone()));
        Self { registry, shutdown, controllers, begun: Instant::now() }
    }

    /// Between two looks at something that is awaited; gives up when that takes for ever.
    async fn pause(&self) {
        assert!(self.begun.elapsed() < PATIENCE, "gave up waiting");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn stop(self) -> Registry {
        self.shutdown.cancel();
        self.controllers.await.unwrap();
        self.registry
    }

    async fn create(&self, resource: &'static Resource, cluster: &ClusterName, namespace: &str, name: &str) {
        let object = json!({ "metadata": { "name": name } });
        self.registry.create(resource, cluster, namespace, object, &WriteOptions::default()).await.unwrap();
    }

    async fn get(&self, resource: &'static Resource, cluster: &ClusterName, name: &str) -> Option<Value> {
        let found = self.registry.find(resource, &ObjectKey::new(cluster, "", name)).await.unwrap();
        found.map(|object| object.value().unwrap())
    }

    async fn delete(&self, resource: &'static Resource, cluster: &ClusterName, name: &str) -> Result<(), Status> {
        let key = ObjectKey::new(cluster, "", name);
        self.registry.delete(resource, &key, &DeleteOptions::default()).await.map(drop)
    }

    /// Creates a workspace and waits until it is ready; the name of its cluster.
    async fn workspace(&self, parent: &ClusterName, name: &str) -> ClusterName {
        self.create(workspaces(), parent, "", name).await;
        self.until_ready(parent, name).await
    }

    async fn until_ready(&self, parent: &ClusterName, name: &str) -> ClusterName {
        loop {
            let workspace = self.get(workspaces(), parent, name).await.unwrap();
            if workspace["status"]["phase"] == "Ready" {
                return workspace["spec"]["cluster"].as_str().unwrap().parse().unwrap();
            }
            self.pause().await;
        }
    }

    async fn until_gone(&self, resource: &'static Resource, cluster: &ClusterName, name: &str) {
        while self.get(resource, cluster, name).await.is_some() {
            self.pause().await;
        }
    }
}

fn find(group: &str, version: &str, plural: &str) -> &'static Resource {
    builtin::find(group, version, plural).unwrap()
}

fn workspaces() -> &'static Resource {
    find("tenancy.kcp.io", "v1alpha1", "workspaces")
}

fn logical_clusters() -> &'static Resource {
    find("core.kcp.io", "v1alpha1", "logicalclusters")
}

fn root() -> ClusterName {
    ClusterName::ROOT.parse().unwrap()
}

#[tokio::test]
async fn a_workspace_gets_a_cluster_with_namespaces() {
    let fixture = Fixture::start().await;
    let team = fixture.workspace(&root(), "team").await;
    let workspace = fixture.get(workspaces(), &root(), "team").await.unwrap();
    assert_eq!(workspace["spec"]["URL"], "https://door/clusters/root:team");
    assert_eq!(workspace["metadata"]["annotations"]["core.kcp.io/shard"], "root");
    let cluster = fixture.get(logical_clusters(), &team, "cluster").await.unwrap();
    assert_eq!(cluster["metadata"]["annotations"]["kcp.io/path"], "root:team");
    assert_eq!((&cluster["status"]["phase"], &cluster["spec"]["owner"]["name"]), (&json!("Ready"), &json!("team")));
    for namespace in ["default", "kube-system"] {
        assert!(fixture.get(find("", "v1", "namespaces"), &team, namespace).await.is_some(), "{namespace}");
    }
    let child = fixture.workspace(&team, "sub").await;
    let cluster = fixture.get(logical_clusters(), &child, "cluster").await.unwrap();
    assert_eq!(cluster["metadata"]["annotations"]["kcp.io/path"], "root:team:sub");
    fixture.stop().await;
}

#[tokio::test]
async fn a_deleted_workspace_takes_everything_below_it_along() {
    let fixture = Fixture::start().await;
    let team = fixture.workspace(&root(), "team").await;
    let child = fixture.workspace(&team, "sub").await;
    let schemas = find("flowcontrol.apiserver.k8s.io", "v1", "flowschemas");
    for cluster in [&team, &child] {
        for n in 0..600 {
            fixture.create(find("", "v1", "configmaps"), cluster, "default", &format!("c{n}")).await;
        }
        // Made anew at once, and stored from then on.
        fixture.delete(schemas, cluster, "exempt").await.unwrap();
        assert_eq!(fixture.registry.count(schemas, &Collection::cluster(cluster)).unwrap(), 1);
    }
    fixture.delete(workspaces(), &root(), "team").await.unwrap();
    fixture.until_gone(workspaces(), &root(), "team").await;
    for resource in builtin::all() {
        let all = fixture.registry.list(resource, &Collection::everywhere(), &ListOptions::default()).await.unwrap();
        let left: Vec<_> =
            all.items.iter().filter(|o| [team.as_str(), child.as_str()].contains(&o.cluster())).collect();
        assert!(left.is_empty(), "{}: {left:?}", resource.plural);
    }
    fixture.stop().await;
}

/// Terminators may still need, and make, objects: the cluster stays whole until the last of them has gone.
#[tokio::test]
async fn a_cluster_waits_for_its_terminators() {
    let fixture = Fixture::start().await;
    let team = fixture.workspace(&root(), "team").await;
    let namespaces = find("", "v1", "namespaces");
    let own = ObjectKey::new(&team, "", "cluster");
    let terminators = async |terminators: Value| {
        let set = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap();
            new["status"]["terminators"] = terminators.clone();
            Ok(new)
        };
        let options = UpdateOptions { subresource: "status", ..UpdateOptions::default() };
        fixture.registry.modify(logical_clusters(), &own, &options, set).await.unwrap();
    };
    terminators(json!(["root:a", "root:b"])).await;
    fixture.create(namespaces, &team, "", "before").await;
    fixture.delete(workspaces(), &root(), "team").await.unwrap();
    while fixture.get(logical_clusters(), &team, "cluster").await.unwrap()["metadata"]["deletionTimestamp"].is_null() {
        fixture.pause().await;
    }
    fixture.create(namespaces, &team, "", "during").await;
    terminators(json!(["root:b"])).await;
    // Behind this one everything before has been looked at.
    fixture.workspace(&root(), "other").await;
    fixture.delete(workspaces(), &root(), "other").await.unwrap();
    fixture.until_gone(workspaces(), &root(), "other").await;
    for name in ["before", "during"] {
        let namespace = fixture.get(namespaces, &team, name).await.expect(name);
        assert_eq!(namespace["status"]["phase"], "Active", "{name}");
    }
    fixture.create(namespaces, &team, "", "late").await;
    terminators(json!([])).await;
    fixture.until_gone(workspaces(), &root(), "team").await;
    assert_eq!(fixture.registry.count(namespaces, &Collection::cluster(&team)).unwrap(), 0);
    fixture.stop().await;
}

/// What the workspace's status says: phase, then the condition of this type.
async fn said(fixture: &Fixture, name: &str, condition: &str) -> (Value, Value) {
    let workspace = fixture.get(workspaces(), &root(), name).await.unwrap();
    let status = &workspace["status"];
    let found = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == condition);
    (status["phase"].clone(), found.cloned().unwrap_or_default())
}

#[tokio::test]
async fn a_workspace_that_is_being_deleted_says_what_keeps_it() {
    let fixture = Fixture::start().await;
    let team = fixture.workspace(&root(), "team").await;
    for condition in ["WorkspaceScheduled", "WorkspaceInitialized"] {
        assert_eq!(said(&fixture, "team", condition).await.1["status"], "True", "{condition}");
    }
    let configmaps = find("", "v1", "configmaps");
    let held = json!({ "metadata": { "name": "held", "finalizers": ["example.dev/hold"] } });
    fixture.registry.create(configmaps, &team, "default", held, &WriteOptions::default()).await.unwrap();
    fixture.delete(workspaces(), &root(), "team").await.unwrap();
    let condition = loop {
        let (phase, condition) = said(&fixture, "team", "WorkspaceContentDeleted").await;
        if !condition.is_null() && condition["message"].as_str().unwrap().contains("finalizers") {
            assert_eq!(phase, "Deleting");
            break condition;
        }
        fixture.pause().await;
    };
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("SomeFinalizersRemain")));
    let message = condition["message"].as_str().unwrap();
    for told in ["configmaps. has 1 resource instances", "example.dev/hold in 1 resource instances"] {
        assert!(message.contains(told), "{message}");
    }
    let key = ObjectKey::new(&team, "default", "held");
    let release = |old: Option<&Value>| {
        let mut new = old.cloned().unwrap_or_default();
        new["metadata"]["finalizers"] = json!([]);
        Ok(new)
    };
    fixture.registry.modify(configmaps, &key, &Default::default(), release).await.unwrap();
    fixture.until_gone(workspaces(), &root(), "team").await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_workspace_whose_cluster_was_deleted_under_it_is_unavailable() {
    let fixture = Fixture::start().await;
    let team = fixture.workspace(&root(), "team").await;
    fixture.delete(logical_clusters(), &team, "cluster").await.unwrap();
    loop {
        let (phase, condition) = said(&fixture, "team", "WorkspaceInitialized").await;
        if phase == "Unavailable" {
            assert_eq!(condition["reason"], "WorkspaceDisappeared");
            break;
        }
        assert_eq!(phase, "Ready");
        fixture.pause().await;
    }
    fixture.delete(workspaces(), &root(), "team").await.unwrap();
    fixture.until_gone(workspaces(), &root(), "team").await;
    fixture.stop().await;
}

#[tokio::test]
async fn what_others_write_over_phase_and_url_is_put_right() {
    let fixture = Fixture::start().await;
    fixture.workspace(&root(), "team").await;
    let before = fixture.get(workspaces(), &root(), "team").await.unwrap();
    let key = ObjectKey::new(&root(), "", "team");
    let written = |part: &'static str, field: &'static str, subresource: &'static str, value: Value| {
        let change = move |old: Option<&Value>| {
            let mut new = old.unwrap().clone();
            new[part][field] = value.clone();
            Ok(new)
        };
        let options = UpdateOptions { subresource, ..UpdateOptions::default() };
        let (registry, key) = (fixture.registry.clone(), key.clone());
        async move { registry.modify(workspaces(), &key, &options, change).await.unwrap() }
    };
    let kinds = |workspace: &Value| -> Vec<(Value, Value)> {
        let conditions = workspace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().map(|c| (c["type"].clone(), c["status"].clone())).collect()
    };
    for url in ["foo", "https://elsewhere/?/clusters/root:team"] {
        written("status", "phase", "status", json!("Initializing")).await;
        written("status", "conditions", "status", json!([])).await;
        written("spec", "URL", "", json!(url)).await;
        loop {
            let now = fixture.get(workspaces(), &root(), "team").await.unwrap();
            let is_ready = now["status"]["phase"] == "Ready" && kinds(&now) == kinds(&before);
            if is_ready && now["spec"]["URL"] == before["spec"]["URL"] {
                break;
            }
            fixture.pause().await;
        }
    }
    fixture.stop().await;
}

#[tokio::test]
async fn urls_follow_the_address_of_the_server() {
    let fixture = Fixture::start().await;
    let team = fixture.workspace(&root(), "team").await;
    let registry = fixture.stop().await;
    let fixture = Fixture::at("https://other:1", registry);
    loop {
        let workspace = fixture.get(workspaces(), &root(), "team").await.unwrap();
        let cluster = fixture.get(logical_clusters(), &team, "cluster").await.unwrap();
        if cluster["status"]["URL"] == format!("https://other:1/clusters/{team}") {
            assert_eq!(workspace["spec"]["URL"], "https://other:1/clusters/root:team");
            assert_eq!(
                (&workspace["status"]["phase"], &cluster["status"]["phase"]),
                (&json!("Ready"), &json!("Ready"))
            );
            break;
        }
        fixture.pause().await;
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_namespace_waits_for_content_that_finalizers_hold() {
    let fixture = Fixture::start().await;
    let (namespaces, configmaps) = (find("", "v1", "namespaces"), find("", "v1", "configmaps"));
    fixture.create(namespaces, &root(), "", "shop").await;
    fixture.create(configmaps, &root(), "shop", "free").await;
    let held = json!({ "metadata": { "name": "held", "finalizers": ["example.dev/hold"] } });
    let options = WriteOptions::default();
    fixture.registry.create(configmaps, &root(), "shop", held, &options).await.unwrap();
    fixture.delete(namespaces, &root(), "shop").await.unwrap();
    let inside = Collection::namespace(&root(), "shop");
    loop {
        let left = fixture.registry.list(configmaps, &inside, &ListOptions::default()).await.unwrap().items;
        if left.len() == 1 && left[0].value().unwrap()["metadata"]["deletionTimestamp"].is_string() {
            break;
        }
        fixture.pause().await;
    }
    let namespace = fixture.get(namespaces, &root(), "shop").await.unwrap();
    assert_eq!(namespace["status"]["phase"], "Terminating");
    let key = ObjectKey::new(&root(), "shop", "held");
    let release = |old: Option<&Value>| {
        let mut new = old.cloned().unwrap_or_default();
        new["metadata"]["finalizers"] = json!([]);
        Ok(new)
    };
    fixture.registry.modify(configmaps, &key, &Default::default(), release).await.unwrap();
    fixture.until_gone(namespaces, &root(), "shop").await;
    fixture.stop().await;
}

#[tokio::test]
async fn what_was_begun_before_a_restart_is_finished_after_it() {
    let fixture = Fixture::start().await;
    let registry = fixture.stop().await;
    let object = json!({ "metadata": { "name": "late" } });
    registry.create(workspaces(), &root(), "", object, &WriteOptions::default()).await.unwrap();
    let fixture = Fixture::over(registry);
    while fixture.get(workspaces(), &root(), "late").await.unwrap()["status"]["phase"] != "Ready" {
        fixture.pause().await;
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_foreign_cluster_is_neither_adopted_nor_deleted() {
    let fixture = Fixture::start().await;
    let team = fixture.workspace(&root(), "team").await;
    for foreign in [team.as_str(), "root"] {
        let object = json!({ "metadata": {
            "name": "copy",
            "annotations": { "internal.tenancy.kcp.io/cluster": foreign },
            "finalizers": ["core.kcp.io/logicalcluster"],
        }});
        fixture.registry.create(workspaces(), &root(), "", object, &WriteOptions::default()).await.unwrap();
        let own = fixture.until_ready(&root(), "copy").await;
        assert_ne!(own.as_str(), foreign);
        fixture.delete(workspaces(), &root(), "copy").await.unwrap();
        fixture.until_gone(workspaces(), &root(), "copy").await;
        assert!(fixture.get(logical_clusters(), &own, "cluster").await.is_none());
    }
    // Also before a name of its own was drawn: the forged one is not followed.
    let registry = fixture.stop().await;
    let object = json!({ "metadata": {
        "name": "copy",
        "annotations": { "internal.tenancy.kcp.io/cluster": team.as_str() },
        "finalizers": ["core.kcp.io/logicalcluster"],
    }});
    registry.create(workspaces(), &root(), "", object, &WriteOptions::default()).await.unwrap();
    let copy = ObjectKey::new(&root(), "", "copy");
    registry.delete(workspaces(), &copy, &DeleteOptions::default()).await.unwrap();
    let fixture = Fixture::over(registry);
    fixture.until_gone(workspaces(), &root(), "copy").await;
    let cluster = fixture.get(logical_clusters(), &team, "cluster").await.unwrap();
    assert!(cluster["metadata"].get("deletionTimestamp").is_none());
    fixture.stop().await;
}

#[tokio::test]
async fn a_cluster_follows_a_workspace_that_lost_its_finalizer() {
    let fixture = Fixture::start().await;
    let team = fixture.workspace(&root(), "team").await;
    let registry = fixture.stop().await;
    let key = ObjectKey::new(&root(), "", "team");
    registry.delete(workspaces(), &key, &DeleteOptions::default()).await.unwrap();
    let strip = |old: Option<&Value>| {
        let mut new = old.cloned().unwrap_or_default();
        new["metadata"]["finalizers"] = json!([]);
        Ok(new)
    };
    registry.modify(workspaces(), &key, &Default::default(), strip).await.unwrap();
    assert!(registry.find(workspaces(), &key).await.unwrap().is_none());
    let fixture = Fixture::over(registry);
    fixture.until_gone(logical_clusters(), &team, "cluster").await;
    fixture.stop().await;
}

/// Several servers on one store: whichever of them removes a cluster, the watches of all of them end.
#[tokio::test]
async fn watches_of_a_cluster_end_on_every_server() {
    let store = Arc::new(Embedded::in_memory());
    let server = || ApiServer::new(store.clone(), apiserver_server::Options::default());
    let servers = [server(), server()];
    servers[0].bootstrap().await.unwrap();
    let fixtures = servers.each_ref().map(|server| Fixture::over(server.registry().clone()));
    let team = fixtures[0].workspace(&root(), "team").await;
    let options = || WatchOptions { selector: Selector::default(), start: WatchStart::Now };
    let inside = Collection::cluster(&team);
    let watches = fixtures.each_ref().map(|f| f.registry.watch(find("", "v1", "configmaps"), &inside, options()));
    let watches = futures_util::future::try_join_all(watches).await.unwrap();
    let ended = watches.into_iter().map(|mut watch| async move { while watch.next().await.is_some() {} });
    // The controllers of both are at it; one of them is the one that removes the cluster.
    fixtures[1].delete(workspaces(), &root(), "team").await.unwrap();
    tokio::time::timeout(PATIENCE, futures_util::future::join_all(ended)).await.expect("both end");
    for fixture in fixtures {
        fixture.stop().await;
    }
}

#[tokio::test]
async fn many_at_once() {
    let fixture = Fixture::start().await;
    let root = root();
    let names: Vec<_> = (0..100).map(|n| format!("w{n}")).collect();
    futures_util::future::join_all(names.iter().map(|name| fixture.workspace(&root, name))).await;
    for name in &names {
        fixture.delete(workspaces(), &root, name).await.unwrap();
    }
    for name in &names {
        fixture.until_gone(workspaces(), &root, name).await;
    }
    let all =
        fixture.registry.list(logical_clusters(), &Collection::everywhere(), &ListOptions::default()).await.unwrap();
    assert_eq!(all.items.len(), 2, "root and system:admin");
    fixture.stop().await;
}

/// Ready when every controller knows all that there is, and not before.
#[tokio::test]
async fn readiness_waits_for_the_controllers() {
    let server = ApiServer::new(Arc::new(Embedded::in_memory()), apiserver_server::Options::default());
    server.bootstrap().await.unwrap();
    let ready = async || {
        let request = http::Request::get("/readyz").body(http_body_util::Full::new(bytes::Bytes::new())).unwrap();
        server.handle(request, apiserver_server::Trust::None).await.status() == 200
    };
    assert!(ready().await);
    let options = Options { external_url: "https://door".into(), shard: "root".into() };
    let shutdown = CancellationToken::new();
    let controllers = apiserver_controllers::run(server.registry().clone(), options, shutdown.clone());
    assert!(!ready().await);
    let controllers = tokio::spawn(controllers);
    let begun = Instant::now();
    while !ready().await {
        assert!(begun.elapsed() < PATIENCE, "gave up waiting");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shutdown.cancel();
    controllers.await.unwrap();
}
