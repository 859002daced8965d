//! How the path of a request addresses the control plane: which logical cluster, and what remains.
//!
//! One parse decides both the priority level and the forwarding target. Whatever a shard could read
//! differently (it works on the decoded path, and may clean it) is refused, never normalised into another
//! workspace. The remainder is handed on byte for byte.

use std::borrow::Cow;

use crate::{Reason, Status, cluster, percent};

/// What the path of a request names, before anything is looked up (kcp.md 1.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// `/clusters/<name or path>/...`; `path` is decoded and well formed, `rest` is the remaining raw
    /// path exactly as received (`/` when nothing remains).
    Cluster {
        /// The decoded name (`root`) or path (`root:org`).
        path: Cow<'a, str>,
        /// The raw remainder, beginning with `/`.
        rest: &'a str,
    },
    /// `/clusters/*/...`: all clusters of the shard.
    Wildcard {
        /// The raw remainder, beginning with `/`.
        rest: &'a str,
    },
    /// `/services/cache/...`: the cache server. `rest` is the raw path behind `/services/cache`.
    Cache {
        /// The raw remainder, beginning with `/`.
        rest: &'a str,
    },
    /// `/services/<virtual workspace>/...`, other than the cache server.
    VirtualWorkspace {
        /// The whole raw path.
        rest: &'a str,
    },
    /// No cluster: `/version`, `/healthz`, bare `/api...`.
    None {
        /// The raw path; for `/clusters/` and `/clusters//...` what stands behind the empty cluster.
        rest: &'a str,
    },
}

/// What is wrong with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlErrorKind {
    /// The cluster segment is no name and no path of a logical cluster. 400; a front door that hides which
    /// workspaces exist answers as for an unknown one.
    BadCluster,
    /// Two parsers could read the path differently, or it is not a path. 400.
    Ambiguous,
    /// A second `/clusters/` directly behind the first. 404, since no API is served there.
    SecondPrefix,
}

/// Why a path was refused. The text says what is wrong and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UrlError {
    /// Decides the status code.
    pub kind: UrlErrorKind,
    message: String,
}

impl UrlError {
    fn new(kind: UrlErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    fn ambiguous(message: impl Into<String>) -> Self {
        Self::new(UrlErrorKind::Ambiguous, message)
    }
}

impl From<UrlError> for Status {
    fn from(error: UrlError) -> Self {
        let reason = match error.kind {
            UrlErrorKind::BadCluster | UrlErrorKind::Ambiguous => Reason::BadRequest,
            UrlErrorKind::SecondPrefix => Reason::NotFound,
        };
        Self::new(reason, error.message)
    }
}

/// Splits the raw (still percent-encoded) `path` of a request, without its query.
///
/// # Errors
/// A malformed cluster segment or percent escape, a second cluster prefix, and whatever two parsers could
/// read differently: dot segments (plain or encoded), backslashes and control characters anywhere; `//` or an
/// encoded slash in the part that decides the target.
pub fn split(path: &str) -> Result<Target<'_>, UrlError> {
    if path == "*" {
        return Ok(Target::None { rest: path });
    }
    check_bytes(path)?;
    let (first, rest) = head(path)?;
    match first {
        "clusters" if !rest.is_empty() => split_cluster(rest),
        "services" if rest.len() > 1 => match head(rest)? {
            ("", _) => {
                Err(UrlError::ambiguous("the path has an empty segment behind /services: want /services/<name>"))
            }
            ("cache", behind) => Ok(Target::Cache { rest: or_root(behind) }),
            _ => Ok(Target::VirtualWorkspace { rest: path }),
        },
        "" if path.len() > 1 => Err(UrlError::ambiguous("the path begins with //: want one slash")),
        _ => Ok(Target::None { rest: path }),
    }
}

/// `behind` is what follows `/clusters`, beginning with `/`.
fn split_cluster(behind: &str) -> Result<Target<'_>, UrlError> {
    let (segment, rest) = cut(behind);
    let rest = or_root(rest);
    let second = behind_cluster(rest)?;
    if segment.is_empty() {
        if second == "services" {
            return Err(UrlError::ambiguous(
                "the path names an empty cluster: want /services/... or /clusters/<name>/...",
            ));
        }
        return Ok(Target::None { rest });
    }
    let name = percent::decode(segment);
    if &*name == "*" {
        return Ok(Target::Wildcard { rest });
    }
    if name.bytes().any(|b| b == b'/' || b == b'%' || b.is_ascii_control() || b == b' ') {
        return Err(UrlError::ambiguous(format!(
            "the cluster {name:?} holds an encoded slash, percent sign, space or control character: \
             want a name or path such as root:team-a"
        )));
    }
    if !cluster::is_path(&name) {
        return Err(UrlError::new(
            UrlErrorKind::BadCluster,
            format!(
                "invalid cluster: {name:?} does not match the regex \
                 \"^[a-z0-9]([a-z0-9-]{{0,61}}[a-z0-9])?(:[a-z0-9]([a-z0-9-]{{0,61}}[a-z0-9])?)*$\""
            ),
        ));
    }
    Ok(Target::Cluster { path: name, rest })
}

/// The decoded first segment of what stands behind the cluster, checked: a shard that decodes or cleans the
/// path must not find another prefix there.
fn behind_cluster(rest: &str) -> Result<Cow<'_, str>, UrlError> {
    if rest.starts_with("//") {
        return Err(UrlError::ambiguous("the path has // behind the cluster: want one slash"));
    }
    let first = percent::decode(cut(rest).0);
    if first.contains('/') {
        return Err(UrlError::ambiguous("the path has an encoded slash in the segment behind the cluster"));
    }
    if first == "clusters" {
        return Err(UrlError::new(
            UrlErrorKind::SecondPrefix,
            "the path has a second cluster prefix: want /clusters/<name or path>/ once, at the beginning",
        ));
    }
    Ok(first)
}

/// The first segment, which may hold no escape since it decides the target, and what follows it.
fn head(path: &str) -> Result<(&str, &str), UrlError> {
    let (first, rest) = cut(path);
    if first.contains('%') {
        return Err(UrlError::ambiguous(format!(
            "the path segment {first:?} decides the target: write it without percent escapes"
        )));
    }
    Ok((first, rest))
}

/// `/first/rest...` as (`first`, `/rest...`); the rest is empty when there is no further slash.
fn cut(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_at(path.find('/').unwrap_or(path.len()))
}

fn or_root(rest: &str) -> &str {
    if rest.is_empty() { "/" } else { rest }
}

/// What holds for the whole path: it begins with a slash, has no control character, backslash, malformed
/// escape or dot segment.
fn check_bytes(path: &str) -> Result<(), UrlError> {
    if !path.starts_with('/') {
        return Err(UrlError::ambiguous(format!("the path {path:?} does not begin with a slash")));
    }
    // Each byte is looked at in the same way, without a branch: several at a time.
    if path.bytes().fold(false, |found, b| found | (b <= b' ') | (b == 0x7f) | (b == b'\\')) {
        let message = "the path has a backslash, space or control character: percent-encode it";
        return Err(UrlError::ambiguous(message));
    }
    let mut dots = path.contains("/.");
    if path.as_bytes().contains(&b'%') {
        if let Some(at) = percent::malformed(path) {
            let message = format!("invalid URL escape at byte {at} of the path: want % and two hexadecimal digits");
            return Err(UrlError::ambiguous(message));
        }
        let decoded = percent::decode(path);
        if decoded.contains(|c: char| c.is_ascii_control()) {
            return Err(UrlError::ambiguous("the path has an encoded control character: want a path without it"));
        }
        dots = has_dot_segment(&decoded);
    } else if dots {
        dots = has_dot_segment(path);
    }
    if dots {
        return Err(UrlError::ambiguous("the path has a dot segment (. or ..): want the path without it"));
    }
    Ok(())
}

fn has_dot_segment(path: &str) -> bool {
    // A back-slash, which is encoded here, is a slash to some servers.
    path.split(['/', '\\']).any(|s| s == "." || s == "..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cases, text};

    #[test]
    fn urls_follow_kcp() {
        // Answers of a shard that are none of this parse: it hands them on for the server to give.
        let later = [
            "/clusters/root/metrics",
            "/services/cache/shards/amber",
            "/services/cache/shards/Amber/clusters/*/apis",
            "/services/cache/shards//clusters/root/apis",
            "/services/cache/shards/amber/clusters/root:org/apis",
        ];
        for case in cases("kcp/cluster-urls.json") {
            let url = text(&case["url"]);
            let path = url.split('?').next().unwrap();
            let raw = case["rawRest"].as_str();
            let got = split(path);
            if case["status"].is_number() && !later.contains(&url) {
                assert_eq!(case["status"], 400, "{url}");
                assert_eq!(got.unwrap_err().kind, UrlErrorKind::BadCluster, "{url}");
                continue;
            }
            match (text(&case["kind"]), got.unwrap_or_else(|e| panic!("{url}: {e}"))) {
                ("cluster", Target::Cluster { path, rest }) => {
                    assert_eq!((&*path, Some(rest)), (text(&case["cluster"]), raw), "{url}");
                    assert_eq!(cluster::single_name(&path).is_none(), case["needsLookup"], "{url}");
                }
                ("wildcard", Target::Wildcard { rest }) | ("none", Target::None { rest }) => {
                    assert_eq!(Some(rest), raw, "{url}");
                }
                ("virtual-workspace", Target::VirtualWorkspace { rest }) => assert_eq!(rest, path),
                ("cache", Target::Cache { rest }) => assert_eq!(format!("/services/cache{rest}"), path),
                (want, got) => panic!("{url}: want {want}, got {got:?}"),
            }
        }
    }

    #[test]
    fn what_two_parsers_read_differently_is_refused() {
        use UrlErrorKind::*;
        for (path, kind) in [
            ("", Ambiguous),
            ("api", Ambiguous),
            ("//clusters/org:acme/api", Ambiguous),
            ("//api/v1/pods", Ambiguous),
            ("/clusters/org:acme/../org:beta/api", Ambiguous),
            ("/clusters/org:acme/%2e%2e/org:beta/api", Ambiguous),
            ("/clusters/org:acme/%2E./org:beta/api", Ambiguous),
            ("/clusters/a/api/v1/x%2f..%2f..%2f..%2f..%2fb", Ambiguous),
            ("/clusters/../root/api", Ambiguous),
            ("/clusters/./root/api", Ambiguous),
            ("/api/..", Ambiguous),
            ("/clusters/a\\b/api", Ambiguous),
            ("/clusters/a/api\0", Ambiguous),
            ("/clusters/a/api/%zz", Ambiguous),
            ("/clusters/a/api/%4", Ambiguous),
            ("/%63lusters/root/api", Ambiguous),
            ("/clusters%2Froot/api", Ambiguous),
            ("/services/%63ache/shards/a", Ambiguous),
            ("/services//cache/shards/a", Ambiguous),
            ("/clusters/a//api", Ambiguous),
            ("/clusters/a//clusters/b/api", Ambiguous),
            ("/clusters///api", Ambiguous),
            ("/clusters/a/%2Fclusters/b", Ambiguous),
            ("/clusters//services/cache/shards/a", Ambiguous),
            ("/clusters/root%2Fapi", Ambiguous),
            ("/clusters/root%252Fapi/api", Ambiguous),
            ("/clusters/root%00/api", Ambiguous),
            ("/clusters/%20/api", Ambiguous),
            ("/clusters/r%ffot/api", BadCluster),
            ("/clusters/a:*/api", BadCluster),
            ("/clusters/a/clusters/b/api/v1/configmaps", SecondPrefix),
            ("/clusters/a/%63lusters/b/api", SecondPrefix),
            ("/clusters/*/clusters/b/api", SecondPrefix),
            ("/clusters//clusters/b/api", SecondPrefix),
            ("/clusters/a/clusters", SecondPrefix),
        ] {
            let error = split(path).expect_err(path);
            assert_eq!(error.kind, kind, "{path}: {error}");
        }
    }

    #[test]
    fn what_is_plain_is_handed_on_byte_for_byte() {
        for (path, name, rest) in [
            ("/clusters/org%3Aacme/api/v1/pods", "org:acme", "/api/v1/pods"),
            (
                "/clusters/a/api/v1/namespaces/n/services/s/proxy/a%2Fb//c",
                "a",
                "/api/v1/namespaces/n/services/s/proxy/a%2Fb//c",
            ),
            (
                "/clusters/a/apis/example.io/v1/namespaces/n1/clusters/x",
                "a",
                "/apis/example.io/v1/namespaces/n1/clusters/x",
            ),
            (
                "/clusters/a/api/v1/namespaces/n/configmaps/.hidden..x",
                "a",
                "/api/v1/namespaces/n/configmaps/.hidden..x",
            ),
        ] {
            assert_eq!(split(path), Ok(Target::Cluster { path: name.into(), rest }));
        }
        assert_eq!(split("*"), Ok(Target::None { rest: "*" }));
        assert_eq!(split("/clusters"), Ok(Target::None { rest: "/clusters" }));
        assert_eq!(split("/services/"), Ok(Target::None { rest: "/services/" }));
        assert_eq!(split("/services/cache"), Ok(Target::Cache { rest: "/" }));
    }

    /// How a shard reads the same path: on the decoded text, with the first `/clusters/` as the prefix.
    fn as_a_shard_reads_it(path: &str) -> Option<(String, String)> {
        let decoded = percent::decode(path).into_owned();
        let behind = decoded.strip_prefix("/clusters/")?;
        let (cluster, rest) = behind.split_at(behind.find('/').unwrap_or(behind.len()));
        (!cluster.is_empty()).then(|| (cluster.to_owned(), or_root(rest).to_owned()))
    }

    proptest::proptest! {
        #[test]
        fn a_path_that_passes_means_the_same_to_a_shard(
            path in "/?(clusters|services|%63lusters)?(/|%2[fF]|//)?([a-z:*.%/]|%2e|%3[aA]|%2f|clusters|services|cache|root|\\.\\.){0,9}"
        ) {
            let shard = as_a_shard_reads_it(&path);
            match split(&path) {
                Ok(Target::Cluster { path: cluster, rest }) => {
                    proptest::prop_assert!(cluster::is_path(&cluster) && (rest == "/" || path.ends_with(rest)));
                    proptest::prop_assert_eq!(shard, Some((cluster.into_owned(), percent::decode(rest).into_owned())));
                }
                Ok(Target::Wildcard { rest }) => {
                    proptest::prop_assert_eq!(shard, Some(("*".into(), percent::decode(rest).into_owned())));
                }
                Ok(Target::Cache { .. } | Target::VirtualWorkspace { .. }) => {
                    proptest::prop_assert!(shard.is_none() && percent::decode(&path).starts_with("/services/"));
                }
                Ok(Target::None { rest }) => {
                    proptest::prop_assert!(shard.is_none(), "{rest}");
                    proptest::prop_assert!(!rest.starts_with("/clusters/") && as_a_shard_reads_it(rest).is_none());
                }
                Err(_) => {}
            }
        }
    }
}
