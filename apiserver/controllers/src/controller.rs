//! The loop that all controllers share: watch, queue, reconcile, try again.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::Future,
    sync::Arc,
    time::Duration,
};

use apiserver_api::Status;
use apiserver_machinery::{Resource, selector::Selector};
use apiserver_server::{
    Registry,
    registry::{Collection, Object, ObjectKey, WatchEvent, WatchOptions, WatchStart},
};
use futures_util::{StreamExt, stream::SelectAll};
use tokio::task::JoinSet;
use tokio_util::{sync::CancellationToken, time::DelayQueue};

/// Keys that are looked at concurrently: enough for their writes to share a commit, few enough to leave the shard
/// to its clients.
const CONCURRENCY: usize = 32;
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Between a watch that broke and the next.
const REWATCH_AFTER: Duration = Duration::from_millis(200);

/// What a look at an object ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is left to do until something changes.
    Done,
    /// Something that cannot be watched is awaited: look again, with back-off.
    Again,
}

/// One controller.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// The resources it watches; for each, the key to look at when one of its objects changed.
    fn sources(&self) -> Vec<Source>;

    /// Looks at one object as it is now and does what is missing.
    fn reconcile(&self, key: ObjectKey) -> impl Future<Output = Result<Outcome, Status>> + Send;
}

/// A resource and the key that a change of one of its objects is about.
pub(crate) struct Source {
    /// The resource.
    pub(crate) resource: &'static Resource,
    /// `None`: the change does not matter.
    pub(crate) key: fn(&Object) -> Option<ObjectKey>,
}

/// Runs a controller until `shutdown`. Each key is looked at by one task at a time; a change during the look
/// leads to another one.
pub(crate) async fn run<R: Reconcile>(registry: Registry, reconciler: Arc<R>, shutdown: CancellationToken) {
    let mut state = State {
        reconciler,
        ready: VecDeque::new(),
        queued: HashSet::new(),
        running: HashSet::new(),
        again: HashSet::new(),
        tasks: JoinSet::new(),
        delayed: DelayQueue::new(),
        failures: HashMap::new(),
    };
    while !shutdown.is_cancelled() {
        let ended = shutdown.run_until_cancelled(session(&registry, &mut state)).await;
        let Some(status) = ended else { break };
        tracing::warn!(error = %status, "a controller's watch ended, beginning anew");
        shutdown.run_until_cancelled(tokio::time::sleep(REWATCH_AFTER)).await;
    }
    // What runs is let run: it is short, and each write is whole by itself.
    while state.tasks.join_next().await.is_some() {}
}

/// Watches until a watch ends. Begins with everything that is there.
async fn session<R: Reconcile>(registry: &Registry, state: &mut State<R>) -> Status {
    let mut watches = SelectAll::new();
    for source in state.reconciler.sources() {
        let options = WatchOptions { selector: Selector::default(), start: WatchStart::State };
        match registry.watch(source.resource, &Collection::everywhere(), options).await {
            Ok(watch) => watches.push(watch.map(move |event| (source.key, event)).boxed()),
            Err(status) => return status,
        }
    }
    loop {
        state.start_ready();
        tokio::select! {
            event = watches.next() => match event {
                Some((key, Ok(WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)))) => {
                    if let Some(key) = key(&object) {
                        state.enqueue(key);
                    }
                }
                Some((_, Ok(WatchEvent::InitialEnd(_) | WatchEvent::Progress(_)))) => {}
                Some((_, Err(status))) => return status,
                None => return Status::new(apiserver_api::Reason::InternalError, "the watch ended"),
            },
            Some(done) = state.tasks.join_next() => state.finished(done),
            Some(due) = state.delayed.next() => state.enqueue(due.into_inner()),
        }
    }
}

struct State<R> {
    reconciler: Arc<R>,
    ready: VecDeque<ObjectKey>,
    /// What is in `ready`.
    queued: HashSet<ObjectKey>,
    running: HashSet<ObjectKey>,
    /// Running, and to be looked at again afterwards.
    again: HashSet<ObjectKey>,
    tasks: JoinSet<(ObjectKey, Result<Outcome, Status>)>,
    delayed: DelayQueue<ObjectKey>,
    /// Consecutive failures of a key.
    failures: HashMap<ObjectKey, u32>,
}

impl<R: Reconcile> State<R> {
    fn enqueue(&mut self, key: ObjectKey) {
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn start_ready(&mut self) {
        while self.tasks.len() < CONCURRENCY {
            let Some(key) = self.ready.pop_front() else { return };
            self.queued.remove(&key);
            self.running.insert(key.clone());
            let reconciler = Arc::clone(&self.reconciler);
            self.tasks.spawn(async move { (key.clone(), reconciler.reconcile(key).await) });
        }
    }

    fn finished(&mut self, done: Result<(ObjectKey, Result<Outcome, Status>), tokio::task::JoinError>) {
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
            }
            Ok(Outcome::Again) => self.retry(key.clone()),
            Err(status) => {
                tracing::debug!(?key, error = %status, "will be tried again");
                self.retry(key.clone());
            }
        }
        if changed {
            self.enqueue(key);
        }
    }

    /// Looks again after a while. Entries of the delay queue are never taken back (its keys are used again once an
    /// entry is due): at worst a key is looked at once more than needed.
    fn retry(&mut self, key: ObjectKey) {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = BACKOFF_MIN.saturating_mul(1 << (*failures).min(14)).min(BACKOFF_MAX);
        *failures += 1;
        self.delayed.insert(key, delay);
    }
}
