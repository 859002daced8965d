//! Reads the vectors of `tests/vectors/apf`, recorded from Kubernetes v1.34.

use serde_json::Value;

/// One file.
pub(crate) fn load(file: &str) -> Value {
    let path = format!("{}/../tests/vectors/apf/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Its list called `cases`.
pub(crate) fn cases(file: &str) -> Vec<Value> {
    load(file)["cases"].as_array().unwrap_or_else(|| panic!("{file} has no cases")).clone()
}

/// An integer field.
pub(crate) fn number(of: &Value, field: &str) -> i64 {
    of[field].as_i64().unwrap_or_else(|| panic!("no integer {field} in {of}"))
}
