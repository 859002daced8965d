//! Names and paths of logical clusters (kcp's rules, `logicalcluster` v3).
//!
//! A *path* is one or more segments joined by `:`; a path of one segment, and anything that begins with
//! `system:`, is the *name* of one logical cluster. The functions on `&str` do not check their input:
//! they split whatever they are given, as upstream's do.

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha224};

/// The name of one logical cluster as it stands in storage keys and in the annotation `kcp.io/cluster`:
/// one word such as `root` or `2xk7qfv0z3mpl9ba`, or anything that begins with `system:`.
///
/// Cheap to clone. Never a path of several segments (`root:org`), so it is safe in a storage key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterName(Arc<str>);

impl ClusterName {
    /// The cluster at the top of the hierarchy.
    pub const ROOT: &'static str = "root";

    /// The name that kcp draws from 32 random bytes: 16 characters of [`base36_sha224`].
    pub fn from_token(token: &[u8; 32]) -> Self {
        let text = base36_sha224(token);
        Self(text.get(..16).unwrap_or(&text).into())
    }

    /// Whether it is one of the system's own clusters (`system:...`), which belong to no tenant.
    pub fn is_system(&self) -> bool {
        self.0.starts_with("system:")
    }

    /// The key under which a directory without an index knows a workspace: its path, whatever the number of its
    /// segments. For scheduling and metrics only; such a name must never reach a storage key.
    pub fn standing_for(path: &str) -> Self {
        Self(path.into())
    }

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
            .then(|| single_name(text))
            .flatten()
            .map(|name| Self(name.into()))
            .ok_or_else(|| ClusterNameError(text.into()))
    }
}

/// A text that is not the name of one logical cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a logical cluster: want 1 to 63 of a-z, 0-9 and inner hyphens, or system:<words>")]
pub struct ClusterNameError(Box<str>);

/// Whether `text` is a well-formed path other than `*`: segments of 1 to 63 of `a-z`, `0-9` and inner
/// hyphens, joined by `:`.
pub fn is_path(text: &str) -> bool {
    text.as_bytes().split(|b| *b == b':').all(is_segment)
}

fn is_segment(s: &[u8]) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    s.len() <= 63 && edge(s.first()) && edge(s.last()) && s.iter().all(|b| edge(Some(b)) || *b == b'-')
}

/// The stricter rule that kcp's library has for names (at least two characters; anything behind
/// `system:`). Requests are held to [`is_path`] only, so the cluster `r` is served.
pub fn is_strict_name(text: &str) -> bool {
    text.starts_with("system:") || (text.len() >= 2 && is_segment(text.as_bytes()))
}

/// The name that `path` stands for without a lookup: itself when it has no parent or begins with `system:`.
pub fn single_name(path: &str) -> Option<&str> {
    (path.starts_with("system:") || split(path).0.is_empty()).then_some(path)
}

/// `path` cut at its last colon into parent and base. A path of one segment has the parent `""`; a system
/// path has no hierarchy and comes back whole with the base `""`.
pub fn split(path: &str) -> (&str, &str) {
    if path.starts_with("system:") { (path, "") } else { path.rsplit_once(':').unwrap_or(("", path)) }
}

/// Whether `path` is `prefix` or lies below it, by whole segments: `foooo:bar` is not below `foo`.
pub fn is_at_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// The name of the home cluster of `user`, which `user:<name>` stands for in a path.
pub fn home_cluster(user: &str) -> ClusterName {
    let digest = Sha224::digest(user.as_bytes());
    ClusterName(base36(digest.get(..8).expect("a SHA-224 digest has 28 bytes")).into())
}

/// SHA-224 of `data` in lower-case base 36, 40 to 44 characters long.
pub fn base36_sha224(data: &[u8]) -> String {
    base36(&Sha224::digest(data))
}

/// `bytes` as one big-endian number in base 36, with one leading `0` for each leading zero byte.
fn base36(bytes: &[u8]) -> String {
    let mut number = bytes.to_vec();
    let mut digits = Vec::new();
    while number.iter().any(|b| *b != 0) {
        let mut remainder = 0u32;
        for byte in &mut number {
            let value = remainder * 256 + u32::from(*byte);
            *byte = u8::try_from(value / 36).expect("the remainder is below 36");
            remainder = value % 36;
        }
        digits.push(char::from_digit(remainder, 36).expect("the remainder is below 36"));
    }
    digits.extend(bytes.iter().take_while(|b| **b == 0).map(|_| '0'));
    digits.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cases, text};

    #[test]
    fn names_and_paths_follow_kcp() {
        for case in cases("kcp/cluster-names.json") {
            let input = text(&case["input"]);
            assert_eq!(is_strict_name(input), case["validName"], "{input:?}: validName");
            assert_eq!(is_path(input) || input == "*", case["validPath"], "{input:?}: validPath");
            assert_eq!(single_name(input), case["asName"].as_str(), "{input:?}: asName");
            assert_eq!(split(input), (text(&case["parent"]), text(&case["base"])), "{input:?}: split");
            let is_name = case["validPath"] == true && case["asName"].is_string() && input != "*";
            assert_eq!(input.parse::<ClusterName>().is_ok(), is_name, "{input:?}: ClusterName");
        }
    }

    #[test]
    fn hashes_follow_kcp() {
        let mut elsewhere = 0;
        for case in cases("kcp/hashes.json") {
            let (op, input) = (text(&case["op"]), text(&case["in"]));
            let hex = |s: &str| -> Vec<u8> {
                (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
            };
            let got = match op {
                "homeCluster" => home_cluster(input).to_string(),
                "base36sha224" => base36_sha224(input.as_bytes()),
                "shardHash8" => base36_sha224(input.as_bytes())[..8].to_owned(),
                "clusterNameFromToken" => ClusterName::from_token(&hex(input).try_into().unwrap()).to_string(),
                "base36pad" => base36(&hex(input)),
                // Hexadecimal SHA-2 of initializers and export identities: made where those are served.
                "initializerLabel" | "identityHash" => {
                    elsewhere += 1;
                    continue;
                }
                other => panic!("unknown op {other}"),
            };
            assert_eq!(got, text(&case["out"]), "{op} of {input:?}");
        }
        assert_eq!(elsewhere, 4);
    }

    #[test]
    fn prefixes_count_by_whole_segments() {
        assert!(is_at_or_below("foo:bar", "foo") && is_at_or_below("foo", "foo"));
        assert!(!is_at_or_below("foooo:bar", "foo") && !is_at_or_below("foo", "foo:bar"));
    }
}
