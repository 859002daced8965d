//! What the quotas of a namespace say is used, set right where it is not (api-server.md 5.8). Whoever makes or deletes an
//! object enters that himself; what is left here are new and changed quotas, and entries that got lost.
//!
//! The only controller that remembers something between two looks: how long a quota has said more than there is.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin, options::ListOptions};
use apiserver_server::{
    Registry,
    registry::{Collection, Object, ObjectKey, QUOTA_SETTLED, QuotaExcess},
};

use crate::{
    controller::{Reconcile, Source},
    queue::Outcome,
    resource, unless_gone,
};

/// Quotas that say more than there is, by their name.
type Excesses = HashMap<String, QuotaExcess>;

pub(crate) struct Quotas {
    registry: Registry,
    quotas: &'static Resource,
    /// By namespace, of which one look at a time is taken. Held for a few map operations, never over an await.
    noted: Mutex<HashMap<ObjectKey, Excesses>>,
}

impl Quotas {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, quotas: resource("", "v1", "resourcequotas"), noted: Mutex::default() }
    }

    fn noted(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Excesses>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconcile for Quotas {
    fn sources(&self) -> Vec<Source> {
        let counted = builtin::all().iter().filter(|r| r.is_namespaced() && r.plural != "events");
        let mut sources: Vec<Source> = counted.map(|r| Source::deletions(r, namespace_of)).collect();
        sources.push(Source::all(self.quotas, namespace_of));
        sources
    }

    async fn reconcile(&self, namespace: ObjectKey) -> Result<Outcome, Status> {
        let mut before = self.noted().remove(&namespace).unwrap_or_default();
        let here = Collection::namespace(&namespace.cluster, &namespace.name);
        if self.registry.count(self.quotas, &here)? == 0 {
            return Ok(Outcome::Done);
        }
        let (mut noted, mut again) = (Excesses::new(), false);
        for quota in self.registry.list(self.quotas, &here, &ListOptions::default()).await?.items {
            let mut excess = before.remove(quota.name());
            let audited = self.registry.audit_quota(&quota.key(), &mut excess, Instant::now()).await;
            again |= *audited.as_ref().unwrap_or(&false);
            unless_gone(audited)?;
            noted.extend(excess.map(|excess| (quota.name().to_owned(), excess)));
        }
        if !noted.is_empty() {
            self.noted().insert(namespace, noted);
        }
        Ok(if again { Outcome::After(QUOTA_SETTLED) } else { Outcome::Done })
    }
}

/// The namespace that an object is in.
pub(crate) fn namespace_of(object: &Object) -> Option<ObjectKey> {
    let key = object.key();
    Some(ObjectKey { cluster: key.cluster, name: key.namespace, namespace: "".into() })
}
