//! Who asks: the identity that the gateway put into the headers, and impersonation.

use std::{borrow::Cow, sync::Arc};

use apiserver_api::{
    Status, UserInfo,
    user::{GROUP_AUTHENTICATED, GROUP_MASTERS, HEADER_EXTRA_PREFIX, HEADER_GROUP, HEADER_UID, HEADER_USER},
};
use http::{HeaderMap, header::AUTHORIZATION};
use percent_encoding::percent_decode_str;

/// Whose word the identity headers of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The gateway's: `X-Remote-*` says who asks.
    Gateway,
    /// Anybody's: the headers are ignored, the user is anonymous.
    None,
}

/// Most groups and extra values of one user.
const MOST_VALUES: usize = 1000;

/// The user of a request.
///
/// # Errors
/// 401 for a credential that nobody here can check: a wrong one never falls back to anonymous.
pub(crate) fn authenticate(headers: &HeaderMap, trust: Trust) -> Result<UserInfo, Status> {
    if let (Trust::Gateway, Some(name)) = (trust, text(headers, HEADER_USER).filter(|n| !n.is_empty())) {
        let mut user = UserInfo::new(name, &[]);
        user.uid = text(headers, HEADER_UID).unwrap_or_default().into();
        user.groups = texts(headers, HEADER_GROUP);
        user.extra = extra(headers, HEADER_EXTRA_PREFIX);
        add_group(&mut user, GROUP_AUTHENTICATED);
        return Ok(user);
    }
    if headers.contains_key(AUTHORIZATION) {
        return Err(Status::unauthorized());
    }
    Ok(UserInfo::anonymous())
}

/// Acts as the user named by the `Impersonate-*` headers. Until there is RBAC only `system:masters` may.
///
/// # Errors
/// 403, and 400 for groups, uid or extras without a user.
pub(crate) fn impersonate(headers: &HeaderMap, user: UserInfo) -> Result<UserInfo, Status> {
    let Some(name) = text(headers, "impersonate-user").filter(|n| !n.is_empty()) else {
        if headers.keys().any(|k| k.as_str().starts_with("impersonate-")) {
            return Err(Status::bad_request("the request impersonates a group, uid or extra without impersonating a user"));
        }
        return Ok(user);
    };
    if !user.in_group(GROUP_MASTERS) {
        let why = format!("User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope", user.name);
        return Err(Status::forbidden_object("", "users", name, &why));
    }
    let mut other = UserInfo::new(name, &[]);
    other.uid = text(headers, "impersonate-uid").unwrap_or_default().into();
    other.groups = texts(headers, "impersonate-group");
    other.extra = extra(headers, "impersonate-extra-");
    add_group(&mut other, GROUP_AUTHENTICATED);
    Ok(other)
}

fn add_group(user: &mut UserInfo, group: &str) {
    if !user.in_group(group) {
        user.groups.push(group.into());
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|v| std::str::from_utf8(v.as_bytes()).ok())
}

fn texts(headers: &HeaderMap, name: &str) -> Vec<Arc<str>> {
    headers.get_all(name).iter().filter_map(|v| std::str::from_utf8(v.as_bytes()).ok()).take(MOST_VALUES).map(Arc::from).collect()
}

/// Percent-encoded keys behind `prefix`, lower-cased as upstream does; sorted.
fn extra(headers: &HeaderMap, prefix: &str) -> Vec<(Arc<str>, Vec<Arc<str>>)> {
    let mut all: Vec<(Arc<str>, Vec<Arc<str>>)> = Vec::new();
    for name in headers.keys().take(MOST_VALUES) {
        let Some(key) = name.as_str().strip_prefix(prefix) else { continue };
        let key = match percent_decode_str(key).decode_utf8() {
            Ok(decoded) => Cow::Owned(decoded.to_lowercase()),
            Err(_) => Cow::Borrowed(key),
        };
        all.push((key.as_ref().into(), texts(headers, name.as_str())));
    }
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (key, value) in pairs {
            map.append(*key, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn the_headers_count_only_from_the_gateway() {
        let map = headers(&[("x-remote-user", "alice"), ("x-remote-group", "a"), ("x-remote-group", "b"), ("x-remote-extra-acme.com%2fp", "1")]);
        let user = authenticate(&map, Trust::Gateway).unwrap();
        assert_eq!((&*user.name, user.groups.len()), ("alice", 3));
        assert!(user.in_group("b") && user.in_group(GROUP_AUTHENTICATED));
        assert_eq!(&*user.extra[0].0, "acme.com/p");
        assert_eq!(authenticate(&map, Trust::None).unwrap(), UserInfo::anonymous());
    }

    #[test]
    fn an_unknown_credential_is_401_and_not_anonymous() {
        let map = headers(&[("authorization", "Bearer x")]);
        for trust in [Trust::None, Trust::Gateway] {
            assert_eq!(authenticate(&map, trust).unwrap_err().code, 401);
        }
    }

    #[test]
    fn impersonation_is_for_masters() {
        let map = headers(&[("impersonate-user", "jane"), ("impersonate-group", "g")]);
        let jane = impersonate(&map, UserInfo::new("root", &[GROUP_MASTERS])).unwrap();
        assert_eq!(&*jane.name, "jane");
        assert!(!jane.in_group(GROUP_MASTERS));
        let refused = impersonate(&map, UserInfo::new("u", &[])).unwrap_err();
        assert_eq!(refused.code, 403);
        assert!(refused.message.contains("User \"u\" cannot impersonate resource \"users\""), "{}", refused.message);
        assert_eq!(impersonate(&headers(&[("impersonate-group", "g")]), UserInfo::anonymous()).unwrap_err().code, 400);
    }
}
