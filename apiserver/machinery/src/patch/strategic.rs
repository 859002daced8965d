//! Strategic merge patch: maps merge, null deletes, lists are replaced unless the field table has a merge key
//! for them, and directives (`$patch`, `$retainKeys`, `$setElementOrder/`, `$deleteFromPrimitiveList/`) are
//! obeyed and never stored.
//!
//! Semantics of `k8s.io/apimachinery/pkg/util/strategicpatch`. Recursion is bounded by the depth of the parsed
//! patch; lists are looked up by the text of what identifies their items, so that long ones cost no more than their
//! length.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_api::Status;
use serde_json::{Map, Value};

use super::inapplicable;
use crate::schema::{Field, Merge, Message, Shape, Type};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

pub(super) fn apply(message: &Message, patch: &Map<String, Value>, document: &mut Value) -> Result<(), Status> {
    match document {
        Value::Object(members) => merge_map(Some(message), members, patch),
        _ => Err(inapplicable("patch", "the document is no object")),
    }
}

/// A directive of a wrong form.
fn bad_directive(name: &str, want: &str) -> Status {
    Status::bad_request(format!("invalid patch: {name} must be {want}"))
}

fn merge_map(
    message: Option<&Message>,
    original: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), Status> {
    match patch.get(PATCH).map(|v| v.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("delete") => {
            original.clear();
            return Ok(());
        }
        Some("replace") => {
            *original = without_directives(patch);
            return Ok(());
        }
        Some(_) => return Err(bad_directive(PATCH, "merge, replace or delete")),
    }
    if let Some(keys) = patch.get(RETAIN_KEYS) {
        let keys = keys.as_array().ok_or_else(|| bad_directive(RETAIN_KEYS, "a list of field names"))?;
        let keys: BTreeSet<&str> = keys.iter().filter_map(Value::as_str).collect();
        let is_retained = |key: &str| keys.contains(key);
        if patch.iter().any(|(k, v)| !k.starts_with('$') && !v.is_null() && !is_retained(k)) {
            return Err(bad_directive(RETAIN_KEYS, "a superset of the fields of the patch"));
        }
        original.retain(|key, _| is_retained(key));
    }
    let field_of = |key: &str| message.and_then(|m| m.field(key));
    for (key, value) in patch.iter().filter(|(k, _)| !is_directive(k)) {
        merge_member(field_of(key), original, key, value, patch.get(&format!("{ORDER}{key}")))?;
    }
    // Deletions and orders may come without a list of the same name.
    for (directive, value) in patch {
        if let Some(key) = directive.strip_prefix(DELETE_FROM) {
            let gone = value.as_array().ok_or_else(|| bad_directive(directive, "a list"))?;
            if let Some(Value::Array(items)) = original.get_mut(key) {
                let gone = places(Merge::Set, gone);
                items.retain(|item| !gone.contains_key(&identity(Merge::Set, item)));
            }
        }
    }
    for (directive, value) in patch {
        if let Some(key) = directive.strip_prefix(ORDER) {
            let order = value.as_array().ok_or_else(|| bad_directive(directive, "a list"))?;
            if let (Some(field), Some(Value::Array(items)), None) =
                (field_of(key), original.get_mut(key), patch.get(key))
            {
                let before = places(field.merge, items);
                *items = ordered(field.merge, std::mem::take(items), order, &before);
            }
        }
    }
    Ok(())
}

fn merge_member(
    field: Option<&'static Field>,
    original: &mut Map<String, Value>,
    key: &str,
    patch: &Value,
    order: Option<&Value>,
) -> Result<(), Status> {
    if patch.is_null() {
        original.remove(key);
        return Ok(());
    }
    match (original.get_mut(key), patch) {
        (Some(Value::Object(members)), Value::Object(patch)) => {
            let below = field.and_then(|f| match (f.shape, f.ty) {
                (Shape::One, Type::Message(message)) => Some(message),
                _ => None,
            });
            merge_map(below, members, patch)
        }
        (Some(Value::Array(items)), Value::Array(patch)) => {
            *items = merge_list(field, std::mem::take(items), patch, order)?;
            Ok(())
        }
        // Fields of another form, or new ones, are what the patch says.
        _ => {
            original.insert(key.to_owned(), without_directives_value(patch));
            Ok(())
        }
    }
}

fn merge_list(
    field: Option<&'static Field>,
    original: Vec<Value>,
    patch: &[Value],
    order: Option<&Value>,
) -> Result<Vec<Value>, Status> {
    let merge = field.map_or(Merge::Replace, |f| f.merge);
    let before = places(merge, &original);
    let merged = match merge {
        Merge::Replace => return Ok(without_directives_list(patch)),
        Merge::Set => {
            let mut seen: BTreeSet<String> = original.iter().map(|item| identity(merge, item)).collect();
            let new = patch.iter().filter(|item| seen.insert(identity(merge, item)));
            original.iter().chain(new).cloned().collect()
        }
        Merge::ByKey(key) => {
            let message = field.and_then(|f| match f.ty {
                Type::Message(message) => Some(message),
                _ => None,
            });
            merge_items(message, key, original, patch)?
        }
    };
    match order {
        None => Ok(ordered(merge, merged, patch, &before)),
        Some(Value::Array(order)) => Ok(ordered(merge, merged, order, &before)),
        Some(_) => Err(bad_directive(ORDER, "a list")),
    }
}

/// Items that agree in `key` are merged, others added.
fn merge_items(
    message: Option<&Message>,
    key: &'static str,
    original: Vec<Value>,
    patch: &[Value],
) -> Result<Vec<Value>, Status> {
    if patch.iter().any(|item| item.get(PATCH).is_some_and(|p| p == "replace")) {
        // The list becomes the patch's; items that carry a directive are not part of it, whatever else they hold.
        let items = patch.iter().filter(|item| item.get(PATCH).is_none());
        return Ok(items.map(without_directives_value).collect());
    }
    // Where the items of a key are; what is deleted leaves a gap.
    let mut merged: Vec<Option<Value>> = original.into_iter().map(Some).collect();
    let mut at: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, item) in merged.iter().enumerate() {
        if let Some(id) = item.as_ref().and_then(|item| item.get(key)) {
            at.entry(id.to_string()).or_default().push(place);
        }
    }
    for item in patch {
        let (Some(members), Some(id)) = (item.as_object(), item.get(key)) else {
            let why = format!("an item of a list does not contain the declared merge key {key}");
            return Err(inapplicable("patch", why));
        };
        let id = id.to_string();
        if members.get(PATCH).is_some_and(|p| p == "delete") {
            for place in at.remove(&id).unwrap_or_default() {
                merged.get_mut(place).map(Option::take);
            }
            continue;
        }
        let found = at.get(&id).and_then(|places| places.first()).and_then(|place| merged.get_mut(*place));
        match found {
            Some(Some(Value::Object(found))) => merge_map(message, found, members)?,
            _ => {
                at.entry(id).or_default().push(merged.len());
                merged.push(Some(Value::Object(without_directives(members))));
            }
        }
    }
    Ok(merged.into_iter().flatten().collect())
}

/// What identifies an item, as text: its merge key, or itself.
fn identity(merge: Merge, item: &Value) -> String {
    match merge {
        Merge::ByKey(key) => item.get(key).unwrap_or(item).to_string(),
        _ => item.to_string(),
    }
}

/// Where in a list each item is first.
fn places(merge: Merge, list: &[Value]) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    for (place, item) in list.iter().enumerate() {
        places.entry(identity(merge, item)).or_insert(place);
    }
    places
}

/// Items that `order` names in that order, the others in the order they had; where both were there before, their
/// relation stays.
fn ordered(merge: Merge, items: Vec<Value>, order: &[Value], before: &BTreeMap<String, usize>) -> Vec<Value> {
    let order = places(merge, order);
    let placed = items.into_iter().map(|item| {
        let id = identity(merge, &item);
        (order.get(&id).copied(), before.get(&id).copied(), item)
    });
    let (mut named, mut others): (Vec<_>, Vec<_>) = placed.partition(|(named, ..)| named.is_some());
    named.sort_by_key(|(named, ..)| *named);
    others.sort_by_key(|(_, before, _)| *before);
    let mut merged = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    while let (Some((_, name, _)), Some((_, other, _))) = (named.peek(), others.peek()) {
        let other_first = other.zip(*name).is_some_and(|(other, name)| other < name);
        merged.extend(if other_first { others.next() } else { named.next() });
    }
    merged.extend(named);
    merged.extend(others);
    merged.into_iter().map(|(.., item)| item).collect()
}

fn is_directive(key: &str) -> bool {
    key == PATCH || key == RETAIN_KEYS || key.starts_with(ORDER) || key.starts_with(DELETE_FROM)
}

/// A part of the patch as it is stored: no directives, no nulls.
fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    let kept = patch.iter().filter(|(k, v)| !is_directive(k) && !v.is_null());
    kept.map(|(k, v)| (k.clone(), without_directives_value(v))).collect()
}

fn without_directives_list(patch: &[Value]) -> Vec<Value> {
    let kept = patch.iter().filter(|item| item.get(PATCH).is_none_or(|p| p != "delete"));
    kept.map(without_directives_value).collect()
}

fn without_directives_value(patch: &Value) -> Value {
    match patch {
        Value::Object(members) => Value::Object(without_directives(members)),
        Value::Array(items) => Value::Array(without_directives_list(items)),
        other => other.clone(),
    }
}
