//! FlowSchema and PriorityLevelConfiguration (api-server.md 5.10). What they mean is the gateway's concern.
//!
//! Those called `exempt` and `catch-all` are mandatory. What upstream's controller puts right from time to time (apf.md 2.5)
//! holds here with every write: their spec is fixed but for `spec.exempt`, and they say that it is.

use std::sync::LazyLock;

use apiserver_api::{
    field::{Error, Path},
    flowcontrol::{AUTO_UPDATE, Condition, DecodeError, FlowSchema, PriorityLevelConfiguration, bootstrap},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{VERBS, columns};
use crate::{
    object::{self, text},
    resource::{Column, NameRule, Resource, Scope},
    schema,
};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

const FLOW_SCHEMA_COLUMNS: &[Column] = &[
    columns::NAME,
    columns::string("PriorityLevel", |o, _| columns::text(o, &["spec", "priorityLevelConfiguration", "name"])),
    columns::string("MatchingPrecedence", |o, _| {
        object::get(o, &["spec", "matchingPrecedence"]).cloned().unwrap_or(json!(0))
    }),
    columns::string("DistinguisherMethod", |o, _| columns::or_none(o, &["spec", "distinguisherMethod", "type"])),
    columns::AGE,
    columns::string("MissingPL", |o, _| {
        let dangling = object::items(o, &["status", "conditions"]).iter().find(|c| text(c, &["type"]) == "Dangling");
        json!(dangling.map_or("?", |c| text(c, &["status"])))
    }),
];

const QUEUING: &[&str] = &["spec", "limited", "limitResponse", "queuing"];

fn queuing(o: &Value, field: &str) -> Value {
    object::get(o, QUEUING).map_or(json!("<none>"), |q| columns::or_none(q, &[field]))
}

const LEVEL_COLUMNS: &[Column] = &[
    columns::NAME,
    columns::string("Type", |o, _| columns::text(o, &["spec", "type"])),
    columns::string("NominalConcurrencyShares", |o, _| {
        columns::or_none(o, &["spec", "limited", "nominalConcurrencyShares"])
    }),
    columns::string("Queues", |o, _| queuing(o, "queues")),
    columns::string("HandSize", |o, _| queuing(o, "handSize")),
    columns::string("QueueLengthLimit", |o, _| queuing(o, "queueLengthLimit")),
    columns::AGE,
];

pub(super) const FLOW_SCHEMAS: Resource = Resource {
    group: GROUP,
    version: "v1",
    plural: "flowschemas",
    singular: "flowschema",
    kind: "FlowSchema",
    short_names: &[],
    categories: &[],
    scope: Scope::Cluster,
    columns: FLOW_SCHEMA_COLUMNS,
    verbs: VERBS,
    subresources: &["status"],
    generation: true,
    create_on_update: false,
    name_rule: NameRule::Subdomain,
    schema: &schema::flowcontrol::FLOW_SCHEMA,
    protobuf: true,
    selectable: &[],
    prepare: |new, _| {
        set_spec(new, FlowSchema::from_json);
        keep_up_to_date(new, &MANDATORY_SCHEMAS);
    },
    validate: |new, _, errors| match FlowSchema::from_json(new.clone()) {
        Ok(schema) => errors.extend(schema.validate()),
        Err(wrong) => errors.push(undecodable(&wrong)),
    },
    immortal: &[],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &MANDATORY_SCHEMAS,
};

pub(super) const PRIORITY_LEVEL_CONFIGURATIONS: Resource = Resource {
    group: GROUP,
    version: "v1",
    plural: "prioritylevelconfigurations",
    singular: "prioritylevelconfiguration",
    kind: "PriorityLevelConfiguration",
    short_names: &[],
    categories: &[],
    scope: Scope::Cluster,
    columns: LEVEL_COLUMNS,
    verbs: VERBS,
    subresources: &["status"],
    generation: true,
    create_on_update: false,
    name_rule: NameRule::Subdomain,
    schema: &schema::flowcontrol::PRIORITY_LEVEL_CONFIGURATION,
    protobuf: true,
    selectable: &[],
    prepare: |new, _| {
        set_spec(new, PriorityLevelConfiguration::from_json);
        keep_up_to_date(new, &MANDATORY_LEVELS);
    },
    validate: |new, _, errors| match PriorityLevelConfiguration::from_json(new.clone()) {
        Ok(level) => errors.extend(level.validate()),
        Err(wrong) => errors.push(undecodable(&wrong)),
    },
    immortal: &[],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &MANDATORY_LEVELS,
};

static MANDATORY_SCHEMAS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut schemas = bootstrap::flow_schemas();
    schemas.retain(|schema| bootstrap::mandatory_flow_schema(&schema.metadata.name).is_some());
    schemas.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    for schema in &mut schemas {
        let level = &schema.spec.priority_level_configuration.name;
        schema.status.conditions.push(Condition {
            kind: "Dangling".into(),
            status: "False".into(),
            last_transition_time: None,
            reason: "Found".into(),
            message: format!(
                "This FlowSchema references the PriorityLevelConfiguration object named {level:?} and it exists"
            ),
        });
    }
    values(&schemas)
});

static MANDATORY_LEVELS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut levels = bootstrap::priority_levels();
    levels.retain(|level| bootstrap::mandatory_level(&level.metadata.name).is_some());
    levels.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    values(&levels)
});

fn values<T: Serialize>(objects: &[T]) -> Vec<Value> {
    objects.iter().map(|object| serde_json::to_value(object).expect("plain structs are always JSON")).collect()
}

/// A mandatory object says that its spec is kept up to date, whatever the client wrote.
fn keep_up_to_date(new: &mut Value, mandatory: &[Value]) {
    if mandatory.iter().any(|object| object::name(object) == object::name(new)) {
        let annotations = new.get_mut("metadata").and_then(|metadata| object::map_mut(metadata, "annotations"));
        if let Some(annotations) = annotations {
            annotations.insert(AUTO_UPDATE.into(), "true".into());
        }
    }
}

/// Puts the defaulted spec in place of the given one. What cannot be decoded stays for validation to refuse.
fn set_spec<T: Serialize>(new: &mut Value, decode: fn(Value) -> Result<T, DecodeError>) {
    let defaulted = decode(new.clone()).ok().and_then(|typed| serde_json::to_value(typed).ok());
    if let Some(spec) = defaulted.as_ref().and_then(|d| d.get("spec")) {
        object::set(new, "spec", spec.clone());
    }
}

fn undecodable(wrong: &DecodeError) -> Error {
    Error::invalid(&Path::new("spec"), Value::Null, wrong.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(columns: &[Column], o: &Value) -> Vec<Value> {
        columns.iter().map(|c| (c.cell)(o, 0)).collect()
    }

    #[test]
    fn cells_of_a_flow_schema() {
        let o = json!({"metadata": {"name": "f"}, "spec": {"priorityLevelConfiguration": {"name": "p"},
            "matchingPrecedence": 7}, "status": {"conditions": [{"type": "Dangling", "status": "False"}]}});
        assert_eq!(
            cells(FLOW_SCHEMA_COLUMNS, &o),
            [json!("f"), json!("p"), json!(7), json!("<none>"), json!("<unknown>"), json!("False")]
        );
        assert_eq!(cells(FLOW_SCHEMA_COLUMNS, &json!({})).last(), Some(&json!("?")));
    }

    #[test]
    fn defaults_and_faults() {
        let meta = json!({"name": "f", "creationTimestamp": "2026-01-01T00:00:00Z"});
        let mut schema = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
            "metadata": meta, "spec": {"priorityLevelConfiguration": {"name": "p"}}});
        (FLOW_SCHEMAS.prepare)(&mut schema, None);
        assert_eq!(schema["spec"]["matchingPrecedence"], 1000);
        assert_eq!(schema["metadata"], meta);
        let mut errors = Vec::new();
        (FLOW_SCHEMAS.validate)(&schema, None, &mut errors);
        assert_eq!(errors.len(), 0, "{errors:?}");

        let mut level = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "p"}, "spec": {"type": "Limited", "limited": {"lendablePercent": 101}}});
        (PRIORITY_LEVEL_CONFIGURATIONS.prepare)(&mut level, None);
        assert_eq!(level["spec"]["limited"]["nominalConcurrencyShares"], 30);
        (PRIORITY_LEVEL_CONFIGURATIONS.validate)(&level, None, &mut errors);
        assert!(!errors.is_empty());
    }

    #[test]
    fn the_mandatory_ones_are_as_they_must_be() {
        for resource in [&FLOW_SCHEMAS, &PRIORITY_LEVEL_CONFIGURATIONS] {
            let names: Vec<&str> = (resource.mandatory)().iter().map(object::name).collect();
            assert_eq!(names, ["catch-all", "exempt"]);
            for object in (resource.mandatory)() {
                let mut written = object.clone();
                written["metadata"]["annotations"][AUTO_UPDATE] = json!("false");
                (resource.prepare)(&mut written, None);
                assert_eq!(written, *object);
                let mut errors = Vec::new();
                (resource.validate)(&written, None, &mut errors);
                assert_eq!(errors.len(), 0, "{errors:?}");
                assert_eq!(
                    (resource.kind, resource.api_version()),
                    (text(object, &["kind"]), text(object, &["apiVersion"]).to_owned())
                );
            }
        }
        assert_eq!(cells(FLOW_SCHEMA_COLUMNS, &MANDATORY_SCHEMAS[0]).last(), Some(&json!("False")));
    }

    #[test]
    fn cells_of_a_level() {
        let o = json!({"metadata": {"name": "p"}, "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 30, "limitResponse": {"type": "Queue", "queuing": {"queues": 64}}}}});
        assert_eq!(
            Value::from(cells(LEVEL_COLUMNS, &o)),
            json!(["p", "Limited", 30, 64, "<none>", "<none>", "<unknown>"])
        );
    }
}
