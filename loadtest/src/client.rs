//! A cheap HTTP/1.1 client: one connection, one request at a time, bodies thrown away.
//!
//! Own connections instead of a pool, because how many there are is what a scenario is about.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

/// Longest time for a connection to come about.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest time for an answer, its body included. Above the longest wait in a queue.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// How long a connection may be unused. Below the time after which the gateway closes those on which nothing comes
/// (15 s), so that no request is written to a connection that is being closed.
const UNUSED_MAX: Duration = Duration::from_secs(10);
/// Largest body that is kept.
const BODY_MAX: usize = 16 << 20;

/// Where to connect.
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// `host:port`, for the Host header.
    pub(crate) authority: String,
    /// None: plain text.
    pub(crate) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// A bearer token's header.
    pub(crate) authorization: Option<http::HeaderValue>,
}

/// What matters of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// From the header, in whole seconds as Kubernetes writes it.
    pub(crate) retry_after: Option<Duration>,
}

/// One connection, made on first use and again when it is lost or was unused for long.
pub(crate) struct Connection {
    endpoint: Arc<Endpoint>,
    /// With the time since when it is unused.
    sender: Option<(SendRequest<Full<Bytes>>, Instant)>,
}

impl Connection {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, sender: None }
    }

    /// Connects unless connected.
    pub(crate) async fn open(&mut self) -> anyhow::Result<()> {
        if !self.is_usable(Instant::now()) {
            let opened = timeout(CONNECT_MAX, connect(&self.endpoint)).await.context("connecting took too long")?;
            self.sender = Some((opened?, Instant::now()));
        }
        Ok(())
    }

    fn is_usable(&self, now: Instant) -> bool {
        let usable = |(sender, since): &(SendRequest<_>, Instant)| {
            !sender.is_closed() && now.saturating_duration_since(*since) < UNUSED_MAX
        };
        self.sender.as_ref().is_some_and(usable)
    }

    /// Sends a request and reads the answer to its end, keeping only status and `Retry-After`.
    ///
    /// # Cancel safety
    /// A dropped exchange closes the connection; the next one opens a new one.
    pub(crate) async fn exchange(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let answer = async {
            let (mut sender, response) = self.send(request).await?;
            let (head, mut body) = response.into_parts();
            while let Some(frame) = body.frame().await {
                frame.context("reading the answer")?;
            }
            let retry_after = head.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
            sender.ready().await.ok();
            self.sender = Some((sender, Instant::now()));
            Ok(Answer { status: head.status, retry_after: retry_after.map(Duration::from_secs) })
        };
        timeout(ANSWER_MAX, answer).await.context("no answer")?
    }

    /// Sends a request and keeps the body.
    pub(crate) async fn fetch(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
        let answer = async {
            let (mut sender, response) = self.send(request).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, BODY_MAX).collect().await.map_err(|e| anyhow::anyhow!("the answer: {e}"))?;
            sender.ready().await.ok();
            self.sender = Some((sender, Instant::now()));
            Ok((head.status, body.to_bytes()))
        };
        timeout(ANSWER_MAX, answer).await.context("no answer")?
    }

    /// The sender is out of `self` while a request is under way, so that a cancelled one is not reused.
    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<(SendRequest<Full<Bytes>>, Response<Incoming>)> {
        self.open().await?;
        let Some((mut sender, _)) = self.sender.take() else { bail!("not connected") };
        let response = sender.send_request(request).await.context("sending")?;
        Ok((sender, response))
    }
}

async fn connect(endpoint: &Endpoint) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(endpoint.address).await.with_context(|| format!("{}", endpoint.address))?;
    stream.set_nodelay(true)?;
    match &endpoint.tls {
        None => handshake(stream).await,
        Some((config, name)) => {
            let stream = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream).await;
            handshake(stream.with_context(|| format!("TLS with {}", endpoint.authority))?).await
        }
    }
}

async fn handshake<S>(stream: S) -> anyhow::Result<SendRequest<Full<Bytes>>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends when the sender is dropped or the server hangs up; either shows at the sender.
    tokio::spawn(async move { connection.await.ok() });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::Stub;

    #[tokio::test]
    async fn a_connection_is_used_again_unless_it_was_unused_for_long() {
        let stub = Stub::start().await;
        let mut connection = Connection::new(stub.endpoint());
        assert!(!connection.is_usable(Instant::now()));
        let opened = Instant::now();
        connection.open().await.unwrap();
        assert!(connection.is_usable(opened) && !connection.is_usable(Instant::now() + UNUSED_MAX));
        let long_ago = opened.checked_sub(2 * UNUSED_MAX).unwrap();
        for (unused_since, connects) in [(opened, 1), (long_ago, 2), (opened, 2)] {
            connection.sender.as_mut().unwrap().1 = unused_since;
            let request = Request::get("/clusters/root:a/x").body(Full::default()).unwrap();
            assert_eq!(connection.exchange(request).await.unwrap().status, StatusCode::OK);
            assert!(connection.sender.as_ref().unwrap().1 >= opened);
            assert_eq!(stub.connections(), connects);
        }
    }
}
