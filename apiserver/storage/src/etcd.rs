//! The store on etcd v3, which several API servers may share.
//!
//! ```text
//! txn ─ one transaction of etcd (compare of mod revisions) → its event is seen here → answer
//! one watch over everything ─ present state in memory → watchers, counts
//! get, range, watch ─ is memory as far as etcd? (one read for all who ask at that moment) → memory
//! range at an old revision ─ memory, else etcd
//! ```
//!
//! # Invariants
//! * A read sees every write that anybody was acknowledged before it began, whichever server wrote it.
//! * Every change has a revision of its own: each expiring key has its own lease. Between them there may be revisions
//!   of others who use the same etcd.
//! * A write is sent once. When its answer is lost the caller is told so, since it may have been carried out.
//! * Watches go on across the loss of a member, without gap or repeat; they end when etcd forgot what they need.
//!
//! # Costs
//! A write is one round trip (two with a time to live), and reads share one. Memory as the embedded engine: all keys
//! and values, and the bounded history. Four tasks, none per client. A watch can begin as far back as the last 16,384
//! changes or 32 MiB of values, also right after a start.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
};

use crate::{
    DirectoryCount, KeyValue, Range, RangeResult, Store, StoreError, StoreFuture, Txn, TxnOutcome, WatchStream,
    labels::Wanted,
    present::{Old, Present, lock, read},
};

mod client;
mod compactor;
mod follow;
mod freshness;
mod layout;
mod load;
mod options;
mod proto;
mod write;

pub use self::options::{Credentials, Options, SetupError};
use self::{
    client::{Client, PATIENCE},
    freshness::Waiting,
    layout::Layout,
};

/// The store on etcd; see the module. Dropping it does what [`Store::close`] does.
pub struct Etcd {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

/// What the tasks and callers share.
struct Shared {
    client: Client,
    layout: Layout,
    present: Arc<Present>,
    /// Callers that wait until memory is as far as etcd.
    waiting: mpsc::Sender<Waiting>,
    /// Asks the watch for its progress.
    ask: Notify,
    /// Whether the member that is watched answers to that.
    tells_progress: AtomicBool,
    /// Since when no watch runs; `None` while one does.
    lost: Mutex<Option<Instant>>,
    closed: AtomicBool,
}

impl Etcd {
    /// Reads everything below the prefix and goes on watching it. The tasks run on the runtime that calls.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub async fn connect(options: &Options) -> Result<Self, SetupError> {
        let client = Client::new(options)?;
        let layout = Layout::new(&options.prefix);
        let fail = |error: StoreError| {
            let (servers, text) = (options.servers.join(", "), error.to_string());
            let reason = text.trim_start_matches("the store is not available: etcd: ").to_owned();
            let hint = options.hint(&reason);
            SetupError::Store { servers, reason, hint }
        };
        let state = load::load(&client, &layout, load::Since::History).await.map_err(fail)?;
        let (waiting, waited) = mpsc::channel(freshness::WAITING_MAX);
        let shared = Arc::new(Shared {
            present: Arc::new(Present::new(state, None)),
            client,
            layout,
            waiting,
            ask: Notify::new(),
            tells_progress: AtomicBool::new(false),
            lost: Mutex::new(Some(Instant::now())),
            closed: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(follow::run(shared.clone()));
        tasks.spawn(freshness::run(shared.clone(), waited));
        tasks.spawn(compactor::run(shared.clone()));
        tasks.spawn(tick(shared.clone()));
        let store = Self { shared, tasks: Mutex::new(tasks) };
        store.shared.follow_up().await.map_err(fail)?;
        Ok(store)
    }
}

async fn tick(shared: Arc<Shared>) {
    let mut every_second = tokio::time::interval(std::time::Duration::from_secs(1));
    loop {
        every_second.tick().await;
        let follows = lock(&shared.lost).is_none();
        shared.present.tick(follows);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for Etcd {
    /// Nothing here needs a restart: what fails passes once etcd is there.
    fn failure(&self) -> Option<StoreError> {
        None
    }

    fn unavailable(&self) -> Option<StoreError> {
        // Until then reads wait for it.
        let lost = (*lock(&self.shared.lost))?.elapsed() > PATIENCE;
        lost.then(|| StoreError::Unavailable("etcd: the watch on it is lost".into()))
    }

    fn revision(&self) -> u64 {
        self.shared.present.revision()
    }

    fn epoch(&self) -> u64 {
        self.shared.present.epoch()
    }

    fn reached(&self, revision: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            // What nobody may have written here is learnt of by asking.
            self.shared.at_least(revision).await?;
            self.shared.present.reached(revision).await;
            Ok(())
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<KeyValue>> {
        Box::pin(async move {
            self.shared.fresh().await?;
            Ok(self.shared.present.state().tree.get(key).map(|entry| entry.unpack()))
        })
    }

    fn range(&self, range: Range) -> StoreFuture<'_, RangeResult> {
        Box::pin(async move {
            let Some(revision) = range.revision else {
                self.shared.fresh().await?;
                return Ok(self.shared.present.range_now(&range));
            };
            self.shared.at_least(revision).await?;
            match self.shared.present.old(revision)? {
                Old::Here(tree) => Ok(read(&tree, revision, &range)),
                Old::Later(..) => load::range(&self.shared, &range, revision).await,
            }
        })
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
        let prefix = prefix.to_owned();
        Box::pin(async move {
            self.shared.at_least(after).await?;
            self.shared.present.watch(&prefix, after, wanted)
        })
    }

    fn compact(&self, revision: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.shared.at_least(revision).await?;
            let current = self.shared.present.revision();
            if revision > current {
                return Err(StoreError::Future { requested: revision, current });
            }
            compactor::compact(&self.shared, revision).await
        })
    }

    fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        lock(&self.tasks).abort_all();
        self.shared.present.close();
    }
}

/// How often it is waited, after the start, until the watch has come to the present.
const START_ATTEMPTS: u32 = 6;

impl Shared {
    /// Waits until what was read at the start has become the present.
    async fn follow_up(&self) -> Result<(), StoreError> {
        let mut attempts = START_ATTEMPTS;
        loop {
            attempts -= 1;
            match self.fresh().await {
                Err(StoreError::Unavailable(_)) if attempts > 0 => {}
                done => return done,
            }
        }
    }

    /// Refuses what would never be answered.
    fn refuse_closed(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }
}
