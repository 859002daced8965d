//! What is kept per workspace for as long as it is asked for.
//!
//! # Memory
//! At most [`WORKSPACES_MAX`] entries. With a static directory clients choose the names, and a request in flight may
//! bring back what was forgotten a moment ago: so an entry that nobody asked for goes by itself.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use apiserver_api::ClusterName;
use dashmap::DashMap;

/// Workspaces with an entry. Others are served without one.
const WORKSPACES_MAX: usize = 1 << 16;
/// How often [`Recent::sweep`] is to be called.
pub(crate) const SWEEP: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Recent<V> {
    /// Sharded locks, held for one look-up.
    entries: DashMap<ClusterName, Entry<V>>,
    /// Sweeps an entry survives.
    keep: AtomicU32,
    sweeps: AtomicU32,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    /// The sweep before the last use.
    used: AtomicU32,
}

impl<V> Recent<V> {
    /// Entries are kept for at least `keep` after their last use.
    pub(crate) fn new(keep: Duration) -> Self {
        let recent = Self { entries: DashMap::new(), keep: AtomicU32::new(0), sweeps: AtomicU32::new(0) };
        recent.keep_for(keep);
        recent
    }

    /// Another time to keep entries for.
    pub(crate) fn keep_for(&self, keep: Duration) {
        let sweeps = u32::try_from(keep.as_secs().div_ceil(SWEEP.as_secs())).unwrap_or(u32::MAX);
        self.keep.store(sweeps.saturating_add(1), Relaxed);
    }

    /// What `look` finds in the entry; `None` without one.
    pub(crate) fn read<T>(&self, workspace: &ClusterName, look: impl FnOnce(&V) -> T) -> Option<T> {
        let entry = self.entries.get(workspace)?;
        let now = self.sweeps.load(Relaxed);
        if entry.used.load(Relaxed) != now {
            entry.used.store(now, Relaxed);
        }
        Some(look(&entry.value))
    }

    /// The same for an entry that is made if need be; `None` if there is no room. What `make` and `change` read cannot
    /// become stale unnoticed: [`forget`](Self::forget) waits for them.
    pub(crate) fn write<T>(
        &self,
        workspace: &ClusterName,
        make: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> T,
    ) -> Option<T> {
        if self.entries.len() >= WORKSPACES_MAX && !self.entries.contains_key(workspace) {
            return None;
        }
        let used = self.sweeps.load(Relaxed);
        let make = || Entry { value: make(), used: AtomicU32::new(used) };
        Some(change(&mut self.entries.entry(workspace.clone()).or_insert_with(make).value))
    }

    /// The workspace is gone, or its entry may be wrong.
    pub(crate) fn forget(&self, workspace: &ClusterName) {
        self.entries.remove(workspace);
    }

    /// Drops what has not been used for long.
    pub(crate) fn sweep(&self) {
        let now = self.sweeps.fetch_add(1, Relaxed).wrapping_add(1);
        let keep = self.keep.load(Relaxed);
        self.entries.retain(|_, entry| now.wrapping_sub(entry.used.load(Relaxed)) <= keep);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use super::*;

    #[test]
    fn strangers_leave_by_themselves_and_regulars_stay() {
        let recent = Recent::new(2 * SWEEP);
        let regular: ClusterName = "regular".parse().unwrap();
        assert_eq!(recent.read(&regular, |n: &u32| *n), None);
        assert_eq!(recent.write(&regular, || 1, |n| std::mem::replace(n, 2)), Some(1));
        for n in 1..WORKSPACES_MAX {
            recent.write(&format!("w{n}").parse().unwrap(), || 0, |_| {}).unwrap();
        }
        let late: ClusterName = "late".parse().unwrap();
        assert_eq!(recent.write(&late, || 0, |_| {}), None, "there is no room");
        for _ in 0..3 {
            recent.sweep();
            assert_eq!(recent.entries.len(), WORKSPACES_MAX);
            assert_eq!(recent.read(&regular, |n| *n), Some(2));
        }
        recent.sweep();
        assert_eq!(recent.entries.len(), 1);
        assert_eq!(recent.write(&late, || 0, |_| {}), Some(()));
        recent.forget(&late);
        assert_eq!(recent.read(&late, |_| {}), None);
    }
}
