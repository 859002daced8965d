//! What is held (kcp.md 4.3): objects of any content, of which only the metadata is known.
//!
//! Which objects of these resources come here is the choice of the shards that write them; of `logicalclusters`,
//! `clusterroles` and `clusterrolebindings` those that carry the annotation `internal.kcp.io/replicate`.

use std::sync::LazyLock;

use apiserver_machinery::{Column, NameRule, Resource, Scope, age, discovery::Discovery, object, schema};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    Column { name: "Name", kind: "string", priority: 0, cell: |o, _| Value::from(object::name(o)) },
    Column {
        name: "Age",
        kind: "string",
        priority: 0,
        cell: |o, now| Value::from(age::age(object::text(o, &["metadata", "creationTimestamp"]), now)),
    },
];

/// A held resource. All of them are cluster-scoped and without subresources.
const fn held(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
) -> Resource {
    Resource {
        group,
        version,
        plural,
        singular,
        kind,
        short_names: &[],
        categories: &[],
        scope: Scope::Cluster,
        columns: COLUMNS,
        verbs: &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        subresources: &[],
        generation: false,
        create_on_update: false,
        name_rule: NameRule::PathSegment,
        schema: &schema::OPEN,
        protobuf: false,
        selectable: &[],
        prepare: |_, _| {},
        validate: |_, _, _| {},
        immortal: &[],
        ttl: None,
        is_copy: true,
        view: None,
        mandatory: || &[],
    }
}

const ADMISSION: &str = "admissionregistration.k8s.io";
const APIS: &str = "apis.kcp.io";
const RBAC: &str = "rbac.authorization.k8s.io";

static ALL: [Resource; 16] = [
    held(
        ADMISSION,
        "v1",
        "mutatingwebhookconfigurations",
        "mutatingwebhookconfiguration",
        "MutatingWebhookConfiguration",
    ),
    held(ADMISSION, "v1", "validatingadmissionpolicies", "validatingadmissionpolicy", "ValidatingAdmissionPolicy"),
    held(
        ADMISSION,
        "v1",
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicybinding",
        "ValidatingAdmissionPolicyBinding",
    ),
    held(
        ADMISSION,
        "v1",
        "validatingwebhookconfigurations",
        "validatingwebhookconfiguration",
        "ValidatingWebhookConfiguration",
    ),
    held(APIS, "v1alpha2", "apiexports", "apiexport", "APIExport"),
    held(APIS, "v1alpha1", "apiconversions", "apiconversion", "APIConversion"),
    held(APIS, "v1alpha1", "apiexportendpointslices", "apiexportendpointslice", "APIExportEndpointSlice"),
    held(APIS, "v1alpha1", "apiresourceschemas", "apiresourceschema", "APIResourceSchema"),
    held(
        "cache.kcp.io",
        "v1alpha1",
        "clustercachedresourceendpointslices",
        "clustercachedresourceendpointslice",
        "ClusterCachedResourceEndpointSlice",
    ),
    held("cache.kcp.io", "v1alpha1", "clustercachedresources", "clustercachedresource", "ClusterCachedResource"),
    held("core.kcp.io", "v1alpha1", "logicalclusters", "logicalcluster", "LogicalCluster"),
    held("core.kcp.io", "v1alpha1", "shards", "shard", "Shard"),
    held(
        "migration.kcp.io",
        "v1alpha1",
        "logicalclustermigrations",
        "logicalclustermigration",
        "LogicalClusterMigration",
    ),
    held(RBAC, "v1", "clusterrolebindings", "clusterrolebinding", "ClusterRoleBinding"),
    held(RBAC, "v1", "clusterroles", "clusterrole", "ClusterRole"),
    held("tenancy.kcp.io", "v1alpha1", "workspacetypes", "workspacetype", "WorkspaceType"),
];

/// The held resources, those of one group and version side by side.
pub fn all() -> &'static [Resource] {
    &ALL
}

/// The held resource of this group and plural; there is one version of each.
pub fn find(group: &str, plural: &str) -> Option<&'static Resource> {
    ALL.iter().find(|r| r.group == group && r.plural == plural)
}

/// Their discovery documents.
pub(crate) fn discovery() -> &'static Discovery {
    static DOCUMENTS: LazyLock<Discovery> = LazyLock::new(|| Discovery::new(all()));
    &DOCUMENTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        let mut seen = Vec::new();
        for r in all() {
            assert!(std::ptr::eq(find(r.group, r.plural).unwrap(), r));
            assert_eq!(r.kind.to_lowercase(), r.singular);
            let place = (r.group, r.version);
            if seen.last() != Some(&place) {
                assert!(!seen.contains(&place), "{place:?}");
                seen.push(place);
            }
        }
        assert!(find("tenancy.kcp.io", "workspaces").is_none());
        assert!(find("apis.kcp.io", "apibindings").is_none());
    }
}
