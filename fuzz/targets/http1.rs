//! What a client and a shard send over HTTP/1.1.
#![no_main]
#![allow(missing_docs, clippy::indexing_slicing, reason = "a fuzz target may panic")]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (step, is_head, bytes) = input;
    let step = usize::from(step).max(1);
    assert_eq!(
        proxy::fuzzing::answer(bytes, bytes.len().max(1), is_head),
        proxy::fuzzing::answer(bytes, step, is_head),
        "it does not matter in which parts an answer comes"
    );
    assert_eq!(
        proxy::fuzzing::request(bytes, bytes.len().max(1)),
        proxy::fuzzing::request(bytes, step),
        "nor a request"
    );
});
