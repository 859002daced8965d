//! JSON, merge and strategic merge patches.
#![no_main]
#![allow(missing_docs, clippy::indexing_slicing, reason = "a fuzz target may panic")]

use apiserver_machinery::{builtin, decode, negotiate::PatchType, options::FieldValidation, patch::Patch};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (kind, form, bytes) = input;
    let all = builtin::all();
    let resource = &all[usize::from(kind) % all.len()];
    let form = [PatchType::Json, PatchType::Merge, PatchType::Strategic][usize::from(form) % 3];
    let Ok(patch) = Patch::parse(form, bytes) else { return };
    let old = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": {"name": "a", "labels": {"a": "b"}, "finalizers": ["x/y"], "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": "1"}
        ]},
        "data": {"k": "v"},
    });
    let Ok(old) = decode::patched(resource, old) else { return };
    if let Ok((new, _)) = patch.apply(resource, &old.object, FieldValidation::Ignore) {
        let again = decode::patched(resource, new.clone()).expect("what a patch has made is an object of its kind");
        assert_eq!(again.object, new, "one form is final");
    }
});
