//! Makes connections to one shard, and finds out what is spoken on them.

use std::{
    io::{IoSlice, Result as IoResult},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use config::Protocol;
use http::{
    HeaderValue, Uri,
    uri::{Authority, Scheme},
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    BoxError, Limits,
    io::{self, Probes},
    options::RemoteOptions,
};

/// A connected socket.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<IoResult<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<IoResult<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<IoResult<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

impl Stream {
    /// Whether HTTP/2 was chosen in the TLS handshake.
    fn has_chosen_h2(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.get_ref().1.alpn_protocol() == Some(H2))
    }
}

const H1: &[u8] = b"http/1.1";
const H2: &[u8] = b"h2";

/// Where a shard listens, and how it is spoken to.
pub(crate) struct Endpoint {
    /// `host:port` for name resolution.
    address: String,
    tls: Option<Tls>,
    pub(crate) protocol: Protocol,
    /// The `Host` header, and its like over HTTP/2.
    pub(crate) host: HeaderValue,
    pub(crate) authority: Authority,
    pub(crate) scheme: Scheme,
    /// Until a connection stands.
    pub(crate) timeout: Duration,
    pub(crate) probes: Probes,
}

struct Tls {
    name: ServerName<'static>,
    offer: &'static [&'static [u8]],
    /// Read for each connection.
    connectors: ArcSwap<Connectors>,
}

struct Connectors {
    /// Offers what may be spoken.
    any: TlsConnector,
    /// Offers HTTP/1.1 only: for requests that switch protocols.
    h1: TlsConnector,
}

impl Connectors {
    fn new(config: &rustls::ClientConfig, offer: &[&[u8]]) -> Self {
        Self { any: Self::connector(config, offer), h1: Self::connector(config, &[H1]) }
    }

    /// Offers these protocols, whatever the caller's configuration says.
    fn connector(config: &rustls::ClientConfig, offer: &[&[u8]]) -> TlsConnector {
        let mut config = config.clone();
        config.alpn_protocols = offer.iter().map(|p| p.to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}

impl Endpoint {
    pub(crate) fn new(options: &RemoteOptions, limits: &Limits) -> Result<Self, &'static str> {
        let uri: Uri = options.url.parse().map_err(|_| "not a URL")?;
        let authority = uri.authority().ok_or("no host: want http://host:port or https://host:port")?;
        if uri.path() != "/" || uri.query().is_some() || authority.as_str().contains('@') {
            return Err("a path, a query or user information has no place here");
        }
        let (tls, scheme, port) = match (uri.scheme_str(), &options.tls) {
            (Some("http"), _) => (None, Scheme::HTTP, 80),
            (Some("https"), Some(config)) => {
                let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(name).map_err(|_| "the host is no valid TLS server name")?;
                let offer: &'static [&'static [u8]] = match options.protocol {
                    Protocol::Auto => &[H2, H1],
                    Protocol::Http1 => &[H1],
                    Protocol::Http2 => &[H2],
                };
                let connectors = ArcSwap::from_pointee(Connectors::new(config, offer));
                (Some(Tls { name, offer, connectors }), Scheme::HTTPS, 443)
            }
            (Some("https"), None) => return Err("https needs TLS settings: a CA bundle"),
            _ => return Err("want http:// or https://"),
        };
        Ok(Self {
            address: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(port)),
            tls,
            protocol: options.protocol,
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| "the host is no valid header value")?,
            authority: authority.clone(),
            scheme,
            timeout: limits.connect_timeout,
            probes: Probes { after: limits.ping_interval, patience: limits.ping_timeout },
        })
    }

    /// Makes new connections by another configuration; without effect in plain text.
    pub(crate) fn renew_tls(&self, config: &rustls::ClientConfig) {
        if let Some(tls) = &self.tls {
            tls.connectors.store(Arc::new(Connectors::new(config, tls.offer)));
        }
    }

    /// Whether the shard sees a client certificate.
    pub(crate) fn shows_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connectors.load().any.config().client_auth_cert_resolver.has_certs())
    }

    /// Whether its connections may turn out to speak HTTP/2.
    pub(crate) fn may_be_h2(&self) -> bool {
        match self.protocol {
            Protocol::Auto => self.tls.is_some(),
            Protocol::Http1 => false,
            Protocol::Http2 => true,
        }
    }

    /// Connects, or says why not within the connect timeout; whether it is HTTP/2 that the shard speaks there.
    pub(crate) async fn connect(&self, only_h1: bool) -> Result<(Stream, bool), BoxError> {
        let stand = async {
            let tcp = TcpStream::connect(&self.address).await?;
            io::tune(&tcp, &self.probes)?;
            if !only_h1 {
                io::expect_progress(&tcp, &self.probes)?;
            }
            Ok::<_, BoxError>(match &self.tls {
                None => Stream::Plain(tcp),
                Some(tls) => {
                    let connectors = tls.connectors.load_full();
                    let connector = if only_h1 { &connectors.h1 } else { &connectors.any };
                    Stream::Tls(Box::new(connector.connect(tls.name.clone(), tcp).await?))
                }
            })
        };
        let stream =
            timeout(self.timeout, stand).await.map_err(|_| format!("no connection within {:?}", self.timeout))??;
        let is_h2 = !only_h1
            && match self.protocol {
                Protocol::Auto => stream.has_chosen_h2(),
                Protocol::Http1 => false,
                Protocol::Http2 if self.tls.is_some() && !stream.has_chosen_h2() => {
                    return Err("the shard does not choose HTTP/2, which is configured for it".into());
                }
                Protocol::Http2 => true,
            };
        Ok((stream, is_h2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, &'static str> {
        let options = RemoteOptions { url: url.into(), protocol: Protocol::Auto, tls: None };
        Endpoint::new(&options, &Limits::default())
    }

    #[test]
    fn urls() {
        assert_eq!(endpoint("http://127.0.0.1:8080/").unwrap().address, "127.0.0.1:8080");
        assert_eq!(endpoint("http://shard").unwrap().address, "shard:80");
        assert_eq!(endpoint("http://[::1]:7").unwrap().address, "[::1]:7");
        for bad in [
            "",
            "shard",
            "/x",
            "ftp://shard",
            "https://shard",
            "http://u@shard",
            "http://shard/?a",
            "http://shard/base",
        ] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }
}
