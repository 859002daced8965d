//! Whether metadata is valid.

use std::collections::BTreeSet;

use apiserver_api::{
    Status,
    field::{Error, Path},
    names,
};
use serde_json::Value;

use crate::{
    object::{self, text},
    resource::{ErrorList, Resource},
};

/// Most bytes of all keys and values of annotations together.
const ANNOTATIONS_MAX: usize = 256 * 1024;
/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

/// Everything that is wrong with a prepared object, its metadata and its own fields; `old` is the stored one,
/// `None` on create.
///
/// # Errors
/// 422 that names all faults.
pub fn validate(resource: &Resource, new: &Value, old: Option<&Value>) -> Result<(), Status> {
    let mut errors = ErrorList::new();
    if old.is_none() {
        check_name(resource, new, &mut errors);
    }
    if !resource.is_copy {
        check_labels(new, &mut errors);
        check_annotations(new, &mut errors);
        check_owners(new, &mut errors);
        check_finalizers(new, old, &mut errors);
    }
    (resource.validate)(new, old, &mut errors);
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(resource.group, resource.kind, object::name(new), &errors))
}

fn check_name(resource: &Resource, new: &Value, errors: &mut ErrorList) {
    let base = text(new, &["metadata", "generateName"]);
    if !base.is_empty() {
        // The hyphen that most end with is none at the end of a name.
        let masked = match base.strip_suffix('-') {
            Some(before) if !before.is_empty() => &format!("{before}a"),
            _ => base,
        };
        add(errors, &Path::new("metadata.generateName"), base, resource.name_rule.check(masked));
    }
    let path = Path::new("metadata.name");
    match object::name(new) {
        "" => errors.push(Error::required(&path, "name or generateName is required")),
        name => add(errors, &path, name, resource.name_rule.check(name)),
    }
}

/// One error for each message about `value`.
fn add(errors: &mut ErrorList, path: &Path, value: &str, checked: Result<(), names::Messages>) {
    errors.extend(checked.err().into_iter().flatten().map(|m| Error::invalid(path, value, m)));
}

fn check_labels(new: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata.labels");
    for (key, value) in object::entries(new, &["metadata", "labels"]) {
        add(errors, &path, key, names::qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        add(errors, &path, value, names::label_value(value));
    }
}

fn check_annotations(new: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata.annotations");
    let mut size = 0;
    for (key, value) in object::entries(new, &["metadata", "annotations"]) {
        // Upper case is allowed in the prefix, for history's sake.
        add(errors, &path, key, names::qualified_name(&key.to_lowercase()));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_MAX {
        errors.push(Error::too_long(&path, ANNOTATIONS_MAX));
    }
}

fn check_owners(new: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata.ownerReferences");
    let mut controllers = Vec::new();
    for owner in object::items(new, &["metadata", "ownerReferences"]) {
        let api_version = text(owner, &["apiVersion"]);
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if version.is_empty() {
            errors.push(Error::invalid(&path.child("apiVersion"), api_version, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, &[field]).is_empty() {
                errors.push(Error::invalid(&path.child(field), "", "must not be empty"));
            }
        }
        if text(owner, &["kind"]) == "Event" && group.is_empty() {
            let kind = format!("/{version}, Kind=Event");
            let detail = format!("{kind} is disallowed from being an owner");
            errors.push(Error::invalid(&path, kind, detail));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            controllers.push(text(owner, &["name"]));
        }
    }
    if let [first, second, ..] = *controllers {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        errors.push(Error::invalid(&path, format!("{first}, {second}"), detail));
    }
}

fn check_finalizers(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let path = Path::new("metadata.finalizers");
    let list = |o| object::items(o, &["metadata", "finalizers"]);
    let finalizers = list(new);
    for (i, finalizer) in finalizers.iter().enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        add(errors, &path.index(i), name, names::qualified_name(name));
        if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            let wrong = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(Error::invalid(&path.index(i), name, wrong));
        }
    }
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        let wrong = "finalizers foregroundDeletion and orphan cannot be both set";
        errors.push(Error::invalid(&path, finalizers.to_vec(), wrong));
    }
    let Some(old) = old.filter(|o| object::get(o, &["metadata", "deletionTimestamp"]).is_some()) else { return };
    let before: BTreeSet<&str> = list(old).iter().filter_map(Value::as_str).collect();
    let is_new = |f: &&Value| !f.as_str().is_some_and(|f| before.contains(f));
    let added: Vec<String> = finalizers.iter().filter(is_new).map(Value::to_string).collect();
    if !added.is_empty() {
        let list = added.join(", ");
        let wrong = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
        );
        errors.push(Error::forbidden(&path, wrong));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin;

    fn message(metadata: Value, old: Option<Value>) -> String {
        let maps = builtin::find("", "v1", "configmaps").unwrap();
        match validate(maps, &json!({ "metadata": metadata }), old.as_ref()) {
            Ok(()) => String::new(),
            Err(status) => {
                assert_eq!((status.code, status.details.unwrap().kind), (422, "ConfigMap".into()));
                status.message
            }
        }
    }

    #[test]
    fn good_metadata() {
        let metadata = json!({"name": "a.b", "labels": {"x.dev/a": "B"}, "annotations": {"X.dev/a": "any thing"},
            "finalizers": ["orphan", "a.dev/x"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u", "controller": true}]});
        assert_eq!(message(metadata, None), "");
    }

    #[test]
    fn texts_are_upstreams() {
        for (metadata, want) in [
            (json!({}), "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required"),
            (
                json!({"name": "a", "finalizers": ["Bad"]}),
                "ConfigMap \"a\" is invalid: metadata.finalizers[0]: Invalid value: \"Bad\": name is neither a standard \
                 finalizer name nor is it fully qualified",
            ),
            (
                json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "X"}]}),
                "ConfigMap \"a\" is invalid: [metadata.ownerReferences.name: Invalid value: \"\": must not be empty, \
                 metadata.ownerReferences.uid: Invalid value: \"\": must not be empty]",
            ),
        ] {
            assert_eq!(message(metadata, None), want);
        }
        let label = message(json!({"name": "a", "labels": {"x": "bad value!"}}), None);
        assert!(
            label.contains("metadata.labels: Invalid value: \"bad value!\": a valid label must be an empty"),
            "{label}"
        );
        let name = message(json!({"name": "Bad_Name"}), None);
        assert!(
            name.starts_with(
                "ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase"
            )
        );
    }

    #[test]
    fn bases_of_generated_names() {
        for good in ["a-", "a", "a.b-", "0-"] {
            assert_eq!(message(json!({"generateName": good, "name": "a"}), None), "", "{good}");
        }
        let bad = message(json!({"generateName": "Bad_", "name": "Bad_x7k2p"}), None);
        let start = "ConfigMap \"Bad_x7k2p\" is invalid: [metadata.generateName: Invalid value: \"Bad_\": a lowercase";
        assert!(bad.starts_with(start) && bad.contains(", metadata.name: Invalid value: \"Bad_x7k2p\""), "{bad}");
    }

    #[test]
    fn more_refusals() {
        let owner = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u", "controller": true});
        for metadata in [
            json!({"name": "a", "annotations": {"k": "x".repeat(ANNOTATIONS_MAX)}}),
            json!({"name": "a", "annotations": {"a b": "x"}}),
            json!({"name": "a", "labels": {"a b": "x"}}),
            json!({"name": "a", "ownerReferences": [owner("Event")]}),
            json!({"name": "a", "ownerReferences": [owner("A"), owner("B")]}),
            json!({"name": "a", "finalizers": ["orphan", "foregroundDeletion"]}),
        ] {
            assert_ne!(message(metadata.clone(), None), "", "{metadata}");
        }
    }

    #[test]
    fn no_new_finalizers_while_terminating() {
        let old = json!({"metadata": {"deletionTimestamp": "x", "finalizers": ["example.dev/x"]}});
        let new = json!({"name": "f", "finalizers": ["example.dev/x", "example.dev/y"]});
        assert_eq!(
            message(new, Some(old.clone())),
            "ConfigMap \"f\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is \
             being deleted, found new finalizers []string{\"example.dev/y\"}"
        );
        assert_eq!(message(json!({"name": "f"}), Some(old)), "");
    }
}
