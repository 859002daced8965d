//! Where etcd is and how it is spoken to.

use std::path::{Path, PathBuf};

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    sign::CertifiedKey,
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::client;

/// How to reach an etcd cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses of members: `https://HOST:PORT`, `http://HOST:PORT` or `HOST:PORT` (as `http`). They may come and go,
    /// one must be there.
    pub servers: Vec<String>,
    /// Everything is kept below this key, which begins with a slash and does not end with one. Servers with the same
    /// prefix share everything.
    pub prefix: String,
    /// PEM file of the certificates that sign those of the members; needed for `https`.
    pub ca_file: Option<PathBuf>,
    /// PEM files of a certificate that etcd knows us by, and of its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name and password, where etcd wants them.
    pub credentials: Option<Credentials>,
}

/// Name and password of a user of etcd.
#[derive(Clone)]
pub struct Credentials {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Why a store on etcd cannot be used. Each text is one line that says what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// An address of a member cannot be read.
    #[error("{server:?} is no address of an etcd member ({reason}); it looks like https://10.0.0.7:2379")]
    Address {
        /// What was given.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No member was named.
    #[error("no etcd member is named; name at least one, such as http://127.0.0.1:2379")]
    NoServer,
    /// The prefix cannot be used.
    #[error("{0:?} is no prefix for etcd keys; it begins with a slash, does not end with one, and holds no NUL")]
    Prefix(String),
    /// `https` without certificates to trust.
    #[error("{0} is https, so it must be known whom to trust; name the file of etcd's CA certificate")]
    NoCa(String),
    /// Certificates without `https`.
    #[error("{0} is not https, but certificates are given; use https or leave them out")]
    NoTls(String),
    /// A certificate or key file is unreadable.
    #[error("cannot read {}, which is to hold a certificate, a key or a password for etcd", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A certificate or key file holds something else.
    #[error("{} {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what is wanted.
        reason: String,
    },
    /// A key that is not that of the certificate.
    #[error(
        "{} and {} do not belong together; want a certificate that etcd knows us by, and its own key",
        certificate.display(),
        key.display()
    )]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// etcd does not answer, or refuses.
    #[error("etcd at {servers} cannot be used ({reason}){hint}")]
    Store {
        /// The addresses.
        servers: String,
        /// What it said.
        reason: String,
        /// What to look at, if anything can be said of that.
        hint: String,
    },
}

impl Options {
    pub(super) fn endpoints(&self) -> Result<Vec<Endpoint>, SetupError> {
        let prefix = &self.prefix;
        if !prefix.starts_with('/') || prefix.ends_with('/') || prefix.contains('\0') {
            return Err(SetupError::Prefix(prefix.clone()));
        }
        if self.servers.is_empty() {
            return Err(SetupError::NoServer);
        }
        let tls = self.tls()?;
        self.servers.iter().map(|server| self.endpoint(server, tls.as_ref())).collect()
    }

    fn endpoint(&self, server: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint, SetupError> {
        let refuse = |reason: String| SetupError::Address { server: server.into(), reason };
        if let Some((_, host)) = server.rsplit_once('@') {
            let reason = "want no user and password in it: they are given apart from the address".into();
            return Err(SetupError::Address { server: format!("...@{host}"), reason });
        }
        let address = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
        let uri: http::Uri = address.parse().map_err(|e: http::uri::InvalidUri| refuse(e.to_string()))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(refuse("want http or https".into())),
        };
        if uri.port_u16().is_none() || uri.path() != "/" || uri.query().is_some() {
            return Err(refuse("want a host and a port and nothing more".into()));
        }
        let endpoint = Endpoint::from_shared(address).map_err(|e| refuse(e.to_string()))?;
        match (secure, tls) {
            (true, Some(tls)) => endpoint.tls_config(tls.clone()).map_err(|e| refuse(e.to_string())),
            (true, None) => Err(SetupError::NoCa(server.into())),
            (false, Some(_)) => Err(SetupError::NoTls(server.into())),
            (false, None) => Ok(endpoint),
        }
    }

    fn tls(&self) -> Result<Option<ClientTlsConfig>, SetupError> {
        if self.ca_file.is_none() && self.identity.is_none() {
            return Ok(None);
        }
        let mut tls = ClientTlsConfig::new();
        if let Some(path) = &self.ca_file {
            let pem = read(path)?;
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path, &pem)? {
                // What is none would be passed over without a word.
                roots.add(certificate).map_err(|error| SetupError::Content {
                    path: path.clone(),
                    reason: format!("holds a certificate that cannot be trusted as etcd's CA: {error}"),
                })?;
            }
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        if let Some((certificate, key)) = &self.identity {
            let (chain, private) = (read(certificate)?, read(key)?);
            check_pair((certificate, &chain), (key, &private))?;
            tls = tls.identity(Identity::from_pem(chain, private));
        }
        Ok(Some(tls))
    }

    /// What to look at when etcd cannot be used for this reason, if anything can be said of that.
    pub(super) fn hint(&self, reason: &str) -> String {
        let has = |words: &[&str]| words.iter().any(|words| reason.contains(words));
        let talks = [client::BROKEN, client::STRANGE, "tls handshake", "corrupt message", "fatal alert"];
        match (&self.ca_file, &self.identity) {
            _ if has(&["authentication is not enabled"]) => {
                "; leave the credentials out, or turn authentication on".into()
            }
            _ if has(&["user name is empty"]) => "; authentication is on: give it credentials".into(),
            (Some(ca), _) if has(&["invalid peer certificate"]) => {
                format!("; want its certificate to be for that host, and signed by one in {}", ca.display())
            }
            // Which of these it is, an etcd does not tell: it hangs up.
            (None, _) if has(&talks) => {
                "; is an etcd running there, and one without TLS? With TLS the address begins with https".into()
            }
            (_, None) if has(&talks) => {
                "; is an etcd running there, and with TLS? Does it want a client certificate? None is given".into()
            }
            (_, Some((certificate, _))) if has(&talks) => {
                format!("; is an etcd running there, and with TLS? Does it trust {}?", certificate.display())
            }
            _ if has(&[client::UNREACHABLE, client::LATE]) => "; is it running, and is that where it listens?".into(),
            _ => String::new(),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SetupError> {
    std::fs::read(path).map_err(|source| SetupError::File { path: path.into(), source })
}

/// Refuses what TLS could not use, of which it would not say which file it is.
fn check_pair(certificate: (&Path, &[u8]), key: (&Path, &[u8])) -> Result<(), SetupError> {
    let chain = certificates(certificate.0, certificate.1)?;
    let refuse = |reason: String| SetupError::Content { path: key.0.into(), reason };
    let private = PrivateKeyDer::from_pem_slice(key.1).map_err(|error| match error {
        pem::Error::NoItemsFound if holds(key.1, "ENCRYPTED PRIVATE KEY-----") => {
            refuse("holds an encrypted private key; want one without a passphrase, as `openssl pkey` writes it".into())
        }
        pem::Error::NoItemsFound if holds(key.1, "BEGIN CERTIFICATE-----") => refuse(
            "holds a certificate and no private key; want the key there, and the certificate in the other file".into(),
        ),
        pem::Error::NoItemsFound => refuse("holds no private key; want PEM with BEGIN PRIVATE KEY".into()),
        error => refuse(format!("is damaged: {error}; want PEM from BEGIN PRIVATE KEY to END PRIVATE KEY")),
    })?;
    match CertifiedKey::from_der(chain, private, &rustls::crypto::aws_lc_rs::default_provider()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(SetupError::Pair { certificate: certificate.0.into(), key: key.0.into() })
        }
        Err(error) => {
            let certificate = certificate.0.display();
            Err(refuse(format!("cannot be used with {certificate}: {error}; want a certificate and its own key")))
        }
    }
}

/// The certificates of a file, of which there must be one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    let refuse = |reason: String| SetupError::Content { path: path.into(), reason };
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) if holds(pem, "PRIVATE KEY-----") => Err(refuse(
            "holds a private key and no certificate; want the certificate there, and the key in the file for it".into(),
        )),
        Ok(_) => Err(refuse("holds no certificate; want PEM with BEGIN CERTIFICATE".into())),
        Err(error) => Err(refuse(format!("is damaged: {error}; want PEM from BEGIN CERTIFICATE to END CERTIFICATE"))),
    }
}

fn holds(pem: &[u8], words: &str) -> bool {
    memchr::memmem::find(pem, words.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(server: &str) -> Options {
        Options {
            servers: vec![server.into()],
            prefix: "/fairgate".into(),
            ca_file: None,
            identity: None,
            credentials: None,
        }
    }

    #[test]
    fn addresses() {
        for good in ["http://127.0.0.1:2379", "127.0.0.1:2379", "http://[::1]:2379", "etcd-0.etcd:2379", "http://a:1/"]
        {
            assert!(options(good).endpoints().is_ok(), "{good}");
        }
        for bad in ["", "http://127.0.0.1", "ftp://a:1", "http://a:1/v3", "http://a:1?x=y", "a b:1", "unix:///tmp/x"] {
            let error = options(bad).endpoints().expect_err(bad);
            assert!(matches!(error, SetupError::Address { .. }), "{bad}: {error}");
        }
        assert!(matches!(options("https://a:1").endpoints(), Err(SetupError::NoCa(_))));
    }

    #[test]
    fn prefixes() {
        for bad in ["", "/", "fairgate", "/fairgate/", "/a\0b"] {
            let error = Options { prefix: bad.into(), ..options("a:1") }.endpoints().expect_err(bad);
            assert!(matches!(error, SetupError::Prefix(_)), "{bad}: {error}");
        }
    }

    #[test]
    fn passwords_are_not_printed() {
        let credentials = Credentials { user: "root".into(), password: "secret".into() };
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
