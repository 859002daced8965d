//! Event, events.k8s.io/v1 (api-server.md 5.5): other names for the fields of the events of core/v1, and stricter rules.

use std::time::Duration;

use apiserver_api::{
    field::{Error, Path},
    names,
};
use serde_json::{Value, json};

use super::{VERBS, event, prepare_nothing};
use crate::{
    object::{self, text},
    resource::{ErrorList, NameRule, Resource, Scope, SelectableField, View},
    schema,
};

/// Fields of the same meaning: here, and in core/v1.
const NAMES: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// What an update of an event may not change: all but its series and the metadata (upstream's `ValidateEventUpdate`).
const FIXED: [&str; 14] = [
    "regarding",
    "reason",
    "note",
    "deprecatedSource",
    "deprecatedFirstTimestamp",
    "deprecatedLastTimestamp",
    "deprecatedCount",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingController",
    "reportingInstance",
    "metadata/namespace",
];
/// Longest `reportingInstance`, `action` and `reason`, and longest `note`, in bytes.
const TEXT_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

const SELECTABLE: &[SelectableField] = &[
    SelectableField { name: "regarding.kind", value: |o| text(o, &["regarding", "kind"]) },
    SelectableField { name: "regarding.namespace", value: |o| text(o, &["regarding", "namespace"]) },
    SelectableField { name: "regarding.name", value: |o| text(o, &["regarding", "name"]) },
    SelectableField { name: "regarding.uid", value: |o| text(o, &["regarding", "uid"]) },
    SelectableField { name: "regarding.apiVersion", value: |o| text(o, &["regarding", "apiVersion"]) },
    SelectableField { name: "regarding.resourceVersion", value: |o| text(o, &["regarding", "resourceVersion"]) },
    SelectableField { name: "regarding.fieldPath", value: |o| text(o, &["regarding", "fieldPath"]) },
    SelectableField { name: "reason", value: |o| text(o, &["reason"]) },
    SelectableField { name: "reportingController", value: |o| text(o, &["reportingController"]) },
    SelectableField { name: "type", value: |o| text(o, &["type"]) },
];

pub(super) const EVENTS: Resource = Resource {
    group: "events.k8s.io",
    version: "v1",
    plural: "events",
    singular: "event",
    kind: "Event",
    short_names: &["ev"],
    categories: &[],
    scope: Scope::Namespaced,
    columns: event::COLUMNS,
    verbs: VERBS,
    subresources: &[],
    generation: false,
    create_on_update: true,
    name_rule: NameRule::Subdomain,
    schema: &schema::events::EVENT,
    protobuf: true,
    selectable: SELECTABLE,
    prepare: prepare_nothing,
    validate,
    immortal: &[],
    ttl: Some(Duration::from_secs(3600)),
    is_copy: false,
    view: Some(View { group: "", version: "v1", show, store }),
    mandatory: || &[],
};

fn rename(event: &mut Value, names: impl Iterator<Item = (&'static str, &'static str)>) {
    let Some(fields) = event.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.into(), value);
        }
    }
}

/// From core/v1.
fn show(event: &mut Value) {
    rename(event, NAMES.into_iter().map(|(here, core)| (core, here)));
}

/// To core/v1.
fn store(event: &mut Value) {
    rename(event, NAMES.into_iter());
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let has_time = !text(new, &["eventTime"]).is_empty();
    if has_time {
        check_time_event(new, errors);
    } else if old.is_some() {
        // One of core/v1, of the older form.
        event::check_namespaces(new, text(new, &["regarding", "namespace"]), "regarding.namespace", errors);
    }
    match old {
        None => {
            check_series(new, errors);
            check_new(new, has_time, errors);
        }
        Some(old) => {
            if object::get(old, &["series"]) != object::get(new, &["series"]) {
                check_series(new, errors);
            }
            for field in FIXED {
                let path: Vec<&str> = field.split('/').collect();
                let now = object::get(new, &path);
                if object::get(old, &path) != now {
                    let value = now.cloned().unwrap_or_default();
                    errors.push(Error::invalid(&Path::new(&path.join(".")), value, "field is immutable"));
                }
            }
        }
    }
}

/// An event with an `eventTime` says who saw what.
fn check_time_event(new: &Value, errors: &mut ErrorList) {
    if text(new, &["regarding", "namespace"]).is_empty() && !matches!(object::namespace(new), "default" | "kube-system")
    {
        errors.push(Error::invalid(&Path::new("regarding.namespace"), "", "does not match event.namespace"));
    }
    let controller = text(new, &["reportingController"]);
    let path = Path::new("reportingController");
    if controller.is_empty() {
        errors.push(Error::required(&path, ""));
    } else if let Err(wrong) = names::qualified_name(controller) {
        errors.extend(wrong.into_iter().map(|w| Error::invalid(&path, controller, w)));
    }
    for field in ["reportingInstance", "action", "reason"] {
        match text(new, &[field]).len() {
            0 => errors.push(Error::required(&Path::new(field), "")),
            1..=TEXT_MAX => {}
            _ => errors.push(Error::invalid(&Path::new(field), "", "can have at most 128 characters")),
        }
    }
    if text(new, &["note"]).len() > NOTE_MAX {
        errors.push(Error::invalid(&Path::new("note"), "", "can have at most 1024 bytes"));
    }
}

fn check_series(new: &Value, errors: &mut ErrorList) {
    if object::get(new, &["series"]).is_none_or(Value::is_null) {
        return;
    }
    if object::get(new, &["series", "count"]).and_then(Value::as_i64).unwrap_or(0) < 2 {
        errors.push(Error::invalid(&Path::new("series.count"), "", "should be at least 2"));
    }
    if text(new, &["series", "lastObservedTime"]).is_empty() {
        errors.push(Error::required(&Path::new("series.lastObservedTime"), ""));
    }
}

/// New events have none of the older fields.
fn check_new(new: &Value, has_time: bool, errors: &mut ErrorList) {
    if !has_time {
        errors.push(Error::required(&Path::new("eventTime"), ""));
    }
    let kind = text(new, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(Error::invalid(&Path::new("type"), "", format!("has invalid value: {kind}")));
    }
    for field in ["deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount", "deprecatedSource"] {
        let given = object::get(new, &[field]).unwrap_or(&Value::Null);
        if ![json!(null), json!({}), json!(0)].contains(given) {
            errors.push(Error::invalid(&Path::new(field), "", "needs to be unset"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{self, IncludeObject, TableFormat};

    fn example() -> Value {
        json!({
            "metadata": {"name": "e", "namespace": "shop"}, "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "a.dev/c", "reportingInstance": "i", "action": "Do", "reason": "Why",
            "regarding": {"kind": "ConfigMap", "name": "m", "namespace": "shop"}, "note": "n", "type": "Normal",
        })
    }

    fn wrong(new: &Value, old: Option<&Value>) -> String {
        let mut errors = Vec::new();
        validate(new, old, &mut errors);
        errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn there_and_back() {
        let mut event = example();
        store(&mut event);
        assert_eq!((&event["involvedObject"]["name"], &event["message"]), (&json!("m"), &json!("n")));
        assert_eq!(event["reportingComponent"], "a.dev/c");
        show(&mut event);
        assert_eq!(event, example());
        let format = TableFormat { version: "v1", include: IncludeObject::None, now: 0 };
        let row = table::row(&EVENTS, format, &event);
        assert_eq!((&row["cells"][3], &row["cells"][6]), (&json!("configmap/m"), &json!("n")));
    }

    #[test]
    fn the_rules_of_new_events() {
        assert_eq!(wrong(&example(), None), "");
        for (field, value, want) in [
            ("eventTime", json!(null), "eventTime: Required value"),
            ("type", json!("Odd"), "type: Invalid value: \"\": has invalid value: Odd"),
            ("action", json!(""), "action: Required value"),
            ("reason", json!("r".repeat(129)), "reason: Invalid value: \"\": can have at most 128 characters"),
            ("deprecatedCount", json!(1), "deprecatedCount: Invalid value: \"\": needs to be unset"),
            ("regarding", json!({}), "regarding.namespace: Invalid value: \"\": does not match event.namespace"),
            (
                "series",
                json!({"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}),
                "series.count: Invalid value: \"\": should be at least 2",
            ),
        ] {
            let mut event = example();
            event[field] = value;
            assert_eq!(wrong(&event, None), want);
        }
    }

    #[test]
    fn only_the_series_changes() {
        let mut event = example();
        event["series"] = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"});
        assert_eq!(wrong(&event, Some(&example())), "");
        event["note"] = json!("other");
        assert_eq!(wrong(&event, Some(&example())), "note: Invalid value: \"other\": field is immutable");
    }
}
