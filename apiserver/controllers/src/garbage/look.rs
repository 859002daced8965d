//! One look at one object: does it go, does it wait, may it end?

use std::sync::{Mutex, MutexGuard, PoisonError};

use apiserver_api::Status;
use apiserver_machinery::{
    object::{items, metadata_mut, text},
    options::{DeleteOptions, Propagation},
};
use apiserver_server::{
    Registry,
    registry::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Object, UpdateOptions},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::{
    facts::{Metadata, Reference, uid},
    graph::{Graph, Node, Uid, Wait},
};
use crate::{logical_cluster, queue::Outcome, unless_gone};

/// Dependents that are taken from the graph, and changed, at once.
const PAGE: usize = 256;
/// How many of them are written concurrently.
const WRITES: usize = 32;

/// The graph and the store.
pub(super) struct Collector {
    registry: Registry,
    /// Held for single operations of the graph, never over an await.
    graph: Mutex<Graph>,
}

/// What the owners of an object say about it.
#[derive(Default)]
struct Owners<'a> {
    /// Alive, or nothing is known of them.
    solid: usize,
    /// Not there, or another object of the same name is.
    absent: Vec<&'a str>,
    /// Being deleted in the foreground, as the graph knows: they want this object to go first.
    waiting: Vec<&'a str>,
}

impl Collector {
    pub(super) fn new(registry: Registry) -> Self {
        Self { registry, graph: Mutex::default() }
    }

    pub(super) fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does for one object what is due.
    ///
    /// # Errors
    /// Those of the store, and 409 when the object was changed meanwhile: look again.
    pub(super) async fn look(&self, node: &Node) -> Result<Outcome, Status> {
        let Some(object) = self.registry.find(node.resource, &node.key).await? else { return Ok(Outcome::Done) };
        let metadata = Metadata::of(&object)?;
        match metadata.wait() {
            // The store is ahead of the graph, which may not have all dependents yet. It will once it hears of this, and
            // that is reason to look again.
            Some(wait) if !self.graph().is_waiting(uid(&metadata.uid), wait) => {}
            Some(Wait::Orphan) => self.orphan(node, &metadata.uid).await?,
            Some(Wait::Foreground) => self.end_in_foreground(node, &metadata.uid).await?,
            None if metadata.is_terminating() || metadata.owners().is_empty() || is_spared(node) => {}
            None => self.judge(node, &object, &metadata).await?,
        }
        Ok(Outcome::Done)
    }

    /// Lets the dependents go, then the owner.
    async fn orphan(&self, node: &Node, owner: &str) -> Result<(), Status> {
        let (owners, mut after) = ([owner], None);
        loop {
            let some = self.graph().dependents(uid(owner), Some(&node.key.cluster), after, PAGE);
            let Some((last, _)) = some.last() else { break };
            after = Some(*last);
            let freed = some.iter().map(|(_, dependent)| self.drop_owners(dependent, None, &owners));
            stream::iter(freed.collect::<Vec<_>>()).buffer_unordered(WRITES).try_collect::<()>().await?;
        }
        self.release(node, owner, ORPHAN_FINALIZER).await
    }

    /// Lets the owner end unless a dependent blocks that. The last that does so brings us back here when it goes.
    async fn end_in_foreground(&self, node: &Node, owner: &str) -> Result<(), Status> {
        if self.graph().is_blocked(uid(owner), &node.key.cluster) {
            return Ok(());
        }
        self.release(node, owner, FOREGROUND_FINALIZER).await
    }

    /// Decides what becomes of an object that has owners.
    async fn judge(&self, node: &Node, object: &Object, metadata: &Metadata) -> Result<(), Status> {
        let own: Uid = uid(&metadata.uid);
        let owners = self.owners(node, metadata.owners()).await?;
        let gone = [owners.absent, owners.waiting.clone()].concat();
        if owners.solid > 0 {
            return if gone.is_empty() { Ok(()) } else { self.drop_owners(node, Some(&metadata.uid), &gone).await };
        }
        let mut revision = object.revision();
        let has_dependents = !self.graph().dependents(own, Some(&node.key.cluster), None, 1).is_empty();
        let propagation = if !owners.waiting.is_empty() && has_dependents {
            if self.graph().owns_waiting(own, &node.key.cluster) {
                // A circle: its owner waits for it, and it would wait for its owner.
                revision = self.unblock(node, &metadata.uid).await?.unwrap_or(revision);
            }
            Propagation::Foreground
        } else if metadata.has_finalizer(ORPHAN_FINALIZER) {
            Propagation::Orphan
        } else if metadata.has_finalizer(FOREGROUND_FINALIZER) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let options = DeleteOptions {
            propagation: Some(propagation),
            uid: Some(metadata.uid.clone()),
            // Whoever gives it another owner meanwhile keeps it.
            resource_version: Some(revision.to_string()),
            ..DeleteOptions::default()
        };
        unless_gone(self.registry.delete(node.resource, &node.key, &options).await)
    }

    /// Looks the owners up.
    async fn owners<'a>(&self, node: &Node, references: &'a [Reference]) -> Result<Owners<'a>, Status> {
        let mut owners = Owners::default();
        for reference in references {
            let Some((resource, key)) = reference.place(node.resource, &node.key) else {
                owners.solid += 1;
                continue;
            };
            let found = self.registry.find(resource, &key).await?;
            match found.as_ref().map(Metadata::of).transpose()? {
                // One that the graph has not heard of yet is no reason: what this object owns may not be known either.
                Some(owner)
                    if owner.uid == reference.uid
                        && owner.wait() == Some(Wait::Foreground)
                        && self.graph().is_waiting(uid(&owner.uid), Wait::Foreground) =>
                {
                    owners.waiting.push(&reference.uid);
                }
                Some(owner) if owner.uid == reference.uid => owners.solid += 1,
                _ => owners.absent.push(&reference.uid),
            }
        }
        Ok(owners)
    }

    /// Takes references to these owners out of an object, if it is still the one with this uid (`None`: any).
    async fn drop_owners(&self, node: &Node, own: Option<&str>, owners: &[&str]) -> Result<(), Status> {
        let change = |object: &mut Value| {
            if let Some(Value::Array(references)) = metadata_mut(object).get_mut("ownerReferences") {
                references.retain(|reference| !owners.contains(&text(reference, &["uid"])));
            }
        };
        self.change(node, own, change).await.map(drop)
    }

    /// Makes an object stand in no owner's way; its revision now, if it is there.
    async fn unblock(&self, node: &Node, own: &str) -> Result<Option<u64>, Status> {
        let change = |object: &mut Value| {
            if let Some(Value::Array(references)) = metadata_mut(object).get_mut("ownerReferences") {
                for reference in references.iter_mut().filter_map(Value::as_object_mut) {
                    reference.insert("blockOwnerDeletion".into(), json!(false));
                }
            }
        };
        self.change(node, Some(own), change).await
    }

    /// Takes a finalizer off a terminating object.
    async fn release(&self, node: &Node, own: &str, finalizer: &str) -> Result<(), Status> {
        let change = |object: &mut Value| *object = logical_cluster::without_finalizer(Some(object), finalizer);
        self.change(node, Some(own), change).await.map(drop)
    }

    /// Changes an object if it is there and, where a uid is given, still the one that has it; its revision then.
    async fn change(
        &self,
        node: &Node,
        own: Option<&str>,
        change: impl Fn(&mut Value) + Send,
    ) -> Result<Option<u64>, Status> {
        let new = move |old: Option<&Value>| {
            let mut object = old.cloned().unwrap_or_default();
            if own.is_none_or(|uid| uid == text(&object, &["metadata", "uid"])) {
                change(&mut object);
            }
            if items(&object, &["metadata", "ownerReferences"]).is_empty() {
                metadata_mut(&mut object).remove("ownerReferences");
            }
            Ok(object)
        };
        match self.registry.modify(node.resource, &node.key, &UpdateOptions::default(), new).await {
            Ok(written) => Ok(Some(written.object.revision())),
            Err(status) if status.code == 404 => Ok(None),
            Err(status) => Err(status),
        }
    }
}

/// What no owner takes along: what every cluster needs, and the cluster itself.
fn is_spared(node: &Node) -> bool {
    let cluster = node.resource.group == "core.kcp.io" && node.resource.plural == "logicalclusters";
    cluster || node.resource.immortal.contains(&&*node.key.name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver_api::ClusterName;
    use apiserver_machinery::{Resource, builtin, options::WriteOptions};
    use apiserver_server::{ApiServer, registry::ObjectKey};
    use apiserver_storage::Embedded;

    use super::*;

    fn maps() -> &'static Resource {
        builtin::find("", "v1", "configmaps").unwrap()
    }

    fn node(name: &str) -> Node {
        let root: ClusterName = ClusterName::ROOT.parse().unwrap();
        Node { resource: maps(), key: ObjectKey::new(&root, "default", name) }
    }

    struct World(Collector);

    impl World {
        async fn start() -> Self {
            let server = ApiServer::new(Arc::new(Embedded::in_memory()), apiserver_server::Options::default());
            server.bootstrap().await.unwrap();
            Self(Collector::new(server.registry().clone()))
        }

        /// Creates a ConfigMap that is owned by this one, if any.
        async fn create(&self, name: &str, owner: Option<&Object>) -> Object {
            let owners = owner.map(|owner| {
                let (name, uid) = (owner.name(), Metadata::of(owner).unwrap().uid);
                json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": true})
            });
            let object = json!({"metadata": {"name": name, "ownerReferences": Vec::from_iter(owners)}});
            let key = node(name).key;
            let options = WriteOptions::default();
            self.0.registry.create(maps(), &key.cluster, &key.namespace, object, &options).await.unwrap()
        }

        async fn find(&self, name: &str) -> Option<Object> {
            self.0.registry.find(maps(), &node(name).key).await.unwrap()
        }

        /// The stream tells of an object.
        fn told(&self, object: &Object) -> Vec<super::super::graph::Look> {
            let facts = Metadata::of(object).unwrap().facts(maps(), &object.key());
            self.0.graph().changed(node(object.name()), facts)
        }
    }

    /// An owner that is looked at for another reason, while the stream is still behind its dependent and its deletion.
    #[tokio::test]
    async fn nothing_is_done_before_the_graph_knows_all_dependents() {
        for propagation in [Propagation::Orphan, Propagation::Foreground] {
            let world = World::start().await;
            let top = world.create("top", None).await;
            let owner = world.create("owner", Some(&top)).await;
            world.told(&owner);
            let child = world.create("child", Some(&owner)).await;
            let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
            world.0.registry.delete(maps(), &node("owner").key, &options).await.unwrap();
            let deleted = world.find("owner").await.unwrap();

            assert_eq!(world.0.look(&node("owner")).await, Ok(Outcome::Done));
            let still = world.find("owner").await.expect("it waits until the stream has come so far");
            assert_eq!(still.revision(), deleted.revision());

            world.told(&child);
            assert!(!world.told(&deleted).is_empty(), "which is reason to look again");
            world.0.look(&node("owner")).await.unwrap();
            let child = world.find("child").await.expect("its owner is there, or has let it go");
            let is_orphan = Metadata::of(&child).unwrap().owners().is_empty();
            assert_eq!(is_orphan, propagation == Propagation::Orphan);
            assert_eq!(world.find("owner").await.is_none(), is_orphan, "in the foreground the child blocks it");
        }
    }

    /// What an owner in the foreground wants gone goes in the foreground too, with what it owns in turn.
    #[tokio::test]
    async fn a_waiting_owner_is_heeded_once_the_graph_knows_it() {
        let world = World::start().await;
        let owner = world.create("owner", None).await;
        let child = world.create("child", Some(&owner)).await;
        world.told(&child);
        let grandchild = world.create("grandchild", Some(&child)).await;
        let options = DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() };
        world.0.registry.delete(maps(), &node("owner").key, &options).await.unwrap();
        world.0.look(&node("child")).await.unwrap();
        assert!(world.find("child").await.is_some());
        world.told(&grandchild);
        world.told(&world.find("owner").await.unwrap());
        world.0.look(&node("child")).await.unwrap();
        let child = world.find("child").await.expect("it waits for the grandchild");
        assert_eq!(Metadata::of(&child).unwrap().wait(), Some(Wait::Foreground));
    }
}
