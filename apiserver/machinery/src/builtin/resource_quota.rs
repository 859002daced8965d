//! ResourceQuota (api-server.md 5.8). Of what can be limited only numbers of objects exist here; other names are kept,
//! as upstream keeps those of resources that nobody measures.

use apiserver_api::{
    field::{Error, Path},
    names,
};
use serde_json::Value;

use super::{VERBS, columns, prepare_nothing};
use crate::{
    object,
    quantity::Quantity,
    resource::{Column, ErrorList, NameRule, Resource, Scope},
    schema,
};

/// Names without a domain that a quota may limit, beside [`OBJECTS`].
const STANDARD: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
/// Such names that stand for numbers of objects.
const OBJECTS: [&str; 9] = [
    "resourcequotas",
    "pods",
    "services",
    "services.nodeports",
    "services.loadbalancers",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
];
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

const COLUMNS: &[Column] = &[
    columns::NAME,
    columns::string("Request", |o, _| usage(o, |name| !is_limit(name))),
    columns::string("Limit", |o, _| usage(o, is_limit)),
    columns::AGE,
];

pub(super) const RESOURCE_QUOTAS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "resourcequotas",
    singular: "resourcequota",
    kind: "ResourceQuota",
    short_names: &["quota"],
    categories: &[],
    scope: Scope::Namespaced,
    columns: COLUMNS,
    verbs: VERBS,
    subresources: &["status"],
    generation: false,
    create_on_update: false,
    name_rule: NameRule::Subdomain,
    schema: &schema::quota::RESOURCE_QUOTA,
    protobuf: true,
    selectable: &[],
    prepare: prepare_nothing,
    validate,
    immortal: &[],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &[],
};

fn is_limit(name: &str) -> bool {
    name.split('.').next() == Some("limits")
}

/// `configmaps: 3/5, secrets: 0/1` of the names that are wanted.
fn usage(quota: &Value, wanted: fn(&str) -> bool) -> Value {
    let hard = object::entries(quota, &["status", "hard"]).filter(|(name, _)| wanted(name));
    let parts: Vec<String> = hard
        .map(|(name, hard)| {
            let used = object::get(quota, &["status", "used", name]).and_then(Value::as_str).unwrap_or("0");
            format!("{name}: {used}/{}", hard.as_str().unwrap_or_default())
        })
        .collect();
    Value::from(parts.join(", "))
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    for part in [["spec", "hard"], ["status", "hard"], ["status", "used"]] {
        let path = Path::new(&part.join("."));
        for (name, quantity) in object::entries(new, &part) {
            check_name(&path.key(name), name, errors);
            check_quantity(&path.key(name), name, quantity, errors);
        }
    }
    check_scopes(new, errors);
    let scopes = |o| object::get(o, &["spec", "scopes"]).cloned().unwrap_or_default();
    if old.is_some_and(|old| scopes(old) != scopes(new)) {
        errors.push(Error::invalid(&Path::new("spec.scopes"), scopes(new), "field is immutable"));
    }
}

fn check_name(path: &Path, name: &str, errors: &mut ErrorList) {
    if let Err(wrong) = names::qualified_name(name) {
        errors.extend(wrong.into_iter().map(|w| Error::invalid(path, name, w)));
    } else if !name.contains('/') && !STANDARD.contains(&name) && !OBJECTS.contains(&name) {
        errors.push(Error::invalid(path, name, "must be a standard resource for quotas"));
    }
}

fn check_quantity(path: &Path, name: &str, value: &Value, errors: &mut ErrorList) {
    let text = value.as_str().unwrap_or_default();
    match text.parse::<Quantity>() {
        Err(error) => errors.push(Error::invalid(path, text, error.to_string())),
        Ok(quantity) => {
            if quantity.is_negative() {
                errors.push(Error::invalid(path, text, "must be greater than or equal to 0"));
            }
            if !STANDARD.contains(&name) && !quantity.is_whole() {
                errors.push(Error::invalid(path, text, "must be an integer"));
            }
        }
    }
}

/// Scopes select pods; numbers of other objects have none.
fn check_scopes(new: &Value, errors: &mut ErrorList) {
    let scopes = object::items(new, &["spec", "scopes"]);
    let selected = object::items(new, &["spec", "scopeSelector", "matchExpressions"]);
    let names = selected.iter().map(|e| ("spec.scopeSelector", object::text(e, &["scopeName"])));
    let names = scopes.iter().map(|s| ("spec.scopes", s.as_str().unwrap_or_default())).chain(names);
    let counts_objects = object::entries(new, &["spec", "hard"])
        .any(|(name, _)| name.contains('/') || (OBJECTS.contains(&name.as_str()) && name != "pods"));
    for (field, scope) in names {
        let path = Path::new(field);
        if !SCOPES.contains(&scope) {
            errors.push(Error::invalid(&path, scope, "unsupported scope"));
        } else if counts_objects {
            errors.push(Error::invalid(&path, scope, "unsupported scope applied to resource"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_be_limited() {
        for (spec, want) in [
            (json!({"hard": {"configmaps": "5", "count/leases.coordination.k8s.io": "1", "limits.cpu": "1500m"}}), ""),
            (
                json!({"hard": {"widgets": "5"}}),
                "spec.hard[widgets]: Invalid value: \"widgets\": must be a standard resource for quotas",
            ),
            (
                json!({"hard": {"secrets": "-1"}}),
                "spec.hard[secrets]: Invalid value: \"-1\": must be greater than or equal to 0",
            ),
            (
                json!({"hard": {"count/x.dev": "1500m"}}),
                "spec.hard[count/x.dev]: Invalid value: \"1500m\": must be an integer",
            ),
            (json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]}), ""),
            (
                json!({"hard": {"secrets": "1"}, "scopes": ["BestEffort"]}),
                "spec.scopes: Invalid value: \"BestEffort\": unsupported scope applied to resource",
            ),
            (json!({"scopes": ["Foo"]}), "spec.scopes: Invalid value: \"Foo\": unsupported scope"),
        ] {
            let mut errors = Vec::new();
            validate(&json!({ "spec": spec }), None, &mut errors);
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found.join("; "), want, "{spec}");
        }
        let mut errors = Vec::new();
        validate(&json!({"spec": {}}), Some(&json!({"spec": {"scopes": ["BestEffort"]}})), &mut errors);
        assert_eq!(errors.len(), 1);
    }

    #[test]
    fn the_table_says_what_is_used() {
        let quota = json!({"status": {"hard": {"configmaps": "5", "limits.cpu": "1", "secrets": "1"}, "used": {"configmaps": "3"}}});
        assert_eq!(usage(&quota, |name| !is_limit(name)), "configmaps: 3/5, secrets: 0/1");
        assert_eq!(usage(&quota, is_limit), "limits.cpu: 0/1");
    }
}
