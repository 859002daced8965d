//! Types, and one form for equal values: empty lists, maps, texts and zeros are left out (Go's `omitempty`),
//! times are in UTC with the precision of their type.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use crate::{
    age,
    quantity::Quantity,
    schema::{Field, Message, Shape, Type},
};

/// A value of a wrong type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TypeError {
    /// Where, for example `spec.finalizers[0]`.
    pub(super) path: String,
    root: &'static str,
    what: String,
}

impl std::fmt::Display for TypeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, root, what } = self;
        write!(f, "json: {what} Go struct field {root}.{path}")
    }
}

/// What is wrong, and where below.
type Fault = (String, String);

/// Checks and normalises an object of this type.
pub(super) fn conform(message: &Message, object: &mut Value) -> Result<(), TypeError> {
    let Value::Object(members) = object else {
        return Err(TypeError { path: String::new(), root: message.name, what: "want an object for".into() });
    };
    members_conform(message, members).map_err(|(path, what)| TypeError { path, root: message.name, what })
}

fn members_conform(message: &Message, members: &mut Map<String, Value>) -> Result<(), Fault> {
    for field in message.fields {
        let Some(mut value) = members.remove(field.name) else { continue };
        if value.is_null() {
            continue;
        }
        values_conform(field, &mut value).map_err(|(below, what)| (format!("{}{below}", field.name), what))?;
        if !is_left_out(field, &value) {
            members.insert(field.name.to_owned(), value);
        }
    }
    Ok(())
}

fn is_left_out(field: &Field, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty() && field.shape == Shape::Map,
        Value::String(text) => text.is_empty() && !field.pointer,
        Value::Bool(value) => !value && !field.pointer,
        Value::Number(number) => number.as_i64() == Some(0) && !field.pointer,
    }
}

fn values_conform(field: &Field, value: &mut Value) -> Result<(), Fault> {
    match (field.shape, value) {
        (Shape::One, value) => {
            // A null between other values is Go's zero; here it is the field's absence.
            one_conforms(field.ty, value)
        }
        (Shape::List, Value::Array(items)) => {
            for (i, item) in items.iter_mut().enumerate() {
                element_conforms(field.ty, item).map_err(|(below, what)| (format!("[{i}]{below}"), what))?;
            }
            Ok(())
        }
        (Shape::Map, Value::Object(members)) => {
            for (key, item) in members.iter_mut() {
                element_conforms(field.ty, item).map_err(|(below, what)| (format!(".{key}{below}"), what))?;
            }
            Ok(())
        }
        (Shape::List, other) => Err(mismatch(other, "list")),
        (Shape::Map, other) => Err(mismatch(other, "map")),
    }
}

/// An element of a list or map: null is the zero of its type, as in Go.
fn element_conforms(ty: Type, value: &mut Value) -> Result<(), Fault> {
    if value.is_null() {
        *value = match ty {
            Type::Message(_) | Type::Raw => Value::Object(Map::new()),
            Type::Bool => Value::Bool(false),
            Type::Int32 | Type::Int64 => Value::from(0),
            Type::String | Type::Bytes => Value::from(""),
            Type::Quantity => Value::from("0"),
            Type::Time | Type::MicroTime => return Ok(()),
        };
    }
    one_conforms(ty, value)
}

fn one_conforms(ty: Type, value: &mut Value) -> Result<(), Fault> {
    match (ty, &mut *value) {
        (Type::Message(message), Value::Object(members)) => {
            members_conform(message, members).map_err(|(below, what)| (format!(".{below}"), what))
        }
        (Type::Bool, Value::Bool(_)) | (Type::String, Value::String(_)) | (Type::Raw, Value::Object(_)) => Ok(()),
        (Type::Int32, Value::Number(n)) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
        (Type::Int64, Value::Number(n)) if n.as_i64().is_some() => Ok(()),
        (Type::Int32 | Type::Int64, Value::Number(n)) => {
            let text = format!("cannot unmarshal number {n} into");
            Err((String::new(), text))
        }
        (Type::Bytes, Value::String(text)) => {
            // Go's decoder skips line breaks.
            text.retain(|c| c != '\n' && c != '\r');
            let decoded = STANDARD.decode(text.as_bytes());
            decoded.map(drop).map_err(|e| (String::new(), format!("illegal base64 data ({e}) for")))
        }
        (Type::Time | Type::MicroTime, Value::String(text)) => {
            if text.is_empty() {
                *value = Value::Null;
                return Ok(());
            }
            let Some((seconds, nanos)) = age::parse_rfc3339(text) else {
                return Err((String::new(), format!("cannot parse {text:?} as an RFC 3339 time for")));
            };
            let micro = matches!(ty, Type::MicroTime);
            *value = Value::from(if micro { age::rfc3339_micro(seconds, nanos) } else { age::rfc3339(seconds) });
            Ok(())
        }
        (Type::Quantity, Value::String(_) | Value::Number(_)) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let quantity: Quantity = text.parse().map_err(|e| (String::new(), format!("{e}, not {text:?}, in")))?;
            *value = Value::from(quantity.to_string());
            Ok(())
        }
        (ty, other) => Err(mismatch(other, want(ty))),
    }
}

fn mismatch(found: &Value, want: &str) -> Fault {
    (String::new(), format!("cannot unmarshal {} into a {want} for", type_name(found)))
}

fn want(ty: Type) -> &'static str {
    match ty {
        Type::Bool => "bool",
        Type::Int32 => "int32",
        Type::Int64 => "int64",
        Type::String => "string",
        Type::Bytes => "string (base64)",
        Type::Time | Type::MicroTime => "time",
        Type::Quantity => "quantity",
        Type::Raw => "map",
        Type::Message(message) => message.name,
    }
}

/// The JSON type of a value, as Go's messages call it.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
