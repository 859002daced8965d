//! kcp's LogicalCluster (kcp.md 2.2): the singleton whose existence is the existence of its cluster.

use apiserver_api::field::{Error, Path};
use serde_json::{Value, json};

use super::columns;
use crate::{
    object::{self, text},
    resource::{Column, ErrorList, NameRule, Resource, Scope},
    schema,
};

const PHASES: &[&str] = &["Scheduling", "Initializing", "Ready", "Unavailable", "Inactive", "Terminating", "Deleting"];

const COLUMNS: &[Column] = &[
    columns::NAME,
    columns::string("Phase", |o, _| columns::text(o, &["status", "phase"])),
    columns::string("URL", |o, _| columns::text(o, &["status", "URL"])),
    columns::AGE,
];

pub(super) const LOGICAL_CLUSTERS: Resource = Resource {
    group: "core.kcp.io",
    version: "v1alpha1",
    plural: "logicalclusters",
    singular: "logicalcluster",
    kind: "LogicalCluster",
    short_names: &[],
    categories: &["kcp"],
    scope: Scope::Cluster,
    columns: COLUMNS,
    // Without deletecollection: there is one object, and its deletion is that of a whole cluster.
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    subresources: &["status"],
    generation: true,
    create_on_update: false,
    name_rule: NameRule::Fixed("cluster"),
    schema: &schema::kcp::LOGICAL_CLUSTER,
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

fn prepare(new: &mut Value, _: Option<&Value>) {
    let Some(status) = object::map_mut(new, "status") else { return };
    status.entry("phase").or_insert_with(|| json!("Scheduling"));
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let phase = text(new, &["status", "phase"]);
    if !phase.is_empty() && !PHASES.contains(&phase) {
        errors.push(Error::not_supported(&Path::new("status.phase"), json!(phase), PHASES));
    }
    let Some(old) = old else { return };
    let (was, is) = (object::get(old, &["spec", "createdBy"]), object::get(new, &["spec", "createdBy"]));
    if was.is_some() && was != is {
        errors.push(Error::invalid(
            &Path::new("spec.createdBy"),
            is.cloned().unwrap_or_default(),
            "field is immutable",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_and_creator() {
        let mut cluster = json!({"spec": {"createdBy": {"username": "a"}}});
        prepare(&mut cluster, None);
        assert_eq!(cluster["status"]["phase"], "Scheduling");
        for (new, wrong) in [
            (json!({"spec": {"createdBy": {"username": "a"}}, "status": {"phase": "Ready"}}), 0),
            (json!({"spec": {}, "status": {"phase": "Odd"}}), 2),
        ] {
            let mut errors = Vec::new();
            validate(&new, Some(&cluster), &mut errors);
            assert_eq!(errors.len(), wrong);
        }
    }

    #[test]
    fn there_is_only_one() {
        assert_eq!(LOGICAL_CLUSTERS.name_rule.check("cluster"), Ok(()));
        assert_eq!(LOGICAL_CLUSTERS.name_rule.check("other"), Err(vec!["must be cluster".into()]));
    }
}
