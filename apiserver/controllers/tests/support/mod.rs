//! Controllers over a store in memory, without sockets.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "every test file uses its own part of it")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use apiserver_api::ClusterName;
use apiserver_controllers::Options;
use apiserver_machinery::{
    Resource, builtin,
    options::{DeleteOptions, ListOptions, Propagation, WriteOptions},
};
use apiserver_server::{
    ApiServer, Registry,
    registry::{Collection, ObjectKey, UpdateOptions},
};
use apiserver_storage::Embedded;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// What a test takes at most, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct World {
    pub registry: Registry,
    shutdown: CancellationToken,
    controllers: tokio::task::JoinHandle<()>,
}

impl World {
    /// An empty control plane whose controllers run; cluster `root` has the namespace `default`.
    pub async fn start() -> Self {
        let server = ApiServer::new(Arc::new(Embedded::in_memory()), apiserver_server::Options::default());
        server.bootstrap().await.unwrap();
        Self::over(server.registry().clone())
    }

    pub fn over(registry: Registry) -> Self {
        let shutdown = CancellationToken::new();
        let options = Options { external_url: "https://door".into(), shard: "root".into() };
        let controllers = tokio::spawn(apiserver_controllers::run(registry.clone(), options, shutdown.clone()));
        Self { registry, shutdown, controllers }
    }

    /// Stops the controllers; what they did is kept.
    pub async fn stop(self) -> Registry {
        self.shutdown.cancel();
        self.controllers.await.unwrap();
        self.registry
    }

    pub async fn create(&self, resource: &'static Resource, namespace: &str, object: Value) -> Value {
        self.create_in(&root(), resource, namespace, object).await
    }

    pub async fn create_in(
        &self,
        cluster: &ClusterName,
        resource: &'static Resource,
        namespace: &str,
        object: Value,
    ) -> Value {
        let created = self.registry.create(resource, cluster, namespace, object, &WriteOptions::default()).await;
        created.unwrap().value().unwrap()
    }

    pub async fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<Value> {
        let found = self.registry.find(resource, &ObjectKey::new(&root(), namespace, name)).await.unwrap();
        found.map(|object| object.value().unwrap())
    }

    pub async fn delete(&self, resource: &'static Resource, namespace: &str, name: &str, how: Option<Propagation>) {
        let options = DeleteOptions { propagation: how, ..DeleteOptions::default() };
        self.registry.delete(resource, &ObjectKey::new(&root(), namespace, name), &options).await.unwrap();
    }

    /// Changes an object of `default`.
    pub async fn change(
        &self,
        resource: &'static Resource,
        name: &str,
        subresource: &'static str,
        change: impl Fn(&mut Value) + Send,
    ) {
        let options = UpdateOptions { subresource, ..UpdateOptions::default() };
        let key = if resource.is_namespaced() {
            ObjectKey::new(&root(), "default", name)
        } else {
            ObjectKey::new(&root(), "", name)
        };
        let new = move |old: Option<&Value>| {
            let mut object = old.unwrap().clone();
            change(&mut object);
            Ok(object)
        };
        self.registry.modify(resource, &key, &options, new).await.unwrap();
    }

    pub async fn list(&self, resource: &'static Resource, namespace: &str) -> Vec<Value> {
        let of = Collection::namespace(&root(), namespace);
        let page = self.registry.list(resource, &of, &ListOptions::default()).await.unwrap();
        page.items.iter().map(|object| object.value().unwrap()).collect()
    }
}

/// Polls until there is an answer.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut poll: impl FnMut() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "gave up waiting: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub fn root() -> ClusterName {
    ClusterName::ROOT.parse().unwrap()
}

pub fn core(plural: &str) -> &'static Resource {
    builtin::find("", "v1", plural).unwrap()
}

pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

/// A reference to a ConfigMap.
pub fn owner(name: &str, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": true})
}
