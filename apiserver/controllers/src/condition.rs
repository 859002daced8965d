//! Conditions of kcp's kinds (kcp.md 2): in the order of their types, with a severity where something is wrong, and the
//! time of the last change of anything in them.

use std::time::{SystemTime, UNIX_EPOCH};

use apiserver_machinery::{
    age,
    object::{items, map_mut, text},
};
use serde_json::{Value, json};

/// Why a condition does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) reason: &'static str,
    /// `Error`, `Warning` or `Info`.
    pub(crate) severity: &'static str,
    pub(crate) message: String,
}

/// The condition of this type, if the object has it.
pub(crate) fn find<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(object, &["status", "conditions"]).iter().find(|condition| text(condition, &["type"]) == kind)
}

/// Says that a condition holds, or why it does not.
pub(crate) fn set(object: &mut Value, kind: &str, trouble: Option<&Trouble>) {
    let new = match trouble {
        None => json!({"type": kind, "status": "True", "lastTransitionTime": now()}),
        Some(Trouble { reason, severity, message }) => json!({
            "type": kind, "status": "False", "severity": severity, "lastTransitionTime": now(),
            "reason": reason, "message": message,
        }),
    };
    let is_same = |old: &Value| ["status", "severity", "reason", "message"].iter().all(|f| old.get(f) == new.get(f));
    if !find(object, kind).is_some_and(is_same) {
        put(object, new);
    }
}

/// Puts a condition as it is in its place.
pub(crate) fn put(object: &mut Value, condition: Value) {
    let kind = text(&condition, &["type"]).to_owned();
    let mut all = items(object, &["status", "conditions"]).to_vec();
    all.retain(|old| text(old, &["type"]) != kind);
    all.push(condition);
    all.sort_by_key(|c| text(c, &["type"]).to_owned());
    if let Some(status) = map_mut(object, "status") {
        status.insert("conditions".into(), all.into());
    }
}

/// The present time as objects have it.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    age::rfc3339(i64::try_from(since.as_secs()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_last_change_and_types_are_in_order() {
        let mut object = json!({"status": {"conditions": [
            {"type": "B", "status": "True", "lastTransitionTime": "then"},
            {"type": "Mine", "status": "Unknown"},
        ]}});
        set(&mut object, "B", None);
        assert_eq!(find(&object, "B").unwrap()["lastTransitionTime"], "then");
        let trouble = Trouble { reason: "Why", severity: "Info", message: "two".into() };
        set(&mut object, "A", Some(&trouble));
        set(&mut object, "B", Some(&trouble));
        let kinds: Vec<&str> = items(&object, &["status", "conditions"]).iter().map(|c| text(c, &["type"])).collect();
        assert_eq!(kinds, ["A", "B", "Mine"]);
        let changed = find(&object, "B").unwrap();
        assert!(changed["lastTransitionTime"] != "then" && changed["severity"] == "Info", "{changed}");
        object["status"]["conditions"][0]["lastTransitionTime"] = json!("then");
        set(&mut object, "A", Some(&trouble));
        assert_eq!(find(&object, "A").unwrap()["lastTransitionTime"], "then");
        set(&mut object, "A", Some(&Trouble { message: "one".into(), ..trouble }));
        assert_ne!(find(&object, "A").unwrap()["lastTransitionTime"], "then");
    }
}
