//! Objects as server-side apply sees them: which parts are one value, which are maps, structs and lists with members of
//! their own (structured-merge-diff v6, by the field tables).
//!
//! A list that strategic merge replaces is one value here, one that it merges has items found by their key. What no
//! table describes is a map where it is a map, and one value otherwise. Recursion is bounded by the depth of the parsed
//! JSON (128); each walk costs one pass over both objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde_json::{Map, Value};

use super::set::{FieldSet, Step};
use crate::schema::{Field, Merge, Message, Shape, Type};

/// What is expected at a place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// One value, whatever is in it.
    Leaf,
    /// A struct. One that is `implied` is part of the object that holds it, as a Go struct that is no pointer: whether
    /// it is there is no fact of its own.
    Struct { of: &'static Message, implied: bool },
    /// A map of values of this field.
    Map(&'static Field),
    /// A list whose items are found by a key or by themselves.
    Items(&'static Field),
    /// Not described.
    Untyped,
}

/// How the values at a place are to be walked.
enum Form {
    Leaf,
    Members,
    Items(&'static Field),
}

/// What one object has and another has not.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Comparison {
    fn leaf(&mut self, path: &[Step], old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, _) => self.added.insert(path),
            (_, None) => self.removed.insert(path),
            (old, new) if old != new => self.modified.insert(path),
            _ => {}
        }
    }
}

static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

fn members(value: Option<&Value>) -> &Map<String, Value> {
    value.and_then(Value::as_object).unwrap_or(&NOTHING)
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The step to an item of a list of this field.
fn step_to(field: &Field, item: &Value) -> Step {
    match field.merge {
        Merge::ByKey(key) => Step::item(key, item.get(key).unwrap_or(&Value::Null)),
        Merge::Replace | Merge::Set => Step::value(item),
    }
}

/// The items of a list by their steps; of several with the same step the first.
fn by_step<'a>(field: &Field, list: &'a [Value]) -> BTreeMap<Step, &'a Value> {
    let mut found = BTreeMap::new();
    for item in list {
        found.entry(step_to(field, item)).or_insert(item);
    }
    found
}

impl Kind {
    /// A whole object of this type.
    pub(super) fn object(of: &'static Message) -> Self {
        Self::Struct { of, implied: true }
    }

    fn of(field: &'static Field) -> Self {
        match (field.shape, field.merge, Self::element(field)) {
            // Kinds without a protobuf form have no Go struct behind them.
            (Shape::One, _, Self::Struct { of, .. }) => {
                Self::Struct { of, implied: !field.pointer && field.number != 0 }
            }
            (Shape::One, _, one) => one,
            (Shape::Map, _, _) => Self::Map(field),
            (Shape::List, Merge::Replace, _) => Self::Leaf,
            (Shape::List, ..) => Self::Items(field),
        }
    }

    fn element(field: &Field) -> Self {
        match field.ty {
            Type::Message(_) if field.atomic => Self::Leaf,
            Type::Message(of) => Self::Struct { of, implied: false },
            Type::Raw => Self::Untyped,
            _ => Self::Leaf,
        }
    }

    /// The kind of a member, and whether it is a field that the table names.
    fn member(self, name: &str) -> (Self, bool) {
        match self {
            Self::Struct { of, .. } => match of.field(name) {
                Some(field) => (Self::of(field), field.name == name),
                None => (Self::Untyped, false),
            },
            Self::Map(field) => (Self::element(field), false),
            _ => (Self::Untyped, false),
        }
    }

    /// The kind behind a step.
    fn behind(self, step: &Step) -> Self {
        match (step.name(), self) {
            (Some(name), _) => self.member(name).0,
            (None, Self::Items(field)) => Self::element(field),
            _ => Self::Untyped,
        }
    }

    fn is_implied(self) -> bool {
        matches!(self, Self::Struct { implied: true, .. })
    }

    /// The form that fits all of these values; those that are null fit every form.
    fn form<const N: usize>(self, values: [Option<&Value>; N]) -> Form {
        let all = |fits: fn(&Value) -> bool| values.iter().flatten().all(|v| v.is_null() || fits(v));
        let is_any = || values.iter().flatten().any(|v| !v.is_null());
        match self {
            Self::Struct { .. } | Self::Map(_) if all(Value::is_object) => Form::Members,
            Self::Untyped if is_any() && all(Value::is_object) => Form::Members,
            Self::Items(field) if all(Value::is_array) => Form::Items(field),
            _ => Form::Leaf,
        }
    }

    /// All that a configuration sets: its single values, members of maps, items of lists, and what is empty. The second
    /// says whether the value is a single one itself.
    pub(super) fn fields(self, value: &Value) -> (FieldSet, bool) {
        let mut set = FieldSet::default();
        match self.form([Some(value)]) {
            Form::Leaf => return (set, true),
            Form::Members => {
                for (name, value) in members(Some(value)) {
                    let (kind, is_declared) = self.member(name);
                    let (below, is_leaf) = kind.fields(value);
                    let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                    set.insert_below(Step::member(name), is_leaf || !is_declared || is_empty, below);
                }
            }
            Form::Items(field) => {
                for (step, item) in by_step(field, items(Some(value))) {
                    set.insert_below(step, true, Self::element(field).fields(item).0);
                }
            }
        }
        (set, false)
    }

    /// What has changed from one object to another. Absent and empty are the same where the table knows the field, since
    /// they are stored as the same: otherwise two managers could not agree on an empty map.
    pub(super) fn compare(self, old: &Value, new: &Value) -> Comparison {
        let mut found = Comparison::default();
        self.compare_at(Some(old), Some(new), &mut vec![], &mut found);
        found
    }

    fn compare_at(self, old: Option<&Value>, new: Option<&Value>, path: &mut Vec<Step>, found: &mut Comparison) {
        let mut at = |kind: Self, step: Step, old: Option<&Value>, new: Option<&Value>| {
            path.push(step);
            kind.compare_at(old, new, path, found);
            path.pop();
        };
        match self.form([old, new]) {
            Form::Leaf => return found.leaf(path, old, new),
            Form::Members => {
                let (before, after) = (members(old), members(new));
                if before.is_empty() && after.is_empty() {
                    if matches!(self, Self::Untyped) {
                        found.leaf(path, old, new);
                    }
                    return;
                }
                for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
                    at(self.member(name).0, Step::member(name), before.get(name), after.get(name));
                }
            }
            Form::Items(field) => {
                let (before, after) = (items(old), items(new));
                if before.is_empty() && after.is_empty() {
                    return;
                }
                let (before, after) = (by_step(field, before), by_step(field, after));
                for step in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
                    let (old, new) = (before.get(step).copied(), after.get(step).copied());
                    at(Self::element(field), step.clone(), old, new);
                }
            }
        }
        // What has members is itself something that came or went.
        if !self.is_implied() && (old.is_none() || new.is_none()) {
            found.leaf(path, old, new);
        }
    }

    /// `live` with all that `config` says.
    pub(super) fn merge(self, live: &Value, config: &Value) -> Value {
        match self.form([Some(live), Some(config)]) {
            Form::Leaf => config.clone(),
            Form::Members if members(Some(live)).is_empty() && members(Some(config)).is_empty() => config.clone(),
            Form::Members => {
                let mut merged = members(Some(live)).clone();
                for (name, value) in members(Some(config)) {
                    let value = match merged.get(name) {
                        Some(live) => self.member(name).0.merge(live, value),
                        None => value.clone(),
                    };
                    merged.insert(name.clone(), value);
                }
                Value::Object(merged)
            }
            Form::Items(field) => merge_items(field, items(Some(live)), items(Some(config))),
        }
    }

    /// The value without these fields; null when nothing is left of it.
    pub(super) fn without(self, value: &Value, fields: &FieldSet) -> Value {
        let rest = |step: &Step, value: &Value| match fields.below(step) {
            Some(below) => self.behind(step).without(value, below),
            None => value.clone(),
        };
        match self.form([Some(value)]) {
            Form::Leaf => value.clone(),
            Form::Members => {
                let all = members(Some(value)).iter().map(|(name, value)| (Step::member(name), name, value));
                let kept: Map<String, Value> = all
                    .filter(|(step, ..)| !fields.has(step))
                    .map(|(step, name, value)| (name.clone(), rest(&step, value)))
                    .collect();
                if kept.is_empty() { Value::Null } else { Value::Object(kept) }
            }
            Form::Items(field) => {
                let all = items(Some(value)).iter().map(|item| (step_to(field, item), item));
                let kept: Vec<Value> =
                    all.filter(|(step, _)| !fields.has(step)).map(|(step, item)| rest(&step, item)).collect();
                if kept.is_empty() { Value::Null } else { Value::Array(kept) }
            }
        }
    }

    /// The set with the fields of structs that lie on the way to its members: sets leave them out.
    pub(super) fn with_structs(self, set: &FieldSet) -> FieldSet {
        let mut all = FieldSet::default();
        for (step, is_member, below) in set.steps() {
            let is_declared = step.name().is_some_and(|name| self.member(name).1);
            let on_the_way = is_declared && !below.is_empty();
            all.insert_below(step.clone(), is_member || on_the_way, self.behind(step).with_structs(below));
        }
        all
    }

    /// The set as it is by the present table: what has become one value since is owned as one.
    pub(super) fn reconciled(self, set: &FieldSet) -> FieldSet {
        let mut all = FieldSet::default();
        for (step, is_member, below) in set.steps() {
            match self.behind(step) {
                Self::Leaf => all.insert_below(step.clone(), true, FieldSet::default()),
                kind => all.insert_below(step.clone(), is_member, kind.reconciled(below)),
            }
        }
        all
    }

    /// What is wrong with the lists of a configuration: their items must be told apart.
    pub(super) fn list_faults(self, value: &Value, path: &str, faults: &mut Vec<String>) {
        match self.form([Some(value)]) {
            Form::Leaf => {}
            Form::Members => {
                for (name, value) in members(Some(value)) {
                    self.member(name).0.list_faults(value, &format!("{path}.{name}"), faults);
                }
            }
            Form::Items(field) => {
                let mut seen = BTreeSet::new();
                for (i, item) in items(Some(value)).iter().enumerate() {
                    if item.is_null() {
                        faults.push(format!("{path}: element {i}: associative list may not have a null element"));
                        continue;
                    }
                    if let Merge::ByKey(key) = field.merge
                        && item.get(key).is_none_or(Value::is_null)
                    {
                        faults.push(format!(
                            "{path}: element {i}: associative list with keys has an element that omits key field {key:?}"
                        ));
                        continue;
                    }
                    let step = step_to(field, item);
                    let place = format!("{path}{step}");
                    if !seen.insert(step) {
                        faults.push(format!("{path}: duplicate entries for key {}", place.trim_start_matches(path)));
                    }
                    Self::element(field).list_faults(item, &place, faults);
                }
            }
        }
    }
}

/// Items of the configuration in its order, those that only the live object has where they stood between them.
fn merge_items(field: &'static Field, live: &[Value], config: &[Value]) -> Value {
    let (before, wanted) = (by_step(field, live), by_step(field, config));
    let mut shared: Vec<Step> =
        config.iter().map(|item| step_to(field, item)).filter(|step| before.contains_key(step)).collect();
    shared.reverse();
    let mut rest = live.iter().peekable();
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    for item in config {
        let step = step_to(field, item);
        // Up to the live item that comes next by the order of the configuration.
        while let Some(other) = rest.next_if(|other| Some(&step_to(field, other)) != shared.last()) {
            if !wanted.contains_key(&step_to(field, other)) {
                merged.push(other.clone());
            }
        }
        merged.push(match before.get(&step) {
            Some(live) => Kind::element(field).merge(live, item),
            None => item.clone(),
        });
        if shared.last() == Some(&step) {
            shared.pop();
            rest.next();
        }
    }
    merged.extend(rest.filter(|other| !wanted.contains_key(&step_to(field, other))).cloned());
    Value::Array(merged)
}
