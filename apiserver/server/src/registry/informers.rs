//! Who reads all objects of some resources at its start, and whether all have: the check `informer-sync` of `/readyz`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::Registry;

/// How many informers were begun, and how many of them still read.
#[derive(Default)]
pub(super) struct Informers {
    begun: AtomicUsize,
    reading: AtomicUsize,
}

/// An informer that has not read everything yet. It has when this is dropped; what it misses later does not count.
pub struct Informing(Arc<Informers>);

impl Drop for Informing {
    fn drop(&mut self) {
        self.0.reading.fetch_sub(1, Relaxed);
    }
}

impl Registry {
    /// Somebody begins to read all objects of some resources. Call it before the server serves.
    pub fn informing(&self) -> Informing {
        self.informers.begun.fetch_add(1, Relaxed);
        self.informers.reading.fetch_add(1, Relaxed);
        Informing(Arc::clone(&self.informers))
    }

    /// Whether all informers have read everything; `None` when there are none.
    pub(crate) fn informed(&self) -> Option<bool> {
        (self.informers.begun.load(Relaxed) > 0).then(|| self.informers.reading.load(Relaxed) == 0)
    }
}
