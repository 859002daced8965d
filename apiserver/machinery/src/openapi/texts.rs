//! What `kubectl explain` says of the kinds that Kubernetes does not have: by the path of the field, the kind's own
//! first.

use serde_json::Value;

use crate::object;

type Texts = &'static [(&'static str, &'static str)];

const COMMON: Texts = &[
    ("apiVersion", "Group and version of this kind."),
    ("kind", "The kind of this object."),
    ("metadata", "Name, labels, annotations and the like."),
    ("spec", "What is wanted."),
    ("status", "What is; written by the server."),
    ("status.conditions", "What holds at present, and since when. Sorted by type."),
    ("status.conditions.type", "What is said to hold or not."),
    ("status.conditions.status", "True, False or Unknown."),
    ("status.conditions.severity", "How bad it is that it does not hold: Error, Warning or Info."),
    ("status.conditions.lastTransitionTime", "When anything of this condition changed last."),
    ("status.conditions.reason", "Why, in one word."),
    ("status.conditions.message", "Why, in a sentence."),
    ("status.initializers", "What has to be done before it is ready."),
    ("status.terminators", "What has to be done before its content is deleted."),
];

const WORKSPACE: Texts = &[
    (
        "",
        "Workspace is a place of its own with its own namespaces, objects and rules. It lies in the workspace where it is \
         created, and is reached under spec.URL.",
    ),
    ("spec.type", "The type of the workspace. It cannot be changed."),
    ("spec.type.name", "Name of the type; universal when nothing is said."),
    ("spec.type.path", "Path of the workspace where that type is; root when nothing is said."),
    ("spec.location", "Where the workspace may be placed."),
    ("spec.location.selector", "Labels of the shards that will do. Any shard when nothing is said."),
    ("spec.cluster", "Name of the logical cluster that holds the content; written by the server, and never changed."),
    ("spec.URL", "Where the workspace is reached; written by the server."),
    ("spec.mount", "Makes the workspace stand for another object. Then it has no logical cluster."),
    ("spec.mount.ref", "That object, in the workspace where this one is."),
    ("spec.mount.ref.apiVersion", "Its group and version."),
    ("spec.mount.ref.kind", "Its kind."),
    ("spec.mount.ref.name", "Its name."),
    ("spec.mount.ref.namespace", "Its namespace, if it has one."),
    ("status.phase", "Scheduling, Initializing, Ready, Unavailable, Inactive, Terminating or Deleting."),
];

const LOGICAL_CLUSTER: Texts = &[
    (
        "",
        "LogicalCluster is the object named cluster in each logical cluster. As long as it is there the cluster is; \
         whoever deletes it deletes all that is in the cluster.",
    ),
    ("spec.directlyDeletable", "Whether users inside may delete this object."),
    ("spec.owner", "The object that the cluster belongs to, usually a Workspace. The cluster goes with it."),
    ("spec.owner.apiVersion", "Group and version of the owner."),
    ("spec.owner.resource", "Resource of the owner, for example workspaces."),
    ("spec.owner.name", "Name of the owner."),
    ("spec.owner.namespace", "Namespace of the owner, if it has one."),
    ("spec.owner.cluster", "The logical cluster where the owner is."),
    ("spec.owner.uid", "The owner's uid: another object of its name is another owner."),
    ("spec.createdBy", "Who made the cluster."),
    ("spec.initializers", "What has to be done before the cluster is ready, as it was when the cluster was made."),
    ("spec.terminators", "What has to be done before its content is deleted, as it was when the cluster was made."),
    ("status.URL", "Where the cluster is reached by its name."),
    ("status.phase", "Scheduling, Initializing, Ready, Unavailable, Inactive, Terminating or Deleting."),
];

/// Writes the texts into the schema of a kind.
pub(super) fn describe(schema: &mut Value, kind: &str) {
    let own = match kind {
        "Workspace" => WORKSPACE,
        "LogicalCluster" => LOGICAL_CLUSTER,
        _ => return,
    };
    for (path, text) in COMMON.iter().chain(own) {
        if let Some(field) = field(schema, path) {
            object::set(field, "description", *text);
        }
    }
}

/// The schema of the field at this path; of a list's items the same as of the list.
fn field<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').filter(|name| !name.is_empty()).try_fold(schema, |at, name| {
        let of = if at.get("items").is_some() { at.get_mut("items")? } else { at };
        of.get_mut("properties")?.get_mut(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::{builtin, schemas};

    /// Fields of a schema without a text.
    fn untold(schema: &Value, path: &str, found: &mut Vec<String>) {
        if !schema["description"].is_string() {
            found.push(path.to_owned());
        }
        let of = if schema["items"].is_object() { &schema["items"] } else { schema };
        for (name, field) in object::entries(of, &["properties"]) {
            // Labels of shards are described where they are described.
            if name != "selector" {
                untold(field, &format!("{path}.{name}"), found);
            }
        }
    }

    #[test]
    fn every_field_of_our_own_kinds_is_described() {
        let mut seen = 0;
        for resource in crate::builtin::served().iter().filter(|resource| resource.group.ends_with("kcp.io")) {
            let document = builtin().document(&format!("apis/{}", resource.api_version())).unwrap();
            let document: Value = serde_json::from_slice(&document.body).unwrap();
            let mut found = Vec::new();
            untold(&document["components"]["schemas"][schemas::name(resource)], resource.kind, &mut found);
            assert_eq!(found, Vec::<String>::new());
            seen += 1;
        }
        assert_eq!(seen, 2);
    }

    #[test]
    fn every_text_has_its_field() {
        for resource in crate::builtin::served().iter().filter(|resource| resource.group.ends_with("kcp.io")) {
            let own = if resource.kind == "Workspace" { WORKSPACE } else { LOGICAL_CLUSTER };
            let mut schema = schemas::message(resource.schema);
            for (path, _) in COMMON.iter().chain(own) {
                assert!(field(&mut schema, path).is_some(), "{path} of {}", resource.kind);
            }
        }
    }
}
