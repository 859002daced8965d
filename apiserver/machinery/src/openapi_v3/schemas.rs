//! The schemas of the kinds, from their field tables.

use serde_json::{Map, Value, json};

use super::group_version_kind;
use crate::{
    resource::Resource,
    schema::{Field, Merge, Message, Shape, Type, meta},
};

/// Name of the schema that all kinds refer to for their metadata.
pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

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

/// A kind's schema.
pub(super) fn kind(resource: &Resource) -> Value {
    let mut schema = message(resource.schema);
    crate::object::set(&mut schema, "x-kubernetes-group-version-kind", json!([group_version_kind(resource)]));
    schema
}

/// The schema of `metadata`.
pub(super) fn object_meta() -> Value {
    message(&meta::OBJECT_META)
}

/// Nested structs are written in place: tables do not recurse.
fn message(message: &Message) -> Value {
    let properties: Map<String, Value> = message.fields.iter().map(|f| (f.name.to_owned(), field(f))).collect();
    json!({"type": "object", "properties": properties})
}

fn field(field: &Field) -> Value {
    let one = element(field.ty);
    match (field.shape, field.merge) {
        (Shape::One, _) => one,
        (Shape::Map, _) => json!({"type": "object", "additionalProperties": one}),
        (Shape::List, Merge::Replace) => json!({"type": "array", "items": one}),
        (Shape::List, Merge::Set) => json!({"type": "array", "items": one, "x-kubernetes-patch-strategy": "merge"}),
        (Shape::List, Merge::ByKey(key)) => json!({
            "type": "array", "items": one,
            "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": key,
        }),
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
        Type::Raw => json!({"type": "object"}),
        Type::Message(of) if std::ptr::eq(of, &meta::OBJECT_META) => {
            json!({"allOf": [{"$ref": format!("#/components/schemas/{OBJECT_META}")}]})
        }
        Type::Message(of) => message(of),
    }
}
