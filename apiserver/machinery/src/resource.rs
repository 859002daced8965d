//! The description of a resource. Built-in kinds are entries of one table of these; custom resources
//! will be made of their definitions at run time.

use serde_json::Value;

/// Whether objects live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// Directly in the logical cluster.
    Cluster,
}

/// One column of a Table (api-server.md 3.7).
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

/// All that the generic handlers need to know of one resource.
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
}
