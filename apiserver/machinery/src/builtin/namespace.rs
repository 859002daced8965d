//! Namespace (api-server.md 5.1).

use apiserver_api::{
    field::{Error, Path},
    names,
};
use serde_json::{Value, json};

use super::columns;
use crate::{
    object,
    resource::{Column, ErrorList, NameRule, Resource, Scope, SelectableField},
    schema,
};

/// The finalizer of the namespace controller.
const KUBERNETES: &str = "kubernetes";
/// Every namespace carries its name in this label.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

const COLUMNS: &[Column] =
    &[columns::NAME, columns::string("Status", |o, _| columns::text(o, &["status", "phase"])), columns::AGE];

pub(super) const NAMESPACES: Resource = Resource {
    group: "",
    version: "v1",
    plural: "namespaces",
    singular: "namespace",
    kind: "Namespace",
    short_names: &["ns"],
    categories: &[],
    scope: Scope::Cluster,
    columns: COLUMNS,
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    subresources: &["status", "finalize"],
    generation: false,
    create_on_update: false,
    name_rule: NameRule::Label,
    schema: &schema::core::NAMESPACE,
    protobuf: true,
    selectable: &[
        SelectableField { name: "name", value: object::name },
        SelectableField { name: "status.phase", value: |o| object::text(o, &["status", "phase"]) },
    ],
    prepare,
    validate,
    immortal: &["default", "kube-system", "kube-public"],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &[],
};

fn prepare(new: &mut Value, old: Option<&Value>) {
    let name = object::name(new).to_owned();
    if let Some(labels) = new.get_mut("metadata").and_then(|m| object::map_mut(m, "labels")) {
        labels.insert(NAME_LABEL.into(), Value::from(name));
    }
    if old.is_none() {
        let mut finalizers = object::items(new, &["spec", "finalizers"]).to_vec();
        if !finalizers.iter().any(|f| f == KUBERNETES) {
            finalizers.push(json!(KUBERNETES));
        }
        object::set(new, "spec", json!({ "finalizers": finalizers }));
        object::set(new, "status", json!({ "phase": "Active" }));
    } else if object::text(new, &["status", "phase"]).is_empty()
        && let Some(status) = object::map_mut(new, "status")
    {
        // Upstream's default, whether it is being deleted or not.
        status.insert("phase".into(), "Active".into());
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let phase = |namespace| object::text(namespace, &["status", "phase"]);
    if old.is_some_and(|old| phase(old) != phase(new)) {
        let is_going = object::get(new, &["metadata", "deletionTimestamp"]).is_some_and(|time| !time.is_null());
        let (wanted, wrong) = match is_going {
            false => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
            true => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
        };
        if phase(new) != wanted {
            errors.push(Error::invalid(&Path::new("status.Phase"), phase(new), wrong));
        }
    }
    for (i, finalizer) in object::items(new, &["spec", "finalizers"]).iter().enumerate() {
        let text = finalizer.as_str().unwrap_or_default();
        let field = format!("spec.finalizers[{i}]");
        if let Err(wrong) = names::qualified_name(text) {
            errors.extend(wrong.into_iter().map(|w| Error::invalid(&Path::new(&field), text, w)));
        } else if text != KUBERNETES && !text.contains('/') {
            let wrong = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(Error::invalid(&Path::new(&field), text, wrong));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_namespace_is_active_and_final() {
        let mut ns = json!({"metadata": {"name": "a"}, "status": {"phase": "Terminating"}});
        prepare(&mut ns, None);
        assert_eq!(
            ns,
            json!({"metadata": {"name": "a", "labels": {NAME_LABEL: "a"}},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
        );
    }

    #[test]
    fn the_label_comes_back_on_update() {
        let old = json!({"metadata": {"name": "a"}});
        let mut ns = json!({"metadata": {"name": "a", "labels": {"x": "y", NAME_LABEL: "b"}}});
        prepare(&mut ns, Some(&old));
        assert_eq!(
            ns,
            json!({"metadata": {"name": "a", "labels": {"x": "y", NAME_LABEL: "a"}}, "status": {"phase": "Active"}})
        );
    }

    #[test]
    fn the_phase_tells_whether_it_is_being_deleted() {
        let going =
            json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}, "status": {"phase": "Terminating"}});
        let there = json!({"metadata": {}, "status": {"phase": "Active"}});
        for (old, phase, wrong) in [
            (&there, "Active", false),
            (&there, "Terminating", true),
            (&there, "Odd", true),
            (&there, "", true),
            (&going, "Terminating", false),
            (&going, "Active", true),
        ] {
            let mut new = old.clone();
            new["status"]["phase"] = json!(phase);
            let mut errors = Vec::new();
            validate(&new, Some(old), &mut errors);
            assert_eq!(!errors.is_empty(), wrong, "{phase} of {old}");
        }
        // As a deletion has it.
        let mut errors = Vec::new();
        validate(&going, Some(&there), &mut errors);
        assert!(errors.is_empty());
    }

    #[test]
    fn finalizers_are_qualified() {
        for (finalizer, wrong) in [("kubernetes", false), ("a.dev/x", false), ("x", true), ("", true)] {
            let mut errors = Vec::new();
            validate(&json!({"spec": {"finalizers": [finalizer]}}), None, &mut errors);
            assert_eq!(!errors.is_empty(), wrong, "{finalizer}");
        }
    }
}
