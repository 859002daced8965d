//! Who manages which fields: `metadata.managedFields`, kept up on every write, and server-side apply (api-server.md 2.9,
//! structured-merge-diff v6).
//!
//! # Invariants
//! * An update never conflicts: it takes the fields that it changes from whoever had them.
//! * An apply changes fields of others only when it is forced, and removes only what its manager had and nobody else
//!   has.
//! * A write that changes nothing moves no time, so that it can be seen to be none.
//!
//! Costs are a few passes over the object and over the sets of all managers.

mod apply;
mod entries;
mod set;
mod typed;

use serde_json::{Map, Value, json};

pub(crate) use self::apply::describe_kind;
pub use self::{
    apply::{Applied, apply},
    set::{FieldSet, FieldSetError},
};
use self::{
    entries::{Entries, Operation, Owner},
    set::Step,
    typed::{Comparison, Kind},
};
use crate::{age, object, resource::Resource};

/// Who writes, through what, and when.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The field manager. Empty is `unknown`.
    pub manager: &'a str,
    /// The subresource; empty for the object itself.
    pub subresource: &'a str,
    /// The present time in Unix seconds.
    pub now: i64,
}

impl Writer<'_> {
    fn owner(&self, operation: Operation) -> Owner {
        let manager = if self.manager.is_empty() { "unknown" } else { self.manager };
        Owner { operation, manager: manager.to_owned(), subresource: self.subresource.to_owned() }
    }

    fn time(&self) -> String {
        age::rfc3339(self.now)
    }
}

/// Members of `metadata` that nobody owns.
const UNOWNED_METADATA: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// What is never owned.
fn unowned() -> FieldSet {
    let mut set = FieldSet::default();
    let metadata = Step::member("metadata");
    for member in ["apiVersion", "kind", "metadata"] {
        set.insert(&[Step::member(member)]);
    }
    UNOWNED_METADATA.iter().for_each(|name| set.insert(&[metadata.clone(), Step::member(name)]));
    set
}

/// The part of a set that can be written through a subresource: what a write there resets belongs to nobody for it.
fn writable(resource: &Resource, subresource: &str, set: &FieldSet) -> FieldSet {
    set.beginning_with(|member| match (subresource, member) {
        ("", "status") => !resource.has_subresource("status"),
        ("", "spec") => !resource.has_subresource("finalize"),
        ("", _) => true,
        ("finalize", member) => member == "spec",
        (part, member) => member == part,
    })
}

fn changes(resource: &Resource, subresource: &str, old: &Value, new: &Value) -> Comparison {
    let all = Kind::object(resource.schema).compare(old, new);
    let part = |set: &FieldSet| writable(resource, subresource, set);
    Comparison { added: part(&all.added), modified: part(&all.modified), removed: part(&all.removed) }
}

/// The object without its `managedFields`, and these.
fn split(object: &Value) -> (Value, Option<Value>) {
    let mut rest = object.clone();
    let entries = take_entries(&mut rest);
    (rest, entries)
}

/// Takes `managedFields` out of an object.
pub fn take_entries(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata").and_then(Value::as_object_mut).and_then(|m| m.remove("managedFields"))
}

fn put_entries(object: &mut Value, entries: &Entries, resource: &Resource) {
    let metadata = object::metadata_mut(object);
    match entries.to_value(&resource.api_version()) {
        Some(list) => drop(metadata.insert("managedFields".into(), list)),
        None => drop(metadata.remove("managedFields")),
    }
}

/// Whether a client asks for all entries to be forgotten: it sends an empty list, or a list of one empty entry.
fn is_reset(given: &Value) -> bool {
    given.as_array().is_some_and(|list| {
        let is_empty = |entry: &Value| entry.as_object().is_some_and(Map::is_empty);
        list.is_empty() || (list.len() == 1 && list.first().is_some_and(is_empty))
    })
}

/// The entries that an update begins with. A client may write them itself; when it does not, or wrongly, those of the
/// stored object stay: one that does not know them must not delete them.
fn before_update(resource: &Resource, stored: Option<&Value>, given: Option<&Value>, subresource: &str) -> Entries {
    let version = resource.api_version();
    let stored = || Entries::parse(stored, &version).unwrap_or_default();
    match given {
        Some(given) if subresource.is_empty() && is_reset(given) => Entries::default(),
        Some(given) if subresource.is_empty() => match Entries::parse(Some(given), &version) {
            Ok(entries) if !entries.0.is_empty() => entries,
            _ => stored(),
        },
        _ => stored(),
    }
}

/// Puts down to the writer what it changes: every write but apply. `old` is the stored object, `None` on create; `given`
/// the `managedFields` that the client sent, which `new` does not have any more.
///
/// An object that nobody manages stays so, as upstream has it: it was written before there were entries, or they were
/// reset.
pub fn track(resource: &Resource, old: Option<&Value>, new: &mut Value, given: Option<&Value>, writer: Writer<'_>) {
    take_entries(new);
    let (live, stored) = old.map_or((json!({}), None), split);
    let mut entries = before_update(resource, stored.as_ref(), given, writer.subresource);
    if old.is_none() || !entries.0.is_empty() {
        put_down(resource, &live, new, &mut entries, writer);
        entries.cap();
    }
    put_entries(new, &entries, resource);
}

/// Gives the writer all that differs between two objects.
fn put_down(resource: &Resource, old: &Value, new: &Value, entries: &mut Entries, writer: Writer<'_>) {
    let kind = Kind::object(resource.schema);
    entries.0.values_mut().for_each(|owned| owned.fields = kind.reconciled(&owned.fields));
    let changed = changes(resource, writer.subresource, old, new);
    let gained = changed.modified.union(&changed.added);
    entries.take(&gained.union(&changed.removed), None);
    let gained = gained.difference(&unowned());
    if !gained.is_empty() {
        let owned = entries.0.entry(writer.owner(Operation::Update)).or_default();
        owned.fields.add(&gained);
        owned.time = writer.time();
    }
    entries.drop_empty();
}

/// Whether two objects are the same but for the times of their entries: then there is nothing to write.
pub fn is_same(a: &Value, b: &Value) -> bool {
    let timeless = |entries: Option<Value>| {
        let mut list = entries.unwrap_or_default();
        for entry in list.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            entry.remove("time");
        }
        list
    };
    a == b || {
        let ((a, of_a), (b, of_b)) = (split(a), split(b));
        a == b && timeless(of_a) == timeless(of_b)
    }
}

#[cfg(test)]
mod tests;
