//! Who asks, and how a trusted front door tells a server (Kubernetes' requestheader authentication).

use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::percent;

/// Group of the operators of the control plane; bypasses authorization.
pub const GROUP_MASTERS: &str = "system:masters";
/// Group of administrators of a kcp installation: every workspace, but not the wildcard.
pub const GROUP_KCP_ADMIN: &str = "system:kcp:admin";
/// Group of everybody who showed a valid credential.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// Group of those who showed none.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// Name of those who showed no credential.
pub const USER_ANONYMOUS: &str = "system:anonymous";

/// Header names of the trusted identity (Kubernetes' requestheader authentication).
pub const HEADER_USER: &str = "x-remote-user";
/// See [`HEADER_USER`].
pub const HEADER_UID: &str = "x-remote-uid";
/// See [`HEADER_USER`]; one header per group, in order.
pub const HEADER_GROUP: &str = "x-remote-group";
/// See [`HEADER_USER`]; followed by the percent-encoded key.
pub const HEADER_EXTRA_PREFIX: &str = "x-remote-extra-";

/// Groups that kcp's front door takes from everybody by default; a trailing `*` stands for any ending.
/// They would make a tenant an operator of the shard.
pub const DROPPED_GROUPS: [&str; 4] =
    [GROUP_MASTERS, "system:kcp:logical-cluster-admin", "system:kcp:initializer:*", "system:kcp:terminator:*"];

/// What a header name may not hold, and `%`: what client-go escapes in keys of extras.
const NOT_IN_HEADER_NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// An authenticated (or anonymous) user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// The user name, for example `alice` or `system:serviceaccount:ns:name`.
    pub name: Arc<str>,
    /// The user's unique id; empty when unknown.
    pub uid: Arc<str>,
    /// Groups in the order in which the authenticator gave them.
    pub groups: Vec<Arc<str>>,
    /// Extra attributes, sorted by key.
    pub extra: Vec<(Arc<str>, Vec<Arc<str>>)>,
}

impl UserInfo {
    /// A user with these groups, no uid and no extras.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        Self { name: name.into(), groups: groups.iter().map(|g| (*g).into()).collect(), ..Self::default() }
    }

    /// Whoever shows no credential.
    pub fn anonymous() -> Self {
        Self::new(USER_ANONYMOUS, &[GROUP_UNAUTHENTICATED])
    }

    /// Adds the group that says whether a credential was shown, unless one of the two is there: `system:unauthenticated`
    /// to the anonymous user, `system:authenticated` to everybody else (Kubernetes' AuthenticatedGroupAdder).
    pub fn add_implied_group(&mut self) {
        if !self.in_group(GROUP_AUTHENTICATED) && !self.in_group(GROUP_UNAUTHENTICATED) {
            let anonymous = &*self.name == USER_ANONYMOUS;
            self.groups.push(if anonymous { GROUP_UNAUTHENTICATED } else { GROUP_AUTHENTICATED }.into());
        }
    }

    /// Whether the user is a member of `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| &**g == group)
    }

    /// The user that a trusted peer names in its headers (name and value each, any case); `None` when it
    /// names none. Keys of extras come in lower case, since header names have none.
    pub fn from_headers<'h>(headers: impl IntoIterator<Item = (&'h str, &'h str)>) -> Option<Self> {
        let mut user = Self::default();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            match &*name {
                HEADER_USER if user.name.is_empty() => user.name = value.into(),
                HEADER_UID if user.uid.is_empty() => user.uid = value.into(),
                HEADER_GROUP => user.groups.push(value.into()),
                _ => {
                    if let Some(key) = name.strip_prefix(HEADER_EXTRA_PREFIX) {
                        user.push_extra(&percent::decode(key).to_lowercase(), value);
                    }
                }
            }
        }
        user.extra.sort();
        (!user.name.is_empty()).then_some(user)
    }

    fn push_extra(&mut self, key: &str, value: &str) {
        match self.extra.iter_mut().find(|(k, _)| &**k == key) {
            Some((_, values)) => values.push(value.into()),
            None => self.extra.push((key.into(), vec![value.into()])),
        }
    }

    /// The headers (lower-case name and value each) that tell a server who asks: user, uid, one per group
    /// in order, one per value of an extra.
    pub fn to_headers(&self) -> Vec<(String, &str)> {
        let mut headers = vec![(HEADER_USER.to_owned(), &*self.name)];
        if !self.uid.is_empty() {
            headers.push((HEADER_UID.to_owned(), &self.uid));
        }
        headers.extend(self.groups.iter().map(|group| (HEADER_GROUP.to_owned(), &**group)));
        for (key, values) in &self.extra {
            let name = format!("{HEADER_EXTRA_PREFIX}{}", utf8_percent_encode(key, NOT_IN_HEADER_NAME));
            headers.extend(values.iter().map(|value| (name.to_ascii_lowercase(), &**value)));
        }
        headers
    }

    /// Takes the groups away that one of `patterns` names; see [`DROPPED_GROUPS`].
    pub fn drop_groups(&mut self, patterns: &[impl AsRef<str>]) {
        let dropped = |group: &str| {
            patterns.iter().any(|pattern| match pattern.as_ref().strip_suffix('*') {
                Some(prefix) => group.starts_with(prefix),
                None => pattern.as_ref() == group,
            })
        };
        self.groups.retain(|group| !dropped(group));
    }
}

/// Whether the value of an `Authorization` header shows a credential at all: a bearer token that is empty is none, as
/// Kubernetes has it. The scheme is case-insensitive (RFC 9110 section 11.1).
pub fn is_credential(authorization: &[u8]) -> bool {
    let value = authorization.trim_ascii();
    !value.is_empty() && !value.eq_ignore_ascii_case(b"bearer")
}

/// Whether only a trusted peer may send this header: it says who the user is (`X-Remote-*`). Underscores
/// count as hyphens, since some servers read them so.
pub fn is_remote_header(name: &str) -> bool {
    has_prefix(name, "x-remote-")
}

/// Whether the header asks to act as somebody else (`Impersonate-*`); the server decides whether that is allowed.
pub fn is_impersonation_header(name: &str) -> bool {
    has_prefix(name, "impersonate-")
}

/// Either of [`is_remote_header`] and [`is_impersonation_header`].
pub fn is_identity_header(name: &str) -> bool {
    is_remote_header(name) || is_impersonation_header(name)
}

/// `prefix` in lower case, with hyphens.
fn has_prefix(name: &str, prefix: &str) -> bool {
    let same = |(a, b): (u8, u8)| a.to_ascii_lowercase() == b || (a == b'_' && b == b'-');
    name.len() >= prefix.len() && name.bytes().zip(prefix.bytes()).all(same)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{cases, text};

    fn list(value: &Value) -> Vec<&str> {
        value.as_array().into_iter().flatten().map(text).collect()
    }

    fn pairs(value: &Value) -> Vec<(String, &str)> {
        value.as_array().unwrap().iter().map(|pair| (text(&pair[0]).to_lowercase(), text(&pair[1]))).collect()
    }

    #[test]
    fn headers_and_groups_follow_kcp() {
        for case in cases("kcp/identity-headers.json") {
            let name = text(&case["name"]);
            if case.get("groupsIn").is_some() {
                let mut user = UserInfo::new("u", &list(&case["groupsIn"]));
                user.drop_groups(&DROPPED_GROUPS);
                assert_eq!(user, UserInfo::new("u", &list(&case["groupsOut"])), "{name}");
                continue;
            }
            let mut outbound = pairs(&case["inbound"]);
            outbound.retain(|(name, _)| !is_remote_header(name));
            let user = case["user"].as_object().map(|u| UserInfo::new(text(&u["name"]), &list(&u["groups"])));
            outbound.extend(user.iter().flat_map(UserInfo::to_headers));
            assert_eq!(outbound, pairs(&case["outbound"]), "{name}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let user = UserInfo {
            uid: "7".into(),
            extra: vec![
                ("a b%/é".into(), vec!["1".into(), "2".into()]),
                ("authentication.kcp.io/scopes".into(), vec!["cluster:root".into()]),
            ],
            ..UserInfo::new("alice", &["b", "a"])
        };
        let headers = user.to_headers();
        assert!(headers.iter().any(|(name, _)| name == "x-remote-extra-authentication.kcp.io%2fscopes"));
        let upper: Vec<_> = headers.iter().map(|(name, value)| (name.to_uppercase(), *value)).collect();
        assert_eq!(UserInfo::from_headers(upper.iter().map(|(n, v)| (&**n, *v))).as_ref(), Some(&user));
        assert_eq!(UserInfo::from_headers([("X-Remote-Group", "system:masters")]), None);
        assert!(headers.iter().all(|(name, _)| is_remote_header(name)));
    }

    #[test]
    fn identity_headers_are_known_in_every_spelling() {
        for name in ["X-Remote-User", "x_remote_user", "X-REMOTE_Extra-x", "Impersonate-User", "IMPERSONATE_extra-a"] {
            assert!(is_identity_header(name), "{name}");
        }
        for name in ["X-Remote", "X-Request-Id", "Accept", "X-Impersonate-User", ""] {
            assert!(!is_identity_header(name), "{name}");
        }
    }

    #[test]
    fn dropped_groups_end_in_a_star_only_as_prefixes() {
        let mut user = UserInfo::new("u", &["system:kcp:initializer:root:x", "system:masters2", "system:kcp:admin"]);
        user.drop_groups(&DROPPED_GROUPS);
        assert_eq!(user.groups.len(), 2);
    }
}
