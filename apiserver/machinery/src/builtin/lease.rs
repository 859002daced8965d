//! Lease (api-server.md 5.6).

use apiserver_api::field::{Error, Path};
use serde_json::{Value, json};

use super::{VERBS, columns, prepare_nothing};
use crate::{
    object,
    resource::{Column, ErrorList, NameRule, Resource, Scope},
    schema,
};

const COLUMNS: &[Column] =
    &[columns::NAME, columns::string("Holder", |o, _| columns::text(o, &["spec", "holderIdentity"])), columns::AGE];

pub(super) const LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    singular: "lease",
    kind: "Lease",
    short_names: &[],
    categories: &[],
    scope: Scope::Namespaced,
    columns: COLUMNS,
    verbs: VERBS,
    subresources: &[],
    generation: false,
    create_on_update: true,
    name_rule: NameRule::Subdomain,
    schema: &schema::coordination::LEASE,
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

fn validate(new: &Value, _: Option<&Value>, errors: &mut ErrorList) {
    let number = |field| object::get(new, &["spec", field]).and_then(Value::as_i64);
    if let Some(seconds) = number("leaseDurationSeconds").filter(|n| *n <= 0) {
        errors.push(Error::invalid(&Path::new("spec.leaseDurationSeconds"), json!(seconds), "must be greater than 0"));
    }
    if let Some(count) = number("leaseTransitions").filter(|n| *n < 0) {
        errors.push(Error::invalid(
            &Path::new("spec.leaseTransitions"),
            json!(count),
            "must be greater than or equal to 0",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_transitions() {
        for (spec, wrong) in [
            (json!({}), 0),
            (json!({"leaseDurationSeconds": 1, "leaseTransitions": 0}), 0),
            (json!({"leaseDurationSeconds": 0, "leaseTransitions": -1}), 2),
        ] {
            let mut errors = Vec::new();
            validate(&json!({ "spec": spec }), None, &mut errors);
            assert_eq!(errors.len(), wrong, "{spec}");
        }
    }
}
