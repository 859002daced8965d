//! Where a request goes: one parse of its path decides both its level and its target.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use apiserver_api::{
    ClusterName, Reason, Status, UserInfo,
    url::{self, Target, UrlErrorKind},
    user::GROUP_MASTERS,
};
use http::{StatusCode, Uri, uri::PathAndQuery};
use tokio::time::timeout;

use crate::{core::Core, door::custom, index::Lookup, refusal::temporary};

/// The target of one request.
#[derive(Debug)]
pub(crate) struct Route {
    /// Number of the shard.
    pub(crate) shard: usize,
    /// The workspace it is charged to; `None` is the platform.
    pub(crate) workspace: Option<ClusterName>,
    /// Whether it is about all clusters of the shard.
    pub(crate) is_wildcard: bool,
    /// Path and query for the shard.
    pub(crate) uri: Uri,
    /// Whether what stands before [`rest_at`](Self::rest_at) is `/clusters/<as the client wrote it>`.
    pub(crate) has_prefix: bool,
    /// Where in the client's path the Kubernetes part begins.
    pub(crate) rest_at: usize,
}

impl Route {
    /// The Kubernetes part of the client's path.
    pub(crate) fn rest<'u>(&self, uri: &'u Uri) -> &'u str {
        rest(uri, self.rest_at)
    }
}

/// The part of a path that begins at `at`; never empty.
pub(crate) fn rest(uri: &Uri, at: usize) -> &str {
    uri.path().get(at..).filter(|path| !path.is_empty()).unwrap_or("/")
}

/// Finds the target of `uri`, waiting a moment for the index if it does not know the workspace.
///
/// # Errors
/// 400 for a path that could be read in two ways, 404 for a second cluster prefix, 403 for a workspace that nobody
/// knows or that has no valid name, 503 while that is not certain and for one that is not available.
pub(crate) async fn resolve(core: &Core, uri: &Uri, method: &str, user: &UserInfo) -> Result<Route, Status> {
    let path = uri.path();
    let target = match url::split(path) {
        Ok(target) => target,
        // Hides which workspaces exist: an invalid name gets the same answer as an unknown one.
        Err(error) if error.kind == UrlErrorKind::BadCluster => return Err(forbidden(user, method, path)),
        Err(error) => return Err(error.into()),
    };
    match target {
        Target::Cluster { path: cluster, rest } => {
            let found = match core.index.lookup(&cluster) {
                // Boxed: it is rare, and would make every request's future larger.
                Lookup::Unknown { .. } | Lookup::Pending => Box::pin(wait(core, &cluster)).await,
                other => other,
            };
            match found {
                Lookup::Found { name, shard } => workspace(core, uri, rest, name, shard),
                Lookup::Mount { .. } => Err(custom(StatusCode::NOT_IMPLEMENTED, "mounted workspaces are not served")),
                Lookup::Unavailable => Err(temporary(StatusCode::SERVICE_UNAVAILABLE, "Not available.", 1)),
                Lookup::Pending => {
                    let message = "the workspace was created just now and is not ready yet; please try again";
                    Err(temporary(StatusCode::SERVICE_UNAVAILABLE, message, 1))
                }
                Lookup::Unknown { certain } => unknown(core, uri, &cluster, rest, method, user, certain),
            }
        }
        Target::Wildcard { rest } if core.shards.len() == 1 => {
            let mut route = platform(core, uri, rest);
            route.is_wildcard = true;
            route.has_prefix = true;
            Ok(route)
        }
        Target::Wildcard { .. } => Err(forbidden(user, method, path)),
        Target::Cache { rest } | Target::VirtualWorkspace { rest } => Ok(platform(core, uri, behind_cluster(rest))),
        Target::None { rest } => {
            let mut route = platform(core, uri, rest);
            // An empty cluster prefix is none at all; the shard need not know of it.
            if route.rest_at != 0 {
                let query = uri.query().map(|q| format!("?{q}")).unwrap_or_default();
                route.uri = parse(format!("{rest}{query}"))?;
            }
            Ok(route)
        }
    }
}

fn workspace(core: &Core, uri: &Uri, rest: &str, name: ClusterName, shard: usize) -> Result<Route, Status> {
    let (prefix, rest) = cut(uri.path(), rest);
    let target = match prefix.strip_prefix("/clusters/") {
        Some(written) if written != name.as_str() && !core.index.is_static() => {
            let query = uri.query().map(|q| format!("?{q}")).unwrap_or_default();
            parse(format!("/clusters/{name}{rest}{query}"))?
        }
        _ => origin_form(uri),
    };
    let workspace = (!name.is_system()).then_some(name);
    let rest_at = uri.path().len() - rest.len();
    Ok(Route { shard, workspace, is_wildcard: false, uri: target, has_prefix: true, rest_at })
}

/// What stands in front of `rest`, and `rest` as far as the path has it: `/clusters/x` has the rest `/`, which is not
/// a part of it.
fn cut<'a>(path: &'a str, rest: &str) -> (&'a str, &'a str) {
    path.strip_suffix(rest).map_or((path, ""), |prefix| path.split_at(prefix.len()))
}

fn platform(core: &Core, uri: &Uri, rest: &str) -> Route {
    let rest_at = cut(uri.path(), rest).0.len();
    Route {
        shard: core.shards.platform(),
        workspace: None,
        is_wildcard: false,
        uri: origin_form(uri),
        has_prefix: false,
        rest_at,
    }
}

/// What a request to a virtual workspace or the cache server asks for stands behind a cluster of its own.
fn behind_cluster(path: &str) -> &str {
    let Some((_, behind)) = path.split_once("/clusters/") else { return path };
    behind.find('/').and_then(|at| behind.get(at..)).unwrap_or("")
}

fn origin_form(uri: &Uri) -> Uri {
    match (uri.authority(), uri.path_and_query()) {
        (Some(_), Some(path)) => Uri::from(path.clone()),
        _ => uri.clone(),
    }
}

fn parse(text: String) -> Result<Uri, Status> {
    PathAndQuery::try_from(text)
        .map(Uri::from)
        .map_err(|_| Status::new(Reason::BadRequest, "the path or query has characters that have no place in a URL"))
}

/// Gives the index a moment: a workspace may have been created just now.
async fn wait(core: &Core, cluster: &str) -> Lookup {
    let Some(_place) = Place::take(&core.lookups) else { return core.index.lookup(cluster) };
    let mut moves = core.index.moves();
    let found = async {
        loop {
            let lookup = core.index.lookup(cluster);
            if !matches!(lookup, Lookup::Unknown { .. } | Lookup::Pending) || moves.changed().await.is_err() {
                return lookup;
            }
        }
    };
    match wait_limit(core) {
        Some(limit) => timeout(limit, found).await.unwrap_or_else(|_| core.index.lookup(cluster)),
        None => core.index.lookup(cluster),
    }
}

/// Requests that wait for the index at a time; each is woken by every change.
const LOOKUPS_MAX: usize = 1000;

/// One of the places of requests that wait for the index.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(taken: &'a AtomicUsize) -> Option<Self> {
        let place = Self(taken);
        (taken.fetch_add(1, Relaxed) < LOOKUPS_MAX).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn wait_limit(core: &Core) -> Option<Duration> {
    (!core.limits.lookup_wait.is_zero()).then_some(core.limits.lookup_wait)
}

fn unknown(
    core: &Core,
    uri: &Uri,
    cluster: &str,
    rest: &str,
    method: &str,
    user: &UserInfo,
    certain: bool,
) -> Result<Route, Status> {
    // System clusters belong to a shard and are in no index; with one shard there is no doubt which.
    if cluster.starts_with("system:") && core.shards.len() == 1 && user.in_group(GROUP_MASTERS) {
        return Ok(platform(core, uri, rest));
    }
    match certain {
        true => Err(forbidden(user, method, uri.path())),
        false => Err(temporary(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "not all shards have told which workspaces they hold: {} of {} are missing, and this one may be on \
                 one of them; please try again",
                core.index.unheard(),
                core.shards.len()
            ),
            1,
        )),
    }
}

/// kcp's answer for a workspace that is unknown or not to be known of (kcp.md 1.8).
fn forbidden(user: &UserInfo, method: &str, path: &str) -> Status {
    let verb = method.to_ascii_lowercase();
    let name = &user.name;
    Status::new(
        Reason::Forbidden,
        format!("forbidden: User {name:?} cannot {verb} path {path:?}: workspace access not permitted"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_path_is_what_the_path_has() {
        for (path, prefix) in [
            ("/clusters/*", "/clusters/*"),
            ("/clusters/*/", "/clusters/*"),
            ("/clusters/*/api", "/clusters/*"),
            ("/clusters/system:admin", "/clusters/system:admin"),
            ("/clusters/a", "/clusters/a"),
            ("/clusters/a/", "/clusters/a"),
            ("/services/cache", "/services/cache"),
            ("/services/cache/x", "/services/cache"),
            ("/clusters//api", "/clusters/"),
            ("/version", ""),
        ] {
            let (Target::Cluster { rest, .. }
            | Target::Wildcard { rest }
            | Target::Cache { rest }
            | Target::VirtualWorkspace { rest }
            | Target::None { rest }) = url::split(path).unwrap();
            assert_eq!(cut(path, rest), (prefix, &path[prefix.len()..]), "{path}");
        }
    }
}
