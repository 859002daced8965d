//! What one quota says, and what it would say.

use std::collections::BTreeMap;

use apiserver_api::Status;
use apiserver_machinery::{
    Resource, builtin,
    object::{entries, get, set},
    quantity::Quantity,
};
use serde_json::{Map, Value};

use super::is_counted;
use crate::{
    errors,
    registry::{Collection, Object, Registry},
};

/// Core resources that a quota may limit under their own name, for history's sake; all others only as `count/<name>`.
const OLD_NAMES: [&str; 3] = ["configmaps", "resourcequotas", "secrets"];

/// A quota as it is stored, and the entries made in it since.
pub(super) struct Ledger {
    pub(super) quota: Object,
    value: Value,
    /// What is limited and can be counted, by its name in the quota.
    lines: BTreeMap<String, Line>,
    pub(super) is_changed: bool,
}

struct Line {
    resource: &'static Resource,
    hard: Quantity,
    /// What the quota said; what there is where it said nothing.
    used: u64,
    /// What there is.
    count: u64,
}

impl Ledger {
    /// # Errors
    /// 500 when the stored bytes are no object.
    pub(super) fn of(registry: &Registry, quota: Object) -> Result<Self, Status> {
        let (value, key) = (quota.stored()?, quota.key());
        let here = Collection::namespace(&key.cluster, &key.namespace);
        let mut lines = BTreeMap::new();
        for (name, hard) in entries(&value, &["spec", "hard"]) {
            let Some(resource) = counted_as(name) else { continue };
            let count = registry.count(resource, &here)?;
            let used = get(&value, &["status", "used", name]).map_or(count, |known| quantity(known).ceil());
            lines.insert(name.clone(), Line { resource, hard: quantity(hard), used, count });
        }
        Ok(Self { quota, value, lines, is_changed: false })
    }

    fn of_resource(&self, resource: &Resource) -> impl Iterator<Item = (&String, &Line)> {
        self.lines.iter().filter(move |(_, line)| std::ptr::eq(line.resource, resource))
    }

    /// Whether it limits the resource.
    pub(super) fn limits(&self, resource: &Resource) -> bool {
        self.of_resource(resource).next().is_some()
    }

    /// Whether an object of this name may be made.
    ///
    /// # Errors
    /// 403 when not.
    pub(super) fn has_room(&self, resource: &Resource, name: &str) -> Result<(), Status> {
        let exceeded: Vec<_> = self.of_resource(resource).filter(|(_, line)| line.used >= line.hard.ceil()).collect();
        if exceeded.is_empty() {
            return Ok(());
        }
        let list = |part: fn(&Line) -> String| {
            let parts: Vec<String> = exceeded.iter().map(|(name, line)| format!("{name}={}", part(line))).collect();
            parts.join(",")
        };
        let (requested, used, limited) =
            (list(|_| "1".to_owned()), list(|line| line.used.to_string()), list(|line| line.hard.to_string()));
        let quota = self.quota.name();
        let why = format!("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}");
        Err(errors::forbidden(resource, name, &why))
    }

    /// Enters one object more or one less. Never less than there is: that takes back nothing that somebody else has
    /// charged for.
    pub(super) fn enter(&mut self, resource: &Resource, more: bool) {
        for line in self.lines.values_mut().filter(|line| std::ptr::eq(line.resource, resource)) {
            let used = if more { line.used.saturating_add(1) } else { line.used.saturating_sub(1).max(line.count) };
            self.is_changed |= used != line.used;
            line.used = used;
        }
    }

    /// Whether it says more than there is.
    pub(super) fn has_excess(&self) -> bool {
        self.lines.values().any(|line| line.used > line.count)
    }

    /// What there is, line by line.
    pub(super) fn counted(&self) -> Vec<u64> {
        self.lines.values().map(|line| line.count).collect()
    }

    /// Sets every line to what there is, if that is more, or in any case.
    pub(super) fn recount(&mut self, may_fall: bool) {
        for line in self.lines.values_mut() {
            line.used = if may_fall { line.count } else { line.used.max(line.count) };
        }
    }

    /// The quota with what is used as it is entered here.
    pub(super) fn entered(&self) -> Value {
        let mut status = self.value.get("status").cloned().unwrap_or_else(|| Map::new().into());
        set(&mut status, "used", self.used());
        let mut value = self.value.clone();
        set(&mut value, "status", status);
        value
    }

    /// The status as it should be: the limits too. What nobody counts has a limit and no use, as upstream has it.
    pub(super) fn status(&self) -> Value {
        let hard: Map<String, Value> =
            entries(&self.value, &["spec", "hard"]).map(|(name, hard)| (name.clone(), hard.clone())).collect();
        let parts = [("hard", hard), ("used", self.used())].into_iter().filter(|(_, map)| !map.is_empty());
        parts.map(|(field, map)| (field.to_owned(), map.into())).collect::<Map<_, Value>>().into()
    }

    fn used(&self) -> Map<String, Value> {
        let used = self.lines.iter().map(|(name, line)| (name.clone(), Quantity::whole(line.used).to_string().into()));
        used.collect()
    }
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
    builtin::all().iter().find(|r| is_counted(r) && is_name_of(name, r))
}

/// A stored quantity; what cannot be read is nothing.
fn quantity(value: &Value) -> Quantity {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(Quantity::whole(0))
}
