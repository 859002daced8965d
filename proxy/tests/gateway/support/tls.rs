//! A certificate authority of the test's own.

use std::{net::SocketAddr, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    server::WebPkiClientVerifier,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
}

impl Ca {
    pub fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        Self { issuer: Issuer::new(params, key), roots: Arc::new(roots) }
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: &str,
        groups: &[String],
    ) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        // rcgen holds one value per type; an organization under its number is another type to it.
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        assert!(groups.len() <= types.len());
        types.into_iter().zip(groups).for_each(|(kind, group)| params.distinguished_name.push(kind, group.as_str()));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), PrivateKeyDer::Pkcs8(key.serialize_der().into()))
    }

    /// For a gateway on `localhost`; client certificates are optional.
    pub fn server_config(&self) -> ServerConfig {
        let (certificate, key) = self.sign(CertificateParams::new(vec!["localhost".into()]).unwrap(), "door", &[]);
        let verifier = WebPkiClientVerifier::builder(self.roots.clone()).allow_unauthenticated().build().unwrap();
        ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(vec![certificate], key).unwrap()
    }

    /// For a gateway before shards of this authority.
    pub fn client_config(&self) -> ClientConfig {
        ClientConfig::builder().with_root_certificates(self.roots.clone()).with_no_client_auth()
    }

    /// The same for a gateway that shows a certificate of this common name.
    pub fn client_config_as(&self, name: &str) -> ClientConfig {
        let (certificate, key) = self.sign(CertificateParams::default(), name, &[]);
        let builder = ClientConfig::builder().with_root_certificates(self.roots.clone());
        builder.with_client_auth_cert(vec![certificate], key).unwrap()
    }

    /// A TLS connection, with a client certificate of this common name and these organizations if given.
    pub async fn connect(&self, to: SocketAddr, user: Option<(&str, &[String])>, is_h2: bool) -> TlsStream<TcpStream> {
        let builder = ClientConfig::builder().with_root_certificates(self.roots.clone());
        let mut config = match user {
            None => builder.with_no_client_auth(),
            Some((name, groups)) => {
                let (certificate, key) = self.sign(CertificateParams::default(), name, groups);
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        config.alpn_protocols = vec![if is_h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let tcp = TcpStream::connect(to).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
    }
}
