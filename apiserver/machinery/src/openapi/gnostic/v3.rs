//! Encodes a document of OpenAPI v3 as gnostic's `openapi.v3.Document` (field numbers of `OpenAPIv3.proto`), as far as our
//! documents and the schemas of custom resources go.

use serde_json::Value;

use super::{Writer, at};
use crate::object::{entries, items, text};

/// Schema fields by their type in the messages.
const BOOLEANS: [(u64, &str); 4] =
    [(1, "nullable"), (12, "exclusiveMaximum"), (14, "exclusiveMinimum"), (20, "uniqueItems")];
const DOUBLES: [(u64, &str); 3] = [(10, "multipleOf"), (11, "maximum"), (13, "minimum")];
const NUMBERS: [(u64, &str); 6] = [
    (15, "maxLength"),
    (16, "minLength"),
    (18, "maxItems"),
    (19, "minItems"),
    (21, "maxProperties"),
    (22, "minProperties"),
];
const TEXTS: [(u64, &str); 5] = [(9, "title"), (17, "pattern"), (25, "type"), (34, "description"), (35, "format")];
const ALTERNATIVES: [(u64, &str); 3] = [(26, "allOf"), (27, "oneOf"), (28, "anyOf")];

/// The whole document.
pub(in crate::openapi) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.text(1, at(document, "openapi"));
    out.message(2, |info| {
        info.text(1, at(at(document, "info"), "title"));
        info.text(6, at(at(document, "info"), "version"));
    });
    out.message(4, |paths| {
        for (name, item) in entries(document, &["paths"]) {
            paths.named(1, name, |out| path_item(out, item));
        }
    });
    out.message(5, |components| {
        components.message(1, |schemas| {
            for (name, value) in entries(document, &["components", "schemas"]) {
                schemas.named(1, name, |out| schema_or_reference(out, value));
            }
        });
    });
    out.0
}

fn path_item(out: &mut Writer, item: &Value) {
    for (field, method) in [(4, "get"), (5, "put"), (6, "post"), (7, "delete"), (10, "patch")] {
        if let Some(of) = item.get(method) {
            out.message(field, |out| operation(out, of));
        }
    }
    items(item, &["parameters"]).iter().for_each(|p| out.message(13, |out| parameter(out, p)));
}

fn operation(out: &mut Writer, of: &Value) {
    out.text(3, at(of, "description"));
    out.text(5, at(of, "operationId"));
    items(of, &["parameters"]).iter().for_each(|p| out.message(6, |out| parameter(out, p)));
    if let Some(body) = of.get("requestBody") {
        out.message(7, |either| {
            either.message(1, |out| {
                out.message(2, |types| media_types(types, body));
                out.boolean(3, at(body, "required"));
            });
        });
    }
    out.message(8, |responses| {
        for (code, response) in entries(of, &["responses"]) {
            responses.named(2, code, |either| {
                either.message(1, |out| {
                    out.text(1, at(response, "description"));
                    out.message(3, |types| media_types(types, response));
                });
            });
        }
    });
    out.extensions(13, of);
}

fn media_types(out: &mut Writer, of: &Value) {
    for (name, value) in entries(of, &["content"]) {
        out.named(1, name, |out| out.message(1, |out| schema_or_reference(out, at(value, "schema"))));
    }
}

fn parameter(out: &mut Writer, of: &Value) {
    out.message(1, |out| {
        out.text(1, at(of, "name"));
        out.text(2, at(of, "in"));
        out.text(3, at(of, "description"));
        out.boolean(4, at(of, "required"));
        out.message(10, |out| schema_or_reference(out, at(of, "schema")));
    });
}

fn schema_or_reference(out: &mut Writer, of: &Value) {
    match text(of, &["$ref"]) {
        "" => out.message(1, |out| schema(out, of)),
        reference => out.message(2, |out| out.bytes(1, reference.as_bytes())),
    }
}

fn schema(out: &mut Writer, of: &Value) {
    BOOLEANS.iter().for_each(|(field, name)| out.boolean(*field, at(of, name)));
    DOUBLES.iter().for_each(|(field, name)| out.double(*field, at(of, name)));
    for (field, name) in NUMBERS {
        if let Some(number) = at(of, name).as_u64() {
            out.number(field << 3);
            out.number(number);
        }
    }
    TEXTS.iter().for_each(|(field, name)| out.text(*field, at(of, name)));
    out.texts(23, items(of, &["required"]));
    items(of, &["enum"]).iter().for_each(|value| out.message(24, |any| any.yaml(value)));
    for (field, name) in ALTERNATIVES {
        items(of, &[name]).iter().for_each(|one| out.message(field, |out| schema_or_reference(out, one)));
    }
    if let Some(other) = of.get("not") {
        out.message(29, |out| schema(out, other));
    }
    if let Some(one) = of.get("items") {
        out.message(30, |item| item.message(1, |out| schema_or_reference(out, one)));
    }
    if of.get("properties").is_some() {
        out.message(31, |properties| {
            for (name, value) in entries(of, &["properties"]) {
                properties.named(1, name, |out| schema_or_reference(out, value));
            }
        });
    }
    match of.get("additionalProperties") {
        None => {}
        Some(Value::Bool(any)) => out.message(32, |item| {
            item.number(2 << 3);
            item.number(u64::from(*any));
        }),
        Some(values) => out.message(32, |item| item.message(1, |out| schema_or_reference(out, values))),
    }
    // The message knows no defaults that are maps or lists.
    if let Some(default @ (Value::Number(_) | Value::Bool(_) | Value::String(_))) = of.get("default") {
        out.message(33, |out| {
            out.double(1, default);
            out.boolean(2, default);
            out.text(3, default);
        });
    }
    out.extensions(36, of);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tag(field: u16, kind: u8) -> Vec<u8> {
        let tag = field << 3 | u16::from(kind);
        if tag < 128 { vec![tag as u8] } else { vec![(tag & 127) as u8 | 128, (tag >> 7) as u8] }
    }

    fn text(field: u16, text: &str) -> Vec<u8> {
        [tag(field, 2), vec![text.len() as u8], text.as_bytes().to_vec()].concat()
    }

    fn number(field: u16, number: u8) -> Vec<u8> {
        [tag(field, 0), vec![number]].concat()
    }

    fn message(field: u16, parts: &[Vec<u8>]) -> Vec<u8> {
        let body = parts.concat();
        let length = if body.len() < 128 {
            vec![body.len() as u8]
        } else {
            vec![(body.len() & 127) as u8 | 128, (body.len() >> 7) as u8]
        };
        [tag(field, 2), length, body].concat()
    }

    #[test]
    fn the_numbers_of_the_published_messages() {
        let document = json!({"openapi": "3.0.0", "info": {"title": "t", "version": "v"},
            "paths": {"/a": {
                "patch": {"operationId": "id", "parameters": [{"name": "force", "in": "query", "schema": {"type": "boolean"}}],
                    "requestBody": {"required": true, "content": {"j": {"schema": {"$ref": "#/A"}}}},
                    "responses": {"200": {"description": "OK", "content": {}}}, "x-k": {"kind": "A"}},
                "parameters": [{"name": "n", "in": "path", "required": true, "schema": {"uniqueItems": true}}]}},
            "components": {"schemas": {"A": {"type": "object", "properties": {"b": {"$ref": "#/B"}}}}}});
        let force =
            message(1, &[text(1, "force"), text(2, "query"), message(10, &[message(1, &[text(25, "boolean")])])]);
        let body = message(
            1,
            &[
                message(2, &[message(1, &[text(1, "j"), message(2, &[message(1, &[message(2, &[text(1, "#/A")])])])])]),
                number(3, 1),
            ],
        );
        let answer = message(2, &[text(1, "200"), message(2, &[message(1, &[text(1, "OK"), message(3, &[])])])]);
        let extension = message(13, &[text(1, "x-k"), message(2, &[text(2, "{\"kind\":\"A\"}\n")])]);
        let patch =
            message(10, &[text(5, "id"), message(6, &[force]), message(7, &[body]), message(8, &[answer]), extension]);
        let unique = message(10, &[message(1, &[number(20, 1)])]);
        let path = message(13, &[message(1, &[text(1, "n"), text(2, "path"), number(4, 1), unique])]);
        let b = message(1, &[text(1, "b"), message(2, &[message(2, &[text(1, "#/B")])])]);
        let a = message(2, &[message(1, &[text(25, "object"), message(31, &[b])])]);
        let want = [
            text(1, "3.0.0"),
            message(2, &[text(1, "t"), text(6, "v")]),
            message(4, &[message(1, &[text(1, "/a"), message(2, &[patch, path])])]),
            message(5, &[message(1, &[message(1, &[text(1, "A"), a])])]),
        ];
        assert_eq!(encode(&document), want.concat());
    }

    #[test]
    fn all_that_a_schema_may_say() {
        let encoded = |value: Value| {
            let mut out = Writer::default();
            schema(&mut out, &value);
            out.0
        };
        let reference = |field| message(field, &[message(2, &[text(1, "#/B")])]);
        let b = json!({"$ref": "#/B"});
        for (value, want) in [
            (json!({"nullable": true, "exclusiveMinimum": true}), [number(1, 1), number(14, 1)].concat()),
            (json!({"maximum": 2.5}), [tag(11, 1), 2.5_f64.to_le_bytes().to_vec()].concat()),
            (json!({"maxLength": 7, "minItems": 0}), [number(15, 7), number(19, 0)].concat()),
            (
                json!({"pattern": "^a", "title": "t", "format": "date"}),
                [text(9, "t"), text(17, "^a"), text(35, "date")].concat(),
            ),
            (json!({"required": ["a", "b"]}), [text(23, "a"), text(23, "b")].concat()),
            (json!({"enum": ["a", 1]}), [message(24, &[text(2, "\"a\"\n")]), message(24, &[text(2, "1\n")])].concat()),
            (json!({"allOf": [b], "oneOf": [b], "anyOf": [b]}), [reference(26), reference(27), reference(28)].concat()),
            (json!({"not": {"type": "a"}}), message(29, &[text(25, "a")])),
            (json!({"items": b}), message(30, &[reference(1)])),
            (json!({"additionalProperties": b}), message(32, &[reference(1)])),
            (json!({"additionalProperties": false}), message(32, &[number(2, 0)])),
            (json!({"default": "a"}), message(33, &[text(3, "a")])),
            (json!({"default": true}), message(33, &[number(2, 1)])),
            (json!({"default": {}}), vec![]),
            (json!({"x-a": true}), message(36, &[text(1, "x-a"), message(2, &[text(2, "true\n")])])),
        ] {
            assert_eq!(encoded(value.clone()), want, "{value}");
        }
    }

    /// What our documents say, the encoding has: no member is one that it does not know.
    #[test]
    fn our_documents_say_nothing_else() {
        fn check(value: &Value) {
            for (name, member) in entries(value, &[]) {
                let known = BOOLEANS.iter().chain(&DOUBLES).chain(&NUMBERS).chain(&TEXTS).chain(&ALTERNATIVES);
                let others =
                    ["$ref", "required", "enum", "not", "items", "properties", "additionalProperties", "default"];
                let is_known =
                    known.into_iter().any(|(_, n)| n == name) || others.contains(&&**name) || name.starts_with("x-");
                assert!(is_known, "{name}");
                match &**name {
                    "properties" => member.as_object().unwrap().values().for_each(check),
                    "items" | "additionalProperties" | "not" => check(member),
                    "allOf" | "oneOf" | "anyOf" => member.as_array().unwrap().iter().for_each(check),
                    _ => {}
                }
            }
        }
        let documents = crate::openapi::builtin();
        for place in documents.documents.keys() {
            let document: Value = serde_json::from_slice(&documents.document(place).unwrap().body).unwrap();
            document["components"]["schemas"].as_object().unwrap().values().for_each(check);
            assert!(!documents.protobuf(place).unwrap().is_empty());
        }
    }
}
