//! Tables, the form in which `kubectl get` asks for objects (api-server.md 3.7), and PartialObjectMetadata
//! (3.8).

use apiserver_api::{Reason, Status};
use serde_json::{Value, json};

use crate::{
    object,
    resource::{Column, Resource},
};

/// What a row carries beside its cells (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// The object's metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
    /// Nothing.
    None,
}

impl IncludeObject {
    /// Reads the query parameter; empty is the default.
    ///
    /// # Errors
    /// 400 for any other value.
    pub fn parse(text: &str) -> Result<Self, Status> {
        match text {
            "" | "Metadata" => Ok(Self::Metadata),
            "Object" => Ok(Self::Object),
            "None" => Ok(Self::None),
            other => Err(Status::new(
                Reason::BadRequest,
                format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be \
                     'Metadata', 'Object', 'None', or empty"
                ),
            )),
        }
    }
}

/// How Tables are written for one request.
#[derive(Clone, Copy, Debug)]
pub struct TableFormat {
    /// `v1` or `v1beta1`.
    pub version: &'static str,
    /// What rows carry.
    pub include: IncludeObject,
    /// The present time in Unix seconds, for ages.
    pub now: i64,
}

/// A Table of several objects. `list_metadata` is the `metadata` of the list (resourceVersion, continue,
/// remainingItemCount); `with_columns` is false for all but the first event of a watch.
pub fn table<'a>(
    resource: &Resource,
    format: TableFormat,
    list_metadata: Value,
    objects: impl IntoIterator<Item = &'a Value>,
    with_columns: bool,
) -> Value {
    let rows: Vec<Value> = objects.into_iter().map(|o| row(resource, format, o)).collect();
    json!({
        "kind": "Table",
        "apiVersion": format!("meta.k8s.io/{}", format.version),
        "metadata": list_metadata,
        "columnDefinitions": if with_columns { column_definitions(resource) } else { Value::Null },
        "rows": rows,
    })
}

/// A Table of one object: answers to get and to writes, and watch events, bookmarks included (upstream sends
/// those as a row too; the row's object carries the annotation that ends the initial events).
pub fn table_of_one(resource: &Resource, format: TableFormat, object: &Value, with_columns: bool) -> Value {
    table(resource, format, one_metadata(object), [object], with_columns)
}

/// `columnDefinitions` of a resource.
pub fn column_definitions(resource: &Resource) -> Value {
    resource.columns.iter().map(definition).collect()
}

/// One row. The cells are read from the stored form.
pub fn row(resource: &Resource, format: TableFormat, object: &Value) -> Value {
    let stored = resource.view.map(|view| {
        let mut stored = object.clone();
        (view.store)(&mut stored);
        stored
    });
    let read = stored.as_ref().unwrap_or(object);
    let cells: Vec<Value> = resource.columns.iter().map(|c| (c.cell)(read, format.now)).collect();
    match format.include {
        IncludeObject::Metadata => json!({"cells": cells, "object": partial(object, format.version)}),
        IncludeObject::Object => json!({"cells": cells, "object": object}),
        IncludeObject::None => json!({"cells": cells, "object": null}),
    }
}

/// An object's metadata as PartialObjectMetadata of `meta.k8s.io/<version>`.
pub fn partial(object: &Value, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

fn one_metadata(object: &Value) -> Value {
    json!({"resourceVersion": object::text(object, &["metadata", "resourceVersion"])})
}

fn definition(column: &Column) -> Value {
    let format = if column.name == "Name" { "name" } else { "" };
    json!({
        "name": column.name,
        "type": column.kind,
        "format": format,
        "description": description(column.name),
        "priority": column.priority,
    })
}

/// What a column shows, whatever the kind.
fn description(column: &str) -> &'static str {
    match column {
        "Name" => "The name, of which there is one of a kind in a namespace.",
        "Age" => "How long ago it was created.",
        "Count" => "How often it was seen.",
        "Created At" => "When it was created.",
        "Data" => "The number of entries.",
        "DistinguisherMethod" => "What tells one flow from another: the user or the namespace.",
        "First Seen" => "How long ago it was seen first.",
        "HandSize" => "How many queues a flow is shuffled among.",
        "Holder" => "Who holds it at present.",
        "Last Seen" => "How long ago it was seen last.",
        "Limit" => "What the quota has of limits: used and allowed.",
        "MatchingPrecedence" => "The order in which schemas are tried; the smallest is first.",
        "Message" => "What happened, in a sentence.",
        "MissingPL" => "Whether the priority level that it names is missing.",
        "NominalConcurrencyShares" => "The share of the server's seats.",
        "Object" => "Which object it is about.",
        "Phase" => "Where it stands in its life.",
        "PriorityLevel" => "The level to which requests are assigned.",
        "QueueLengthLimit" => "How many requests of a queue may wait.",
        "Queues" => "How many queues there are.",
        "Reason" => "Why, in one word.",
        "Region" => "The region as its label says.",
        "Request" => "What the quota has of all else: used and allowed.",
        "Secrets" => "The number of secrets that it names.",
        "Source" => "Who tells it, and where.",
        "Status" => "Whether it is in use or being deleted.",
        "Subobject" => "Which part of the object it is about.",
        "Type" => "The type, of which each has its own rules.",
        "URL" => "Where it is reached.",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    fn format(include: IncludeObject) -> TableFormat {
        TableFormat { version: "v1", include, now: 90 }
    }

    fn map() -> Value {
        json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"k": "v"},
            "metadata": {"name": "x", "resourceVersion": "9", "creationTimestamp": "1970-01-01T00:00:00Z"}})
    }

    #[test]
    fn one_object() {
        let maps = builtin::find("", "v1", "configmaps").unwrap();
        let table = table_of_one(maps, format(IncludeObject::Metadata), &map(), true);
        assert_eq!(table["metadata"], json!({"resourceVersion": "9"}));
        assert_eq!(table["rows"][0]["cells"], json!(["x", 1, "90s"]));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["rows"][0]["object"].get("data"), None);
        assert_eq!(
            table["columnDefinitions"][0],
            json!({"name": "Name", "type": "string", "format": "name", "priority": 0,
                "description": "The name, of which there is one of a kind in a namespace."})
        );
        for column in builtin::all().iter().flat_map(|resource| resource.columns) {
            assert_ne!(description(column.name), "", "{}", column.name);
        }
    }

    #[test]
    fn included_objects_and_later_events() {
        let maps = builtin::find("", "v1", "configmaps").unwrap();
        let table = table_of_one(maps, format(IncludeObject::Object), &map(), false);
        assert_eq!(table["columnDefinitions"], Value::Null);
        assert_eq!(table["rows"][0]["object"], map());
        let none = row(maps, format(IncludeObject::None), &map());
        assert_eq!(none["object"], Value::Null);
        assert_eq!(IncludeObject::parse("Foo").unwrap_err().code, 400);
    }

    #[test]
    fn a_bookmark_keeps_its_annotation() {
        let maps = builtin::find("", "v1", "configmaps").unwrap();
        let metadata = json!({"resourceVersion": "40", "annotations": {"k8s.io/initial-events-end": "true"}});
        let table = table_of_one(maps, format(IncludeObject::Metadata), &json!({"metadata": metadata}), false);
        assert_eq!(table["metadata"], json!({"resourceVersion": "40"}));
        assert_eq!(table["rows"][0]["object"]["metadata"], metadata);
        assert_eq!(table["rows"][0]["cells"], json!(["", 0, "<unknown>"]));
    }
}
