//! What must exist before the first request.

use std::sync::atomic::Ordering;

use apiserver_api::{ClusterName, Reason, Status, marks};
use apiserver_machinery::{
    Resource,
    object::{set, text},
    options::WriteOptions,
};
use serde_json::{Value, json};

use crate::{
    registry::{ObjectKey, Registry, UpdateOptions, logical_clusters, namespaces},
    server::ApiServer,
};

/// The clusters that no Workspace object stands for.
const SYSTEM_CLUSTERS: [&str; 2] = [ClusterName::ROOT, "system:admin"];

impl ApiServer {
    /// Creates the logical clusters `root` and `system:admin`, and the namespaces `default` and `kube-system` in
    /// `root`. What is there already stays as it is, so it can be called at every start.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn bootstrap(&self) -> Result<(), Status> {
        for name in SYSTEM_CLUSTERS {
            let cluster: ClusterName = name.parse().map_err(crate::errors::internal)?;
            self.create_logical_cluster(&cluster).await?;
        }
        let root: ClusterName = ClusterName::ROOT.parse().map_err(crate::errors::internal)?;
        for name in ["default", "kube-system"] {
            let namespace = json!({"metadata": {"name": name}});
            create_missing(self.registry(), namespaces(), &root, namespace).await?;
        }
        if let Some(done) = self.bootstrapped() {
            done.store(true, Ordering::Release);
        }
        Ok(())
    }

    async fn create_logical_cluster(&self, cluster: &ClusterName) -> Result<(), Status> {
        let object = json!({"metadata": {"name": "cluster", "annotations": {marks::PATH: cluster.as_str()}}});
        create_missing(self.registry(), logical_clusters(), cluster, object).await?;
        // Also when it was there: a start that was interrupted in between is completed.
        let url = format!("{}/clusters/{cluster}", self.options().external_url.trim_end_matches('/'));
        let options = UpdateOptions { subresource: "status", ..UpdateOptions::default() };
        let ready = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            if matches!(text(&new, &["status", "phase"]), "" | "Scheduling") {
                set(&mut new, "status", json!({"phase": "Ready", "URL": url}));
            }
            Ok(new)
        };
        let key = ObjectKey::new(cluster, "", "cluster");
        self.registry().modify(logical_clusters(), &key, &options, ready).await.map(|_| ())
    }
}

/// Creates the object unless it is there.
async fn create_missing(
    registry: &Registry,
    resource: &'static Resource,
    cluster: &ClusterName,
    object: Value,
) -> Result<(), Status> {
    match registry.create(resource, cluster, "", object, &WriteOptions::default()).await {
        Ok(_) => Ok(()),
        Err(status) if status.reason == Some(Reason::AlreadyExists) => Ok(()),
        Err(status) => Err(status),
    }
}
