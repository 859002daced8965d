//! The certificates of `fairgate dev`: an own CA, the gateway's serving certificate and the
//! administrator's client certificate, made on the first start and kept in the data directory.
//!
//! A file that exists is used as it is; what is missing or within a month of its end is made anew from the same CA; what
//! is damaged is named and left alone. A CA of which a half is lost is not replaced: no client would believe another.
//! Private keys are readable by their owner only.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use anyhow::{Context, Result, anyhow, bail};
use apiserver_api::user::GROUP_MASTERS;
use apiserver_server::TokenKey;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData,
};
use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer,
        pem::{self, PemObject},
    },
    server::WebPkiClientVerifier,
};
use x509_parser::{extensions::ParsedExtension, x509::X509Version};

/// Lifetime of what is made here. Short enough to be renewed in practice, long enough for a laptop.
const LIFETIME_DAYS: u64 = 365;
/// What ends within this time is made anew at the start.
const RENEW_BEFORE_DAYS: u64 = 30;
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// One certificate with its private key, both PEM.
pub(crate) struct Identity {
    /// The certificate.
    pub(crate) certificate: String,
    /// The key, PKCS#8.
    pub(crate) key: String,
}

/// All that `dev` needs to serve TLS and to let its administrator in.
pub(crate) struct DevPki {
    /// The CA's certificate, PEM.
    pub(crate) ca_certificate: String,
    /// The gateway's serving certificate for localhost.
    pub(crate) server: Identity,
    /// The administrator: user `admin`, group `system:masters`.
    pub(crate) admin: Identity,
}

/// Loads the certificates of `directory`, and makes those that are missing or about to end.
///
/// # Errors
/// A file that cannot be read or written, or is not what its name says.
pub(crate) fn load_or_create(directory: &Path) -> Result<DevPki> {
    let (ca, made) = match load(directory, "ca")? {
        Some(ca) => (ca, false),
        None => {
            check_loss(directory)?;
            (create_ca()?, true)
        }
    };
    if made {
        // First what an earlier CA has signed: nothing of it may be found beside the new one.
        for name in ["server", "admin"] {
            let (certificate, _) = paths(directory, name);
            if let Err(e) = fs::remove_file(&certificate)
                && e.kind() != std::io::ErrorKind::NotFound
            {
                return Err(e).with_context(|| format!("cannot remove {}", certificate.display()));
            }
        }
        store(directory, "ca", &ca)?;
    }
    let leaf = |name: &str, make: fn(&Identity) -> Result<Identity>| -> Result<Identity> {
        if let Some(found) = load(directory, name)? {
            let file = paths(directory, name).0;
            match signer(&ca.certificate, &found.certificate)? {
                Signer::This => return Ok(found),
                // An operator may have put a certificate of his own there, which clients trust by other means.
                Signer::Stranger if name == "server" => {
                    tracing::warn!(
                        file = %file.display(),
                        "the CA in ca.crt has not signed it: clients that trust only that one, such as admin.kubeconfig, refuse \
                         this server; with it deleted a new one is made"
                    );
                    return Ok(found);
                }
                Signer::Earlier | Signer::Stranger => {
                    tracing::warn!(file = %file.display(), "it is of another CA than the one in ca.crt, and is made anew");
                }
            }
        }
        let identity = make(&ca)?;
        store(directory, name, &identity)?;
        Ok(identity)
    };
    let server = leaf("server", create_server)?;
    let admin = leaf("admin", create_admin)?;
    Ok(DevPki { ca_certificate: ca.certificate, server, admin })
}

/// Who has signed a certificate.
#[derive(Debug, PartialEq, Eq)]
enum Signer {
    /// Our CA, as far as names and key identifiers tell.
    This,
    /// One of the same name with another key: what remains when an earlier CA is replaced.
    Earlier,
    /// One of another name.
    Stranger,
}

fn signer(ca: &str, certificate: &str) -> Result<Signer> {
    let (ca, certificate) = (certificates(ca)?, certificates(certificate)?);
    let (Some(ca), Some(certificate)) = (ca.first(), certificate.first()) else { return Ok(Signer::This) };
    let (_, ca) = x509_parser::parse_x509_certificate(ca)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate)?;
    if certificate.issuer() != ca.subject() {
        return Ok(Signer::Stranger);
    }
    let own = ca.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id),
        _ => None,
    });
    let authority = certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(authority) => authority.key_identifier.as_ref(),
        _ => None,
    });
    let differs = own.zip(authority).is_some_and(|(own, authority)| own != authority);
    Ok(if differs { Signer::Earlier } else { Signer::This })
}

/// Refuses to go on without a file of the CA while something is there that the CA has signed.
///
/// # Errors
/// Names what is missing, and what is left.
fn check_loss(directory: &Path) -> Result<()> {
    const FILES: [&str; 6] = ["ca.crt", "ca.key", "server.crt", "server.key", "admin.crt", "admin.key"];
    let (left, missing): (Vec<&str>, Vec<&str>) = FILES.into_iter().partition(|file| directory.join(file).exists());
    let lost: Vec<&str> = missing.into_iter().filter(|file| file.starts_with("ca.")).collect();
    // A first start that was interrupted leaves at most that one behind.
    if left.iter().all(|file| *file == "ca.key") {
        return Ok(());
    }
    if lost.is_empty() {
        tracing::warn!(
            directory = %directory.display(),
            "the CA is about to end, and a new one is made: every client needs the new ca.crt, or the new admin.kubeconfig"
        );
        return Ok(());
    }
    bail!(
        "{} lacks {}, while {} are there; put it back from a backup, or move those away: then all are made anew, and every \
         client needs the new admin.kubeconfig, or the new ca.crt and a new certificate",
        directory.display(),
        lost.join(" and "),
        left.join(", "),
    )
}

/// The key that tokens of service accounts are signed with: the first private key in `service-account.key` of `directory`,
/// which is made on the first start: `is_new` says that the store is empty. Tokens that any other key in it has signed,
/// private or public, are taken too.
///
/// # Errors
/// A file that cannot be read or written, or is not what its name says.
pub(crate) fn token_key(directory: &Path, is_new: bool) -> Result<TokenKey> {
    let path = token_key_path(directory);
    let text = match fs::read_to_string(&path) {
        Ok(text) => {
            warn_of_readers(&path);
            text
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if !is_new {
                tracing::warn!(
                    file = %path.display(),
                    "the key of service accounts is missing and is made anew: tokens that were signed with it are refused here. A \
                     server that joins others on one etcd needs their service-account.key and ca.*"
                );
            }
            let text = KeyPair::generate()?.serialize_pem();
            write_private(&path, &text)?;
            text
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    let unusable =
        || format!("{} cannot be used; without it a new one is made, and tokens signed so far end", path.display());
    token_keys(&text).with_context(unusable)
}

pub(crate) fn token_key_path(directory: &Path) -> PathBuf {
    directory.join("service-account.key")
}

/// The one kind of key that signs tokens.
const TOKEN_KIND: &str = "want PKCS#8 of an ECDSA key on P-256, as the server makes it: PEM with BEGIN PRIVATE KEY";

fn token_keys(pem: &str) -> Result<TokenKey> {
    let other = || anyhow!("a key in it is of another kind; {TOKEN_KIND}");
    let pairs = PrivatePkcs8KeyDer::pem_slice_iter(pem.as_bytes())
        .map(|found| {
            let der = found.map_err(|error| broken("key", "PRIVATE KEY", &error))?;
            KeyPair::try_from(&der).map_err(|_| anyhow!("a private key in it cannot be read; {TOKEN_KIND}"))
        })
        .collect::<Result<Vec<_>>>()?;
    if pairs.iter().any(|pair| pair.algorithm() != &PKCS_ECDSA_P256_SHA256) {
        return Err(other());
    }
    // Also behind a good one: an older key that is not read would end its tokens in silence.
    for (section, what, remedy) in [
        ("BEGIN EC PRIVATE KEY", "SEC1", ", such as `openssl pkcs8 -topk8 -nocrypt` writes"),
        ("BEGIN RSA PRIVATE KEY", "RSA", ""),
        ("BEGIN ENCRYPTED PRIVATE KEY", "encrypted", ", without a passphrase"),
    ] {
        if pem.contains(section) {
            bail!("a private key in it is {what}; {TOKEN_KIND}{remedy}");
        }
    }
    let mut pairs = pairs.iter();
    let own = pairs.next().with_context(|| format!("no private key in it; {TOKEN_KIND}"))?;
    let mut key = TokenKey::new(&own.serialize_der(), own.public_key_raw())?;
    for pair in pairs {
        key = key.accepting(pair.public_key_raw())?;
    }
    for found in SubjectPublicKeyInfoDer::pem_slice_iter(pem.as_bytes()) {
        let der = found.map_err(|error| broken("key", "PUBLIC KEY", &error))?;
        let public = rcgen::SubjectPublicKeyInfo::from_der(&der).map_err(|_| other())?;
        key = key.accepting(public.der_bytes())?;
    }
    Ok(key)
}

/// A server side TLS configuration that asks for client certificates of `client_ca` but does not insist.
///
/// # Errors
/// A certificate that nobody can read, or a key that does not belong to it.
pub(crate) fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    client_ca: Option<RootCertStore>,
) -> Result<rustls::ServerConfig> {
    let builder = rustls::ServerConfig::builder();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    builder.with_single_cert(chain, key).map_err(pair)
}

/// Completes a client side TLS configuration with a client certificate.
///
/// # Errors
/// As [`server_config`].
pub(crate) fn client_identity(
    builder: rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<rustls::ClientConfig> {
    builder.with_client_auth_cert(chain, key).map_err(pair)
}

/// What is wrong with a certificate and its key.
fn pair(error: rustls::Error) -> anyhow::Error {
    match error {
        rustls::Error::InconsistentKeys(_) => anyhow!("do not belong together; want a certificate and its own key"),
        other => other.into(),
    }
}

/// The private key of a PEM text.
///
/// # Errors
/// None in it.
pub(crate) fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    let found = PrivateKeyDer::from_pem_slice(pem.as_bytes());
    found.map_err(|error| match error {
        _ if pem.contains("BEGIN ENCRYPTED PRIVATE KEY") || pem.contains("Proc-Type: 4,ENCRYPTED") => {
            anyhow!("the private key is encrypted; want one without a passphrase, such as `openssl pkey` writes")
        }
        pem::Error::NoItemsFound => anyhow!("no private key in it; want PEM with BEGIN PRIVATE KEY"),
        error => broken("private key", "PRIVATE KEY", &error),
    })
}

/// What is wrong with a PEM text.
fn broken(what: &str, section: &str, error: &pem::Error) -> anyhow::Error {
    let why = match error {
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins a section is cut off, and the file with it, perhaps"
        }
        pem::Error::MissingSectionEnd { .. } => "a section has no END line: the file is cut off, perhaps",
        pem::Error::Base64Decode(_) => "a section is no base64",
        pem::Error::SectionTooLarge => "a section is too large",
        _ => return anyhow!("a broken {what} in it: {error}"),
    };
    anyhow!("a broken {what} in it: {why}; want whole sections BEGIN {section} to END {section}")
}

/// The certificates of a PEM text, of which the first is one that TLS can show.
///
/// # Errors
/// As [`certificates`]; or it is of a version without extensions.
pub(crate) fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let chain = certificates(pem)?;
    let Some(first) = chain.first() else { return Ok(chain) };
    let (_, parsed) = x509_parser::parse_x509_certificate(first)
        .map_err(|_| anyhow!("a certificate in it cannot be read; want X.509 in DER between BEGIN and END"))?;
    if parsed.version() != X509Version::V3 {
        bail!(
            "an X.509 certificate of version {}; want version 3, which has subjectAltName and the other extensions",
            parsed.version().0 + 1
        );
    }
    Ok(chain)
}

/// Since or until when the first certificate of a PEM text does not count, if that is the case `now`.
pub(crate) fn out_of_date(pem: &str, now: SystemTime) -> Option<String> {
    let chain = certificates(pem).ok()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let validity = parsed.validity();
    let seconds = i64::try_from(now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs()).ok()?;
    match () {
        () if seconds < validity.not_before.timestamp() => {
            Some(format!("the certificate is not valid before {}", validity.not_before))
        }
        () if seconds > validity.not_after.timestamp() => {
            Some(format!("the certificate has expired: it was valid until {}", validity.not_after))
        }
        () => None,
    }
}

/// The certificates of a PEM text as trust anchors.
///
/// # Errors
/// No certificate in it, or one that cannot be an anchor.
pub(crate) fn roots(pem: &str) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store
            .add(certificate)
            .map_err(|error| anyhow!("a certificate in it cannot be used as an authority: {error}"))?;
    }
    Ok(store)
}

/// The certificates of a PEM text.
///
/// # Errors
/// None in it, or a broken one.
pub(crate) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| broken("certificate", "CERTIFICATE", &error))?;
    if found.is_empty() {
        bail!("no certificate in it; want PEM with BEGIN CERTIFICATE");
    }
    Ok(found)
}

fn create_ca() -> Result<Identity> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "fairgate dev CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    set_lifetime(&mut params, 10 * LIFETIME_DAYS);
    Ok(Identity { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

fn create_server(ca: &Identity) -> Result<Identity> {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "fairgate");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(params, ca)
}

fn create_admin(ca: &Identity) -> Result<Identity> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "admin");
    params.distinguished_name.push(DnType::OrganizationName, GROUP_MASTERS);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(params, ca)
}

fn sign(mut params: CertificateParams, ca: &Identity) -> Result<Identity> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    set_lifetime(&mut params, LIFETIME_DAYS);
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, KeyPair::from_pem(&ca.key)?)?;
    let key = KeyPair::generate()?;
    Ok(Identity { certificate: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
}

fn set_lifetime(params: &mut CertificateParams, days: u64) {
    let now = SystemTime::now();
    // An hour of grace for clients whose clock is behind.
    params.not_before = (now - std::time::Duration::from_secs(3600)).into();
    params.not_after = (now + std::time::Duration::from_secs(days * DAY_SECONDS)).into();
}

/// Reads `<name>.crt` and `<name>.key`; `None` when one is missing or the certificate is about to end.
fn load(directory: &Path, name: &str) -> Result<Option<Identity>> {
    let (certificate_path, key_path) = paths(directory, name);
    let (Some(certificate), Some(key)) = (read(&certificate_path)?, read(&key_path)?) else { return Ok(None) };
    warn_of_readers(&key_path);
    let remedy = if name == "ca" {
        "put it back from a backup; without one move it and all other .crt and .key files away but service-account.key: they \
         are made anew, and every client needs the new admin.kubeconfig"
    } else {
        "delete it and start again"
    };
    let broken = |path: &Path| format!("{} is damaged; {remedy}", path.display());
    let pair = private_key(&key)
        .and_then(|key| KeyPair::try_from(&key).map_err(|_| anyhow!("a private key in it cannot be read")))
        .with_context(|| broken(&key_path))?;
    let der = certificates(&certificate).with_context(|| broken(&certificate_path))?;
    let der = der.first().ok_or_else(|| anyhow!(broken(&certificate_path)))?;
    let (_, parsed) = x509_parser::parse_x509_certificate(der).with_context(|| broken(&certificate_path))?;
    if parsed.public_key().subject_public_key.data.as_ref() != pair.public_key_raw() {
        bail!(
            "{} and {} do not belong together; {}",
            certificate_path.display(),
            key_path.display(),
            remedy.replacen("it", "both", 1),
        );
    }
    let left = parsed.validity().time_to_expiration().map_or(0, |left| left.whole_seconds().unsigned_abs());
    Ok((left >= RENEW_BEFORE_DAYS * DAY_SECONDS).then_some(Identity { certificate, key }))
}

/// Whoever can read a key is whom it stands for.
#[cfg(unix)]
fn warn_of_readers(key: &Path) {
    let mode = key.metadata().map_or(0, |m| std::os::unix::fs::PermissionsExt::mode(&m.permissions()));
    if mode & 0o077 != 0 {
        let mode = format!("{:04o}", mode & 0o7777);
        tracing::warn!(file = %key.display(), mode, "others than its owner may read this key; want mode 0600");
    }
}

#[cfg(not(unix))]
fn warn_of_readers(_: &Path) {}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn store(directory: &Path, name: &str, identity: &Identity) -> Result<()> {
    let (certificate_path, key_path) = paths(directory, name);
    write_private(&key_path, &identity.key)?;
    write_private(&certificate_path, &identity.certificate)
}

fn paths(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")))
}

/// Writes a file that only its owner can read, whole or not at all.
///
/// # Errors
/// The file or its directory cannot be written.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let write = || -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&unfinished)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let first = load_or_create(directory.path()).unwrap();
        let second = load_or_create(directory.path()).unwrap();
        assert_eq!(first.ca_certificate, second.ca_certificate);
        assert_eq!(first.admin.certificate, second.admin.certificate);
        assert_eq!(first.server.key, second.server.key);
    }

    #[test]
    fn a_lost_leaf_is_made_anew_from_the_same_ca() {
        let directory = tempfile::tempdir().unwrap();
        let first = load_or_create(directory.path()).unwrap();
        fs::remove_file(directory.path().join("admin.crt")).unwrap();
        let second = load_or_create(directory.path()).unwrap();
        assert_eq!(first.ca_certificate, second.ca_certificate);
        assert_ne!(first.admin.certificate, second.admin.certificate);
    }

    /// As after a restore of `ca.*` into a directory where a server was started before.
    #[test]
    fn a_leaf_of_another_ca_is_made_anew() {
        let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [kept, _] = [&old, &new].map(|directory| load_or_create(directory.path()).unwrap());
        for file in ["ca.crt", "ca.key"] {
            fs::copy(old.path().join(file), new.path().join(file)).unwrap();
        }
        let restored = load_or_create(new.path()).unwrap();
        assert_eq!(restored.ca_certificate, kept.ca_certificate);
        for identity in [&restored.server, &restored.admin] {
            assert_eq!(signer(&kept.ca_certificate, &identity.certificate).unwrap(), Signer::This);
        }
        let again = load_or_create(new.path()).unwrap();
        assert_eq!(again.server.certificate, restored.server.certificate);
        // One of an authority of another name is the operator's own.
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.distinguished_name.push(DnType::CommonName, "theirs");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = Identity { certificate: authority.self_signed(&key).unwrap().pem(), key: key.serialize_pem() };
        let own = create_server(&authority).unwrap();
        store(new.path(), "server", &own).unwrap();
        assert_eq!(load_or_create(new.path()).unwrap().server.certificate, own.certificate);
        // But the administrator is believed through this CA alone.
        let foreign = create_admin(&authority).unwrap();
        store(new.path(), "admin", &foreign).unwrap();
        let again = load_or_create(new.path()).unwrap();
        assert_eq!(signer(&again.ca_certificate, &again.admin.certificate).unwrap(), Signer::This);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        load_or_create(directory.path()).unwrap();
        fs::write(directory.path().join("server.crt"), "nonsense").unwrap();
        let error = load_or_create(directory.path()).err().unwrap();
        assert!(format!("{error:#}").contains("server.crt is damaged"), "{error:#}");
    }

    #[test]
    fn a_damaged_key_is_named_and_what_is_wrong_with_it() {
        for name in ["ca", "server", "admin"] {
            let directory = tempfile::tempdir().unwrap();
            load_or_create(directory.path()).unwrap();
            let path = directory.path().join(format!("{name}.key"));
            let whole = fs::read_to_string(&path).unwrap();
            for (text, why) in [
                ("", "no private key in it; want PEM with BEGIN PRIVATE KEY"),
                ("nonsense", "no private key in it; want PEM with BEGIN PRIVATE KEY"),
                (&whole[..whole.len() / 2], "a section has no END line: the file is cut off, perhaps; want "),
                (&whole[..20], "a line that begins a section is cut off"),
                (
                    "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                    "a private key in it cannot be read",
                ),
            ] {
                fs::write(&path, text).unwrap();
                let error = format!("{:#}", load_or_create(directory.path()).err().unwrap());
                assert!(error.contains(&format!("{name}.key is damaged; ")) && error.contains(why), "{error}");
            }
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_told() {
        let directory = tempfile::tempdir().unwrap();
        load_or_create(directory.path()).unwrap();
        fs::copy(directory.path().join("admin.key"), directory.path().join("server.key")).unwrap();
        let error = load_or_create(directory.path()).err().unwrap();
        assert!(format!("{error:#}").contains("server.key do not belong together"), "{error:#}");
    }

    #[test]
    fn half_an_authority_is_not_replaced() {
        for lost in [&["ca.key"][..], &["ca.crt"], &["ca.crt", "ca.key"]] {
            let directory = tempfile::tempdir().unwrap();
            load_or_create(directory.path()).unwrap();
            lost.iter().for_each(|file| fs::remove_file(directory.path().join(file)).unwrap());
            let before = fs::read(directory.path().join("admin.crt")).unwrap();
            let error = load_or_create(directory.path()).err().unwrap().to_string();
            assert!(error.contains(&format!("lacks {}, while ", lost.join(" and "))), "{error}");
            assert!(error.contains("server.crt, server.key, admin.crt, admin.key are there"), "{error}");
            assert_eq!(fs::read(directory.path().join("admin.crt")).unwrap(), before);
        }
    }

    #[test]
    fn an_authority_that_is_about_to_end_is_followed_by_another_with_new_leaves() {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        set_lifetime(&mut params, RENEW_BEFORE_DAYS - 1);
        let key = KeyPair::generate().unwrap();
        let ca = Identity { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() };
        let leaf = |name, make: fn(&Identity) -> Result<Identity>| {
            let made = make(&ca).unwrap();
            store(directory.path(), name, &made).unwrap();
            made
        };
        store(directory.path(), "ca", &ca).unwrap();
        let first = DevPki {
            ca_certificate: ca.certificate.clone(),
            server: leaf("server", create_server),
            admin: leaf("admin", create_admin),
        };
        let second = load_or_create(directory.path()).unwrap();
        assert_ne!(first.ca_certificate, second.ca_certificate);
        assert_ne!(first.server.certificate, second.server.certificate);
    }

    #[test]
    fn the_key_of_tokens_is_kept_and_one_that_is_none_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let first = token_key(directory.path(), true).unwrap();
        assert_eq!(format!("{first:?}"), format!("{:?}", token_key(directory.path(), true).unwrap()));
        fs::write(directory.path().join("service-account.key"), "nonsense").unwrap();
        let error = token_key(directory.path(), true).err().unwrap();
        assert!(format!("{error:#}").contains("service-account.key cannot be used"), "{error:#}");
    }

    #[test]
    fn a_key_of_tokens_of_another_kind_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let section = |name: &str| format!("-----BEGIN {name}-----\nAAAA\n-----END {name}-----\n");
        let of = |algorithm| KeyPair::generate_for(algorithm).unwrap().serialize_pem();
        for (text, why) in [
            (section("EC PRIVATE KEY"), "a private key in it is SEC1; want PKCS#8 of an ECDSA key on P-256"),
            (section("EC PRIVATE KEY"), "`openssl pkcs8 -topk8 -nocrypt`"),
            (section("RSA PRIVATE KEY"), "a private key in it is RSA; want PKCS#8"),
            (section("ENCRYPTED PRIVATE KEY"), "a private key in it is encrypted; want PKCS#8"),
            (of(&rcgen::PKCS_RSA_SHA256), "a key in it is of another kind; want PKCS#8 of an ECDSA key on P-256"),
            (of(&rcgen::PKCS_ECDSA_P384_SHA384), "a key in it is of another kind; want PKCS#8"),
            (section("PRIVATE KEY"), "a private key in it cannot be read; want PKCS#8"),
            (
                KeyPair::generate().unwrap().serialize_pem() + &section("PUBLIC KEY"),
                "a key in it is of another kind; want",
            ),
        ] {
            fs::write(token_key_path(directory.path()), text).unwrap();
            let error = format!("{:#}", token_key(directory.path(), true).unwrap_err());
            assert!(error.contains("service-account.key cannot be used; ") && error.contains(why), "{error}");
        }
    }

    /// The new key is put in front of the old one, or the old one's public part behind it.
    #[test]
    fn keys_of_tokens_follow_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("service-account.key");
        let keys = || format!("{:?}", token_key(directory.path(), true).unwrap());
        let first = keys();
        let (old, new) = (fs::read_to_string(&path).unwrap(), KeyPair::generate().unwrap());
        let id = |shown: &str| shown["TokenKey(".len()..shown.len() - 1].to_owned();
        fs::write(&path, new.serialize_pem()).unwrap();
        let want = format!("TokenKey({}, {})", id(&keys()), id(&first));
        let public = KeyPair::from_pem(&old).unwrap().public_key_pem();
        for both in [new.serialize_pem() + &old, public.clone() + &new.serialize_pem(), new.serialize_pem() + &public] {
            fs::write(&path, both).unwrap();
            assert_eq!(keys(), want);
        }
        for (text, why) in [(public, "no private key"), (new.serialize_pem() + "-----BEGIN PUBLIC KEY-----\nx", "END")]
        {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", token_key(directory.path(), true).unwrap_err());
            assert!(error.contains("service-account.key cannot be used") && error.contains(why), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn keys_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        load_or_create(directory.path()).unwrap();
        token_key(directory.path(), true).unwrap();
        for name in ["ca.key", "service-account.key"] {
            let mode = fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }
}
