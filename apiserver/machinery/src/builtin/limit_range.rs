//! LimitRange (api-server.md 5.9): kept, defaulted and validated. What it limits, containers and claims, is not served.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_api::{
    field::{Error, Path},
    names,
};
use serde_json::{Value, json};

use super::{VERBS, columns};
use crate::{
    object,
    quantity::Quantity,
    resource::{Column, ErrorList, NameRule, Resource, Scope},
    schema,
};

const TYPES: [&str; 3] = ["Pod", "Container", "PersistentVolumeClaim"];

/// Those of kinds that upstream has no columns for.
const COLUMNS: &[Column] = &[
    columns::NAME,
    Column {
        name: "Created At",
        kind: "date",
        priority: 0,
        cell: |o, _| columns::text(o, &["metadata", "creationTimestamp"]),
    },
];

pub(super) const LIMIT_RANGES: Resource = Resource {
    group: "",
    version: "v1",
    plural: "limitranges",
    singular: "limitrange",
    kind: "LimitRange",
    short_names: &["limits"],
    categories: &[],
    scope: Scope::Namespaced,
    columns: COLUMNS,
    verbs: VERBS,
    subresources: &[],
    generation: false,
    create_on_update: false,
    name_rule: NameRule::Subdomain,
    schema: &schema::quota::LIMIT_RANGE,
    protobuf: true,
    selectable: &[],
    prepare,
    validate,
    immortal: &[],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &[],
};

/// Of a container's limits those that are not said follow from those that are.
fn prepare(new: &mut Value, _: Option<&Value>) {
    let limits = new.pointer_mut("/spec/limits").and_then(Value::as_array_mut);
    for item in limits.into_iter().flatten().filter(|item| item["type"] == "Container") {
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let Some(known) = item.get(from).and_then(Value::as_object).cloned() else { continue };
            let Some(members) = item.as_object_mut() else { continue };
            let to = members.entry(to).or_insert_with(|| json!({}));
            let Some(to) = to.as_object_mut() else { continue };
            for (name, quantity) in known {
                to.entry(name).or_insert(quantity);
            }
        }
    }
}

fn validate(new: &Value, _: Option<&Value>, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (at, item) in object::items(new, &["spec", "limits"]).iter().enumerate() {
        let path = Path::new(&format!("spec.limits[{at}]"));
        let kind = object::text(item, &["type"]);
        check_type(&path.child("type"), kind, errors);
        if !seen.insert(kind) {
            errors.push(Error::duplicate(&path.child("type"), kind));
        }
        check_item(&path, kind, item, errors);
    }
}

fn check_type(path: &Path, kind: &str, errors: &mut ErrorList) {
    match names::qualified_name(kind) {
        Err(wrong) => errors.extend(wrong.into_iter().map(|w| Error::invalid(path, kind, w))),
        Ok(()) if !kind.contains('/') && !TYPES.contains(&kind) => {
            errors.push(Error::invalid(path, kind, "must be a standard limit type or fully qualified"));
        }
        Ok(()) => {}
    }
}

/// The quantities of a member by resource; those that are none are complained of.
fn quantities(path: &Path, item: &Value, member: &str, errors: &mut ErrorList) -> BTreeMap<String, Quantity> {
    let mut found = BTreeMap::new();
    for (name, value) in object::entries(item, &[member]) {
        let text = value.as_str().unwrap_or_default();
        match text.parse::<Quantity>() {
            Ok(quantity) => drop(found.insert(name.clone(), quantity)),
            Err(error) => errors.push(Error::invalid(&path.child(member).key(name), text, error.to_string())),
        }
    }
    found
}

fn check_item(path: &Path, kind: &str, item: &Value, errors: &mut ErrorList) {
    let members = ["min", "max", "default", "defaultRequest", "maxLimitRequestRatio"];
    let [min, max, default, request, ratio] = members.map(|member| quantities(path, item, member, errors));
    if kind == "Pod" {
        for (member, quantities) in [("default", &default), ("defaultRequest", &request)] {
            if !quantities.is_empty() {
                errors.push(Error::forbidden(&path.child(member), "may not be specified when `type` is 'Pod'"));
            }
        }
    }
    if kind == "PersistentVolumeClaim" && !min.contains_key("storage") && !max.contains_key("storage") {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(Error::required(&path.child("limits"), why));
    }
    let all = [("min", min), ("max", max), ("default", default), ("defaultRequest", request)];
    let of = |member: &str| all.iter().find(|(name, _)| *name == member).map(|(_, quantities)| quantities);
    for (low, high, field, low_word, high_word) in ORDER {
        let (Some(lower), Some(higher)) = (of(low), of(high)) else { continue };
        for (name, low) in lower {
            let Some(high) = higher.get(name).filter(|high| low.exceeds(high)) else { continue };
            let why = format!("{low_word} value {low} is greater than {high_word} value {high}");
            errors.push(Error::invalid(&path.child(field).key(name), low.to_string(), why));
        }
    }
    for (name, ratio) in ratio.iter().filter(|(_, ratio)| Quantity::whole(1).exceeds(ratio)) {
        let path = path.child("maxLimitRequestRatio").key(name);
        errors.push(Error::invalid(&path, ratio.to_string(), format!("ratio {ratio} is less than 1")));
    }
}

/// What may not be above what, which of both is complained of, and the words for them.
const ORDER: [(&str, &str, &str, &str, &str); 6] = [
    ("min", "max", "min", "min", "max"),
    ("min", "defaultRequest", "defaultRequest", "min", "default request"),
    ("defaultRequest", "max", "defaultRequest", "default request", "max"),
    ("defaultRequest", "default", "defaultRequest", "default request", "default limit"),
    ("min", "default", "default", "min", "default"),
    ("default", "max", "default", "default", "max"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(limit: &Value) -> String {
        let mut errors = Vec::new();
        validate(&json!({"spec": {"limits": [limit]}}), None, &mut errors);
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_container_gets_what_follows() {
        let mut range = json!({"spec": {"limits": [
            {"type": "Container", "max": {"cpu": "2", "memory": "1Gi"}, "default": {"cpu": "1"}, "min": {"pods": "1"}},
            {"type": "Pod", "max": {"cpu": "2"}},
        ]}});
        prepare(&mut range, None);
        assert_eq!(range["spec"]["limits"][0]["default"], json!({"cpu": "1", "memory": "1Gi"}));
        assert_eq!(range["spec"]["limits"][0]["defaultRequest"], json!({"cpu": "1", "memory": "1Gi", "pods": "1"}));
        assert_eq!(range["spec"]["limits"][1], json!({"type": "Pod", "max": {"cpu": "2"}}));
    }

    #[test]
    fn what_is_wrong() {
        for (limit, want) in [
            (
                json!({"type": "Container", "min": {"cpu": "1m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}}),
                "",
            ),
            (json!({"type": "example.com/Own", "max": {"a": "1"}}), ""),
            (
                json!({"type": "Own"}),
                "spec.limits[0].type: Invalid value: \"Own\": must be a standard limit type or fully qualified",
            ),
            (
                json!({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1500m"}}),
                "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1500m",
            ),
            (
                json!({"type": "Pod", "default": {"cpu": "2"}}),
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            ),
            (
                json!({"type": "PersistentVolumeClaim", "max": {"cpu": "2"}}),
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither \
                 was provided",
            ),
            (
                json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}}),
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
            ),
            (
                json!({"type": "Container", "defaultRequest": {"cpu": "3"}, "default": {"cpu": "2"}}),
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"3\": default request value 3 is greater than default \
                 limit value 2",
            ),
        ] {
            assert_eq!(errors(&limit), want, "{limit}");
        }
        let twice = json!({"spec": {"limits": [{"type": "Pod"}, {"type": "Pod"}]}});
        let mut found = Vec::new();
        validate(&twice, None, &mut found);
        assert_eq!(found.len(), 1);
    }
}
