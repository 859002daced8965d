//! The way to a shard: a service in this process, or a pool of connections per worker.
//!
//! # Cancellation
//! Dropping a [`Shard::send`] future or the answer's body gives the work up: a bundled server's future is dropped
//! with it, a remote shard sees its connection close. A connection goes back to its pool only after the last byte of
//! an answer.

mod breaker;
mod connect;
mod h1;
mod h2;
pub(crate) mod pool;
mod upgrade;

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{
    HeaderMap, Request, Response, Version,
    header::{EXPECT, HOST, UPGRADE},
};
use tower::ServiceExt;

pub(crate) use self::h2::Exchange;
use self::{
    breaker::Breaker,
    connect::{Endpoint, Stream},
    h1::{Answer, Error},
    h2::{Failure, Outgoing, Place, Session},
    pool::{Lease, Pool, Reserved},
};
use crate::{
    Body, Limits, LocalService,
    options::{ShardOptions, StartError, Upstream},
    stamp::Stamp,
};

/// Interim answers (1xx) to one request. None but 100 has an effect, and none is passed on: hyper's server has no way
/// to send one. RFC 9110 section 15.2 wants a proxy to forward them; a client must be able to do without, and
/// Kubernetes' servers send none.
const INTERIM_MAX: u32 = 16;
/// How long a shard that is asked whether it wants the body may be silent before it gets it unasked: as long as
/// clients wait (RFC 9110 section 10.1.1 forbids to wait for ever).
const CONTINUE_WAIT: Duration = Duration::from_secs(1);
/// How often a request that a shard has not looked at is sent once more.
const RETRIES: u32 = 2;

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
    /// It takes no more streams, or goes away: it has not looked at the request.
    #[error("the shard refuses to begin with the request")]
    Refused(#[source] crate::BoxError),
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

impl From<Failure> for SendError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unprocessed(error) => Self::Refused(error.into()),
            Failure::Broken(error) => Self::Broken(error.into()),
            Failure::Malformed(why) => Self::Malformed(why),
            Failure::Upload(error) => Self::Upload(error),
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
    /// Whether a connection may turn out to speak HTTP/2: not where it is not asked, or the last answer was no.
    may_be_h2: AtomicBool,
    /// One per worker; see [`Shard::send`].
    pools: Box<[Arc<Pool>]>,
}

impl Shard {
    /// `pools` is the number of workers, plus one for the gateway's own requests.
    pub(crate) fn new(options: &ShardOptions, limits: &Limits, pools: usize) -> Result<Self, StartError> {
        let way = match &options.upstream {
            Upstream::Local(service) => Way::Local(service.clone()),
            Upstream::Remote(remote) => {
                let endpoint = Endpoint::new(remote, limits).map_err(|why| StartError::Url {
                    shard: options.name.clone(),
                    url: remote.url.clone(),
                    why,
                })?;
                Way::Remote(Box::new(Remote {
                    may_be_h2: AtomicBool::new(endpoint.may_be_h2()),
                    endpoint,
                    breaker: Breaker::default(),
                    pools: (0..pools).map(|_| Arc::new(Pool::new(limits.upstream_connections, pools))).collect(),
                }))
            }
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
        if self.may_be_h2.load(Relaxed) {
            return Box::pin(self.send_any(pool, clock, stamp, request)).await;
        }
        let (lease, is_reused) = match pool.take() {
            Some(lease) => (lease, true),
            None => match Box::pin(self.open(pool, clock, None)).await? {
                Opened::Lease(lease, is_reused) => (lease, is_reused),
                Opened::Place(place) => return Box::pin(self.send_h2(pool, clock, stamp, request, place, false)).await,
            },
        };
        self.send_h1(pool, clock, stamp, request, lease, is_reused).await
    }

    /// Over HTTP/1.1.
    async fn send_h1(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        stamp: &Stamp<'_>,
        request: Request<Body>,
        mut lease: Lease,
        is_reused: bool,
    ) -> Result<Response<Body>, SendError> {
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
        let (stream, slot) = match self.reserve(pool).await? {
            Reserved::Slot(slot) => (self.dial(clock, true).await?.0, slot),
            // No connection is known to be fresh but a new one.
            Reserved::Lease(_) => return Err(SendError::Broken(error.into())),
        };
        let mut lease = slot.open(stream);
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
        let slot = match self.reserve(pool).await? {
            Reserved::Slot(slot) => slot,
            Reserved::Lease(lease) => lease.close(),
        };
        let (stream, _) = self.dial(clock, true).await?;
        upgrade::send(stream, slot, request).await
    }

    /// Over whatever the shard speaks.
    async fn send_any(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        stamp: &Stamp<'_>,
        request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        let (place, was_idle) = match pool.sessions.pick(None) {
            Some(place) => (place, true),
            None => match self.open(pool, clock, None).await? {
                Opened::Place(place) => (place, false),
                Opened::Lease(lease, is_reused) => {
                    return self.send_h1(pool, clock, stamp, request, lease, is_reused).await;
                }
            },
        };
        self.send_h2(pool, clock, stamp, request, place, was_idle).await
    }

    /// Over HTTP/2. A request that the shard has not looked at is sent again on another session (PX-06), whatever it
    /// is, unless it is too long to be kept; one that broke with a session that had been idle, if it does no harm.
    async fn send_h2(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        stamp: &Stamp<'_>,
        request: Request<Body>,
        mut place: Place,
        mut was_idle: bool,
    ) -> Result<Response<Body>, SendError> {
        let (mut parts, body) = request.into_parts();
        stamp.insert_into(&mut parts.headers);
        let malformed = |_| SendError::Malformed("the request has no form in HTTP/2");
        let mut outgoing = Outgoing::new(parts, body, &self.endpoint).map_err(malformed)?;
        let mut tries = 0;
        loop {
            let session = place.session();
            let failure = match outgoing.begin(place) {
                Ok(mut beginning) => match poll_fn(|cx| beginning.poll_head(cx)).await {
                    Ok(response) => return Ok(response),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            if tries == RETRIES || !outgoing.may_go_again(&failure, was_idle) {
                return Err(failure.into());
            }
            tries += 1;
            place = match self.open(pool, clock, Some(&session)).await? {
                Opened::Place(place) => place,
                Opened::Lease(..) => return Err(failure.into()),
            };
            was_idle = false;
        }
    }

    /// A connection for one request: of those there are, or else a new one. `but` is not good enough.
    async fn open(
        &self,
        pool: &Arc<Pool>,
        clock: &impl Fn() -> u64,
        but: Option<&Arc<Session>>,
    ) -> Result<Opened, SendError> {
        // A session has room for all that wait here: they open one after the other.
        let _turn = match self.may_be_h2.load(Relaxed) {
            true => Some(pool.sessions.opening.lock().await),
            false => None,
        };
        if let Some(place) = pool.sessions.pick(but) {
            return Ok(Opened::Place(place));
        }
        let slot = match self.reserve(pool).await? {
            Reserved::Slot(slot) => slot,
            Reserved::Lease(lease) => return Ok(Opened::Lease(lease, true)),
        };
        let (stream, is_h2) = self.dial(clock, false).await?;
        self.may_be_h2.store(is_h2, Relaxed);
        if !is_h2 {
            return Ok(Opened::Lease(slot.open(stream), false));
        }
        let opened = pool.sessions.open(stream, slot, &self.endpoint).await;
        opened.map(Opened::Place).map_err(|error| {
            self.breaker.failure(clock());
            SendError::Connect(error)
        })
    }

    async fn reserve(&self, pool: &Arc<Pool>) -> Result<Reserved, SendError> {
        pool.reserve(self.endpoint.timeout).await.ok_or(SendError::Full)
    }

    /// A new connection, and whether it speaks HTTP/2.
    async fn dial(&self, clock: &impl Fn() -> u64, only_h1: bool) -> Result<(Stream, bool), SendError> {
        if !self.breaker.admit(clock()) {
            return Err(SendError::Open);
        }
        match self.endpoint.connect(only_h1).await {
            Ok(opened) => {
                self.breaker.success();
                Ok(opened)
            }
            Err(error) => {
                self.breaker.failure(clock());
                Err(SendError::Connect(error))
            }
        }
    }
}

/// See [`Remote::open`].
enum Opened {
    Place(Place),
    /// And whether it has been used before.
    Lease(Lease, bool),
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
