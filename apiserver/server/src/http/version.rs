//! `/version` (api-server.md 1.1): a semantic version that kubectl and helm can compare.

use serde_json::{Value, json};

/// The answer. 1.34 is the Kubernetes whose behaviour this server follows.
pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": "34",
        "emulationMajor": "1", "emulationMinor": "34",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "33",
        "gitVersion": concat!("v1.34.1+fairgate.", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
