//! Bodies in Kubernetes' protobuf: the envelope `k8s\0` + `runtime.Unknown`, and messages by the field table
//! (api-server.md 3.9).
//!
//! What is read is the JSON that the kind would have, not yet normalised (see [`crate::decode`]).
//! Unknown fields are skipped. Depth is bounded by the tables, which do not recurse; the number of values is
//! bounded here; cost is one pass.

mod encode;
mod wire;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

pub use self::encode::{Pieces, encode, envelope, list, seal, watch_frame};
use self::wire::{Reader, WireValue};
use crate::{
    age,
    schema::{Field, Message, Shape, Type},
};

/// What every body begins with.
pub const MAGIC: &[u8; 4] = b"k8s\0";
/// Most values in one body: 3 MiB of empty list items would otherwise become far more memory than bytes.
const VALUES_MAX: usize = 500_000;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtobufError {
    /// The envelope's beginning is missing.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Magic,
    /// The bytes end within a field.
    #[error("unexpected EOF")]
    Eof,
    /// A variable-length number is longer than ten bytes.
    #[error("proto: integer overflow")]
    Overflow,
    /// A field is encoded as another type, or as none.
    #[error("proto: wrong wireType = {wire_type} for field {field}")]
    WireType {
        /// As read.
        wire_type: u8,
        /// The field's name or number.
        field: String,
    },
    /// `contentEncoding` is set.
    #[error("the content encoding {0:?} is not supported")]
    Encoding(String),
    /// Raw JSON inside is none.
    #[error("field {field} is not a JSON object: {why}")]
    Json {
        /// The field's name.
        field: &'static str,
        /// The parser's text.
        why: String,
    },
    /// More values than a body may have.
    #[error("the message has more than {VALUES_MAX} values")]
    TooManyValues,
}

/// An opened envelope.
#[derive(Debug)]
pub struct Envelope<'a> {
    /// May be empty.
    pub api_version: String,
    /// May be empty.
    pub kind: String,
    /// The message of that kind.
    pub raw: &'a [u8],
}

/// Opens the envelope.
///
/// # Errors
/// See [`ProtobufError`].
pub fn open(bytes: &[u8]) -> Result<Envelope<'_>, ProtobufError> {
    let body = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::Magic)?;
    let mut envelope = Envelope { api_version: String::new(), kind: String::new(), raw: &[] };
    let mut reader = Reader::new(body);
    while let Some((number, value)) = reader.field()? {
        match (number, value) {
            (1, WireValue::Bytes(meta)) => {
                let mut meta = Reader::new(meta);
                while let Some((number, value)) = meta.field()? {
                    match (number, value) {
                        (1, WireValue::Bytes(text)) => envelope.api_version = lossy(text),
                        (2, WireValue::Bytes(text)) => envelope.kind = lossy(text),
                        _ => {}
                    }
                }
            }
            (2, WireValue::Bytes(raw)) => envelope.raw = raw,
            (3, WireValue::Bytes(encoding)) if !encoding.is_empty() => {
                return Err(ProtobufError::Encoding(lossy(encoding)));
            }
            _ => {}
        }
    }
    Ok(envelope)
}

/// Reads a message of this type.
///
/// # Errors
/// See [`ProtobufError`].
pub fn decode(message: &Message, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut members = Map::new();
    Decoder { values: 0 }.message(message, bytes, &mut members)?;
    Ok(Value::Object(members))
}

struct Decoder {
    values: usize,
}

impl Decoder {
    /// Reads into `members`: a message that occurs twice is merged, as protobuf demands.
    fn message(
        &mut self,
        message: &Message,
        bytes: &[u8],
        members: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.field()? {
            self.values += 1;
            if self.values > VALUES_MAX {
                return Err(ProtobufError::TooManyValues);
            }
            let Some(field) = message.number(number) else { continue };
            match field.shape {
                Shape::One => {
                    let before = members.remove(field.name);
                    if let Some(value) = self.value(field, value, before)? {
                        members.insert(field.name.to_owned(), value);
                    }
                }
                Shape::List => {
                    let item = self.value(field, value, None)?;
                    let list = members.entry(field.name).or_insert_with(|| Value::Array(vec![]));
                    list.as_array_mut().into_iter().for_each(|l| l.extend(item.clone()));
                }
                Shape::Map => {
                    let (key, item) = self.entry(field, value)?;
                    let map = members.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                    map.as_object_mut().and_then(|m| m.insert(key, item));
                }
            }
        }
        Ok(())
    }

    /// One entry of a map; a part that is left out is the zero of its type.
    fn entry(&mut self, field: &Field, value: WireValue<'_>) -> Result<(String, Value), ProtobufError> {
        let WireValue::Bytes(bytes) = value else { return Err(value.wrong_for(field.name)) };
        let (mut key, mut item) = (String::new(), Value::from(""));
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.field()? {
            match (number, value) {
                (1, WireValue::Bytes(text)) => key = lossy(text),
                (2, value) => item = self.value(field, value, None)?.unwrap_or_default(),
                _ => {}
            }
        }
        Ok((key, item))
    }

    /// One value; `None` for the time that is none. `before` is what the field already holds.
    fn value(
        &mut self,
        field: &Field,
        value: WireValue<'_>,
        before: Option<Value>,
    ) -> Result<Option<Value>, ProtobufError> {
        let json = match (field.ty, value) {
            (Type::Bool, WireValue::Varint(n)) => Value::Bool(n != 0),
            // Two's complement: negative numbers are sent with all 64 bits.
            (Type::Int64, WireValue::Varint(n)) => Value::from(n.cast_signed()),
            (Type::Int32, WireValue::Varint(n)) => Value::from(truncated(n)),
            (Type::String, WireValue::Bytes(text)) => Value::from(lossy(text)),
            (Type::Bytes, WireValue::Bytes(bytes)) => Value::from(STANDARD.encode(bytes)),
            (Type::Time, WireValue::Bytes(bytes)) => {
                let Some((seconds, _)) = time(bytes)? else { return Ok(None) };
                Value::from(age::rfc3339(seconds))
            }
            (Type::MicroTime, WireValue::Bytes(bytes)) => {
                let Some((seconds, nanos)) = time(bytes)? else { return Ok(None) };
                Value::from(age::rfc3339_micro(seconds, nanos))
            }
            (Type::Quantity, WireValue::Bytes(bytes)) => Value::from(lossy(only(bytes)?)),
            (Type::Raw, WireValue::Bytes(bytes)) => return raw(field.name, bytes),
            (Type::Message(message), WireValue::Bytes(bytes)) => {
                let mut members = match before {
                    Some(Value::Object(members)) => members,
                    _ => Map::new(),
                };
                self.message(message, bytes, &mut members)?;
                Value::Object(members)
            }
            (_, value) => return Err(value.wrong_for(field.name)),
        };
        Ok(Some(json))
    }
}

/// The lowest 32 bits, signed.
fn truncated(n: u64) -> i32 {
    let [a, b, c, d, ..] = n.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Seconds and nanoseconds; an empty message is the zero time, which JSON leaves out.
fn time(bytes: &[u8]) -> Result<Option<(i64, u32)>, ProtobufError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.field()? {
        match (number, value) {
            (1, WireValue::Varint(n)) => seconds = n.cast_signed(),
            (2, WireValue::Varint(n)) => nanos = u32::try_from(n).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(Some((seconds, nanos)))
}

/// `FieldsV1`: JSON in a message of one field.
fn raw(field: &'static str, bytes: &[u8]) -> Result<Option<Value>, ProtobufError> {
    let json = only(bytes)?;
    if json.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(json).map(Some).map_err(|e| ProtobufError::Json { field, why: e.to_string() })
}

/// The bytes in a message of one field.
fn only(bytes: &[u8]) -> Result<&[u8], ProtobufError> {
    let mut found: &[u8] = b"";
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.field()? {
        if let (1, WireValue::Bytes(bytes)) = (number, value) {
            found = bytes;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
