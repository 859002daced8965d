//! Who asks: client certificate or nobody, and on whose behalf.
//!
//! Identity headers from outside are never believed and never passed on, whatever their spelling: some servers read
//! `X_Remote_User` as `X-Remote-User`.

use std::sync::Arc;

use apiserver_api::{
    Reason, Status, UserInfo,
    user::{
        GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_UNAUTHENTICATED, HEADER_EXTRA_PREFIX, HEADER_GROUP, HEADER_UID,
        HEADER_USER, USER_ANONYMOUS,
    },
};
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const IMPERSONATE: &str = "impersonate-";
/// What Go's `url.PathEscape` leaves alone.
const EXTRA_KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b':')
    .remove(b'=')
    .remove(b'@');

/// A user and the headers that say so to a shard, written once.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) user: UserInfo,
    headers: Box<[(HeaderName, HeaderValue)]>,
}

/// Who asks, and whether the gateway vouches for it. If not, the shard sees the client's own bearer token and decides.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Arc<Identity>,
    pub(crate) vouched: bool,
}

impl Identity {
    /// `None` if a part of it cannot be written as a header: half an identity would be another one.
    pub(crate) fn new(user: UserInfo, drop: &DropGroups) -> Option<Self> {
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).ok();
        let mut headers = vec![(HeaderName::from_static(HEADER_USER), value(&user.name)?)];
        if !user.uid.is_empty() {
            headers.push((HeaderName::from_static(HEADER_UID), value(&user.uid)?));
        }
        for group in user.groups.iter().filter(|g| !drop.contains(g)) {
            headers.push((HeaderName::from_static(HEADER_GROUP), value(group)?));
        }
        for (key, values) in &user.extra {
            let key = utf8_percent_encode(key, EXTRA_KEY).to_string().to_ascii_lowercase();
            let name = HeaderName::try_from(format!("{HEADER_EXTRA_PREFIX}{key}")).ok()?;
            for text in values {
                headers.push((name.clone(), value(text)?));
            }
        }
        Some(Self { user, headers: headers.into() })
    }

    /// The user a client certificate names: CN is the name, each O a group. `None` without a usable common name.
    pub(crate) fn of_certificate(der: &[u8], drop: &DropGroups) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().find_map(|a| a.as_str().ok()).filter(|n| !n.is_empty())?;
        let mut groups: Vec<&str> = subject.iter_organization().filter_map(|a| a.as_str().ok()).collect();
        groups.push(GROUP_AUTHENTICATED);
        Self::new(UserInfo::new(name, &groups), drop)
    }
}

/// Decides who asks. `certificate` is the connection's user, `anonymous` the shared user of those without.
///
/// # Errors
/// 401 without a credential where one is required; 403 for impersonation by anyone but `system:masters`.
pub(crate) fn identify(
    certificate: Option<&Arc<Identity>>,
    anonymous: Option<&Arc<Identity>>,
    headers: &HeaderMap,
    drop: &DropGroups,
) -> Result<Caller, Status> {
    let identity = certificate.or(anonymous).ok_or_else(|| Status::new(Reason::Unauthorized, "Unauthorized"))?;
    if headers.keys().any(|name| is_impersonation(name.as_str())) {
        let identity = Identity::new(impersonate(&identity.user, headers)?, drop)
            .ok_or_else(|| Status::new(Reason::BadRequest, "the impersonated identity cannot be written as headers"))?;
        return Ok(Caller { identity: Arc::new(identity), vouched: true });
    }
    let vouched = certificate.is_some() || !headers.contains_key(AUTHORIZATION);
    Ok(Caller { identity: identity.clone(), vouched })
}

fn impersonate(caller: &UserInfo, headers: &HeaderMap) -> Result<UserInfo, Status> {
    let forbidden = |why: &str| {
        Status::new(Reason::Forbidden, format!("forbidden: User {:?} cannot impersonate: {why}", &*caller.name))
    };
    if !caller.in_group(GROUP_MASTERS) {
        return Err(forbidden("only members of system:masters may"));
    }
    let mut user = UserInfo::default();
    for (name, value) in headers {
        let value = value.to_str().map_err(|_| forbidden("a header value is not plain text"))?;
        match name.as_str().strip_prefix(IMPERSONATE) {
            None if is_impersonation(name.as_str()) => {
                return Err(Status::new(Reason::BadRequest, format!("header {name}: write it with hyphens")));
            }
            None => {}
            Some("user") => user.name = value.into(),
            Some("uid") => user.uid = value.into(),
            Some("group") => user.groups.push(value.into()),
            Some(other) => match other.strip_prefix("extra-") {
                Some(key) => add_extra(&mut user, &percent_decode_str(key).decode_utf8_lossy(), value),
                None => return Err(Status::new(Reason::BadRequest, format!("header {name} is not known"))),
            },
        }
    }
    if user.name.is_empty() {
        return Err(Status::new(Reason::BadRequest, "requested identity without the header Impersonate-User"));
    }
    user.extra.sort_by(|a, b| a.0.cmp(&b.0));
    let implied = if &*user.name == USER_ANONYMOUS { GROUP_UNAUTHENTICATED } else { GROUP_AUTHENTICATED };
    if !user.in_group(implied) {
        user.groups.push(implied.into());
    }
    Ok(user)
}

fn add_extra(user: &mut UserInfo, key: &str, value: &str) {
    match user.extra.iter_mut().find(|(k, _)| &**k == key) {
        Some((_, values)) => values.push(value.into()),
        None => user.extra.push((key.into(), vec![value.into()])),
    }
}

fn is_impersonation(name: &str) -> bool {
    starts_with_folded(name, IMPERSONATE)
}

/// Whether `name`, with underscores read as hyphens, begins with `prefix`.
fn starts_with_folded(name: &str, prefix: &str) -> bool {
    name.len() >= prefix.len()
        && name.bytes().zip(prefix.bytes()).all(|(n, p)| n == p || (n == b'_' && p == b'-'))
}

/// Whether a header claims an identity. Names in a [`HeaderMap`] are lower case.
fn claims_identity(name: &str) -> bool {
    let first = name.as_bytes().first();
    (first == Some(&b'x') && starts_with_folded(name, "x-remote-") && is_remote(name))
        || (first == Some(&b'i') && is_impersonation(name))
}

fn is_remote(name: &str) -> bool {
    [HEADER_USER, HEADER_UID, HEADER_GROUP].iter().any(|h| name.len() == h.len() && starts_with_folded(name, h))
        || starts_with_folded(name, HEADER_EXTRA_PREFIX)
}

/// Removes every identity header, then writes those of `identity`.
pub(crate) fn stamp(headers: &mut HeaderMap, identity: Option<&Identity>) {
    if headers.keys().any(|name| claims_identity(name.as_str())) {
        let claims: Vec<HeaderName> = headers.keys().filter(|n| claims_identity(n.as_str())).cloned().collect();
        for name in claims {
            headers.remove(name);
        }
    }
    for (name, value) in identity.iter().flat_map(|i| i.headers.iter()) {
        headers.append(name.clone(), value.clone());
    }
}

/// Groups that stay at the door.
#[derive(Debug, Default)]
pub(crate) struct DropGroups {
    exact: Vec<Box<str>>,
    prefixes: Vec<Box<str>>,
}

impl DropGroups {
    /// `name*` is a prefix.
    pub(crate) fn new(groups: &[String]) -> Self {
        let (prefixes, exact): (Vec<_>, Vec<_>) = groups.iter().partition(|g| g.ends_with('*'));
        Self {
            exact: exact.into_iter().map(|g| g.as_str().into()).collect(),
            prefixes: prefixes.into_iter().map(|g| g.trim_end_matches('*').into()).collect(),
        }
    }

    fn contains(&self, group: &str) -> bool {
        self.exact.iter().any(|g| **g == *group) || self.prefixes.iter().any(|p| group.starts_with(&**p))
    }
}
