//! TLS as `gateway.yaml` describes it: towards clients and towards shards.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::Context;
use config::{GatewayConfig, ListenTls, Shard, ShardTls, Source};

use crate::pki;

/// A file of certificates is smaller.
const PEM_MAX: u64 = 4 << 20;

/// The contents of all PEM files that a configuration names, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pems(BTreeMap<PathBuf, Result<String, String>>);

impl Pems {
    /// Reads every file that `config` names.
    pub(crate) fn read(config: &GatewayConfig) -> Self {
        let listen = config.listen.tls.iter().flat_map(|tls| {
            let ListenTls { certificate_file, key_file, client_ca_file } = tls;
            [Some(certificate_file), Some(key_file), client_ca_file.as_ref()]
        });
        let shards = config.shards.iter().filter_map(|shard| shard.tls.as_ref()).flat_map(|tls| {
            let ShardTls { ca_file, client_certificate } = tls;
            let (certificate, key) = client_certificate.as_ref().map(|(c, k)| (c, k)).unzip();
            [ca_file.as_ref(), certificate, key]
        });
        Self(listen.chain(shards).flatten().map(|path| (path.clone(), read(path))).collect())
    }

    /// The files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    /// A short name of the content of each file.
    pub(crate) fn digests(&self) -> BTreeMap<PathBuf, String> {
        let digest = |(path, text): (&PathBuf, &Result<String, String>)| {
            let text = text.as_ref().map_or_else(String::as_str, String::as_str);
            (path.clone(), Source::new(path, text).sha256.chars().take(12).collect())
        };
        self.0.iter().map(digest).collect()
    }

    fn text(&self, path: &Path) -> anyhow::Result<&str> {
        let content = self.0.get(path).context("it was not read").with_context(|| path.display().to_string())?;
        content.as_deref().map_err(|why| anyhow::anyhow!("cannot read {}: {why}", path.display()))
    }

    /// TLS towards clients.
    ///
    /// # Errors
    /// A file that is not what its name says, or a key of another certificate.
    pub(crate) fn listen(&self, files: &ListenTls) -> anyhow::Result<rustls::ServerConfig> {
        let (certificate, key) = (self.text(&files.certificate_file)?, self.text(&files.key_file)?);
        let client_ca = files.client_ca_file.as_deref().map(|path| self.text(path)).transpose()?;
        let what = || format!("{} and {}", files.certificate_file.display(), files.key_file.display());
        pki::server_config(certificate, key, client_ca).with_context(what)
    }

    /// TLS towards a shard; `None` for a plain URL.
    ///
    /// # Errors
    /// As [`Pems::listen`]; https without a CA.
    pub(crate) fn shard(&self, shard: &Shard) -> anyhow::Result<Option<rustls::ClientConfig>> {
        let built = match (&shard.tls, shard.url.scheme_str()) {
            (Some(files), _) => self.towards(files).map(Some),
            (None, Some("https")) => Err(anyhow::anyhow!("tls: missing; want tls.caFile for an https url")),
            (None, _) => Ok(None),
        };
        built.with_context(|| format!("shard {}", shard.name))
    }

    fn towards(&self, files: &ShardTls) -> anyhow::Result<rustls::ClientConfig> {
        let ca = files.ca_file.as_deref().context("tls.caFile: missing; want the CA of the shard's certificate")?;
        let roots = pki::roots(self.text(ca)?).with_context(|| ca.display().to_string())?;
        let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
        match &files.client_certificate {
            None => Ok(builder.with_no_client_auth()),
            Some((certificate, key)) => pki::client_identity(builder, self.text(certificate)?, self.text(key)?)
                .with_context(|| certificate.display().to_string()),
        }
    }
}

/// The content of a regular file of a sane size.
fn read(path: &Path) -> Result<String, String> {
    let read = || {
        if !std::fs::metadata(path)?.is_file() {
            return Err(std::io::Error::other("it is no regular file"));
        }
        let mut text = String::new();
        if File::open(path)?.take(PEM_MAX).read_to_string(&mut text)? as u64 == PEM_MAX {
            return Err(std::io::Error::other(format!("it has {PEM_MAX} bytes or more")));
        }
        Ok(text)
    };
    read().map_err(|error| error.to_string())
}
