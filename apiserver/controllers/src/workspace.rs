//! Workspaces get a logical cluster and take it along when they go (kcp.md 2.4, 2.5).
//!
//! A two-phase commit, so that a crash leaves nothing behind: first the name of the new cluster is written down in the
//! Workspace, then the cluster is made, then the Workspace says where it is. What is written down is believed only when
//! the LogicalCluster of that name, if there is one, has this very Workspace as its owner: no other is ever adopted or
//! deleted.

use apiserver_api::{ClusterName, ClusterNameError, Reason, Status, marks};
use apiserver_machinery::{
    Resource,
    object::{self, text},
    options::{DeleteOptions, WriteOptions},
};
use apiserver_server::{
    Registry,
    registry::{Object, ObjectKey, UpdateOptions},
};
use serde_json::{Value, json};

use crate::{
    Options,
    condition::{self, Trouble},
    controller::{Reconcile, Source},
    logical_cluster,
    queue::Outcome,
    resource, unless_gone,
};

/// What every new workspace begins with.
const NAMESPACES: [&str; 2] = ["default", "kube-system"];

/// Conditions of a Workspace (kcp.md 2.4).
const SCHEDULED: &str = "WorkspaceScheduled";
const INITIALIZED: &str = "WorkspaceInitialized";
/// Why a Workspace is not [`INITIALIZED`] any more.
const DISAPPEARED: &str = "WorkspaceDisappeared";

pub(crate) struct Workspaces {
    registry: Registry,
    options: Options,
    workspaces: &'static Resource,
    logical_clusters: &'static Resource,
    namespaces: &'static Resource,
}

impl Reconcile for Workspaces {
    fn sources(&self) -> Vec<Source> {
        vec![
            Source::all(self.workspaces, |object| Some(object.key())),
            Source::all(self.logical_clusters, |object| logical_cluster::owner(&object.value().ok()?)),
        ]
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Outcome, Status> {
        let Some(workspace) = self.registry.find(self.workspaces, &key).await? else { return Ok(Outcome::Done) };
        let workspace = workspace.value()?;
        if workspace.pointer("/spec/mount").is_some() {
            return Ok(Outcome::Done);
        }
        if workspace.pointer("/metadata/deletionTimestamp").is_some() {
            self.remove(&key, &workspace).await?;
        } else if text(&workspace, &["status", "phase"]) == "Scheduling" {
            self.make(&key, &workspace).await?;
        } else {
            self.watch_over(&key, &workspace).await?;
        }
        Ok(Outcome::Done)
    }
}

impl Workspaces {
    pub(crate) fn new(registry: Registry, options: Options) -> Self {
        Self {
            registry,
            options,
            workspaces: resource("tenancy.kcp.io", "v1alpha1", "workspaces"),
            logical_clusters: resource("core.kcp.io", "v1alpha1", "logicalclusters"),
            namespaces: resource("", "v1", "namespaces"),
        }
    }

    /// Makes the workspace's cluster, from wherever an earlier attempt stopped.
    async fn make(&self, key: &ObjectKey, workspace: &Value) -> Result<(), Status> {
        let Some(parent) = self.registry.logical_cluster(&key.cluster).await? else { return Ok(()) };
        let parent = parent.value()?;
        let parent_path = annotation(&parent, marks::PATH).unwrap_or(key.cluster.as_str());
        let path = format!("{parent_path}:{}", key.name);
        let noted = annotation(workspace, marks::WORKSPACE_CLUSTER);
        let placed = text(workspace, &["spec", "cluster"]);
        if !placed.is_empty() && noted != Some(placed) {
            // An administrator placed it by hand; the cluster is his to make and to delete.
            return Ok(());
        }
        let cluster = match noted {
            Some(name) => name.parse().map_err(unreadable)?,
            None => self.write_down(key, None).await?,
        };
        if !self.make_cluster(key, workspace, &cluster, &path).await? {
            // The name is somebody else's. The change brings us back here.
            return self.write_down(key, Some(&cluster)).await.map(drop);
        }
        let url = format!("{}/clusters/{path}", self.options.external_url);
        let place = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            if let Some(spec) = object::map_mut(&mut new, "spec") {
                spec.insert("cluster".into(), json!(cluster.as_str()));
                spec.insert("URL".into(), json!(url));
            }
            Ok(new)
        };
        unless_gone(self.registry.modify(self.workspaces, key, &UpdateOptions::default(), place).await)?;
        let ready = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            set_phase(&mut new, "Ready");
            condition::set(&mut new, SCHEDULED, None);
            condition::set(&mut new, INITIALIZED, None);
            Ok(new)
        };
        unless_gone(self.registry.modify(self.workspaces, key, &status(), ready).await)
    }

    /// A workspace whose cluster was deleted under it is no longer available: it does not get another one. Otherwise it is
    /// ready and says where it is, whatever somebody has written over phase, conditions and URL.
    async fn watch_over(&self, key: &ObjectKey, workspace: &Value) -> Result<(), Status> {
        let noted = annotation(workspace, marks::WORKSPACE_CLUSTER);
        let Some(Ok(name)) = noted.filter(|n| *n == text(workspace, &["spec", "cluster"])).map(str::parse) else {
            // One that was placed by hand.
            return Ok(());
        };
        let cluster = self.registry.find(self.logical_clusters, &ObjectKey::new(&name, "", "cluster")).await?;
        let cluster = cluster.map(|cluster| cluster.value()).transpose()?;
        let cluster = cluster.filter(|cluster| logical_cluster::is_owner(cluster, key, workspace));
        let is_there = cluster.is_some();
        if let Some(path) = cluster.as_ref().and_then(|cluster| annotation(cluster, marks::PATH)) {
            self.keep_url(key, workspace, path).await?;
        }
        let phase = if is_there { "Ready" } else { "Unavailable" };
        let says = |kind, field, wanted| condition::find(workspace, kind).is_some_and(|c| text(c, &[field]) == wanted);
        let (field, wanted) = if is_there { ("status", "True") } else { ("reason", DISAPPEARED) };
        let is_told = says(SCHEDULED, "status", "True") && says(INITIALIZED, field, wanted);
        if is_told && text(workspace, &["status", "phase"]) == phase {
            return Ok(());
        }
        let trouble = Trouble {
            reason: DISAPPEARED,
            severity: "Error",
            message: format!("the logical cluster {name} is gone, and all that was in it; delete the Workspace"),
        };
        let told = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            set_phase(&mut new, phase);
            condition::set(&mut new, SCHEDULED, None);
            condition::set(&mut new, INITIALIZED, (!is_there).then_some(&trouble));
            Ok(new)
        };
        unless_gone(self.registry.modify(self.workspaces, key, &status(), told).await)
    }

    /// Puts a URL right that leads elsewhere. Under which address is not looked at: servers on one store have several.
    async fn keep_url(&self, key: &ObjectKey, workspace: &Value, path: &str) -> Result<(), Status> {
        let end = format!("clusters/{path}");
        let behind_address =
            text(workspace, &["spec", "URL"]).split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        if behind_address.is_some_and(|(_, rest)| rest == end) {
            return Ok(());
        }
        let url = format!("{}/{end}", self.options.external_url);
        let place = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            if let Some(spec) = object::map_mut(&mut new, "spec") {
                spec.insert("URL".into(), json!(url));
            }
            Ok(new)
        };
        unless_gone(self.registry.modify(self.workspaces, key, &UpdateOptions::default(), place).await)
    }

    /// Writes a new name for the cluster into the Workspace unless there is one other than `taken`; the name that
    /// stands there in the end.
    async fn write_down(&self, key: &ObjectKey, taken: Option<&ClusterName>) -> Result<ClusterName, Status> {
        let cluster = ClusterName::from_token(&random_token());
        let note = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            if annotation(&new, marks::WORKSPACE_CLUSTER) == taken.map(ClusterName::as_str) {
                let mut finalizers = object::items(&new, &["metadata", "finalizers"]).to_vec();
                if !finalizers.iter().any(|f| f == marks::WORKSPACE_FINALIZER) {
                    finalizers.push(json!(marks::WORKSPACE_FINALIZER));
                }
                let metadata = object::metadata_mut(&mut new);
                metadata.insert("finalizers".into(), finalizers.into());
                if let Some(annotations) = metadata.entry("annotations").or_insert_with(|| json!({})).as_object_mut() {
                    annotations.insert(marks::WORKSPACE_CLUSTER.into(), json!(cluster.as_str()));
                    annotations.insert(marks::PLACED_ON.into(), json!(self.options.shard));
                }
            }
            Ok(new)
        };
        let written = self.registry.modify(self.workspaces, key, &UpdateOptions::default(), note).await?;
        let value = written.object.value()?;
        let name = annotation(&value, marks::WORKSPACE_CLUSTER);
        name.ok_or_else(|| Status::internal_error("the annotation was not kept"))?.parse().map_err(unreadable)
    }

    /// Makes the cluster and its first content; false when there is a cluster of this name that belongs to another.
    async fn make_cluster(
        &self,
        key: &ObjectKey,
        ws: &Value,
        cluster: &ClusterName,
        path: &str,
    ) -> Result<bool, Status> {
        let kind = format!("{}:{}", text(ws, &["spec", "type", "path"]), text(ws, &["spec", "type", "name"]));
        let object = json!({
            "metadata": {
                "name": "cluster",
                "annotations": { marks::PATH: path, marks::PLACED_ON: self.options.shard, marks::WORKSPACE_TYPE: kind },
                "finalizers": [marks::CLUSTER_FINALIZER],
            },
            "spec": {
                "owner": {
                    "apiVersion": "tenancy.kcp.io/v1alpha1",
                    "resource": "workspaces",
                    "name": &*key.name,
                    "cluster": key.cluster.as_str(),
                    "uid": text(ws, &["metadata", "uid"]),
                },
            },
        });
        let options = WriteOptions::default();
        if_new(self.registry.create(self.logical_clusters, cluster, "", object, &options).await)?;
        let Some(made) = self.registry.logical_cluster(cluster).await? else {
            return Err(Status::internal_error("the logical cluster was deleted while it was made"));
        };
        if !logical_cluster::is_owner(&made.value()?, key, ws) {
            return Ok(false);
        }
        let make = |name: &'static str| {
            let object = json!({ "metadata": { "name": name } });
            async { if_new(self.registry.create(self.namespaces, cluster, "", object, &WriteOptions::default()).await) }
        };
        let url = format!("{}/clusters/{cluster}", self.options.external_url);
        let ready = move |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            object::set(&mut new, "status", json!({ "phase": "Ready", "URL": url }));
            Ok(new)
        };
        let own = ObjectKey::new(cluster, "", "cluster");
        let (namespaces, phase) = (futures_util::future::try_join_all(NAMESPACES.map(make)), async {
            self.registry.modify(self.logical_clusters, &own, &status(), ready).await
        });
        let (namespaces, phase) = futures_util::future::join(namespaces, phase).await;
        namespaces?;
        unless_gone(phase).map(|()| true)
    }

    /// Deletes the cluster; lets the Workspace go once the cluster is gone.
    async fn remove(&self, key: &ObjectKey, workspace: &Value) -> Result<(), Status> {
        // What is no name is the name of no cluster.
        if let Some(Ok(name)) = annotation(workspace, marks::WORKSPACE_CLUSTER).map(str::parse::<ClusterName>) {
            let own = ObjectKey::new(&name, "", "cluster");
            if let Some(cluster) = self.registry.find(self.logical_clusters, &own).await?
                && let cluster = cluster.value()?
                && logical_cluster::is_owner(&cluster, key, workspace)
            {
                self.tell(key, &cluster).await?;
                // Its own disappearance brings us back here.
                return unless_gone(self.registry.delete(self.logical_clusters, &own, &DeleteOptions::default()).await);
            }
        }
        let release = |old: Option<&Value>| Ok(logical_cluster::without_finalizer(old, marks::WORKSPACE_FINALIZER));
        unless_gone(self.registry.modify(self.workspaces, key, &UpdateOptions::default(), release).await)
    }

    /// Says that the workspace is being deleted, and what of its cluster keeps it.
    async fn tell(&self, key: &ObjectKey, cluster: &Value) -> Result<(), Status> {
        let terminators = object::items(cluster, &["status", "terminators"]);
        let phase = if terminators.is_empty() { "Deleting" } else { "Terminating" };
        let told = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            set_phase(&mut new, phase);
            if let Some(found) = condition::find(cluster, logical_cluster::CONTENT_DELETED) {
                condition::put(&mut new, found.clone());
            }
            Ok(new)
        };
        unless_gone(self.registry.modify(self.workspaces, key, &status(), told).await)
    }
}

fn set_phase(workspace: &mut Value, phase: &str) {
    if let Some(status) = object::map_mut(workspace, "status") {
        status.insert("phase".into(), json!(phase));
    }
}

fn status() -> UpdateOptions {
    UpdateOptions { subresource: "status", ..UpdateOptions::default() }
}

fn if_new(created: Result<Object, Status>) -> Result<(), Status> {
    match created {
        Ok(_) => Ok(()),
        Err(status) if status.reason == Some(Reason::AlreadyExists) => Ok(()),
        Err(status) => Err(status),
    }
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object::get(object, &["metadata", "annotations", key])?.as_str()
}

/// 244 random bits in 256.
fn random_token() -> [u8; 32] {
    let mut token = [0; 32];
    let (first, second) = token.split_at_mut(16);
    first.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    second.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    token
}

/// The annotation names no cluster: only this server writes it.
fn unreadable(error: ClusterNameError) -> Status {
    Status::internal_error(error.to_string())
}
