//! kcp's Workspace (kcp.md 2.1).

use apiserver_api::{
    field::{Error, Path},
    marks, names,
};
use serde_json::{Value, json};

use super::{VERBS, columns};
use crate::{
    object::{self, text},
    resource::{Column, ErrorList, NameRule, Resource, Scope},
    schema,
};

const COLUMNS: &[Column] = &[
    columns::NAME,
    columns::string("Type", |o, _| columns::text(o, &["spec", "type", "name"])),
    columns::string("Region", |o, _| columns::text(o, &["metadata", "labels", "region"])),
    columns::string("Phase", |o, _| columns::text(o, &["status", "phase"])),
    columns::string("URL", |o, _| columns::text(o, &["spec", "URL"])),
    columns::AGE,
];

pub(super) const WORKSPACES: Resource = Resource {
    group: "tenancy.kcp.io",
    version: "v1alpha1",
    plural: "workspaces",
    singular: "workspace",
    kind: "Workspace",
    short_names: &["ws"],
    categories: &["kcp"],
    scope: Scope::Cluster,
    columns: COLUMNS,
    verbs: VERBS,
    subresources: &["status"],
    generation: true,
    create_on_update: false,
    // One segment of a path (kcp.md 1.1) is exactly an RFC 1123 label.
    name_rule: NameRule::Label,
    schema: &schema::kcp::WORKSPACE,
    protobuf: false,
    selectable: &[],
    prepare,
    validate,
    immortal: &[],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &[],
};

fn is_mounted(o: &Value) -> bool {
    object::get(o, &["spec", "mount", "ref"]).is_some()
}

fn prepare(new: &mut Value, old: Option<&Value>) {
    if let Some(old) = old {
        keep_marks(new, old);
    }
    let mounted = is_mounted(new);
    let Some(spec) = object::map_mut(new, "spec") else { return };
    if !mounted {
        // What an update leaves out it does not unset: type, cluster and URL are for ever.
        let default = json!({"name": "universal", "path": "root"});
        let kept = old.and_then(|o| object::get(o, &["spec", "type"])).unwrap_or(&default);
        let named = spec.get("type").is_some_and(|t| !text(t, &["name"]).is_empty());
        if !named {
            spec.insert("type".into(), kept.clone());
        } else if let Some(Value::Object(of)) = spec.get_mut("type") {
            of.entry("path").or_insert_with(|| json!("root"));
        }
    }
    let Some(status) = object::map_mut(new, "status") else { return };
    status.entry("phase").or_insert_with(|| json!("Scheduling"));
    let phase = text(new, &["status", "phase"]).to_owned();
    if let Some(labels) = new.get_mut("metadata").and_then(|m| object::map_mut(m, "labels")) {
        labels.insert("tenancy.kcp.io/phase".into(), json!(phase));
    }
}

/// Keeps what ties the workspace to its cluster when an update leaves it out, as one from a bare manifest does: without
/// the annotation and the finalizer a deletion would forget the cluster. A terminating workspace loses the finalizer
/// by the controller.
fn keep_marks(new: &mut Value, old: &Value) {
    let metadata = object::metadata_mut(new);
    if let Some(cluster) = object::get(old, &["metadata", "annotations", marks::WORKSPACE_CLUSTER]) {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if annotations.is_null() {
            *annotations = json!({});
        }
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.entry(marks::WORKSPACE_CLUSTER).or_insert_with(|| cluster.clone());
        }
    }
    let is_ours = |finalizers: &[Value]| finalizers.iter().any(|f| f == marks::WORKSPACE_FINALIZER);
    let terminating = object::get(old, &["metadata", "deletionTimestamp"]).is_some_and(|t| !t.is_null());
    if !terminating && is_ours(object::items(old, &["metadata", "finalizers"])) {
        let mut finalizers = object::items(new, &["metadata", "finalizers"]).to_vec();
        if !is_ours(&finalizers) {
            finalizers.push(json!(marks::WORKSPACE_FINALIZER));
            object::metadata_mut(new).insert("finalizers".into(), finalizers.into());
        }
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    if is_mounted(new) {
        if object::get(new, &["spec", "type"]).is_some() {
            errors.push(Error::forbidden(&Path::new("spec.type"), "spec.type cannot be set for mounted workspaces"));
        }
        for field in ["apiVersion", "kind", "name"] {
            if text(new, &["spec", "mount", "ref", field]).is_empty() {
                errors.push(Error::required(&Path::new(&format!("spec.mount.ref.{field}")), ""));
            }
        }
    } else if let Some(wrong) = type_name(text(new, &["spec", "type", "name"])) {
        let value = json!(text(new, &["spec", "type", "name"]));
        errors.push(Error::invalid(&Path::new("spec.type.name"), value, wrong));
    }
    let Some(old) = old else { return };
    for (field, may_be_set) in [("type", false), ("mount", false), ("cluster", true), ("URL", true)] {
        let (was, is) = (object::get(old, &["spec", field]), object::get(new, &["spec", field]));
        let set_later = may_be_set && was.is_none();
        // The URL follows the shard's, so it may change, but not go.
        let changes = if field == "URL" { is.is_none() } else { was != is };
        if changes && !set_later && was != is {
            let value = is.cloned().unwrap_or_default();
            let wrong = if is.is_none() { "cannot be unset" } else { "field is immutable" };
            errors.push(Error::invalid(&Path::new(&format!("spec.{field}")), value, wrong));
        }
    }
}

/// What is wrong with the name of a workspace type: `^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`.
fn type_name(name: &str) -> Option<&'static str> {
    let fine = name.starts_with(|c: char| c.is_ascii_lowercase()) && names::dns_label(name).is_ok();
    (!fine).then_some("must be 1 to 63 of a-z, 0-9 and inner hyphens, beginning with a letter")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut list = Vec::new();
        validate(new, old, &mut list);
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn defaults() {
        let mut ws = json!({"metadata": {"name": "a"}});
        prepare(&mut ws, None);
        assert_eq!(ws["spec"], json!({"type": {"name": "universal", "path": "root"}}));
        assert_eq!(ws["status"], json!({"phase": "Scheduling"}));
        assert_eq!(ws["metadata"]["labels"], json!({"tenancy.kcp.io/phase": "Scheduling"}));
        assert_eq!(errors(&ws, None), Vec::<String>::new());

        let mut mounted = json!({"spec": {"mount": {"ref": {"apiVersion": "v1", "kind": "K", "name": "n"}}}});
        prepare(&mut mounted, None);
        assert_eq!(mounted["spec"].get("type"), None);
        assert_eq!(errors(&mounted, None), Vec::<String>::new());
    }

    #[test]
    fn an_update_that_names_no_type_keeps_it() {
        let old = json!({"spec": {"type": {"name": "team", "path": "root"}}});
        let mut new = json!({"metadata": {}, "spec": {}});
        prepare(&mut new, Some(&old));
        assert_eq!(errors(&new, Some(&old)), Vec::<String>::new());
    }

    #[test]
    fn a_bare_manifest_keeps_the_tie_to_the_cluster() {
        let mut old = json!({"metadata": {"annotations": {marks::WORKSPACE_CLUSTER: "abc"},
            "finalizers": ["a.dev/x", marks::WORKSPACE_FINALIZER]}});
        for bare in [json!({}), json!({"metadata": {"annotations": null, "finalizers": null}})] {
            let mut new = bare.clone();
            prepare(&mut new, Some(&old));
            assert_eq!(new["metadata"]["annotations"], old["metadata"]["annotations"]);
            assert_eq!(new["metadata"]["finalizers"], json!([marks::WORKSPACE_FINALIZER]));
        }
        old["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        let mut new = json!({"metadata": {"finalizers": ["a.dev/x"]}});
        prepare(&mut new, Some(&old));
        assert_eq!(new["metadata"]["finalizers"], json!(["a.dev/x"]), "the controller takes it off");
    }

    #[test]
    fn type_cluster_and_url_are_for_ever() {
        let t = json!({"name": "team", "path": "root"});
        let old = json!({"spec": {"type": t, "cluster": "abc", "URL": "https://a"}});
        let same = json!({"spec": {"type": t, "cluster": "abc", "URL": "https://b"}});
        assert!(errors(&same, Some(&old)).is_empty());
        let other = json!({"spec": {"type": {"name": "x", "path": "root"}, "cluster": "abd"}});
        assert_eq!(errors(&other, Some(&old)).len(), 3);
        let fresh = json!({"spec": {"type": t}});
        assert!(errors(&old, Some(&fresh)).is_empty());
    }

    #[test]
    fn names_of_types() {
        for (name, good) in [("a", true), ("a-0", true), ("0a", false), ("", false), ("A", false), ("a-", false)] {
            assert_eq!(type_name(name).is_none(), good, "{name}");
        }
    }
}
