//! gateway.yaml and fairness.yaml.
#![no_main]
#![allow(missing_docs, clippy::indexing_slicing, reason = "a fuzz target may panic")]

use std::path::Path;

use config::{FairnessConfig, GatewayConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let path = Path::new("file.yaml");
    let errors = [
        GatewayConfig::parse(text, path).err(),
        GatewayConfig::parse_bundled(text, path).err(),
        FairnessConfig::parse(text, path).err(),
    ];
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().starts_with("file.yaml:"), "a fault has a place: {error}");
    }
});
