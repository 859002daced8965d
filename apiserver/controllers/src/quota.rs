//! What the quotas of a namespace say is used, set right whenever objects go or a quota was changed
//! (api-server.md 5.8). That of creates is added by those themselves.

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin, options::ListOptions};
use apiserver_server::{
    Registry,
    registry::{Collection, Object, ObjectKey},
};

use crate::{
    controller::{Reconcile, Source},
    queue::Outcome,
    resource, unless_gone,
};

pub(crate) struct Quotas {
    registry: Registry,
    quotas: &'static Resource,
}

impl Quotas {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, quotas: resource("", "v1", "resourcequotas") }
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
        let here = Collection::namespace(&namespace.cluster, &namespace.name);
        if self.registry.count(self.quotas, &here)? == 0 {
            return Ok(Outcome::Done);
        }
        for quota in self.registry.list(self.quotas, &here, &ListOptions::default()).await?.items {
            unless_gone(self.registry.recalculate_quota(&quota.key()).await)?;
        }
        Ok(Outcome::Done)
    }
}

/// The namespace that an object is in.
pub(crate) fn namespace_of(object: &Object) -> Option<ObjectKey> {
    let key = object.key();
    Some(ObjectKey { cluster: key.cluster, name: key.namespace, namespace: "".into() })
}
