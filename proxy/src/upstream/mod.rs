//! The way to a shard: a service in this process, or a pool of connections per worker.
//!
//! # Cancellation
//! Dropping a [`Shard::send`] future or the answer's body gives the work up: a bundled server's future is dropped
//! with it, a remote shard sees its connection close. A connection goes back to its pool only after the last byte of
//! an answer.

mod breaker;
mod connect;
mod h1;
pub(crate) mod pool;
mod upgrade;

use std::sync::Arc;

use http::{
    HeaderMap, Request, Response, Version,
    header::{EXPECT, HOST, UPGRADE},
};
use tower::ServiceExt;

use self::{
    breaker::Breaker,
    connect::{Endpoint, Stream},
    h1::{Answer, Error},
    pool::{Lease, Pool, Slot},
};
use crate::{
    Body, Limits, LocalService,
    options::{ShardOptions, StartError, Upstream},
    stamp::Stamp,
};

/// Why a shard gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// It does not accept connections: nothing was sent.
    #[error("the shard does not accept connections")]
    Connect(#[source] crate::BoxError),
    /// It did not accept connections a moment ago, so it was not asked.
    #[error("the shard did not accept connections a moment ago")]
    Open,
    /// This worker has as many connections to it as it may.
    #[error("all connections to the shard are in use")]
    Full,
    /// The connection broke before the answer's head was complete.
    #[error("the shard closed the connection before it answered")]
    Broken(#[source] crate::BoxError),
    /// The answer breaks the protocol.
    #[error("the shard's answer cannot be trusted: {0}")]
    Malformed(&'static str),
    /// The client did not send what it had promised.
    #[error("the request's body broke off")]
    Upload(#[source] crate::BoxError),
}

impl From<Error> for SendError {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => Self::Broken(error.into()),
            Error::Malformed(why) => Self::Malformed(why),
            Error::Upload(error) => Self::Upload(error),
        }
    }
}

/// One shard as every worker sees it.
pub(crate) struct Shard {
    pub(crate) name: Arc<str>,
    way: Way,
}

enum Way {
    Local(LocalService),
    Remote(Box<Remote>),
}

struct Remote {
    endpoint: Endpoint,
    breaker: Breaker,
    /// One per worker; see [`Shard::send`].
    pools: Box<[Arc<Pool>]>,
}

impl Shard {
    /// `pools` is the number of workers, plus one for the gateway's own requests.
    pub(crate) fn new(options: &ShardOptions, limits: &Limits, pools: usize) -> Result<Self, StartError> {
        let way = match &options.upstream {
            Upstream::Local(service) => Way::Local(service.clone()),
            Upstream::Remote(remote) => Way::Remote(Box::new(Remote {
                endpoint: Endpoint::new(remote, limits.connect_timeout).map_err(|why| StartError::Url {
                    shard: options.name.clone(),
                    url: remote.url.clone(),
                    why,
                })?,
                breaker: Breaker::default(),
                pools: (0..pools).map(|_| Arc::new(Pool::new(limits.upstream_connections, pools))).collect(),
            })),
        };
        Ok(Self { name: options.name.as_str().into(), way })
    }

    /// Whether it is known not to accept connections just now, and worker `pool` has none to it.
    pub(crate) fn is_open_circuit(&self, pool: usize, clock: impl Fn() -> u64) -> bool {
        match &self.way {
            Way::Local(_) => false,
            Way::Remote(remote) => {
                remote.breaker.is_open(clock) && remote.pools.get(pool).is_none_or(|pool| pool.is_empty())
            }
        }
    }

    /// Closes connections to the shard that worker `pool` has not used since the last call but one.
    pub(crate) fn sweep(&self, pool: usize) {
        if let Way::Remote(remote) = &self.way
            && let Some(pool) = remote.pools.get(pool)
        {
            pool.sweep();
        }
    }

    /// Whether it is spoken to over a connection, which can switch protocols.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.way, Way::Remote(_))
    }

    /// Forwards one request, hop-by-hop headers already removed. `pool` is the number of the calling worker: a
    /// connection is only ever used by the runtime that made it. `clock` is read when a connection is made. An answer
    /// of 101 carries the connection in its extensions.
    pub(crate) async fn send(
        &self,
        pool: usize,
        clock: &impl Fn() -> u64,
        stamp: &Stamp<'_>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        match &self.way {
            Way::Local(service) => {
                // To ask for the body is to invite it.
                request.headers_mut().remove(EXPECT);
                stamp.insert_into(request.headers_mut());
                // A bundled shard works in this very thread. Letting every other connection that is ready come as
                // far as this first makes the gate, and not the run queue before it, decide who is next.
                tokio::task::yield_now().await;
                match service.clone().oneshot(request).await {
                    Ok(response) => Ok(response),
                    Err(never) => match never {},
                }
            }
            Way::Remote(remote) => {
                let pool = remote.pools.get(pool).expect("one pool per worker was made");
                remote.send(pool, clock, stamp, request).await
            }
        }
    }
}

impl Remote {
    async fn send(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        stamp: &Stamp<'_>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        // The rarer ways are boxed: they are large, and would make every request's future as large.
        if request.headers().contains_key(UPGRADE) {
            stamp.insert_into(request.headers_mut());
            return Box::pin(self.send_upgrade(pool, clock, request)).await;
        }
        let (mut lease, is_reused) = match pool.take() {
            Some(lease) => (lease, true),
            None => (Box::pin(self.connect(pool, clock)).await?, false),
        };
        let (parts, body) = request.into_parts();
        let mut headers = lease.begin(parts, body, &self.endpoint.host, stamp);
        match lease.head(&mut headers).await {
            Ok(answer) => Ok(response(lease, answer, headers)),
            // Most likely the shard closed the idle connection while the request was on its way.
            Err(Error::Io(error)) if is_reused => Box::pin(self.send_again(pool, clock, lease, headers, error)).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the request of a broken connection once more, on a fresh one, if nothing was written or doing it twice
    /// does no harm.
    async fn send_again(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        broken: Lease,
        mut headers: HeaderMap,
        error: std::io::Error,
    ) -> Result<Response<Body>, SendError> {
        let Some(sending) = broken.unanswered() else { return Err(SendError::Broken(error.into())) };
        let mut lease = self.connect(pool, clock).await?;
        lease.begin_again(sending);
        let answer = lease.head(&mut headers).await?;
        Ok(response(lease, answer, headers))
    }

    async fn send_upgrade(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(HOST, self.endpoint.host.clone());
        let (stream, slot) = self.dial(pool, clock).await?;
        upgrade::send(stream, slot, request).await
    }

    async fn connect(&self, pool: &Arc<Pool>, clock: &impl Fn() -> u64) -> Result<Lease, SendError> {
        let (stream, slot) = self.dial(pool, clock).await?;
        Ok(slot.open(stream))
    }

    async fn dial(&self, pool: &Arc<Pool>, clock: &impl Fn() -> u64) -> Result<(Stream, Slot), SendError> {
        let slot = pool.reserve().ok_or(SendError::Full)?;
        if !self.breaker.admit(clock()) {
            return Err(SendError::Open);
        }
        match self.endpoint.connect().await {
            Ok(stream) => {
                self.breaker.success();
                Ok((stream, slot))
            }
            Err(error) => {
                self.breaker.failure(clock());
                Err(SendError::Connect(error))
            }
        }
    }
}

fn response(lease: Lease, answer: Answer, headers: HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::leased(lease));
    *response.status_mut() = answer.status;
    *response.headers_mut() = headers;
    if let Some(reason) = answer.reason {
        response.extensions_mut().insert(reason);
    }
    response
}
