//! One object in little memory: key, revisions and compressed value in one allocation.
//!
//! Objects of Kubernetes are much alike: names of fields, `managedFields`, annotations. LZ4 with a dictionary of such
//! text makes what a workspace begins with six times smaller, and reads it back at about a nanosecond a byte. A kind has
//! a dictionary of its own, because LZ4 finds only the last of several like texts, and a short one is sooner gone through.
//!
//! ```text
//! key's length | key | last change | last change - creation | tags | value's length | dictionary | value, compressed if
//! that is shorter
//! ```
//! The last three are also what the embedded engine's file holds of a value, so dictionaries are part of its format: none
//! may change, and one more, at the end, needs another number of the format. etcd holds values as they are.
//!
//! Numbers are LEB128, seven bits a byte. Tags are those of the labels, see [`Tags`].

use std::{
    cell::RefCell,
    fmt,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use lz4_flex::block::{compress_into_with_dict, decompress_with_dict, get_maximum_output_size};

use crate::{KeyValue, labels::Tags};

/// What objects often contain, a line for each kind, the first for all others.
static DICTIONARIES: LazyLock<Vec<&[u8]>> =
    LazyLock::new(|| include_str!("dictionaries.txt").lines().map(str::as_bytes).collect());
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

/// What stands behind the key of a [`Packed`].
struct Parts<'a> {
    mod_revision: u64,
    create_revision: u64,
    tags: Tags<'a>,
    stored: &'a [u8],
}

thread_local! {
    /// Room for a compressed value and for an entry, kept for the next one.
    static ROOM: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// The number of the dictionary that begins most like the value; it names the same kind.
fn dictionary(value: &[u8]) -> usize {
    // `{"kind":"Secret"`
    let Some((kind, _)) = value.iter().enumerate().filter(|(_, b)| **b == b'"').nth(3) else { return 0 };
    let common = |line: &[u8]| line.iter().zip(value).take_while(|(a, b)| a == b).count();
    let alike = DICTIONARIES.iter().map(|line| common(line)).enumerate().filter(|(_, common)| *common > kind);
    alike.max_by_key(|(_, common)| *common).map_or(0, |(number, _)| number)
}

fn line(number: usize) -> &'static [u8] {
    DICTIONARIES.get(number).copied().unwrap_or_default()
}

/// The compressed value, if it is shorter. `room` is not cleared: to fill it with zeros takes as long as the rest.
fn compress<'a>(value: &[u8], dictionary: usize, room: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let most = get_maximum_output_size(value.len());
    if room.len() < most {
        room.resize(most, 0);
    }
    let length = compress_into_with_dict(value, room, line(dictionary)).ok()?;
    room.get(..length).filter(|small| small.len() < value.len())
}

impl Packed {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        Self::made(&kv.key, &kv.value, kv.create_revision, kv.mod_revision)
    }

    /// From its parts.
    pub(crate) fn made(key: &str, value: &[u8], create_revision: u64, mod_revision: u64) -> Self {
        ROOM.with_borrow_mut(|(room, entry)| {
            put_head(entry, key, (create_revision, mod_revision), value);
            put(entry, value.len() as u64);
            let dictionary = dictionary(value);
            put(entry, dictionary as u64);
            let small = if value.len() < COMPRESSED_MIN { None } else { compress(value, dictionary, room) };
            entry.extend_from_slice(small.unwrap_or(value));
            let packed = Self((&**entry).into());
            for large in [room, entry].into_iter().filter(|kept| kept.capacity() > KEPT_MAX) {
                *large = Vec::new();
            }
            packed
        })
    }

    /// The same with other revisions: in place, if they have as many digits and nobody shares it.
    pub(crate) fn at(mut self, create_revision: u64, mod_revision: u64) -> Self {
        let mut revisions = Vec::with_capacity(20);
        put_revisions(&mut revisions, create_revision, mod_revision);
        let mut rest = &*self.0;
        let key = take(&mut rest) as usize;
        let rest = rest.get(key..).unwrap_or_default();
        let mut behind = rest;
        take(&mut behind);
        take(&mut behind);
        let (start, end) = (self.0.len() - rest.len(), self.0.len() - behind.len());
        if revisions.len() == end - start
            && let Some(place) = Arc::get_mut(&mut self.0).and_then(|entry| entry.get_mut(start..end))
        {
            place.copy_from_slice(&revisions);
            return self;
        }
        let part = |range| self.0.get(range).unwrap_or_default();
        Self([part(0..start), &revisions, part(end..self.0.len())].concat().into())
    }

    /// The object. Costs about a nanosecond a byte.
    pub fn unpack(&self) -> KeyValue {
        let Parts { mod_revision, create_revision, stored, .. } = self.parts();
        let value = unpack_stored(stored).expect("it was packed here, or unpacked once when it was read");
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
        take(&mut self.parts().stored)
    }

    /// The value as it is written to a file; see [`unpack_stored`].
    pub(crate) fn stored(&self) -> &[u8] {
        self.parts().stored
    }

    /// The same object from what a file holds of it; `None` if that is damaged.
    pub(crate) fn from_stored(key: &str, stored: &[u8], create_revision: u64, mod_revision: u64) -> Option<Self> {
        let value = unpack_stored(stored)?;
        ROOM.with_borrow_mut(|(_, entry)| {
            put_head(entry, key, (create_revision, mod_revision), &value);
            entry.extend_from_slice(stored);
            Some(Self((&**entry).into()))
        })
    }

    fn parts(&self) -> Parts<'_> {
        let mut rest = &*self.0;
        let length = take(&mut rest) as usize;
        let mut rest = rest.get(length..).unwrap_or_default();
        let mod_revision = take(&mut rest);
        let create_revision = mod_revision.wrapping_sub(take(&mut rest));
        let tags = Tags::take(&mut rest);
        Parts { mod_revision, create_revision, tags, stored: rest }
    }
}

/// The value in what [`Packed::stored`] gave; `None` if it is something else.
pub(crate) fn unpack_stored(mut stored: &[u8]) -> Option<Bytes> {
    let (bytes, dictionary) = (usize::try_from(take(&mut stored)).ok()?, take(&mut stored));
    if stored.len() == bytes {
        return Some(Bytes::copy_from_slice(stored));
    }
    // No byte of LZ4 stands for more than 255.
    if bytes / 256 > stored.len() {
        return None;
    }
    let dictionary = DICTIONARIES.get(usize::try_from(dictionary).ok()?)?;
    let value = decompress_with_dict(stored, bytes, dictionary).ok()?;
    (value.len() == bytes).then(|| value.into())
}

/// What stands before the value.
fn put_head(out: &mut Vec<u8>, key: &str, (created, changed): (u64, u64), value: &[u8]) {
    out.clear();
    put(out, key.len() as u64);
    out.extend_from_slice(key.as_bytes());
    put_revisions(out, created, changed);
    Tags::write(value, out);
}

fn put_revisions(out: &mut Vec<u8>, created: u64, changed: u64) {
    put(out, changed);
    put(out, changed.wrapping_sub(created));
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
                (0..DICTIONARIES.len(), prop::collection::vec((0..DICTIONARIES.len(), any::<prop::sample::Index>()), 0..40))
                    .prop_map(|(kind, parts)| {
                        let parts = parts.into_iter().map(|(number, at)| &line(number)[at.index(line(number).len())..]);
                        let head = &line(kind)[..30];
                        [head].into_iter().chain(parts.map(|part| &part[..part.len().min(200)])).flatten().copied().collect()
                    }),
            ],
            (created, changed) in (any::<u64>(), any::<u64>()),
            before in prop_oneof![any::<(u64, u64)>(), (0..200_u64, 0..200_u64)],
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
            prop_assert_eq!(packed.unpack(), kv.clone());
            let early = Packed::made(&key, &kv.value, before.0, before.1);
            let shared = early.clone();
            prop_assert_eq!(early.at(created, changed).unpack(), kv.clone());
            prop_assert_eq!((shared.unpack().create_revision, shared.mod_revision()), before);
            prop_assert_eq!(shared.at(created, changed).unpack(), kv.clone());
            let read = Packed::from_stored(&key, packed.stored(), created, changed).unwrap();
            prop_assert_eq!((&read.0, read.unpack()), (&packed.0, kv));
        }
    }

    proptest! {
        /// What is no packed value is none, and takes no memory.
        #[test]
        fn any_bytes_are_stored_values_or_not(stored in prop::collection::vec(any::<u8>(), 0..200)) {
            let found = unpack_stored(&stored);
            prop_assert!(found.is_none_or(|value| value.len() <= 256 * (stored.len() + 1)));
        }
    }

    /// Files of format 2 hold what was compressed with them: a sum that is here stays here, at its place, and one more
    /// needs another format, so that versions before say that they do not know it.
    #[test]
    fn dictionaries_are_those_of_the_files() {
        let sums: Vec<u32> = DICTIONARIES.iter().map(|line| crc32fast::hash(line)).collect();
        let known = [
            1_331_170_261,
            1_624_671_732,
            1_996_021_475,
            3_868_720_522,
            956_582_861,
            2_080_228_046,
            923_084_850,
            2_857_868_982,
            3_324_127_777,
        ];
        assert_eq!(sums, known);
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
