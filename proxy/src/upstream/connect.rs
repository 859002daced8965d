//! Makes connections to one shard.

use std::{
    io::{IoSlice, Result as IoResult},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{BoxError, io, options::RemoteOptions};

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

/// Where a shard listens.
pub(crate) struct Endpoint {
    /// `host:port` for name resolution.
    authority: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The `Host` header.
    pub(crate) host: HeaderValue,
    timeout: Duration,
}

impl Endpoint {
    pub(crate) fn new(options: &RemoteOptions, timeout: Duration) -> Result<Self, &'static str> {
        let uri: Uri = options.url.parse().map_err(|_| "not a URL")?;
        let authority = uri.authority().ok_or("no host: want http://host:port or https://host:port")?;
        if uri.path() != "/" || uri.query().is_some() || authority.as_str().contains('@') {
            return Err("a path, a query or user information has no place here");
        }
        let (tls, port) = match (uri.scheme_str(), &options.tls) {
            (Some("http"), _) => (None, 80),
            (Some("https"), Some(config)) => {
                let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(name).map_err(|_| "the host is no valid TLS server name")?;
                // This client speaks HTTP/1.1 only, whatever the caller's configuration offers.
                let mut config = rustls::ClientConfig::clone(config);
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                (Some((TlsConnector::from(Arc::new(config)), name)), 443)
            }
            (Some("https"), None) => return Err("https needs TLS settings: a CA bundle"),
            _ => return Err("want http:// or https://"),
        };
        Ok(Self {
            authority: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(port)),
            tls,
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| "the host is no valid header value")?,
            timeout,
        })
    }

    /// Connects, or says why not within the connect timeout.
    pub(crate) async fn connect(&self) -> Result<Stream, BoxError> {
        let stand = async {
            let tcp = TcpStream::connect(&self.authority).await?;
            io::tune(&tcp)?;
            Ok::<_, BoxError>(match &self.tls {
                None => Stream::Plain(tcp),
                Some((connector, name)) => Stream::Tls(Box::new(connector.connect(name.clone(), tcp).await?)),
            })
        };
        timeout(self.timeout, stand).await.map_err(|_| format!("no connection within {:?}", self.timeout))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, &'static str> {
        Endpoint::new(&RemoteOptions { url: url.into(), tls: None }, Duration::from_secs(1))
    }

    #[test]
    fn urls() {
        assert_eq!(endpoint("http://127.0.0.1:8080/").unwrap().authority, "127.0.0.1:8080");
        assert_eq!(endpoint("http://shard").unwrap().authority, "shard:80");
        assert_eq!(endpoint("http://[::1]:7").unwrap().authority, "[::1]:7");
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
