//! Terminating logical clusters lose their content, then themselves (kcp.md 2.5).

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin};
use apiserver_server::{
    Registry,
    registry::{Collection, ObjectKey, UpdateOptions},
};
use serde_json::Value;

use crate::{
    content,
    controller::{Outcome, Reconcile, Source},
    resource, unless_gone,
};

/// Holds a LogicalCluster for as long as the cluster has content.
pub(crate) const FINALIZER: &str = "core.kcp.io/logicalcluster-deletion";

pub(crate) struct LogicalClusters {
    registry: Registry,
    logical_clusters: &'static Resource,
}

impl LogicalClusters {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, logical_clusters: resource("core.kcp.io", "v1alpha1", "logicalclusters") }
    }
}

impl Reconcile for LogicalClusters {
    fn sources(&self) -> Vec<Source> {
        vec![Source { resource: self.logical_clusters, key: |object| Some(object.key()) }]
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Outcome, Status> {
        let Some(cluster) = self.registry.find(self.logical_clusters, &key).await? else { return Ok(Outcome::Done) };
        if cluster.value()?.pointer("/metadata/deletionTimestamp").is_none() {
            return Ok(Outcome::Done);
        }
        let inside = Collection::cluster(&key.cluster);
        let mut left = 0;
        // Namespaced objects first: then the namespace controller finds its namespaces empty.
        let content = || builtin::all().iter().filter(|r| !std::ptr::eq(*r, self.logical_clusters));
        for resource in content().filter(|r| r.is_namespaced()).chain(content().filter(|r| !r.is_namespaced())) {
            left += content::remove(&self.registry, resource, &inside).await?;
        }
        if left > 0 {
            return Ok(Outcome::Again);
        }
        let release = |old: Option<&Value>| Ok(without_finalizer(old, FINALIZER));
        unless_gone(self.registry.modify(self.logical_clusters, &key, &UpdateOptions::default(), release).await)?;
        Ok(Outcome::Done)
    }
}

/// The object without one of its finalizers.
pub(crate) fn without_finalizer(object: Option<&Value>, finalizer: &str) -> Value {
    let mut object = object.cloned().unwrap_or_default();
    if let Some(finalizers) = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
        finalizers.retain(|f| f != finalizer);
    }
    object
}
