//! One object in little memory: key, revisions and compressed value in one allocation.
//!
//! Objects of Kubernetes are much alike: names of fields, `managedFields`, annotations. LZ4 with a dictionary of such
//! text makes what a workspace begins with five times smaller, and reads it back at about a nanosecond a byte. The
//! dictionary and this form are in memory only; files and etcd hold the values as they are.
//!
//! ```text
//! key's length | key | last change | last change - creation | value's length | tags | value, compressed if that is shorter
//! ```
//! Numbers are LEB128, seven bits a byte. Tags are those of the labels, see [`Tags`].

use std::{cell::RefCell, fmt, sync::Arc};

use bytes::Bytes;
use lz4_flex::block::{compress_into_with_dict, decompress_with_dict, get_maximum_output_size};

use crate::{KeyValue, labels::Tags};

/// What objects often contain. Any text is as correct as any other.
const DICTIONARY: &[u8] = include_bytes!("dictionary.json");
/// Shorter values are kept as they are.
const COMPRESSED_MIN: usize = 64;

/// Most bytes that a thread keeps for its next value.
const KEPT_MAX: usize = 64 << 10;

/// One stored object as it is at some revision, compressed; see [`Packed::unpack`]. A clone is one reference count: it
/// shares the memory of the store for as long as the object is not changed.
#[derive(Clone)]
pub struct Packed(Arc<[u8]>);

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key(), self.mod_revision())
    }
}

/// A value in the form in which it is kept, with its tags; made ahead of the rest, by whoever has time.
pub(crate) struct Small(Box<[u8]>);

/// What stands behind the key of a [`Packed`].
struct Parts<'a> {
    mod_revision: u64,
    create_revision: u64,
    bytes: usize,
    tags: Tags<'a>,
    value: &'a [u8],
}

thread_local! {
    /// Room for a value and for an entry, kept for the next one.
    static ROOM: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Gives `with` the form in which a value is kept, its tags in front, and room for an entry.
fn with_small<T>(value: &[u8], with: impl FnOnce(&[u8], &mut Vec<u8>) -> T) -> T {
    ROOM.with_borrow_mut(|(small, entry)| {
        small.clear();
        entry.clear();
        Tags::write(value, small);
        let tags = small.len();
        let length = if value.len() < COMPRESSED_MIN { None } else { compress(value, small) };
        small.truncate(tags + length.unwrap_or(0));
        if length.is_none() {
            small.extend_from_slice(value);
        }
        let result = with(small, entry);
        for large in [small, entry].into_iter().filter(|kept| kept.capacity() > KEPT_MAX) {
            *large = Vec::new();
        }
        result
    })
}

/// Appends the compressed value; its length, if that is less.
fn compress(value: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let before = out.len();
    out.resize(before + get_maximum_output_size(value.len()), 0);
    let length = compress_into_with_dict(value, out.get_mut(before..)?, DICTIONARY).ok()?;
    (length < value.len()).then_some(length)
}

impl Small {
    pub(crate) fn of(value: &[u8]) -> Self {
        Self(with_small(value, |small, _| small.into()))
    }
}

impl Packed {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        Self::made(&kv.key, &kv.value, kv.create_revision, kv.mod_revision)
    }

    /// `small` is of the value.
    pub(crate) fn with(kv: &KeyValue, Small(small): &Small) -> Self {
        let mut entry = Vec::with_capacity(kv.key.len() + small.len() + 24);
        Self::write(&mut entry, &kv.key, (kv.create_revision, kv.mod_revision), kv.value.len(), small)
    }

    /// From its parts.
    pub(crate) fn made(key: &str, value: &[u8], create_revision: u64, mod_revision: u64) -> Self {
        let revisions = (create_revision, mod_revision);
        with_small(value, |small, entry| Self::write(entry, key, revisions, value.len(), small))
    }

    fn write(out: &mut Vec<u8>, key: &str, (created, changed): (u64, u64), bytes: usize, small: &[u8]) -> Self {
        put(out, key.len() as u64);
        out.extend_from_slice(key.as_bytes());
        put(out, changed);
        put(out, changed.wrapping_sub(created));
        put(out, bytes as u64);
        out.extend_from_slice(small);
        Self((&**out).into())
    }

    /// The object. Costs about a nanosecond a byte.
    pub fn unpack(&self) -> KeyValue {
        let Parts { mod_revision, create_revision, bytes, value, .. } = self.parts();
        let value = match value.len() == bytes {
            true => Bytes::copy_from_slice(value),
            false => decompress_with_dict(value, bytes, DICTIONARY).expect("it was compressed here").into(),
        };
        KeyValue { key: self.key().into(), value, create_revision, mod_revision }
    }

    /// Its key.
    pub fn key(&self) -> &str {
        std::str::from_utf8(self.key_bytes()).expect("it was text")
    }

    /// The same without a look whether it is text: bytes have the order of text.
    pub(crate) fn key_bytes(&self) -> &[u8] {
        let mut rest = &*self.0;
        let length = take(&mut rest) as usize;
        rest.get(..length).unwrap_or_default()
    }

    pub(crate) fn mod_revision(&self) -> u64 {
        self.parts().mod_revision
    }

    /// Those of its labels.
    pub(crate) fn tags(&self) -> Tags<'_> {
        self.parts().tags
    }

    /// Bytes of the value.
    pub(super) fn bytes(&self) -> u64 {
        self.parts().bytes as u64
    }

    fn parts(&self) -> Parts<'_> {
        let mut rest = &*self.0;
        let length = take(&mut rest) as usize;
        let mut rest = rest.get(length..).unwrap_or_default();
        let mod_revision = take(&mut rest);
        let create_revision = mod_revision.wrapping_sub(take(&mut rest));
        let bytes = take(&mut rest) as usize;
        let tags = Tags::take(&mut rest);
        Parts { mod_revision, create_revision, bytes, tags, value: rest }
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(rest: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, behind)) = rest.split_first() {
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 || shift > 63 {
            break;
        }
    }
    number
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_back(
            key in "/[a-zé/]{0,300}",
            value in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..3000),
                prop::collection::vec(0..DICTIONARY.len() - 200, 0..40)
                    .prop_map(|at| at.into_iter().flat_map(|at| DICTIONARY[at..at + 200].to_vec()).collect()),
            ],
            (created, changed) in (any::<u64>(), any::<u64>()),
        ) {
            let kv = KeyValue {
                key: key.as_str().into(),
                value: value.into(),
                create_revision: created,
                mod_revision: changed,
            };
            let packed = Packed::of(&kv);
            prop_assert_eq!((packed.key(), packed.mod_revision()), (key.as_str(), changed));
            prop_assert_eq!(packed.bytes(), kv.value.len() as u64);
            prop_assert_eq!(packed.unpack(), kv);
        }
    }

    #[test]
    fn objects_become_small_and_noise_does_not_grow() {
        let object = r#"{"kind":"Namespace","apiVersion":"v1","metadata":{"creationTimestamp":"2031-01-02T03:04:05Z","labels":{"kubernetes.io/metadata.name":"shop"},"managedFields":[{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:kubernetes.io/metadata.name":{}}}},"manager":"kubectl-create","operation":"Update","time":"2031-01-02T03:04:05Z"}],"name":"shop","uid":"c75b3371-669f-4f69-9c24-392487a15d26"},"spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}}"#;
        let mut state = 1_u64;
        let noise = (0..1000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        let size = |value: Vec<u8>| {
            let kv = KeyValue { key: "/k".into(), value: value.into(), create_revision: 1, mod_revision: 1 };
            Packed::of(&kv).0.len()
        };
        let (small, noise) = (size(object.into()), size(noise.collect()));
        assert!(small * 5 < object.len() * 2, "{} bytes of {}", small, object.len());
        assert!(noise <= 1000 + 9, "{noise}");
    }
}
