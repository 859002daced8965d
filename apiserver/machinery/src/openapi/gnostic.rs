//! Encodes a Swagger document as gnostic's `openapi.v2.Document` (field numbers of `OpenAPIv2.proto`), as far as our
//! documents go; [`v3`] those of OpenAPI v3. Extensions (`x-...`) carry their value as YAML, which JSON is.

pub(super) mod v3;

use serde_json::Value;

use crate::object::{entries, items, text};

/// A member, null when there is none.
fn at<'a>(value: &'a Value, key: &str) -> &'a Value {
    value.get(key).unwrap_or(&Value::Null)
}

/// Bytes of a message under construction.
#[derive(Default)]
struct Writer(Vec<u8>);

/// The last seven bits.
fn low_bits(number: u64) -> u8 {
    u8::try_from(number & 0x7f).expect("seven bits fit into eight")
}

impl Writer {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(low_bits(number) | 0x80);
            number >>= 7;
        }
        self.0.push(low_bits(number));
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.number(field << 3 | 2);
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Text, if it is any.
    fn text(&mut self, field: u64, value: &Value) {
        if let Some(text) = value.as_str() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u64, list: &[Value]) {
        list.iter().for_each(|text| self.text(field, text));
    }

    fn boolean(&mut self, field: u64, value: &Value) {
        if value == &Value::Bool(true) {
            self.number(field << 3);
            self.number(1);
        }
    }

    /// A number as a double, if it is any.
    fn double(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_f64() {
            self.number(field << 3 | 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// A value within an `Any`.
    fn yaml(&mut self, value: &Value) {
        self.bytes(2, format!("{value}\n").as_bytes());
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut message = Self::default();
        fill(&mut message);
        self.bytes(field, &message.0);
    }

    /// One entry of a map.
    fn named(&mut self, field: u64, name: &str, fill: impl FnOnce(&mut Self)) {
        self.message(field, |entry| {
            entry.bytes(1, name.as_bytes());
            entry.message(2, fill);
        });
    }

    fn extensions(&mut self, field: u64, of: &Value) {
        for (name, value) in entries(of, &[]).filter(|(name, _)| name.starts_with("x-")) {
            self.named(field, name, |any| any.yaml(value));
        }
    }
}

/// The whole document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.text(1, at(document, "swagger"));
    out.message(2, |info| {
        info.text(1, at(at(document, "info"), "title"));
        info.text(2, at(at(document, "info"), "version"));
    });
    out.message(8, |paths| {
        for (name, item) in entries(document, &["paths"]) {
            paths.named(2, name, |out| path_item(out, item));
        }
    });
    out.message(9, |definitions| {
        for (name, value) in entries(document, &["definitions"]) {
            definitions.named(1, name, |out| schema(out, value));
        }
    });
    out.0
}

fn path_item(out: &mut Writer, item: &Value) {
    for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(of) = item.get(method) {
            out.message(field, |out| operation(out, of));
        }
    }
    items(item, &["parameters"]).iter().for_each(|p| out.message(9, |out| parameter(out, p)));
}

fn operation(out: &mut Writer, of: &Value) {
    out.text(3, at(of, "description"));
    out.text(5, at(of, "operationId"));
    out.texts(6, items(of, &["produces"]));
    out.texts(7, items(of, &["consumes"]));
    items(of, &["parameters"]).iter().for_each(|p| out.message(8, |out| parameter(out, p)));
    out.message(9, |responses| {
        for (code, response) in entries(of, &["responses"]) {
            responses.named(1, code, |value| {
                value.message(1, |out| {
                    out.text(1, at(response, "description"));
                    if let Some(of) = response.get("schema") {
                        out.message(2, |item| item.message(1, |out| schema(out, of)));
                    }
                });
            });
        }
    });
    out.texts(10, items(of, &["schemes"]));
    out.extensions(13, of);
}

/// A `ParametersItem`: the message of a parameter lies in three others.
fn parameter(out: &mut Writer, of: &Value) {
    let place = text(of, &["in"]);
    out.message(1, |out| match place {
        "body" => out.message(1, |out| {
            out.text(2, at(of, "name"));
            out.text(3, at(of, "in"));
            out.boolean(4, at(of, "required"));
            out.message(5, |out| schema(out, at(of, "schema")));
        }),
        _ => out.message(2, |out| {
            // Queries may be empty, parts of paths not: the numbers behind that flag are one less.
            let (field, less) = if place == "query" { (3, 0) } else { (4, 1) };
            out.message(field, |out| {
                out.boolean(1, at(of, "required"));
                out.text(2, at(of, "in"));
                out.text(3, at(of, "description"));
                out.text(4, at(of, "name"));
                out.text(6 - less, at(of, "type"));
                out.boolean(20 - less, at(of, "uniqueItems"));
            });
        }),
    });
}

fn schema(out: &mut Writer, of: &Value) {
    out.text(1, at(of, "$ref"));
    out.text(2, at(of, "format"));
    out.text(4, at(of, "description"));
    out.texts(19, items(of, &["required"]));
    if let Some(values) = of.get("additionalProperties") {
        out.message(21, |item| item.message(1, |out| schema(out, values)));
    }
    if of.get("type").is_some() {
        out.message(22, |out| out.text(1, at(of, "type")));
    }
    if let Some(one) = of.get("items") {
        out.message(23, |item| item.message(1, |out| schema(out, one)));
    }
    if of.get("properties").is_some() {
        out.message(25, |properties| {
            for (name, value) in entries(of, &["properties"]) {
                properties.named(1, name, |out| schema(out, value));
            }
        });
    }
    out.extensions(31, of);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_numbers_of_the_published_messages() {
        let document = json!({"swagger": "2.0", "info": {"title": "t", "version": "v"},
            "paths": {"/a": {"patch": {"parameters": [{"name": "dryRun", "in": "query", "type": "string"}],
                "x-kubernetes-group-version-kind": {"kind": "A"}}, "parameters": [{"name": "n", "in": "path",
                "required": true, "type": "string", "uniqueItems": true}]}},
            "definitions": {"A": {"type": "object", "properties": {"b": {"$ref": "#/definitions/B"}}}}});
        let text = |field: u8, text: &str| [&[field << 3 | 2, text.len() as u8][..], text.as_bytes()].concat();
        let message = |field: u16, parts: &[Vec<u8>]| {
            let body = parts.concat();
            let tag = field << 3 | 2;
            let tag = if tag < 128 { vec![tag as u8] } else { vec![(tag & 127) as u8 | 128, (tag >> 7) as u8] };
            let length =
                if body.len() < 128 { vec![body.len() as u8] } else { vec![(body.len() & 127) as u8 | 128, 1] };
            [tag, length, body].concat()
        };
        let query = message(3, &[text(2, "query"), text(4, "dryRun"), text(6, "string")]);
        let path = message(4, &[vec![8, 1], text(2, "path"), text(4, "n"), text(5, "string"), vec![0x98, 1, 1]]);
        let kind =
            message(13, &[text(1, "x-kubernetes-group-version-kind"), message(2, &[text(2, "{\"kind\":\"A\"}\n")])]);
        let patch = message(8, &[message(8, &[message(1, &[message(2, &[query])])]), message(9, &[]), kind]);
        let item = message(2, &[patch, message(9, &[message(1, &[message(2, &[path])])])]);
        let b = message(1, &[text(1, "b"), message(2, &[text(1, "#/definitions/B")])]);
        let a = message(2, &[message(22, &[text(1, "object")]), message(25, &[b])]);
        let want = [
            text(1, "2.0"),
            message(2, &[text(1, "t"), text(2, "v")]),
            message(8, &[message(2, &[text(1, "/a"), item])]),
            message(9, &[message(1, &[text(1, "A"), a])]),
        ];
        assert_eq!(encode(&document), want.concat());
    }
}
