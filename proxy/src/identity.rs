//! Who asks: client certificate or nobody, and on whose behalf.
//!
//! Identity headers from outside are never believed and never passed on, whatever their spelling: some servers read
//! `X_Remote_User` as `X-Remote-User`.

use std::sync::Arc;

use apiserver_api::{
    Reason, Status, UserInfo,
    user::{GROUP_AUTHENTICATED, GROUP_MASTERS, is_credential, is_impersonation_header},
};
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use crate::core::Access;

const IMPERSONATE: &str = "impersonate-";
/// The attribute of a certificate's subject that is the user's uid, and the extra that names the certificate (Kubernetes'
/// authenticator of client certificates; KEP-4193).
const UID: &str = "1.3.6.1.4.1.57683.2";
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A user and the headers that say so to a shard, written once.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) user: UserInfo,
    headers: Box<[(HeaderName, HeaderValue)]>,
}

/// Who the client certificate of a connection says it is.
#[derive(Debug)]
pub(crate) struct Certificate {
    identity: Arc<Identity>,
    /// The rules its headers were written by.
    access: Arc<Access>,
}

impl Certificate {
    /// `None` without a usable common name.
    pub(crate) fn read(der: &[u8], access: Arc<Access>) -> Option<Self> {
        Some(Self { identity: Arc::new(Identity::of_certificate(der, &access.drop_groups)?), access })
    }

    /// The identity under the rules of now. Written anew for each request if they have changed since the connection was
    /// made; that connection has been asked to end.
    fn identity(&self, access: &Arc<Access>) -> Option<Arc<Identity>> {
        match Arc::ptr_eq(&self.access, access) || self.access.drop_groups == access.drop_groups {
            true => Some(self.identity.clone()),
            false => Identity::new(self.identity.user.clone(), &access.drop_groups).map(Arc::new),
        }
    }
}

/// Who asks, and whether the gateway vouches for it. If not, the shard sees the client's own bearer token and decides.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Arc<Identity>,
    /// Who says so, if that is somebody else.
    pub(crate) impersonator: Option<Arc<Identity>>,
    pub(crate) vouched: bool,
}

impl Identity {
    /// `drop` names the groups that no shard is told of. `None` if a part of the identity cannot be written as a
    /// header: half an identity would be another one.
    pub(crate) fn new(user: UserInfo, drop: &[String]) -> Option<Self> {
        let mut told = user.clone();
        told.drop_groups(drop);
        let header = |(name, value): (String, &str)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value.as_bytes()).ok()?))
        };
        let headers = told.to_headers().into_iter().map(header).collect::<Option<_>>()?;
        Some(Self { user, headers })
    }

    /// The headers that say who it is.
    pub(crate) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// The user a client certificate names: CN is the name, each O a group, and which certificate it was. `None` without a
    /// usable common name, or with an unusable uid.
    pub(crate) fn of_certificate(der: &[u8], drop: &[String]) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().find_map(|a| a.as_str().ok()).filter(|n| !n.is_empty())?;
        let mut groups: Vec<&str> = subject.iter_organization().filter_map(|a| a.as_str().ok()).collect();
        groups.push(GROUP_AUTHENTICATED);
        let mut user = UserInfo::new(name, &groups);
        let mut uids = subject.iter_attributes().filter(|a| a.attr_type().to_id_string() == UID);
        if let Some(uid) = uids.next() {
            user.uid = uid.as_str().ok().filter(|uid| !uid.is_empty() && uids.next().is_none())?.into();
        }
        let id: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
        user.extra = vec![(CREDENTIAL_ID.into(), vec![format!("X509SHA256={id}").into()])];
        Self::new(user, drop)
    }
}

/// Decides who asks. `certificate` is the connection's user, if it has one.
///
/// # Errors
/// 401 without a credential where one is required; 403 for impersonation by anyone but `system:masters`.
pub(crate) fn identify(
    certificate: Option<&Certificate>,
    access: &Arc<Access>,
    headers: &HeaderMap,
) -> Result<Caller, Status> {
    let drop = &access.drop_groups;
    let known = match certificate {
        Some(certificate) => certificate.identity(access),
        None => access.anonymous.clone(),
    };
    let identity = known.ok_or_else(|| Status::new(Reason::Unauthorized, "Unauthorized"))?;
    if headers.keys().any(|name| is_impersonation_header(name.as_str())) {
        let other = Identity::new(impersonate(&identity.user, headers)?, drop)
            .ok_or_else(|| Status::new(Reason::BadRequest, "the impersonated identity cannot be written as headers"))?;
        return Ok(Caller { identity: Arc::new(other), impersonator: Some(identity), vouched: true });
    }
    let vouched =
        certificate.is_some() || !headers.get_all(AUTHORIZATION).iter().any(|value| is_credential(value.as_bytes()));
    Ok(Caller { identity, impersonator: None, vouched })
}

fn impersonate(caller: &UserInfo, headers: &HeaderMap) -> Result<UserInfo, Status> {
    if !caller.in_group(GROUP_MASTERS) {
        let name = headers.get("impersonate-user").and_then(|name| name.to_str().ok()).unwrap_or_default();
        let why = format!(
            "User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            caller.name
        );
        return Err(Status::forbidden_object("", "users", name, &why));
    }
    let mut user = UserInfo::default();
    for (name, value) in headers {
        if !is_impersonation_header(name.as_str()) {
            continue;
        }
        let bad = |why: &str| Status::new(Reason::BadRequest, format!("header {name}: {why}"));
        let value = value.to_str().map_err(|_| bad("its value is not plain text (visible ASCII)"))?;
        match name.as_str().strip_prefix(IMPERSONATE) {
            None => return Err(bad("write it with hyphens")),
            Some(once @ ("user" | "uid")) => {
                let field = if once == "user" { &mut user.name } else { &mut user.uid };
                // Of two, a reader takes the first, another the last.
                if !field.is_empty() {
                    return Err(bad("it is there twice; want one"));
                }
                *field = value.into();
            }
            Some("group") => user.groups.push(value.into()),
            Some(other) => match other.strip_prefix("extra-") {
                Some(key) => add_extra(&mut user, &percent_decode_str(key).decode_utf8_lossy(), value),
                None => return Err(bad("it is not known")),
            },
        }
    }
    if user.name.is_empty() {
        return Err(Status::new(Reason::BadRequest, "requested identity without the header Impersonate-User"));
    }
    user.extra.sort_by(|a, b| a.0.cmp(&b.0));
    user.add_implied_group();
    Ok(user)
}

fn add_extra(user: &mut UserInfo, key: &str, value: &str) {
    match user.extra.iter_mut().find(|(k, _)| &**k == key) {
        Some((_, values)) => values.push(value.into()),
        None => user.extra.push((key.into(), vec![value.into()])),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(uids: &[&str]) -> Vec<u8> {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, "alice");
        subject.push(DnType::OrganizationName, "team");
        for uid in uids {
            subject.push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), *uid);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_certificate_names_user_uid_and_itself() {
        let der = certificate(&["u-1"]);
        let user = Identity::of_certificate(&der, &[]).unwrap().user;
        assert_eq!((&*user.name, &*user.uid), ("alice", "u-1"));
        assert_eq!(user.groups, ["team".into(), GROUP_AUTHENTICATED.into()]);
        let (key, values) = &user.extra[0];
        assert_eq!(&**key, CREDENTIAL_ID);
        assert_eq!(values[0].strip_prefix("X509SHA256=").unwrap().len(), 64);
        let other = Identity::of_certificate(&certificate(&[]), &[]).unwrap().user;
        assert!(other.uid.is_empty() && other.extra != user.extra);
        assert!(Identity::of_certificate(&certificate(&[""]), &[]).is_none());
    }

    #[test]
    fn who_may_not_impersonate_is_told_so() {
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", HeaderValue::from_static("jane"));
        let refused = impersonate(&UserInfo::new("u", &[]), &headers).unwrap_err();
        let text = "users \"jane\" is forbidden: User \"u\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope";
        assert_eq!((refused.code, &*refused.message), (403, text));
        let details = refused.details.unwrap();
        assert_eq!((&*details.name, &*details.kind), ("jane", "users"));
    }
}
