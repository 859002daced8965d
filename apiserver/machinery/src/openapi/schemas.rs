//! The schemas of the kinds: those of Kubernetes from the types of `k8s-openapi`, all others from their field tables.
//!
//! `k8s-openapi` knows names, texts, types and which fields are required, but not how lists are merged: that is added
//! from the tables, which are held against the types by a test.

use k8s_openapi::{
    api::{
        authentication::v1::{SelfSubjectReview, TokenRequest, TokenReview},
        authorization::v1::{
            LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
        },
        coordination::v1::Lease,
        core::v1::{ConfigMap, Event, LimitRange, Namespace, ResourceQuota, Secret, ServiceAccount},
        events,
        flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration},
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ListMeta, ObjectMeta, Status},
    schemars::{Schema, SchemaGenerator, generate::SchemaSettings},
};
use serde_json::{Map, Value, json};

use super::{group_version_kind, texts};
use crate::{
    discovery, object,
    resource::Resource,
    schema::{Field, Merge, Message, Shape, Type, meta},
};

/// Where schemas refer to each other.
pub(super) const PLACE: &str = "#/components/schemas/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// The schema of an event of a watch.
pub(super) const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";

/// Makes the schema of a type, and of all types in it.
type Generate = fn(&mut SchemaGenerator) -> Schema;

/// The types of the kinds that `k8s-openapi` has, by group and kind.
const TYPES: &[(&str, &str, Generate)] = &[
    ("", "ConfigMap", |g| g.subschema_for::<ConfigMap>()),
    ("", "Event", |g| g.subschema_for::<Event>()),
    ("", "LimitRange", |g| g.subschema_for::<LimitRange>()),
    ("", "Namespace", |g| g.subschema_for::<Namespace>()),
    ("", "ResourceQuota", |g| g.subschema_for::<ResourceQuota>()),
    ("", "Secret", |g| g.subschema_for::<Secret>()),
    ("", "ServiceAccount", |g| g.subschema_for::<ServiceAccount>()),
    ("authentication.k8s.io", "SelfSubjectReview", |g| g.subschema_for::<SelfSubjectReview>()),
    ("authentication.k8s.io", "TokenRequest", |g| g.subschema_for::<TokenRequest>()),
    ("authentication.k8s.io", "TokenReview", |g| g.subschema_for::<TokenReview>()),
    ("authorization.k8s.io", "LocalSubjectAccessReview", |g| g.subschema_for::<LocalSubjectAccessReview>()),
    ("authorization.k8s.io", "SelfSubjectAccessReview", |g| g.subschema_for::<SelfSubjectAccessReview>()),
    ("authorization.k8s.io", "SelfSubjectRulesReview", |g| g.subschema_for::<SelfSubjectRulesReview>()),
    ("authorization.k8s.io", "SubjectAccessReview", |g| g.subschema_for::<SubjectAccessReview>()),
    ("events.k8s.io", "Event", |g| g.subschema_for::<events::v1::Event>()),
    ("coordination.k8s.io", "Lease", |g| g.subschema_for::<Lease>()),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema", |g| g.subschema_for::<FlowSchema>()),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", |g| g.subschema_for::<PriorityLevelConfiguration>()),
];

/// The name of a kind's schema: its group reversed, as upstream names them.
pub(super) fn name(resource: &Resource) -> String {
    let (version, kind) = (resource.version, resource.kind);
    match resource.group {
        "" => format!("io.k8s.api.core.{version}.{kind}"),
        // Kubernetes' own groups go by their first word.
        group if group.ends_with(".k8s.io") => {
            format!("io.k8s.api.{}.{version}.{kind}", group.split('.').next().unwrap_or_default())
        }
        group => {
            let reversed: Vec<&str> = group.split('.').rev().collect();
            format!("{}.{version}.{kind}", reversed.join("."))
        }
    }
}

/// A reference to the schema of this name.
pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("{PLACE}{name}")})
}

/// The schemas that the paths of these resources refer to, and those that these refer to.
pub(super) fn all(resources: &[&Resource]) -> Map<String, Value> {
    let mut generator = SchemaSettings::openapi3().into_generator();
    for meta in [
        SchemaGenerator::subschema_for::<ObjectMeta>,
        SchemaGenerator::subschema_for::<ListMeta>,
        SchemaGenerator::subschema_for::<DeleteOptions>,
        SchemaGenerator::subschema_for::<Status>,
    ] {
        meta(&mut generator);
    }
    let actions = resources.iter().filter_map(|r| discovery::action(r)).map(|(_, of)| of);
    let resources: Vec<&Resource> = resources.iter().copied().chain(actions).collect();
    for (group, kind, generate) in TYPES {
        if resources.iter().any(|r| r.group == *group && r.kind == *kind) {
            generate(&mut generator);
        }
    }
    // As they are: v2 and v3 write references that have a text of their own in different ways.
    let mut schemas = generator.take_definitions(false);
    mark(&mut schemas, &format!("{META}ObjectMeta"), &meta::OBJECT_META);
    for resource in &resources {
        add(resource, &mut schemas);
    }
    let event = json!({
        "type": "object",
        "description": "Event represents a single event to a watched resource.",
        "required": ["type", "object"],
        "properties": {
            "type": {"type": "string"},
            "object": {"type": "object", "description": "The object in the state that the event tells, or a Status."},
        },
    });
    schemas.insert(WATCH_EVENT.to_owned(), event);
    // Options are sent to every group.
    let kinds: Vec<Value> = resources
        .iter()
        .map(|r| json!({"group": r.group, "version": r.version, "kind": "DeleteOptions"}))
        .fold(vec![], |mut unique, kind| {
            if !unique.contains(&kind) {
                unique.push(kind);
            }
            unique
        });
    if let Some(options) = schemas.get_mut(&format!("{META}DeleteOptions")) {
        object::set(options, "x-kubernetes-group-version-kind", kinds);
    }
    schemas
}

/// Adds a kind and, if there is one, the list of it.
fn add(resource: &Resource, schemas: &mut Map<String, Value>) {
    let name = name(resource);
    let mut schema = schemas.remove(&name).unwrap_or_else(|| {
        let mut schema = message(resource.schema);
        texts::describe(&mut schema, resource.kind);
        schema
    });
    object::set(&mut schema, "x-kubernetes-group-version-kind", json!([group_version_kind(resource)]));
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        // Required by the Rust types, for the sake of their names.
        required.retain(|field| field != "metadata");
        if required.is_empty() {
            drop(schema.as_object_mut().and_then(|members| members.remove("required")));
        }
    }
    schemas.insert(name.clone(), schema);
    mark(schemas, &name, resource.schema);
    if !resource.has_verb("list") {
        return;
    }
    let text = |name: &str| json!({"type": "string", "description": format!("{name} of this list.")});
    let list = json!({
        "type": "object",
        "description": format!("{} is a list of {}.", resource.list_kind(), resource.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": text("API version"), "kind": text("Kind"),
            "items": {"type": "array", "items": reference(&name)},
            "metadata": reference(&format!("{META}ListMeta")),
        },
        "x-kubernetes-group-version-kind":
            [{"group": resource.group, "version": resource.version, "kind": resource.list_kind()}],
    });
    schemas.insert(format!("{name}List"), list);
}

/// Adds to the schema of a struct, and to those of the structs in it, how its lists and maps are merged.
fn mark(schemas: &mut Map<String, Value>, name: &str, of: &Message) {
    for field in of.fields {
        let Some(property) = schemas.get_mut(name).and_then(|s| s.pointer_mut(&format!("/properties/{}", field.name)))
        else {
            continue;
        };
        if field.shape == Shape::List {
            mark_list(field, property);
        }
        let Type::Message(below) = field.ty else { continue };
        let target =
            [property.get("$ref"), property.pointer("/items/$ref"), property.pointer("/additionalProperties/$ref")];
        let target = target.into_iter().flatten().find_map(Value::as_str).and_then(|r| r.strip_prefix(PLACE));
        let Some(target) = target.map(str::to_owned) else { continue };
        if field.atomic
            && let Some(schema) = schemas.get_mut(&target)
        {
            object::set(schema, "x-kubernetes-map-type", "atomic");
        }
        mark(schemas, &target, below);
    }
}

fn mark_list(field: &Field, property: &mut Value) {
    let (kind, patch) = match field.merge {
        Merge::Replace => ("atomic", false),
        Merge::Set => ("set", true),
        Merge::ByKey(key) => {
            object::set(property, "x-kubernetes-list-map-keys", json!([key]));
            object::set(property, "x-kubernetes-patch-merge-key", key);
            ("map", true)
        }
    };
    object::set(property, "x-kubernetes-list-type", kind);
    if patch {
        object::set(property, "x-kubernetes-patch-strategy", "merge");
    }
}

/// A struct of which there is only the table. Nested ones are written in place: tables do not recurse.
pub(super) fn message(message: &Message) -> Value {
    let named = message.fields.iter().filter(|f| !f.name.is_empty());
    let properties: Map<String, Value> = named.map(|f| (f.name.to_owned(), field(f))).collect();
    json!({"type": "object", "properties": properties})
}

fn field(field: &Field) -> Value {
    let one = element(field.ty);
    match field.shape {
        Shape::One => one,
        Shape::Map => json!({"type": "object", "additionalProperties": one}),
        Shape::List => {
            let mut list = json!({"type": "array", "items": one});
            mark_list(field, &mut list);
            list
        }
    }
}

fn element(ty: Type) -> Value {
    match ty {
        Type::Bool => json!({"type": "boolean"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::String => json!({"type": "string"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::Time | Type::MicroTime => json!({"type": "string", "format": "date-time"}),
        Type::Quantity => json!({"type": "string"}),
        Type::Raw => json!({"type": "object"}),
        Type::Message(of) if std::ptr::eq(of, &meta::OBJECT_META) => reference(&format!("{META}ObjectMeta")),
        Type::Message(of) => message(of),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::builtin;

    /// A field's JSON type by its table, as the types of `k8s-openapi` tell it.
    fn shape_of(schemas: &Map<String, Value>, property: &Value) -> String {
        if let Some(name) = property.get("$ref").and_then(Value::as_str) {
            let name = name.strip_prefix(PLACE).unwrap();
            return match name.rsplit('.').next().unwrap() {
                "Time" | "MicroTime" => "string date-time".into(),
                "ByteString" => "string byte".into(),
                "FieldsV1" => "object".into(),
                // Upstream has no type for it: numbers are taken too.
                "Quantity" => "string".into(),
                _ => shape_of(schemas, &schemas[name]),
            };
        }
        let ty = property["type"].as_str().unwrap();
        match (ty, property.get("format"), property.get("items"), property.get("additionalProperties")) {
            (_, Some(format), ..) => format!("{ty} {}", format.as_str().unwrap()),
            (_, _, Some(items), _) => format!("list of {}", shape_of(schemas, items)),
            (.., Some(values)) => format!("map of {}", shape_of(schemas, values)),
            _ => ty.to_owned(),
        }
    }

    fn compare(schemas: &Map<String, Value>, name: &str, of: &Message) -> usize {
        let properties = schemas[name]["properties"].as_object().unwrap();
        let ours: BTreeSet<&str> = of.fields.iter().map(|f| f.name).collect();
        let theirs: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
        assert_eq!(ours, theirs, "{name}");
        let mut seen = of.fields.len();
        for field in of.fields {
            let (ours, theirs) = (super::field(field), &properties[field.name]);
            assert_eq!(shape_of(schemas, &ours), shape_of(schemas, theirs), "{name}.{}", field.name);
            let Type::Message(below) = field.ty else { continue };
            let target = ["/$ref", "/items/$ref", "/additionalProperties/$ref"].map(|p| theirs.pointer(p));
            let target = target.into_iter().flatten().find_map(Value::as_str).unwrap().strip_prefix(PLACE).unwrap();
            seen += compare(schemas, target, below);
        }
        seen
    }

    /// Names and types of the tables, which decoding, patches and protobuf go by, are those of the real API.
    #[test]
    fn tables_are_the_types_of_kubernetes() {
        let resources: Vec<&Resource> = builtin::all().iter().collect();
        let schemas = all(&resources);
        let mut seen = 0;
        for resource in resources.iter().filter(|r| r.protobuf) {
            assert!(TYPES.iter().any(|(group, kind, _)| resource.group == *group && resource.kind == *kind));
            seen += compare(&schemas, &name(resource), resource.schema);
        }
        assert!(seen > 200, "{seen}");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let resources: Vec<&Resource> = builtin::all().iter().collect();
        let schemas = all(&resources);
        let text = serde_json::to_string(&schemas).unwrap();
        let mut seen = 0;
        for part in text.split(&format!("\"{PLACE}")).skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
            seen += 1;
        }
        assert!(seen > 30, "{seen}");
    }

    #[test]
    fn lists_say_how_they_are_merged() {
        let resources: Vec<&Resource> = builtin::all().iter().collect();
        let schemas = all(&resources);
        let secrets = &schemas["io.k8s.api.core.v1.ServiceAccount"]["properties"]["secrets"];
        assert_eq!(secrets["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(secrets["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(schemas["io.k8s.api.core.v1.ObjectReference"]["x-kubernetes-map-type"], "atomic");
        let meta = &schemas[&format!("{META}ObjectMeta")]["properties"];
        assert_eq!(meta["finalizers"]["x-kubernetes-list-type"], "set");
        assert_eq!(meta["finalizers"]["x-kubernetes-patch-strategy"], "merge");
        assert_eq!(meta["managedFields"]["x-kubernetes-list-type"], "atomic");
        let kinds = schemas[&format!("{META}DeleteOptions")]["x-kubernetes-group-version-kind"].as_array().unwrap();
        assert!(kinds.contains(&json!({"group": "", "version": "v1", "kind": "DeleteOptions"})));
    }
}
