//! Typed access to the objects of every logical cluster, for handlers and controllers alike, without HTTP.
//!
//! A [`Registry`] knows nothing of any particular resource: what differs between resources is described in their
//! [`Resource`]. It holds no state of objects; every method is one or a few calls of the [`Store`].
//!
//! # Invariants
//! * Keys are made from [`ClusterName`]s, so a path (`root:org`) never reaches a key (kcp.md 1.5).
//! * Every object handed out carries its resourceVersion and the annotation `kcp.io/cluster` (a copy that of its shard
//!   too); none of them is stored.
//! * A write is one compare-and-set on one key: it happens whole or not at all. That of a new object is carried out only
//!   if its namespace, or its logical cluster, is still as it was when it was asked. Where there are quotas it is
//!   charged for before, by a write of its own, and what is gone is credited by another.

mod changes;
mod count;
mod delete;
mod informers;
mod keys;
mod lifecycle;
mod mandatory;
mod object;
mod quota;
mod read;
mod removal;
mod watch;
mod write;

use std::{sync::Arc, time::Duration};

use apiserver_api::{ClusterName, Reason, Status};
use apiserver_machinery::{Resource, selector::Selector};
use apiserver_storage::{Store, StoreError};

pub use self::{
    delete::{Deleted, FOREGROUND_FINALIZER, ORPHAN_FINALIZER},
    informers::Informing,
    object::Object,
    quota::{Excess as QuotaExcess, SETTLED as QUOTA_SETTLED},
    read::Page,
    watch::{WatchEvent, WatchOptions, WatchStart, WatchStream},
    write::{UpdateOptions, Written},
};
pub(crate) use self::{
    lifecycle::{Life, is_logical_cluster, logical_clusters, namespaces},
    object::{strip, write_value},
    read::{Listing, Objects},
};
use crate::{errors, recent::Recent};

/// How long a read waits for a revision that is not there yet (api-server.md 3.2).
const PATIENCE: Duration = Duration::from_secs(3);

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

    /// Whether an object of the resource lies in it, as far as cluster and namespace say.
    fn holds(&self, object: &Object) -> bool {
        let namespace =
            !object.resource().is_namespaced() || self.namespace.is_empty() || *self.namespace == *object.namespace();
        namespace && self.cluster.as_ref().is_none_or(|cluster| cluster.as_str() == object.cluster())
    }

    /// The one name that can match, when the collection (without a gap: `scattered` is false) and it make one key.
    fn single_name<'a>(&self, resource: &Resource, selector: &'a Selector, scattered: bool) -> Option<&'a str> {
        let one_place = self.cluster.is_some() && (!resource.is_namespaced() || !self.namespace.is_empty());
        selector.fields.exact_name().filter(|_| one_place && !scattered)
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    store: Arc<dyn Store>,
    removals: Arc<removal::Removals>,
    quotas: Arc<quota::Gates>,
    recent: Arc<Recent>,
    informers: Arc<informers::Informers>,
    /// Whose copies it speaks of; `None` = those of all shards. Has no meaning for other resources.
    shard: Option<Arc<str>>,
}

impl Registry {
    /// A registry over this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (removals, quotas, recent, informers) = Default::default();
        Self { store, removals, quotas, recent, informers, shard: None }
    }

    /// The same registry, but of copies (see [`Resource::is_copy`]) it speaks only of those of this shard. Without a
    /// shard it reads the copies of all of them and writes none.
    pub fn of_shard(&self, shard: &str) -> Self {
        Self { shard: Some(shard.into()), ..self.clone() }
    }

    /// The shard of whose copies it speaks; `None` for all.
    pub fn shard(&self) -> Option<&str> {
        self.shard.as_deref()
    }

    /// What was made of recent changes.
    pub(crate) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Waits until reads show at least what was there at this revision, for [`PATIENCE`] at most.
    ///
    /// # Errors
    /// 504 if it does not come to that, and those of the store.
    pub(crate) async fn reached(&self, revision: u64) -> Result<(), Status> {
        if revision <= self.store.revision() {
            return Ok(());
        }
        match tokio::time::timeout(PATIENCE, self.store.reached(revision)).await {
            Ok(reached) => reached.map_err(store_status),
            Err(_) => Err(errors::future_revision(revision, self.store.revision())),
        }
    }

    /// Whether the logical cluster exists, and its `LogicalCluster` object if it does.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn logical_cluster(&self, cluster: &ClusterName) -> Result<Option<Object>, Status> {
        self.find_stored(lifecycle::logical_clusters(), &ObjectKey::new(cluster, "", "cluster")).await
    }
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
        StoreError::Full => Status::service_unavailable("the disk of the store is full; nothing was written", 1),
        // Where the store is, and what it says, is for the log and for `/readyz` of the operator.
        StoreError::Unavailable(_) => {
            tracing::debug!(%error, "not served");
            Status::service_unavailable("the store is not available", 1)
        }
        // Without Retry-After: who repeats a create by itself would find its own object in its way.
        StoreError::Uncertain(_) => {
            tracing::debug!(%error, "not known");
            Status::new(Reason::Timeout, "whether it was written is not known")
        }
        StoreError::SlowConsumer => Status::service_unavailable("the watch was not read fast enough", 1),
        other => errors::internal(other),
    }
}
