//! The entries of `metadata.managedFields`: who owns which fields.
//!
//! An entry is known by manager, operation and subresource. Every kind is served in one version, so entries of another
//! one are of a version that is no longer served and are dropped, as upstream drops them.

use std::{cmp::Ordering, collections::BTreeMap, fmt};

use serde_json::{Value, json};

use super::set::FieldSet;
use crate::{age, object::text};

/// Most entries of updates; what is older is united in one.
const UPDATERS_MAX: usize = 10;
/// The manager that the oldest updates are put down to.
const ANCIENT: &str = "ancient-changes";

/// How fields came to an owner. The order is that of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// Who owns fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) operation: Operation,
    pub(super) manager: String,
    pub(super) subresource: String,
}

impl Owner {
    /// As messages call it: the version only of those that update.
    pub(super) fn describe(&self, api_version: &str) -> String {
        struct Words<'a>(&'a Owner, &'a str);
        impl fmt::Display for Words<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self(owner, api_version) = self;
                write!(f, "{:?}", owner.manager)?;
                if !owner.subresource.is_empty() {
                    write!(f, " with subresource {:?}", owner.subresource)?;
                }
                if owner.operation == Operation::Update {
                    write!(f, " using {api_version}")?;
                }
                Ok(())
            }
        }
        Words(self, api_version).to_string()
    }
}

/// What one owner has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) fields: FieldSet,
    /// RFC 3339; empty when it never changed the object.
    pub(super) time: String,
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries(pub(super) BTreeMap<Owner, Owned>);

impl Entries {
    /// Reads `managedFields`; absent is empty.
    ///
    /// # Errors
    /// What is wrong with the first entry that cannot be read.
    pub(super) fn parse(list: Option<&Value>, api_version: &str) -> Result<Self, String> {
        let mut entries = BTreeMap::new();
        for (i, entry) in list.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let wrong = |what: String| format!("managedFields[{i}]: {what}");
            let operation = match text(entry, &["operation"]) {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                other => return Err(wrong(format!("the operation is {other:?}, want Apply or Update"))),
            };
            if text(entry, &["fieldsType"]) != "FieldsV1" {
                return Err(wrong(format!("the fieldsType is {:?}, want FieldsV1", text(entry, &["fieldsType"]))));
            }
            let fields = entry.get("fieldsV1").map_or(Ok(FieldSet::default()), FieldSet::parse);
            let fields = fields.map_err(|e| wrong(e.to_string()))?;
            if text(entry, &["apiVersion"]) != api_version {
                continue;
            }
            let part = |name: &str| text(entry, &[name]).to_owned();
            let owner = Owner { operation, manager: part("manager"), subresource: part("subresource") };
            entries.insert(owner, Owned { fields, time: part("time") });
        }
        Ok(Self(entries))
    }

    /// Writes `managedFields`; `None` when nobody owns anything.
    pub(super) fn to_value(&self, api_version: &str) -> Option<Value> {
        let mut sorted: Vec<_> = self.0.iter().filter(|(_, owned)| !owned.fields.is_empty()).collect();
        sorted
            .sort_by(|a, b| (a.0.operation, seconds(a.1)).cmp(&(b.0.operation, seconds(b.1))).then_with(|| name(a, b)));
        let list: Vec<Value> = sorted.into_iter().map(|(owner, owned)| entry(owner, owned, api_version)).collect();
        (!list.is_empty()).then_some(Value::Array(list))
    }

    /// Takes fields from everybody but `spared`.
    pub(super) fn take(&mut self, fields: &FieldSet, spared: Option<&Owner>) {
        if fields.is_empty() {
            return;
        }
        for (owner, owned) in &mut self.0 {
            if Some(owner) != spared {
                owned.fields = owned.fields.difference(fields);
            }
        }
    }

    /// Forgets who owns nothing.
    pub(super) fn drop_empty(&mut self) {
        self.0.retain(|_, owned| !owned.fields.is_empty());
    }

    /// Unites the oldest updates when there are more than [`UPDATERS_MAX`].
    pub(super) fn cap(&mut self) {
        let mut updaters: Vec<Owner> =
            self.0.keys().filter(|owner| owner.operation == Operation::Update).cloned().collect();
        let surplus = updaters.len().saturating_sub(UPDATERS_MAX);
        if surplus == 0 {
            return;
        }
        updaters.sort_by_key(|owner| self.0.get(owner).map(seconds));
        let mut ancient = Owned::default();
        // One more than the surplus: the united entry is one too.
        for owner in updaters.into_iter().take(surplus + 1) {
            if let Some(owned) = self.0.remove(&owner) {
                ancient.fields.add(&owned.fields);
                ancient.time = owned.time;
            }
        }
        let owner = Owner { operation: Operation::Update, manager: ANCIENT.into(), subresource: String::new() };
        if let Some(before) = self.0.remove(&owner) {
            ancient.fields.add(&before.fields);
        }
        self.0.insert(owner, ancient);
    }
}

fn seconds(owned: &Owned) -> i64 {
    age::parse_rfc3339(&owned.time).map_or(0, |(seconds, _)| seconds)
}

fn name(a: &(&Owner, &Owned), b: &(&Owner, &Owned)) -> Ordering {
    (&a.0.manager, &a.0.subresource).cmp(&(&b.0.manager, &b.0.subresource))
}

fn entry(owner: &Owner, owned: &Owned, api_version: &str) -> Value {
    let mut entry = json!({
        "manager": owner.manager, "operation": owner.operation.as_str(), "apiVersion": api_version,
        "fieldsType": "FieldsV1", "fieldsV1": owned.fields.to_value(),
    });
    for (field, value) in [("time", &owned.time), ("subresource", &owner.subresource)] {
        if !value.is_empty() {
            crate::object::set(&mut entry, field, value.clone());
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry_of(manager: &str, operation: &str, time: &str) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {(format!("f:{manager}")): {}}}})
    }

    #[test]
    fn sorted_as_upstream_sorts_them() {
        let list = json!([
            entry_of("b", "Update", "2026-01-01T00:00:01Z"),
            entry_of("a", "Update", "2026-01-01T00:00:02Z"),
            entry_of("c", "Apply", "2026-01-01T00:00:03Z"),
            entry_of("d", "Apply", "2026-01-01T00:00:03Z"),
        ]);
        let written = Entries::parse(Some(&list), "v1").unwrap().to_value("v1").unwrap();
        let names: Vec<&str> = written.as_array().unwrap().iter().map(|e| e["manager"].as_str().unwrap()).collect();
        assert_eq!(names, ["c", "d", "b", "a"]);
        assert_eq!(written[2], list[0]);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for (field, value) in
            [("operation", json!("Delete")), ("fieldsType", json!("V2")), ("fieldsV1", json!({"x": {}}))]
        {
            let mut wrong = entry_of("a", "Apply", "");
            wrong[field] = value;
            let why = Entries::parse(Some(&json!([wrong])), "v1").unwrap_err();
            assert!(why.starts_with("managedFields[0]: "), "{why}");
        }
        let mut old = entry_of("a", "Apply", "");
        old["apiVersion"] = json!("v0");
        assert_eq!(Entries::parse(Some(&json!([old])), "v1"), Ok(Entries::default()));
    }

    /// When each union copied what had been united before, longer than anybody waits for a test.
    #[test]
    fn very_many_updates_become_one() {
        let list: Vec<Value> =
            (0..60_000).map(|n| entry_of(&format!("m{n}"), "Update", "2026-01-01T00:00:00Z")).collect();
        let mut entries = Entries::parse(Some(&json!(list)), "v1").unwrap();
        entries.cap();
        assert_eq!(entries.0.len(), UPDATERS_MAX);
        let fields: usize = entries.0.values().map(|owned| owned.fields.paths().len()).sum();
        assert_eq!(fields, 60_000);
    }

    #[test]
    fn the_oldest_updates_become_one() {
        let list: Vec<Value> =
            (0..13).map(|n| entry_of(&format!("m{n:02}"), "Update", &format!("2026-01-01T00:00:{n:02}Z"))).collect();
        let mut entries = Entries::parse(Some(&json!(list)), "v1").unwrap();
        entries.cap();
        assert_eq!(entries.0.len(), UPDATERS_MAX);
        let written = entries.to_value("v1").unwrap();
        assert_eq!((&written[0]["manager"], &written[0]["time"]), (&json!(ANCIENT), &json!("2026-01-01T00:00:03Z")));
        let united = json!({"f:data": {"f:m00": {}, "f:m01": {}, "f:m02": {}, "f:m03": {}}});
        assert_eq!(written[0]["fieldsV1"], united);
        assert_eq!(written[1]["manager"], "m04");
        // Once more: it is the oldest now and takes the next one in.
        entries.0.insert(
            Owner { operation: Operation::Update, manager: "new".into(), subresource: String::new() },
            Owned { time: "2026-01-02T00:00:00Z".into(), ..entries.0.values().next().unwrap().clone() },
        );
        entries.cap();
        assert_eq!((entries.0.len(), entries.0.keys().any(|o| o.manager == "m04")), (UPDATERS_MAX, false));
    }

    #[test]
    fn names_in_messages() {
        let owner =
            |operation, subresource: &str| Owner { operation, manager: "m".into(), subresource: subresource.into() };
        assert_eq!(owner(Operation::Apply, "").describe("v1"), "\"m\"");
        assert_eq!(owner(Operation::Update, "").describe("v1"), "\"m\" using v1");
        assert_eq!(owner(Operation::Update, "status").describe("v1"), "\"m\" with subresource \"status\" using v1");
    }
}
