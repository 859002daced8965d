//! Reading the whole log at the start: one thread reads the rows, others check and pack them, the last step puts them in
//! the order of their keys.
//!
//! Besides the packed objects there are only a few batches of rows at any time, and 32 bytes for each row until the tree
//! stands.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, VecDeque},
    path::Path,
    thread::{self, Scope, ScopedJoinHandle},
};

use rusqlite::Connection;

use super::{
    committer::Expiry,
    disk::{OpenError, explain},
    log::{self, LogError, Raw},
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

/// A row's object. It is compared with others without a look into it where that is possible: memory is slow.
struct Entry {
    /// The first bytes of the key behind its prefix.
    first: u64,
    packed: Packed,
    deleted: bool,
}

/// Rows by what their keys begin with. No prefix begins with another one, but for keys that are nothing else.
type Rows = BTreeMap<Box<str>, Vec<Entry>>;

/// Reads everything and looks whether it is whole.
pub(super) fn load(path: &Path, connection: &Connection) -> Result<(State, Vec<Expiry>, u64), OpenError> {
    let damaged = |reason: String| OpenError::Damaged { path: path.into(), reason };
    let meta = log::meta(connection).map_err(|e| explain(path, e))?;
    let mut expiries = Vec::new();
    let (mut revision, mut since_compaction) = (meta.revision, 0);
    let read = thread::scope(|scope| {
        let mut packing = Packing::new(scope);
        log::visit(connection, |row| {
            let raw = Raw::read(row)?;
            revision = revision.max(raw.revision);
            since_compaction += u64::from(raw.revision > meta.compacted);
            if let (false, Some(at)) = (raw.deleted, raw.expires) {
                expiries.push((at, raw.revision, raw.key()?.into()));
            }
            packing.take(&raw)
        })?;
        packing.finish()
    });
    let rows = read.map_err(|error| match error {
        LogError::Sqlite(error) => explain(path, error),
        LogError::Damaged(reason) => damaged(reason),
    })?;
    // Revision 1 is the empty store: it has no row. Every later one that was not compacted must be there.
    let expected = revision - meta.compacted.max(1).min(revision);
    if since_compaction != expected {
        return Err(damaged(format!("{since_compaction} changes since the last compaction instead of {expected}")));
    }
    let tree = Tree::from_sorted(rows.into_values().flat_map(latest));
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
    running: VecDeque<ScopedJoinHandle<'scope, Result<Rows, LogError>>>,
    batch: Batch,
    done: Rows,
}

impl<'scope, 'env> Packing<'scope, 'env> {
    fn new(scope: &'scope Scope<'scope, 'env>) -> Self {
        let at_once = thread::available_parallelism().map_or(1, |n| n.get());
        Self { scope, at_once, running: VecDeque::new(), batch: Batch::default(), done: Rows::new() }
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

    fn finish(mut self) -> Result<Rows, LogError> {
        self.start()?;
        while !self.running.is_empty() {
            self.join()?;
        }
        Ok(self.done)
    }
}

fn pack(Batch { bytes, rows }: Batch) -> Result<Rows, LogError> {
    let (mut packed, mut rest) = (Rows::new(), &*bytes);
    for (row, key, value) in rows {
        let (key, behind) = rest.split_at_checked(key).unwrap_or_default();
        let (value, behind) = behind.split_at_checked(value).unwrap_or_default();
        rest = behind;
        let row = Raw { key, value, ..row };
        row.check()?;
        let (key, deleted) = (row.key()?, row.deleted);
        let (prefix, behind) = split(key);
        let entry = Entry {
            first: first(behind),
            packed: Packed::made(key, value, row.create_revision, row.revision),
            deleted,
        };
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

/// The present entries of one prefix in the order of their keys.
fn latest(mut rows: Vec<Entry>) -> impl Iterator<Item = Packed> {
    let by_key = |a: &Entry, b: &Entry| match a.first.cmp(&b.first) {
        Ordering::Equal => a.packed.key_bytes().cmp(b.packed.key_bytes()),
        other => other,
    };
    rows.sort_unstable_by(|a, b| by_key(a, b).then_with(|| a.packed.mod_revision().cmp(&b.packed.mod_revision())));
    let mut rows = rows.into_iter().peekable();
    std::iter::from_fn(move || {
        loop {
            let row = rows.next()?;
            let superseded = rows.peek().is_some_and(|next| by_key(next, &row).is_eq());
            if !superseded && !row.deleted {
                return Some(row.packed);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Of any keys the last row of each, in order.
        #[test]
        fn the_latest_in_order(
            rows in prop::collection::vec((r"/[a-c!/]{0,12}|/registry/core/x/[ab]{7,10}/[ab]", any::<bool>()), 0..60),
        ) {
            let mut expected = BTreeMap::new();
            let mut batches = Rows::new();
            for (n, (key, deleted)) in rows.iter().enumerate() {
                let revision = n as u64 + 2;
                match deleted {
                    true => drop(expected.remove(key)),
                    false => drop(expected.insert(key.clone(), revision)),
                }
                let (prefix, rest) = split(key);
                let entry = Entry { first: first(rest), packed: Packed::made(key, b"{}", 2, revision), deleted: *deleted };
                batches.entry(prefix.into()).or_default().push(entry);
            }
            let found = batches.into_values().flat_map(latest).map(|p| (p.key().to_owned(), p.mod_revision()));
            prop_assert_eq!(found.collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>());
        }
    }
}
