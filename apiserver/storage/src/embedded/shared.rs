//! What the threads and handles of one engine share.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicU64},
};

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, oneshot};

use super::{KEY_BYTES_MAX, VALUE_BYTES_MAX, committer::Op, history::Kept, hub::Hub, queue::Queue, readers::Readers};
use crate::{StoreError, Txn, TxnOutcome, tree::Tree};

/// Bytes of writes that may wait, in units of [`UNIT`]. Further callers wait in their own futures.
const BUDGET_UNITS: usize = 65_536;
const UNIT: usize = 1024;

/// One consistent state of the store.
#[derive(Clone)]
pub(super) struct State {
    pub(super) tree: Tree,
    pub(super) revision: u64,
    /// Reads and watches from before this revision are refused.
    pub(super) compacted: u64,
}

pub(super) struct Shared {
    /// Replaced only by the committer, only while it holds `hub`.
    pub(super) state: ArcSwap<State>,
    hub: Mutex<Hub>,
    pub(super) kept: Mutex<Kept>,
    pub(super) queue: Queue<Op>,
    budget: Arc<Semaphore>,
    /// Why writes are refused; set once.
    pub(super) poison: OnceLock<Arc<str>>,
    /// `None` without a file.
    pub(super) readers: Option<Readers>,
    /// Held while a checkpoint runs: SQLite allows one at a time.
    pub(super) checkpoint: Mutex<()>,
    /// Pages in the write-ahead log when it was last looked at, and an estimate of those written since.
    pub(super) wal_pages: AtomicU64,
    /// Whether something was committed since the last checkpoint began.
    pub(super) dirty: AtomicBool,
}

/// A panic of another thread never leaves the guarded values half changed in a way that matters more than
/// going on: the committer's panic poisons the store by itself.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(state: State, readers: Option<Readers>) -> Self {
        Self {
            hub: Mutex::new(Hub::new(state.revision)),
            state: ArcSwap::from_pointee(state),
            kept: Mutex::default(),
            queue: Queue::new(),
            budget: Arc::new(Semaphore::new(BUDGET_UNITS)),
            poison: OnceLock::new(),
            readers,
            checkpoint: Mutex::new(()),
            wal_pages: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
        }
    }

    pub(super) fn hub(&self) -> MutexGuard<'_, Hub> {
        lock(&self.hub)
    }

    /// The oldest revision that can be read or watched from.
    pub(super) fn oldest(&self, hub: &Hub) -> u64 {
        let compacted = self.state.load().compacted;
        if self.readers.is_some() { compacted } else { compacted.max(hub.floor()) }
    }

    pub(super) fn poison(&self, reason: String) {
        tracing::error!(reason, "the store refuses writes from now on; restart to find out what the disk holds");
        let _ = self.poison.set(reason.into());
    }

    /// The reason why no answer came.
    fn gone(&self) -> StoreError {
        self.poison.get().map_or(StoreError::Closed, |reason| StoreError::Poisoned(reason.clone()))
    }

    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        check(&txn)?;
        let units = (txn.key.len() + txn.value.as_ref().map_or(0, |v| v.len())) / UNIT + 1;
        let units = u32::try_from(units).expect("the sizes were checked");
        let budget = self.budget.clone().acquire_many_owned(units).await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        self.queue.push(Op::Write { txn, reply, _budget: budget }).map_err(|_| self.gone())?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    pub(super) async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        let budget = self.budget.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        self.queue.push(Op::Compact { revision, reply: Some((reply, budget)) }).map_err(|_| self.gone())?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }
}

fn check(txn: &Txn) -> Result<(), StoreError> {
    if txn.key.is_empty() || txn.key.len() > KEY_BYTES_MAX || txn.key.contains('\0') {
        let text = format!("a key has 1 to {KEY_BYTES_MAX} bytes without NUL; this one has {}", txn.key.len());
        return Err(StoreError::Other(text.into()));
    }
    match &txn.value {
        Some(value) if value.len() > VALUE_BYTES_MAX => {
            Err(StoreError::TooLarge { bytes: value.len(), limit: VALUE_BYTES_MAX })
        }
        None if txn.condition == crate::Condition::Absent => {
            Err(StoreError::Other("a deletion needs the revision of what it deletes".into()))
        }
        _ => Ok(()),
    }
}
