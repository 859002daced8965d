//! Background work on a clock: progress for watchers, compaction, checkpoints.

use std::{
    sync::{Condvar, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode};

use super::{committer::Op, disk, shared::Shared};
use crate::present::lock;

/// Beyond this the write-ahead log is emptied while writers wait, a few milliseconds. SQLite's own default of a thousand pages: a log that
/// starts over is written in place, one that grows makes each sync wait for the file system's journal as well.
pub(super) const WAL_PAGES_MAX: u32 = 1000;
const TICK: Duration = Duration::from_secs(1);
/// Seldom: of two that sync at once each waits for the other, which cost a tenth of the writes at ten a second.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
/// How often history is compacted, and how much of it is kept at least (upstream's default).
const COMPACT_EVERY: Duration = Duration::from_secs(300);

/// Tells the background threads to end.
#[derive(Default)]
pub(super) struct Stop {
    stopped: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    pub(super) fn stop(&self) {
        *lock(&self.stopped) = true;
        self.wake.notify_all();
    }

    /// Sleeps; false when it is time to end.
    fn wait(&self, time: Duration) -> bool {
        let stopped = lock(&self.stopped);
        let waited = self.wake.wait_timeout_while(stopped, time, |stopped| !*stopped);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Body of the thread that tells watchers of progress and compacts.
pub(super) fn tick(shared: &Shared, stop: &Stop) {
    let mut marked = (Instant::now(), shared.present.revision());
    while stop.wait(TICK) {
        shared.present.tick(true);
        let (at, revision) = marked;
        if at.elapsed() >= COMPACT_EVERY {
            // A closed queue means that the engine ends.
            let _ = shared.queue.push(Op::Compact { revision, reply: None });
            marked = (Instant::now(), shared.present.revision());
        }
    }
}

/// Body of the thread that moves the write-ahead log into the file. Passive: it never makes a writer wait.
pub(super) fn checkpoints(shared: &Shared, connection: &Connection, stop: &Stop) {
    while stop.wait(CHECKPOINT_EVERY) {
        if shared.poison.get().is_some() || !shared.dirty.swap(false, Ordering::Relaxed) {
            continue;
        }
        let _one = lock(&shared.checkpoint);
        match disk::checkpoint(connection) {
            Ok(_) => {}
            Err(e) if matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => {}
            Err(e) if disk::is_full(&e) => shared.dirty.store(true, Ordering::Relaxed),
            // A sync may have failed: the kernel has then forgotten pages that were never written.
            Err(error) => shared.poison(format!("a checkpoint failed: {error}")),
        }
    }
}
