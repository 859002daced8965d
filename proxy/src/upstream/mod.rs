//! The way to a shard: a service in this process, or a pool of connections per worker.
//!
//! # Cancellation
//! Dropping a [`Shard::send`] future or the answer's body gives the work up: a bundled server's future is dropped
//! with it, a remote shard sees its connection close. A connection goes back to its pool only after the last byte of
//! an answer.

mod breaker;
mod connect;
pub(crate) mod pool;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, request};
use tower::ServiceExt;

use self::{breaker::Breaker, connect::Endpoint, pool::Pool};
use crate::{
    Body, Limits, LocalService,
    options::{ShardOptions, StartError, Upstream},
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
                pools: (0..pools).map(|_| Arc::new(Pool::new(limits.upstream_connections))).collect(),
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
        request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        match &self.way {
            Way::Local(service) => {
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
                remote.send(pool, clock, request).await
            }
        }
    }
}

impl Remote {
    async fn send(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        self.address(&mut request);
        // The rarer ways are boxed: they are large, and would make every request's future as large.
        let Some(lease) = pool.take() else { return Box::pin(self.send_afresh(pool, clock, request)).await };
        let spare = repeatable(&request).then(|| Head::of(&request));
        match lease.send(request).await {
            Ok(response) => Ok(response),
            // The shard closed the idle connection while the request was on its way. Once more, on a fresh one, if
            // nothing was written or doing it twice does no harm.
            Err((error, unsent)) => match unsent.or_else(|| spare.map(Head::into_request)) {
                Some(request) => Box::pin(self.send_afresh(pool, clock, request)).await,
                None => Err(error),
            },
        }
    }

    /// Sends on a connection made for it.
    async fn send_afresh(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        self.connect(pool, clock).await?.send(request).await.map_err(|(error, _)| error)
    }

    async fn connect(&self, pool: &Arc<Pool>, clock: &impl Fn() -> u64) -> Result<pool::Lease, SendError> {
        let slot = pool.reserve().ok_or(SendError::Full)?;
        if !self.breaker.admit(clock()) {
            return Err(SendError::Open);
        }
        match self.endpoint.connect().await {
            Ok(stream) => {
                self.breaker.success();
                pool::handshake(stream, slot).await.map_err(SendError::Connect)
            }
            Err(error) => {
                self.breaker.failure(clock());
                Err(SendError::Connect(error))
            }
        }
    }

    /// Names the shard's host.
    fn address(&self, request: &mut Request<Body>) {
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(http::header::HOST, self.endpoint.host.clone());
    }
}

/// Without a body, and safe to do twice (RFC 9110 section 9.2.1).
fn repeatable(request: &Request<Body>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        && http_body::Body::is_end_stream(request.body())
}

/// What is needed to send a request without a body once more.
struct Head {
    method: Method,
    uri: http::Uri,
    headers: HeaderMap<HeaderValue>,
}

impl Head {
    fn of(request: &Request<Body>) -> Self {
        Self { method: request.method().clone(), uri: request.uri().clone(), headers: request.headers().clone() }
    }

    fn into_request(self) -> Request<Body> {
        let (mut parts, body): (request::Parts, Body) = Request::new(Body::empty()).into_parts();
        parts.method = self.method;
        parts.uri = self.uri;
        parts.headers = self.headers;
        Request::from_parts(parts, body)
    }
}
