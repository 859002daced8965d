//! Terminating logical clusters lose their content, then themselves (kcp.md 2.5). So do those whose Workspace is gone.
//!
//! Nothing is taken from a cluster before its terminators have done their part: until then it also takes new objects.

use apiserver_api::{Status, marks};
use apiserver_machinery::{
    Resource, builtin,
    object::{get, items, map_mut, text},
    options::DeleteOptions,
};
use apiserver_server::{
    Registry,
    registry::{Collection, Object, ObjectKey, UpdateOptions},
};
use serde_json::Value;

use crate::{
    condition::{self, Trouble},
    content::{self, Remaining},
    controller::{Reconcile, Source},
    queue::Outcome,
    resource, unless_gone,
};

/// Condition of a cluster that is being deleted, and of its Workspace: what is still there.
pub(crate) const CONTENT_DELETED: &str = "WorkspaceContentDeleted";

pub(crate) struct LogicalClusters {
    registry: Registry,
    workspaces: &'static Resource,
    logical_clusters: &'static Resource,
}

impl LogicalClusters {
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            registry,
            workspaces: resource("tenancy.kcp.io", "v1alpha1", "workspaces"),
            logical_clusters: resource("core.kcp.io", "v1alpha1", "logicalclusters"),
        }
    }

    /// Whether the cluster belongs to a Workspace that is there no more, or is another one of the same name.
    async fn is_orphan(&self, cluster: &Value) -> Result<bool, Status> {
        let Some(key) = owner(cluster) else { return Ok(false) };
        let Some(workspace) = self.registry.find(self.workspaces, &key).await? else { return Ok(true) };
        Ok(!is_owner(cluster, &key, &workspace.value()?))
    }
}

impl LogicalClusters {
    /// Says what keeps a cluster that is being deleted.
    async fn tell(&self, key: &ObjectKey, left: &Remaining) -> Result<(), Status> {
        let finalizers = left.finalizers("the logical cluster");
        let reason = if finalizers.is_some() { "SomeFinalizersRemain" } else { "SomeResourcesRemain" };
        let message = left.resources().into_iter().chain(finalizers).collect::<Vec<_>>().join("; ");
        let trouble = Trouble { reason, severity: "Info", message };
        let told = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            if let Some(status) = map_mut(&mut new, "status") {
                status.insert("phase".into(), "Deleting".into());
            }
            condition::set(&mut new, CONTENT_DELETED, Some(&trouble));
            Ok(new)
        };
        let options = UpdateOptions { subresource: "status", ..UpdateOptions::default() };
        unless_gone(self.registry.modify(self.logical_clusters, key, &options, told).await)
    }
}

impl Reconcile for LogicalClusters {
    fn sources(&self) -> Vec<Source> {
        // Whatever goes may be the last that a terminating cluster waits for.
        let content =
            builtin::all().iter().filter(|r| r.plural != "events" && !std::ptr::eq(*r, self.logical_clusters));
        let mut sources: Vec<Source> = content.map(|r| Source::deletions(r, |o| Some(inside(o)))).collect();
        sources.push(Source::all(self.logical_clusters, |object| Some(object.key())));
        sources.push(Source::all(self.workspaces, cluster_of));
        sources
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Outcome, Status> {
        let Some(cluster) = self.registry.find(self.logical_clusters, &key).await? else { return Ok(Outcome::Done) };
        let cluster = cluster.value()?;
        if cluster.pointer("/metadata/deletionTimestamp").is_none() {
            if self.is_orphan(&cluster).await? {
                // Nobody else would: whoever took the finalizer off a Workspace by hand left its cluster behind.
                let uid = Some(text(&cluster, &["metadata", "uid"]).to_owned());
                let options = DeleteOptions { uid, ..DeleteOptions::default() };
                unless_gone(self.registry.delete(self.logical_clusters, &key, &options).await)?;
            }
            return Ok(Outcome::Done);
        }
        if !items(&cluster, &["status", "terminators"]).is_empty() {
            // The change that takes the last one brings us back here.
            return Ok(Outcome::Done);
        }
        let inside = Collection::cluster(&key.cluster);
        let mut left = Remaining::default();
        // Namespaced objects first: then the namespace controller finds its namespaces empty.
        let content = || builtin::all().iter().filter(|r| !std::ptr::eq(*r, self.logical_clusters));
        for resource in content().filter(|r| r.is_namespaced()).chain(content().filter(|r| !r.is_namespaced())) {
            left.add(resource, content::remove(&self.registry, resource, &inside).await?);
        }
        if !left.is_empty() {
            self.tell(&key, &left).await?;
            return Ok(Outcome::Again);
        }
        // With the resourceVersion that was read: whoever gave it a terminator meanwhile may have made objects.
        let released = without_finalizer(Some(&cluster), marks::CLUSTER_FINALIZER);
        unless_gone(self.registry.update(self.logical_clusters, &key, released, &UpdateOptions::default()).await)?;
        Ok(Outcome::Done)
    }
}

/// The cluster that an object lies in.
fn inside(object: &Object) -> ObjectKey {
    ObjectKey { namespace: "".into(), name: "cluster".into(), ..object.key() }
}

/// The cluster that a Workspace is tied to.
fn cluster_of(workspace: &Object) -> Option<ObjectKey> {
    let workspace = workspace.value().ok()?;
    let name = text(&workspace, &["metadata", "annotations", marks::WORKSPACE_CLUSTER]).parse().ok()?;
    Some(ObjectKey::new(&name, "", "cluster"))
}

/// The Workspace that a LogicalCluster says it belongs to.
pub(crate) fn owner(cluster: &Value) -> Option<ObjectKey> {
    let owner = get(cluster, &["spec", "owner"]).filter(|o| text(o, &["resource"]) == "workspaces")?;
    Some(ObjectKey::new(&text(owner, &["cluster"]).parse().ok()?, "", text(owner, &["name"])))
}

/// Whether a LogicalCluster belongs to this very Workspace.
pub(crate) fn is_owner(cluster: &Value, key: &ObjectKey, workspace: &Value) -> bool {
    owner(cluster).is_some_and(|owner| owner == *key)
        && text(cluster, &["spec", "owner", "uid"]) == text(workspace, &["metadata", "uid"])
}

/// The object without one of its finalizers.
pub(crate) fn without_finalizer(object: Option<&Value>, finalizer: &str) -> Value {
    let mut object = object.cloned().unwrap_or_default();
    if let Some(finalizers) = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
        finalizers.retain(|f| f != finalizer);
    }
    object
}
