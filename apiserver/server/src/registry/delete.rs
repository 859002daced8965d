//! Delete: finalizers, preconditions, propagation; one object or a collection.

use apiserver_api::Status;
use apiserver_machinery::{
    Resource, age,
    object::{items, metadata_mut},
    options::{DeleteOptions, ListOptions, Propagation},
};
use apiserver_storage::{Condition, Txn, TxnOutcome};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use super::{Collection, Object, ObjectKey, Page, Registry, lifecycle, object, store_status};
use crate::{clock, errors};

/// Objects of a collection that are deleted concurrently.
const CONCURRENCY: usize = 64;

/// Finalizer of an object whose dependents are to stay, until they no longer name it.
pub const ORPHAN_FINALIZER: &str = "orphan";
/// Finalizer of an object whose dependents go first, until those that block it are gone.
pub const FOREGROUND_FINALIZER: &str = "foregroundDeletion";

/// How a delete ended.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// The object is gone; its last state.
    Gone(Object),
    /// The object is terminating: finalizers hold it.
    Terminating(Object),
}

impl Deleted {
    /// The object's last or present state.
    fn into_object(self) -> Object {
        match self {
            Self::Gone(object) | Self::Terminating(object) => object,
        }
    }
}

impl Registry {
    /// Deletes one object, or marks it as terminating when finalizers hold it.
    ///
    /// # Errors
    /// 404, 409 for a violated precondition, and those of the store.
    pub async fn delete(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        // Until nobody is faster, as [`Registry::modify`].
        loop {
            let current = self.get(resource, key).await?;
            let mut value = current.stored()?;
            check_preconditions(options, &current, &value)?;
            let changed = propagate(resource, &mut value, options.propagation);
            if !lifecycle::is_held(resource, &value) {
                if options.dry_run || self.remove(&current).await? {
                    return Ok(Deleted::Gone(current));
                }
                continue;
            }
            let terminating = lifecycle::is_terminating(&value);
            if terminating && !changed {
                return Ok(Deleted::Terminating(current));
            }
            if !terminating {
                lifecycle::terminate(resource, &mut value, &age::rfc3339(clock::unix_now()));
            }
            if options.dry_run {
                return Ok(Deleted::Terminating(current.unstored(&value)));
            }
            if let Some(written) = self.replace(&current, &value).await? {
                return Ok(Deleted::Terminating(written));
            }
        }
    }

    /// Deletes every selected object of a collection, many at a time so that their writes share commits, each by
    /// itself: what was deleted before a failure stays deleted. `may_go` is asked about all of them before the first
    /// is deleted. Answers the objects' last or present states in key order, and how many finalizers hold.
    ///
    /// # Errors
    /// Those of `may_go`, of [`Registry::list`] and of [`Registry::delete`], except that an object that is gone
    /// already is fine.
    pub async fn delete_collection(
        &self,
        resource: &'static Resource,
        of: &Collection,
        list: &ListOptions,
        options: &DeleteOptions,
        may_go: impl Fn(&Object) -> Result<(), Status> + Send,
    ) -> Result<(Page, usize), Status> {
        let mut page = self.list(resource, of, list).await?;
        page.items.iter().try_for_each(may_go)?;
        let items = std::mem::take(&mut page.items);
        let deletions: Vec<_> = items.into_iter().map(|item| self.delete_listed(item, options)).collect();
        let deleted: Vec<Deleted> = stream::iter(deletions).buffered(CONCURRENCY).try_collect().await?;
        let held = deleted.iter().filter(|d| matches!(d, Deleted::Terminating(_))).count();
        page.items = deleted.into_iter().map(Deleted::into_object).collect();
        Ok((page, held))
    }

    async fn delete_listed(&self, item: Object, options: &DeleteOptions) -> Result<Deleted, Status> {
        match self.delete(item.resource(), &item.key(), options).await {
            Err(status) if status.code == 404 => Ok(Deleted::Gone(item)),
            outcome => outcome,
        }
    }

    /// Removes exactly this version, or makes it anew if it must be there; false when it was changed meanwhile.
    pub(super) async fn remove(&self, current: &Object) -> Result<bool, Status> {
        if let Some(fresh) = self.renewed(current).await? {
            return Ok(self.replace(current, &fresh).await?.is_some());
        }
        if !current.is_stored() {
            return Ok(true);
        }
        let condition = Condition::ModRevision(current.revision());
        let txn = Txn { key: current.storage_key().clone(), condition, guard: None, value: None, ttl: None };
        match self.store.txn(txn).await.map_err(store_status)? {
            TxnOutcome::Done { revision } => {
                if lifecycle::is_logical_cluster(current.resource()) {
                    self.removals.removed(&current.key().cluster, revision);
                }
                self.credit(current.resource(), &current.key()).await;
                Ok(true)
            }
            TxnOutcome::Conflict(_) | TxnOutcome::Unguarded => Ok(false),
        }
    }

    /// Replaces exactly this version; `None` when it was changed meanwhile.
    pub(super) async fn replace(&self, current: &Object, value: &Value) -> Result<Option<Object>, Status> {
        let resource = current.resource();
        let bytes = object::encode(resource, value);
        let (condition, guard) = if current.is_stored() {
            (Condition::ModRevision(current.revision()), None)
        } else {
            let key = current.key();
            (Condition::Absent, self.admit_create(resource, &key.cluster, &key.namespace, &key.name).await?)
        };
        let guard = guard.map(|guard| (guard.storage_key().clone(), guard.revision()));
        let (key, value) = (current.storage_key().clone(), Some(bytes.clone()));
        let txn = Txn { key, condition, guard, value, ttl: resource.ttl };
        match self.store.txn(txn).await.map_err(store_status)? {
            TxnOutcome::Done { revision } => Ok(Some(current.with(bytes, revision))),
            TxnOutcome::Conflict(_) | TxnOutcome::Unguarded => Ok(None),
        }
    }
}

fn check_preconditions(options: &DeleteOptions, current: &Object, value: &Value) -> Result<(), Status> {
    let resource = current.resource();
    let uid = value.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        );
        return Err(errors::precondition(resource, current.name(), &why));
    }
    let revision = current.revision().to_string();
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != revision) {
        let why = format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
        );
        return Err(errors::precondition(resource, current.name(), &why));
    }
    Ok(())
}

/// Leaves word for the garbage collector what shall become of the dependents (api-server.md 2.6); true when that changed
/// anything. Without a policy what the finalizers say already holds, and the default is Background for all kinds. Copies
/// have their dependents where their original is.
fn propagate(resource: &Resource, value: &mut Value, propagation: Option<Propagation>) -> bool {
    let wanted = match propagation {
        None => return false,
        Some(_) if resource.is_copy => return false,
        Some(Propagation::Background) => None,
        Some(Propagation::Foreground) => Some(FOREGROUND_FINALIZER),
        Some(Propagation::Orphan) => Some(ORPHAN_FINALIZER),
    };
    let mut finalizers = items(value, &["metadata", "finalizers"]).to_vec();
    let before = finalizers.clone();
    finalizers.retain(|f| !matches!(f.as_str(), Some(ORPHAN_FINALIZER | FOREGROUND_FINALIZER)) || f.as_str() == wanted);
    if let Some(wanted) = wanted
        && !finalizers.iter().any(|f| f == wanted)
    {
        finalizers.push(wanted.into());
    }
    if finalizers == before {
        return false;
    }
    let metadata = metadata_mut(value);
    match finalizers.is_empty() {
        true => metadata.remove("finalizers"),
        false => metadata.insert("finalizers".into(), finalizers.into()),
    };
    true
}
