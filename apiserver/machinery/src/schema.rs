//! Field tables of the kinds we know: one table serves protobuf decoding, the check of JSON types, unknown
//! fields, strategic merge, server-side apply and OpenAPI.
//!
//! Names, numbers and types are those of `k8s.io/api` v1.34 (`generated.proto`); kinds of kcp have no
//! protobuf form and number their fields 0. Tables are constants: nothing is built at start.

pub mod authentication;
pub mod authorization;
pub mod coordination;
pub mod core;
pub mod events;
pub mod flowcontrol;
pub mod kcp;
pub mod meta;
pub mod quota;

/// A struct of the API.
#[derive(Debug)]
pub struct Message {
    /// Its name as in Go, for example `ConfigMap`.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [Field],
}

impl Message {
    /// The field of this JSON name; in an open struct every name is one.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|f| f.name == name || f.name == REST.name)
    }

    /// The field of this protobuf number.
    pub fn number(&self, number: u32) -> Option<&'static Field> {
        self.fields.iter().find(|f| f.number == number && number != 0)
    }
}

/// What one value of a field is.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// `true` or `false`.
    Bool,
    /// A number of 32 bits.
    Int32,
    /// A number of 64 bits.
    Int64,
    /// Text.
    String,
    /// Bytes; base64 in JSON.
    Bytes,
    /// RFC 3339 with whole seconds.
    Time,
    /// RFC 3339 with six digits of fraction.
    MicroTime,
    /// A number with a suffix, as text or as a number (see [`crate::quantity`]).
    Quantity,
    /// Any JSON object, kept as it is (`fieldsV1`).
    Raw,
    /// A struct.
    Message(&'static Message),
}

/// How many values a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One.
    One,
    /// A list.
    List,
    /// A map with text keys.
    Map,
}

/// What a strategic merge patch does with a list. For server-side apply the same lists have items of their own; one
/// that is replaced is one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The list is replaced as a whole.
    Replace,
    /// Items that agree in this field are merged.
    ByKey(&'static str),
    /// Scalars are united.
    Set,
}

/// One field of a [`Message`].
#[derive(Debug)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    /// Number in protobuf; 0 when there is none.
    pub number: u32,
    /// See [`Type`].
    pub ty: Type,
    /// See [`Shape`].
    pub shape: Shape,
    /// Whether an explicit zero is kept. Other zeros are left out, as Go's `omitempty` does. Of a struct: whether it can
    /// be absent.
    pub pointer: bool,
    /// See [`Merge`].
    pub merge: Merge,
    /// Whether server-side apply treats a struct (each one of a list or map) as one value.
    pub atomic: bool,
}

impl Field {
    const fn new(number: u32, name: &'static str, ty: Type) -> Self {
        Self { name, number, ty, shape: Shape::One, pointer: false, merge: Merge::Replace, atomic: false }
    }

    const fn list(mut self) -> Self {
        self.shape = Shape::List;
        self
    }

    const fn map(mut self) -> Self {
        self.shape = Shape::Map;
        self
    }

    const fn pointer(mut self) -> Self {
        self.pointer = true;
        self
    }

    const fn merge(mut self, merge: Merge) -> Self {
        self.merge = merge;
        self
    }

    const fn atomic(mut self) -> Self {
        self.atomic = true;
        self
    }
}

const fn text(number: u32, name: &'static str) -> Field {
    Field::new(number, name, Type::String)
}

const fn boolean(number: u32, name: &'static str) -> Field {
    Field::new(number, name, Type::Bool)
}

const fn int32(number: u32, name: &'static str) -> Field {
    Field::new(number, name, Type::Int32)
}

const fn int64(number: u32, name: &'static str) -> Field {
    Field::new(number, name, Type::Int64)
}

const fn bytes(number: u32, name: &'static str) -> Field {
    Field::new(number, name, Type::Bytes)
}

const fn time(number: u32, name: &'static str) -> Field {
    Field::new(number, name, Type::Time)
}

const fn micro_time(number: u32, name: &'static str) -> Field {
    Field::new(number, name, Type::MicroTime)
}

const fn message(number: u32, name: &'static str, message: &'static Message) -> Field {
    Field::new(number, name, Type::Message(message))
}

const fn texts(number: u32, name: &'static str) -> Field {
    text(number, name).list()
}

/// `conditions`, merged by `type`.
const fn conditions(number: u32, of: &'static Message) -> Field {
    message(number, "conditions", of).list().merge(Merge::ByKey("type"))
}

/// Behind all others it makes a struct open: members of any name are kept as they are.
const REST: Field = Field::new(0, "", Type::Raw);
/// A kind of which only the metadata is known (`x-kubernetes-preserve-unknown-fields`).
pub static OPEN: Message = Message { name: "Object", fields: &[KIND, API_VERSION, METADATA, REST] };
/// The `metadata` of every kind.
const METADATA: Field = message(1, "metadata", &meta::OBJECT_META);
/// `kind` and `apiVersion`, which protobuf carries in the envelope.
const KIND: Field = text(0, "kind");
const API_VERSION: Field = text(0, "apiVersion");
