//! The thread that writes: takes what waits, decides each condition against the state that includes the
//! writes before it, commits once, publishes, answers. Where many wait for the answer another thread does the last
//! two, while the next commit is on its way.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use rusqlite::{Connection, TransactionBehavior, hooks::Wal};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    disk, keeper,
    log::{self, Change, Meta},
    shared::Shared,
};
use crate::{
    Condition, Event, Key, KeyValue, StoreError, Txn, TxnOutcome,
    present::{State, lock},
    tree::Packed,
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

/// Answers that the committing thread gives by itself: to wake the other one takes as long.
const ANSWERS_INLINE_MAX: usize = 8;
/// Commits that may wait to be published.
const UNPUBLISHED_MAX: usize = 4;

/// When (milliseconds since 1970) which version of which key goes.
pub(super) type Expiry = (u64, u64, Key);

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What callers ask of the thread.
pub(super) enum Op {
    /// `packed` is the new value with revisions that need not be right.
    Write {
        txn: Txn,
        packed: Option<Packed>,
        reply: Reply<TxnOutcome>,
        _budget: OwnedSemaphorePermit,
    },
    Compact {
        revision: u64,
        reply: Option<(Reply<()>, OwnedSemaphorePermit)>,
    },
}

pub(super) struct Committer {
    shared: Arc<Shared>,
    /// What is durable; the published state may be some commits behind.
    state: State,
    unpublished: Unpublished,
    writer: Option<Connection>,
    /// Pages in the write-ahead log after the last commit, or fewer if it was begun anew since.
    wal_pages: Arc<AtomicU32>,
    trimmed: u64,
    /// The file has the format of an older version until the first commit of this one.
    is_older: bool,
    expiries: BTreeSet<Expiry>,
    /// The disk was full: no sooner than this, expired keys are deleted and history is trimmed.
    full_until: Option<Instant>,
}

/// A commit in the making.
struct Batch {
    next: State,
    changes: Vec<Change>,
    answers: Vec<Answer>,
}

/// A commit that is durable.
struct Done {
    /// `None` if it changed nothing.
    next: Option<State>,
    events: Vec<Event>,
    answers: Vec<Answer>,
}

/// The way to the thread that publishes.
struct Unpublished {
    /// Commits on their way.
    waiting: Arc<AtomicUsize>,
    to: mpsc::SyncSender<Done>,
}

/// The thread that publishes commits with many answers.
pub(super) struct Publisher {
    shared: Arc<Shared>,
    waiting: Arc<AtomicUsize>,
    from: mpsc::Receiver<Done>,
}

enum Answer {
    Write(Reply<TxnOutcome>, TxnOutcome),
    Compact(Reply<()>, Result<(), StoreError>),
}

impl Committer {
    /// With the one who publishes for it, until it is dropped.
    pub(super) fn new(
        shared: Arc<Shared>,
        writer: Option<(Connection, u64)>,
        expiries: Vec<Expiry>,
    ) -> (Self, Publisher) {
        let (mut writer, trimmed) = writer.unzip();
        let wal_pages = Arc::<AtomicU32>::default();
        if let Some(writer) = &mut writer {
            let pages = wal_pages.clone();
            let hook = move |_: &mut Wal, now| {
                pages.store(u32::try_from(now).unwrap_or(0), Ordering::Relaxed);
                Ok(())
            };
            if let Err(error) = writer.wal_hook(Some(hook)) {
                shared.poison(format!("the write-ahead log cannot be watched: {error}"));
            }
        }
        let is_older = writer.as_ref().is_some_and(|writer| disk::is_older(writer).unwrap_or(true));
        let (trimmed, expiries) = (trimmed.unwrap_or(0), expiries.into_iter().collect());
        let (to, from) = mpsc::sync_channel(UNPUBLISHED_MAX);
        let waiting = Arc::<AtomicUsize>::default();
        let publisher = Publisher { shared: shared.clone(), waiting: waiting.clone(), from };
        let (state, unpublished) = (State::clone(&shared.present.state()), Unpublished { waiting, to });
        (
            Self { shared, state, unpublished, writer, wal_pages, trimmed, is_older, expiries, full_until: None },
            publisher,
        )
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
        let at = if self.writer.is_some() && self.trimmed < self.state.compacted {
            now
        } else {
            let (at, ..) = self.expiries.first()?;
            now + Duration::from_millis(at.saturating_sub(unix_ms())).min(EXPIRY_SLEEP_MAX)
        };
        Some(self.full_until.map_or(at, |until| at.max(until)))
    }

    fn commit(&mut self, ops: Vec<Op>, now: Instant) {
        let pauses = self.full_until.is_some_and(|until| now < until);
        let mut batch = Batch { next: self.state.clone(), changes: Vec::new(), answers: Vec::new() };
        let spent = if pauses { Vec::new() } else { self.expire(&mut batch) };
        ops.into_iter().for_each(|op| batch.take(op));
        let Batch { next, changes, answers } = batch;
        let trimmed = match self.persist(&next, &changes, pauses) {
            Ok(trimmed) => trimmed,
            // Rolled back before anything was synced: what the disk holds is known.
            Err(error) if disk::is_full(&error) => {
                if self.full_until.replace(now + FULL_PAUSE).is_none() {
                    tracing::warn!("the disk of the store is full; writes are refused until there is room");
                }
                answers.into_iter().for_each(|a| a.refuse(StoreError::Full));
                return;
            }
            Err(error) => {
                self.shared.poison(format!("writing failed: {error}"));
                let reason = self.shared.poison.get().cloned().unwrap_or_default();
                let told = if disk::is_uncertain(&error) { StoreError::Uncertain } else { StoreError::Poisoned };
                answers.into_iter().for_each(|a| a.refuse(told(reason.clone())));
                return;
            }
        };
        self.trimmed = trimmed;
        for expiry in spent {
            self.expiries.remove(&expiry);
        }
        for Change { event, expires, .. } in &changes {
            if let (Some(kv), Some(at)) = (event.after(), expires) {
                self.expiries.insert((*at, kv.mod_revision, kv.key.clone()));
            }
        }
        let is_new = next.revision != self.state.revision || next.compacted != self.state.compacted;
        let events = changes.into_iter().map(|change| change.event).collect();
        self.state = next;
        let next = is_new.then(|| self.state.clone());
        self.unpublished.publish(&self.shared, Done { next, events, answers });
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

    /// Writes changes and a step of the compaction in one transaction; returns how far that has come.
    fn persist(&mut self, next: &State, changes: &[Change], pauses: bool) -> rusqlite::Result<u64> {
        let trimming = self.trimmed < next.compacted && !pauses;
        let Some(writer) = &mut self.writer else { return Ok(next.compacted) };
        if changes.is_empty() && !trimming {
            return Ok(self.trimmed);
        }
        let tx = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if self.is_older {
            disk::set_format(&tx)?;
        }
        {
            let mut appender = log::appender(&tx)?;
            for change in changes {
                log::append(&mut appender, change)?;
            }
        }
        let mut trimmed = self.trimmed;
        if trimming {
            // Only what is published as compacted: its readers were told.
            let published = self.shared.present.state().compacted;
            trimmed = log::trim(&tx, trimmed, published, TRIM_STEP)?;
            // The revision is written too: the row of the newest change may be a deletion that goes.
            let meta = Meta { revision: next.revision, compacted: next.compacted, trimmed };
            log::set_meta(&tx, &meta)?;
        }
        tx.commit()?;
        self.is_older = false;
        // Not in the pause: where a small write fits, the next one may not.
        if !pauses && self.full_until.take().is_some() {
            tracing::info!("the disk of the store has room again; writes are taken");
        }
        self.shared.dirty.store(true, Ordering::Relaxed);
        Ok(trimmed)
    }

    /// Under load the background checkpoints never reach the end of the write-ahead log, so it never starts over. Beyond
    /// its cap, writers wait while the rest is moved.
    fn hold_back(&self) {
        let Some(writer) = &self.writer else { return };
        if self.wal_pages.load(Ordering::Relaxed) < keeper::WAL_PAGES_MAX || self.shared.poison.get().is_some() {
            return;
        }
        let _one = lock(&self.shared.checkpoint);
        match disk::checkpoint(writer) {
            // The next write starts the log over, unless a reader of history is in the way, for one step; then the
            // next commit tries again.
            Ok(all) if all => self.wal_pages.store(0, Ordering::Relaxed),
            Ok(_) => {}
            Err(error) if disk::is_full(&error) => {}
            Err(error) => self.shared.poison(format!("a checkpoint failed: {error}")),
        }
    }
}

impl Unpublished {
    /// In the order of the commits, whoever does it.
    fn publish(&self, shared: &Shared, done: Done) {
        // Nobody else adds to those that wait.
        if done.answers.len() <= ANSWERS_INLINE_MAX && self.waiting.load(Ordering::Acquire) == 0 {
            return done.publish(shared);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Without the other thread the store is poisoned; those who ask are told so.
        let _ = self.to.send(done);
    }
}

impl Publisher {
    /// Works until the committer is gone.
    pub(super) fn run(self) {
        let _guard = PoisonOnPanic(self.shared.clone());
        for done in self.from {
            done.publish(&self.shared);
            self.waiting.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Done {
    fn publish(self, shared: &Shared) {
        let _out_of_use = self.next.map(|next| shared.present.publish(next, self.events));
        self.answers.into_iter().for_each(Answer::send);
    }
}

impl Batch {
    fn take(&mut self, op: Op) {
        match op {
            Op::Write { txn, packed, reply, _budget } => {
                let outcome = self.apply(txn, packed);
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

    /// `packed` is of the value, see [`Op::Write`].
    fn apply(&mut self, txn: Txn, packed: Option<Packed>) -> TxnOutcome {
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
        let (event, packed) = match (holds, txn.value, prev) {
            (false, _, prev) => return TxnOutcome::Conflict(prev),
            (true, Some(value), prev) => {
                *revision += 1;
                let kv = KeyValue {
                    // One text for all versions of a key.
                    key: prev.as_ref().map_or(txn.key, |p| p.key.clone()),
                    value,
                    create_revision: prev.as_ref().map_or(*revision, |p| p.create_revision),
                    mod_revision: *revision,
                };
                let packed = match packed {
                    Some(packed) => packed.at(kv.create_revision, kv.mod_revision),
                    None => Packed::of(&kv),
                };
                tree.insert(packed.clone());
                (Event::Put { kv, prev }, Some(packed))
            }
            (true, None, Some(prev)) => {
                *revision += 1;
                tree.remove(&prev.key);
                (Event::Delete { prev, revision: *revision }, None)
            }
            (true, None, None) => return TxnOutcome::Conflict(None),
        };
        let ttl = txn.ttl.filter(|_| event.after().is_some());
        let ttl = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        // SQLite's integers are signed.
        let expires = ttl.map(|ttl| unix_ms().saturating_add(ttl).min(i64::MAX as u64));
        self.changes.push(Change { event, packed, expires });
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
            self.0.poison("a thread that commits panicked".into());
            self.0.queue.abandon();
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
