//! Who asks: the identity that the gateway put into the headers, and impersonation.

use apiserver_api::{
    Status, UserInfo,
    user::{GROUP_MASTERS, is_credential, is_impersonation_header},
};
use http::{HeaderMap, header::AUTHORIZATION};

/// Whose word the identity headers of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The gateway's: `X-Remote-*` says who asks.
    Gateway,
    /// Anybody's: the headers are ignored, the user is anonymous.
    None,
}

/// The user of a request.
///
/// # Errors
/// 401 for a credential that nobody here can check: a wrong one never falls back to anonymous.
pub(crate) fn authenticate(headers: &HeaderMap, trust: Trust) -> Result<UserInfo, Status> {
    if let (Trust::Gateway, Some(mut user)) = (trust, UserInfo::from_headers(texts(headers))) {
        user.add_implied_group();
        return Ok(user);
    }
    if headers.get_all(AUTHORIZATION).iter().any(|value| is_credential(value.as_bytes())) {
        return Err(Status::unauthorized());
    }
    Ok(UserInfo::anonymous())
}

/// Acts as the user named by the `Impersonate-*` headers. Until there is RBAC only `system:masters` may.
///
/// # Errors
/// 403, and 400 for groups, uid or extras without a user.
pub(crate) fn impersonate(headers: &HeaderMap, user: UserInfo) -> Result<UserInfo, Status> {
    if !headers.keys().any(|name| is_impersonation_header(name.as_str())) {
        return Ok(user);
    }
    // The same headers under another prefix.
    let renamed: Vec<(String, &str)> = texts(headers)
        .filter_map(|(name, value)| Some((format!("x-remote-{}", name.strip_prefix("impersonate-")?), value)))
        .collect();
    let Some(mut other) = UserInfo::from_headers(renamed.iter().map(|(name, value)| (&**name, *value))) else {
        return Err(Status::bad_request("the request impersonates a group, uid or extra without impersonating a user"));
    };
    if !user.in_group(GROUP_MASTERS) {
        let why = format!(
            "User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            user.name
        );
        return Err(Status::forbidden_object("", "users", &other.name, &why));
    }
    other.add_implied_group();
    Ok(other)
}

fn texts(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    headers.iter().filter_map(|(name, value)| Some((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?)))
}

#[cfg(test)]
mod tests {
    use apiserver_api::user::{GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED, USER_ANONYMOUS};

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
        let map = headers(&[
            ("x-remote-user", "alice"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-acme.com%2fp", "1"),
        ]);
        let user = authenticate(&map, Trust::Gateway).unwrap();
        assert_eq!((&*user.name, user.groups.len()), ("alice", 3));
        assert!(user.in_group("b") && user.in_group(GROUP_AUTHENTICATED));
        assert_eq!(&*user.extra[0].0, "acme.com/p");
        assert_eq!(authenticate(&map, Trust::None).unwrap(), UserInfo::anonymous());
    }

    #[test]
    fn nobody_becomes_somebody() {
        let anonymous = [("x-remote-user", USER_ANONYMOUS), ("x-remote-group", GROUP_UNAUTHENTICATED)];
        for told in [&anonymous[..], &anonymous[..1]] {
            assert_eq!(authenticate(&headers(told), Trust::Gateway).unwrap(), UserInfo::anonymous());
        }
        let map = headers(&[("impersonate-user", USER_ANONYMOUS)]);
        assert_eq!(impersonate(&map, UserInfo::new("root", &[GROUP_MASTERS])).unwrap(), UserInfo::anonymous());
    }

    #[test]
    fn an_empty_token_is_none() {
        for value in ["Bearer ", "bearer", ""] {
            let map = headers(&[("authorization", value)]);
            assert_eq!(authenticate(&map, Trust::None).unwrap(), UserInfo::anonymous(), "{value:?}");
        }
        assert!(authenticate(&headers(&[("authorization", "Basic")]), Trust::None).is_err());
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
