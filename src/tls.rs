//! TLS as `gateway.yaml` describes it: towards clients and towards shards.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

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
        Self::default().and(config)
    }

    /// Those that `config` names: as they are here, or else read.
    pub(crate) fn and(&self, config: &GatewayConfig) -> Self {
        let listen = config.listen.tls.iter().flat_map(|tls| {
            let ListenTls { certificate_file, key_file, client_ca_file } = tls;
            [Some(certificate_file), Some(key_file), client_ca_file.as_ref()]
        });
        let shards = config.shards.iter().filter_map(|shard| shard.tls.as_ref()).flat_map(|tls| {
            let ShardTls { ca_file, client_certificate } = tls;
            let (certificate, key) = client_certificate.as_ref().map(|(c, k)| (c, k)).unzip();
            [ca_file.as_ref(), certificate, key]
        });
        let content = |path: &PathBuf| (path.clone(), self.0.get(path).cloned().unwrap_or_else(|| read(path)));
        Self(listen.chain(shards).flatten().map(content).collect())
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

    /// TLS towards clients; `None`: plain text.
    pub(crate) fn listen(&self, config: &GatewayConfig, faults: &mut Faults) -> Option<rustls::ServerConfig> {
        let ListenTls { certificate_file, key_file, client_ca_file } = config.listen.tls.as_ref()?;
        let chain = self.part(faults, "listen.tls.certificateFile", certificate_file, pki::certificates);
        let key = self.part(faults, "listen.tls.keyFile", key_file, pki::private_key);
        let ca = client_ca_file.as_ref().map(|ca| self.part(faults, "listen.tls.clientCAFile", ca, pki::roots));
        let ca = ca.map_or(Some(None), |roots| roots.map(Some))?;
        let made = pki::server_config(chain?, key?, ca);
        faults.check("listen.tls", &[certificate_file, key_file], made)
    }

    /// TLS towards a shard; `None` for a plain URL.
    pub(crate) fn shard(&self, shard: &Shard, faults: &mut Faults) -> Option<rustls::ClientConfig> {
        let field = format!("shards[{}].tls", shard.name);
        let Some(ShardTls { ca_file, client_certificate }) = &shard.tls else {
            if shard.url.scheme_str() == Some("https") {
                faults.add(&field, "is missing; want tls.caFile for an https url");
            }
            return None;
        };
        let roots = match ca_file {
            Some(ca) => self.part(faults, &format!("{field}.caFile"), ca, pki::roots),
            None => {
                faults.add(&format!("{field}.caFile"), "is missing; want the CA of the shard's certificate");
                None
            }
        };
        let builder = |roots| rustls::ClientConfig::builder().with_root_certificates(roots);
        let Some((certificate, key)) = client_certificate else { return Some(builder(roots?).with_no_client_auth()) };
        let chain = self.part(faults, &format!("{field}.clientCertificateFile"), certificate, pki::certificates);
        let private = self.part(faults, &format!("{field}.clientKeyFile"), key, pki::private_key);
        let made = pki::client_identity(builder(roots?), chain?, private?);
        faults.check(&field, &[certificate, key], made)
    }

    /// What `read` makes of a file.
    fn part<T>(
        &self,
        faults: &mut Faults,
        field: &str,
        path: &PathBuf,
        read: impl FnOnce(&str) -> anyhow::Result<T>,
    ) -> Option<T> {
        match self.0.get(path)? {
            Ok(text) => faults.check(field, &[path], read(text)),
            Err(why) => {
                faults.add(field, &format!("{} cannot be read: {why}; want a PEM file", path.display()));
                None
            }
        }
    }
}

/// Everything that is wrong with the PEM files of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, field: &str, what: &str) {
        self.0.push(format!("{field}: {what}"));
    }

    fn check<T>(&mut self, field: &str, paths: &[&PathBuf], made: anyhow::Result<T>) -> Option<T> {
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        made.map_err(|error| self.add(field, &format!("{}: {error:#}", names.join(" and ")))).ok()
    }

    /// # Errors
    /// There are some: a line for each, which begins with the name of the configuration's file.
    pub(crate) fn none(self, file: &Path) -> anyhow::Result<()> {
        let lines: Vec<_> = self.0.iter().map(|fault| format!("{}: {fault}", file.display())).collect();
        if lines.is_empty() { Ok(()) } else { Err(anyhow::anyhow!(lines.join("\n"))) }
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

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: fairgate.dev/v1alpha1
kind: GatewayConfiguration
listen: { address: '127.0.0.1:0', tls: { certificateFile: door.crt, keyFile: none.key, clientCAFile: door.key } }
shards:
- { name: root, url: 'https://h:1', seats: 1 }
- { name: amber, url: 'https://h:2', seats: 1, tls: { clientCertificateFile: door.crt, clientKeyFile: other.key } }
- { name: blue, url: 'https://h:3', seats: 1, tls: { caFile: door.crt, clientCertificateFile: door.crt, clientKeyFile: other.key } }
";

    #[test]
    fn all_faults_of_all_files_are_told_at_once() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.yaml");
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        let made = rcgen::generate_simple_self_signed(["door".to_owned()]).unwrap();
        write("door.crt", &made.cert.pem());
        write("door.key", &made.signing_key.serialize_pem());
        write("other.key", &rcgen::KeyPair::generate().unwrap().serialize_pem());
        let config = GatewayConfig::parse(FILE, &path).unwrap();
        let (pems, mut faults) = (Pems::read(&config), Faults::default());
        assert!(pems.listen(&config, &mut faults).is_none());
        assert!(config.shards.iter().all(|shard| pems.shard(shard, &mut faults).is_none()));
        let told = faults.none(Path::new("gateway.yaml")).unwrap_err().to_string();
        let told = told.replace(&format!("{}/", directory.path().display()), "");
        assert_eq!(
            told.lines().collect::<Vec<_>>(),
            [
                "gateway.yaml: listen.tls.keyFile: none.key cannot be read: No such file or directory (os error 2); want \
                 a PEM file",
                "gateway.yaml: listen.tls.clientCAFile: door.key: no certificate in it; want PEM with BEGIN CERTIFICATE",
                "gateway.yaml: shards[root].tls: is missing; want tls.caFile for an https url",
                "gateway.yaml: shards[amber].tls.caFile: is missing; want the CA of the shard's certificate",
                "gateway.yaml: shards[blue].tls: door.crt and other.key: do not belong together; want a certificate and \
                 its own key",
            ]
        );
        assert!(Faults::default().none(&path).is_ok());
    }
}
