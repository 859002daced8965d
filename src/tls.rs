//! TLS as `gateway.yaml` describes it: towards clients and towards shards.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::SystemTime,
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
            [Some(ca_file), certificate, key]
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
        let chain = self.part(faults, "listen.tls.certificateFile", certificate_file, pki::chain);
        let key = self.part(faults, "listen.tls.keyFile", key_file, pki::private_key);
        let ca = client_ca_file.as_ref().map(|ca| self.part(faults, "listen.tls.clientCAFile", ca, pki::roots));
        let ca = ca.map_or(Some(None), |roots| roots.map(Some))?;
        let made = pki::server_config(chain?, key?, ca);
        faults.check("listen.tls", &[certificate_file, key_file], made)
    }

    /// TLS towards a shard; `None` for a plain URL.
    pub(crate) fn shard(&self, shard: &Shard, faults: &mut Faults) -> Option<rustls::ClientConfig> {
        let field = format!("shards[{}].tls", shard.name);
        let ShardTls { ca_file, client_certificate } = shard.tls.as_ref()?;
        let roots = self.part(faults, &format!("{field}.caFile"), ca_file, pki::roots);
        let builder = |roots| rustls::ClientConfig::builder().with_root_certificates(roots);
        let Some((certificate, key)) = client_certificate else { return Some(builder(roots?).with_no_client_auth()) };
        let chain = self.part(faults, &format!("{field}.clientCertificateFile"), certificate, pki::chain);
        let private = self.part(faults, &format!("{field}.clientKeyFile"), key, pki::private_key);
        let made = pki::client_identity(builder(roots?), chain?, private?);
        faults.check(&field, &[certificate, key], made)
    }

    /// What is odd but no fault, a line for each: nobody can be let in, or a certificate that counts at other times only.
    pub(crate) fn warnings(&self, config: &GatewayConfig, now: SystemTime) -> Vec<String> {
        let mut warnings = Vec::new();
        let tls = config.listen.tls.as_ref();
        if !config.authentication.anonymous && tls.is_none_or(|tls| tls.client_ca_file.is_none()) {
            let want = match tls {
                Some(_) => {
                    "listen.tls.clientCAFile, whose certificates are believed, or authentication.anonymous: true"
                }
                None => "listen.tls with clientCAFile, or authentication.anonymous: true",
            };
            warnings.push(format!("nobody can be let in: every request gets 401; want {want}"));
        }
        let served = tls.map(|tls| ("listen.tls.certificateFile".to_owned(), &tls.certificate_file));
        let shown = config.shards.iter().filter_map(|shard| {
            let (certificate, _) = shard.tls.as_ref()?.client_certificate.as_ref()?;
            Some((format!("shards[{}].tls.clientCertificateFile", shard.name), certificate))
        });
        for (field, path) in served.into_iter().chain(shown) {
            let Some(Ok(text)) = self.0.get(path) else { continue };
            if let Some(when) = pki::out_of_date(text, now) {
                warnings.push(format!("{field}: {}: {when}", path.display()));
            }
        }
        warnings
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
    use base64::Engine as _;

    use super::*;

    const FILE: &str = "
apiVersion: fairgate.dev/v1alpha1
kind: GatewayConfiguration
listen: { address: '127.0.0.1:0', tls: { certificateFile: door.crt, keyFile: none.key, clientCAFile: door.key } }
shards:
- { name: root, url: 'https://h:1', seats: 1, tls: { caFile: cut.crt } }
- { name: amber, url: 'https://h:2', seats: 1, tls: { caFile: door.crt, clientCertificateFile: v1.crt, clientKeyFile: secret.key } }
- { name: blue, url: 'https://h:3', seats: 1, tls: { caFile: door.crt, clientCertificateFile: door.crt, clientKeyFile: other.key } }
";

    /// The same certificate, as far as anybody reads it, with another version. Nothing checks its signature.
    fn pem_of_version_1(der: &[u8]) -> String {
        // [0] { INTEGER 2 }: version 3.
        let at = der.windows(5).position(|bytes| bytes == [0xa0, 3, 2, 1, 2]).unwrap();
        let mut der = der.to_vec();
        der[at + 4] = 0;
        let base64 = base64::engine::general_purpose::STANDARD.encode(&der);
        format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn who_can_serve_nobody_is_told_and_when_certificates_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.yaml");
        let made = rcgen::generate_simple_self_signed(["door".to_owned()]).unwrap();
        std::fs::write(directory.path().join("door.crt"), made.cert.pem()).unwrap();
        let warnings = |listen: &str, now: SystemTime| {
            let text = format!(
                "{{apiVersion: fairgate.dev/v1alpha1, kind: GatewayConfiguration, {listen}, \
                 shards: [{{name: a, url: 'http://h:1', seats: 1}}]}}"
            );
            let config = GatewayConfig::parse(&text, &path).unwrap();
            Pems::read(&config).warnings(&config, now)
        };
        let now = SystemTime::now();
        let tls = |more: &str| {
            format!("listen: {{address: '127.0.0.1:1', tls: {{certificateFile: door.crt, keyFile: door.key{more}}}}}")
        };
        let plain = "listen: {address: '127.0.0.1:1'}";
        let open = |listen: &str| format!("{listen}, authentication: {{anonymous: true}}");
        assert!(
            warnings(plain, now)[0].starts_with("nobody can be let in: every request gets 401; want listen.tls with")
        );
        assert!(warnings(&tls(""), now)[0].contains("want listen.tls.clientCAFile"));
        for listen in [open(plain), open(&tls("")), tls(", clientCAFile: door.crt")] {
            assert_eq!(warnings(&listen, now), [""; 0], "{listen}");
        }
        // That certificate is valid from 1975 to 4096.
        let told = warnings(&open(&tls("")), SystemTime::UNIX_EPOCH);
        assert!(
            told.len() == 1
                && told[0].ends_with("door.crt: the certificate is not valid before Jan  1 00:00:00 1975 +00:00"),
            "{told:?}"
        );
        let late = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(70_000_000_000);
        let told = warnings(&open(&tls("")), late);
        assert!(told[0].contains("the certificate has expired: it was valid until Jan  1 00:00:00 4096"), "{told:?}");
    }

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
        write("cut.crt", &format!("{}-----BEGIN CERTIFICA", made.cert.pem()));
        write("v1.crt", &pem_of_version_1(made.cert.der()));
        write("secret.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
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
                "gateway.yaml: shards[root].tls.caFile: cut.crt: a broken certificate in it: a line that begins a \
                 section is cut off, and the file with it, perhaps; want whole sections BEGIN CERTIFICATE to END CERTIFICATE",
                "gateway.yaml: shards[amber].tls.clientCertificateFile: v1.crt: an X.509 certificate of version 1; want \
                 version 3, which has subjectAltName and the other extensions",
                "gateway.yaml: shards[amber].tls.clientKeyFile: secret.key: the private key is encrypted; want one \
                 without a passphrase, such as `openssl pkey` writes",
                "gateway.yaml: shards[blue].tls: door.crt and other.key: do not belong together; want a certificate and \
                 its own key",
            ]
        );
        assert!(Faults::default().none(&path).is_ok());
    }
}
