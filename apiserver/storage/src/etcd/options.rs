//! Where etcd is and how it is spoken to.

use std::path::PathBuf;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

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
    /// etcd does not answer, or refuses.
    #[error("etcd at {servers} cannot be used ({reason}){hint}")]
    Store {
        /// The addresses.
        servers: String,
        /// What it said.
        reason: String,
        /// What to look at, if anything can be said of that.
        hint: &'static str,
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
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|source| SetupError::File { path: path.clone(), source });
        if self.ca_file.is_none() && self.identity.is_none() {
            return Ok(None);
        }
        let mut tls = ClientTlsConfig::new();
        if let Some(path) = &self.ca_file {
            tls = tls.ca_certificate(Certificate::from_pem(read(path)?));
        }
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(Some(tls))
    }
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
