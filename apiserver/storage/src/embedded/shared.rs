//! What the threads and handles of one engine share.

use std::sync::{Arc, Mutex, OnceLock, atomic::AtomicBool};

use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};

use super::{committer::Op, log, queue::Queue, readers::Readers};
use crate::{
    Range, RangeResult, StoreError, Txn, TxnOutcome,
    present::{Old, Past, Present, State, read},
    store::check,
    tree::Packed,
};

/// Bytes of writes that may wait, in units of [`UNIT`]. Further callers wait in their own futures.
const BUDGET_UNITS: usize = 65_536;
const UNIT: usize = 1024;

pub(super) struct Shared {
    /// Changed only by the committer and its publisher, in the order of the commits.
    pub(super) present: Arc<Present>,
    pub(super) queue: Queue<Op>,
    budget: Arc<Semaphore>,
    /// Why writes are refused; set once.
    pub(super) poison: OnceLock<Arc<str>>,
    /// `None` without a file.
    pub(super) readers: Option<Arc<Readers>>,
    /// Held while a checkpoint runs: SQLite allows one at a time.
    pub(super) checkpoint: Mutex<()>,
    /// Whether something was committed since the last checkpoint began.
    pub(super) dirty: AtomicBool,
}

impl Shared {
    pub(super) fn new(state: State, readers: Option<Arc<Readers>>) -> Self {
        let past = readers.clone().map(|readers| -> Past {
            Box::new(move |prefix, after, upto| {
                let readers = readers.clone();
                Box::pin(async move { readers.run(move |c| log::changes(c, &prefix, after, upto)).await })
            })
        });
        Self {
            present: Arc::new(Present::new(state, past)),
            queue: Queue::new(),
            budget: Arc::new(Semaphore::new(BUDGET_UNITS)),
            poison: OnceLock::new(),
            readers,
            checkpoint: Mutex::new(()),
            dirty: AtomicBool::new(false),
        }
    }

    pub(super) fn poison(&self, reason: String) {
        tracing::error!(reason, "the store refuses writes from now on; restart to find out what the disk holds");
        let _ = self.poison.set(reason.into());
    }

    /// The reason why nothing is taken any more.
    fn gone(&self) -> StoreError {
        self.poison.get().map_or(StoreError::Closed, |reason| StoreError::Poisoned(reason.clone()))
    }

    /// What was taken is answered, but for a thread that panicked: perhaps after the commit.
    fn unanswered() -> StoreError {
        StoreError::Uncertain("the store broke down meanwhile".into())
    }

    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        check(&txn)?;
        let units = (txn.key.len() + txn.value.as_ref().map_or(0, |v| v.len())) / UNIT + 1;
        let units = u32::try_from(units).expect("the sizes were checked");
        let budget = self.budget.clone().acquire_many_owned(units).await.map_err(|_| StoreError::Closed)?;
        // Here and not in the thread that writes, for which all wait.
        let likely = self.present.revision() + 1;
        let packed = txn.value.as_deref().map(|value| Packed::made(&txn.key, value, likely, likely));
        // The caller's may be a small part of a large buffer.
        let value = txn.value.as_deref().map(Bytes::copy_from_slice);
        let (reply, answer) = oneshot::channel();
        let write = Op::Write { txn: Txn { value, ..txn }, packed, reply, _budget: budget };
        self.queue.push(write).map_err(|_| self.gone())?;
        answer.await.unwrap_or_else(|_| Err(Self::unanswered()))
    }

    pub(super) async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        let budget = self.budget.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        self.queue.push(Op::Compact { revision, reply: Some((reply, budget)) }).map_err(|_| self.gone())?;
        answer.await.unwrap_or_else(|_| Err(Self::unanswered()))
    }

    pub(super) async fn range_at(&self, range: Range, revision: u64) -> Result<RangeResult, StoreError> {
        let tree = match (self.present.old(revision)?, &self.readers) {
            (Old::Here(tree), _) => tree,
            (Old::Later(later, tree), Some(readers)) => {
                let tree = readers.run(move |c| log::rewind(c, tree, later, revision)).await?;
                self.present.keep(revision, tree.clone());
                tree
            }
            (Old::Later(..), None) => {
                return Err(StoreError::Compacted { requested: revision, oldest: self.present.oldest() });
            }
        };
        Ok(read(&tree, revision, &range))
    }
}
