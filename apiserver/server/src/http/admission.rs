//! What only some users may write (kcp.md 2.1, 2.2): the fields by which the system ties a Workspace to its logical
//! cluster, and the logical cluster itself.

use apiserver_api::{Status, UserInfo, user::GROUP_MASTERS};
use apiserver_machinery::{Resource, object::metadata_mut};
use serde_json::{Map, Value, json};

use crate::{errors, registry::Object};

/// Who made a Workspace; the owner controller gives him the administration of it.
const OWNER: &str = "experimental.tenancy.kcp.io/owner";

fn is_workspace(resource: &Resource) -> bool {
    resource.group == "tenancy.kcp.io" && resource.plural == "workspaces"
}

fn is_logical_cluster(resource: &Resource) -> bool {
    resource.group == "core.kcp.io" && resource.plural == "logicalclusters"
}

/// Checks a new object and notes the creator of a Workspace.
///
/// # Errors
/// 403.
pub(crate) fn create(user: &UserInfo, resource: &Resource, object: &mut Value) -> Result<(), Status> {
    if is_logical_cluster(resource) && !user.in_group(GROUP_MASTERS) {
        return Err(errors::forbidden(resource, "cluster", "logical clusters are made by creating a Workspace"));
    }
    if is_workspace(resource) {
        update(user, resource, None, object)?;
        let extra: Map<String, Value> = user.extra.iter().map(|(k, v)| (k.to_string(), json!(v))).collect();
        let mut owner = json!({"username": user.name, "groups": user.groups});
        if let Some(fields) = owner.as_object_mut() {
            if !user.uid.is_empty() {
                fields.insert("uid".into(), json!(user.uid));
            }
            if !extra.is_empty() {
                fields.insert("extra".into(), extra.into());
            }
        }
        let annotations = metadata_mut(object).entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(OWNER.into(), owner.to_string().into());
        }
    }
    Ok(())
}

/// Checks a changed object.
///
/// # Errors
/// 403.
pub(crate) fn update(user: &UserInfo, resource: &Resource, old: Option<&Value>, new: &Value) -> Result<(), Status> {
    if user.in_group(GROUP_MASTERS) {
        return Ok(());
    }
    let guarded: &[&str] = if is_workspace(resource) {
        &["/spec/cluster", "/spec/URL"]
    } else if is_logical_cluster(resource) {
        &["/spec/createdBy", "/spec/owner", "/spec/initializers", "/spec/terminators", "/spec/directlyDeletable"]
    } else {
        &[]
    };
    let name = new.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    match guarded.iter().find(|field| new.pointer(field) != old.and_then(|o| o.pointer(field))) {
        Some(field) => Err(errors::forbidden(
            resource,
            name,
            &format!("{} can only be set by the system", field.trim_start_matches('/').replace('/', ".")),
        )),
        None => Ok(()),
    }
}

/// Whether [`delete`] has an opinion about objects of this resource.
pub(crate) fn asks_before_delete(resource: &Resource) -> bool {
    is_logical_cluster(resource)
}

/// Checks whether an object may be deleted by this user.
///
/// # Errors
/// 403.
pub(crate) fn delete(user: &UserInfo, resource: &Resource, old: &Object) -> Result<(), Status> {
    let allowed =
        user.in_group(GROUP_MASTERS) || old.value()?.pointer("/spec/directlyDeletable") == Some(&Value::Bool(true));
    if allowed {
        Ok(())
    } else {
        Err(errors::forbidden(resource, old.name(), "it is not directly deletable; delete its Workspace instead"))
    }
}
