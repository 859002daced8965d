//! The embedded engine: the present state in memory, every change in a SQLite log.
//!
//! ```text
//! txn ─ queue ─ committer: conditions → INSERT … COMMIT (fsync) ─ publisher: snapshot → watchers → answer
//! get, range, count ─ the published snapshot (no lock, no disk, no other thread)
//! range or watch at an old revision ─ ring of recent changes, else a reader thread on the log
//! ```
//!
//! # Invariants
//! * Every change has a revision of its own, one above the last, never used twice, also across `kill -9`.
//! * What a read or a watcher sees is durable. What is acknowledged is visible to reads.
//! * After a failed write or sync nothing more is written until a restart: what the disk holds is unknown.
//!
//! # Costs
//! One fsync for each group of writes that wait together. Memory: all keys and compressed values (`tree/packed.rs`), plus a bounded
//! history (16,384 changes or 32 MiB of values). Six threads, none of them per client.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use rusqlite::Connection;

use crate::{
    DirectoryCount, KeyValue, Range, RangeResult, Store, StoreFuture, Txn, TxnOutcome, WatchStream,
    labels::Wanted,
    present::{State, lock},
};

mod committer;
mod disk;
mod keeper;
mod load;
mod log;
pub mod maintenance;
mod queue;
mod readers;
mod shared;

#[cfg(test)]
mod tests;

pub use self::disk::OpenError;
use self::{
    committer::{Committer, Expiry},
    disk::Opened,
    keeper::Stop,
    readers::Readers,
    shared::Shared,
};

/// The embedded engine; see the module. Dropping it does what [`Store::close`] does.
pub struct Embedded {
    shared: Arc<Shared>,
    threads: Mutex<Option<Threads>>,
}

struct Threads {
    stop: Arc<Stop>,
    committer: JoinHandle<Option<Connection>>,
    publisher: JoinHandle<()>,
    others: Vec<JoinHandle<()>>,
    /// Held until the last connection is closed.
    lock: Option<std::fs::File>,
}

impl Embedded {
    /// Opens the store in the file `path`, or makes a new one; missing directories are made. Beside it
    /// appear `<path>-wal`, `<path>-shm` and `<path>.lock`.
    ///
    /// Blocks while all objects are read and looked at: 1 to 3 µs of a processor each, more with large values.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is changed in a file that is refused.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::start(disk::open(path.as_ref())?)
    }

    /// A store without a file, for tests and trials. Its history is only as long as the ring in memory.
    pub fn in_memory() -> Self {
        let state = State { tree: Default::default(), revision: 1, compacted: 0 };
        Self::spawn(state, None, Vec::new(), None, Vec::new(), None).expect("threads can be started")
    }

    fn start(opened: Opened) -> Result<Self, OpenError> {
        let Opened { path, lock, writer, checkpoints, readers, state, expiries, trimmed } = opened;
        let started = Self::spawn(state, Some((writer, trimmed)), expiries, Some(checkpoints), readers, Some(lock));
        started.map_err(|e| OpenError::Path { path, reason: format!("cannot start a thread: {e}") })
    }

    fn spawn(
        state: State,
        writer: Option<(Connection, u64)>,
        expiries: Vec<Expiry>,
        checkpoints: Option<Connection>,
        readers: Vec<Connection>,
        lock: Option<std::fs::File>,
    ) -> std::io::Result<Self> {
        let pool = (!readers.is_empty()).then(|| Arc::new(Readers::new()));
        let shared = Arc::new(Shared::new(state, pool));
        let stop = Arc::new(Stop::default());
        let thread = |name: &str| std::thread::Builder::new().name(format!("store-{name}"));
        let mut others = Vec::new();
        for connection in readers {
            let shared = shared.clone();
            others.push(thread("reader").spawn(move || {
                if let Some(readers) = &shared.readers {
                    readers.serve(connection);
                }
            })?);
        }
        let (ticked, ticks) = (shared.clone(), stop.clone());
        others.push(thread("ticker").spawn(move || keeper::tick(&ticked, &ticks))?);
        if let Some(connection) = checkpoints {
            let (shared, stop) = (shared.clone(), stop.clone());
            others.push(thread("checkpoint").spawn(move || keeper::checkpoints(&shared, &connection, &stop))?);
        }
        let (committer, publisher) = Committer::new(shared.clone(), writer, expiries);
        let publisher = thread("publisher").spawn(move || publisher.run())?;
        let committer = thread("committer").spawn(move || committer.run())?;
        Ok(Self { shared, threads: Mutex::new(Some(Threads { stop, committer, publisher, others, lock })) })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for Embedded {
    fn failure(&self) -> Option<crate::StoreError> {
        self.shared.poison.get().map(|reason| crate::StoreError::Poisoned(reason.clone()))
    }

    /// Reads come from memory, and what writing lacks its writes say.
    fn unavailable(&self) -> Option<crate::StoreError> {
        None
    }

    fn revision(&self) -> u64 {
        self.shared.present.revision()
    }

    fn epoch(&self) -> u64 {
        self.shared.present.epoch()
    }

    fn reached(&self, revision: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.shared.present.reached(revision).await;
            Ok(())
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<KeyValue>> {
        let found = self.shared.present.state().tree.get(key).map(|entry| entry.unpack());
        Box::pin(std::future::ready(Ok(found)))
    }

    fn range(&self, range: Range) -> StoreFuture<'_, RangeResult> {
        match range.revision {
            None => Box::pin(std::future::ready(Ok(self.shared.present.range_now(&range)))),
            Some(revision) => Box::pin(self.shared.range_at(range, revision)),
        }
    }

    fn count(&self, prefix: &str) -> u64 {
        self.shared.present.state().tree.totals(prefix).keys
    }

    fn counts(&self, prefix: &str) -> (u64, Vec<DirectoryCount>) {
        let state = self.shared.present.state();
        (state.revision, state.tree.directories(prefix))
    }

    fn txn(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        Box::pin(self.shared.txn(txn))
    }

    fn watch_wanted(&self, prefix: &str, after: u64, wanted: Wanted) -> StoreFuture<'_, WatchStream> {
        Box::pin(std::future::ready(self.shared.present.watch(prefix, after, wanted)))
    }

    fn compact(&self, revision: u64) -> StoreFuture<'_, ()> {
        Box::pin(self.shared.compact(revision))
    }

    /// Moves the write-ahead log into the file and closes it.
    fn close(&self) {
        let Some(threads) = lock(&self.threads).take() else { return };
        self.shared.queue.close();
        let writer = threads.committer.join().unwrap_or_default();
        let _ = threads.publisher.join(); // as below
        self.shared.present.close();
        threads.stop.stop();
        if let Some(readers) = &self.shared.readers {
            readers.close();
        }
        for thread in threads.others {
            let _ = thread.join(); // its panic was already printed
        }
        if let Some(writer) = writer
            && self.shared.poison.get().is_none()
            && let Err(error) = disk::close(writer)
        {
            // Everything acknowledged is in the synced write-ahead log: nothing is lost.
            tracing::warn!(%error, "the store could not be checkpointed at close; the next start will do it");
        }
        // Not only closed: a process that is being started just now has it open too, until it becomes another program.
        let _ = threads.lock.map(|lock| lock.unlock());
    }
}
