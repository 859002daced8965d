//! Recent changes and who wants to hear of the next ones.
//!
//! Guarded by one mutex that is held while changes are published, and by a watcher while it catches up
//! from the ring or registers: so the step from history to live has neither gap nor repeat.
//!
//! Watchers are found by directory: a change of `/a/b/c` looks into the buckets of ``, `/`, `/a/` and
//! `/a/b/`, and compares prefixes and labels only with those who watch in one of them.

use std::{
    cell::LazyCell,
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::watch::Buffer;
use crate::{
    Event, KeyValue, StoreError,
    labels::{Tags, Wanted},
    tree::directory_of,
};

/// Most changes in the ring, and most bytes of values that it keeps alive.
pub(crate) const RING_EVENTS_MAX: usize = 16_384;
const RING_BYTES_MAX: usize = 32 << 20;
/// Most changes that are looked at or copied under the lock in one step.
const STEP_EVENTS_MAX: usize = 1024;
/// Ticks in which each watcher is woken once, to say that it is alive. How far it is, a watcher sees by itself whenever
/// it is asked; so this may be slow: at a tick of a second 10,000 watchers cost 333 wake-ups a second.
const ROUNDS: u64 = 30;

pub(crate) struct Hub {
    /// All changes after `floor` up to `revision`, in order.
    ring: VecDeque<Event>,
    ring_bytes: usize,
    floor: u64,
    revision: u64,
    watchers: HashMap<Arc<str>, Vec<Registration>>,
    registered: u32,
    /// Of the next registration; never given twice.
    next_id: u64,
    /// How often everything was replaced.
    epoch: u64,
    round: u64,
    closed: bool,
}

struct Registration {
    id: u64,
    prefix: Arc<str>,
    wanted: Arc<Wanted>,
    buffer: Arc<Buffer>,
}

/// The next step of a watcher that is not live yet.
pub(super) enum CatchUp {
    /// Nothing is missing: registered under this id; from here on its buffer is fed.
    Live(u64),
    /// Changes from memory, and the revision up to which they are complete.
    Events(VecDeque<Event>, u64),
    /// The ring does not reach back so far; what is missing ends at this revision.
    Behind(u64),
}

impl Event {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Put { kv, .. } => &kv.key,
            Self::Delete { prev, .. } => &prev.key,
            Self::Progress(_) => "",
        }
    }

    /// The key's state after it.
    pub(crate) fn after(&self) -> Option<&KeyValue> {
        if let Self::Put { kv, .. } = self { Some(kv) } else { None }
    }

    /// Tags of the states before and after it.
    fn tags(&self) -> Vec<Vec<u8>> {
        let (before, after) = match self {
            Self::Put { kv, prev } => (prev.as_ref(), Some(kv)),
            Self::Delete { prev, .. } => (Some(prev), None),
            Self::Progress(_) => (None, None),
        };
        let tags = |kv: &KeyValue| {
            let mut tags = Vec::new();
            Tags::write(&kv.value, &mut tags);
            tags
        };
        before.into_iter().chain(after).map(tags).collect()
    }

    /// Bytes of the values it keeps alive.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Put { kv, prev } => kv.value.len() + prev.as_ref().map_or(0, |p| p.value.len()),
            Self::Delete { prev, .. } => prev.value.len(),
            Self::Progress(_) => 0,
        }
    }
}

impl Hub {
    pub(crate) fn new(revision: u64) -> Self {
        Self {
            ring: VecDeque::new(),
            ring_bytes: 0,
            floor: revision,
            revision,
            watchers: HashMap::new(),
            registered: 0,
            next_id: 0,
            epoch: 0,
            round: 0,
            closed: false,
        }
    }

    /// Ends all watches and forgets all changes: what follows is another history, which begins at this revision. Ids go
    /// on, since watches that have ended are dropped, and unregister, at any time after.
    pub(super) fn restart(&mut self, revision: u64, error: &StoreError) {
        self.end(error);
        let (next_id, epoch, closed) = (self.next_id, self.epoch + 1, self.closed);
        *self = Self { next_id, epoch, closed, ..Self::new(revision) };
    }

    /// Which history this is, if there was more than one.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The ring holds every change after this revision.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Takes changes, in order, and hands them to the watchers. With them everything up to `revision` is told. Returns
    /// the changes for which there is no more room.
    pub(super) fn publish(&mut self, events: Vec<Event>, revision: u64) -> Vec<Event> {
        for event in events {
            debug_assert!(self.revision <= event.revision() && event.revision() <= revision);
            self.revision = event.revision();
            self.deliver(&event);
            self.ring_bytes += event.bytes();
            self.ring.push_back(event);
        }
        self.revision = revision;
        let mut forgotten = Vec::new();
        // Changes of one revision stay together.
        while self.ring.len() > RING_EVENTS_MAX
            || self.ring_bytes > RING_BYTES_MAX
            || self.ring.front().is_some_and(|e| e.revision() == self.floor)
        {
            let Some(oldest) = self.ring.pop_front() else { break };
            self.ring_bytes -= oldest.bytes();
            self.floor = oldest.revision();
            forgotten.push(oldest);
        }
        forgotten
    }

    /// Wakes the watchers whose turn it is: of an idle store it is a sign of life.
    pub(crate) fn tick(&mut self) {
        self.round = (self.round + 1) % ROUNDS;
        let whose_turn = |w: &&Registration| w.id % ROUNDS == self.round;
        self.watchers.values().flatten().filter(whose_turn).for_each(|w| w.buffer.sign());
    }

    fn deliver(&mut self, event: &Event) {
        let key = event.key();
        // Looked at once for all who watch by labels.
        let tags = LazyCell::new(|| event.tags());
        let concerns = |w: &Registration| {
            key.starts_with(&*w.prefix)
                && (w.wanted.is_empty() || tags.iter().any(|tags| w.wanted.admits(Tags::take(&mut &**tags))))
        };
        let directories = key.match_indices('/').filter_map(|(at, _)| key.get(..=at));
        for directory in directories.chain([""]) {
            let Some(bucket) = self.watchers.get_mut(directory) else { continue };
            let before = bucket.len();
            bucket.retain(|w| !concerns(w) || w.buffer.push(event));
            self.registered -= u32::try_from(before - bucket.len()).unwrap_or(0);
            if bucket.is_empty() {
                self.watchers.remove(directory);
            }
        }
    }

    /// Brings a watcher that has everything of an epoch up to `cursor` one step further.
    pub(super) fn catch_up(
        &mut self,
        (prefix, wanted): (&Arc<str>, &Arc<Wanted>),
        (epoch, cursor): (u64, u64),
        buffer: &Arc<Buffer>,
    ) -> Result<CatchUp, StoreError> {
        if self.closed {
            return Err(StoreError::Closed);
        }
        if self.epoch != epoch {
            // Revisions of another history say nothing here, even if they are later than those of this one.
            return Err(StoreError::Compacted { requested: cursor, oldest: self.floor });
        }
        if cursor >= self.revision {
            let id = self.next_id;
            self.next_id += 1;
            self.registered += 1;
            buffer.sign();
            let bucket = self.watchers.entry(directory_of(prefix).into()).or_default();
            let (prefix, wanted, buffer) = (prefix.clone(), wanted.clone(), buffer.clone());
            bucket.push(Registration { id, prefix, wanted, buffer });
            return Ok(CatchUp::Live(id));
        }
        if cursor < self.floor {
            return Ok(CatchUp::Behind(self.floor));
        }
        let start = self.ring.partition_point(|e| e.revision() <= cursor);
        let mut end = self.ring.len().min(start + STEP_EVENTS_MAX);
        let last = end.checked_sub(1).and_then(|at| self.ring.get(at)).map_or(cursor, Event::revision);
        while self.ring.get(end).is_some_and(|e| e.revision() == last) {
            end += 1;
        }
        let upto = if end == self.ring.len() { self.revision } else { last };
        let step = self.ring.range(start..end).filter(|e| e.key().starts_with(&**prefix));
        Ok(CatchUp::Events(step.cloned().collect(), upto))
    }

    /// Changes after `from` up to and including `upto`, newest first, of many only the first step, and the revision
    /// whose state they lead back to; `None` if the ring has lost some.
    pub(super) fn undo(&self, from: u64, upto: u64) -> Option<(Vec<Event>, u64)> {
        from.checked_sub(self.floor)?;
        let first = self.ring.partition_point(|e| e.revision() <= from);
        let end = self.ring.partition_point(|e| e.revision() <= upto);
        let mut start = first.max(end.saturating_sub(STEP_EVENTS_MAX));
        let mut reached = from;
        if start > first {
            let revision = self.ring.get(start)?.revision();
            start = self.ring.partition_point(|e| e.revision() < revision);
            reached = revision - 1;
        }
        Some((self.ring.range(start..end).rev().cloned().collect(), reached.max(from)))
    }

    /// Forgets a watcher; nothing happens if it is already gone.
    pub(super) fn unregister(&mut self, prefix: &str, id: u64) {
        let directory = directory_of(prefix);
        let Some(bucket) = self.watchers.get_mut(directory) else { return };
        if let Some(at) = bucket.iter().position(|w| w.id == id) {
            bucket.swap_remove(at);
            self.registered -= 1;
        }
        if bucket.is_empty() {
            self.watchers.remove(directory);
        }
    }

    /// Ends all watches for good.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.end(&StoreError::Closed);
    }

    /// Ends all watches.
    fn end(&mut self, error: &StoreError) {
        self.registered = 0;
        for watcher in std::mem::take(&mut self.watchers).into_values().flatten() {
            watcher.buffer.end(error.clone());
        }
    }

    #[cfg(test)]
    pub(crate) fn registered(&self) -> (u32, usize) {
        (self.registered, self.watchers.len())
    }
}
