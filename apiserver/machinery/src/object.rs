//! Reading and writing of single fields of an object.

use serde_json::{Map, Value};

/// The value at a path of keys.
pub fn get<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |at, key| at.get(key))
}

/// The text at a path of keys; empty when absent or of another type.
pub fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    get(object, path).and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`.
pub fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

/// `metadata.namespace`; empty when cluster-scoped.
pub fn namespace(object: &Value) -> &str {
    text(object, &["metadata", "namespace"])
}

/// The map at `key` of `object`, made when it is absent or of another type; `None` when `object` is no map.
pub fn map_mut<'a>(object: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    let at = object.as_object_mut()?.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if !at.is_object() {
        *at = Value::Object(Map::new());
    }
    at.as_object_mut()
}

/// Sets the member `key` of the map `object`; nothing when `object` is no map.
pub fn set(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(map) = object.as_object_mut() {
        map.insert(key.to_owned(), value.into());
    }
}

/// `metadata`, made when it is absent.
///
/// # Panics
/// Never for objects that were decoded: those are maps.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    map_mut(object, "metadata").expect("the line above made it a map")
}

/// The members of the map at `path`, none when there is no map.
pub fn entries<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a String, &'a Value)> {
    get(object, path).and_then(Value::as_object).into_iter().flatten()
}

/// The items of the list at `path`, none when there is no list.
pub fn items<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    get(object, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
