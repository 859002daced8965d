//! Reads the vectors of `tests/vectors/apf`, recorded from Kubernetes v1.34.

use serde_json::Value;

use crate::Limits;

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

/// The limits in force of one level of a vector.
pub(crate) fn limits(level: &Value) -> Limits {
    let seats = |field| number(level, field) as u32;
    Limits {
        nominal: seats("nominalCL"),
        lendable: seats("lendableCL"),
        min: seats("minCL"),
        borrowing: seats("borrowingCL"),
        max: seats("maxCL"),
        max_seats: seats("maxSeats"),
    }
}

/// Plays each script of `queueset_traces.json`; `play` says of how many requests it was.
pub(crate) fn play_traces(play: impl Fn(&Value) -> usize) {
    let traces = load("queueset_traces.json");
    let scripts = traces["scripts"].as_array().unwrap_or_else(|| panic!("no scripts"));
    let requests: usize = scripts.iter().map(play).sum();
    assert_eq!((scripts.len(), requests), (44, 10_648));
}
