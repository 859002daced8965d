//! Values as clients read them: JSON, YAML or protobuf; the way back is [`crate::decode`].

use apiserver_api::Status;
use serde_json::Value;

use crate::{
    negotiate::{self, BodyFormat},
    protobuf,
    schema::{Message, meta},
};

/// The media type of an answer in this format.
pub fn media_type(format: BodyFormat) -> &'static str {
    match format {
        BodyFormat::Json => negotiate::JSON,
        BodyFormat::Yaml => negotiate::YAML,
        BodyFormat::Protobuf => negotiate::PROTOBUF,
    }
}

/// A value with its kind and apiVersion. `message` names its fields in protobuf.
pub fn value(format: BodyFormat, message: &Message, value: &Value) -> Vec<u8> {
    match format {
        BodyFormat::Json => value.to_string().into_bytes(),
        BodyFormat::Yaml => yaml(value),
        BodyFormat::Protobuf => protobuf::seal(message, value),
    }
}

/// A refusal.
pub fn status(format: BodyFormat, status: &Status) -> Vec<u8> {
    if format == BodyFormat::Json {
        return status.to_json();
    }
    let value = serde_json::to_value(status).expect("texts and numbers are always JSON");
    self::value(format, &meta::STATUS, &value)
}

/// YAML in which older parsers too see text where text is: `"no"`, `"0777"`.
fn yaml(value: &Value) -> Vec<u8> {
    serde_yaml::to_string(value).expect("a JSON value is always YAML").into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{builtin, decode};

    #[test]
    fn yaml_of_an_object() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {}},
            "data": {"a": "no", "b": "0777", "c": "two\nlines\n", "d": "", "e": "1e3", "f": "~", "on": "- x: #"}});
        let text = String::from_utf8(value(BodyFormat::Yaml, &crate::schema::core::CONFIG_MAP, &object)).unwrap();
        for line in ["  a: \"no\"", "  b: \"0777\"", "  d: \"\"", "  e: \"1e3\"", "  \"on\": \"- x: #\""] {
            let single = line.replace('"', "'");
            assert!(text.lines().any(|l| l == line || l == single), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn refusals_in_every_format() {
        let refusal = Status::not_found("", "configmaps", "a");
        for format in [BodyFormat::Yaml, BodyFormat::Protobuf] {
            let bytes = status(format, &refusal);
            let read = match format {
                BodyFormat::Yaml => serde_yaml::from_slice(&bytes).unwrap(),
                _ => protobuf::decode(&meta::STATUS, protobuf::open(&bytes).unwrap().raw).unwrap(),
            };
            for (path, want) in [
                ("/reason", json!("NotFound")),
                ("/code", json!(404)),
                ("/message", json!("configmaps \"a\" not found")),
                ("/details/kind", json!("configmaps")),
            ] {
                assert_eq!(read.pointer(path), Some(&want), "{path} {read}");
            }
        }
    }

    proptest! {
        #[test]
        fn texts_come_back(data in prop::collection::btree_map("[a-zA-Z0-9._~-]{1,6}", any::<String>(), 1..4)) {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
            let maps = builtin::find("", "v1", "configmaps").unwrap();
            for format in [BodyFormat::Json, BodyFormat::Yaml, BodyFormat::Protobuf] {
                let bytes = value(format, maps.schema, &object);
                let read = decode::body(maps, format, &bytes).unwrap().object;
                prop_assert_eq!(&read, &object, "{:?} {}", format, String::from_utf8_lossy(&bytes));
            }
        }
    }
}
