//! Server-side apply: live ⊕ configuration, without what the manager had and no longer wants, unless that touches what
//! is another's.

use apiserver_api::{
    Reason, Status,
    status::{Cause, Details},
};
use serde_json::{Value, json};

use super::{
    Entries, FieldSet, Kind, Operation, Owner, Writer, changes, put_down, put_entries, split, unowned, writable,
};
use crate::{
    decode,
    object::{self, text},
    resource::Resource,
};

/// Where `kubectl apply` without `--server-side` keeps its last configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The only manager whose annotation of that name is looked at and kept up.
const KUBECTL: &str = "kubectl";
/// Manager of the fields that an object has when it is applied to for the first time and nobody manages it.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Most bytes of the annotation; a longer one is taken off (upstream's limit of all annotations).
const LAST_APPLIED_MAX: usize = 256 * 1024;

/// A configuration that has been read.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The object as the client wrote it, without normalisation.
    pub config: Value,
    /// Conflicts are won.
    pub force: bool,
}

/// Fields of others that an apply would change.
struct Conflicts(Vec<(Owner, FieldSet)>);

/// What `live` (`None` when it does not exist) becomes, with its `managedFields`; normalised and defaulted by nobody yet.
///
/// # Errors
/// 400 when the configuration is no object of this kind, 409 that names each field that another manager has.
pub fn apply(
    resource: &Resource,
    live: Option<&Value>,
    applied: &Applied,
    writer: Writer<'_>,
) -> Result<Value, Status> {
    let config = &applied.config;
    if !object::get(config, &["metadata", "managedFields"]).is_none_or(Value::is_null) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    check(resource, config)?;
    let (live_object, stored) = live.map_or((json!({}), None), split);
    let mut entries = Entries::parse(stored.as_ref(), &resource.api_version()).unwrap_or_default();
    if entries.0.is_empty() && live.is_some() {
        let before = Writer { manager: BEFORE_FIRST_APPLY, ..writer };
        put_down(resource, &json!({}), &live_object, &mut entries, before);
    }
    let attempt = |force: bool| merge(resource, &live_object, config, entries.clone(), writer, force);
    let outcome = match attempt(applied.force) {
        Err(conflicts) if writer.manager == KUBECTL => {
            let remaining = conflicts.without(&client_side_applied(resource, &live_object));
            if remaining.0.is_empty() { attempt(true) } else { Err(remaining) }
        }
        outcome => outcome,
    };
    let (mut new, mut entries) = outcome.map_err(|conflicts| conflicts.status(&resource.api_version()))?;
    if writer.manager == KUBECTL {
        keep_last_applied(&mut new, config);
    }
    entries.cap();
    put_entries(&mut new, &entries, resource);
    Ok(new)
}

/// Whether the configuration has only known fields of the right types, and lists whose items can be told apart.
fn check(resource: &Resource, config: &Value) -> Result<(), Status> {
    let mut faults = decode::undeclared(resource, config);
    Kind::object(resource.schema).list_faults(config, "", &mut faults);
    faults.extend(decode::mistyped(resource, config));
    let list = match &*faults {
        [] => return Ok(()),
        [only] => only.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    let (namespace, name) = (object::namespace(config), object::name(config));
    let kind = describe_kind(&resource.api_version(), resource.kind);
    Err(Status::bad_request(format!("failed to create typed patch object ({namespace}/{name}; {kind}): {list}")))
}

/// `/v1, Kind=ConfigMap`, `apps/v1, Kind=Deployment`.
pub(crate) fn describe_kind(api_version: &str, kind: &str) -> String {
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}

fn merge(
    resource: &Resource,
    live: &Value,
    config: &Value,
    mut entries: Entries,
    writer: Writer<'_>,
    force: bool,
) -> Result<(Value, Entries), Conflicts> {
    let kind = Kind::object(resource.schema);
    entries.0.values_mut().for_each(|owned| owned.fields = kind.reconciled(&owned.fields));
    let owner = writer.owner(Operation::Apply);
    let before = entries.0.remove(&owner).unwrap_or_default();
    let wanted = writable(resource, writer.subresource, &kind.fields(config).0);
    entries.0.insert(owner.clone(), super::entries::Owned { fields: wanted, time: before.time });
    let new = prune(kind, &kind.merge(live, config), &entries, &before.fields);

    let changed = changes(resource, writer.subresource, live, &new);
    let touched = changed.modified.union(&changed.added);
    let others = entries.0.iter().filter(|(other, _)| **other != owner);
    let conflicts: Vec<_> = others
        .map(|(other, owned)| (other.clone(), owned.fields.intersection(&touched)))
        .filter(|(_, fields)| !fields.is_empty())
        .collect();
    if !force && !conflicts.is_empty() {
        return Err(Conflicts(conflicts));
    }
    entries.take(&touched.union(&changed.removed), Some(&owner));
    if let Some(own) = entries.0.get_mut(&owner) {
        own.fields = own.fields.difference(&unowned());
        if new != *live {
            own.time = writer.time();
        }
    }
    entries.drop_empty();
    Ok((new, entries))
}

/// Takes from `merged` what the manager had before and neither it nor anybody else has now. What lies below that goes
/// with it, but for what others have.
fn prune(kind: Kind, merged: &Value, entries: &Entries, before: &FieldSet) -> Value {
    if before.is_empty() {
        return merged.clone();
    }
    let whole = |value: &Value| kind.with_structs(&kind.fields(value).0);
    let had = kind.with_structs(before);
    let mut owned = FieldSet::default();
    entries.0.values().for_each(|others| owned.add(&others.fields));
    let all = whole(merged);
    let pruned = kind.without(merged, &had);
    // What is owned now comes back ...
    let gone = all.difference(&whole(&pruned).union(&kind.with_structs(&owned)));
    let pruned = kind.without(merged, &gone);
    // ... and so does what the manager never had: nobody's, or that of those who update.
    kind.without(merged, &all.difference(&whole(&pruned)).intersection(&had))
}

impl Conflicts {
    fn without(&self, allowed: &FieldSet) -> Self {
        let rest = self.0.iter().map(|(owner, fields)| (owner.clone(), fields.difference(allowed)));
        Self(rest.filter(|(_, fields)| !fields.is_empty()).collect())
    }

    /// 409 with one cause for each field: kubectl reads them.
    fn status(&self, api_version: &str) -> Status {
        let mut causes = Vec::new();
        let mut groups = Vec::new();
        for (owner, fields) in &self.0 {
            let who = owner.describe(api_version);
            let paths = fields.paths();
            groups.push(format!("conflicts with {who}:\n- {}", paths.join("\n- ")));
            causes.extend(paths.into_iter().map(|field| Cause {
                reason: "FieldManagerConflict".into(),
                message: format!("conflict with {who}"),
                field,
            }));
        }
        let message = match &*causes {
            [only] => format!("Apply failed with 1 conflict: {}: {}", only.message, only.field),
            many => format!("Apply failed with {} conflicts: {}", many.len(), groups.join("\n")),
        };
        Status::new(Reason::Conflict, message).with_details(Details { causes, ..Details::default() })
    }
}

/// The fields that client-side apply set last and that still have the values it gave them: they are kubectl's own.
fn client_side_applied(resource: &Resource, live: &Value) -> FieldSet {
    let annotation = text(live, &["metadata", "annotations", LAST_APPLIED]);
    let Ok(last) = serde_json::from_str::<Value>(annotation) else { return FieldSet::default() };
    if text(&last, &["apiVersion"]) != resource.api_version() {
        return FieldSet::default();
    }
    let kind = Kind::object(resource.schema);
    let changed = kind.compare(&last, live);
    let fields = kind.fields(&last).0;
    fields.difference(&changed.modified).difference(&changed.added).difference(&changed.removed)
}

/// Writes the configuration into the annotation of client-side apply, if there is one, so that a later client-side apply
/// knows what was applied.
fn keep_last_applied(new: &mut Value, config: &Value) {
    let Some(annotations) = new.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    if !annotations.contains_key(LAST_APPLIED) {
        return;
    }
    let mut config = config.clone();
    if let Some(own) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        own.remove(LAST_APPLIED);
    }
    let text = format!("{config}\n");
    if text.len() > LAST_APPLIED_MAX {
        annotations.remove(LAST_APPLIED);
    } else {
        annotations.insert(LAST_APPLIED.to_owned(), text.into());
    }
}
