//! The handle that the request path asks.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU8, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use apiserver_api::ClusterName;
use arc_swap::ArcSwap;
use fairness::Counts;
use tokio::time::Instant;

use crate::{
    source::{Change, WorkspaceEvent},
    table::{Table, Tally},
};

/// Limits of the observers. The defaults are those of the gateway configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// A source that has been silent for this long makes all counts stale and is opened anew.
    pub stale_after: Duration,
    /// From this age on the counts are unknown.
    pub unknown_after: Duration,
    /// A new snapshot is taken this often.
    pub resync_interval: Duration,
    /// Clusters that have objects and were not announced by the feed; more are not counted until they appear.
    pub unclaimed_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            stale_after: Duration::from_secs(3 * 60),
            unknown_after: Duration::from_secs(60 * 60),
            resync_interval: Duration::from_secs(5 * 60),
            unclaimed_max: 1 << 17,
        }
    }
}

/// How much the counts are worth at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Freshness {
    Unknown = 0,
    Fresh = 1,
    Stale = 2,
}

/// What an operator wants to know of the observers of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Time since the source last vouched for the counts; `None` before the first snapshot.
    pub age: Option<Duration>,
    /// True when the counts are older than [`Options::stale_after`].
    pub stale: bool,
    /// Known workspaces.
    pub workspaces: usize,
    /// Clusters with objects that the feed has not announced, or has announced as gone.
    pub unclaimed: usize,
    /// Snapshots taken since the start.
    pub snapshots: u64,
    /// Failures of the source since the start.
    pub failures: u64,
}

/// The observers of all workspaces of one shard. Cheap to clone; all clones share the counts.
#[derive(Clone)]
pub struct Observers {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    /// Replaced as a whole by each snapshot, so that counts never pass through zero on the way (kcp.md 7.3).
    table: ArcSwap<Table>,
    /// A [`Freshness`], kept by the driver so that the request path needs no clock. Who sees the first `Fresh` sees
    /// the table it speaks of (release, acquire).
    freshness: AtomicU8,
    /// When the source last vouched for the counts, in milliseconds since `start`, plus one; 0 = never.
    heard_ms: AtomicU64,
    start: Instant,
    pub(crate) snapshots: AtomicU64,
    pub(crate) failures: AtomicU64,
}

impl Observers {
    /// Observers that know nothing yet; see [`Observers::run`].
    pub fn new(options: Options) -> Self {
        let shared = Shared {
            table: ArcSwap::from_pointee(Table::new(options.unclaimed_max)),
            options,
            freshness: AtomicU8::new(Freshness::Unknown as u8),
            heard_ms: AtomicU64::new(0),
            start: Instant::now(),
            snapshots: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The number and mean size of a workspace's objects of one resource, in one namespace or (with an empty
    /// `namespace`) in all of them.
    ///
    /// `Unknown` for workspaces that have not appeared and before the first snapshot; a workspace without objects
    /// of the resource has `Fresh` 0 of them. Does not allocate.
    pub fn counts(&self, workspace: &ClusterName, group: &str, resource: &str, namespace: &str) -> Counts {
        self.grade(|table| table.workspace(workspace, group, resource, namespace))
    }

    /// The same over all clusters of the shard, known or not: what a wildcard list returns.
    pub fn total(&self, group: &str, resource: &str) -> Counts {
        self.grade(|table| Some(table.total(group, resource)))
    }

    /// Known workspaces.
    pub fn len(&self) -> usize {
        self.shared.table.load().known()
    }

    /// True when no workspace is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a change that was learned otherwise than from the source, such as a create that was seen passing
    /// through. It holds until the next snapshot; an exact source must not be helped in this way.
    pub fn apply(&self, change: &Change) {
        self.shared.table.load().apply(change);
    }

    /// Age and size, for metrics and `explain`.
    pub fn status(&self) -> Status {
        let table = self.shared.table.load();
        Status {
            age: self.shared.age(),
            stale: self.shared.freshness.load(Relaxed) != Freshness::Fresh as u8,
            workspaces: table.known(),
            unclaimed: table.unclaimed(),
            snapshots: self.shared.snapshots.load(Relaxed),
            failures: self.shared.failures.load(Relaxed),
        }
    }

    fn grade(&self, read: impl FnOnce(&Table) -> Option<Tally>) -> Counts {
        let freshness = self.shared.freshness.load(Acquire);
        if freshness == Freshness::Unknown as u8 {
            return Counts::Unknown;
        }
        let Some(tally) = read(&self.shared.table.load()) else { return Counts::Unknown };
        let (objects, mean_bytes) = (tally.objects(), tally.mean_bytes());
        if freshness == Freshness::Fresh as u8 {
            Counts::Fresh { objects, mean_bytes }
        } else {
            Counts::Stale { objects, mean_bytes }
        }
    }
}

impl Shared {
    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Puts a complete snapshot in force.
    pub(crate) fn install(&self, table: Arc<Table>) {
        self.table.store(table);
        self.snapshots.fetch_add(1, Relaxed);
        self.heard();
    }

    pub(crate) fn workspace_event(&self, event: WorkspaceEvent) {
        self.table.load().workspace_event(event);
    }

    /// The source vouches for the counts as of now.
    pub(crate) fn heard(&self) {
        self.heard_ms.store(self.elapsed_ms() + 1, Relaxed);
        self.freshness.store(Freshness::Fresh as u8, Release);
    }

    /// Lets the counts grow old.
    pub(crate) fn grow_old(&self) {
        let freshness = match self.age() {
            None => Freshness::Unknown,
            Some(age) if age >= self.options.unknown_after => Freshness::Unknown,
            Some(age) if age >= self.options.stale_after => Freshness::Stale,
            Some(_) => return,
        };
        self.freshness.store(freshness as u8, Release);
    }

    /// Nobody keeps the counts any more.
    pub(crate) fn abandoned(&self) {
        self.freshness.store(Freshness::Unknown as u8, Release);
    }

    fn age(&self) -> Option<Duration> {
        let heard = self.heard_ms.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.elapsed_ms().saturating_sub(heard)))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).expect("a process does not run for 500 million years")
    }
}
