//! Reading the whole log at the start: one thread reads the rows, others check and pack them, the last step puts them in
//! the order of their keys.
//!
//! Rows are read from the newest on. Each names the one that it supersedes, so that of an object only its last version is
//! packed, however often it was changed since the last compaction.
//!
//! Besides the packed objects there are only a few batches of rows at any time, 32 bytes for each object until the tree
//! stands, and one number for each that was ever changed.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashSet, VecDeque},
    path::Path,
    thread::{self, Scope, ScopedJoinHandle},
};

use rusqlite::Connection;

use super::{
    committer::Expiry,
    disk::{OpenError, explain},
    log::{self, LogError, Order, Raw},
};
use crate::{
    present::State,
    tree::{Packed, Tree},
};

/// Bounds of a batch. There are at most as many as processors, and one that is read.
const BATCH_ROWS_MAX: usize = 4096;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Slashes in front of the part of a key in which keys differ early: that of `/registry/<group>/<resource>/`.
const PREFIX_SLASHES: usize = 4;

/// An object. It is compared with others without a look into it where that is possible: memory is slow.
struct Entry {
    /// The first bytes of the key behind its prefix.
    first: u64,
    packed: Packed,
}

/// Which rows are superseded: told by those that were read before, which are newer. Of what was compacted the numbers
/// stay: where that ends is told by a number without a checksum, and were it wrong, what is deleted would come back.
#[derive(Default)]
struct Superseded(HashSet<u64>);

impl Superseded {
    /// Whether a row is an object as it is now. To be asked once for each row, the newest first.
    fn is_present(&mut self, row: &Raw<'_>) -> bool {
        if row.previous != 0 {
            self.0.insert(row.previous);
        }
        !self.0.remove(&row.revision) && !row.is_deletion()
    }
}

/// Objects by what their keys begin with. No prefix begins with another one, but for keys that are nothing else.
type Objects = BTreeMap<Box<str>, Vec<Entry>>;

/// Reads everything and looks whether it is whole.
pub(super) fn load(path: &Path, connection: &Connection) -> Result<(State, Vec<Expiry>, u64), OpenError> {
    let damaged = |reason: String| OpenError::Damaged { path: path.into(), reason };
    let meta = log::meta(connection).map_err(|e| explain(path, e))?;
    if meta.trimmed > meta.compacted {
        return Err(damaged(format!("it is trimmed to {} but compacted to {}", meta.trimmed, meta.compacted)));
    }
    let mut expiries = Vec::new();
    let (mut revision, mut since_compaction) = (meta.revision, 0);
    let mut superseded = Superseded::default();
    let read = thread::scope(|scope| {
        let mut packing = Packing::new(scope);
        log::visit(connection, Order::NewestFirst, |row| {
            let raw = Raw::read(row)?;
            revision = revision.max(raw.revision);
            since_compaction += u64::from(raw.revision > meta.compacted);
            if raw.previous >= raw.revision {
                return Err(LogError::Damaged(format!("revision {} follows {}", raw.revision, raw.previous)));
            }
            if !superseded.is_present(&raw) {
                return raw.check();
            }
            if let Some(at) = raw.expires {
                expiries.push((at, raw.revision, raw.key()?.into()));
            }
            packing.take(&raw)
        })?;
        packing.finish()
    });
    let objects = read.map_err(|error| match error {
        LogError::Sqlite(error) => explain(path, error),
        LogError::Damaged(reason) => damaged(reason),
    })?;
    // Revision 1 is the empty store: it has no row. Every later one that was not compacted must be there.
    let expected = revision - meta.compacted.max(1).min(revision);
    if since_compaction != expected {
        return Err(damaged(format!("{since_compaction} changes since the last compaction instead of {expected}")));
    }
    let mut twice = None;
    let tree = Tree::from_sorted(objects.into_values().flat_map(|some| ordered(some, &mut twice)));
    if let Some((one, other)) = twice {
        return Err(damaged(format!("revisions {one} and {other} are of one key, and neither supersedes the other")));
    }
    Ok((State { tree, revision, compacted: meta.compacted }, expiries, meta.trimmed))
}

/// Rows as they were read, keys and values in one piece of memory.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Each without its key and value, and the lengths of those.
    rows: Vec<(Raw<'static>, usize, usize)>,
}

struct Packing<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    at_once: usize,
    running: VecDeque<ScopedJoinHandle<'scope, Result<Objects, LogError>>>,
    batch: Batch,
    done: Objects,
}

impl<'scope, 'env> Packing<'scope, 'env> {
    fn new(scope: &'scope Scope<'scope, 'env>) -> Self {
        let at_once = thread::available_parallelism().map_or(1, |n| n.get());
        Self { scope, at_once, running: VecDeque::new(), batch: Batch::default(), done: Objects::new() }
    }

    fn take(&mut self, raw: &Raw<'_>) -> Result<(), LogError> {
        self.batch.bytes.extend_from_slice(raw.key);
        self.batch.bytes.extend_from_slice(raw.value);
        self.batch.rows.push((Raw { key: &[], value: &[], ..*raw }, raw.key.len(), raw.value.len()));
        if self.batch.rows.len() >= BATCH_ROWS_MAX || self.batch.bytes.len() >= BATCH_BYTES_MAX {
            self.start()?;
        }
        Ok(())
    }

    fn start(&mut self) -> Result<(), LogError> {
        if self.running.len() >= self.at_once {
            self.join()?;
        }
        let batch = std::mem::take(&mut self.batch);
        self.running.push_back(self.scope.spawn(|| pack(batch)));
        Ok(())
    }

    fn join(&mut self) -> Result<(), LogError> {
        let Some(oldest) = self.running.pop_front() else { return Ok(()) };
        for (prefix, entries) in oldest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))? {
            self.done.entry(prefix).or_default().extend(entries);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Objects, LogError> {
        self.start()?;
        while !self.running.is_empty() {
            self.join()?;
        }
        Ok(self.done)
    }
}

fn pack(Batch { bytes, rows }: Batch) -> Result<Objects, LogError> {
    let (mut packed, mut rest) = (Objects::new(), &*bytes);
    for (row, key, value) in rows {
        let (key, behind) = rest.split_at_checked(key).unwrap_or_default();
        let (value, behind) = behind.split_at_checked(value).unwrap_or_default();
        rest = behind;
        let row = Raw { key, value, ..row };
        row.check()?;
        let key = row.key()?;
        let (prefix, behind) = split(key);
        let entry = Entry { first: first(behind), packed: row.pack()? };
        match packed.get_mut(prefix) {
            Some(entries) => entries.push(entry),
            None => drop(packed.insert(prefix.into(), vec![entry])),
        }
    }
    Ok(packed)
}

/// The part of a key that many have in common, and the rest.
fn split(key: &str) -> (&str, &str) {
    let end = key.match_indices('/').nth(PREFIX_SLASHES - 1).map_or(key.len(), |(at, _)| at + 1);
    key.split_at_checked(end).unwrap_or((key, ""))
}

/// In the order of the texts, as far as it goes: no key has a NUL.
fn first(text: &str) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    u64::from_be_bytes(bytes)
}

/// The objects of one prefix in the order of their keys. Tells which two have the same, if any.
fn ordered(mut entries: Vec<Entry>, twice: &mut Option<(u64, u64)>) -> impl Iterator<Item = Packed> + use<> {
    let by_key = |a: &Entry, b: &Entry| match a.first.cmp(&b.first) {
        Ordering::Equal => a.packed.key_bytes().cmp(b.packed.key_bytes()),
        other => other,
    };
    entries.sort_unstable_by(by_key);
    let same = entries.iter().zip(entries.iter().skip(1)).find(|(a, b)| by_key(a, b).is_eq());
    *twice = twice.or(same.map(|(a, b)| (a.packed.mod_revision(), b.packed.mod_revision())));
    entries.into_iter().map(|entry| entry.packed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::log::Kind, *};

    proptest! {
        /// Of any keys the last row of each, in order; whatever was trimmed.
        #[test]
        fn the_latest_in_order(
            changes in prop::collection::vec((r"/[a-c!/]{0,12}|/registry/core/x/[ab]{7,10}/[ab]", any::<bool>()), 0..60),
            trimmed in 0..64_u64,
        ) {
            let mut expected = BTreeMap::new();
            let mut rows = Vec::new();
            for (n, (key, deleted)) in changes.iter().enumerate() {
                let revision = n as u64 + 2;
                let previous = expected.get(key).copied().unwrap_or(0);
                match deleted {
                    true if previous == 0 => continue,
                    true => drop(expected.remove(key)),
                    false => drop(expected.insert(key.clone(), revision)),
                }
                rows.push((revision, previous, *deleted, key.as_str()));
            }
            let gone: HashSet<u64> =
                rows.iter().filter(|r| r.0 <= trimmed).flat_map(|r| [r.1, if r.2 { r.0 } else { 0 }]).collect();
            rows.retain(|row| !gone.contains(&row.0));
            let mut superseded = Superseded::default();
            let mut batches = Objects::new();
            for (revision, previous, deleted, key) in rows.into_iter().rev() {
                let kind = if deleted { Kind::Deletion } else { Kind::Packed };
                let (create_revision, expires, checksum, text, value) = (2, None, 0, key.as_bytes(), &b""[..]);
                let raw = Raw { revision, create_revision, previous, kind, expires, checksum, key: text, value };
                if superseded.is_present(&raw) {
                    let (prefix, rest) = split(key);
                    let entry = Entry { first: first(rest), packed: Packed::made(key, b"{}", 2, revision) };
                    batches.entry(prefix.into()).or_default().push(entry);
                }
            }
            let mut twice = None;
            let found = batches.into_values().flat_map(|rows| ordered(rows, &mut twice));
            let found: Vec<_> = found.map(|p| (p.key().to_owned(), p.mod_revision())).collect();
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(twice, None);
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_told() {
        let entry = |revision| Entry { first: first("a"), packed: Packed::made("/a", b"{}", 2, revision) };
        let mut twice = None;
        assert_eq!(ordered(vec![entry(5), entry(7)], &mut twice).count(), 2);
        let (one, other) = twice.unwrap();
        assert_eq!((one.min(other), one.max(other)), (5, 7));
    }
}
