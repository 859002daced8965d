//! What both engines keep in memory: the present objects, recent changes, and who watches.
//!
//! # Invariants
//! * The state is replaced only together with the changes that lead to it, under one lock: who reads a revision and
//!   then watches from it misses nothing.
//! * Revisions grow; between two changes there may be revisions that change nothing here (of etcd).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch::Sender;

use crate::{Event, StoreError, StoreFuture, WatchStream, labels::Wanted, tree::Tree};

mod history;
mod hub;
#[cfg(test)]
mod tests;
mod watch;

#[cfg(test)]
pub(crate) use self::watch::BUFFER_EVENTS_MAX;
pub(crate) use self::{
    history::{Old, read},
    hub::{Hub, RING_EVENTS_MAX},
};

/// One consistent state of the store.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) revision: u64,
    /// Reads and watches from before this revision are refused.
    pub(crate) compacted: u64,
}

/// Reads changes that are no longer in memory: those below a prefix after one revision, to another one at most. Answers
/// the next of them and the revision up to which they are complete.
pub(crate) type Past = Box<dyn Fn(Arc<str>, u64, u64) -> StoreFuture<'static, (VecDeque<Event>, u64)> + Send + Sync>;

/// See the module.
pub(crate) struct Present {
    /// Replaced only while `hub` is held.
    state: ArcSwap<State>,
    hub: Mutex<Hub>,
    kept: Mutex<history::Kept>,
    /// What concerns a watcher is in its buffer, for all changes up to here.
    delivered: AtomicU64,
    /// The revision of `state`, to be waited for.
    reached: Sender<u64>,
    /// `None`: what is not in memory is forgotten.
    past: Option<Past>,
}

/// A panic of another thread never leaves the guarded values half changed in a way that matters more than going on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Present {
    pub(crate) fn new(state: State, past: Option<Past>) -> Self {
        Self {
            hub: Mutex::new(Hub::new(state.revision)),
            delivered: AtomicU64::new(state.revision),
            reached: Sender::new(state.revision),
            state: ArcSwap::from_pointee(state),
            kept: Mutex::default(),
            past,
        }
    }

    pub(crate) fn state(&self) -> Guard<Arc<State>> {
        self.state.load()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.state.load().revision
    }

    /// Waits until the present state has come to a revision, which may be never.
    pub(crate) async fn reached(&self, revision: u64) {
        // The sender is in `self`.
        let _ = self.reached.subscribe().wait_for(|reached| *reached >= revision).await;
    }

    /// Makes a later state the present one and hands the changes that lead to it, in order, to the watchers. Returns
    /// what is out of use: to free it takes longer than the rest.
    pub(crate) fn publish(&self, next: State, events: Vec<Event>) -> (Arc<State>, Vec<Event>) {
        let mut hub = lock(&self.hub);
        let revision = next.revision;
        let compacted = next.compacted.max(self.state.load().compacted); // it may have been raised meanwhile
        let before = self.state.swap(Arc::new(State { compacted, ..next }));
        let forgotten = hub.publish(events, revision);
        self.delivered.store(revision, Ordering::Release);
        self.reached.send_replace(revision);
        (before, forgotten)
    }

    /// Raises the revision below which everything is refused.
    pub(crate) fn forget(&self, compacted: u64) {
        let _hub = lock(&self.hub);
        let state = self.state.load();
        if state.compacted < compacted {
            self.state.store(Arc::new(State { compacted, ..State::clone(&state) }));
        }
    }

    /// Replaces everything by a state whose history is not known. All watches end.
    pub(crate) fn replace(&self, state: State) {
        let mut hub = lock(&self.hub);
        let oldest = state.revision;
        hub.restart(oldest, &StoreError::Compacted { requested: self.revision(), oldest });
        *lock(&self.kept) = history::Kept::default();
        self.state.store(Arc::new(state));
        self.delivered.store(oldest, Ordering::Release);
        self.reached.send_replace(oldest);
    }

    /// How often everything was replaced: revisions of different epochs have nothing to do with each other.
    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.hub).epoch()
    }

    /// The oldest revision that can be read or watched from.
    pub(crate) fn oldest(&self) -> u64 {
        self.oldest_of(&lock(&self.hub))
    }

    fn oldest_of(&self, hub: &Hub) -> u64 {
        let compacted = self.state.load().compacted;
        if self.past.is_some() { compacted } else { compacted.max(hub.floor()) }
    }

    /// The changes below `prefix` after a revision.
    pub(crate) fn watch(self: &Arc<Self>, prefix: &str, after: u64, wanted: Wanted) -> Result<WatchStream, StoreError> {
        watch::open(self, prefix, after, wanted)
    }

    /// Lets go of old states that nobody asks for, and wakes the watchers whose turn it is to say that they are
    /// `alive`. To be called once a second.
    pub(crate) fn tick(&self, alive: bool) {
        if alive {
            lock(&self.hub).tick();
        }
        lock(&self.kept).prune();
    }

    /// Ends all watches.
    pub(crate) fn close(&self) {
        lock(&self.hub).close();
    }

    #[cfg(test)]
    pub(crate) fn hub(&self) -> MutexGuard<'_, Hub> {
        lock(&self.hub)
    }
}
