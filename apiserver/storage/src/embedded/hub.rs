//! Recent changes and who wants to hear of the next ones.
//!
//! Guarded by one mutex that the committer holds while it publishes, and a watcher while it catches up
//! from the ring or registers: so the step from history to live has neither gap nor repeat.
//!
//! Watchers are found by directory: a change of `/a/b/c` looks into the buckets of ``, `/`, `/a/` and
//! `/a/b/`, and compares prefixes only with those who watch in one of them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::watch::Buffer;
use crate::{Event, StoreError, tree::directory_of};

/// Most changes in the ring, and most bytes of values that it keeps alive.
const RING_EVENTS_MAX: usize = 16_384;
const RING_BYTES_MAX: usize = 32 << 20;
/// Most changes that are looked at or copied under the lock in one step.
const STEP_EVENTS_MAX: usize = 1024;
/// Rounds of progress; in each one of so many watchers is told. At a tick of 100 ms a watcher wakes up every two
/// seconds for it, whatever is written: 5,000 wake-ups a second for 10,000 watchers.
const ROUNDS: u64 = 20;

pub(super) struct Hub {
    /// Changes `floor + 1 ..= revision`, one each.
    ring: VecDeque<Event>,
    ring_bytes: usize,
    floor: u64,
    revision: u64,
    watchers: HashMap<Arc<str>, Vec<Registration>>,
    registered: u32,
    next_id: u64,
    round: u64,
    closed: bool,
}

struct Registration {
    id: u64,
    prefix: Arc<str>,
    buffer: Arc<Buffer>,
}

/// The next step of a watcher that is not live yet.
pub(super) enum CatchUp {
    /// Nothing is missing: registered under this id; from here on its buffer is fed.
    Live(u64),
    /// Changes from memory, and the revision up to which they are complete.
    Events(VecDeque<Event>, u64),
    /// The ring does not reach back so far; everything up to this revision is in the log.
    Behind(u64),
}

impl Event {
    fn key(&self) -> &str {
        match self {
            Self::Put { kv, .. } => &kv.key,
            Self::Delete { prev, .. } => &prev.key,
            Self::Progress(_) => "",
        }
    }

    /// Bytes of the value that it writes.
    pub(super) fn written(&self) -> usize {
        if let Self::Put { kv, .. } = self { kv.value.len() } else { 0 }
    }

    /// Bytes of the values it keeps alive.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Put { kv, prev } => kv.value.len() + prev.as_ref().map_or(0, |p| p.value.len()),
            Self::Delete { prev, .. } => prev.value.len(),
            Self::Progress(_) => 0,
        }
    }
}

impl Hub {
    pub(super) fn new(revision: u64) -> Self {
        Self {
            ring: VecDeque::new(),
            ring_bytes: 0,
            floor: revision,
            revision,
            watchers: HashMap::new(),
            registered: 0,
            next_id: 0,
            round: 0,
            closed: false,
        }
    }

    /// The ring holds every change after this revision.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Takes the changes of one commit, in order, and hands them to the watchers.
    pub(super) fn publish(&mut self, events: Vec<Event>) {
        for event in events {
            self.revision += 1;
            self.deliver(&event);
            self.ring_bytes += event.bytes();
            self.ring.push_back(event);
        }
        while self.ring.len() > RING_EVENTS_MAX || self.ring_bytes > RING_BYTES_MAX {
            let Some(oldest) = self.ring.pop_front() else { break };
            self.ring_bytes -= oldest.bytes();
            self.floor += 1;
        }
        debug_assert_eq!(self.floor + self.ring.len() as u64, self.revision);
    }

    /// Tells the watchers whose turn it is how far they are; of an idle store it is a sign of life.
    pub(super) fn tick(&mut self) {
        self.round = (self.round + 1) % ROUNDS;
        let whose_turn = |w: &&Registration| w.id % ROUNDS == self.round;
        self.watchers.values().flatten().filter(whose_turn).for_each(|w| w.buffer.progress(self.revision));
    }

    fn deliver(&mut self, event: &Event) {
        let key = event.key();
        let directories = key.match_indices('/').filter_map(|(at, _)| key.get(..=at));
        for directory in directories.chain([""]) {
            let Some(bucket) = self.watchers.get_mut(directory) else { continue };
            let before = bucket.len();
            bucket.retain(|w| !key.starts_with(&*w.prefix) || w.buffer.push(event));
            self.registered -= u32::try_from(before - bucket.len()).unwrap_or(0);
            if bucket.is_empty() {
                self.watchers.remove(directory);
            }
        }
    }

    /// Brings a watcher that has everything up to `cursor` one step further.
    pub(super) fn catch_up(
        &mut self,
        prefix: &Arc<str>,
        cursor: u64,
        buffer: &Arc<Buffer>,
    ) -> Result<CatchUp, StoreError> {
        if self.closed {
            return Err(StoreError::Closed);
        }
        if cursor >= self.revision {
            let id = self.next_id;
            self.next_id += 1;
            self.registered += 1;
            buffer.progress(self.revision);
            let bucket = self.watchers.entry(directory_of(prefix).into()).or_default();
            bucket.push(Registration { id, prefix: prefix.clone(), buffer: buffer.clone() });
            return Ok(CatchUp::Live(id));
        }
        let Some(skip) = cursor.checked_sub(self.floor) else { return Ok(CatchUp::Behind(self.floor)) };
        let skip = usize::try_from(skip).expect("the ring is in memory");
        let upto = self.revision.min(cursor + STEP_EVENTS_MAX as u64);
        let step = self.ring.iter().skip(skip).take(STEP_EVENTS_MAX);
        Ok(CatchUp::Events(step.filter(|e| e.key().starts_with(&**prefix)).cloned().collect(), upto))
    }

    /// The changes after `from` up to and including `upto`, newest first, of many only the first step; `None` if the
    /// ring has lost some.
    pub(super) fn undo(&self, from: u64, upto: u64) -> Option<Vec<Event>> {
        from.checked_sub(self.floor)?;
        let from = from.max(upto.saturating_sub(STEP_EVENTS_MAX as u64));
        let skip = usize::try_from(from.checked_sub(self.floor)?).ok()?;
        let count = usize::try_from(upto.checked_sub(from)?).ok()?;
        let mut events: Vec<Event> = self.ring.iter().skip(skip).take(count).cloned().collect();
        events.reverse();
        Some(events)
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

    /// Ends all watches.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.registered = 0;
        for watcher in std::mem::take(&mut self.watchers).into_values().flatten() {
            watcher.buffer.end(StoreError::Closed);
        }
    }

    #[cfg(test)]
    pub(super) fn registered(&self) -> (u32, usize) {
        (self.registered, self.watchers.len())
    }
}
