//! The requests that wait or run, for the debug endpoints: what the gate does not know of them.
//!
//! One list per worker, so that its lock is in practice taken by one thread only. An entry shares what the request has
//! anyway (URI, identity, rules): no text is copied and nothing parsed before somebody asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_api::ClusterName;
use fairness::{Classified, Clock, Cost, Permit, scheduler::RequestId};
use http::{Method, Uri};
use slab::Slab;

use crate::{identity::Identity, rules::Rules, worker::Worker};

/// One request.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) shard: usize,
    pub(crate) workspace: Option<ClusterName>,
    pub(crate) method: Method,
    /// As the client wrote it; the Kubernetes part of its path begins at `rest_at`.
    pub(crate) uri: Uri,
    pub(crate) rest_at: usize,
    pub(crate) identity: Arc<Identity>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) class: Classified,
    pub(crate) cost: Cost,
    pub(crate) is_watch: bool,
    /// When it came to the gate, and when it was started, by the gateway's clock.
    pub(crate) arrived_ns: u64,
    pub(crate) started_ns: Option<u64>,
    /// What the gate knows it by.
    pub(crate) id: Option<RequestId>,
}

/// The requests of one worker.
#[derive(Default)]
pub(crate) struct InFlight(Mutex<Slab<Entry>>);

impl InFlight {
    /// All of them, as they stand.
    pub(crate) fn snapshot(&self) -> Vec<Entry> {
        self.lock().iter().map(|(_, entry)| entry.clone()).collect()
    }

    /// Shows `see` each of them.
    pub(crate) fn each(&self, mut see: impl FnMut(&Entry)) {
        self.lock().iter().for_each(|(_, entry)| see(entry));
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place in the list; it leaves it when this is dropped.
pub(crate) struct Listed {
    worker: Arc<Worker>,
    key: usize,
}

impl Listed {
    pub(crate) fn new(worker: &Arc<Worker>, entry: Entry) -> Self {
        let key = worker.requests.lock().insert(entry);
        Self { worker: worker.clone(), key }
    }

    pub(crate) fn started(&self, now: u64) {
        if let Some(entry) = self.worker.requests.lock().get_mut(self.key) {
            entry.started_ns = Some(now);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let entry = self.worker.requests.lock().try_remove(self.key);
        let Some(entry) = entry else { return };
        let Some(started) = entry.started_ns else { return };
        if let Some(flow) = entry.rules.flow(entry.class.flow_schema) {
            let histogram = if entry.is_watch { &flow.watch_execution } else { &flow.execution };
            histogram.observe(self.worker.core.clock.now_ns().saturating_sub(started));
        }
    }
}

/// A running request's seats, and its place in the list.
pub(crate) struct Held {
    /// Dropped first: nobody is listed who holds nothing.
    _listed: Listed,
    _permit: Permit,
}

impl Held {
    pub(crate) fn new(listed: Listed, permit: Permit) -> Self {
        Self { _listed: listed, _permit: permit }
    }
}
