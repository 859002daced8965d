//! What must exist before the first request.

use apiserver_api::{ClusterName, Reason, Status};
use apiserver_machinery::options::WriteOptions;
use serde_json::{Value, json};

use crate::{
    registry::{Registry, UpdateOptions, logical_clusters, namespaces},
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
        Ok(())
    }

    async fn create_logical_cluster(&self, cluster: &ClusterName) -> Result<(), Status> {
        let object = json!({"metadata": {"name": "cluster", "annotations": {"kcp.io/path": cluster.as_str()}}});
        if !create_missing(self.registry(), logical_clusters(), cluster, object).await? {
            return Ok(());
        }
        let url = format!("{}/clusters/{cluster}", self.options().external_url.trim_end_matches('/'));
        let key = crate::registry::ObjectKey::new(cluster, "", "cluster");
        let options = UpdateOptions { subresource: "status", ..UpdateOptions::default() };
        let ready = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            if let Some(fields) = new.as_object_mut() {
                fields.insert("status".into(), json!({"phase": "Ready", "URL": url}));
            }
            Ok(new)
        };
        self.registry().modify(logical_clusters(), &key, &options, ready).await.map(|_| ())
    }
}

/// Whether the object was created now.
async fn create_missing(
    registry: &Registry,
    resource: &'static apiserver_machinery::Resource,
    cluster: &ClusterName,
    object: Value,
) -> Result<bool, Status> {
    match registry.create(resource, cluster, "", object, &WriteOptions::default()).await {
        Ok(_) => Ok(true),
        Err(status) if status.reason == Some(Reason::AlreadyExists) => Ok(false),
        Err(status) => Err(status),
    }
}
