//! Create, update and modify.

use apiserver_api::{ClusterName, Reason, Status};
use apiserver_machinery::{
    Resource,
    managed::{self, Writer},
    meta,
    object::{metadata_mut, name},
    options::WriteOptions,
};
use apiserver_storage::{Condition, KeyValue, Txn, TxnOutcome};
use serde_json::Value;

use super::{Object, ObjectKey, Registry, lifecycle, object, quota::Charge, store_status};
use crate::{clock, errors};

/// How many generated names are tried before the collision is told (upstream v1.30).
const NAME_ATTEMPTS: usize = 8;

/// How to update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateOptions {
    /// Dry run and field manager.
    pub write: WriteOptions,
    /// `status`, `finalize`, or empty for the object itself.
    pub subresource: &'static str,
    /// Whether the write may create a missing object, where its kind allows that (PUT).
    pub may_create: bool,
    /// A changed uid is 409 (PUT) instead of 422 (patches).
    pub uid_is_precondition: bool,
    /// The new object brings its `managedFields` along, as server-side apply has made them. Otherwise the write is put
    /// down to its field manager.
    pub applied: bool,
}

/// Who is named in `managedFields` for writes that come without a manager: not those of clients, who have one always.
const OURSELVES: &str = "fairgate";

/// Who writes, for [`managed`].
fn writer<'a>(options: &'a WriteOptions, subresource: &'a str) -> Writer<'a> {
    let manager = if options.field_manager.is_empty() { OURSELVES } else { &options.field_manager };
    Writer { manager, subresource, now: clock::unix_now() }
}

/// How a write ended.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object as it is now, or its last state when the write took its last finalizer.
    pub object: Object,
    /// Whether the write created it.
    pub created: bool,
}

/// How the write of a new object ended.
enum Inserted {
    Done(Object),
    /// The name is taken.
    Taken,
    /// What it depends on has changed.
    Unguarded,
}

impl Registry {
    /// Creates an object. `namespace` is empty for cluster-scoped resources.
    ///
    /// # Errors
    /// 400, 403 or 404 from the checks of metadata, namespace and cluster, 422 from validation, 409 when the name
    /// is taken, and those of the store.
    pub async fn create(
        &self,
        resource: &'static Resource,
        cluster: &ClusterName,
        namespace: &str,
        object: Value,
        options: &WriteOptions,
    ) -> Result<Object, Status> {
        self.create_from(resource, cluster, namespace, object, options, false).await
    }

    /// [`Registry::create`]; for `applied` see [`UpdateOptions`].
    async fn create_from(
        &self,
        resource: &'static Resource,
        cluster: &ClusterName,
        namespace: &str,
        object: Value,
        options: &WriteOptions,
        applied: bool,
    ) -> Result<Object, Status> {
        let mut charge = None;
        let made = self.create_charged(resource, (cluster, namespace), object, (options, applied), &mut charge).await;
        if let (Err(_), Some(_)) = (&made, charge) {
            self.credit(resource, &ObjectKey::new(cluster, namespace, "")).await;
        }
        made
    }

    /// [`Registry::create_from`]. `charge` is for all attempts: what is left in it when this fails was surely not used.
    async fn create_charged(
        &self,
        resource: &'static Resource,
        (cluster, namespace): (&ClusterName, &str),
        mut object: Value,
        (options, applied): (&WriteOptions, bool),
        charge: &mut Option<Charge>,
    ) -> Result<Object, Status> {
        let given = !name(&object).is_empty();
        let entries = managed::take_entries(&mut object);
        let mut taken = 0;
        loop {
            let mut value = object.clone();
            meta::prepare_create(resource, &mut value, namespace, clock::unix_now())?;
            let name = name(&value).to_owned();
            let guard = self.admit_create(resource, cluster, namespace, &name).await?;
            (resource.prepare)(&mut value, None);
            meta::validate(resource, &value, None)?;
            object::strip(resource, &mut value);
            keep_entries(resource, None, &mut value, entries.clone(), applied, writer(options, ""));
            let key = ObjectKey::new(cluster, namespace, &name);
            if charge.as_ref().is_none_or(Charge::is_stale) {
                *charge = None;
                *charge = self.charge(resource, &key, options.dry_run).await?;
            }
            // While that is under way, and when it fails, nobody knows.
            let pending = charge.take();
            let inserted = self.insert(resource, &key, value, guard, options.dry_run).await?;
            *charge = pending;
            match inserted {
                Inserted::Done(object) => return Ok(object),
                Inserted::Taken if given => return Err(errors::already_exists(resource, &name)),
                Inserted::Taken => {
                    taken += 1;
                    if taken >= NAME_ATTEMPTS {
                        return Err(errors::generate_name_exhausted(resource, &name));
                    }
                }
                // Its namespace or cluster has changed, perhaps to its end: look again.
                Inserted::Unguarded => {}
            }
        }
    }

    /// Stores a new object, provided that `guard` is still what it was.
    async fn insert(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
        value: Value,
        guard: Option<Object>,
        dry_run: bool,
    ) -> Result<Inserted, Status> {
        let bytes = object::encode(resource, &value);
        let (path, place_at) = self.storage_key(resource, key)?;
        let object = |revision| {
            Object::new(
                resource,
                place_at,
                KeyValue { key: path.clone(), value: bytes.clone(), create_revision: revision, mod_revision: revision },
            )
        };
        if dry_run {
            let taken = self.find(resource, key).await?.is_some();
            return Ok(if taken { Inserted::Taken } else { Inserted::Done(object(0)) });
        }
        if self.find_mandatory(resource, key).await?.is_some() {
            return Ok(Inserted::Taken);
        }
        let guard = guard.map(|g| (g.storage_key().clone(), g.revision()));
        let (value, ttl) = (Some(bytes.clone()), resource.ttl);
        let txn = Txn { key: path.clone(), condition: Condition::Absent, guard, value, ttl };
        match self.store.txn(txn).await.map_err(store_status)? {
            TxnOutcome::Done { revision } => Ok(Inserted::Done(object(revision))),
            TxnOutcome::Conflict(_) => Ok(Inserted::Taken),
            TxnOutcome::Unguarded => Ok(Inserted::Unguarded),
        }
    }

    /// Replaces an object by this one. Its resourceVersion, when it has one, must be the present one.
    ///
    /// # Errors
    /// 404, 409 for a stale resourceVersion, 400 and 422 from the checks, and those of the store.
    pub async fn update(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
        object: Value,
        options: &UpdateOptions,
    ) -> Result<Written, Status> {
        self.modify(resource, key, options, |_| Ok(object.clone())).await
    }

    /// Changes an object: `change` gets it as clients see it (`None` when it is missing and may be created) and
    /// returns what it shall be. A write that changes nothing is none and keeps the resourceVersion. When somebody
    /// else was faster, `change` is asked again, as often as it takes (as upstream's `GuaranteedUpdate`): each time
    /// somebody's write has gone through, and a request has its deadline. A resourceVersion that `change` sets by itself
    /// is a precondition.
    ///
    /// # Errors
    /// Those of `change`, and those of [`Registry::update`].
    pub async fn modify<F>(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
        options: &UpdateOptions,
        mut change: F,
    ) -> Result<Written, Status>
    where
        F: FnMut(Option<&Value>) -> Result<Value, Status> + Send,
    {
        loop {
            let Some(current) = self.find(resource, key).await? else {
                if !(options.may_create && options.subresource.is_empty()) {
                    return Err(errors::not_found(resource, &key.name));
                }
                match self.create_named(resource, key, change(None)?, options).await? {
                    Some(object) => return Ok(Written { object, created: true }),
                    None => continue,
                }
            };
            let old = current.value()?;
            let mut new = change(Some(&old))?;
            let entries = managed::take_entries(&mut new);
            check_version(resource, &current, &new)?;
            meta::prepare_update(resource, &mut new, &old, options.subresource, options.uid_is_precondition)?;
            (resource.prepare)(&mut new, Some(&old));
            meta::finish_update(resource, &mut new, &old, options.subresource);
            meta::validate(resource, &new, Some(&old))?;
            if let Some(object) = self.store_change(&current, old, new, entries, options).await? {
                return Ok(Written { object, created: false });
            }
        }
    }

    /// Creates an object under the name of the URL; `None` when somebody else was faster.
    async fn create_named(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
        mut object: Value,
        options: &UpdateOptions,
    ) -> Result<Option<Object>, Status> {
        meta::check_name(&object, &key.name)?;
        metadata_mut(&mut object).insert("name".into(), (&*key.name).into());
        let (cluster, namespace) = (&key.cluster, &*key.namespace);
        match self.create_from(resource, cluster, namespace, object, &options.write, options.applied).await {
            Ok(object) => Ok(Some(object)),
            Err(status) if status.reason == Some(Reason::AlreadyExists) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Writes the new state of an object over `current`, which is `old`; `None` when that was changed meanwhile.
    async fn store_change(
        &self,
        current: &Object,
        mut old: Value,
        mut new: Value,
        entries: Option<Value>,
        options: &UpdateOptions,
    ) -> Result<Option<Object>, Status> {
        let (resource, dry_run) = (current.resource(), options.write.dry_run);
        object::strip(resource, &mut new);
        object::strip(resource, &mut old);
        let by = writer(&options.write, options.subresource);
        keep_entries(resource, Some(&old), &mut new, entries, options.applied, by);
        // The write that takes the last finalizer of a terminating object deletes it (api-server.md 2.6).
        let ends = lifecycle::is_terminating(&new) && !lifecycle::is_held(resource, &new);
        let last = current.unstored(&new);
        if ends {
            return Ok((dry_run || self.remove(current).await?).then_some(last));
        }
        if managed::is_same(&new, &old) {
            return Ok(Some(current.clone()));
        }
        if dry_run {
            return Ok(Some(last));
        }
        self.replace(current, &new).await
    }
}

/// Gives `new` the `managedFields` that it is stored with; `entries` are those that came with it. Copies have none: those
/// of the original speak of writes elsewhere.
fn keep_entries(
    resource: &Resource,
    old: Option<&Value>,
    new: &mut Value,
    entries: Option<Value>,
    applied: bool,
    by: Writer<'_>,
) {
    match entries {
        _ if resource.is_copy => drop(managed::take_entries(new)),
        Some(entries) if applied => drop(metadata_mut(new).insert("managedFields".into(), entries)),
        None if applied => drop(managed::take_entries(new)),
        given => managed::track(resource, old, new, given.as_ref(), by),
    }
}

/// A resourceVersion in the new object must be the present one.
fn check_version(resource: &Resource, current: &Object, new: &Value) -> Result<(), Status> {
    let given = match new.pointer("/metadata/resourceVersion") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(text)) if text.is_empty() || text == "0" => return Ok(()),
        Some(Value::String(text)) => text.parse::<u64>().ok(),
        Some(_) => None,
    };
    match given {
        Some(revision) if revision == current.revision() => Ok(()),
        Some(_) => Err(errors::stale(resource, current.name())),
        None => Err(Status::bad_request(
            "invalid resource version: metadata.resourceVersion must be a decimal number in quotes",
        )),
    }
}
