//! The one task that keeps the observers of a shard.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{
    sync::mpsc,
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    handle::{Observers, Shared},
    source::{CountEvent, CountSource, SourceError, WorkspaceEvent},
    table::Table,
};

/// Between two openings of the source there is at least this much, so that a quiet type whose history is gone is
/// not listed in a loop (OB-06).
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// How often age is looked at.
const TICK: Duration = Duration::from_secs(1);
/// Items taken from the source before the feed and the timers get their turn.
const BATCH_MAX: usize = 256;

/// Why a session with the source ended.
enum End {
    /// In good order: it is time for a new snapshot.
    Resync,
    Failed(SourceError),
}

impl Observers {
    /// Follows the source and the feed of workspaces until `shutdown`. Afterwards all counts are unknown.
    ///
    /// When the feed's sender is dropped the known workspaces stay as they are. A bounded feed holds its sender
    /// back for as long as it takes to note the workspaces before, not for a snapshot.
    ///
    /// # Cancel safety
    /// Dropping the future is the same as `shutdown`.
    pub async fn run<S: CountSource>(
        self,
        source: S,
        feed: mpsc::Receiver<WorkspaceEvent>,
        shutdown: CancellationToken,
    ) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let driver = Driver { shared: self.shared, next: None, feed: Some(feed), ticks, last_sign: Instant::now() };
        shutdown.run_until_cancelled_owned(driver.run(source)).await;
    }
}

struct Driver {
    shared: Arc<Shared>,
    /// The table of a snapshot that is not complete yet.
    next: Option<Arc<Table>>,
    feed: Option<mpsc::Receiver<WorkspaceEvent>>,
    ticks: Interval,
    /// When the source last did anything, be it only a part of a snapshot.
    last_sign: Instant,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.abandoned();
    }
}

impl Driver {
    async fn run<S: CountSource>(mut self, mut source: S) {
        let mut backoff = BACKOFF_MIN;
        loop {
            let begun = Instant::now();
            let end = self.session(&mut source).await;
            if self.next.take().is_none() {
                backoff = BACKOFF_MIN; // it did give a snapshot
            }
            let until = match end {
                End::Resync => begun + BACKOFF_MIN,
                End::Failed(error) => {
                    self.shared.failures.fetch_add(1, Relaxed);
                    let wait = backoff + jitter(backoff / 2);
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                    tracing::warn!(%error, retry_in = ?wait, "object counts: source failed, last counts are held");
                    Instant::now() + wait
                }
            };
            while tokio::select! {
                () = sleep_until(until) => false,
                () = self.housekeeping() => true,
            } {}
        }
    }

    /// One snapshot and the changes after it.
    async fn session<S: CountSource>(&mut self, source: &mut S) -> End {
        let begun = Instant::now();
        self.last_sign = begun;
        self.next = Some(Arc::new(self.shared.table().successor()));
        let opening = source.open();
        tokio::pin!(opening);
        let stream = loop {
            tokio::select! {
                opened = &mut opening => break opened,
                () = self.housekeeping() => {}
            }
            if let Some(end) = self.is_due(begun) {
                return end;
            }
        };
        let mut stream = match stream {
            Ok(stream) => stream.ready_chunks(BATCH_MAX),
            Err(error) => return End::Failed(error),
        };
        loop {
            tokio::select! {
                batch = stream.next() => match batch {
                    None => return End::Failed("the stream ended".into()),
                    Some(batch) => for item in batch {
                        match item {
                            Ok(event) => self.count_event(event),
                            Err(error) => return End::Failed(error),
                        }
                    },
                },
                () = self.housekeeping() => {}
            }
            tokio::task::consume_budget().await; // a long snapshot must not keep its thread for itself
            if let Some(end) = self.is_due(begun) {
                return end;
            }
        }
    }

    fn count_event(&mut self, event: CountEvent) {
        self.last_sign = Instant::now();
        match (event, &self.next) {
            (CountEvent::Change(change), Some(next)) => next.apply(&change),
            (CountEvent::Synced, Some(_)) => self.next.take().into_iter().for_each(|next| self.shared.install(next)),
            (CountEvent::Heartbeat | CountEvent::Synced, None) => self.shared.heard(),
            (CountEvent::Heartbeat, Some(_)) => {}
            (CountEvent::Change(change), None) => {
                self.shared.table().apply(&change);
                self.shared.heard();
            }
        }
    }

    /// Whether this session should end.
    fn is_due(&self, begun: Instant) -> Option<End> {
        let options = &self.shared.options;
        let silent = self.last_sign.elapsed();
        if silent >= options.stale_after {
            return Some(End::Failed(format!("no sign of life for {silent:.0?}").into()));
        }
        let synced = self.next.is_none();
        let resync = synced && (begun.elapsed() >= options.resync_interval || self.shared.table().wants_snapshot());
        resync.then_some(End::Resync)
    }

    /// Takes one workspace event, or lets a second pass. Cancel safe: nothing is taken unless it returns.
    async fn housekeeping(&mut self) {
        let feed = async {
            match &mut self.feed {
                Some(feed) => feed.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = feed => match event {
                None => self.feed = None,
                Some(event) => {
                    if let Some(next) = &self.next {
                        next.workspace_event(event.clone());
                    }
                    self.shared.workspace_event(event);
                }
            },
            _ = self.ticks.tick() => self.shared.grow_old(),
        }
    }
}

/// A random part of `most`, so that many gateways do not list at once.
fn jitter(most: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 1024;
    most * u32::try_from(random).expect("below 1024") / 1024
}
