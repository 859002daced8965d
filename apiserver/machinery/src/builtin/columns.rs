//! Columns and cells that several kinds share.

use serde_json::{Value, json};

use crate::{age, object, resource::Column};

pub(super) const NAME: Column = string("Name", |o, _| Value::from(object::name(o)));
pub(super) const AGE: Column =
    string("Age", |o, now| Value::from(age::age(object::text(o, &["metadata", "creationTimestamp"]), now)));

/// Upstream calls numbers `string` too; their cells are numbers all the same.
pub(super) const fn string(name: &'static str, cell: fn(&Value, i64) -> Value) -> Column {
    Column { name, kind: "string", priority: 0, cell }
}

pub(super) const fn wide(name: &'static str, cell: fn(&Value, i64) -> Value) -> Column {
    Column { name, kind: "string", priority: 1, cell }
}

/// The text at a path, empty when absent.
pub(super) fn text(o: &Value, path: &[&str]) -> Value {
    Value::from(object::text(o, path))
}

/// The text or number at a path, `<none>` when absent or empty.
pub(super) fn or_none(o: &Value, path: &[&str]) -> Value {
    match object::get(o, path) {
        Some(Value::String(s)) if !s.is_empty() => json!(s),
        Some(number @ Value::Number(_)) => number.clone(),
        _ => json!("<none>"),
    }
}

/// Number of members of a map or list, 0 when absent.
pub(super) fn count(o: &Value, key: &str) -> u64 {
    match o.get(key) {
        Some(Value::Array(a)) => a.len() as u64,
        Some(Value::Object(m)) => m.len() as u64,
        _ => 0,
    }
}
