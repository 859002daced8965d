//! The paths of the cache server (kcp.md 4.2).
//!
//! `[/services/cache]/shards/<shard or *>/clusters/<cluster or *>/<Kubernetes path>`. Both names may be
//! percent-encoded, once: Go clients write `*` as `%2A`. The Kubernetes path is handed on byte for byte.

use std::borrow::Cow;

use apiserver_api::{ClusterName, Status, url};
use apiserver_server::Address;
use percent_encoding::percent_decode_str;

/// Most characters of the name of a shard.
const SHARD_NAME_MAX: usize = 61;
/// What is answered without a shard, since it is of the process.
const PROCESS: [&str; 4] = ["/livez", "/readyz", "/healthz", "/metrics"];

/// Reads the raw path of a request.
///
/// # Errors
/// 400 that says which part is wrong.
pub(crate) fn address(path: &str) -> Result<Address<'_>, Status> {
    let rest = match url::split(path)? {
        url::Target::Cache { rest } => rest,
        // The prefix may be left out. `/clusters//...` is no place either, but not one of ours.
        url::Target::None { rest } if rest == path => rest,
        _ => return Err(shard_required()),
    };
    if PROCESS.iter().any(|own| below(rest, own)) {
        return Ok(Address::Process { rest });
    }
    let Some(behind) = rest.strip_prefix("/shards/") else { return Err(shard_required()) };
    let Some((shard, rest)) = cut(behind) else {
        return Err(Status::bad_request(format!(
            "unable to parse shard: no `/` found in path {behind}: want /shards/<shard or *>/clusters/<cluster or *>/..."
        )));
    };
    let shard = match &*decode(shard) {
        "*" => None,
        "" => return Err(shard_required()),
        name if is_shard_name(name) => Some(name.into()),
        name => {
            return Err(Status::bad_request(format!(
                "invalid shard: {name:?} does not match the regex \"^[a-z0-9-:]{{0,{SHARD_NAME_MAX}}}$\""
            )));
        }
    };
    if rest == "/metrics" {
        // Of the process as well: refused behind this, with 501.
        return Ok(Address::Shard { shard, cluster: None, rest });
    }
    let Some(behind) = rest.strip_prefix("/clusters/") else {
        return Err(Status::bad_request(format!(
            "a logical cluster name is required: want /clusters/<cluster or *>/... behind the shard, found {rest}"
        )));
    };
    let (cluster, rest) = cut(behind).unwrap_or((behind, "/"));
    let cluster = match &*decode(cluster) {
        "*" => None,
        name => Some(
            name.parse::<ClusterName>()
                .map_err(|_| Status::bad_request(format!("invalid cluster: {name:?} is not a logical cluster name")))?,
        ),
    };
    Ok(Address::Shard { shard, cluster, rest })
}

fn shard_required() -> Status {
    Status::bad_request("a shard name is required: want /shards/<shard or *>/clusters/<cluster or *>/...")
}

fn is_shard_name(name: &str) -> bool {
    name.len() <= SHARD_NAME_MAX && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b':'))
}

fn below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `first/rest...` as (`first`, `/rest...`).
fn cut(path: &str) -> Option<(&str, &str)> {
    path.find('/').map(|at| path.split_at(at))
}

/// Bytes that are no UTF-8 become characters that no name has.
fn decode(segment: &str) -> Cow<'_, str> {
    percent_decode_str(segment).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn shard(address: &Address<'_>) -> (String, String) {
        let Address::Shard { shard, cluster, .. } = address else { panic!("{address:?}") };
        let star = || "*".to_owned();
        (shard.as_ref().map_or_else(star, |s| s.to_string()), cluster.as_ref().map_or_else(star, |c| c.to_string()))
    }

    #[test]
    fn urls_follow_kcp() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/kcp/cluster-urls.json");
        let vectors: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let mut seen = 0;
        for case in vectors["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "cache") {
            let url = case["url"].as_str().unwrap();
            let (path, query) = url.split_once('?').unwrap_or((url, ""));
            assert_eq!(query, case["query"], "{url}");
            for path in [path, path.strip_prefix("/services/cache").unwrap()] {
                match address(path) {
                    Err(status) => assert_eq!(Value::from(status.code), case["status"], "{url}"),
                    Ok(address) => {
                        assert_eq!(case["status"], Value::Null, "{url}");
                        assert_eq!(address.rest(), case["rest"], "{url}");
                        let (shard, cluster) = shard(&address);
                        assert_eq!(
                            (Value::from(shard), Value::from(cluster)),
                            (case["shard"].clone(), case["cluster"].clone())
                        );
                    }
                }
            }
            seen += 1;
        }
        assert_eq!(seen, 6);
    }

    #[test]
    fn names_are_decoded_once() {
        let place = |path: &str| address(path).map(|a| shard(&a)).map_err(|s| (s.code, s.message));
        let ok = |shard: &str, cluster: &str| Ok((shard.to_owned(), cluster.to_owned()));
        assert_eq!(place("/shards/%2A/clusters/%2a/apis"), ok("*", "*"));
        assert_eq!(
            place("/shards/system%3Acache:server/clusters/system%3asystem-crds"),
            ok("system:cache:server", "system:system-crds")
        );
        assert_eq!(place(&format!("/shards/{}/clusters/r/", "a".repeat(61))), ok(&"a".repeat(61), "r"));
        for (path, words) in [
            ("/shards/%252A/clusters/root/apis", "invalid shard: \"%2A\" does not match the regex"),
            ("/shards/a%2Fb/clusters/root/apis", "invalid shard: \"a/b\""),
            ("/shards/a_b/clusters/root/apis", "invalid shard: \"a_b\""),
            ("/shards/a/clusters/Root/apis", "invalid cluster: \"Root\" is not a logical cluster name"),
            ("/shards/a/clusters/root%3Aorg/apis", "invalid cluster: \"root:org\" is not a logical cluster name"),
            ("/shards/a/clusters/r%2Fx/apis", "invalid cluster: \"r/x\""),
            ("/shards/a/clusters//apis", "invalid cluster: \"\""),
            ("/shards/a/apis/core.kcp.io/v1alpha1/shards", "a logical cluster name is required"),
            ("/shards/a", "unable to parse shard: no `/` found in path a"),
            ("/shards/", "unable to parse shard"),
            ("/shards", "a shard name is required"),
            ("/", "a shard name is required"),
            ("/version", "a shard name is required"),
            ("/clusters/root/apis", "a shard name is required"),
            ("/clusters//shards/a/clusters/b/apis", "a shard name is required"),
            ("/services/other/shards/a/clusters/b/apis", "a shard name is required"),
            ("/shards/a/clusters/b/../c", "dot segment"),
        ] {
            let (code, message) = place(path).unwrap_err();
            assert!(code == 400 && message.contains(words), "{path}: {code} {message}");
        }
        let long = place(&format!("/shards/{}/clusters/r/", "a".repeat(62))).unwrap_err();
        assert_eq!(long.0, 400);
    }

    #[test]
    fn health_needs_no_place() {
        for path in ["/livez", "/services/cache/readyz", "/healthz/ping", "/metrics"] {
            assert!(matches!(address(path), Ok(Address::Process { .. })), "{path}");
        }
        assert!(address("/healthzz").is_err());
    }
}
