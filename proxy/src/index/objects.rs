//! What the index reads of LogicalClusters and Workspaces. Unknown fields are nobody's business here.

use std::collections::HashMap;

use apiserver_api::{ClusterName, marks};
use serde::Deserialize;

use super::{Cluster, Labels, Workspace};

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct List {
    pub(super) kind: String,
    #[serde(default)]
    pub(super) metadata: ListMeta,
    #[serde(default)]
    pub(super) items: Vec<Object>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMeta {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) more: String,
}

/// One line of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) object: Object,
}

/// Either kind of object, or the Status of an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Object {
    pub(super) metadata: Meta,
    spec: Spec,
    /// Of a Status this is a word.
    status: serde_json::Value,
    pub(super) code: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) resource_version: String,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Debug, Default, Deserialize)]
#[serde(from = "HashMap<String, String>")]
struct Annotations {
    cluster: String,
    shard: String,
    path: String,
}

impl From<HashMap<String, String>> for Annotations {
    fn from(mut all: HashMap<String, String>) -> Self {
        let mut take = |name| all.remove(name).unwrap_or_default();
        Self { cluster: take(marks::CLUSTER), shard: take(marks::PLACED_ON), path: take(marks::PATH) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    cluster: String,
    #[serde(rename = "URL")]
    url: String,
    mount: Option<serde::de::IgnoredAny>,
}

impl Object {
    /// The cluster that the object is in.
    pub(super) fn cluster(&self) -> Option<ClusterName> {
        self.metadata.annotations.cluster.parse().ok()
    }

    /// A LogicalCluster on the shard of this name.
    pub(super) fn logical_cluster(&self, shard: &str) -> Cluster {
        let annotations = &self.metadata.annotations;
        Cluster { confirmed: annotations.shard == shard, path: annotations.path.as_str().into() }
    }

    /// A Workspace that can be entered or will be; `None` for one that went before it was placed.
    pub(super) fn workspace(&self) -> Option<Workspace> {
        let phase = self.status.get("phase").and_then(|p| p.as_str()).unwrap_or("Scheduling");
        let is_mount = self.spec.mount.is_some() && !self.spec.url.is_empty();
        let is_pending = phase == "Scheduling";
        (!is_pending || self.metadata.deletion_timestamp.is_none()).then(|| Workspace {
            is_pending,
            cluster: self.spec.cluster.parse().ok(),
            mount: is_mount.then(|| self.spec.url.as_str().into()),
            is_unavailable: phase == "Unavailable",
            labels: self.metadata.labels.clone(),
        })
    }
}
