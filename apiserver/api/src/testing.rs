//! Reading test vectors.

use serde_json::Value;

/// The whole file `tests/vectors/<name>`.
pub(crate) fn vectors(name: &str) -> Value {
    let path = format!("{}/../../tests/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The `cases` of the file.
pub(crate) fn cases(name: &str) -> Vec<Value> {
    match vectors(name)["cases"].take() {
        Value::Array(cases) if !cases.is_empty() => cases,
        _ => panic!("{name} has no cases"),
    }
}

/// A value that must be a string.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}"))
}
