//! What only some users may write (kcp.md 2.1, 2.2): the fields by which the system ties a Workspace to its logical
//! cluster, and the logical cluster itself.

use apiserver_api::{ClusterName, Status, UserInfo, marks, user::GROUP_MASTERS};
use apiserver_machinery::{
    Resource,
    object::{get, metadata_mut},
};
use serde_json::{Map, Value, json};

use crate::{
    errors,
    registry::{Object, ObjectKey, is_logical_cluster},
};

fn is_workspace(resource: &Resource) -> bool {
    resource.group == "tenancy.kcp.io" && resource.plural == "workspaces"
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
        untie(object);
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
            annotations.insert(marks::WORKSPACE_OWNER.into(), owner.to_string().into());
        }
    }
    Ok(())
}

/// Takes off what ties a Workspace to a cluster: a new one has none, but a manifest that was copied from another
/// Workspace names that one's.
fn untie(workspace: &mut Value) {
    let metadata = metadata_mut(workspace);
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(marks::WORKSPACE_CLUSTER);
        annotations.remove(marks::PLACED_ON);
    }
    if let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        finalizers.retain(|f| f != marks::WORKSPACE_FINALIZER);
    }
}

/// Checks a changed object.
///
/// # Errors
/// 403.
pub(crate) fn update(user: &UserInfo, resource: &Resource, old: Option<&Value>, new: &Value) -> Result<(), Status> {
    let name = new.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    // One that is left out is kept (`prepare` of workspaces); another one would be somebody else's cluster.
    let tie = ["metadata", "annotations", marks::WORKSPACE_CLUSTER];
    if is_workspace(resource)
        && get(new, &tie).is_some_and(|given| !given.is_null() && Some(given) != old.and_then(|o| get(o, &tie)))
    {
        let why = format!("the annotation {} can only be set by the system", marks::WORKSPACE_CLUSTER);
        return Err(errors::forbidden(resource, name, &why));
    }
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

/// Checks whether anybody may delete the object of this name: what every cluster needs, and the clusters `root` and
/// `system:*`, stay.
///
/// # Errors
/// 403.
pub(crate) fn delete_named(resource: &Resource, key: &ObjectKey) -> Result<(), Status> {
    let of_system = key.cluster.as_str() == ClusterName::ROOT || key.cluster.is_system();
    if resource.immortal.contains(&&*key.name) || (is_logical_cluster(resource) && of_system) {
        return Err(errors::forbidden(resource, &key.name, &format!("this {} may not be deleted", resource.singular)));
    }
    Ok(())
}

/// Checks whether an object may be deleted by this user.
///
/// # Errors
/// 403.
pub(crate) fn delete(user: &UserInfo, resource: &Resource, old: &Object) -> Result<(), Status> {
    let allowed = !is_logical_cluster(resource)
        || user.in_group(GROUP_MASTERS)
        || old.value()?.pointer("/spec/directlyDeletable") == Some(&Value::Bool(true));
    if allowed {
        Ok(())
    } else {
        Err(errors::forbidden(resource, old.name(), "it is not directly deletable; delete its Workspace instead"))
    }
}
