//! Reading the whole log at the start: one thread reads the rows and checks them, others pack and sort them.
//!
//! Rows come in the order of revisions and leave in that of keys. Each batch is sorted by the thread that packs it, so
//! that the last sort only merges.

use std::{
    collections::VecDeque,
    path::Path,
    thread::{self, Scope, ScopedJoinHandle},
};

use rusqlite::Connection;

use super::{
    committer::Expiry,
    disk::{OpenError, explain},
    log::{self, LogError, Record},
};
use crate::{
    present::State,
    tree::{Packed, Tree},
};

/// Bounds of a batch. There are at most as many as processors, and one that is read.
const BATCH_ROWS_MAX: usize = 16_384;
const BATCH_BYTES_MAX: usize = 8 << 20;

/// A row's object, and whether the row deletes it.
type Row = (Packed, bool);

/// Reads everything and looks whether it is whole.
pub(super) fn load(path: &Path, connection: &Connection) -> Result<(State, Vec<Expiry>, u64), OpenError> {
    let damaged = |reason: String| OpenError::Damaged { path: path.into(), reason };
    let meta = log::meta(connection).map_err(|e| explain(path, e))?;
    let mut expiries = Vec::new();
    let (mut revision, mut since_compaction) = (meta.revision, 0);
    let read = thread::scope(|scope| {
        let mut packing = Packing::new(scope);
        log::visit(connection, |row| {
            let record = Record::read(row)?;
            revision = revision.max(record.revision);
            since_compaction += u64::from(record.revision > meta.compacted);
            if let (false, Some(at)) = (record.deleted, record.expires) {
                expiries.push((at, record.revision, record.key.clone()));
            }
            packing.take(record);
            Ok(())
        })?;
        Ok(packing.finish())
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
    let tree = Tree::from_sorted(latest(rows));
    Ok((State { tree, revision, compacted: meta.compacted }, expiries, meta.trimmed))
}

struct Packing<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    at_once: usize,
    running: VecDeque<ScopedJoinHandle<'scope, Vec<Row>>>,
    batch: Vec<Record>,
    bytes: usize,
    done: Vec<Row>,
}

impl<'scope, 'env> Packing<'scope, 'env> {
    fn new(scope: &'scope Scope<'scope, 'env>) -> Self {
        let at_once = thread::available_parallelism().map_or(1, |n| n.get());
        Self { scope, at_once, running: VecDeque::new(), batch: Vec::new(), bytes: 0, done: Vec::new() }
    }

    fn take(&mut self, record: Record) {
        self.bytes += record.value.len();
        self.batch.push(record);
        if self.batch.len() >= BATCH_ROWS_MAX || self.bytes >= BATCH_BYTES_MAX {
            self.start();
        }
    }

    fn start(&mut self) {
        if self.running.len() >= self.at_once {
            self.join();
        }
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        self.running.push_back(self.scope.spawn(|| pack(batch)));
    }

    /// In the order in which they were started: that of revisions.
    fn join(&mut self) {
        if let Some(oldest) = self.running.pop_front() {
            let rows = oldest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            self.done.extend(rows);
        }
    }

    fn finish(mut self) -> Vec<Row> {
        self.start();
        while !self.running.is_empty() {
            self.join();
        }
        self.done
    }
}

fn pack(batch: Vec<Record>) -> Vec<Row> {
    let pack = |record: Record| {
        let deleted = record.deleted;
        (Packed::of(&record.into_entry()), deleted)
    };
    let mut rows: Vec<Row> = batch.into_iter().map(pack).collect();
    sort(&mut rows);
    rows
}

/// Stable: of two rows of a key the later one stays the later one.
fn sort(rows: &mut [Row]) {
    rows.sort_by(|(a, _), (b, _)| a.key_bytes().cmp(b.key_bytes()));
}

/// The present entries in the order of their keys.
fn latest(mut rows: Vec<Row>) -> Vec<Packed> {
    sort(&mut rows);
    let mut entries = Vec::with_capacity(rows.len());
    let mut rows = rows.into_iter().peekable();
    while let Some((entry, deleted)) = rows.next() {
        let superseded = rows.peek().is_some_and(|(next, _)| next.key_bytes() == entry.key_bytes());
        if !superseded && !deleted {
            entries.push(entry);
        }
    }
    entries
}
