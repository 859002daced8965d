//! Secret (api-server.md 5.3).

use apiserver_api::field::{Error, Path};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    VERBS, columns,
    config_map::{MAX_BYTES, check_immutable, check_key, decoded_len},
};
use crate::{
    object,
    resource::{Column, ErrorList, NameRule, Resource, Scope, SelectableField},
    schema,
};

const SERVICE_ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

const COLUMNS: &[Column] = &[
    columns::NAME,
    columns::string("Type", |o, _| columns::text(o, &["type"])),
    columns::string("Data", |o, _| json!(columns::count(o, "data"))),
    columns::AGE,
];

pub(super) const SECRETS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "secrets",
    singular: "secret",
    kind: "Secret",
    short_names: &[],
    categories: &[],
    scope: Scope::Namespaced,
    columns: COLUMNS,
    verbs: VERBS,
    subresources: &[],
    generation: false,
    create_on_update: false,
    name_rule: NameRule::Subdomain,
    schema: &schema::core::SECRET,
    protobuf: true,
    selectable: &[SelectableField { name: "type", value: |o| object::text(o, &["type"]) }],
    prepare,
    validate,
    immortal: &[],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &[],
};

fn prepare(new: &mut Value, old: Option<&Value>) {
    let Some(map) = new.as_object_mut() else { return };
    if let Some(Value::Object(plain)) = map.remove("stringData")
        && let Some(data) = object::map_mut(new, "data")
    {
        for (key, value) in plain {
            data.insert(key, Value::from(STANDARD.encode(value.as_str().unwrap_or_default())));
        }
    }
    if object::text(new, &["type"]).is_empty() {
        // An update that does not name the type keeps it: the type cannot change anyway.
        let kept = old.map_or("", |o| object::text(o, &["type"]));
        object::set(new, "type", if kept.is_empty() { "Opaque" } else { kept });
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let mut size = 0;
    for (key, value) in object::entries(new, &["data"]) {
        check_key("data", key, errors);
        size += decoded_len(value);
    }
    if size > MAX_BYTES {
        errors.push(Error::too_long(&Path::new("data"), MAX_BYTES));
    }
    check_type(new, errors);
    if let Some(old) = old {
        if new.get("type") != old.get("type") {
            let value = new.get("type").cloned().unwrap_or_default();
            errors.push(Error::invalid(&Path::new("type"), value, "field is immutable"));
        }
        check_immutable(new, old, &["data"], errors);
    }
}

fn check_type(new: &Value, errors: &mut ErrorList) {
    let has = |key: &str| object::get(new, &["data", key]).is_some();
    let mut need = |key: &str| {
        if !has(key) {
            errors.push(Error::required(&Path::new(&format!("data[{key}]")), ""));
        }
    };
    match object::text(new, &["type"]) {
        "kubernetes.io/service-account-token"
            if object::text(new, &["metadata", "annotations", SERVICE_ACCOUNT_NAME]).is_empty() =>
        {
            errors.push(Error::required(&Path::new(&format!("metadata.annotations[{SERVICE_ACCOUNT_NAME}]")), ""));
        }
        "kubernetes.io/dockercfg" => check_json(new, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => check_json(new, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            need("username");
            need("password");
        }
        "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
        "kubernetes.io/tls" => {
            need("tls.crt");
            need("tls.key");
        }
        _ => {}
    }
}

fn check_json(new: &Value, key: &str, errors: &mut ErrorList) {
    let field = || format!("data[{key}]");
    match object::get(new, &["data", key]).and_then(Value::as_str) {
        None => errors.push(Error::required(&Path::new(&field()), "")),
        Some(text) => {
            let decoded = STANDARD.decode(text).unwrap_or_default();
            if let Err(wrong) = serde_json::from_slice::<serde::de::IgnoredAny>(&decoded) {
                errors.push(Error::invalid(
                    &Path::new(&field()),
                    json!("<secret contents redacted>"),
                    wrong.to_string(),
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut list = Vec::new();
        validate(new, old, &mut list);
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn string_data_is_merged_and_type_defaulted() {
        let mut secret = json!({"data": {"a": "AA==", "b": "AA=="}, "stringData": {"a": "x"}});
        prepare(&mut secret, None);
        assert_eq!(secret, json!({"data": {"a": "eA==", "b": "AA=="}, "type": "Opaque"}));
    }

    #[test]
    fn the_type_is_kept_and_immutable() {
        let old = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}});
        let mut same = json!({"data": {"tls.crt": "", "tls.key": ""}});
        prepare(&mut same, Some(&old));
        assert_eq!(errors(&same, Some(&old)), Vec::<String>::new());
        let other = json!({"type": "Opaque"});
        assert_eq!(errors(&other, Some(&old)), ["type: Invalid value: \"Opaque\": field is immutable"]);
    }

    #[test]
    fn typed_secrets_need_their_keys() {
        for (kind, wrong) in [
            ("kubernetes.io/tls", 2),
            ("kubernetes.io/ssh-auth", 1),
            ("kubernetes.io/basic-auth", 2),
            ("kubernetes.io/dockerconfigjson", 1),
            ("kubernetes.io/service-account-token", 1),
            ("bootstrap.kubernetes.io/token", 0),
            ("my/own", 0),
        ] {
            assert_eq!(errors(&json!({"type": kind}), None).len(), wrong, "{kind}");
        }
        let bad = json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": "e2JhZA=="}});
        let text = errors(&bad, None).concat();
        assert!(text.contains("redacted") && !text.contains("{bad"), "{text}");
    }
}
