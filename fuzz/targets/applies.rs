//! Server-side apply: configurations, and what an object says of its managers.
#![no_main]
#![allow(missing_docs, clippy::indexing_slicing, reason = "a fuzz target may panic")]

use apiserver_machinery::{
    builtin, decode,
    managed::{Applied, Writer, apply, take_entries, track},
    options::FieldValidation,
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|input: (u8, &[u8], &str, bool)| {
    let (kind, config, managers, force) = input;
    let all = builtin::all();
    let resource = &all[usize::from(kind) % all.len()];
    let mut live = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": {"name": "a", "labels": {"a": "b"}},
        "data": {"k": "v"},
    });
    let given = serde_json::from_str::<Value>(managers).ok();
    if let Some(given) = given {
        live["metadata"]["managedFields"] = given;
    }
    let by = |manager| Writer { manager, subresource: "", now: 1_796_000_000 };
    let mut updated = live.clone();
    let entries = take_entries(&mut updated);
    track(resource, None, &mut updated, entries.as_ref(), by("first"));

    let Ok((config, _)) = decode::applied(resource, config, FieldValidation::Ignore) else { return };
    for live in [None, Some(&live), Some(&updated)] {
        let applied = Applied { config: config.clone(), force };
        let Ok(once) = apply(resource, live, &applied, by("second")) else { continue };
        let Ok(once) = decode::patched(resource, once) else { continue };
        let twice = apply(resource, Some(&once.object), &applied, by("second"))
            .expect("what has been applied can be applied once more");
        let twice = decode::patched(resource, twice).expect("and is an object of its kind");
        assert_eq!(twice.object, once.object, "to apply twice changes nothing more");
    }
});
