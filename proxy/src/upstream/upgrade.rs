//! Requests that ask a shard to switch protocols: exec, attach, port-forward, watches by websocket.
//!
//! They are rare, long and end their connection: hyper's client speaks for them, on a connection that no pool ever
//! sees.

use http::{Request, Response, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::{SendError, connect::Stream, pool::Slot};
use crate::{Body, io::Flat};

/// Sends one request on a fresh connection. An answer of 101 has the connection in its extensions.
pub(super) async fn send(stream: Stream, slot: Slot, request: Request<Body>) -> Result<Response<Body>, SendError> {
    match stream {
        Stream::Plain(tcp) => speak(TokioIo::new(Flat::new(tcp)), slot, request).await,
        Stream::Tls(tls) => speak(TokioIo::new(*tls), slot, request).await,
    }
}

async fn speak<I>(io: I, slot: Slot, request: Request<Body>) -> Result<Response<Body>, SendError>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let broken = |error: hyper::Error| SendError::Broken(error.into());
    let (mut sender, connection) = http1::Builder::new().handshake(io).await.map_err(broken)?;
    // Ends by itself with the request's future, the answer's body or the tunnel, or when the shard hangs up.
    tokio::spawn(async move {
        let _slot = slot;
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to a shard ended");
        }
    });
    let (parts, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
    let body = if parts.status == StatusCode::SWITCHING_PROTOCOLS { Body::empty() } else { Body::from(body) };
    Ok(Response::from_parts(parts, body))
}
