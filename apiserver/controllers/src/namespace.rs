//! Terminating namespaces lose their content, then themselves (api-server.md 5.1). What keeps them from it stands in
//! their conditions.

use apiserver_api::Status;
use apiserver_machinery::{
    Resource, builtin,
    object::{get, items, map_mut},
};
use apiserver_server::{
    Registry,
    registry::{Collection, ObjectKey, UpdateOptions},
};
use serde_json::{Value, json};

use self::conditions::{Findings, conditions};
use crate::{
    content,
    controller::{Reconcile, Source},
    queue::Outcome,
    quota::namespace_of,
    resource, unless_gone,
};

mod conditions;

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

    /// Deletes what is in the namespace, events last: those that the deletion itself makes go too. What cannot be deleted
    /// keeps nothing else from it.
    async fn remove_content(&self, inside: &Collection) -> Findings {
        let mut findings = Findings::default();
        let namespaced = || builtin::all().iter().filter(|r| r.is_namespaced());
        let is_event = |r: &&Resource| r.plural == "events";
        for resource in namespaced().filter(|r| !is_event(r)).chain(namespaced().filter(is_event)) {
            match content::remove(&self.registry, resource, inside).await {
                Ok(left) => findings.remaining.add(resource, left),
                Err(status) => findings.failed(status),
            }
        }
        findings
    }

    /// Writes the findings into the conditions, where that changes anything.
    async fn tell(&self, key: &ObjectKey, findings: &Findings) -> Result<(), Status> {
        let options = UpdateOptions { subresource: "status", ..UpdateOptions::default() };
        let told = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            let found = conditions(items(&new, &["status", "conditions"]), findings);
            if let Some(status) = map_mut(&mut new, "status") {
                status.insert("conditions".into(), found.into());
            }
            Ok(new)
        };
        unless_gone(self.registry.modify(self.namespaces, key, &options, told).await)
    }
}

impl Reconcile for Namespaces {
    fn sources(&self) -> Vec<Source> {
        // Whoever takes the last finalizer of the last object ends its namespace too, at once.
        let content = builtin::all().iter().filter(|r| r.is_namespaced() && r.plural != "events");
        let mut sources: Vec<Source> = content.map(|r| Source::deletions(r, namespace_of)).collect();
        sources.push(Source::all(self.namespaces, |object| Some(object.key())));
        sources
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Outcome, Status> {
        let Some(namespace) = self.registry.find(self.namespaces, &key).await? else { return Ok(Outcome::Done) };
        let namespace = namespace.value()?;
        let finalizers = items(&namespace, &["spec", "finalizers"]);
        let held = finalizers.iter().any(|f| f == FINALIZER);
        if namespace.pointer("/metadata/deletionTimestamp").is_none() || !held {
            return Ok(Outcome::Done);
        }
        let findings = self.remove_content(&Collection::namespace(&key.cluster, &key.name)).await;
        // A namespace that goes at once needs no explanation.
        let stays = finalizers.len() > 1 || !items(&namespace, &["metadata", "finalizers"]).is_empty();
        if !findings.is_empty() || stays || get(&namespace, &["status", "conditions"]).is_some() {
            self.tell(&key, &findings).await?;
        }
        if let Some(failure) = findings.into_failure() {
            return Err(failure);
        }
        if self.is_filled(&key)? {
            return Ok(Outcome::Again);
        }
        let options = UpdateOptions { subresource: "finalize", ..UpdateOptions::default() };
        let finalize = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_else(|| json!({}));
            if let Some(finalizers) = new.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut) {
                finalizers.retain(|f| f != FINALIZER);
            }
            Ok(new)
        };
        unless_gone(self.registry.modify(self.namespaces, &key, &options, finalize).await)?;
        Ok(Outcome::Done)
    }
}

impl Namespaces {
    /// Whether anything is left in the namespace, by the store's own counters.
    fn is_filled(&self, namespace: &ObjectKey) -> Result<bool, Status> {
        let inside = Collection::namespace(&namespace.cluster, &namespace.name);
        for resource in builtin::all().iter().filter(|r| r.is_namespaced()) {
            if self.registry.count(resource, &inside)? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
