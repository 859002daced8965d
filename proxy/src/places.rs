//! Places for what lasts and holds no seats: connections that have switched protocols, logs that are followed.
//!
//! No workspace can take them all: it may have as many more as are free (dynamic thresholds, Choudhury and Hahne 1998).
//! Alone it gets half of them, two that take what they can get a third each, and there is always one left for somebody
//! who has none.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use apiserver_api::ClusterName;
use dashmap::DashMap;

#[derive(Debug, Default)]
pub(crate) struct Places {
    taken: AtomicUsize,
    /// Of each workspace that has one; `None` is the platform.
    by: DashMap<Option<ClusterName>, usize>,
}

/// One of them, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    of: Arc<Places>,
    whose: Option<ClusterName>,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The workspace has its share.
    Share,
    /// All are taken.
    Full,
}

impl Places {
    /// Takes one of `max`.
    ///
    /// # Errors
    /// See [`NoPlace`].
    pub(crate) fn take(self: &Arc<Self>, whose: Option<&ClusterName>, max: usize) -> Result<Place, NoPlace> {
        let mut own = self.by.entry(whose.cloned()).or_default();
        // Counted first, so that two that come at once do not both get the last one.
        let taken = self.taken.fetch_add(1, Relaxed);
        if *own < max.saturating_sub(taken) {
            *own += 1;
            return Ok(Place { of: self.clone(), whose: whose.cloned() });
        }
        self.taken.fetch_sub(1, Relaxed);
        let is_full = taken >= max;
        drop(own);
        self.by.remove_if(&whose.cloned(), |_, own| *own == 0);
        Err(if is_full { NoPlace::Full } else { NoPlace::Share })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(1, Relaxed);
        self.of.by.remove_if_mut(&self.whose, |_, own| {
            *own -= 1;
            *own == 0
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use super::*;

    #[test]
    fn nobody_gets_them_all_and_there_is_one_left_for_somebody_new() {
        let places = Arc::<Places>::default();
        let mut kept = Vec::new();
        for (name, want) in [("a", 50), ("b", 25), ("c", 12)] {
            let name: ClusterName = name.parse().unwrap();
            let mut got = 0;
            while let Ok(place) = places.take(Some(&name), 100) {
                kept.push(place);
                got += 1;
            }
            assert!((want..=want + 1).contains(&got), "{name}: {got}");
            assert_eq!(places.take(Some(&name), 100).unwrap_err(), NoPlace::Share);
        }
        assert!(places.take(None, 100).is_ok());
        kept.clear();
        assert_eq!((places.taken.load(Relaxed), places.by.len()), (0, 0));
        let last = places.take(None, 1).unwrap();
        assert_eq!(places.take(Some(&"a".parse().unwrap()), 1).unwrap_err(), NoPlace::Full);
        drop(last);
        assert_eq!(places.by.len(), 0);
    }
}
