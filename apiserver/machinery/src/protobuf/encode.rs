//! Objects in Kubernetes' protobuf, by the same field tables as they are read. What an object does not have is not written,
//! which Go's decoder reads as it reads the zeros that Go's encoder writes.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    age,
    object::text,
    schema::{Field, Message, Shape, Type},
};

/// An object in its envelope; kind and version are those that it says.
pub fn seal(message: &Message, object: &Value) -> Vec<u8> {
    envelope(text(object, &["kind"]), text(object, &["apiVersion"]), &encode(message, object))
}

/// The envelope around the message of a kind.
pub fn envelope(kind: &str, api_version: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = head(kind, api_version);
    bytes(&mut out, 2, raw);
    tail(&mut out);
    out
}

/// The envelope in front of the message.
fn head(kind: &str, api_version: &str) -> Vec<u8> {
    let mut meta = Vec::new();
    bytes(&mut meta, 1, api_version.as_bytes());
    bytes(&mut meta, 2, kind.as_bytes());
    let mut out = super::MAGIC.to_vec();
    bytes(&mut out, 1, &meta);
    out
}

/// The envelope behind it: content encoding and type, which are none, but written.
fn tail(out: &mut Vec<u8>) {
    bytes(out, 3, b"");
    bytes(out, 4, b"");
}

/// One frame of a watch: its length in four bytes, then a `WatchEvent` around the sealed object.
pub fn watch_frame(kind: &str, sealed: &[u8]) -> Vec<u8> {
    let (mut object, mut event) = (Vec::new(), Vec::new());
    bytes(&mut object, 1, sealed);
    bytes(&mut event, 1, kind.as_bytes());
    bytes(&mut event, 2, &object);
    let length = u32::try_from(event.len()).expect("an object has far less than 4 GiB");
    [&length.to_be_bytes()[..], &event].concat()
}

/// A list that is written, piece by piece.
pub struct Pieces<I> {
    /// What is written of the next one.
    piece: Vec<u8>,
    items: I,
    is_over: bool,
}

impl<I: Iterator<Item = Vec<u8>>> Iterator for Pieces<I> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.is_over {
            return None;
        }
        let mut piece = std::mem::take(&mut self.piece);
        while piece.len() < PIECE {
            let Some(item) = self.items.next() else {
                tail(&mut piece);
                self.is_over = true;
                break;
            };
            bytes(&mut piece, ITEMS, &item);
        }
        Some(piece)
    }
}

/// Bytes after which a piece of a list ends.
const PIECE: usize = 64 * 1024;
/// The same of the first piece. What does not fit into it is made a second time when its turn comes.
const FIRST_PIECE: usize = 256 * 1024;
/// The field of a list that has the items.
const ITEMS: u32 = 2;

/// A list in its envelope, of its metadata and of its items' messages, in pieces that are sent one behind the other. The
/// envelope begins with its length, so that the items are gone through at once; but only the next piece exists.
pub fn list<I>((kind, api_version): (&str, &str), metadata: &Value, mut items: I) -> Pieces<I>
where
    I: Iterator<Item = Vec<u8>> + Clone,
{
    let mut first = Vec::new();
    bytes(&mut first, 1, &encode(&crate::schema::meta::LIST_META, metadata));
    while first.len() < FIRST_PIECE
        && let Some(item) = items.next()
    {
        bytes(&mut first, ITEMS, &item);
    }
    let mut key = Vec::new();
    let mut framed = |item: Vec<u8>| {
        key.clear();
        varint(&mut key, item.len() as u64);
        1 + key.len() + item.len()
    };
    let others: usize = items.clone().map(&mut framed).sum();
    let mut piece = head(kind, api_version);
    varint(&mut piece, 2 << 3 | 2);
    varint(&mut piece, (first.len() + others) as u64);
    piece.append(&mut first);
    Pieces { piece, items, is_over: false }
}

/// A message.
pub fn encode(message: &Message, object: &Value) -> Vec<u8> {
    let mut fields: Vec<&Field> = message.fields.iter().filter(|f| f.number != 0).collect();
    fields.sort_by_key(|f| f.number);
    let mut out = Vec::new();
    for field in fields {
        let value = object.get(field.name).unwrap_or(&Value::Null);
        match (field.shape, value) {
            (_, Value::Null) => {}
            (Shape::One, _) => element(&mut out, field.number, field.ty, value),
            (Shape::List, _) => out.extend(items(field, value)),
            (Shape::Map, _) => {
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

fn items(field: &Field, list: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    list.as_array().into_iter().flatten().for_each(|item| element(&mut out, field.number, field.ty, item));
    out
}

fn element(out: &mut Vec<u8>, number: u32, ty: Type, value: &Value) {
    let text = value.as_str().unwrap_or_default();
    match ty {
        Type::Bool => varint_field(out, number, value.as_bool().unwrap_or_default().into()),
        Type::Int32 | Type::Int64 => varint_field(out, number, value.as_i64().unwrap_or_default().cast_unsigned()),
        Type::String => bytes(out, number, text.as_bytes()),
        // Nothing else than base64 was let in.
        Type::Bytes => bytes(out, number, &STANDARD.decode(text).unwrap_or_default()),
        Type::Time | Type::MicroTime => {
            let Some((seconds, nanos)) = age::parse_rfc3339(text) else { return };
            let mut time = Vec::new();
            varint_field(&mut time, 1, seconds.cast_unsigned());
            varint_field(&mut time, 2, nanos.into());
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
        // `ExtraValue` is a list in JSON and a message of one in protobuf.
        Type::Message(message) if value.is_array() => {
            let inner: Vec<u8> = message.fields.iter().flat_map(|field| items(field, value)).collect();
            bytes(out, number, &inner);
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
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}
