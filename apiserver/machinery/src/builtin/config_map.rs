//! ConfigMap (api-server.md 5.2).

use apiserver_api::field::{Error, Path};
use serde_json::{Value, json};

use super::{VERBS, columns, prepare_nothing};
use crate::{
    object,
    resource::{Column, ErrorList, NameRule, Resource, Scope},
    schema,
};

/// Most bytes of all values together, for ConfigMap and Secret.
pub(super) const MAX_BYTES: usize = 1 << 20;

const COLUMNS: &[Column] = &[
    columns::NAME,
    columns::string("Data", |o, _| json!(columns::count(o, "data") + columns::count(o, "binaryData"))),
    columns::AGE,
];

pub(super) const CONFIG_MAPS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "configmaps",
    singular: "configmap",
    kind: "ConfigMap",
    short_names: &["cm"],
    categories: &[],
    scope: Scope::Namespaced,
    columns: COLUMNS,
    verbs: VERBS,
    subresources: &[],
    generation: false,
    create_on_update: false,
    name_rule: NameRule::Subdomain,
    schema: &schema::core::CONFIG_MAP,
    protobuf: true,
    selectable: &[],
    prepare: prepare_nothing,
    validate,
    immortal: &[],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &[],
};

fn validate(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let mut size = 0;
    for (key, value) in object::entries(new, &["data"]) {
        check_key("data", key, errors);
        if object::get(new, &["binaryData", key]).is_some() {
            errors.push(Error::invalid(
                &Path::new(&format!("data[{key}]")),
                json!(key),
                "duplicate of key present in binaryData",
            ));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in object::entries(new, &["binaryData"]) {
        check_key("binaryData", key, errors);
        size += decoded_len(value);
    }
    if size > MAX_BYTES {
        errors.push(Error::too_long(&Path::new("[]"), MAX_BYTES));
    }
    if let Some(old) = old {
        check_immutable(new, old, &["data", "binaryData"], errors);
    }
}

const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
    'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// What is wrong with a key of a ConfigMap or Secret.
fn config_key(s: &str) -> Option<&'static str> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    match s {
        _ if s.len() > 253 => Some("must be no more than 253 characters"),
        _ if s.is_empty() || !s.bytes().all(fine) => Some(CONFIG_KEY),
        "." => Some("must not be '.'"),
        ".." => Some("must not be '..'"),
        _ if s.starts_with("..") => Some("must not start with '..'"),
        _ => None,
    }
}

pub(super) fn check_key(field: &str, key: &str, errors: &mut ErrorList) {
    if let Some(wrong) = config_key(key) {
        errors.push(Error::invalid(&Path::new(&format!("{field}[{key}]")), json!(key), wrong));
    }
}

/// The number of bytes that a base64 text stands for.
pub(super) fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|b| *b == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

/// What `immutable: true` freezes: itself and `fields`.
pub(super) fn check_immutable(new: &Value, old: &Value, fields: &[&str], errors: &mut ErrorList) {
    const WHY: &str = "field is immutable when `immutable` is set";
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return;
    }
    if new.get("immutable") != Some(&Value::Bool(true)) {
        errors.push(Error::forbidden(&Path::new("immutable"), WHY));
    }
    for field in fields {
        let is_empty = |v: &&Value| v.as_object().is_some_and(serde_json::Map::is_empty);
        if new.get(field).filter(|v| !is_empty(v)) != old.get(field).filter(|v| !is_empty(v)) {
            errors.push(Error::forbidden(&Path::new(field), WHY));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_keys() {
        for good in ["a", ".a", "A_-.z", "a..b"] {
            assert_eq!(config_key(good), None, "{good}");
        }
        for bad in ["", ".", "..", "..a", "a/b", "ä", &"a".repeat(254)] {
            assert!(config_key(bad).is_some(), "{bad}");
        }
    }

    fn errors(new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut list = Vec::new();
        validate(new, old, &mut list);
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn keys_and_sizes() {
        assert!(errors(&json!({"data": {"a": "b"}, "binaryData": {"c": "AAAA"}}), None).is_empty());
        assert_eq!(errors(&json!({"data": {"a b": "c"}}), None).len(), 1);
        assert_eq!(errors(&json!({"data": {"a": "b"}, "binaryData": {"a": "AAAA"}}), None).len(), 1);
        assert!(errors(&json!({"data": {"a": "x".repeat(MAX_BYTES)}}), None).is_empty());
        assert_eq!(
            errors(&json!({"data": {"a": "x".repeat(MAX_BYTES)}, "binaryData": {"b": "AA=="}}), None),
            ["[]: Too long: may not be more than 1048576 bytes"]
        );
    }

    #[test]
    fn immutable_is_for_ever() {
        let old = json!({"immutable": true, "data": {"a": "b"}});
        assert!(errors(&json!({"immutable": true, "data": {"a": "b"}, "binaryData": {}}), Some(&old)).is_empty());
        assert_eq!(
            errors(&json!({"immutable": true, "data": {"a": "c"}}), Some(&old)),
            ["data: Forbidden: field is immutable when `immutable` is set"]
        );
        assert_eq!(errors(&json!({"data": {"a": "b"}}), Some(&old)).len(), 1);
    }

    #[test]
    fn lengths_of_base64() {
        for (text, len) in [("", 0), ("AAAA", 3), ("AAA=", 2), ("AA==", 1)] {
            assert_eq!(decoded_len(&json!(text)), len);
        }
    }
}
