//! Threads that read the log for callers that ask for old revisions.

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::queue::Queue;
use crate::StoreError;

/// Reads that may wait for a thread; further callers wait in their own futures.
const WAITING_MAX: usize = 64;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

pub(super) struct Readers {
    jobs: Queue<Job>,
    slots: Semaphore,
}

impl Readers {
    pub(super) fn new() -> Self {
        Self { jobs: Queue::new(), slots: Semaphore::new(WAITING_MAX) }
    }

    /// Runs a read on one of the threads.
    ///
    /// # Cancel safety
    /// A read whose future is dropped still runs; its result is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _slot = self.slots.acquire().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let job = move |connection: &mut Connection| {
            if !reply.is_closed() {
                let _ = reply.send(read(connection));
            }
        };
        self.jobs.push(Box::new(job))?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// The body of one thread; ends after [`Self::close`].
    pub(super) fn serve(&self, mut connection: Connection) {
        loop {
            let mut taken = 0;
            let one = self.jobs.take(None, |_| {
                taken += 1;
                taken == 1
            });
            let Some(jobs) = one else { return };
            jobs.into_iter().for_each(|job| job(&mut connection));
        }
    }

    pub(super) fn close(&self) {
        self.jobs.abandon();
    }
}
