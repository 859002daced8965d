//! What happens between two steps of one request, made to happen there.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::sync::{Arc, Mutex};

use apiserver_api::ClusterName;
use apiserver_machinery::{
    Resource, builtin,
    options::{DeleteOptions, WriteOptions},
};
use apiserver_server::{
    ApiServer, Options, Registry,
    registry::{ObjectKey, UpdateOptions},
};
use apiserver_storage::{
    DirectoryCount, Embedded, KeyValue, Range, RangeResult, Store, StoreError, StoreFuture, Txn, TxnOutcome,
    WatchStream, labels::Wanted,
};
use serde_json::{Value, json};
use support::{Client, server};
use tokio::sync::oneshot;

type Pause = (oneshot::Sender<()>, oneshot::Receiver<()>);

/// A store that holds back the first write of a key that ends with `/late`.
struct Paused {
    inner: Embedded,
    pause: Mutex<Option<Pause>>,
}

impl Store for Paused {
    fn revision(&self) -> u64 {
        self.inner.revision()
    }
    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }
    fn reached(&self, revision: u64) -> StoreFuture<'_, ()> {
        self.inner.reached(revision)
    }
    fn failure(&self) -> Option<StoreError> {
        self.inner.failure()
    }
    fn unavailable(&self) -> Option<StoreError> {
        self.inner.unavailable()
    }
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<KeyValue>> {
        self.inner.get(key)
    }
    fn range(&self, range: Range) -> StoreFuture<'_, RangeResult> {
        self.inner.range(range)
    }
    fn count(&self, prefix: &str) -> u64 {
        self.inner.count(prefix)
    }
    fn counts(&self, prefix: &str) -> (u64, Vec<DirectoryCount>) {
        self.inner.counts(prefix)
    }
    fn txn(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        let pause = if txn.key.ends_with("/late") { self.pause.lock().unwrap().take() } else { None };
        Box::pin(async move {
            if let Some((reached, go_on)) = pause {
                reached.send(()).unwrap();
                go_on.await.unwrap();
            }
            self.inner.txn(txn).await
        })
    }
    fn watch_wanted(&self, prefix: &str, after: u64, wanted: Wanted) -> StoreFuture<'_, WatchStream> {
        self.inner.watch_wanted(prefix, after, wanted)
    }
    fn compact(&self, revision: u64) -> StoreFuture<'_, ()> {
        self.inner.compact(revision)
    }
    fn close(&self) {
        self.inner.close();
    }
}

fn find(group: &str, version: &str, plural: &str) -> &'static Resource {
    builtin::find(group, version, plural).unwrap()
}

/// Begins to create `late`, does `meanwhile` between its check and its write, and answers how it ended.
async fn create_late<F: Future<Output = ()>>(
    resource: &'static Resource,
    namespace: &'static str,
    meanwhile: impl FnOnce(Registry) -> F,
) -> Result<(), u16> {
    let ((reached, at_write), (go_on, going)) = (oneshot::channel(), oneshot::channel());
    let store = Arc::new(Paused { inner: Embedded::in_memory(), pause: Mutex::default() });
    let server = ApiServer::new(store.clone(), Options::default());
    server.bootstrap().await.unwrap();
    let one = Client::new(&server, "one");
    one.post("/apis/core.kcp.io/v1alpha1/logicalclusters", &json!({"metadata": {"name": "cluster"}})).await.ok();
    one.namespace("shop").await;
    *store.pause.lock().unwrap() = Some((reached, going));
    let registry = server.registry().clone();
    let create = tokio::spawn({
        let registry = registry.clone();
        async move {
            let object = json!({"metadata": {"name": "late"}});
            registry.create(resource, &cluster(), namespace, object, &WriteOptions::default()).await
        }
    });
    at_write.await.unwrap();
    meanwhile(registry.clone()).await;
    go_on.send(()).unwrap();
    let ended = create.await.unwrap().map(drop).map_err(|status| status.code);
    let left = registry.find(resource, &ObjectKey::new(&cluster(), namespace, "late")).await.unwrap();
    assert_eq!(left.is_some(), ended.is_ok());
    ended
}

fn cluster() -> ClusterName {
    "one".parse().unwrap()
}

async fn delete(registry: &Registry, resource: &'static Resource, name: &str) {
    let key = ObjectKey::new(&cluster(), "", name);
    registry.delete(resource, &key, &DeleteOptions::default()).await.unwrap();
}

#[tokio::test]
async fn nothing_is_created_in_what_went_meanwhile() {
    let (namespaces, maps) = (find("", "v1", "namespaces"), find("", "v1", "configmaps"));
    let clusters = find("core.kcp.io", "v1alpha1", "logicalclusters");
    let terminating = create_late(maps, "shop", |registry| async move { delete(&registry, namespaces, "shop").await });
    assert_eq!(terminating.await, Err(403));
    let gone = create_late(maps, "shop", |registry| async move {
        delete(&registry, namespaces, "shop").await;
        let key = ObjectKey::new(&cluster(), "", "shop");
        let options = UpdateOptions { subresource: "finalize", ..UpdateOptions::default() };
        let finalize = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap();
            new["spec"]["finalizers"] = json!([]);
            Ok(new)
        };
        registry.modify(namespaces, &key, &options, finalize).await.unwrap();
    });
    assert_eq!(gone.await, Err(404));
    let without_cluster =
        create_late(namespaces, "", |registry| async move { delete(&registry, clusters, "cluster").await });
    assert_eq!(without_cluster.await, Err(404));
}

#[tokio::test]
async fn a_harmless_change_meanwhile_is_looked_at_again() {
    let (namespaces, maps) = (find("", "v1", "namespaces"), find("", "v1", "configmaps"));
    let labelled = create_late(maps, "shop", |registry| async move {
        let label = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap();
            new["metadata"]["labels"]["a"] = json!("b");
            Ok(new)
        };
        let key = ObjectKey::new(&cluster(), "", "shop");
        registry.modify(namespaces, &key, &UpdateOptions::default(), label).await.unwrap();
    });
    assert_eq!(labelled.await, Ok(()));
}

#[tokio::test]
async fn a_watch_that_comes_after_the_removal_of_its_cluster_ends() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let a = one.map("a", "1").await;
    let from = support::meta(&a, "resourceVersion").to_owned();
    one.map("b", "1").await;
    one.delete("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").await.ok();
    let maps = "/api/v1/namespaces/default/configmaps?watch=1";
    let mut watch = one.watch(&format!("{maps}&resourceVersion={from}")).await;
    assert_eq!(watch.event().await.unwrap().1, "b", "first what happened before");
    assert!(watch.event().await.is_none());
    let mut now = one.watch(&format!("{maps}&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")).await;
    assert!(now.event().await.is_none());
}

/// Who names no resourceVersion is never told that somebody was faster (upstream's `GuaranteedUpdate`).
#[tokio::test]
async fn writers_without_a_precondition_all_get_through() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.namespace("shop").await;
    one.map("hot", "1").await;
    let map = "/api/v1/namespaces/default/configmaps/hot";
    let patches = (0..32).map(|n| {
        let one = one.clone();
        async move {
            for round in 0..4 {
                let patch = json!({"data": {(format!("k{n}")): format!("{round}")}});
                one.merge(map, &patch).await.ok();
            }
        }
    });
    let labels = (0..6).map(|n| {
        let one = one.clone();
        async move {
            for round in 0..16 {
                let patch = json!({"metadata": {"labels": {(format!("k{n}")): format!("v{round}")}}});
                one.merge("/api/v1/namespaces/shop", &patch).await.ok();
            }
        }
    });
    let creates = (0..32).map(|n| {
        let one = one.clone();
        async move {
            let object = json!({"metadata": {"name": format!("m{n}")}});
            one.post("/api/v1/namespaces/shop/configmaps", &object).await.ok();
        }
    });
    futures_util::future::join3(
        futures_util::future::join_all(patches),
        futures_util::future::join_all(labels),
        futures_util::future::join_all(creates),
    )
    .await;
    let hot = one.get(map).await.ok();
    assert_eq!(hot["data"].as_object().unwrap().len(), 33);
    one.delete(map).await.ok();
}
