//! Reading with the field table at hand: unknown fields are dropped and named, duplicates are named and the
//! last one counts, as in upstream's strict decoder.
//!
//! One pass over the text, which a tree of values could not give: it hides duplicates. Depth is bounded by
//! serde_json (128), the number of findings here.

use std::{cell::RefCell, fmt};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::schema::{Field, Message, Shape, Type};

/// Most findings that are named; upstream stops at 100 too.
pub const FINDINGS_MAX: usize = 100;

/// Most characters of a field's path in a finding.
const PATH_MAX: usize = 1024;

/// Reads JSON text.
pub(super) fn from_json(message: &'static Message, bytes: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    read(Node::Message(message), bytes)
}

/// Reads JSON text of any form: finds duplicates only.
pub(super) fn from_any_json(bytes: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    read(Node::Any, bytes)
}

fn read(node: Node, bytes: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    let state = RefCell::default();
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let value = Seed { node, state: &state }.deserialize(&mut text)?;
    text.end()?;
    Ok((value, state.into_inner().findings))
}

/// Reads a tree; duplicates are not to be seen in it.
///
/// # Panics
/// Never: a tree can be read as a tree.
pub(super) fn from_value(message: &'static Message, value: Value) -> (Value, Vec<String>) {
    let state = RefCell::default();
    let seed = Seed { node: Node::Message(message), state: &state };
    let value = seed.deserialize(value).expect("a tree can be read as a tree");
    (value, state.into_inner().findings)
}

/// The path of a finding, if it is one of an unknown field.
pub(super) fn unknown(finding: &str) -> Option<&str> {
    finding.strip_prefix("unknown field \"")?.strip_suffix('"')
}

/// What is expected at a place.
#[derive(Clone, Copy)]
enum Node {
    Message(&'static Message),
    /// All values of this field: a list or a map of elements.
    Many(&'static Field),
    Any,
}

impl Node {
    fn of(field: &'static Field) -> Self {
        if field.shape == Shape::One { Self::element(field) } else { Self::Many(field) }
    }

    fn element(field: &Field) -> Self {
        match field.ty {
            Type::Message(message) => Self::Message(message),
            _ => Self::Any,
        }
    }
}

#[derive(Default)]
struct State {
    path: String,
    findings: Vec<String>,
}

impl State {
    fn finding(&mut self, what: &str) {
        if self.findings.len() < FINDINGS_MAX {
            let cut = self.path.char_indices().nth(PATH_MAX).map_or(self.path.len(), |(at, _)| at);
            let path = self.path.get(..cut).unwrap_or_default();
            self.findings.push(format!("{what} field \"{path}\""));
        }
    }
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    node: Node,
    state: &'a RefCell<State>,
}

impl<'a> Seed<'a> {
    /// Works on the place `name` below and comes back.
    fn below<T>(self, name: fmt::Arguments<'_>, node: Node, work: impl FnOnce(Seed<'a>) -> T) -> T {
        let length = self.state.borrow().path.len();
        fmt::Write::write_fmt(&mut self.state.borrow_mut().path, name).expect("text can always be longer");
        let result = work(Seed { node, ..self });
        self.state.borrow_mut().path.truncate(length);
        result
    }

    /// What is expected of the member `key`; `None` when it is unknown.
    fn member(self, key: &str) -> Option<Node> {
        match self.node {
            Node::Message(message) => message.field(key).map(Node::of),
            Node::Many(field) => Some(Node::element(field)),
            Node::Any => Some(Node::Any),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let node = match self.node {
            Node::Many(field) => Node::element(field),
            _ => Node::Any,
        };
        let mut items = Vec::new();
        loop {
            let at = items.len();
            match self.below(format_args!("[{at}]"), node, |seed| list.next_element_seed(seed))? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let dot = if self.state.borrow().path.is_empty() { "" } else { "." };
            let node = self.member(&key);
            let value = self.below(format_args!("{dot}{key}"), node.unwrap_or(Node::Any), |seed| {
                if node.is_none() {
                    seed.state.borrow_mut().finding("unknown");
                    return map.next_value::<IgnoredAny>().map(|_| None);
                }
                if members.contains_key(&key) {
                    seed.state.borrow_mut().finding("duplicate");
                }
                map.next_value_seed(seed).map(Some)
            })?;
            if let Some(value) = value {
                members.insert(key, value);
            }
        }
        Ok(Value::Object(members))
    }
}
