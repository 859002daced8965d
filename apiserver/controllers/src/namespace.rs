//! Terminating namespaces lose their content, then themselves (api-server.md 5.1).

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin};
use apiserver_server::{
    Registry,
    registry::{Collection, ObjectKey, UpdateOptions},
};
use serde_json::Value;

use crate::{
    content,
    controller::{Outcome, Reconcile, Source},
    resource, unless_gone,
};

/// The finalizer in `spec.finalizers` that stands for the content.
const FINALIZER: &str = "kubernetes";

pub(crate) struct Namespaces {
    registry: Registry,
    namespaces: &'static Resource,
}

impl Namespaces {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, namespaces: resource("", "v1", "namespaces") }
    }
}

impl Reconcile for Namespaces {
    fn sources(&self) -> Vec<Source> {
        vec![Source { resource: self.namespaces, key: |object| Some(object.key()) }]
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Outcome, Status> {
        let Some(namespace) = self.registry.find(self.namespaces, &key).await? else { return Ok(Outcome::Done) };
        let namespace = namespace.value()?;
        let held = namespace
            .pointer("/spec/finalizers")
            .and_then(Value::as_array)
            .is_some_and(|finalizers| finalizers.iter().any(|f| f == FINALIZER));
        if namespace.pointer("/metadata/deletionTimestamp").is_none() || !held {
            return Ok(Outcome::Done);
        }
        let inside = Collection::namespace(&key.cluster, &key.name);
        let is_event = |r: &&Resource| r.plural == "events";
        let mut left = 0;
        // Events last: those that the deletion itself makes go too.
        let namespaced = || builtin::all().iter().filter(|r| r.is_namespaced());
        for resource in namespaced().filter(|r| !is_event(r)).chain(namespaced().filter(is_event)) {
            left += content::remove(&self.registry, resource, &inside).await?;
        }
        if left > 0 {
            return Ok(Outcome::Again);
        }
        let options = UpdateOptions { subresource: "finalize", ..UpdateOptions::default() };
        let finalize = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            if let Some(finalizers) = new.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut) {
                finalizers.retain(|f| f != FINALIZER);
            }
            Ok(new)
        };
        unless_gone(self.registry.modify(self.namespaces, &key, &options, finalize).await)?;
        Ok(Outcome::Done)
    }
}
