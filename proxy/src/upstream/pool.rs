//! Idle HTTP/1.1 connections of one worker to one shard, last in first out.
//!
//! This is the seam to the HTTP/1.1 client: nothing outside this file knows that it is hyper's. Its connection runs
//! as a task of the worker; a [`Lease`] is the right to send one request on it.
//!
//! A connection is given back when the last byte of an answer has been read, which may be a moment before hyper's
//! task has noticed: so readiness is looked at when a connection is taken, and one that is not ready yet is kept. One
//! whose request is still being sent then, because the shard answered early, is never used again: it finishes that.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use http::{Request, Response, StatusCode};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::{SendError, connect::Stream};
use crate::{Body, BoxError, io::Flat};

/// Idle connections kept at most; more are closed when they come back.
const IDLE_MAX: usize = 512;
/// How many idle connections are looked at for one that is ready.
const LOOK_MAX: usize = 8;
/// Sweeps an idle connection survives. Below the idle timeouts in use on servers (nginx 75 s, Go programs 90 s).
const IDLE_SWEEPS: u8 = 55;

pub(crate) struct Pool {
    /// A std mutex: short sections, never held over an await, and in practice taken by one thread only.
    idle: Mutex<Vec<Idle>>,
    open: AtomicUsize,
    max: usize,
}

struct Idle {
    sender: SendRequest<Body>,
    age: u8,
}

/// The right to send one request on one connection.
pub(crate) struct Lease {
    sender: SendRequest<Body>,
    pool: Arc<Pool>,
    /// Gone when the request's body has been sent.
    upload: Option<Weak<()>>,
}

/// One of the connections the pool may have; free again when dropped.
pub(crate) struct Slot(Arc<Pool>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

impl Pool {
    pub(crate) fn new(max: usize) -> Self {
        Self { idle: Mutex::default(), open: AtomicUsize::new(0), max }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// An idle connection, if one is ready.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Lease> {
        let mut idle = self.lock();
        let mut at = idle.len();
        for _ in 0..LOOK_MAX {
            at = at.checked_sub(1)?;
            let entry = idle.get(at)?;
            if entry.sender.is_closed() {
                idle.remove(at);
            } else if entry.sender.is_ready() {
                let sender = idle.remove(at).sender;
                return Some(Lease { sender, pool: self.clone(), upload: None });
            }
        }
        None
    }

    /// Whether there is no idle connection.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// A place for a new connection, if there is one.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<Slot> {
        if self.open.fetch_add(1, Relaxed) >= self.max {
            self.open.fetch_sub(1, Relaxed);
            return None;
        }
        Some(Slot(self.clone()))
    }

    /// Ages idle connections and closes the old and dead ones. Called once a second.
    pub(crate) fn sweep(&self) {
        self.lock().retain_mut(|entry| {
            entry.age = entry.age.saturating_add(1);
            entry.age < IDLE_SWEEPS && !entry.sender.is_closed()
        });
    }
}

/// Speaks HTTP/1.1 on a fresh connection.
pub(crate) async fn handshake(stream: Stream, slot: Slot) -> Result<Lease, BoxError> {
    match stream {
        Stream::Plain(tcp) => start(TokioIo::new(Flat::new(tcp)), slot).await,
        Stream::Tls(tls) => start(TokioIo::new(*tls), slot).await,
    }
}

async fn start<I>(io: I, slot: Slot) -> Result<Lease, BoxError>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let pool = slot.0.clone();
    let (sender, connection) = http1::Builder::new().handshake(io).await?;
    // Ends by itself when the lease or the body is dropped, or when the shard hangs up.
    tokio::spawn(async move {
        let _slot = slot;
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to a shard ended");
        }
    });
    Ok(Lease { sender, pool, upload: None })
}

impl Lease {
    /// Sends one request. On failure the request comes back if nothing of it was written.
    pub(crate) async fn send(
        mut self,
        request: Request<Body>,
    ) -> Result<Response<Body>, (SendError, Option<Request<Body>>)> {
        self.upload = request.body().unfinished();
        match self.sender.try_send_request(request).await {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                if parts.status == StatusCode::SWITCHING_PROTOCOLS {
                    // The connection speaks something else now: it never comes back.
                    return Ok(Response::from_parts(parts, Body::empty()));
                }
                Ok(Response::from_parts(parts, Body::leased(body, self)))
            }
            Err(mut error) => {
                let unsent = error.take_message();
                Err((SendError::Broken(error.into_error().into()), unsent))
            }
        }
    }

    /// The answer has been read to its end: the connection may be used again.
    pub(crate) fn give_back(self) {
        if self.sender.is_closed() || self.upload.is_some_and(|upload| upload.strong_count() > 0) {
            return;
        }
        let mut idle = self.pool.lock();
        if idle.len() < IDLE_MAX {
            idle.push(Idle { sender: self.sender, age: 0 });
        }
    }
}
