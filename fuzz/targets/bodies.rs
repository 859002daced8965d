//! Bodies of creates and updates: JSON, YAML and protobuf, of every kind.
#![no_main]
#![allow(missing_docs, clippy::indexing_slicing, reason = "a fuzz target may panic")]

use apiserver_machinery::{builtin, decode, negotiate::BodyFormat, options::FieldValidation};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (kind, format, bytes) = input;
    let all = builtin::all();
    let resource = &all[usize::from(kind) % all.len()];
    let format = [BodyFormat::Json, BodyFormat::Yaml, BodyFormat::Protobuf][usize::from(format) % 3];
    let _ = decode::delete_options(format, bytes);
    let Ok(decoded) = decode::body(resource, format, bytes) else { return };
    let Ok((object, _)) = decoded.validated(resource, FieldValidation::Ignore) else { return };
    let again = decode::patched(resource, object.clone()).expect("what has been decoded is an object of its kind");
    assert_eq!(again.object, object, "one form is final");
});
