//! The queue that all controllers share: each key is looked at by one task at a time, a change during the look leads to
//! another one, a look that failed is repeated with growing pauses.
//!
//! A key stands in it at most once, and at most once among those that wait for their time, so neither is ever longer than
//! the number of objects that a controller looks at.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt::Debug,
    future::Future,
    hash::Hash,
    time::Duration,
};

use apiserver_api::Status;
use futures_util::StreamExt;
use tokio::task::{JoinError, JoinSet};
use tokio_util::time::{DelayQueue, delay_queue};

/// Keys that are looked at concurrently: enough for their writes to share a commit, few enough to leave the shard
/// to its clients.
pub(crate) const CONCURRENCY: usize = 32;
/// Keys for which an empty queue keeps room.
const KEPT_MAX: usize = 4096;
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// What a look at an object ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is left to do until something changes.
    Done,
    /// Something that cannot be watched is awaited: look again, with back-off.
    Again,
    /// The same, but after this time.
    After(Duration),
}

/// See the module.
pub(crate) struct Queue<K> {
    ready: VecDeque<K>,
    /// What is in `ready`.
    queued: HashSet<K>,
    running: HashSet<K>,
    /// Running, and to be looked at again afterwards.
    again: HashSet<K>,
    tasks: JoinSet<(K, Result<Outcome, Status>)>,
    delayed: DelayQueue<K>,
    /// What is in `delayed`.
    due: HashMap<K, delay_queue::Key>,
    /// Consecutive failures of a key.
    failures: HashMap<K, u32>,
}

impl<K: Clone + Debug + Eq + Hash + Send + 'static> Queue<K> {
    /// An empty queue.
    pub(crate) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            running: HashSet::new(),
            again: HashSet::new(),
            tasks: JoinSet::new(),
            delayed: DelayQueue::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
        }
    }

    /// Keys that wait for a task.
    pub(crate) fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// This key is to be looked at.
    pub(crate) fn enqueue(&mut self, key: K) {
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    /// Starts as many looks as may run.
    pub(crate) fn start<F>(&mut self, look: impl Fn(K) -> F)
    where
        F: Future<Output = Result<Outcome, Status>> + Send + 'static,
    {
        while self.tasks.len() < CONCURRENCY {
            let Some(key) = self.ready.pop_front() else { return self.release() };
            self.queued.remove(&key);
            self.running.insert(key.clone());
            let looking = look(key.clone());
            self.tasks.spawn(async move { (key, looking.await) });
        }
    }

    /// Nothing waits: what was needed while all objects did, at a start, is given back.
    fn release(&mut self) {
        self.ready.shrink_to(KEPT_MAX);
        self.queued.shrink_to(KEPT_MAX);
    }

    /// Waits until a look has ended or one that failed is due again, and takes note of it; for ever when neither is to
    /// come.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn turn(&mut self) {
        tokio::select! {
            Some(done) = self.tasks.join_next() => self.finished(done),
            Some(due) = self.delayed.next() => {
                let key = due.into_inner();
                self.due.remove(&key);
                self.enqueue(key);
            }
            else => std::future::pending().await,
        }
    }

    /// Waits until nothing runs. What has failed waits for its time.
    pub(crate) async fn drain(&mut self) {
        while let Some(done) = self.tasks.join_next().await {
            self.finished(done);
        }
    }

    fn finished(&mut self, done: Result<(K, Result<Outcome, Status>), JoinError>) {
        let (key, outcome) = match done {
            Ok(done) => done,
            Err(error) => {
                // Its key stays in `running` and is looked at again after a restart only: better than a hot loop.
                tracing::error!(%error, "a controller panicked");
                return;
            }
        };
        self.running.remove(&key);
        let changed = self.again.remove(&key);
        match outcome {
            Ok(Outcome::Done) => {
                self.failures.remove(&key);
                if let Some(due) = self.due.remove(&key) {
                    self.delayed.remove(&due);
                }
            }
            Ok(Outcome::Again) => self.retry(key.clone()),
            Ok(Outcome::After(delay)) => self.delay(key.clone(), delay),
            Err(status) => {
                tracing::debug!(?key, error = %status, "will be tried again");
                self.retry(key.clone());
            }
        }
        if changed {
            self.enqueue(key);
        }
    }

    /// Looks again after a while, the longer the more often that was in vain. Looks in between, which changes led to, count
    /// for nothing here.
    fn retry(&mut self, key: K) {
        if self.due.contains_key(&key) {
            return;
        }
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = BACKOFF_MIN.saturating_mul(1 << (*failures).min(14)).min(BACKOFF_MAX);
        *failures += 1;
        self.delay(key, delay);
    }

    /// Looks again after this time, or when that is due anyway.
    fn delay(&mut self, key: K, delay: Duration) {
        if !self.due.contains_key(&key) {
            let due = self.delayed.insert(key.clone(), delay);
            self.due.insert(key, due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one look that ends so.
    async fn look(queue: &mut Queue<u8>, outcome: Outcome) {
        queue.start(move |_| async move { Ok(outcome) });
        queue.drain().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_for_its_time_once_however_often_it_changes() {
        let mut queue = Queue::new();
        for _ in 0..100 {
            queue.enqueue(1);
            look(&mut queue, Outcome::Again).await;
        }
        assert_eq!((queue.delayed.len(), queue.due.len(), queue.failures[&1]), (1, 1, 1));
        // Due, and in vain again: once more, and later.
        queue.turn().await;
        assert_eq!((queue.delayed.len(), queue.waiting()), (0, 1));
        look(&mut queue, Outcome::Again).await;
        assert_eq!((queue.delayed.len(), queue.failures[&1]), (1, 2));
        // Nothing is awaited any more.
        queue.enqueue(1);
        look(&mut queue, Outcome::Done).await;
        assert!(queue.delayed.is_empty() && queue.due.is_empty() && queue.failures.is_empty());
    }
}
