//! Storage keys of the API server and of the cache server (kcp.md 1.5).
//!
//! | what | key |
//! |---|---|
//! | built in | `/registry/<group or core>/<resource>/<cluster>/[<namespace>/]<name>` |
//! | cache server | `/cache/<group>/<resource>/customresources/<shard>/<cluster>/[<namespace>/]<name>` |
//!
//! To the cache server everything is a custom resource, of a shard.

use apiserver_api::ClusterName;

use crate::Key;

#[cfg(test)]
mod tests;

/// Prefix of every object of the API server.
pub const REGISTRY: &str = "/registry/";
/// Prefix of every object of the cache server.
pub const CACHE: &str = "/cache/";
const CUSTOM: &str = "customresources";

/// Why a key cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The last guard before the store: objects under a path are invisible to normal reads and leak into
    /// wildcard ones (kcp PR 4011). Always a defect of the caller, hence a 500.
    #[error(
        "{0:?} is a path, not the name of a logical cluster; it must be resolved before objects are stored under it"
    )]
    ClusterIsPath(Box<str>),
    /// A segment would change the structure of the key.
    #[error(
        "{what} {value:?} cannot be part of a storage key: want text without '/' or control characters, not '.' or '..'"
    )]
    Segment {
        /// Which part: `namespace`, `name` and so on.
        what: &'static str,
        /// The text.
        value: Box<str>,
    },
}

/// Makes the keys of one resource. Cheap to build.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceKeys {
    /// `/registry/<group>/<resource>/`, or that of a shard below `/cache/`.
    prefix: Box<str>,
}

impl ResourceKeys {
    /// Keys of a resource of the API server; `group` is empty for the core group.
    ///
    /// # Errors
    /// A part that cannot stand in a key.
    pub fn new(group: &str, resource: &str) -> Result<Self, KeyError> {
        Ok(Self { prefix: prefix(REGISTRY, group, resource)?.into() })
    }

    /// Keys of a resource of one shard in the cache server.
    ///
    /// # Errors
    /// A part that cannot stand in a key.
    pub fn cached(group: &str, resource: &str, shard: &str) -> Result<Self, KeyError> {
        let mut prefix = cache_prefix(group, resource)?;
        push(&mut prefix, "shard", shard)?;
        Ok(Self { prefix: prefix.into() })
    }

    /// The list prefix of all clusters.
    pub fn all(&self) -> &str {
        &self.prefix
    }

    /// The list prefix of one cluster.
    ///
    /// # Errors
    /// See [`KeyError::ClusterIsPath`].
    pub fn cluster(&self, cluster: &ClusterName) -> Result<String, KeyError> {
        let name = checked_cluster(cluster.as_str())?;
        Ok(format!("{}{name}/", self.prefix))
    }

    /// The list prefix of one namespace.
    ///
    /// # Errors
    /// A part that cannot stand in a key.
    pub fn namespace(&self, cluster: &ClusterName, namespace: &str) -> Result<String, KeyError> {
        let mut prefix = self.cluster(cluster)?;
        push(&mut prefix, "namespace", namespace)?;
        Ok(prefix)
    }

    /// The key of one object.
    ///
    /// # Errors
    /// A part that cannot stand in a key.
    pub fn key(&self, cluster: &ClusterName, namespace: Option<&str>, name: &str) -> Result<Key, KeyError> {
        let mut key = match namespace {
            Some(namespace) => self.namespace(cluster, namespace)?,
            None => self.cluster(cluster)?,
        };
        key.push_str(segment("name", name)?);
        Ok(key.into())
    }
}

/// The list prefix of a resource in the cache server, over all shards.
///
/// # Errors
/// A part that cannot stand in a key.
pub fn cache_prefix(group: &str, resource: &str) -> Result<String, KeyError> {
    Ok(format!("{}{CUSTOM}/", prefix(CACHE, group, resource)?))
}

/// `<root><group or core>/<resource>/`.
fn prefix(root: &str, group: &str, resource: &str) -> Result<String, KeyError> {
    let mut prefix = root.to_owned();
    push(&mut prefix, "group", if group.is_empty() { "core" } else { group })?;
    push(&mut prefix, "resource", resource)?;
    Ok(prefix)
}

fn checked_cluster(name: &str) -> Result<&str, KeyError> {
    match name.contains(':') && !name.starts_with("system:") {
        true => Err(KeyError::ClusterIsPath(name.into())),
        false => segment("cluster", name),
    }
}

fn push(key: &mut String, what: &'static str, value: &str) -> Result<(), KeyError> {
    key.push_str(segment(what, value)?);
    key.push('/');
    Ok(())
}

fn segment<'a>(what: &'static str, value: &'a str) -> Result<&'a str, KeyError> {
    let bad = matches!(value, "" | "." | "..") || value.bytes().any(|b| b == b'/' || b.is_ascii_control());
    if bad { Err(KeyError::Segment { what, value: value.into() }) } else { Ok(value) }
}
