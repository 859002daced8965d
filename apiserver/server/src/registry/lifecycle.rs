//! When objects begin and end: finalizers, terminating namespaces and logical clusters.

use std::collections::HashMap;

use apiserver_api::{ClusterName, Status, marks, status::Cause};
use apiserver_machinery::{Resource, builtin, object::map_mut};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::{Object, ObjectKey, Registry};
use crate::errors;

/// What every request must know of its LogicalCluster, and a create of its Namespace: by far not the whole object.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Life {
    metadata: Metadata,
    status: Option<LifeStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    deletion_timestamp: Option<IgnoredAny>,
    annotations: Option<HashMap<String, Value>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LifeStatus {
    phase: Option<String>,
    terminators: Option<Vec<IgnoredAny>>,
}

impl Life {
    /// `status.phase`; empty when there is none.
    pub(crate) fn phase(&self) -> &str {
        self.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
    }

    /// The administrators took the cluster offline.
    pub(crate) fn is_inactive(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        marks::INACTIVE.iter().any(|key| annotations.is_some_and(|a| a.get(*key).is_some_and(|v| v == "true")))
    }

    /// It was deleted and waits for its finalizers.
    pub(super) fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    fn has_terminators(&self) -> bool {
        self.status.as_ref().and_then(|s| s.terminators.as_ref()).is_some_and(|t| !t.is_empty())
    }
}

/// The resource whose object `cluster` *is* the existence of a logical cluster (kcp.md 2.2).
pub(crate) fn logical_clusters() -> &'static Resource {
    builtin::find("core.kcp.io", "v1alpha1", "logicalclusters")
        .expect("the table of built-in kinds has logicalclusters")
}

pub(crate) fn namespaces() -> &'static Resource {
    builtin::find("", "v1", "namespaces").expect("the table of built-in kinds has namespaces")
}

/// Whether its objects are the logical clusters of this server; copies of other shards' are not.
pub(crate) fn is_logical_cluster(resource: &Resource) -> bool {
    resource.group == "core.kcp.io" && resource.plural == "logicalclusters" && !resource.is_copy
}

fn is_namespace(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "namespaces"
}

/// Whether finalizers hold the object; a namespace has some in its spec too. Those of a copy hold its original.
pub(super) fn is_held(resource: &Resource, value: &Value) -> bool {
    if resource.is_copy {
        return false;
    }
    let some = |pointer: &str| value.pointer(pointer).and_then(Value::as_array).is_some_and(|f| !f.is_empty());
    some("/metadata/finalizers") || (is_namespace(resource) && some("/spec/finalizers"))
}

/// Whether the object was deleted and waits for its finalizers.
pub(crate) fn is_terminating(value: &Value) -> bool {
    value.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
}

/// Marks the object as deleted at `now` (RFC 3339).
pub(super) fn terminate(resource: &Resource, value: &mut Value, now: &str) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("deletionTimestamp".into(), now.into());
        if !is_namespace(resource) {
            metadata.insert("deletionGracePeriodSeconds".into(), 0.into());
        }
        if let (true, Some(generation)) = (resource.generation, metadata.get("generation").and_then(Value::as_i64)) {
            metadata.insert("generation".into(), (generation + 1).into());
        }
    }
    if is_namespace(resource)
        && let Some(status) = map_mut(value, "status")
    {
        status.insert("phase".into(), "Terminating".into());
    }
}

impl Registry {
    /// Whether `name` may be created: its namespace must exist and not be terminating (admission
    /// NamespaceLifecycle), its logical cluster must exist and not be past its terminators.
    ///
    /// Answers what must still be as it was read when the object is written: the innermost of the two, since a
    /// cluster takes its namespaces along before itself. So whatever is written before one of them begins to
    /// terminate is found by the controller that empties it, and nothing is written after.
    pub(super) async fn admit_create(
        &self,
        resource: &'static Resource,
        cluster: &ClusterName,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>, Status> {
        if resource.is_copy || is_logical_cluster(resource) {
            return Ok(None);
        }
        let Some(found) = self.logical_cluster(cluster).await? else {
            return Err(errors::not_found(logical_clusters(), "cluster"));
        };
        let life: Life = found.parse()?;
        // Terminators may still make what they need; behind them whatever is created would outlive its cluster.
        if life.is_terminating() && !life.has_terminators() {
            let why = format!("unable to create new content in logical cluster {cluster} because it is being deleted");
            return Err(errors::forbidden(resource, name, &why));
        }
        if !resource.is_namespaced() {
            return Ok(Some(found));
        }
        let Some(found) = self.find(namespaces(), &ObjectKey::new(cluster, "", namespace)).await? else {
            return Err(errors::not_found(namespaces(), namespace));
        };
        if found.parse::<Life>()?.is_terminating() {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            let mut status = errors::forbidden(resource, name, &why);
            let cause = Cause {
                reason: "NamespaceTerminating".into(),
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".into(),
            };
            status.details.get_or_insert_default().causes.push(cause);
            return Err(status);
        }
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_life_of_a_cluster() {
        let life = |text: &str| serde_json::from_str::<Life>(text).unwrap();
        for text in [
            "{}",
            r#"{"metadata":{"deletionTimestamp":null,"annotations":null},"status":null}"#,
            r#"{"metadata":{"annotations":{"core.kcp.io/inactive":"false"}},"status":{"phase":null,"terminators":[]}}"#,
        ] {
            let life = life(text);
            assert!(!life.is_terminating() && !life.is_inactive() && !life.has_terminators(), "{text}");
            assert_eq!(life.phase(), "");
        }
        let dying = life(
            r#"{"metadata":{"deletionTimestamp":"2020-01-01T00:00:00Z","annotations":{"internal.kcp.io/inactive":"true"}},
                "status":{"phase":"Deleting","terminators":["a:b"]},"spec":{"owner":{}}}"#,
        );
        assert!(dying.is_terminating() && dying.is_inactive() && dying.has_terminators());
        assert_eq!(dying.phase(), "Deleting");
    }
}
