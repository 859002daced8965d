//! The description of a resource. Built-in kinds are entries of one table of these; custom resources
//! will be made of their definitions at run time.

use std::time::Duration;

use serde_json::Value;

use apiserver_api::{field::Error, names};

use crate::schema::Message;

/// What a validation found, in the order in which it was found.
pub type ErrorList = Vec<Error>;

/// Whether objects live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// Directly in the logical cluster.
    Cluster,
}

/// What an object may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, at most 253 bytes.
    Subdomain,
    /// RFC 1123 label, at most 63 bytes.
    Label,
    /// Only this name: the object is a singleton.
    Fixed(&'static str),
    /// Whatever can be one segment of a path, as RBAC has it.
    PathSegment,
}

impl NameRule {
    /// Checks a name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(self, name: &str) -> Result<(), names::Messages> {
        match self {
            Self::Subdomain => names::dns_subdomain(name),
            Self::Label => names::dns_label(name),
            Self::Fixed(only) if name == only => Ok(()),
            Self::Fixed(only) => Err(vec![format!("must be {only}")]),
            Self::PathSegment if matches!(name, "." | "..") => Err(vec![format!("may not be '{name}'")]),
            Self::PathSegment => match name.chars().find(|c| matches!(c, '/' | '%')) {
                Some(found) => Err(vec![format!("may not contain '{found}'")]),
                None => Ok(()),
            },
        }
    }
}

/// One column of a Table (api-server.md 3.7).
#[derive(Debug)]
pub struct Column {
    /// Header, as upstream writes it.
    pub name: &'static str,
    /// `string`, `integer`, `date`, ...
    pub kind: &'static str,
    /// 0 = always shown, 1 = wide only.
    pub priority: i32,
    /// The cell of one object; the second argument is the present time in Unix seconds.
    pub cell: fn(&Value, i64) -> Value,
}

/// A field that field selectors may name, beside `metadata.name` and `metadata.namespace`.
#[derive(Debug)]
pub struct SelectableField {
    /// For example `status.phase`.
    pub name: &'static str,
    /// Its value in an object; empty when it is absent.
    pub value: for<'a> fn(&'a Value) -> &'a str,
}

/// Another form of the objects of a resource: both are read and written in the one storage of that resource, which has the
/// same plural, kind and scope.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Group of the stored form.
    pub group: &'static str,
    /// Version of the stored form.
    pub version: &'static str,
    /// Makes the stored form this one.
    pub show: fn(&mut Value),
    /// Makes this form the stored one.
    pub store: fn(&mut Value),
}

/// All that the generic handlers need to know of one resource.
#[derive(Debug)]
pub struct Resource {
    /// API group; empty for core.
    pub group: &'static str,
    /// Version, for example `v1`.
    pub version: &'static str,
    /// Plural, for example `configmaps`.
    pub plural: &'static str,
    /// Singular, for example `configmap`.
    pub singular: &'static str,
    /// Kind, for example `ConfigMap`.
    pub kind: &'static str,
    /// Short names, for example `cm`.
    pub short_names: &'static [&'static str],
    /// Categories, for example `kcp`.
    pub categories: &'static [&'static str],
    /// See [`Scope`].
    pub scope: Scope,
    /// Columns of its Table, name and age included.
    pub columns: &'static [Column],
    /// The verbs it is served with, in the order of discovery.
    pub verbs: &'static [&'static str],
    /// `status`, `finalize`; all of them are served with get, patch and update.
    pub subresources: &'static [&'static str],
    /// Whether `metadata.generation` is kept.
    pub generation: bool,
    /// Whether PUT of a missing object creates it.
    pub create_on_update: bool,
    /// What names are allowed.
    pub name_rule: NameRule,
    /// Its fields.
    pub schema: &'static Message,
    /// Whether bodies may be protobuf.
    pub protobuf: bool,
    /// Fields for field selectors beyond name and namespace.
    pub selectable: &'static [SelectableField],
    /// Sets defaults and what the server owns, after [`crate::meta`] has prepared the metadata and before
    /// validation. The second argument is the stored object, `None` on create.
    pub prepare: fn(&mut Value, Option<&Value>),
    /// Finds what is wrong with the kind's own fields; the second argument as in `prepare`.
    pub validate: fn(&Value, Option<&Value>, &mut ErrorList),
    /// Names of objects that may not be deleted.
    pub immortal: &'static [&'static str],
    /// How long objects live after their last write.
    pub ttl: Option<Duration>,
    /// Whether objects are copies of what a shard holds, as the cache server keeps them (kcp.md 4.2): they lie under
    /// their shard, their original was validated and admitted elsewhere, generation and creation time are the
    /// original's, and finalizers hold nothing.
    pub is_copy: bool,
    /// Whose objects it shows, if it has none of its own.
    pub view: Option<View>,
    /// Objects that every logical cluster has, in the order of their names: while nothing is stored under such a name
    /// clients see this object there, and who deletes it gets it anew.
    pub mandatory: fn() -> &'static [Value],
}

impl Resource {
    /// `v1`, `coordination.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The group and version under which its objects are stored.
    pub fn stored_as(&self) -> (&'static str, &'static str) {
        self.view.map_or((self.group, self.version), |view| (view.group, view.version))
    }

    /// `configmaps`, `leases.coordination.k8s.io`: how messages of NotFound, Conflict and AlreadyExists call it.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// The kind of a list of it, for example `ConfigMapList`.
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }

    /// Whether its objects live in namespaces.
    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// Whether it is served with this verb.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// Whether it has this subresource.
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (rule, good, bad) in [
            (NameRule::Subdomain, "a.b", "a:b"),
            (NameRule::Label, "a-b", "a.b"),
            (NameRule::Fixed("cluster"), "cluster", "a"),
            (NameRule::PathSegment, "system:kcp:Admin", "a/b"),
            (NameRule::PathSegment, "...", ".."),
            (NameRule::PathSegment, "a b", "a%20b"),
        ] {
            assert_eq!(rule.check(good), Ok(()), "{rule:?}");
            assert!(rule.check(bad).is_err(), "{rule:?}");
        }
    }
}
