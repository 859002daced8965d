//! Who may do what. One function, until rules (RBAC) take its place.

use apiserver_api::{
    RequestInfo, Status, UserInfo, Verb,
    user::{GROUP_AUTHENTICATED, GROUP_KCP_ADMIN, GROUP_MASTERS},
};

use super::issuer;

/// Where a request goes, as far as authorization cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path without a cluster.
    Bare,
    /// A logical cluster that exists and is open (kcp.md 2.4).
    Cluster,
    /// A logical cluster that does not exist, is not scheduled yet or is unavailable.
    Closed,
    /// `*`.
    Wildcard,
    /// A place in the cache server, wildcards included: only for `system:masters` (kcp.md 4.2).
    Shard,
}

/// Whether `user` may do what `info` says.
///
/// `system:masters` may everything; `system:kcp:admin` everything inside an open logical cluster; whoever is
/// authenticated may read discovery there, and ask who it is and what it may; health and version are for everybody (api-server.md 1).
///
/// # Errors
/// 403 with upstream's text.
pub(crate) fn authorize(user: &UserInfo, place: Place, info: &RequestInfo<'_>) -> Result<(), Status> {
    let read = matches!(info.verb, Verb::Get | Verb::Head);
    let allowed = user.in_group(GROUP_MASTERS)
        || (place == Place::Cluster && user.in_group(GROUP_KCP_ADMIN))
        || (!info.is_resource && read && place != Place::Shard && is_public(&info.path))
        || (!info.is_resource
            && read
            && !matches!(place, Place::Closed | Place::Shard)
            && user.in_group(GROUP_AUTHENTICATED)
            && is_discovery(&info.path))
        || (place == Place::Cluster && user.in_group(GROUP_AUTHENTICATED) && asks_about_itself(info));
    if allowed {
        return Ok(());
    }
    // kcp tells nobody why it keeps him out of a workspace (kcp.md 1.8).
    Err(Status::forbidden(
        &user.name,
        info,
        if matches!(place, Place::Bare | Place::Shard) { "" } else { "access denied" },
    ))
}

fn is_public(path: &str) -> bool {
    ["/healthz", "/livez", "/readyz", "/version"].iter().any(|p| below(path, p))
}

/// A SelfSubjectReview, SelfSubjectAccessReview or SelfSubjectRulesReview.
fn asks_about_itself(info: &RequestInfo<'_>) -> bool {
    info.verb == Verb::Create
        && match &*info.api_group {
            "authentication.k8s.io" => info.resource == "selfsubjectreviews",
            "authorization.k8s.io" => {
                ["selfsubjectaccessreviews", "selfsubjectrulesreviews"].contains(&&*info.resource)
            }
            _ => false,
        }
}

fn is_discovery(path: &str) -> bool {
    path == "/" || issuer::PATHS.contains(&path) || ["/api", "/apis", "/openapi"].iter().any(|p| below(path, p))
}

fn below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(groups: &[&str], place: Place, method: &str, path: &str) -> Result<(), Status> {
        authorize(&UserInfo::new("u", groups), place, &RequestInfo::parse(method, path, "").unwrap())
    }

    #[test]
    fn groups_and_places() {
        let (masters, admin, user) =
            (&[GROUP_MASTERS][..], &[GROUP_KCP_ADMIN, GROUP_AUTHENTICATED][..], &[GROUP_AUTHENTICATED][..]);
        let read = |groups, place| ask(groups, place, "GET", "/api/v1/configmaps").is_ok();
        for place in [Place::Bare, Place::Cluster, Place::Closed, Place::Wildcard] {
            assert!(read(masters, place));
            assert_eq!(read(admin, place), place == Place::Cluster, "{place:?}");
            assert!(!read(user, place));
            assert_eq!(ask(user, place, "GET", "/apis/a.b/v1").is_ok(), place != Place::Closed);
            assert!(ask(&[], place, "GET", "/healthz/ping").is_ok());
            assert!(ask(&[], place, "GET", "/apis").is_err());
        }
        for path in ["/healthz", "/version", "/apis", "/apis/core.kcp.io/v1alpha1/shards"] {
            assert!(ask(admin, Place::Shard, "GET", path).is_err(), "{path}");
            assert!(ask(masters, Place::Shard, "GET", path).is_ok(), "{path}");
        }
        assert!(ask(user, Place::Cluster, "POST", "/api").is_err());
        assert!(ask(user, Place::Cluster, "GET", "/apiserver").is_err());
    }
}
