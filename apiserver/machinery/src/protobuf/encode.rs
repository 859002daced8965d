//! An encoder for tests, as Go's generated code encodes: fields that are no pointers are always written.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    age,
    schema::{Field, Message, Shape, Type},
};

/// An object in its envelope.
pub(crate) fn seal(message: &Message, object: &Value) -> Vec<u8> {
    let mut meta = Vec::new();
    bytes(&mut meta, 1, object["apiVersion"].as_str().unwrap_or_default().as_bytes());
    bytes(&mut meta, 2, object["kind"].as_str().unwrap_or_default().as_bytes());
    let mut out = super::MAGIC.to_vec();
    bytes(&mut out, 1, &meta);
    bytes(&mut out, 2, &encode(message, object));
    bytes(&mut out, 3, b"");
    bytes(&mut out, 4, b"");
    out
}

/// A message.
pub(crate) fn encode(message: &Message, object: &Value) -> Vec<u8> {
    let mut fields: Vec<&Field> = message.fields.iter().filter(|f| f.number != 0).collect();
    fields.sort_by_key(|f| f.number);
    let mut out = Vec::new();
    for field in fields {
        let value = &object[field.name];
        match field.shape {
            Shape::One if value.is_null() && (field.pointer || matches!(field.ty, Type::Message(_) | Type::Raw)) => {}
            Shape::One => element(&mut out, field.number, field.ty, value),
            Shape::List => {
                value.as_array().into_iter().flatten().for_each(|v| element(&mut out, field.number, field.ty, v));
            }
            Shape::Map => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let mut entry = Vec::new();
                    bytes(&mut entry, 1, key.as_bytes());
                    element(&mut entry, 2, field.ty, value);
                    bytes(&mut out, field.number, &entry);
                }
            }
        }
    }
    out
}

fn element(out: &mut Vec<u8>, number: u32, ty: Type, value: &Value) {
    let text = value.as_str().unwrap_or_default();
    match ty {
        Type::Bool => varint_field(out, number, value.as_bool().unwrap_or_default().into()),
        Type::Int32 | Type::Int64 => varint_field(out, number, value.as_i64().unwrap_or_default().cast_unsigned()),
        Type::String => bytes(out, number, text.as_bytes()),
        Type::Bytes => bytes(out, number, &STANDARD.decode(text).unwrap()),
        Type::Time | Type::MicroTime => {
            let mut time = Vec::new();
            if let Some((seconds, nanos)) = age::parse_rfc3339(text) {
                varint_field(&mut time, 1, seconds.cast_unsigned());
                varint_field(&mut time, 2, nanos.into());
            }
            bytes(out, number, &time);
        }
        Type::Quantity => {
            let mut quantity = Vec::new();
            bytes(&mut quantity, 1, text.as_bytes());
            bytes(out, number, &quantity);
        }
        Type::Raw => {
            let mut raw = Vec::new();
            bytes(&mut raw, 1, value.to_string().as_bytes());
            bytes(out, number, &raw);
        }
        Type::Message(message) => bytes(out, number, &encode(message, value)),
    }
}

fn varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number) << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
