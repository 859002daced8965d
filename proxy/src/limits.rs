//! The limits in force, replaced by a reload while requests read them.
//!
//! A request reads several of them, so reading costs two plain loads and no lock, no counter and no copy: every version stays
//! where it is as long as the gateway runs. There is room for [`VERSIONS`] different ones.

use std::{
    ops::Deref,
    sync::{
        OnceLock,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Release},
        },
    },
};

use crate::Limits;

/// A few hundred bytes each; nobody changes limits so often between two restarts.
const VERSIONS: usize = 1024;

/// Reads as the [`Limits`] of now.
pub(crate) struct InForce {
    versions: Box<[OnceLock<Box<Limits>>]>,
    now: AtomicUsize,
    start: Limits,
}

impl InForce {
    pub(crate) fn new(start: Limits) -> Self {
        let versions = (0..VERSIONS).map(|_| OnceLock::new()).collect();
        Self { versions, now: AtomicUsize::new(VERSIONS), start }
    }

    /// Puts others in force, for what comes from now on. `false`, and nothing changes: there have been too many.
    pub(crate) fn replace(&self, limits: Limits) -> bool {
        if **self == limits {
            return true;
        }
        // Those that have been in force before stand there still.
        let holds = |version: &OnceLock<Box<Limits>>| **version.get_or_init(|| Box::new(limits)) == limits;
        let found = self.versions.iter().position(holds);
        found.is_some_and(|at| {
            self.now.store(at, Release);
            true
        })
    }
}

impl Deref for InForce {
    type Target = Limits;

    fn deref(&self) -> &Limits {
        self.versions.get(self.now.load(Acquire)).and_then(OnceLock::get).map_or(&self.start, |limits| limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_counts_until_there_is_no_room_and_those_of_before_take_none() {
        let limits = InForce::new(Limits::default());
        assert_eq!(*limits, Limits::default());
        let of = |streams| Limits { streams, ..Limits::default() };
        for _ in 0..VERSIONS {
            for streams in [1, 2] {
                assert!(limits.replace(of(streams)));
                assert_eq!(limits.streams, streams);
            }
        }
        for streams in 3..=1024 {
            assert!(limits.replace(of(streams)));
            assert!(limits.replace(of(streams)), "the same again takes no room");
            assert_eq!(limits.streams, streams);
        }
        assert!(!limits.replace(of(1025)));
        assert_eq!(limits.streams, 1024, "what is refused changes nothing");
        assert!(limits.replace(of(2)));
        assert_eq!(limits.streams, 2);
    }
}
