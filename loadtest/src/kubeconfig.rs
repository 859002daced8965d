//! Reads what is needed of a kubeconfig.

use std::{net::ToSocketAddrs, path::Path, sync::Arc};

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde::Deserialize;

use crate::client::Endpoint;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context_,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate_data: Option<String>,
    client_certificate: Option<String>,
    client_key_data: Option<String>,
    client_key: Option<String>,
    token: Option<String>,
}

#[derive(Deserialize)]
struct Context_ {
    cluster: String,
    user: String,
}

/// Reads the current context of the file.
///
/// # Errors
/// What is missing or not supported, with the file's name. `exec` and other credential plugins are not run.
pub(crate) fn load(path: &Path) -> anyhow::Result<Endpoint> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    parse(&text, path.parent().unwrap_or(Path::new("."))).with_context(|| format!("{}", path.display()))
}

/// `base` is the folder that relative file names are relative to.
fn parse(text: &str, base: &Path) -> anyhow::Result<Endpoint> {
    let config: Kubeconfig = serde_yaml::from_str(text).context("not a kubeconfig")?;
    let wanted = &config.current_context;
    let context = config.contexts.iter().find(|c| c.name == *wanted).map(|c| &c.context);
    let context = context.with_context(|| format!("current-context {wanted:?} is not among the contexts"))?;
    let cluster = config.clusters.iter().find(|c| c.name == context.cluster).map(|c| &c.cluster);
    let cluster = cluster.with_context(|| format!("no cluster {:?}", context.cluster))?;
    let user = config.users.iter().find(|u| u.name == context.user).map(|u| &u.user);
    let user = user.with_context(|| format!("no user {:?}", context.user))?;

    let server: Uri = cluster.server.parse().with_context(|| format!("server {:?}", cluster.server))?;
    let host = server.host().with_context(|| format!("server {:?} has no host", cluster.server))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let (port, tls) = match server.scheme_str() {
        Some("https") => (443, Some((Arc::new(tls(cluster, user, base)?), ServerName::try_from(host.to_owned())?))),
        Some("http") => (80, None),
        _ => bail!("server {:?} does not begin with https:// or http://", cluster.server),
    };
    let port = server.port_u16().unwrap_or(port);
    let address = (host, port).to_socket_addrs().with_context(|| format!("server {host}"))?.next();
    let authorization = user.token.as_ref().map(|token| format!("Bearer {token}").parse()).transpose();
    Ok(Endpoint {
        address: address.with_context(|| format!("server {host} has no address"))?,
        authority: server.authority().map(ToString::to_string).unwrap_or_default(),
        tls,
        authorization: authorization.context("the token cannot stand in a header")?,
    })
}

fn tls(cluster: &Cluster, user: &User, base: &Path) -> anyhow::Result<ClientConfig> {
    if cluster.insecure_skip_tls_verify {
        bail!("insecure-skip-tls-verify is not supported: give certificate-authority-data");
    }
    let ca = pem(&cluster.certificate_authority_data, &cluster.certificate_authority, base)
        .context("certificate-authority")?
        .context("the cluster has no certificate-authority-data")?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&ca) {
        roots.add(certificate.context("certificate-authority")?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let certificate =
        pem(&user.client_certificate_data, &user.client_certificate, base).context("client-certificate")?;
    let key = pem(&user.client_key_data, &user.client_key, base).context("client-key")?;
    let mut config = match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let chain = CertificateDer::pem_slice_iter(&certificate).collect::<Result<_, _>>();
            let key = PrivateKeyDer::from_pem_slice(&key).context("client-key")?;
            builder.with_client_auth_cert(chain.context("client-certificate")?, key).context("client certificate")?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => bail!("the user has a client certificate without its key, or a key without its certificate"),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The embedded text if there is any, else the file's.
fn pem(data: &Option<String>, file: &Option<String>, base: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match (data, file) {
        (Some(data), _) => Ok(Some(STANDARD.decode(data).context("not base64")?)),
        (None, Some(file)) => Ok(Some(std::fs::read(base.join(file)).with_context(|| file.clone())?)),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cluster: &str, user: &str) -> anyhow::Result<Endpoint> {
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- {{name: c, cluster: {cluster}}}\nusers:\n- {{name: u, user: {user}}}\n\
             contexts:\n- {{name: x, context: {{cluster: c, user: u}}}}\ncurrent-context: x\n"
        );
        parse(&text, Path::new("."))
    }

    #[test]
    fn the_current_context_is_read() {
        let endpoint = read("{server: 'http://127.0.0.1:8080/clusters/root'}", "{token: abc}").unwrap();
        assert_eq!(endpoint.address.to_string(), "127.0.0.1:8080");
        assert_eq!(endpoint.authority, "127.0.0.1:8080");
        assert_eq!(endpoint.authorization.unwrap(), "Bearer abc");
        assert!(endpoint.tls.is_none());
        assert_eq!(read("{server: 'http://[::1]:80'}", "{}").unwrap().address.to_string(), "[::1]:80");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |cluster, user| format!("{:#}", read(cluster, user).err().unwrap());
        assert!(error("{server: 'https://127.0.0.1:1'}", "{}").contains("certificate-authority-data"));
        assert!(error("{server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}", "{}").contains("insecure"));
        assert!(error("{server: 'ftp://127.0.0.1'}", "{}").contains("https://"));
        assert!(error("{server: 'https://127.0.0.1:1', certificate-authority-data: '%'}", "{}").contains("base64"));
        let other = parse("current-context: nowhere", Path::new(".")).err().unwrap();
        assert!(format!("{other:#}").contains("nowhere"));
    }
}
