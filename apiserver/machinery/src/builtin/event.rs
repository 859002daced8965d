//! Event, core/v1 (api-server.md 5.5).

use apiserver_api::field::{Error, Path};
use std::time::Duration;

use serde_json::{Value, json};

use super::{VERBS, columns, prepare_nothing};
use crate::{
    age,
    object::{self, text},
    resource::{Column, ErrorList, NameRule, Resource, Scope, SelectableField},
    schema,
};

pub(super) const COLUMNS: &[Column] = &[
    columns::string("Last Seen", |o, now| json!(age::age(last_seen(o), now))),
    columns::string("Type", |o, _| columns::text(o, &["type"])),
    columns::string("Reason", |o, _| columns::text(o, &["reason"])),
    columns::string("Object", |o, _| {
        let about = |field| text(o, &["involvedObject", field]);
        json!(format!("{}/{}", about("kind").to_lowercase(), about("name")))
    }),
    columns::wide("Subobject", |o, _| columns::text(o, &["involvedObject", "fieldPath"])),
    columns::wide("Source", |o, _| json!(source(o))),
    columns::string("Message", |o, _| json!(text(o, &["message"]).trim())),
    columns::wide("First Seen", |o, now| json!(age::age(first_seen(o), now))),
    columns::wide("Count", |o, _| json!(count(o))),
    columns::wide("Name", |o, _| json!(object::name(o))),
];

const SELECTABLE: &[SelectableField] = &[
    SelectableField { name: "involvedObject.kind", value: |o| text(o, &["involvedObject", "kind"]) },
    SelectableField { name: "involvedObject.namespace", value: |o| text(o, &["involvedObject", "namespace"]) },
    SelectableField { name: "involvedObject.name", value: |o| text(o, &["involvedObject", "name"]) },
    SelectableField { name: "involvedObject.uid", value: |o| text(o, &["involvedObject", "uid"]) },
    SelectableField { name: "involvedObject.apiVersion", value: |o| text(o, &["involvedObject", "apiVersion"]) },
    SelectableField {
        name: "involvedObject.resourceVersion",
        value: |o| text(o, &["involvedObject", "resourceVersion"]),
    },
    SelectableField { name: "involvedObject.fieldPath", value: |o| text(o, &["involvedObject", "fieldPath"]) },
    SelectableField { name: "reason", value: |o| text(o, &["reason"]) },
    SelectableField { name: "reportingComponent", value: |o| text(o, &["reportingComponent"]) },
    SelectableField {
        name: "source",
        value: |o| first_of(text(o, &["source", "component"]), text(o, &["reportingComponent"])),
    },
    SelectableField { name: "type", value: |o| text(o, &["type"]) },
];

pub(super) const EVENTS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "events",
    singular: "event",
    kind: "Event",
    short_names: &["ev"],
    categories: &[],
    scope: Scope::Namespaced,
    columns: COLUMNS,
    verbs: VERBS,
    subresources: &[],
    generation: false,
    create_on_update: true,
    name_rule: NameRule::Subdomain,
    schema: &schema::core::EVENT,
    protobuf: true,
    selectable: SELECTABLE,
    prepare: prepare_nothing,
    validate,
    immortal: &[],
    ttl: Some(Duration::from_secs(3600)),
    is_copy: false,
    view: None,
    mandatory: || &[],
};

fn first_of<'a>(a: &'a str, b: &'a str) -> &'a str {
    if a.is_empty() { b } else { a }
}

fn first_seen(o: &Value) -> &str {
    first_of(text(o, &["firstTimestamp"]), text(o, &["eventTime"]))
}

fn last_seen(o: &Value) -> &str {
    let single = first_of(text(o, &["lastTimestamp"]), first_seen(o));
    first_of(text(o, &["series", "lastObservedTime"]), single)
}

fn count(o: &Value) -> i64 {
    let number = |path: &[&str]| object::get(o, path).and_then(Value::as_i64).filter(|n| *n != 0);
    number(&["series", "count"]).or_else(|| number(&["count"])).unwrap_or(1)
}

fn source(o: &Value) -> String {
    let component = first_of(text(o, &["source", "component"]), text(o, &["reportingComponent"]));
    let host = first_of(text(o, &["source", "host"]), text(o, &["reportingInstance"]));
    if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") }
}

fn validate(new: &Value, _: Option<&Value>, errors: &mut ErrorList) {
    check_namespaces(new, text(new, &["involvedObject", "namespace"]), "involvedObject.namespace", errors);
}

/// An event lies in the namespace of what it is `about`, a field by this name.
pub(super) fn check_namespaces(new: &Value, about: &str, field: &str, errors: &mut ErrorList) {
    let own = object::namespace(new);
    // Events about cluster-scoped objects live in `default`.
    let fits = if about.is_empty() { own == "default" || own == "kube-system" } else { about == own };
    if !fits {
        errors.push(Error::invalid(&Path::new(field), json!(about), "does not match event.namespace"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(o: &Value, now: i64) -> Vec<Value> {
        COLUMNS.iter().map(|c| (c.cell)(o, now)).collect()
    }

    #[test]
    fn cells_of_a_series() {
        let event = json!({
            "metadata": {"name": "e"}, "type": "Normal", "reason": "R", "message": " m\n",
            "involvedObject": {"kind": "ConfigMap", "name": "c", "fieldPath": "f"},
            "eventTime": "1970-01-01T00:00:00.000000Z", "reportingComponent": "ctl", "reportingInstance": "h",
            "series": {"count": 3, "lastObservedTime": "1970-01-01T00:01:00.000000Z"},
        });
        assert_eq!(
            Value::from(cells(&event, 100)),
            json!(["40s", "Normal", "R", "configmap/c", "f", "ctl, h", "m", "100s", 3, "e"])
        );
    }

    #[test]
    fn cells_of_a_bare_event() {
        let event = json!({"metadata": {"name": "e"}, "firstTimestamp": "1970-01-01T00:00:00Z"});
        let cells = cells(&event, 5);
        assert_eq!((&cells[0], &cells[7], &cells[8]), (&json!("5s"), &json!("5s"), &json!(1)));
    }

    #[test]
    fn namespaces_agree() {
        for (own, about, wrong) in [("a", "a", 0), ("a", "b", 1), ("a", "", 1), ("default", "", 0)] {
            let mut errors = Vec::new();
            let event = json!({"metadata": {"namespace": own}, "involvedObject": {"namespace": about}});
            validate(&event, None, &mut errors);
            assert_eq!(errors.len(), wrong, "{own} {about}");
        }
    }
}
