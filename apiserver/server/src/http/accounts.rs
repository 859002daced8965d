//! Service accounts as users: who shows a token of one is that account, for as long as it exists (api-server.md 6).

use apiserver_api::{ClusterName, Status, UserInfo, user::GROUP_AUTHENTICATED};
use apiserver_machinery::{Resource, builtin, object::text};
use http::{HeaderMap, header::AUTHORIZATION};

use super::authentication::Trust;
use crate::{
    registry::{ObjectKey, Registry},
    server::ApiServer,
    tokens::{Claims, Reference},
};

/// Group of all service accounts; followed by `:<namespace>`, of those of one namespace.
const GROUP_ACCOUNTS: &str = "system:serviceaccounts";

pub(super) fn service_accounts() -> &'static Resource {
    builtin::find("", "v1", "serviceaccounts").expect("the table of built-in kinds has serviceaccounts")
}

pub(super) fn secrets() -> &'static Resource {
    builtin::find("", "v1", "secrets").expect("the table of built-in kinds has secrets")
}

/// The bearer token of a request (RFC 6750; the scheme is case-insensitive), unless the gateway says who asks.
pub(crate) fn bearer(headers: &HeaderMap, trust: Trust) -> Option<&str> {
    if trust == Trust::Gateway && headers.contains_key(apiserver_api::user::HEADER_USER) {
        return None;
    }
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Who shows this token to the server, and the cluster that the account lies in.
///
/// # Errors
/// 401 for any other token; those of the store.
pub(crate) async fn authenticate(server: &ApiServer, token: &str) -> Result<(UserInfo, Option<ClusterName>), Status> {
    let issuer = server.issuer().to_owned();
    let found = review(server, token, &[issuer]).await?;
    found.map(|(user, cluster, _)| (user, Some(cluster))).ok_or_else(Status::unauthorized)
}

/// The account that a token for one of these audiences stands for now, its cluster, and what the token says.
///
/// # Errors
/// Those of the store.
pub(super) async fn review(
    server: &ApiServer,
    token: &str,
    audiences: &[String],
) -> Result<Option<(UserInfo, ClusterName, Claims)>, Status> {
    let Some(key) = &server.options().token_key else { return Ok(None) };
    let Some(claims) = key.verify(token, server.issuer(), audiences) else { return Ok(None) };
    let Some(cluster) = claims.account.cluster() else { return Ok(None) };
    let (namespace, account) = (&claims.account.namespace, &claims.account.account);
    let is_there = async |resource: &'static Resource, of: &Reference| {
        has_uid(server.registry(), resource, &ObjectKey::new(&cluster, namespace, &of.name), &of.uid).await
    };
    if !is_there(service_accounts(), account).await? {
        return Ok(None);
    }
    if let Some(secret) = &claims.account.secret
        && !is_there(secrets(), secret).await?
    {
        return Ok(None);
    }
    let groups = [GROUP_ACCOUNTS, &format!("{GROUP_ACCOUNTS}:{namespace}"), GROUP_AUTHENTICATED];
    let mut user = UserInfo::new(&claims.sub, &groups);
    user.uid = account.uid.as_str().into();
    user.extra =
        vec![("authentication.kubernetes.io/credential-id".into(), vec![format!("JTI={}", claims.jti).into()])];
    Ok(Some((user, cluster, claims)))
}

/// Whether the object is there and is the one with this uid.
async fn has_uid(registry: &Registry, resource: &'static Resource, key: &ObjectKey, uid: &str) -> Result<bool, Status> {
    let Some(found) = registry.find(resource, key).await? else { return Ok(false) };
    Ok(text(&found.stored()?, &["metadata", "uid"]) == uid)
}

/// An account of the cluster `home` as another cluster sees it: a stranger with a name that no account there can have,
/// in none of its groups. So what one workspace allows its own accounts it never allows those of another.
pub(crate) fn seen_from(user: UserInfo, home: Option<ClusterName>, cluster: Option<&ClusterName>) -> UserInfo {
    let Some(home) = home.filter(|home| Some(home) != cluster) else { return user };
    let account = user.name.strip_prefix("system:serviceaccount:").unwrap_or_default();
    let name = format!("system:kcp:serviceaccount:{home}:{account}");
    UserInfo { uid: user.uid, extra: user.extra, ..UserInfo::new(&name, &[GROUP_AUTHENTICATED]) }
}
