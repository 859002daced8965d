//! What an update may change.

use apiserver_api::{
    Status,
    field::{Error, Path},
};
use serde_json::{Value, json};

use crate::{
    object::{self, text},
    resource::{ErrorList, Resource},
};

/// Restores in `new` what an update of `old` through `subresource` (empty for the object itself) cannot change.
/// With `uid_is_precondition` (PUT) another uid is a conflict, else (patches) it is invalid.
///
/// # Errors
/// 400 when name or namespace differ, 409 or 422 when the uid does, 422 for another deletion time.
pub fn prepare_update(
    resource: &Resource,
    new: &mut Value,
    old: &Value,
    subresource: &str,
    uid_is_precondition: bool,
) -> Result<(), Status> {
    check_identity(resource, new, old, uid_is_precondition)?;
    let mut errors = ErrorList::new();
    match subresource {
        "" => restore_metadata(resource, new, old, &mut errors),
        // Only the named part comes from the client, all else from the store.
        "finalize" => keep_only(new, old, "spec"),
        part => keep_only(new, old, part),
    }
    if !errors.is_empty() {
        return Err(Status::invalid(resource.group, resource.kind, object::name(old), &errors));
    }
    if subresource.is_empty() {
        if resource.has_subresource("status") {
            copy_part(new, old, "status");
        }
        if resource.has_subresource("finalize") {
            copy_part(new, old, "spec");
        }
    }
    object::set(new, "kind", resource.kind);
    object::set(new, "apiVersion", resource.api_version());
    Ok(())
}

/// Counts the generation up when an update through the object itself changed more than metadata and status.
pub fn finish_update(resource: &Resource, new: &mut Value, old: &Value, subresource: &str) {
    if !resource.generation {
        return;
    }
    let mut generation = object::get(old, &["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(1);
    let is_content = |key: &str| !["metadata", "status", "kind", "apiVersion"].contains(&key);
    let content = |o: &Value| -> Vec<(String, Value)> {
        let members = object::entries(o, &[]).filter(|(k, _)| is_content(k));
        members.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    if subresource.is_empty() && content(new) != content(old) {
        generation = generation.saturating_add(1);
    }
    object::metadata_mut(new).insert("generation".into(), json!(generation));
}

/// An object that is written under the name `want` may leave its own name out.
///
/// # Errors
/// 400 when it has another one.
pub fn check_name(new: &Value, want: &str) -> Result<(), Status> {
    match object::name(new) {
        name if name.is_empty() || name == want => Ok(()),
        name => {
            let text = format!("the name of the object ({name}) does not match the name on the URL ({want})");
            Err(Status::bad_request(text))
        }
    }
}

/// Name, namespace and uid: an update that leaves them out means the present ones.
fn check_identity(resource: &Resource, new: &mut Value, old: &Value, uid_is_precondition: bool) -> Result<(), Status> {
    let want = object::name(old);
    check_name(new, want)?;
    super::fit_namespace(resource, new, object::namespace(old))?;
    let (uid, stored) = (text(new, &["metadata", "uid"]), text(old, &["metadata", "uid"]));
    if !uid.is_empty() && uid != stored {
        if uid_is_precondition {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}");
            return Err(Status::conflict(resource.group, resource.plural, want, &why));
        }
        let errors = [Error::invalid(&Path::new("metadata.uid"), uid, "field is immutable")];
        return Err(Status::invalid(resource.group, resource.kind, want, &errors));
    }
    let metadata = object::metadata_mut(new);
    metadata.insert("name".into(), json!(want));
    metadata.insert("uid".into(), json!(stored));
    Ok(())
}

fn restore_metadata(resource: &Resource, new: &mut Value, old: &Value, errors: &mut ErrorList) {
    let metadata = object::metadata_mut(new);
    metadata.remove("selfLink");
    // They are `crate::managed`'s.
    metadata.remove("managedFields");
    for field in ["creationTimestamp", "generation", "resourceVersion"] {
        // A copy follows its original, which may have been deleted and made again.
        if resource.is_copy && field != "resourceVersion" && metadata.contains_key(field) {
            continue;
        }
        match object::get(old, &["metadata", field]) {
            Some(stored) => metadata.insert(field.into(), stored.clone()),
            None => metadata.remove(field),
        };
    }
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        let stored = object::get(old, &["metadata", field]);
        match (metadata.get(field).filter(|v| !v.is_null()), stored) {
            (Some(given), stored) if Some(given) != stored => {
                let path = Path::new("metadata").child(field);
                errors.push(Error::invalid(&path, given.clone(), "field is immutable"));
            }
            (None, Some(stored)) => {
                metadata.insert(field.into(), stored.clone());
            }
            (None, None) => {
                metadata.remove(field);
            }
            (Some(_), _) => {}
        }
    }
}

/// Makes `new` what `old` is, but for the member `part`.
fn keep_only(new: &mut Value, old: &Value, part: &str) {
    let kept = new.as_object_mut().and_then(|m| m.remove(part));
    *new = old.clone();
    match kept {
        Some(kept) => object::set(new, part, kept),
        None => drop(new.as_object_mut().and_then(|m| m.remove(part))),
    }
}

fn copy_part(new: &mut Value, old: &Value, part: &str) {
    match old.get(part) {
        Some(stored) => object::set(new, part, stored.clone()),
        None => drop(new.as_object_mut().and_then(|m| m.remove(part))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    fn maps() -> &'static Resource {
        builtin::find("", "v1", "configmaps").unwrap()
    }

    fn stored() -> Value {
        json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "b"}, "metadata": {"name": "x",
            "namespace": "p", "uid": "u", "resourceVersion": "9", "creationTimestamp": "1970-01-01T00:00:00Z"}})
    }

    #[test]
    fn what_is_left_out_is_restored() {
        let mut new = json!({"data": {"a": "b"}, "metadata": {"creationTimestamp": "2020-01-01T00:00:00Z",
            "selfLink": "/x", "managedFields": []}});
        prepare_update(maps(), &mut new, &stored(), "", true).unwrap();
        assert_eq!(new, stored());
    }

    #[test]
    fn identity_is_immutable() {
        let with = |field: &str, value: &str| {
            let mut new = stored();
            new["metadata"][field] = json!(value);
            new
        };
        for (field, put, code, message) in [
            ("name", true, 400, "the name of the object (b) does not match the name on the URL (x)"),
            ("namespace", true, 400, "the namespace of the provided object does not match"),
            ("uid", true, 409, "Operation cannot be fulfilled on configmaps \"x\": Precondition failed: UID in"),
            ("uid", false, 422, "ConfigMap \"x\" is invalid: metadata.uid: Invalid value: \"b\": field is immutable"),
            ("deletionTimestamp", false, 422, "ConfigMap \"x\" is invalid: metadata.deletionTimestamp: Invalid value"),
        ] {
            let status = prepare_update(maps(), &mut with(field, "b"), &stored(), "", put).unwrap_err();
            assert_eq!(status.code, code, "{field}");
            assert!(status.message.starts_with(message), "{}", status.message);
        }
    }

    #[test]
    fn deletion_cannot_be_undone() {
        let mut old = stored();
        old["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        old["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        let mut new = stored();
        new["metadata"]["deletionTimestamp"] = Value::Null;
        prepare_update(maps(), &mut new, &old, "", false).unwrap();
        assert_eq!(new, old);
    }

    #[test]
    fn generation_follows_the_content() {
        let ws = builtin::find("tenancy.kcp.io", "v1alpha1", "workspaces").unwrap();
        let old = json!({"metadata": {"name": "a", "uid": "u", "generation": 3}, "spec": {"a": 1}, "status": {"b": 1}});
        for (new, subresource, generation, status) in [
            (json!({"metadata": {"generation": 9}, "spec": {"a": 1}, "status": {"b": 2}}), "", 3, 1),
            (json!({"metadata": {"labels": {"x": "y"}}, "spec": {"a": 1}}), "", 3, 1),
            (json!({"metadata": {}, "spec": {"a": 2}}), "", 4, 1),
            (json!({"metadata": {"labels": {"x": "y"}}, "spec": {"a": 2}, "status": {"b": 2}}), "status", 3, 2),
        ] {
            let mut changed = new.clone();
            prepare_update(ws, &mut changed, &old, subresource, true).unwrap();
            finish_update(ws, &mut changed, &old, subresource);
            assert_eq!(changed["metadata"]["generation"], generation, "{new}");
            assert_eq!(changed["status"]["b"], status, "{new}");
            if subresource == "status" {
                assert_eq!((changed["metadata"].get("labels"), &changed["spec"]["a"]), (None, &json!(1)));
            }
        }
    }

    #[test]
    fn a_namespace_changes_its_finalizers_by_finalize_only() {
        let ns = builtin::find("", "v1", "namespaces").unwrap();
        let old = json!({"metadata": {"name": "a", "uid": "u"}, "spec": {"finalizers": ["kubernetes"]}});
        let empty = json!({"metadata": {"name": "a"}, "spec": {"finalizers": []}});
        let mut new = empty.clone();
        prepare_update(ns, &mut new, &old, "", true).unwrap();
        assert_eq!(new["spec"], old["spec"]);
        let mut new = empty.clone();
        prepare_update(ns, &mut new, &old, "finalize", true).unwrap();
        assert_eq!(new["spec"], empty["spec"]);
    }
}
