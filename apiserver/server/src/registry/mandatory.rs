//! Objects that every logical cluster has though nothing is stored ([`Resource::mandatory`]), so that they cost nothing in
//! 100,000 clusters.
//!
//! Such an object is made of its description and of the cluster's `LogicalCluster` alone: it is as old as the cluster, has the
//! resourceVersion of the cluster's creation, and a uid that follows from the cluster's. So every read and every replica
//! shows the same one. A write stores it, under the condition that nothing is stored yet, and to watches it is a change; from
//! then on it is an object like any other. Deleting it stores it anew with another uid, in one write: nobody sees it missing
//! (upstream's controller makes it again some time later, apf.md 2.5). Only a cluster that ends takes it along.
//!
//! Lists and watches over all clusters show what is stored: who reads those knows what every cluster has.

use apiserver_api::{ClusterName, Status};
use apiserver_machinery::{
    Resource, age,
    object::{metadata_mut, name},
};
use apiserver_storage::KeyValue;
use serde_json::Value;
use uuid::Uuid;

use super::{Collection, Life, Object, ObjectKey, Registry, object};
use crate::clock;

impl Registry {
    /// The mandatory objects of a collection as they are while nothing is stored under their names, in key order; none of a
    /// cluster that does not exist.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn mandatory(&self, resource: &'static Resource, of: &Collection) -> Result<Vec<Object>, Status> {
        let (descriptions, Some(cluster)) = ((resource.mandatory)(), &of.cluster) else { return Ok(Vec::new()) };
        if descriptions.is_empty() {
            return Ok(Vec::new());
        }
        let Some(owner) = self.logical_cluster(cluster).await? else { return Ok(Vec::new()) };
        descriptions.iter().map(|description| self.imagined(resource, cluster, &owner, description)).collect()
    }

    /// The mandatory object of this name, if there is one and its cluster exists.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn find_mandatory(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
    ) -> Result<Option<Object>, Status> {
        if described(resource, &key.name).is_none() {
            return Ok(None);
        }
        let all = self.mandatory(resource, &Collection::cluster(&key.cluster)).await?;
        Ok(all.into_iter().find(|object| object.name() == &*key.name))
    }

    fn imagined(
        &self,
        resource: &'static Resource,
        cluster: &ClusterName,
        owner: &Object,
        description: &Value,
    ) -> Result<Object, Status> {
        let of_owner: Value = owner.parse()?;
        let field = |field: &str| of_owner.pointer(&format!("/metadata/{field}")).cloned().unwrap_or_default();
        let key = ObjectKey::new(cluster, "", name(description));
        let (path, place_at) = self.storage_key(resource, &key)?;
        let uid = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{}{path}", field("uid")).as_bytes());
        let value = object::encode(resource, &made(description, uid, field("creationTimestamp")));
        let mod_revision = owner.created();
        Ok(Object::new(resource, place_at, KeyValue { key: path, value, create_revision: 0, mod_revision }))
    }

    /// What a deleted object is replaced by: itself as it was at first, but younger. `None` for all that is not mandatory,
    /// and in a cluster that is being deleted.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn renewed(&self, deleted: &Object) -> Result<Option<Value>, Status> {
        let Some(description) = described(deleted.resource(), deleted.name()) else { return Ok(None) };
        let Some(owner) = self.logical_cluster(&deleted.key().cluster).await? else { return Ok(None) };
        if owner.parse::<Life>()?.is_terminating() {
            return Ok(None);
        }
        Ok(Some(made(description, Uuid::new_v4(), age::rfc3339(clock::unix_now()).into())))
    }
}

/// The object that is described.
fn made(description: &Value, uid: Uuid, since: Value) -> Value {
    let mut value = description.clone();
    let metadata = metadata_mut(&mut value);
    metadata.insert("uid".into(), uid.to_string().into());
    metadata.insert("creationTimestamp".into(), since);
    metadata.insert("generation".into(), 1.into());
    value
}

/// The description of the mandatory object of this name.
fn described(resource: &Resource, called: &str) -> Option<&'static Value> {
    (resource.mandatory)().iter().find(|description| name(description) == called)
}
