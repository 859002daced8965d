//! The faults that were injected while `faults.json` was recorded: such answers are no server's.

use serde_json::Value;

/// Knows which requests it answered.
pub struct Injector {
    /// Rule, and how many answers it still gives; negative: without end.
    rules: Vec<(Value, i64)>,
}

impl Injector {
    /// Of the `injected` of an entry.
    pub fn new(rules: &Value) -> Self {
        let rules = rules.as_array().into_iter().flatten();
        Self { rules: rules.map(|rule| (rule.clone(), rule["count"].as_i64().unwrap())).collect() }
    }

    /// Whether it answered this request.
    pub fn answers(&mut self, request: &Value) -> bool {
        let line = format!("{} {}", request["method"].as_str().unwrap(), request["path"].as_str().unwrap());
        let has = |header: &str, rule: &Value| {
            let Some(wanted) = rule.as_str() else { return true };
            request["headers"][header].as_str().unwrap_or_default().contains(wanted)
        };
        for (rule, left) in &mut self.rules {
            let applies = line.contains(rule["match"].as_str().unwrap())
                && has("Accept", &rule["accept"])
                && has("Content-Type", &rule["contenttype"]);
            if applies && *left != 0 {
                *left -= 1;
                assert_eq!(rule["code"], request["status"], "{line}");
                return true;
            }
        }
        false
    }
}
