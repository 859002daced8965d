//! The counters of all workspaces of one shard.
//!
//! Counts are kept for every cluster that the source speaks of, whether or not the feed has announced it yet: the
//! rows are a function of the source's stream alone and the set of known workspaces one of the feed alone, which
//! makes the result independent of how the two are interleaved. A row is visible only in a known workspace. A
//! cluster that is not known is dropped when its rows have come back to nothing.
//!
//! Clusters that are not known are bounded in number. What does not fit is not counted, the table is *lossy* from
//! then on, and a workspace that appears later without a complete row set is *partial*: unknown until
//! the next snapshot, which it asks for.
//!
//! # Costs
//! A row is 24 bytes and one byte of hash table. Rows are found by a keyed 64-bit hash of group, resource and
//! namespace instead of by interned names: no table of names that grows with what tenants make up, and one hash on
//! the request path. Two of the n rows of one workspace collide with probability n²/2⁶⁵ (10⁻¹³ for 1,000 rows), and
//! since the key is random per table, nobody can aim at it and the next snapshot ends it.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use apiserver_api::ClusterName;
use dashmap::{DashMap, Entry};

use crate::source::{Change, WorkspaceEvent};

/// Number and size of some objects. Signed, so that reordered changes add up in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    objects: i64,
    bytes: i64,
}

impl Tally {
    fn add(&mut self, change: &Change) {
        self.objects = self.objects.saturating_add(change.objects);
        self.bytes = self.bytes.saturating_add(change.bytes);
    }

    fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// The number of objects, never negative (OB-05).
    pub(crate) fn objects(self) -> u64 {
        u64::try_from(self.objects).unwrap_or(0)
    }

    /// Their mean size in bytes, rounded up; 0 when unknown.
    pub(crate) fn mean_bytes(self) -> u64 {
        match (u64::try_from(self.bytes), self.objects()) {
            (Err(_), _) | (_, 0) => 0,
            (Ok(bytes), objects) => bytes.div_ceil(objects),
        }
    }
}

/// Hashes group, resource and namespace of a row; already random, so maps of rows do not hash it again.
type RowKey = u64;

#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("row keys are u64");
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

type Rows = HashMap<RowKey, Tally, BuildHasherDefault<Identity>>;

/// Adds to a row and drops it when nothing is left. Capacity follows the rows down, with slack against flapping.
fn add(rows: &mut Rows, key: RowKey, change: &Change) {
    let row = rows.entry(key).or_default();
    row.add(change);
    if row.is_zero() {
        rows.remove(&key);
        if rows.capacity() > 4 * rows.len() + 8 {
            rows.shrink_to(2 * rows.len());
        }
    }
}

/// What is known of one logical cluster.
#[derive(Default)]
struct Observer {
    rows: Rows,
    /// The feed has announced it.
    known: bool,
    /// Changes may have been missed: the rows say nothing.
    partial: bool,
}

/// See the module's documentation.
pub(crate) struct Table {
    clusters: DashMap<ClusterName, Observer>,
    /// Sums over all clusters, known or not: what a wildcard list returns.
    totals: DashMap<RowKey, Tally, BuildHasherDefault<Identity>>,
    hasher: RandomState,
    known: AtomicUsize,
    unclaimed: AtomicUsize,
    unclaimed_max: usize,
    lossy: AtomicBool,
    wants_snapshot: AtomicBool,
}

impl Table {
    pub(crate) fn new(unclaimed_max: usize) -> Self {
        Self {
            clusters: DashMap::new(),
            totals: DashMap::default(),
            hasher: RandomState::new(),
            known: AtomicUsize::new(0),
            unclaimed: AtomicUsize::new(0),
            unclaimed_max,
            lossy: AtomicBool::new(false),
            wants_snapshot: AtomicBool::new(false),
        }
    }

    /// An empty table in which the same workspaces are known, ready for a snapshot.
    pub(crate) fn successor(&self) -> Self {
        let next = Self::new(self.unclaimed_max);
        for entry in self.clusters.iter().filter(|entry| entry.known) {
            next.appeared(entry.key().clone());
        }
        next
    }

    /// Known workspaces.
    pub(crate) fn known(&self) -> usize {
        self.known.load(Relaxed)
    }

    /// Clusters that have objects and are not known.
    pub(crate) fn unclaimed(&self) -> usize {
        self.unclaimed.load(Relaxed)
    }

    /// True when some workspace cannot be counted without a new snapshot.
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.wants_snapshot.load(Relaxed)
    }

    /// The row's tally; `None` for unknown workspaces and for those whose rows are incomplete.
    pub(crate) fn workspace(&self, cluster: &ClusterName, group: &str, resource: &str, ns: &str) -> Option<Tally> {
        let key = self.key(group, resource, ns);
        let observer = self.clusters.get(cluster)?;
        (observer.known && !observer.partial).then(|| observer.rows.get(&key).copied().unwrap_or_default())
    }

    /// The sum over all clusters.
    pub(crate) fn total(&self, group: &str, resource: &str) -> Tally {
        self.totals.get(&self.key(group, resource, "")).map(|tally| *tally).unwrap_or_default()
    }

    /// Adds one change.
    pub(crate) fn apply(&self, change: &Change) {
        let all = self.key(&change.group, &change.resource, "");
        self.totals.entry(all).or_default().add(change);
        self.totals.remove_if(&all, |_, tally| tally.is_zero());
        let mut entry = match self.clusters.entry(change.cluster.clone()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(_) if self.unclaimed() >= self.unclaimed_max => return self.lossy.store(true, Relaxed),
            Entry::Vacant(entry) => {
                self.unclaimed.fetch_add(1, Relaxed);
                entry.insert_entry(Observer { partial: self.lossy.load(Relaxed), ..Observer::default() })
            }
        };
        let observer = entry.get_mut();
        if !observer.partial {
            add(&mut observer.rows, all, change);
            if !change.namespace.is_empty() {
                add(&mut observer.rows, self.key(&change.group, &change.resource, &change.namespace), change);
            }
        }
        if !observer.known && observer.rows.is_empty() {
            entry.remove();
            self.unclaimed.fetch_sub(1, Relaxed);
        }
    }

    /// Takes note of a workspace's beginning or end.
    pub(crate) fn workspace_event(&self, event: WorkspaceEvent) {
        match event {
            WorkspaceEvent::Appeared(name) => self.appeared(name),
            WorkspaceEvent::Disappeared(name) => self.disappeared(name),
        }
    }

    fn appeared(&self, name: ClusterName) {
        let mut observer = match self.clusters.entry(name) {
            Entry::Occupied(entry) if entry.get().known => return,
            Entry::Occupied(entry) => {
                self.unclaimed.fetch_sub(1, Relaxed);
                entry.into_ref()
            }
            Entry::Vacant(entry) => entry.insert(Observer { partial: self.lossy.load(Relaxed), ..Observer::default() }),
        };
        observer.known = true;
        self.known.fetch_add(1, Relaxed);
        if observer.partial {
            self.wants_snapshot.store(true, Relaxed);
        }
    }

    fn disappeared(&self, name: ClusterName) {
        let Entry::Occupied(mut entry) = self.clusters.entry(name) else { return };
        if !std::mem::take(&mut entry.get_mut().known) {
            return;
        }
        self.known.fetch_sub(1, Relaxed);
        // Objects of it that the source still speaks of: their deletions are yet to come.
        let left = !entry.get().rows.is_empty();
        if left && self.unclaimed() < self.unclaimed_max {
            self.unclaimed.fetch_add(1, Relaxed);
        } else {
            entry.remove();
            self.lossy.fetch_or(left, Relaxed);
        }
    }

    fn key(&self, group: &str, resource: &str, namespace: &str) -> RowKey {
        self.hasher.hash_one((group, resource, namespace))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::vec, prelude::*, sample::Index};

    use super::*;

    /// Cluster, resource and namespace, each one of a few, and the sizes of the objects there.
    type Model = BTreeMap<(u8, u8, u8), Vec<i64>>;

    fn name(cluster: u8) -> ClusterName {
        format!("ws{cluster}").parse().unwrap()
    }

    fn change((cluster, resource, namespace): (u8, u8, u8), objects: i64, bytes: i64) -> Change {
        let namespace = if namespace == 0 { String::new() } else { format!("ns{namespace}") };
        let resource = format!("things{resource}").into();
        Change { cluster: name(cluster), group: "g".into(), resource, namespace: namespace.into(), objects, bytes }
    }

    /// One write to the store, as the source tells it.
    fn write(model: &mut Model, at: (u8, u8, u8), kind: u8, size: i64, which: Index) -> Option<Change> {
        let objects = model.entry(at).or_default();
        match kind {
            0 | 1 => {
                objects.push(size);
                Some(change(at, 1, size))
            }
            _ if objects.is_empty() => None,
            2 => {
                let object = which.get(objects.as_slice());
                let grown = size - object;
                let at_index = which.index(objects.len());
                objects[at_index] = size;
                Some(change(at, 0, grown))
            }
            _ => {
                let at_index = which.index(objects.len());
                Some(change(at, -1, -objects.remove(at_index)))
            }
        }
    }

    fn snapshot(table: &Table, model: &Model) -> Table {
        let next = table.successor();
        for (at, objects) in model {
            next.apply(&change(*at, objects.len() as i64, objects.iter().sum()));
        }
        next
    }

    fn recount(model: &Model, wanted: impl Fn(&(u8, u8, u8)) -> bool) -> Tally {
        let found = || model.iter().filter(|(at, _)| wanted(at)).flat_map(|(_, objects)| objects);
        Tally { objects: found().count() as i64, bytes: found().sum() }
    }

    proptest! {
        /// Whatever the interleaving of feed, writes and snapshots, and however few strangers fit aside: in the end
        /// the counts equal a recount, and nothing is kept of clusters that are neither known nor have objects.
        #[test]
        fn counts_equal_a_recount(
            writes in vec(((0u8..4, 0u8..2, 0u8..3), 0u8..5, 1i64..1000, any::<Index>()), 0..60),
            feed in vec((0u8..4, any::<bool>()), 0..20),
            order in vec(0u8..8, 0..160),
            unclaimed_max in 0usize..4,
        ) {
            let (mut table, mut model, mut known) = (Table::new(unclaimed_max), Model::new(), [false; 4]);
            let (mut writes, mut feed) = (writes.into_iter(), feed.into_iter());
            for turn in order.into_iter().chain([0; 60]).chain([5; 20]) {
                match turn {
                    0..5 => if let Some((at, kind, size, which)) = writes.next()
                        && let Some(change) = write(&mut model, at, kind, size, which) {
                        table.apply(&change);
                    },
                    5 | 6 => if let Some((cluster, here)) = feed.next() {
                        known[usize::from(cluster)] = here;
                        let event = if here { WorkspaceEvent::Appeared } else { WorkspaceEvent::Disappeared };
                        table.workspace_event(event(name(cluster)));
                    },
                    _ => table = snapshot(&table, &model),
                }
            }
            if table.wants_snapshot() {
                table = snapshot(&table, &model);
            }
            prop_assert!(!table.wants_snapshot(), "one snapshot is enough");
            for (cluster, resource, namespace) in (0..4).flat_map(|c| (0..2).flat_map(move |r| (0..3).map(move |n| (c, r, n)))) {
                let c = change((cluster, resource, namespace), 0, 0);
                let counted = table.workspace(&c.cluster, "g", &c.resource, &c.namespace);
                let expected = recount(&model, |at| (at.0, at.1) == (cluster, resource) && (namespace == 0 || at.2 == namespace));
                prop_assert_eq!(counted, known[usize::from(cluster)].then_some(expected));
            }
            for resource in 0..2 {
                prop_assert_eq!(table.total("g", &format!("things{resource}")), recount(&model, |at| at.1 == resource));
            }
            let strangers = (0..4u8).filter(|c| !known[usize::from(*c)] && !recount(&model, |at| at.0 == *c).is_zero());
            prop_assert!(table.unclaimed() <= strangers.count().min(unclaimed_max));
            prop_assert_eq!(table.known(), known.iter().filter(|k| **k).count());
            prop_assert_eq!(table.clusters.len(), table.known() + table.unclaimed());
        }
    }

    #[test]
    fn a_tally_is_never_negative_and_its_mean_never_divides_by_zero() {
        let tally = |objects, bytes| Tally { objects, bytes };
        assert_eq!((tally(-3, 10).objects(), tally(-3, 10).mean_bytes()), (0, 0));
        assert_eq!((tally(3, 10).objects(), tally(3, 10).mean_bytes()), (3, 4));
        assert_eq!((tally(3, -1).mean_bytes(), tally(0, 7).mean_bytes()), (0, 0));
    }

    #[test]
    fn rows_give_memory_back() {
        let table = Table::new(10);
        table.appeared(name(0));
        let of = |i: usize, n| Change { namespace: format!("ns{i}").into(), ..change((0, 0, 0), n, n) };
        (0..1000).for_each(|i| table.apply(&of(i, 1)));
        (0..1000).for_each(|i| table.apply(&of(i, -1)));
        let observer = table.clusters.get("ws0").unwrap();
        assert!(observer.rows.is_empty() && observer.rows.capacity() <= 16, "{}", observer.rows.capacity());
    }

    /// Five resources with one namespace each, as a small tenant has them (budget: 200 bytes each).
    #[test]
    fn a_workspace_and_resource_takes_at_most_200_bytes() {
        let table = Table::new(0);
        let clusters = 10_000u64;
        for cluster in 0..clusters {
            let cluster: ClusterName = format!("{cluster:016}").parse().unwrap();
            table.appeared(cluster.clone());
            for resource in 0..5 {
                table.apply(&Change { cluster: cluster.clone(), ..change((0, resource, 1), 3, 900) });
            }
        }
        // A hash table's bucket has one control byte, and at the worst moment 7/16 of them are filled.
        let bucket = |size: usize| (size + 1) as u64;
        let rows: u64 = table.clusters.iter().map(|o| o.rows.capacity() as u64 * 8 / 7).sum();
        let name = 2 * size_of::<usize>() + 16 + 16; // reference counts, text, allocator
        let observers = table.clusters.capacity().max(table.clusters.len() * 16 / 7) as u64;
        let bytes = rows * bucket(size_of::<(RowKey, Tally)>())
            + observers * bucket(size_of::<(ClusterName, Observer)>())
            + clusters * name as u64;
        assert!(bytes / (5 * clusters) <= 200, "{} bytes", bytes / (5 * clusters));
    }
}
