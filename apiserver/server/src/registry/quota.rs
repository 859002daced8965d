//! Admission by ResourceQuota (api-server.md 5.8): numbers of objects in a namespace.
//!
//! `status.used` of a quota is a ledger: one is added before an object is made, and taken off once one is gone, by whoever
//! makes or deletes it, and always by compare-and-set. So no number of writers, in this process or in others on the same
//! store, gets beyond the limit. All who wait for an entry in the same namespace share one write ([`gate`]).
//!
//! What is used is at least what there is. It is more while objects are being made, and when a process ended or lost an
//! answer between two writes. The latter is put right by counting ([`Registry::audit_quota`]), but nobody can see what
//! others have charged for and not made yet. So what is used falls by counting only after long enough a time without any
//! change ([`audit::Excess`]), and an entry that took too long ([`LIFE`]) is not relied on any more by its owner.
//!
//! A namespace without a quota costs one look at a counter for each create and delete.

mod audit;
mod gate;
mod ledger;

use std::time::{Duration, Instant};

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin, options::ListOptions};

use self::{gate::Entry, ledger::Ledger};
use super::{Collection, ObjectKey, Registry};
use crate::errors;

pub use self::audit::{Excess, SETTLED};
pub(super) use self::gate::Gates;

/// How often an entry is tried again when a quota was changed, or the process that wrote it for others went away.
const ATTEMPTS: usize = 16;
/// An object is made and an entry is made within this time, or not at all.
const LIFE: Duration = Duration::from_secs(10);

/// An object was charged for and may be made.
#[derive(Debug)]
pub(super) struct Charge {
    /// Before it was written.
    since: Instant,
}

impl Charge {
    /// Whether it is too old to make anything for it: somebody may count at any time.
    pub(super) fn is_stale(&self) -> bool {
        self.since.elapsed() > LIFE
    }
}

impl Registry {
    /// Charges the quotas of the namespace for one object more. `None` where none of them limits the resource.
    ///
    /// # Errors
    /// 403 when one of them has no room, and those of the store.
    pub(super) async fn charge(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
        dry_run: bool,
    ) -> Result<Option<Charge>, Status> {
        let ledgers = self.ledgers(resource, key).await?;
        if ledgers.is_empty() {
            return Ok(None);
        }
        if dry_run {
            ledgers.iter().try_for_each(|ledger| ledger.has_room(resource, &key.name))?;
            return Ok(None);
        }
        for _ in 0..ATTEMPTS {
            let since = Instant::now();
            if let Some(done) = self.post(key, Entry::charge(resource, &key.name)).await {
                return done.map(|()| Some(Charge { since }));
            }
        }
        Err(errors::stale(quotas(), ""))
    }

    /// Takes one object that is gone, or was charged for and surely not made, off the ledger. What fails here is found by
    /// counting some time later.
    pub(super) async fn credit(&self, resource: &'static Resource, key: &ObjectKey) {
        let entry = Entry::credit(resource);
        let done = match self.ledgers(resource, key).await {
            Ok(ledgers) if ledgers.is_empty() => return,
            Ok(_) => self.post(key, entry).await.unwrap_or_else(|| Err(errors::stale(quotas(), ""))),
            Err(status) => Err(status),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a quota says more than there is until it is counted again");
        }
    }

    /// The quotas of the object's namespace that limit the resource.
    async fn ledgers(&self, resource: &'static Resource, key: &ObjectKey) -> Result<Vec<Ledger>, Status> {
        // Events are nobody's to limit, and copies were admitted where their original is.
        if !is_counted(resource) || resource.is_copy {
            return Ok(Vec::new());
        }
        let here = Collection::namespace(&key.cluster, &key.namespace);
        if self.count(quotas(), &here)? == 0 {
            return Ok(Vec::new());
        }
        let mut ledgers = self.all_ledgers(&here).await?;
        ledgers.retain(|ledger| ledger.limits(resource));
        Ok(ledgers)
    }

    /// The quotas of a namespace.
    async fn all_ledgers(&self, here: &Collection) -> Result<Vec<Ledger>, Status> {
        let page = self.list(quotas(), here, &ListOptions::default()).await?;
        page.items.into_iter().map(|quota| Ledger::of(self, quota)).collect()
    }
}

fn quotas() -> &'static Resource {
    builtin::find("", "v1", "resourcequotas").expect("the table of built-in kinds has resourcequotas")
}

/// Whether quotas can limit a resource.
fn is_counted(resource: &Resource) -> bool {
    resource.is_namespaced() && resource.plural != "events"
}
