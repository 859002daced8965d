//! The vectors on counting from outside (kcp.md 7.3), run through the driver under virtual time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::Rig;
use fairness::Counts;
use observers::{CountEvent, Options};
use serde_json::Value;

/// Probes with `limit=1` are another kind of source, which this release does not have.
const NOT_RUN: [&str; 3] = [
    "limit=1 probe: remaining plus returned",
    "limit=1 probe of exactly one object",
    "limit=1 probe with a continue token but no remaining count: unknown, previous value held",
];

#[tokio::test(start_paused = true)]
async fn count_observers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/kcp/count-observers.json");
    let vectors: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut skipped = Vec::new();
    let mut run = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        if case["steps"].as_array().unwrap().iter().any(|step| step.get("probe").is_some()) {
            skipped.push(name);
        } else {
            check(name, case).await;
            run += 1;
        }
    }
    assert_eq!((skipped.as_slice(), run), (NOT_RUN.as_slice(), 5));
}

async fn check(name: &str, case: &Value) {
    let mut rig = Rig::new(Options::default());
    let expect = case["expect"].as_object().unwrap();
    for cluster in expect.keys().filter(|key| !key.starts_with('_')) {
        rig.appear(cluster).await;
    }
    for step in case["steps"].as_array().unwrap() {
        if let Some(list) = step.get("list") {
            rig.connect().await;
            for object in list.as_array().unwrap() {
                rig.change(object[0].as_str().unwrap(), 1).await;
            }
            rig.item(Ok(CountEvent::Synced)).await;
        } else if let Some(event) = step.get("event") {
            let objects = match event.as_str().unwrap() {
                "ADDED" => 1,
                "DELETED" => -1,
                _ => 0,
            };
            rig.change(step["cluster"].as_str().unwrap(), objects).await;
        } else {
            rig.item(Err(step["error"].to_string().into())).await;
        }
    }
    rig.pass(Duration::from_secs(5)).await;
    let expected = |cluster: &str| expect[cluster].as_u64().unwrap();
    for cluster in expect.keys().filter(|key| !key.starts_with('_')) {
        let Counts::Fresh { objects, .. } = rig.counts(cluster) else { panic!("{name}: {cluster} is not fresh") };
        assert_eq!(objects, expected(cluster), "{name}: {cluster}");
    }
    // "Stale" is a matter of age here (OB-05): a lost watch alone changes nothing for three minutes.
    if expect.contains_key("_stale") {
        rig.pass(Duration::from_secs(180)).await;
        let stale = Counts::Stale { objects: expected("a"), mean_bytes: 100 };
        assert_eq!(rig.counts("a"), stale, "{name}");
    }
}
