//! Entries of one namespace that wait for each other: one of those who wait writes for all.
//!
//! # Cancel safety
//! Who stops waiting for a charge is not charged unless that is being written; a credit is entered all the same. When the
//! one that writes goes away the others are told that their entry may or may not have been made: they charge again and do
//! not credit again, so the ledger never says too little.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Instant,
};

use apiserver_api::Status;
use apiserver_machinery::Resource;
use tokio::sync::oneshot;

use super::{ATTEMPTS, LIFE, Ledger, quotas};
use crate::{
    errors,
    registry::{Collection, ObjectKey, Registry},
};

/// One gate for each namespace (by its own key) in whose quotas entries are being made now.
///
/// The mutex is held for a few map operations, never over an await.
#[derive(Default)]
pub(in crate::registry) struct Gates(Mutex<HashMap<ObjectKey, Weak<Gate>>>);

/// See the module.
#[derive(Default)]
struct Gate {
    /// No more than objects are being made and deleted. Never held over an await.
    waiting: Mutex<Vec<Posted>>,
    writing: tokio::sync::Mutex<()>,
}

/// One object more, or one less.
pub(super) struct Entry {
    resource: &'static Resource,
    /// The name of an object that is to be made; `None`: one is gone.
    name: Option<Arc<str>>,
    since: Instant,
}

impl Entry {
    /// An object of this name is to be made.
    pub(super) fn charge(resource: &'static Resource, name: &Arc<str>) -> Self {
        Self { resource, name: Some(name.clone()), since: Instant::now() }
    }

    /// An object is gone, or was not made.
    pub(super) fn credit(resource: &'static Resource) -> Self {
        Self { resource, name: None, since: Instant::now() }
    }
}

struct Posted {
    entry: Entry,
    answer: oneshot::Sender<Result<(), Status>>,
}

impl Posted {
    /// Whether it is still to be entered.
    fn is_wanted(&self) -> bool {
        match self.entry.name {
            Some(_) => !self.answer.is_closed(),
            // Somebody may have counted what is gone.
            None => self.entry.since.elapsed() <= LIFE,
        }
    }
}

impl Gates {
    fn of(&self, key: &ObjectKey) -> Arc<Gate> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Swept whenever it has doubled since it was last full of gates in use: amortised constant cost.
        if map.len() == map.capacity() {
            map.retain(|_, gate| gate.strong_count() > 0);
        }
        let slot = map.entry(ObjectKey::new(&key.cluster, "", &key.namespace)).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let gate = Arc::default();
            *slot = Arc::downgrade(&gate);
            gate
        })
    }
}

impl Gate {
    fn waiting(&self) -> MutexGuard<'_, Vec<Posted>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Makes one entry in the quotas of the namespace that `key` lies in. `None`: whoever wrote it went away.
    pub(super) async fn post(&self, key: &ObjectKey, entry: Entry) -> Option<Result<(), Status>> {
        let gate = self.quotas.of(key);
        let (answer, mut answered) = oneshot::channel();
        gate.waiting().push(Posted { entry, answer });
        tokio::select! {
            biased;
            answer = &mut answered => return answer.ok(),
            _writing = gate.writing.lock() => {
                // Each entry is answered or dropped before its writer lets go.
                let batch = std::mem::take(&mut *gate.waiting());
                if !batch.is_empty() {
                    self.write_entries(&Collection::namespace(&key.cluster, &key.namespace), batch).await;
                }
            }
        }
        answered.await.ok()
    }

    async fn write_entries(&self, here: &Collection, mut batch: Vec<Posted>) {
        batch.retain(Posted::is_wanted);
        let outcome = self.write_accepted(here, &mut batch).await;
        for posted in batch {
            // Who does not wait any more does not mind.
            let _ = posted.answer.send(outcome.clone());
        }
    }

    /// Writes one batch; whoever finds no room is answered, and not in it any more.
    async fn write_accepted(&self, here: &Collection, batch: &mut Vec<Posted>) -> Result<(), Status> {
        let mut ledgers = self.all_ledgers(here).await?;
        for _ in 0..ATTEMPTS {
            enter(&mut ledgers, batch);
            let mut beaten = Vec::new();
            for ledger in ledgers.into_iter().filter(|ledger| ledger.is_changed) {
                if self.replace(&ledger.quota, &ledger.entered()).await?.is_none()
                    && let Some(now) = self.find(quotas(), &ledger.quota.key()).await?
                {
                    beaten.push(Ledger::of(self, now)?);
                }
            }
            if beaten.is_empty() {
                return Ok(());
            }
            // What the others were charged for those that find no room now is found by counting.
            ledgers = beaten;
        }
        Err(errors::stale(quotas(), ledgers.first().map_or("", |ledger| ledger.quota.name())))
    }
}

/// Enters what is gone, then what is to be made as far as all quotas have room.
fn enter(ledgers: &mut [Ledger], batch: &mut Vec<Posted>) {
    for posted in batch.iter().filter(|posted| posted.entry.name.is_none()) {
        ledgers.iter_mut().for_each(|ledger| ledger.enter(posted.entry.resource, false));
    }
    let accepted = std::mem::take(batch).into_iter().filter_map(|posted| {
        let Some(name) = &posted.entry.name else { return Some(posted) };
        let resource = posted.entry.resource;
        match ledgers.iter().try_for_each(|ledger| ledger.has_room(resource, name)) {
            Ok(()) => {
                ledgers.iter_mut().for_each(|ledger| ledger.enter(resource, true));
                Some(posted)
            }
            Err(status) => {
                let _ = posted.answer.send(Err(status));
                None
            }
        }
    });
    *batch = accepted.collect();
}
