//! Each namespace has the service account `default` (api-server.md 5.4). Who deletes it gets a new one.

use apiserver_api::{Reason, Status};
use apiserver_machinery::{Resource, options::WriteOptions};
use apiserver_server::{
    Registry,
    registry::{Object, ObjectKey},
};
use serde_json::json;

use crate::{
    controller::{Reconcile, Source},
    queue::Outcome,
    quota::namespace_of,
    resource,
};

const DEFAULT: &str = "default";

pub(crate) struct ServiceAccounts {
    registry: Registry,
    namespaces: &'static Resource,
    accounts: &'static Resource,
}

impl ServiceAccounts {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, namespaces: resource("", "v1", "namespaces"), accounts: resource("", "v1", "serviceaccounts") }
    }
}

impl Reconcile for ServiceAccounts {
    fn sources(&self) -> Vec<Source> {
        let of_default = |object: &Object| namespace_of(object).filter(|_| object.name() == DEFAULT);
        vec![Source::all(self.namespaces, |object| Some(object.key())), Source::deletions(self.accounts, of_default)]
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Outcome, Status> {
        let Some(namespace) = self.registry.find(self.namespaces, &key).await? else { return Ok(Outcome::Done) };
        let account = ObjectKey::new(&key.cluster, &key.name, DEFAULT);
        if self.registry.find(self.accounts, &account).await?.is_some()
            || namespace.value()?.pointer("/metadata/deletionTimestamp").is_some()
        {
            return Ok(Outcome::Done);
        }
        let object = json!({ "metadata": { "name": DEFAULT } });
        match self.registry.create(self.accounts, &key.cluster, &key.name, object, &WriteOptions::default()).await {
            // Somebody was faster, or the namespace is gone. One that has begun to end is seen at the next look.
            Err(status) if status.reason != Some(Reason::AlreadyExists) && status.code != 404 => Err(status),
            _ => Ok(Outcome::Done),
        }
    }
}
