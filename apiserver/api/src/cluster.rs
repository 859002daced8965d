//! Names of logical clusters.

use std::{fmt, sync::Arc};

/// The name of one logical cluster as it stands in storage keys and in the annotation `kcp.io/cluster`:
/// one word such as `root` or `2xk7qfv0z3mpl9ba`, or anything that begins with `system:`.
///
/// Cheap to clone. Never a path of several segments (`root:org`), so it is safe in a storage key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterName(Arc<str>);

impl ClusterName {
    /// The cluster at the top of the hierarchy.
    pub const ROOT: &'static str = "root";

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for ClusterName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl std::str::FromStr for ClusterName {
    type Err = ClusterNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        is_path(text)
            .filter(|_| !text.contains(':') || text.starts_with("system:"))
            .map(|()| Self(text.into()))
            .ok_or_else(|| ClusterNameError(text.into()))
    }
}

/// A text that is not the name of one logical cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a logical cluster: want 1 to 63 of a-z, 0-9 and inner hyphens, or system:<words>")]
pub struct ClusterNameError(Box<str>);

/// Some(()) when `text` is a well-formed logical cluster path other than `*` (kcp.md 1.1).
fn is_path(text: &str) -> Option<()> {
    text.split(':').all(is_segment).then_some(())
}

fn is_segment(s: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let b = s.as_bytes();
    b.len() <= 63 && edge(b.first()) && edge(b.last()) && b.iter().all(|b| edge(Some(b)) || *b == b'-')
}
