//! Admission by ResourceQuota (api-server.md 5.8): numbers of objects in a namespace.
//!
//! `status.used` of a quota is a ledger: before an object is made, one is added to it by compare-and-set, so that no
//! number of writers, in this process or in another, gets beyond the limit. It is set right from the store's counters
//! ([`Registry::recalculate_quota`]) when objects go, and when a create that was charged for failed.
//!
//! What is being made is charged for and not yet counted. So counting waits until nothing is being made in that
//! namespace by this process. Of creates in other processes on the same store it knows nothing: one of them that lies
//! between its two writes at that very moment can be forgotten, as upstream can forget it.
//!
//! A namespace without a quota costs one look at a counter for each create.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use apiserver_api::{ClusterName, Status};
use apiserver_machinery::{
    Resource, builtin,
    object::{entries, get, set},
    options::ListOptions,
    quantity::Quantity,
};
use serde_json::{Map, Value};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use super::{Collection, Object, ObjectKey, Registry, UpdateOptions};
use crate::errors;

/// How often a charge is tried again when a quota was changed meanwhile.
const ATTEMPTS: usize = 16;
/// Core resources that a quota may limit under their own name, for history's sake; all others only as `count/<name>`.
const OLD_NAMES: [&str; 3] = ["configmaps", "resourcequotas", "secrets"];

/// One gate for each namespace with a quota (by its own key) in which objects are being made now.
///
/// The mutex is held for a few map operations, never over an await.
#[derive(Default)]
pub(super) struct Gates(Mutex<HashMap<ObjectKey, Weak<Gate>>>);

/// See [`Gates`].
#[derive(Default)]
struct Gate {
    /// Read while an object is being made, written while objects are counted.
    making: Arc<RwLock<()>>,
    /// One charge at a time: writers of this process need not race each other.
    charging: tokio::sync::Mutex<()>,
}

/// An object was charged for and may be made. Held until that is done or has failed.
pub(super) struct Charge {
    _gate: Arc<Gate>,
    _making: OwnedRwLockReadGuard<()>,
}

impl Gates {
    fn of(&self, cluster: &ClusterName, namespace: &str) -> Arc<Gate> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Swept whenever it has doubled since it was last full of gates in use: amortised constant cost.
        if map.len() == map.capacity() {
            map.retain(|_, gate| gate.strong_count() > 0);
        }
        let slot = map.entry(ObjectKey::new(cluster, "", namespace)).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let gate = Arc::default();
            *slot = Arc::downgrade(&gate);
            gate
        })
    }
}

impl Registry {
    /// Charges the quotas of the namespace for one object more. `None` where there are none.
    ///
    /// # Errors
    /// 403 when one of them has no room, and those of the store.
    pub(super) async fn charge(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
        dry_run: bool,
    ) -> Result<Option<Charge>, Status> {
        // Events are nobody's to limit, and copies were admitted where their original is.
        if !resource.is_namespaced() || resource.is_copy || resource.plural == "events" {
            return Ok(None);
        }
        let here = Collection::namespace(&key.cluster, &key.namespace);
        if self.count(quotas(), &here)? == 0 {
            return Ok(None);
        }
        let gate = self.quotas.of(&key.cluster, &key.namespace);
        let making = gate.making.clone().read_owned().await;
        let charging = gate.charging.lock().await;
        let mut left = self.list(quotas(), &here, &ListOptions::default()).await?.items;
        // All are asked before the first is charged.
        for quota in &left {
            self.charged(quota, resource, key)?;
        }
        for _ in 0..ATTEMPTS {
            let mut beaten = Vec::new();
            for quota in left {
                let Some(charged) = self.charged(&quota, resource, key)? else { continue };
                if !dry_run && self.replace(&quota, &charged).await?.is_none() {
                    beaten.extend(self.find(quotas(), &quota.key()).await?);
                }
            }
            left = beaten;
            if left.is_empty() {
                drop(charging);
                return Ok(Some(Charge { _gate: gate, _making: making }));
            }
        }
        Err(errors::stale(quotas(), left.first().map_or("", Object::name)))
    }

    /// The quota as it is when one object more is there; `None` when it does not limit the resource.
    fn charged(&self, quota: &Object, resource: &Resource, key: &ObjectKey) -> Result<Option<Value>, Status> {
        let mut value = quota.stored()?;
        let (mut used, mut exceeded) = (Map::new(), Vec::new());
        for (name, hard) in entries(&value, &["spec", "hard"]).filter(|(name, _)| is_name_of(name, resource)) {
            let before = match get(&value, &["status", "used", name]) {
                Some(known) => quantity(known),
                None => Quantity::whole(self.count(resource, &Collection::namespace(&key.cluster, &key.namespace))?),
            };
            if before.ceil() >= quantity(hard).ceil() {
                exceeded.push((name.clone(), before, quantity(hard)));
            }
            used.insert(name.clone(), Quantity::whole(before.ceil().saturating_add(1)).to_string().into());
        }
        if !exceeded.is_empty() {
            let list = |part: fn(&(String, Quantity, Quantity)) -> Quantity| {
                let parts: Vec<String> = exceeded.iter().map(|e| format!("{}={}", e.0, part(e))).collect();
                parts.join(",")
            };
            let (requested, used, limited) = (list(|_| Quantity::whole(1)), list(|e| e.1), list(|e| e.2));
            let quota = quota.name();
            let why = format!("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}");
            return Err(errors::forbidden(resource, &key.name, &why));
        }
        if used.is_empty() {
            return Ok(None);
        }
        let mut all = get(&value, &["status", "used"]).and_then(Value::as_object).cloned().unwrap_or_default();
        all.extend(used);
        let mut status = value.get("status").cloned().unwrap_or_else(|| Map::new().into());
        set(&mut status, "used", all);
        set(&mut value, "status", status);
        Ok(Some(value))
    }

    /// Sets the status of a ResourceQuota right: its limits as they are, what is used as the store counts it. Waits until
    /// no object is being made in its namespace.
    ///
    /// # Errors
    /// 404, and those of the store.
    pub async fn recalculate_quota(&self, key: &ObjectKey) -> Result<(), Status> {
        let gate = self.quotas.of(&key.cluster, &key.namespace);
        let _alone = gate.making.write().await;
        let here = Collection::namespace(&key.cluster, &key.namespace);
        let options = UpdateOptions { subresource: "status", ..UpdateOptions::default() };
        let counted = |old: Option<&Value>| {
            let mut new = old.cloned().unwrap_or_default();
            let hard: Map<String, Value> =
                entries(&new, &["spec", "hard"]).map(|(name, hard)| (name.clone(), hard.clone())).collect();
            let mut used = Map::new();
            for name in hard.keys() {
                // What nobody counts has a limit and no use, as upstream has it.
                if let Some(resource) = counted_as(name) {
                    used.insert(name.clone(), Quantity::whole(self.count(resource, &here)?).to_string().into());
                }
            }
            let mut status = Map::new();
            for (field, map) in [("hard", hard), ("used", used)] {
                if !map.is_empty() {
                    status.insert(field.into(), map.into());
                }
            }
            set(&mut new, "status", status);
            Ok(new)
        };
        self.modify(quotas(), key, &options, counted).await.map(drop)
    }
}

fn quotas() -> &'static Resource {
    builtin::find("", "v1", "resourcequotas").expect("the table of built-in kinds has resourcequotas")
}

/// Whether a quota limits the resource under this name.
fn is_name_of(name: &str, resource: &Resource) -> bool {
    match name.strip_prefix("count/") {
        Some(counted) => counted == resource.qualified(),
        None => resource.group.is_empty() && OLD_NAMES.contains(&name) && name == resource.plural,
    }
}

/// The resource that a quota limits under this name.
fn counted_as(name: &str) -> Option<&'static Resource> {
    builtin::all().iter().find(|r| r.is_namespaced() && r.plural != "events" && is_name_of(name, r))
}

/// A stored quantity; what cannot be read is nothing.
fn quantity(value: &Value) -> Quantity {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(Quantity::whole(0))
}
