//! Who asks.

use std::sync::Arc;

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

    /// Whether the user is a member of `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| &**g == group)
    }
}
