//! OpenAPI v2 (Swagger): one document of all groups, as JSON and as gnostic's protobuf (api-server.md 1.5). It says what
//! v3 says, in the older form: clients up to kubectl 1.26 validate and explain by it.

use serde_json::{Map, Value, json};

use super::{gnostic, schemas};
use crate::{discovery::Rendered, object};

/// Where schemas of this form refer to each other.
const PLACE: &str = "#/definitions/";

/// The document in both encodings, under one hash.
#[derive(Debug)]
pub struct OpenApiV2 {
    /// JSON, and the hash of it.
    pub json: Rendered,
    /// The same as `openapi.v2.Document`.
    pub protobuf: Vec<u8>,
}

impl OpenApiV2 {
    /// From the paths and schemas of v3.
    pub(super) fn new(paths: &Map<String, Value>, schemas: &Map<String, Value>) -> Self {
        let paths: Map<String, Value> = paths.iter().map(|(name, path)| (name.clone(), path_item(path))).collect();
        let mut definitions = Value::Object(schemas.clone());
        refer(&mut definitions);
        let document = json!({
            "swagger": "2.0",
            "info": super::info(),
            "paths": paths,
            "definitions": definitions,
        });
        Self { protobuf: gnostic::encode(&document), json: Rendered::new(&document) }
    }
}

/// Moves all references to where schemas are in this form.
fn refer(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, value) in members.iter_mut() {
                match value {
                    Value::String(text) if key == "$ref" => {
                        if let Some(name) = text.strip_prefix(schemas::PLACE) {
                            *text = format!("{PLACE}{name}");
                        }
                    }
                    value => refer(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(refer),
        _ => {}
    }
}

fn path_item(path: &Value) -> Value {
    let members = object::entries(path, &[]).map(|(key, value)| {
        let value = match value {
            Value::Array(list) => list.iter().map(parameter).collect(),
            operation => self::operation(operation),
        };
        (key.clone(), value)
    });
    Value::Object(members.collect())
}

/// A parameter tells its type itself.
fn parameter(given: &Value) -> Value {
    let mut parameter = given.clone();
    let schema = parameter.as_object_mut().and_then(|members| members.remove("schema")).unwrap_or_default();
    for (key, value) in object::entries(&schema, &[]) {
        object::set(&mut parameter, key, value.clone());
    }
    parameter
}

/// The first schema of a `content`, and its media types.
fn content(of: &Value) -> (Value, Vec<&String>) {
    let mut schema =
        object::entries(of, &["content"]).next().and_then(|(_, c)| c.get("schema").cloned()).unwrap_or_default();
    refer(&mut schema);
    (schema, object::entries(of, &["content"]).map(|(name, _)| name).collect())
}

fn operation(given: &Value) -> Value {
    let mut operation = given.clone();
    let mut parameters: Vec<Value> = object::items(given, &["parameters"]).iter().map(parameter).collect();
    if let Some(body) = operation.as_object_mut().and_then(|members| members.remove("requestBody")) {
        let (schema, types) = content(&body);
        object::set(&mut operation, "consumes", json!(types));
        parameters.push(json!({"name": "body", "in": "body", "required": true, "schema": schema}));
    }
    object::set(&mut operation, "parameters", parameters);
    let mut produces = Vec::new();
    let responses: Map<String, Value> = object::entries(given, &["responses"])
        .map(|(code, response)| {
            let (schema, types) = content(response);
            produces = types;
            (code.clone(), json!({"description": object::text(response, &["description"]), "schema": schema}))
        })
        .collect();
    object::set(&mut operation, "produces", json!(produces));
    object::set(&mut operation, "schemes", json!(["https"]));
    object::set(&mut operation, "responses", responses);
    operation
}
