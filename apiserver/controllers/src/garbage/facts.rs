//! What the garbage collector reads of an object: its metadata, and which objects own it.

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin};
use apiserver_server::registry::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Object, ObjectKey};
use serde::{Deserialize, de::IgnoredAny};
use uuid::Uuid;

use super::graph::{Facts, Uid, Wait};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stored {
    metadata: Metadata,
}

/// The part of an object's metadata that matters.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) uid: String,
    deletion_timestamp: Option<IgnoredAny>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<Reference>>,
}

/// One entry of `ownerReferences`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Reference {
    api_version: String,
    kind: String,
    name: String,
    pub(super) uid: String,
    block_owner_deletion: Option<bool>,
}

impl Metadata {
    /// Reads it from the stored bytes.
    ///
    /// # Errors
    /// 500 when they are no object.
    pub(super) fn of(object: &Object) -> Result<Self, Status> {
        Ok(object.parse::<Stored>()?.metadata)
    }

    pub(super) fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub(super) fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().flatten().any(|f| f == finalizer)
    }

    /// What the object waits for the collector to do, if anything.
    pub(super) fn wait(&self) -> Option<Wait> {
        match self.is_terminating() {
            true if self.has_finalizer(ORPHAN_FINALIZER) => Some(Wait::Orphan),
            true if self.has_finalizer(FOREGROUND_FINALIZER) => Some(Wait::Foreground),
            _ => None,
        }
    }

    pub(super) fn owners(&self) -> &[Reference] {
        self.owner_references.as_deref().unwrap_or_default()
    }

    /// What the graph keeps of an object at this place.
    pub(super) fn facts(&self, resource: &Resource, key: &ObjectKey) -> Facts {
        let known = self.owners().iter().filter(|owner| owner.place(resource, key).is_some());
        let owners = known.map(|owner| (uid(&owner.uid), owner.block_owner_deletion == Some(true)));
        Facts::new(uid(&self.uid), owners, self.wait())
    }
}

impl Reference {
    /// Where the owner of an object at this place would be: in the same cluster, and in the same namespace or in none.
    /// `None` when that can be nowhere: its kind is not served, or an object of the cluster names one of a namespace. Of
    /// such an owner nothing is known, so nothing is ever deleted for its sake (api-server.md 5.12).
    pub(super) fn place(&self, resource: &Resource, key: &ObjectKey) -> Option<(&'static Resource, ObjectKey)> {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        let owner = builtin::all().iter().find(|r| r.kind == self.kind && r.group == group && r.version == version)?;
        let namespace = match owner.is_namespaced() {
            true if !resource.is_namespaced() => return None,
            true => &*key.namespace,
            false => "",
        };
        Some((owner, ObjectKey::new(&key.cluster, namespace, &self.name)))
    }
}

/// A uid as the graph keeps it. One that is no UUID (only a reference can hold such) gets one of its own: it belongs to
/// no object.
pub(super) fn uid(text: &str) -> Uid {
    Uuid::try_parse(text).unwrap_or_else(|_| Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes())).as_u128()
}
