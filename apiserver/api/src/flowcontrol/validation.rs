//! Upstream's validation of both kinds (apf.md 2.7 and 3.2). Everything that is wrong is reported.

use serde_json::Value;

use super::{
    FlowSchema, FlowSchemaSpec, LimitResponse, NonResourceRule, ObjectMeta, ObjectStatus, PRESERVE_ZERO, PolicyRules,
    PriorityLevelConfiguration, PriorityLevelConfigurationSpec, Queuing, ResourceRule, Subject, bootstrap,
};
use crate::{
    field::{Error, Path},
    names,
};

const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
const MAX_QUEUES: i32 = 10_000_000;
/// Bits of a flow's hash that may be spent on dealing a hand of queues.
const MAX_HASH_BITS: f64 = 60.0;

impl FlowSchema {
    /// Everything that is wrong with the defaulted object.
    pub fn validate(&self) -> Vec<Error> {
        let mut errors = Vec::new();
        check_metadata(&self.metadata, &mut errors);
        check_flow_schema(&self.metadata.name, &self.spec, &mut errors);
        check_status(&self.status, &mut errors);
        errors
    }
}

impl PriorityLevelConfiguration {
    /// Everything that is wrong with the defaulted object.
    pub fn validate(&self) -> Vec<Error> {
        let mut errors = Vec::new();
        check_metadata(&self.metadata, &mut errors);
        if self.metadata.annotations.contains_key(PRESERVE_ZERO) {
            let at = Path::new("metadata").child("annotations");
            errors.push(Error::forbidden(&at, format!("annotation '{PRESERVE_ZERO}' is forbidden")));
        }
        check_level(&self.metadata.name, &self.spec, &mut errors);
        check_status(&self.status, &mut errors);
        errors
    }
}

fn check_metadata(metadata: &ObjectMeta, errors: &mut Vec<Error>) {
    let at = Path::new("metadata");
    if metadata.name.is_empty() {
        errors.push(Error::required(&at.child("name"), "name or generateName is required"));
    } else {
        check_name(names::dns_subdomain(&metadata.name), &at.child("name"), &metadata.name, errors);
    }
    for (key, value) in &metadata.labels {
        check_name(names::qualified_name(key), &at.child("labels"), key, errors);
        check_name(names::label_value(value), &at.child("labels"), value, errors);
    }
    for key in metadata.annotations.keys() {
        // Upstream compares annotation keys in lower case.
        check_name(names::qualified_name(&key.to_lowercase()), &at.child("annotations"), key, errors);
    }
}

fn check_name(checked: Result<(), names::Messages>, at: &Path, value: &str, errors: &mut Vec<Error>) {
    errors.extend(checked.err().into_iter().flatten().map(|message| Error::invalid(at, value, message)));
}

fn check_status(status: &ObjectStatus, errors: &mut Vec<Error>) {
    for (i, condition) in status.conditions.iter().enumerate() {
        let at = Path::new("status").child("conditions").index(i).child("type");
        if condition.kind.is_empty() {
            errors.push(Error::required(&at, "must not be empty"));
        } else if status.conditions.iter().take(i).any(|c| c.kind == condition.kind) {
            errors.push(Error::duplicate(&at, &*condition.kind));
        }
    }
}

fn check_flow_schema(name: &str, spec: &FlowSchemaSpec, errors: &mut Vec<Error>) {
    let at = Path::new("spec");
    if bootstrap::mandatory_flow_schema(name).is_some_and(|fixed| fixed != *spec) {
        errors.push(Error::invalid(&at, json(spec), format!("spec of '{name}' must equal the fixed value")));
    }
    let precedence = at.child("matchingPrecedence");
    let wrong = match spec.matching_precedence {
        ..=0 => Some("must be a positive value"),
        1 if name != "exempt" => Some("only the schema named 'exempt' may have matchingPrecedence 1"),
        10_001.. => Some("must not be greater than 10000"),
        _ => None,
    };
    errors.extend(wrong.map(|why| Error::invalid(&precedence, spec.matching_precedence, why)));
    if let Some(method) = &spec.distinguisher_method {
        check_choice(&at.child("distinguisherMethod").child("type"), &method.kind, &["ByNamespace", "ByUser"], errors);
    }
    let level = &spec.priority_level_configuration.name;
    let reference = at.child("priorityLevelConfiguration").child("name");
    if level.is_empty() {
        errors.push(Error::required(&reference, "must reference a priority level"));
    } else {
        check_name(names::dns_subdomain(level), &reference, level, errors);
    }
    for (i, rules) in spec.rules.iter().enumerate() {
        check_rules(&at.child("rules").index(i), rules, errors);
    }
}

fn check_choice(at: &Path, value: &str, supported: &[&str], errors: &mut Vec<Error>) {
    if !supported.contains(&value) {
        errors.push(Error::not_supported(at, value, supported));
    }
}

fn check_rules(at: &Path, rules: &PolicyRules, errors: &mut Vec<Error>) {
    if rules.subjects.is_empty() {
        errors.push(Error::required(&at.child("subjects"), "subjects must contain at least one value"));
    }
    for (i, subject) in rules.subjects.iter().enumerate() {
        check_subject(&at.child("subjects").index(i), subject, errors);
    }
    if rules.resource_rules.is_empty() && rules.non_resource_rules.is_empty() {
        errors.push(Error::required(at, "at least one of resourceRules and nonResourceRules has to be non-empty"));
    }
    for (i, rule) in rules.resource_rules.iter().enumerate() {
        check_resource_rule(&at.child("resourceRules").index(i), rule, errors);
    }
    for (i, rule) in rules.non_resource_rules.iter().enumerate() {
        check_non_resource_rule(&at.child("nonResourceRules").index(i), rule, errors);
    }
}

fn check_subject(at: &Path, subject: &Subject, errors: &mut Vec<Error>) {
    let bodies = [
        ("User", "user", subject.user.is_some()),
        ("Group", "group", subject.group.is_some()),
        ("ServiceAccount", "serviceAccount", subject.service_account.is_some()),
    ];
    if !bodies.iter().any(|(kind, ..)| *kind == subject.kind) {
        errors.push(Error::not_supported(&at.child("kind"), &*subject.kind, &["Group", "ServiceAccount", "User"]));
        return;
    }
    for (kind, body, present) in bodies {
        let at = at.child(body);
        match (kind == subject.kind, present) {
            (true, false) => {
                errors.push(Error::required(&at, format!("{body} is required when subject kind is '{kind}'")))
            }
            (false, true) => {
                errors.push(Error::forbidden(&at, format!("{body} is forbidden when subject kind is not '{kind}'")))
            }
            _ => {}
        }
    }
    for (kind, body, named) in [("User", "user", &subject.user), ("Group", "group", &subject.group)] {
        if kind == subject.kind && named.as_ref().is_some_and(|n| n.name.is_empty()) {
            errors.push(Error::required(&at.child(body).child("name"), ""));
        }
    }
    let Some(account) = subject.service_account.as_ref().filter(|_| subject.kind == "ServiceAccount") else { return };
    let at = at.child("serviceAccount");
    match &*account.name {
        "" => errors.push(Error::required(&at.child("name"), "")),
        "*" => {}
        name => check_name(names::dns_subdomain(name), &at.child("name"), name, errors),
    }
    match &*account.namespace {
        "" => errors.push(Error::required(&at.child("namespace"), "must specify namespace for service account")),
        namespace => check_name(names::dns_label(namespace), &at.child("namespace"), namespace, errors),
    }
}

fn check_resource_rule(at: &Path, rule: &ResourceRule, errors: &mut Vec<Error>) {
    check_verbs(&at.child("verbs"), &rule.verbs, errors);
    let required = "resource rules must supply at least one api group";
    check_list(&at.child("apiGroups"), &rule.api_groups, required, "api groups", errors);
    let required = "resource rules must supply at least one resource";
    check_list(&at.child("resources"), &rule.resources, required, "resources", errors);
    let at = at.child("namespaces");
    if rule.namespaces.is_empty() && rule.cluster_scope {
        return;
    }
    let required = "resource rules that are not cluster scoped must supply at least one namespace";
    check_list(&at, &rule.namespaces, required, "namespaces", errors);
    for (i, namespace) in rule.namespaces.iter().enumerate().filter(|(_, n)| *n != "*") {
        let messages = names::dns_label(namespace).err().unwrap_or_default();
        errors.extend(messages.into_iter().map(|message| {
            let message = format!("each member of this list must be '*' or a DNS-1123 label; {message}");
            Error::invalid(&at.index(i), &**namespace, message)
        }));
    }
}

fn check_non_resource_rule(at: &Path, rule: &NonResourceRule, errors: &mut Vec<Error>) {
    check_verbs(&at.child("verbs"), &rule.verbs, errors);
    let at = at.child("nonResourceURLs");
    let required = "nonResourceURLs must contain at least one value";
    check_list(&at, &rule.non_resource_urls, required, "non-resource URLs", errors);
    for (i, url) in rule.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
        let why = match &**url {
            "" => "must not be empty",
            url if !url.starts_with('/') => "must start with slash",
            url if url.contains(' ') => "must not contain white-space",
            url if url.contains("//") => "must not contain double slash",
            url if url.strip_suffix("/*").unwrap_or(url).contains('*') => "wildcard can only do suffix matching",
            _ => continue,
        };
        errors.push(Error::invalid(&at.index(i), &**url, why));
    }
}

fn check_verbs(at: &Path, verbs: &[String], errors: &mut Vec<Error>) {
    check_list(at, verbs, "verbs must contain at least one value", "verbs", errors);
    if !verbs.iter().any(|v| v == "*") && !verbs.iter().all(|v| VERBS.contains(&&**v)) {
        errors.push(Error::not_supported(at, verbs, &VERBS));
    }
}

/// Not empty, and `*` only alone.
fn check_list(at: &Path, list: &[String], required: &str, what: &str, errors: &mut Vec<Error>) {
    if list.is_empty() {
        errors.push(Error::required(at, required));
    } else if list.len() > 1 && list.iter().any(|item| item == "*") {
        errors.push(Error::invalid(at, list, format!("if '*' is present, must not specify other {what}")));
    }
}

fn check_level(name: &str, spec: &PriorityLevelConfigurationSpec, errors: &mut Vec<Error>) {
    let at = Path::new("spec");
    check_mandatory_level(name, spec, &at, errors);
    if (spec.kind == "Exempt") != (name == "exempt") {
        let why = "type must be 'Exempt' if and only if name is 'exempt'";
        errors.push(Error::invalid(&at.child("type"), &*spec.kind, why));
    }
    check_choice(&at.child("type"), &spec.kind, &["Exempt", "Limited"], errors);
    if let Some(exempt) = &spec.exempt {
        let at = at.child("exempt");
        if spec.kind == "Limited" {
            errors.push(Error::forbidden(&at, "must be nil if the type is Limited"));
        }
        if spec.kind == "Exempt" {
            check_shares(&at, exempt.nominal_concurrency_shares, exempt.lendable_percent, errors);
        }
    }
    let at = at.child("limited");
    match (&*spec.kind, &spec.limited) {
        ("Exempt", Some(_)) => errors.push(Error::forbidden(&at, "must be nil if the type is not Limited")),
        ("Limited", None) => errors.push(Error::required(&at, "must not be empty when type is Limited")),
        ("Limited", Some(limited)) => {
            check_shares(&at, limited.nominal_concurrency_shares, limited.lendable_percent, errors);
            if let Some(percent) = limited.borrowing_limit_percent.filter(|p| *p < 0) {
                let at = at.child("borrowingLimitPercent");
                errors.push(Error::invalid(&at, percent, "if specified, must be a non-negative integer"));
            }
            check_limit_response(&at.child("limitResponse"), &limited.limit_response, errors);
        }
        _ => {}
    }
}

/// The mandatory levels are fixed, but for the shares of `exempt`.
fn check_mandatory_level(name: &str, spec: &PriorityLevelConfigurationSpec, at: &Path, errors: &mut Vec<Error>) {
    let Some(mut fixed) = bootstrap::mandatory_level(name) else { return };
    let except = if name == "exempt" {
        fixed.exempt.clone_from(&spec.exempt);
        " except the 'spec.exempt' field"
    } else {
        ""
    };
    if fixed != *spec {
        errors.push(Error::invalid(at, json(spec), format!("spec of '{name}'{except} must equal the fixed value")));
    }
}

fn check_shares(at: &Path, shares: Option<i32>, lendable: Option<i32>, errors: &mut Vec<Error>) {
    if let Some(shares) = shares.filter(|s| *s < 0) {
        errors.push(Error::invalid(&at.child("nominalConcurrencyShares"), shares, "must be a non-negative integer"));
    }
    if let Some(percent) = lendable.filter(|p| !(0..=100).contains(p)) {
        errors.push(Error::invalid(&at.child("lendablePercent"), percent, "must be between 0 and 100, inclusive"));
    }
}

fn check_limit_response(at: &Path, response: &LimitResponse, errors: &mut Vec<Error>) {
    check_choice(&at.child("type"), &response.kind, &["Queue", "Reject"], errors);
    let at = at.child("queuing");
    match (&*response.kind, &response.queuing) {
        // The detail is upstream's, slip included.
        ("Reject", Some(_)) => {
            errors.push(Error::forbidden(&at, "must be nil if limited.limitResponse.type is not Limited"))
        }
        ("Queue", None) => {
            errors.push(Error::required(&at, "must not be empty if limited.limitResponse.type is Limited"));
        }
        ("Queue", Some(queuing)) => check_queuing(&at, queuing, errors),
        _ => {}
    }
}

fn check_queuing(at: &Path, queuing: &Queuing, errors: &mut Vec<Error>) {
    let Queuing { queues, hand_size, queue_length_limit } = *queuing;
    if queue_length_limit <= 0 {
        errors.push(Error::invalid(&at.child("queueLengthLimit"), queue_length_limit, "must be positive"));
    }
    if queues <= 0 {
        errors.push(Error::invalid(&at.child("queues"), queues, "must be positive"));
    } else if queues > MAX_QUEUES {
        errors.push(Error::invalid(&at.child("queues"), queues, format!("must not be greater than {MAX_QUEUES}")));
    }
    let wrong = if hand_size <= 0 {
        Some("must be positive".to_owned())
    } else if hand_size > queues {
        Some(format!("should not be greater than queues ({queues})"))
    } else if (f64::from(queues).log2() * f64::from(hand_size)).ceil() > MAX_HASH_BITS {
        Some(format!(
            "required entropy bits of deckSize {queues} and handSize {hand_size} should not be greater than {MAX_HASH_BITS}"
        ))
    } else {
        None
    };
    errors.extend(wrong.map(|why| Error::invalid(&at.child("handSize"), hand_size, why)));
}

fn json(spec: &impl serde::Serialize) -> Value {
    serde_json::to_value(spec).expect("strings, numbers and lists can always be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cases, text};

    /// Go writes empty lists as `null`, and an empty condition list not at all.
    fn without_empty(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.values_mut().for_each(without_empty);
                map.retain(|_, v| !v.is_null() && v.as_array().is_none_or(|a| !a.is_empty()));
            }
            Value::Array(list) => list.iter_mut().for_each(without_empty),
            _ => {}
        }
    }

    fn decode(case: &Value) -> Option<(Value, Vec<Error>)> {
        let input = case["input"].clone();
        if case["kind"] == "FlowSchema" {
            FlowSchema::from_json(input).ok().map(|o| (json(&o), o.validate()))
        } else {
            PriorityLevelConfiguration::from_json(input).ok().map(|o| (json(&o), o.validate()))
        }
    }

    #[test]
    fn objects_are_defaulted_and_validated_as_upstream_does() {
        // Upstream leaves out the block which its own controller then misses.
        let differing = ["exempt-defaults"];
        for case in cases("apf/validation.json") {
            let id = text(&case["id"]);
            let Some((mut got, errors)) = decode(&case) else {
                assert_eq!(case["decodeError"], true, "{id}");
                continue;
            };
            assert_ne!(case["decodeError"], true, "{id}");
            let mut want = case["defaulted"].clone();
            if differing.contains(&id) {
                want["spec"]["exempt"] = serde_json::json!({"lendablePercent": 0, "nominalConcurrencyShares": 0});
            }
            without_empty(&mut got);
            without_empty(&mut want);
            assert_eq!(got, want, "{id}: defaulting");
            let mut got: Vec<_> = errors.iter().map(|e| (e.field.clone(), e.kind.reason(), e.detail.clone())).collect();
            let mut want: Vec<_> = case["errors"]
                .as_array()
                .unwrap()
                .iter()
                .map(|e| (text(&e["field"]).to_owned(), text(&e["type"]), text(&e["detail"]).to_owned()))
                .collect();
            got.sort();
            want.sort();
            assert_eq!(got, want, "{id}: errors");
        }
    }

    #[test]
    fn the_bootstrap_objects_are_upstreams() {
        let mut vectors = cases("apf/validation.json");
        vectors.retain(|case| text(&case["id"]).starts_with("bootstrap-"));
        let (schemas, levels) = (bootstrap::flow_schemas(), bootstrap::priority_levels());
        assert_eq!(vectors.len(), schemas.len() + levels.len());
        for object in schemas.iter().map(json).chain(levels.iter().map(json)) {
            assert!(vectors.iter().any(|case| case["input"] == object), "{object}");
        }
        let order: Vec<_> = schemas.iter().map(|s| (s.spec.matching_precedence, &s.metadata.name)).collect();
        assert!(order.is_sorted());
    }
}
