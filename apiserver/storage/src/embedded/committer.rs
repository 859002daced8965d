//! The thread that writes: takes what waits, decides each condition against the state that includes the
//! writes before it, commits once, publishes, answers.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    disk, keeper,
    log::{self, Meta},
    shared::Shared,
};
use crate::{
    Condition, Event, Key, KeyValue, StoreError, Txn, TxnOutcome,
    present::{State, lock},
    tree::{Packed, Small},
};

#[cfg(test)]
mod tests;

/// Bounds of one commit.
const BATCH_OPS_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Changes whose predecessors are deleted with one commit while a compaction goes on.
const TRIM_STEP: u32 = 128;
/// Longest sleep towards an expiry, so that a step of the wall clock is noticed.
const EXPIRY_SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long nothing is begun here, after the disk was found to be full. What callers ask for is always tried.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// When (milliseconds since 1970) which version of which key goes.
pub(super) type Expiry = (u64, u64, Key);

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What callers ask of the thread.
pub(super) enum Op {
    Write { txn: Txn, small: Option<Small>, reply: Reply<TxnOutcome>, _budget: OwnedSemaphorePermit },
    Compact { revision: u64, reply: Option<(Reply<()>, OwnedSemaphorePermit)> },
}

pub(super) struct Committer {
    shared: Arc<Shared>,
    writer: Option<Connection>,
    trimmed: u64,
    expiries: BTreeSet<Expiry>,
    /// The disk was full: no sooner than this, expired keys are deleted and history is trimmed.
    full_until: Option<Instant>,
}

/// A commit in the making.
struct Batch {
    next: State,
    events: Vec<(Event, Option<u64>)>,
    answers: Vec<Answer>,
}

enum Answer {
    Write(Reply<TxnOutcome>, TxnOutcome),
    Compact(Reply<()>, Result<(), StoreError>),
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, writer: Option<(Connection, u64)>, expiries: Vec<Expiry>) -> Self {
        let (writer, trimmed) = writer.unzip();
        let (trimmed, expiries) = (trimmed.unwrap_or(0), expiries.into_iter().collect());
        Self { shared, writer, trimmed, expiries, full_until: None }
    }

    /// Works until the queue is closed and empty, and gives the connection back.
    pub(super) fn run(mut self) -> Option<Connection> {
        let _guard = PoisonOnPanic(self.shared.clone());
        while let Some(ops) = self.wait() {
            if let Some(reason) = self.shared.poison.get() {
                ops.into_iter().for_each(|op| op.refuse(StoreError::Poisoned(reason.clone())));
                continue;
            }
            self.commit(ops, Instant::now());
            self.hold_back();
        }
        self.writer.take()
    }

    fn wait(&self) -> Option<Vec<Op>> {
        let (mut ops, mut bytes) = (0, 0);
        self.shared.queue.take(self.alarm(Instant::now()), |op| {
            ops += 1;
            bytes += op.bytes();
            ops == 1 || (ops <= BATCH_OPS_MAX && bytes <= BATCH_BYTES_MAX)
        })
    }

    /// When to go on even if nobody asks for anything.
    fn alarm(&self, now: Instant) -> Option<Instant> {
        if self.shared.poison.get().is_some() {
            return None;
        }
        let at = if self.writer.is_some() && self.trimmed < self.shared.present.state().compacted {
            now
        } else {
            let (at, ..) = self.expiries.first()?;
            now + Duration::from_millis(at.saturating_sub(unix_ms())).min(EXPIRY_SLEEP_MAX)
        };
        Some(self.full_until.map_or(at, |until| at.max(until)))
    }

    fn commit(&mut self, ops: Vec<Op>, now: Instant) {
        let pauses = self.full_until.is_some_and(|until| now < until);
        let before = self.shared.present.state();
        let mut batch = Batch { next: State::clone(&before), events: Vec::new(), answers: Vec::new() };
        let spent = if pauses { Vec::new() } else { self.expire(&mut batch) };
        ops.into_iter().for_each(|op| batch.take(op));
        let trimmed = match self.persist(&before, &batch, pauses) {
            Ok(trimmed) => trimmed,
            // Rolled back before anything was synced: what the disk holds is known.
            Err(error) if disk::is_full(&error) => {
                if self.full_until.replace(now + FULL_PAUSE).is_none() {
                    tracing::warn!("the disk of the store is full; writes are refused until there is room");
                }
                batch.answers.into_iter().for_each(|a| a.refuse(StoreError::Full));
                return;
            }
            Err(error) => {
                self.shared.poison(format!("writing failed: {error}"));
                let reason = self.shared.poison.get().cloned().unwrap_or_default();
                batch.answers.into_iter().for_each(|a| a.refuse(StoreError::Poisoned(reason.clone())));
                return;
            }
        };
        self.trimmed = trimmed;
        for expiry in spent {
            self.expiries.remove(&expiry);
        }
        let Batch { next, events, answers } = batch;
        for (event, expires) in &events {
            if let (Event::Put { kv, .. }, Some(at)) = (event, expires) {
                self.expiries.insert((*at, kv.mod_revision, kv.key.clone()));
            }
        }
        if next.revision != before.revision || next.compacted != before.compacted {
            self.shared.present.publish(next, events.into_iter().map(|(event, _)| event).collect());
        }
        answers.into_iter().for_each(Answer::send);
    }

    /// Deletes what is due, as far as it was not changed since, and returns the entries that are done with.
    fn expire(&self, batch: &mut Batch) -> Vec<Expiry> {
        let now = unix_ms();
        let due = self.expiries.iter().take_while(|(at, ..)| *at <= now).take(BATCH_OPS_MAX);
        let due: Vec<Expiry> = due.cloned().collect();
        for (_, revision, key) in &due {
            // A conflict means that a later write took the key over: nothing to delete.
            let condition = Condition::ModRevision(*revision);
            batch.apply(Txn { key: key.clone(), condition, guard: None, value: None, ttl: None }, None);
        }
        due
    }

    /// Writes the batch and a step of the compaction in one transaction; returns how far that has come.
    fn persist(&mut self, before: &State, batch: &Batch, pauses: bool) -> rusqlite::Result<u64> {
        let next = &batch.next;
        let trimming = self.trimmed < next.compacted && !pauses;
        let Some(writer) = &mut self.writer else { return Ok(next.compacted) };
        if batch.events.is_empty() && !trimming {
            return Ok(self.trimmed);
        }
        let tx = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for (event, expires) in &batch.events {
            log::append(&tx, event, *expires)?;
        }
        let mut trimmed = self.trimmed;
        if trimming {
            // Only what was compacted before this batch: its readers were told when it was published.
            trimmed = log::trim(&tx, trimmed, before.compacted, TRIM_STEP)?;
            // The revision is written too: the row of the newest change may be a deletion that goes.
            let meta = Meta { revision: next.revision, compacted: next.compacted, trimmed };
            log::set_meta(&tx, &meta)?;
        }
        tx.commit()?;
        // Not in the pause: where a small write fits, the next one may not.
        if !pauses && self.full_until.take().is_some() {
            tracing::info!("the disk of the store has room again; writes are taken");
        }
        // An estimate until the next checkpoint says how many there are: one page more for each row.
        let bytes: usize = batch.events.iter().map(|(event, _)| event.written()).sum();
        let pages = bytes as u64 / u64::from(keeper::PAGE_BYTES) + batch.events.len() as u64;
        self.shared.wal_pages.fetch_add(pages, Ordering::Relaxed);
        self.shared.dirty.store(true, Ordering::Relaxed);
        Ok(trimmed)
    }

    /// Under sustained load the background checkpoints never reach the end of the write-ahead log, so it
    /// never starts over. Beyond its cap, writers wait while the rest is moved: little, since the
    /// background has moved most.
    fn hold_back(&mut self) {
        let Some(writer) = &self.writer else { return };
        if self.shared.wal_pages.load(Ordering::Relaxed) < u64::from(keeper::WAL_BYTES_MAX / keeper::PAGE_BYTES) {
            return;
        }
        let _one = lock(&self.shared.checkpoint);
        match disk::checkpoint(writer) {
            // The next write starts the log over.
            Ok((pages, moved)) if pages == moved => self.shared.wal_pages.store(0, Ordering::Relaxed),
            // A reader of history is in the way, for one step; the next commit tries again.
            Ok(_) => {}
            Err(error) if disk::is_full(&error) => {}
            Err(error) => self.shared.poison(format!("a checkpoint failed: {error}")),
        }
    }
}

impl Batch {
    fn take(&mut self, op: Op) {
        match op {
            Op::Write { txn, small, reply, _budget } => {
                let outcome = self.apply(txn, small.as_ref());
                self.answers.push(Answer::Write(reply, outcome));
            }
            Op::Compact { revision, reply } => {
                let current = self.next.revision;
                let mut result = Err(StoreError::Future { requested: revision, current });
                if revision <= current {
                    self.next.compacted = self.next.compacted.max(revision);
                    result = Ok(());
                }
                if let Some((reply, _budget)) = reply {
                    self.answers.push(Answer::Compact(reply, result));
                }
            }
        }
    }

    /// `small` is of the value.
    fn apply(&mut self, txn: Txn, small: Option<&Small>) -> TxnOutcome {
        let State { tree, revision, .. } = &mut self.next;
        if let Some((key, at)) = &txn.guard
            && tree.get(key).is_none_or(|entry| entry.mod_revision() != *at)
        {
            return TxnOutcome::Unguarded;
        }
        let prev = tree.get(&txn.key).map(Packed::unpack);
        let holds = match (txn.condition, &prev) {
            (Condition::Absent, None) => true,
            (Condition::ModRevision(expected), Some(prev)) => prev.mod_revision == expected,
            _ => false,
        };
        let event = match (holds, txn.value, prev) {
            (false, _, prev) => return TxnOutcome::Conflict(prev),
            (true, Some(value), prev) => {
                *revision += 1;
                let kv = KeyValue {
                    // One text for all versions of a key.
                    key: prev.as_ref().map_or(txn.key, |p| p.key.clone()),
                    // The caller's may be a small part of a large buffer.
                    value: Bytes::copy_from_slice(&value),
                    create_revision: prev.as_ref().map_or(*revision, |p| p.create_revision),
                    mod_revision: *revision,
                };
                tree.insert(match small {
                    Some(small) => Packed::with(&kv, small),
                    None => Packed::of(&kv),
                });
                Event::Put { kv, prev }
            }
            (true, None, Some(prev)) => {
                *revision += 1;
                tree.remove(&prev.key);
                Event::Delete { prev, revision: *revision }
            }
            (true, None, None) => return TxnOutcome::Conflict(None),
        };
        let ttl = txn.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        // SQLite's integers are signed.
        let expires = ttl.map(|ttl| unix_ms().saturating_add(ttl).min(i64::MAX as u64));
        self.events.push((event, expires));
        TxnOutcome::Done { revision: *revision }
    }
}

impl Op {
    fn bytes(&self) -> usize {
        match self {
            Self::Write { txn, .. } => txn.key.len() + txn.value.as_ref().map_or(0, Bytes::len),
            Self::Compact { .. } => 0,
        }
    }

    fn refuse(self, error: StoreError) {
        // A caller that has gone does not wait for the answer.
        match self {
            Self::Write { reply, .. } => drop(reply.send(Err(error))),
            Self::Compact { reply: Some((reply, _)), .. } => drop(reply.send(Err(error))),
            Self::Compact { reply: None, .. } => {}
        }
    }
}

impl Answer {
    fn send(self) {
        match self {
            Self::Write(reply, outcome) => drop(reply.send(Ok(outcome))),
            Self::Compact(reply, result) => drop(reply.send(result)),
        }
    }

    fn refuse(self, error: StoreError) {
        match self {
            Self::Write(reply, ..) => drop(reply.send(Err(error))),
            Self::Compact(reply, ..) => drop(reply.send(Err(error))),
        }
    }
}

/// Without its thread the store must not take writes that nobody would answer.
struct PoisonOnPanic(Arc<Shared>);

impl Drop for PoisonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poison("the committing thread panicked".into());
            self.0.queue.abandon();
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
