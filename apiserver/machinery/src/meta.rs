//! The rules of `metadata` (api-server.md 2.2): what the server owns, what is immutable, what is valid.
//!
//! A create is [`prepare_create`], the resource's own `prepare`, [`validate`]. An update is
//! [`prepare_update`], the resource's `prepare`, [`finish_update`], [`validate`]; when the result equals the
//! stored object, nothing is written.

mod names;
mod update;
mod validation;

use apiserver_api::{Status, marks};
use serde_json::{Value, json};

pub use self::{
    update::{check_name, finish_update, prepare_update},
    validation::validate,
};
use crate::{age, object, resource::Resource};

/// What a client sends under these names of `metadata` is forgotten on create. `managedFields` are
/// [`crate::managed`]'s.
const CLEARED: [&str; 5] =
    ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "generation"];

/// Makes a client's object one that can be stored: name, namespace, uid and times. `namespace` is the one of
/// the URL (empty for cluster-scoped resources), `now` the present time in Unix seconds. A generated name is a
/// new one at every call.
///
/// # Errors
/// 400 when the namespace is another one or a resourceVersion is set.
pub fn prepare_create(resource: &Resource, new: &mut Value, namespace: &str, now: i64) -> Result<(), Status> {
    object::set(new, "kind", resource.kind);
    object::set(new, "apiVersion", resource.api_version());
    if resource.has_subresource("status")
        && let Some(map) = new.as_object_mut()
    {
        map.remove("status");
    }
    if !object::text(new, &["metadata", "resourceVersion"]).is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    fit_namespace(resource, new, namespace)?;
    let generated = match (object::name(new), object::text(new, &["metadata", "generateName"])) {
        ("", base) if !base.is_empty() => Some(names::generate(base)),
        _ => None,
    };
    // With its shard the writer of a copy says that uid, generation and creation time are the original's.
    let kept = resource.is_copy && object::get(new, &["metadata", "annotations", marks::SHARD]).is_some();
    let metadata = object::metadata_mut(new);
    metadata.retain(|field, _| !CLEARED.contains(&field.as_str()) || (kept && field == "generation"));
    metadata.remove("resourceVersion");
    if let Some(name) = generated {
        metadata.insert("name".into(), json!(name));
    }
    if !(kept && metadata.contains_key("uid")) {
        metadata.insert("uid".into(), json!(uuid::Uuid::new_v4().to_string()));
    }
    if !(kept && metadata.contains_key("creationTimestamp")) {
        metadata.insert("creationTimestamp".into(), json!(age::rfc3339(now)));
    }
    if resource.generation {
        metadata.insert("generation".into(), json!(1));
    }
    Ok(())
}

/// An object may leave its namespace out or name the one of the URL. One that is cluster-scoped loses it.
fn fit_namespace(resource: &Resource, new: &mut Value, namespace: &str) -> Result<(), Status> {
    if !resource.is_namespaced() {
        object::metadata_mut(new).remove("namespace");
        return Ok(());
    }
    let given = object::namespace(new);
    if !given.is_empty() && given != namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object::metadata_mut(new).insert("namespace".into(), json!(namespace));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn a_new_object() {
        let levels = builtin::find("flowcontrol.apiserver.k8s.io", "v1", "flowschemas").unwrap();
        let mut new = json!({"metadata": {
            "generateName": "g".repeat(70), "uid": "mine", "selfLink": "/x", "generation": 7, "namespace": "n",
            "deletionTimestamp": "2020-01-01T00:00:00Z", "creationTimestamp": "2020-01-01T00:00:00Z",
            "managedFields": [{}], "labels": {"a": "b"}}, "status": {"conditions": []}});
        prepare_create(levels, &mut new, "", 0).unwrap();
        let metadata = new["metadata"].as_object().unwrap();
        assert_eq!(metadata["name"].as_str().unwrap().len(), 63);
        assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
        assert_eq!(metadata["creationTimestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(metadata["generation"], 1);
        let keys: Vec<&String> = metadata.keys().collect();
        assert_eq!(keys, ["creationTimestamp", "generateName", "generation", "labels", "name", "uid"]);
        assert_eq!((new.get("status"), &new["kind"]), (None, &json!("FlowSchema")));
    }

    #[test]
    fn namespaces_and_versions() {
        let maps = builtin::find("", "v1", "configmaps").unwrap();
        let mut new = json!({"metadata": {"name": "a"}});
        prepare_create(maps, &mut new, "p", 0).unwrap();
        assert_eq!(new["metadata"]["namespace"], "p");
        assert_eq!(new["metadata"].get("generation"), None);
        let mut other = json!({"metadata": {"name": "a", "namespace": "other"}});
        assert_eq!(
            prepare_create(maps, &mut other, "p", 0).unwrap_err().message,
            "the namespace of the provided object does not match the namespace sent on the request"
        );
        let mut versioned = json!({"metadata": {"name": "a", "resourceVersion": "5"}});
        assert_eq!(prepare_create(maps, &mut versioned, "p", 0).unwrap_err().code, 400);
    }
}
