//! Typed access to the objects of every logical cluster, for handlers and controllers alike, without HTTP.
//!
//! A [`Registry`] knows nothing of any particular resource: what differs between resources is described in their
//! [`Resource`]. It holds no cache and no lock; every method is one or a few calls of the [`Store`].
//!
//! # Invariants
//! * Keys are made from [`ClusterName`]s, so a path (`root:org`) never reaches a key (kcp.md 1.5).
//! * Every object handed out carries its resourceVersion and the annotation `kcp.io/cluster`; neither is stored.
//! * A write is one compare-and-set on one key: it happens whole or not at all.

mod delete;
mod lifecycle;
mod object;
mod read;
mod removal;
mod watch;
mod write;

use std::sync::Arc;

use apiserver_api::{ClusterName, Reason, Status};
use apiserver_machinery::{Resource, selector::Selector};
use apiserver_storage::{
    Key, Store, StoreError,
    keys::{Class, KeyError, ResourceKeys},
};

pub use self::{
    delete::Deleted,
    object::{CLUSTER_ANNOTATION, Object},
    read::Page,
    watch::{WatchEvent, WatchOptions, WatchStart, WatchStream},
    write::{UpdateOptions, Written},
};
pub(crate) use self::{
    lifecycle::{logical_clusters, namespaces},
    object::write_value,
};
use crate::errors;

/// Where one object is. Usable as the key of a work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its logical cluster.
    pub cluster: ClusterName,
    /// Its namespace; empty for cluster-scoped resources.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// A key from its parts; `namespace` is empty for cluster-scoped resources.
    pub fn new(cluster: &ClusterName, namespace: &str, name: &str) -> Self {
        Self { cluster: cluster.clone(), namespace: namespace.into(), name: name.into() }
    }
}

/// A set of objects of one resource, by place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// `None` = all logical clusters of the store (list and watch only).
    pub cluster: Option<ClusterName>,
    /// Empty = all namespaces, or a cluster-scoped resource.
    pub namespace: Arc<str>,
}

impl Collection {
    /// The objects of every logical cluster.
    pub fn everywhere() -> Self {
        Self { cluster: None, namespace: "".into() }
    }

    /// The objects of one logical cluster, in all its namespaces.
    pub fn cluster(cluster: &ClusterName) -> Self {
        Self { cluster: Some(cluster.clone()), namespace: "".into() }
    }

    /// The objects of one namespace.
    pub fn namespace(cluster: &ClusterName, namespace: &str) -> Self {
        Self { cluster: Some(cluster.clone()), namespace: namespace.into() }
    }

    /// The one name that can match, when the collection and it make one key.
    fn single_name<'a>(&self, resource: &Resource, selector: &'a Selector) -> Option<&'a str> {
        let one_place = self.cluster.is_some() && (!resource.is_namespaced() || !self.namespace.is_empty());
        selector.fields.exact_name().filter(|_| one_place)
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    store: Arc<dyn Store>,
    removals: Arc<removal::Removals>,
}

impl Registry {
    /// A registry over this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, removals: Arc::default() }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Whether the logical cluster exists, and its `LogicalCluster` object if it does.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn logical_cluster(&self, cluster: &ClusterName) -> Result<Option<Object>, Status> {
        self.find(lifecycle::logical_clusters(), &ObjectKey::new(cluster, "", "cluster")).await
    }
}

fn keys(resource: &Resource) -> Result<ResourceKeys, Status> {
    ResourceKeys::new(&Class::BuiltIn, resource.group, resource.plural).map_err(errors::internal)
}

/// The storage key of one object, and the length of its part in front of the cluster.
fn storage_key(resource: &Resource, key: &ObjectKey) -> Result<(Key, usize), Status> {
    let keys = keys(resource)?;
    let namespace = resource.is_namespaced().then_some(&*key.namespace);
    match keys.key(&key.cluster, namespace, &key.name) {
        Ok(path) => Ok((path, keys.all().len())),
        // What can never have been stored cannot be found.
        Err(KeyError::Segment { .. }) => Err(errors::not_found(resource, &key.name)),
        Err(error) => Err(errors::internal(format!("invariant violation: {error}"))),
    }
}

/// The prefix of a collection's keys, and the length of its part in front of the cluster.
fn storage_prefix(resource: &Resource, of: &Collection) -> Result<(String, usize), Status> {
    let keys = keys(resource)?;
    let prefix = match &of.cluster {
        None => Ok(keys.all().to_owned()),
        Some(cluster) if resource.is_namespaced() && !of.namespace.is_empty() => keys.namespace(cluster, &of.namespace),
        Some(cluster) => keys.cluster(cluster),
    };
    let prefix = prefix.map_err(|error| match error {
        KeyError::Segment { .. } => Status::bad_request(error.to_string()),
        KeyError::ClusterIsPath(_) => errors::internal(format!("invariant violation: {error}")),
    })?;
    Ok((prefix, keys.all().len()))
}

/// How a failure of the store looks to a client, where no handler knows better.
fn store_status(error: StoreError) -> Status {
    match error {
        StoreError::Compacted { requested, oldest } => errors::expired_watch(requested, oldest),
        StoreError::Future { requested, current } => errors::future_revision(requested, current),
        StoreError::TooLarge { bytes, limit } => Status::new(
            Reason::RequestEntityTooLarge,
            format!("etcdserver: request is too large: {bytes} bytes, the limit is {limit}"),
        ),
        StoreError::Closed => Status::service_unavailable("the server is shutting down", 1),
        StoreError::SlowConsumer => Status::service_unavailable("the watch was not read fast enough", 1),
        other => errors::internal(other),
    }
}
