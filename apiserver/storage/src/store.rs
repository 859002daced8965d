//! The trait and its types.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;

use crate::{labels::Wanted, tree::Packed};

/// A storage key: `/`-separated text, ordered bytewise.
pub type Key = Arc<str>;
/// An opaque value.
pub type Value = Bytes;
/// What the methods of [`Store`] return.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// One stored object as it is at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Its key.
    pub key: Key,
    /// Its bytes.
    pub value: Value,
    /// Revision of its creation.
    pub create_revision: u64,
    /// Revision of its last change: the object's `resourceVersion`.
    pub mod_revision: u64,
}

/// What must hold for a [`Txn`] to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key does not exist.
    Absent,
    /// The key's last change was at this revision.
    ModRevision(u64),
}

/// One compare-and-set on one key, if need be only while another key stays as it is. etcd compares any number of keys
/// in one transaction.
#[derive(Clone, Debug)]
pub struct Txn {
    /// The key.
    pub key: Key,
    /// The precondition.
    pub condition: Condition,
    /// Another key that must exist and whose last change must be at this revision: what the write depends on.
    pub guard: Option<(Key, u64)>,
    /// The new value; `None` deletes.
    pub value: Option<Value>,
    /// The store deletes the key by itself about this long after the write (for Events); `None` keeps it.
    pub ttl: Option<std::time::Duration>,
}

/// How a [`Txn`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    /// Carried out and durable; the revision is that of the change.
    Done {
        /// The change's revision.
        revision: u64,
    },
    /// The condition did not hold; nothing was written. The present state of the key.
    Conflict(Option<KeyValue>),
    /// The guard is gone or was changed; nothing was written.
    Unguarded,
}

/// A read of an interval of keys.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// Only keys that begin with this text.
    pub prefix: String,
    /// Only keys that are greater than this one (a page's last key).
    pub after: Option<String>,
    /// At most so many; 0 = no limit.
    pub limit: usize,
    /// As of this revision; `None` = now.
    pub revision: Option<u64>,
    /// Only what may have these labels.
    pub wanted: Wanted,
}

/// Answer to a [`Range`].
#[derive(Clone, Debug)]
pub struct RangeResult {
    /// In key order, as the store keeps them: whoever holds many unpacks them one by one.
    pub items: Vec<Packed>,
    /// Keys of the interval behind the last item, exactly.
    pub remaining: u64,
    /// The revision at which the answer is true.
    pub revision: u64,
}

/// One change, or a sign of progress.
#[derive(Clone, Debug)]
pub enum Event {
    /// Created (`prev` is `None`) or changed.
    Put {
        /// The new state.
        kv: KeyValue,
        /// The state before.
        prev: Option<KeyValue>,
    },
    /// Deleted.
    Delete {
        /// The state before.
        prev: KeyValue,
        /// The revision of the deletion.
        revision: u64,
    },
    /// Everything up to and including this revision has been delivered.
    Progress(u64),
}

impl Event {
    /// The revision of the change, or of the progress.
    pub fn revision(&self) -> u64 {
        match self {
            Self::Put { kv, .. } => kv.mod_revision,
            Self::Delete { revision, .. } | Self::Progress(revision) => *revision,
        }
    }
}

/// Events in the order of revisions, each exactly once; progress after changes and whenever it is asked for an item and
/// there is none, but a waiting consumer is woken for progress alone only twice a minute. Ends with an error: `Compacted`, `SlowConsumer`
/// (the watcher's bounded buffer was full) or `Closed`.
pub type WatchStream = Pin<Box<dyn futures_util::Stream<Item = Result<Event, StoreError>> + Send>>;

/// Why the store could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The revision is older than the oldest kept one.
    #[error("revision {requested} is compacted; the oldest kept is {oldest}")]
    Compacted {
        /// What was asked.
        requested: u64,
        /// The oldest revision that can still be read or watched from.
        oldest: u64,
    },
    /// The revision is in the future.
    #[error("revision {requested} is in the future; the current one is {current}")]
    Future {
        /// What was asked.
        requested: u64,
        /// The present revision.
        current: u64,
    },
    /// The value is larger than the store takes.
    #[error("the value has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A write or sync failed earlier; what the disk holds is unknown, so writes are refused until a restart.
    #[error("the store refuses writes since a commit failed: {0}")]
    Poisoned(Arc<str>),
    /// There is no room on the disk; nothing was written, and writes are taken again once there is.
    #[error("the disk of the store is full; nothing was written")]
    Full,
    /// The watcher did not read fast enough.
    #[error("the watcher is too slow")]
    SlowConsumer,
    /// The store cannot be reached, or does not answer in time. Nothing was written.
    #[error("the store is not available: {0}")]
    Unavailable(Arc<str>),
    /// A write was sent and its answer is lost: it may have been carried out or not.
    #[error("whether it was written is not known: {0}")]
    Uncertain(Arc<str>),
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
    /// Anything else.
    #[error("{0}")]
    Other(Arc<str>),
}

/// A store with etcd v3 semantics. Two implementations: the embedded engine and etcd.
///
/// # Cancel safety
/// A dropped `txn` future may or may not have been carried out; it is never half done.
pub trait Store: Send + Sync + 'static {
    /// Why writes are refused until a restart, if they are.
    fn failure(&self) -> Option<StoreError>;
    /// Why nothing can be read or written, once that has lasted for some seconds. It passes by itself.
    fn unavailable(&self) -> Option<StoreError>;
    /// The latest revision whose changes are visible here. Starts at 1 in an empty store. Where several servers share
    /// a store another one may be further; reads and watches catch up by themselves.
    fn revision(&self) -> u64;
    /// Grows when everything had to be read anew, as from an etcd that was restored from a backup: from then on revisions
    /// may be given a second time. Watches end there; what is read while it stays the same is of one history.
    fn epoch(&self) -> u64;
    /// Resolves once [`Store::revision`] has come to `revision`, which may be never: the caller sets the deadline.
    fn reached(&self, revision: u64) -> StoreFuture<'_, ()>;
    /// Reads one key as it is now.
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<KeyValue>>;
    /// Reads keys in order.
    fn range(&self, range: Range) -> StoreFuture<'_, RangeResult>;
    /// Exact number of keys that begin with `prefix`, in O(log n) and without waiting.
    fn count(&self, prefix: &str) -> u64;
    /// For every directory (prefix ending in `/`) that directly contains keys and begins with `prefix`:
    /// its number of keys and the sum of their value sizes; and the revision at which this is true.
    fn counts(&self, prefix: &str) -> (u64, Vec<DirectoryCount>);
    /// One compare-and-set; resolves once it is durable.
    fn txn(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome>;
    /// Changes of keys below `prefix` with a revision greater than `after`.
    fn watch(&self, prefix: &str, after: u64) -> StoreFuture<'_, WatchStream> {
        self.watch_wanted(prefix, after, Wanted::default())
    }
    /// The same, only those from or to what may have these labels.
    fn watch_wanted(&self, prefix: &str, after: u64, wanted: Wanted) -> StoreFuture<'_, WatchStream>;
    /// Forgets all versions that were superseded at or before `revision`. The store also does it by itself, every five
    /// minutes to where it was five minutes before.
    fn compact(&self, revision: u64) -> StoreFuture<'_, ()>;
    /// Stops taking writes, finishes those that were taken and ends all watches with [`StoreError::Closed`]. Reads of
    /// the present state go on where they need nobody else. Blocks for as long as that takes; further calls do nothing.
    fn close(&self);
}

/// See [`Store::counts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryCount {
    /// For example `/registry/core/configmaps/root/default/`.
    pub directory: Arc<str>,
    /// Keys directly in it.
    pub keys: u64,
    /// Sum of the sizes of their values.
    pub bytes: u64,
}

/// Largest value in bytes (etcd's default request limit).
pub const VALUE_BYTES_MAX: usize = 1_572_864;
/// Longest key in bytes: more than four names of 253 bytes with group, resource and identity.
pub const KEY_BYTES_MAX: usize = 2048;

/// Refuses what no engine takes.
pub(crate) fn check(txn: &Txn) -> Result<(), StoreError> {
    if !txn.key.starts_with('/') || txn.key.len() > KEY_BYTES_MAX || txn.key.contains('\0') {
        let text = format!(
            "a key begins with / and has at most {KEY_BYTES_MAX} bytes, none NUL; this one has {}",
            txn.key.len()
        );
        return Err(StoreError::Other(text.into()));
    }
    match &txn.value {
        Some(value) if value.len() > VALUE_BYTES_MAX => {
            Err(StoreError::TooLarge { bytes: value.len(), limit: VALUE_BYTES_MAX })
        }
        None if txn.condition == Condition::Absent => {
            Err(StoreError::Other("a deletion needs the revision of what it deletes".into()))
        }
        _ => Ok(()),
    }
}
