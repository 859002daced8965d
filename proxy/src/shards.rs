//! The shards by number, with their gates. They come and go while requests run.
//!
//! # Invariants
//! * A number stands for one shard for ever, and a shard for one address: what was routed, priced and charged by number
//!   stays right. What is found under another address is another shard, whatever its name.
//! * A shard that is gone is found by its number as long as something may run there, and by nobody who looks for shards.
//!
//! Finding one costs a few loads, and no lock.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use config::Protocol;
use fairness::Gate;
use observers::{Observers, WorkspaceEvent};
use tokio::sync::mpsc;

use crate::{
    Limits, StartError,
    options::{ShardOptions, Upstream},
    reachability::Reachability,
    upstream::Shard,
};

/// Shards in the life of a gateway, those that are gone included: each keeps a few kilobytes for ever.
const NUMBERS_MAX: usize = 50_000;

/// One shard with its gate.
pub(crate) struct Entry {
    pub(crate) shard: Shard,
    /// `None` = fairness is off.
    pub(crate) gate: Option<Arc<Gate>>,
    /// Each worker's own handle of it, by the worker's number.
    handles: Box<[Arc<Gate>]>,
    /// Those of the gate.
    pub(crate) seats: AtomicU32,
    /// Seats promised beyond those, as told last.
    pub(crate) reserves_missing: AtomicU64,
    pub(crate) reachability: Reachability,
    /// The object counts of its workspaces.
    pub(crate) observers: Option<Observers>,
    /// Tells the observers which workspaces there are.
    pub(crate) feed: Option<mpsc::Sender<WorkspaceEvent>>,
    /// URL and protocol; `None` in this process.
    address: Option<(String, Protocol)>,
    is_gone: AtomicBool,
}

impl Entry {
    /// # Errors
    /// Its URL cannot be used.
    pub(crate) fn new(
        options: &ShardOptions,
        gate: Option<Arc<Gate>>,
        limits: &Limits,
        workers: usize,
    ) -> Result<Self, StartError> {
        let (observers, feed) = options.observers.clone().unzip();
        Ok(Self {
            // One more pool than workers: for the gateway's own requests.
            shard: Shard::new(options, limits, workers + 1)?,
            handles: gate.iter().flat_map(|gate| (0..workers).map(|_| gate.for_thread())).collect(),
            gate,
            seats: AtomicU32::new(options.seats),
            reserves_missing: AtomicU64::new(0),
            reachability: Reachability::default(),
            observers,
            feed,
            address: address(&options.upstream),
            is_gone: AtomicBool::new(false),
        })
    }
}

/// What tells a shard from another one of the same name.
fn address(upstream: &Upstream) -> Option<(String, Protocol)> {
    match upstream {
        Upstream::Local(_) => None,
        Upstream::Remote(remote) => Some((remote.url.clone(), remote.protocol)),
    }
}

/// All of them.
pub(crate) struct Shards {
    entries: boxcar::Vec<Entry>,
    /// Those that are not gone.
    len: AtomicUsize,
    /// The shard of requests that name no workspace.
    platform: AtomicUsize,
    /// Held while something of them is changed. A std mutex: never on the path of a request, nor over an await.
    changing: Mutex<()>,
}

impl Shards {
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        let shards = Self {
            len: AtomicUsize::new(entries.len()),
            platform: AtomicUsize::new(0),
            changing: Mutex::default(),
            entries: entries.into_iter().collect(),
        };
        shards.choose_platform(|_| 0);
        shards
    }

    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard of a number, gone or not.
    pub(crate) fn get(&self, number: usize) -> Option<&Entry> {
        self.entries.get(number)
    }

    /// The gate of a shard, as the handle of one worker.
    pub(crate) fn gate(&self, number: usize, worker: usize) -> Option<&Arc<Gate>> {
        self.get(number)?.handles.get(worker)
    }

    /// All that are not gone, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.all().filter(|(_, entry)| !entry.is_gone.load(Relaxed))
    }

    /// Those that are gone too.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Whether it is the only one.
    pub(crate) fn is_only(&self, number: usize) -> bool {
        self.len() == 1 && self.get(number).is_some_and(|entry| !entry.is_gone.load(Relaxed))
    }

    /// The shard of requests that name no workspace.
    pub(crate) fn platform(&self) -> usize {
        self.platform.load(Relaxed)
    }

    /// Whether there are numbers for `more` of them.
    pub(crate) fn have_room(&self, more: usize) -> bool {
        self.entries.count() + more <= NUMBERS_MAX
    }

    /// Makes one known; its number.
    pub(crate) fn add(&self, entry: Entry) -> usize {
        self.len.fetch_add(1, Relaxed);
        self.entries.push(entry)
    }

    /// It is not looked for any more.
    pub(crate) fn leave(&self, number: usize) {
        if self.get(number).is_some_and(|entry| !entry.is_gone.swap(true, Relaxed)) {
            self.len.fetch_sub(1, Relaxed);
        }
    }

    /// The one that is named `root`, or else the first in the order that `rank` says.
    pub(crate) fn choose_platform(&self, rank: impl Fn(&str) -> usize) {
        let order =
            |(number, entry): &(usize, &Entry)| (&*entry.shard.name != "root", rank(&entry.shard.name), *number);
        if let Some((number, _)) = self.iter().min_by_key(order) {
            self.platform.store(number, Relaxed);
        }
    }

    /// What is to be done so that there are those that `wanted` describes, and no others.
    pub(crate) fn compare<'a>(&self, wanted: &'a [ShardOptions]) -> Comparison<'a> {
        let mut named: HashMap<&str, (usize, &Entry)> = self.iter().map(|at| (&*at.1.shard.name, at)).collect();
        let (mut stay, mut new) = (Vec::new(), Vec::new());
        for options in wanted {
            match named.remove(&*options.name) {
                Some((number, entry)) if entry.address == address(&options.upstream) => stay.push((number, options)),
                other => new.push((options, other.map(|(number, _)| number))),
            }
        }
        Comparison { stay, new, gone: named.into_values().map(|(number, _)| number).collect() }
    }
}

/// See [`Shards::compare`].
pub(crate) struct Comparison<'a> {
    /// Those that are there already.
    pub(crate) stay: Vec<(usize, &'a ShardOptions)>,
    /// Those that are not, with the number of the one in whose place each comes.
    pub(crate) new: Vec<(&'a ShardOptions, Option<usize>)>,
    /// Those in whose place none comes.
    pub(crate) gone: Vec<usize>,
}

/// What has come and gone.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) came: Vec<usize>,
    /// With the one that is in its place.
    pub(crate) went: Vec<(usize, Option<usize>)>,
}
