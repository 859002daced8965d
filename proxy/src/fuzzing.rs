//! Entrances for fuzz targets; there with the feature `fuzzing` only.

use crate::framing::Framing;
pub use crate::upstream::{Read, answer};

/// Reads bytes of a client, so many at a time: whether they are ambiguous, and whether a head is unfinished.
pub fn request(bytes: &[u8], step: usize) -> (bool, bool) {
    let mut framing = Framing::new();
    bytes.chunks(step).for_each(|part| framing.scan(part));
    (framing.is_ambiguous(), framing.is_in_head())
}
