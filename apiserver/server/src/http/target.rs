//! From the path of a request to the logical cluster it is for (kcp.md 1.2, 1.8).

use apiserver_api::{ClusterName, Status, cluster};
use apiserver_machinery::builtin;
use serde_json::Value;

use super::authorization::Place;
use crate::{
    errors,
    registry::{Life, ObjectKey, Registry},
    service::Address,
};

/// Where a request goes.
pub(crate) struct Destination {
    /// The cluster; `None` for `*` and for bare paths.
    pub(crate) cluster: Option<ClusterName>,
    /// See [`Place`].
    pub(crate) place: Place,
    /// The administrators took the cluster offline.
    pub(crate) inactive: bool,
}

/// The place of an address, and the registry as far as it speaks of that place.
///
/// # Errors
/// Those of [`resolve`].
pub(crate) async fn locate(registry: &Registry, address: &Address<'_>) -> Result<(Registry, Destination), Status> {
    let at = |place| Destination { cluster: None, place, inactive: false };
    Ok(match address {
        Address::Cluster { path, .. } => (registry.clone(), resolve(registry, path).await?),
        Address::Wildcard { .. } => (registry.clone(), at(Place::Wildcard)),
        Address::Process { .. } => (registry.clone(), at(Place::Bare)),
        Address::Shard { shard, cluster, .. } => {
            let registry = shard.as_ref().map_or_else(|| registry.clone(), |shard| registry.of_shard(shard));
            (registry, Destination { cluster: cluster.clone(), ..at(Place::Shard) })
        }
    })
}

/// Resolves the decoded name or path of a cluster and looks at the cluster's state.
///
/// # Errors
/// 404 for a path that leads nowhere on this shard, 503 for an unavailable workspace on the way.
async fn resolve(registry: &Registry, path: &str) -> Result<Destination, Status> {
    let name = match cluster::single_name(path) {
        Some(name) => name.parse().map_err(|_| not_found(path))?,
        None => walk(registry, path).await?,
    };
    let Some(found) = registry.logical_cluster(&name).await? else {
        return Ok(Destination { cluster: Some(name), place: Place::Closed, inactive: false });
    };
    let life: Life = found.parse()?;
    let place = if matches!(life.phase(), "Scheduling" | "Unavailable") { Place::Closed } else { Place::Cluster };
    Ok(Destination { cluster: Some(name), place, inactive: life.is_inactive() })
}

/// Follows the Workspace objects from the first segment down.
async fn walk(registry: &Registry, path: &str) -> Result<ClusterName, Status> {
    let workspaces = builtin::find("tenancy.kcp.io", "v1alpha1", "workspaces").ok_or_else(|| not_found(path))?;
    let mut segments = path.split(':');
    let first = segments.next().unwrap_or_default();
    let mut name: ClusterName = match (first, path.strip_prefix("user:")) {
        ("user", Some(_)) => cluster::home_cluster(segments.next().unwrap_or_default()),
        _ => first.parse().map_err(|_| not_found(path))?,
    };
    for segment in segments {
        let key = ObjectKey::new(&name, "", segment);
        let Some(found) = registry.find(workspaces, &key).await? else { return Err(not_found(path)) };
        let workspace = found.stored()?;
        if workspace.pointer("/status/phase").and_then(Value::as_str) == Some("Unavailable") {
            return Err(Status::service_unavailable("Not available.", 1));
        }
        let child = workspace.pointer("/spec/cluster").and_then(Value::as_str).unwrap_or_default();
        name = child.parse().map_err(|_| not_found(path))?;
    }
    Ok(name)
}

fn not_found(path: &str) -> Status {
    Status::not_found("tenancy.kcp.io", "workspaces", path)
}

/// Refuses what an inactive cluster does not serve.
///
/// # Errors
/// 403 with kcp's text.
pub(crate) fn check_active(destination: &Destination, path: &str) -> Result<(), Status> {
    let spared = path.starts_with("/openapi") || path.starts_with("/apis/core.kcp.io/v1alpha1/logicalclusters");
    match &destination.cluster {
        Some(cluster) if destination.inactive && !spared => Err(errors::forbidden(
            crate::registry::logical_clusters(),
            cluster.as_str(),
            "logical cluster is marked inactive",
        )),
        _ => Ok(()),
    }
}
