//! Where objects lie in the store (kcp.md 1.5).

use apiserver_api::Status;
use apiserver_machinery::Resource;
use apiserver_storage::{
    Key,
    keys::{KeyError, ResourceKeys, cache_prefix},
};

use super::{Collection, ObjectKey, Registry};
use crate::errors;

/// The keys of a collection.
pub(super) struct Span {
    /// All of them begin with it.
    pub(super) prefix: String,
    /// Bytes in front of the part that says where an object is.
    pub(super) place_at: usize,
    /// Whether objects outside the collection have such keys too: those of one cluster under every shard, or of one
    /// namespace in every cluster, do not lie side by side.
    pub(super) scattered: bool,
}

impl Registry {
    /// The keys of a resource in one place: of the API server, or of one shard in the cache server.
    fn keys(&self, resource: &Resource) -> Result<ResourceKeys, Status> {
        let (group, plural) = (resource.stored_as().0, resource.plural);
        let keys = match &self.shard {
            _ if !resource.is_copy => ResourceKeys::new(group, plural),
            Some(shard) => ResourceKeys::cached(group, plural, shard),
            None => return Err(errors::internal("invariant violation: the copies of no shard have no common keys")),
        };
        keys.map_err(errors::internal)
    }

    /// Length of what all keys of a resource begin with.
    fn place_at(&self, resource: &Resource) -> Result<usize, Status> {
        if !resource.is_copy {
            return Ok(self.keys(resource)?.all().len());
        }
        cache_prefix(resource.group, resource.plural).map(|prefix| prefix.len()).map_err(errors::internal)
    }

    /// The storage key of one object, and the length of its part in front of the place.
    pub(super) fn storage_key(&self, resource: &Resource, key: &ObjectKey) -> Result<(Key, usize), Status> {
        let namespace = resource.is_namespaced().then_some(&*key.namespace);
        match self.keys(resource)?.key(&key.cluster, namespace, &key.name) {
            Ok(path) => Ok((path, self.place_at(resource)?)),
            // What can never have been stored cannot be found.
            Err(KeyError::Segment { .. }) => Err(errors::not_found(resource, &key.name)),
            Err(error) => Err(errors::internal(format!("invariant violation: {error}"))),
        }
    }

    /// The keys of a collection.
    pub(super) fn span(&self, resource: &Resource, of: &Collection) -> Result<Span, Status> {
        let place_at = self.place_at(resource)?;
        let one_namespace = resource.is_namespaced() && !of.namespace.is_empty();
        if resource.is_copy && self.shard.is_none() {
            let prefix = cache_prefix(resource.group, resource.plural).map_err(errors::internal)?;
            return Ok(Span { prefix, place_at, scattered: of.cluster.is_some() || one_namespace });
        }
        let keys = self.keys(resource)?;
        let prefix = match &of.cluster {
            None => Ok(keys.all().to_owned()),
            Some(cluster) if one_namespace => keys.namespace(cluster, &of.namespace),
            Some(cluster) => keys.cluster(cluster),
        };
        let prefix = prefix.map_err(|error| match error {
            KeyError::Segment { .. } => Status::bad_request(error.to_string()),
            KeyError::ClusterIsPath(_) => errors::internal(format!("invariant violation: {error}")),
        })?;
        Ok(Span { prefix, place_at, scattered: of.cluster.is_none() && one_namespace })
    }
}
