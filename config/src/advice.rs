//! What would be right: a hint behind Kubernetes' own texts, which say what is wrong.

use apiserver_api::field::{Error, Kind};
use serde_json::Value;

use crate::fault::{Faults, clip_to};

/// Longest text of Kubernetes that is shown, in characters: it repeats the value at fault.
const TEXT_MAX: usize = 400;
/// Bits of a flow's hash that a hand of queues may take (kubernetes v1.34, shufflesharding).
const HASH_BITS: f64 = 60.0;

/// Kubernetes' text and what would be right.
pub(crate) fn told(error: &Error) -> String {
    let body = error.body();
    let text = clip_to(&body, TEXT_MAX);
    match right(error) {
        Some(right) => format!("{text}; want {right}"),
        None => text.into_owned(),
    }
}

/// `None` where Kubernetes' text says it already.
fn right(error: &Error) -> Option<String> {
    let field = error.field.rsplit('.').next().unwrap_or_default();
    let field = field.split('[').next().unwrap_or_default();
    let fixed = match (field, error.kind) {
        ("name", Kind::Required) if error.field == "metadata.name" => "a name: nobody generates one here",
        ("name", Kind::Required) if error.detail.is_empty() => "a name, or \"*\" for all",
        ("name", Kind::Required) => "the name of a PriorityLevelConfiguration",
        ("annotations", Kind::Forbidden) => "apiVersion v1beta3, or the object without that annotation",
        ("matchingPrecedence", _) => "2 to 10000; the lowest that matches counts",
        ("subjects", Kind::Required) => "for example [{ kind: Group, group: { name: \"*\" } }]",
        ("user" | "group" | "serviceAccount", Kind::Forbidden) => "the block of the subject's own kind only",
        ("verbs", Kind::Required) => "[\"*\"] for all",
        ("apiGroups" | "resources" | "nonResourceURLs", Kind::Required) => "[\"*\"] for all",
        ("namespaces", Kind::Required) => "[\"*\"] for all, or clusterScope: true",
        ("verbs" | "apiGroups" | "resources" | "namespaces" | "nonResourceURLs", Kind::Invalid)
            if error.value.is_array() =>
        {
            "[\"*\"] alone, or the others without it"
        }
        ("nonResourceURLs", Kind::Invalid) => "\"*\", a path (/healthz), or all below one (/healthz/*)",
        ("type", Kind::Invalid) if error.value == "Exempt" => "Limited; the level exempt is there in any case",
        ("type", Kind::Invalid) => "Exempt",
        ("limited", Kind::Forbidden) => "no limited block",
        ("exempt", Kind::Forbidden) => "no exempt block",
        ("limited", Kind::Required) => "limited: { limitResponse: { type: Reject } } at least",
        // Kubernetes' texts name the wrong type here.
        ("queuing", Kind::Forbidden) => "no queuing block, or type: Queue",
        ("queuing", Kind::Required) => "queuing: {} for the defaults, or type: Reject",
        ("nominalConcurrencyShares", Kind::Invalid) => "0 or more; 30 is usual",
        ("borrowingLimitPercent", Kind::Invalid) => "0 or more, or no such key for no limit",
        ("handSize", Kind::Invalid) => return hand_size(&error.detail),
        ("queues", Kind::Invalid) => "1 to 10000000; 64 is usual",
        ("queueLengthLimit", Kind::Invalid) => "1 or more; 50 is usual",
        _ => return None,
    };
    Some(fixed.to_owned())
}

/// The largest hand for the number of queues that the text names.
fn hand_size(detail: &str) -> Option<String> {
    let queues = detail.split_once("deckSize ").or(detail.split_once("queues ("))?.1;
    let queues: f64 = queues.split([' ', ')']).next()?.parse().ok()?;
    let max = if queues <= 1.0 { 1.0 } else { (HASH_BITS / queues.log2()).floor().min(queues) };
    Some(format!("1 to {max}"))
}

/// Where a mandatory object differs from the one that Kubernetes has fixed.
pub(crate) fn differences(found: &Value, fixed: &Value, faults: &mut Faults<'_>) {
    compare("spec", found, fixed, faults);
}

fn compare(field: &str, found: &Value, fixed: &Value, faults: &mut Faults<'_>) {
    match (found, fixed) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let side = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                // The shares of the level `exempt` are free.
                if field != "spec" || key != "exempt" {
                    compare(&format!("{field}.{key}"), &side(a), &side(b), faults);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (found, fixed)) in a.iter().zip(b).enumerate() {
                compare(&format!("{field}[{i}]"), found, fixed, faults);
            }
        }
        _ if found == fixed => {}
        _ => {
            let message = match (found, fixed) {
                (_, Value::Null) => {
                    "is fixed by Kubernetes; want no such key, or a file without this object".to_owned()
                }
                _ => format!("is fixed by Kubernetes; want {fixed}, or a file without this object"),
            };
            faults.add(field, message);
        }
    }
}
