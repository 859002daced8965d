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
    error::Error as StdError,
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairness::Clock as _;
use http::{
    HeaderMap, Request, Response, Version,
    header::{EXPECT, HOST, UPGRADE},
};
use tower::ServiceExt;

#[cfg(feature = "fuzzing")]
pub use self::h1::fuzzing::{Read, answer};
pub(crate) use self::h2::Exchange;
use self::{
    breaker::Breaker,
    connect::Endpoint,
    h1::{Answer, Error},
    h2::{Failure, Outgoing, Place, Session},
    pool::{Lease, Pool, Reserved, Slot},
};
use crate::{
    Body, Limits, LocalService,
    clock::WallClock,
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
    Connect(#[source] Arc<dyn StdError + Send + Sync>),
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

/// Why there is no connection, for all that wait for the same one.
#[derive(Clone)]
pub(crate) enum NoConnection {
    /// See [`SendError::Open`].
    Open,
    /// See [`SendError::Connect`].
    Failed(Arc<dyn StdError + Send + Sync>),
}

impl From<NoConnection> for SendError {
    fn from(why: NoConnection) -> Self {
        match why {
            NoConnection::Open => Self::Open,
            NoConnection::Failed(error) => Self::Connect(error),
        }
    }
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
    /// Whether it is known to believe what the gateway says of its clients; see [`crate::index`].
    is_trusted: AtomicBool,
}

enum Way {
    Local(LocalService),
    Remote(Arc<Remote>),
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
                Way::Remote(Arc::new(Remote {
                    may_be_h2: AtomicBool::new(endpoint.may_be_h2()),
                    endpoint,
                    breaker: Breaker::default(),
                    pools: (0..pools).map(|_| Arc::new(Pool::new(limits.upstream_connections, pools))).collect(),
                }))
            }
        };
        Ok(Self { name: options.name.as_str().into(), way, is_trusted: AtomicBool::new(false) })
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

    /// Makes new connections by another TLS configuration. Those that are open go on.
    pub(crate) fn renew_tls(&self, config: &rustls::ClientConfig) {
        if let Way::Remote(remote) = &self.way {
            remote.endpoint.renew_tls(config);
        }
    }

    /// Whether clients' requests may go there. One to which the gateway shows a certificate has to be asked first whom
    /// it takes that for.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted.load(Relaxed) || !self.shows_certificate()
    }

    /// Notes what came of that.
    pub(crate) fn trust(&self, is_trusted: bool) {
        self.is_trusted.store(is_trusted, Relaxed);
    }

    /// Whether the gateway shows it a client certificate.
    pub(crate) fn shows_certificate(&self) -> bool {
        matches!(&self.way, Way::Remote(remote) if remote.endpoint.shows_certificate())
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
        clock: &Arc<WallClock>,
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
                let failed = request.body_mut().failure();
                let Ok(response) = service.clone().oneshot(request).await;
                // What the service makes of that is its own; the answer is the same whatever the shard.
                match failed.and_then(|failed| failed.get().copied()) {
                    Some(error) => Err(SendError::Upload(error.into())),
                    None => Ok(response),
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
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        clock: &Arc<WallClock>,
        stamp: &Stamp<'_>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        // The rarer ways are boxed: they are large, and would make every request's future as large.
        if request.headers().contains_key(UPGRADE) {
            stamp.insert_into(request.headers_mut());
            return Box::pin(self.send_upgrade(pool, clock, request)).await;
        }
        let at_hand = match self.may_be_h2.load(Relaxed) {
            true => pool.sessions.pick(None).map(Opened::Place),
            false => pool.take().map(Opened::Lease),
        };
        let opened = match at_hand {
            Some(opened) => opened,
            None => Box::pin(self.open(pool, clock, None)).await?,
        };
        let lease = match opened {
            Opened::Lease(lease) => lease,
            Opened::Place(place) => return Box::pin(self.send_h2(pool, clock, stamp, request, place)).await,
        };
        self.send_h1(pool, clock, stamp, request, lease).await
    }

    /// Over HTTP/1.1.
    async fn send_h1(
        &self,
        pool: &Arc<Pool>,
        clock: &Arc<WallClock>,
        stamp: &Stamp<'_>,
        request: Request<Body>,
        mut lease: Lease,
    ) -> Result<Response<Body>, SendError> {
        let is_reused = lease.has_served();
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
        clock: &Arc<WallClock>,
        broken: Lease,
        mut headers: HeaderMap,
        error: std::io::Error,
    ) -> Result<Response<Body>, SendError> {
        let Some(sending) = broken.unanswered() else { return Err(SendError::Broken(error.into())) };
        let (stream, slot) = match self.reserve(pool).await? {
            Reserved::Slot(slot) => (self.attempt(clock, self.endpoint.connect(true)).await?.0, slot),
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
        clock: &Arc<WallClock>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, SendError> {
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(HOST, self.endpoint.host.clone());
        let slot = match self.reserve(pool).await? {
            Reserved::Slot(slot) => slot,
            Reserved::Lease(lease) => lease.close(),
        };
        let (stream, _) = self.attempt(clock, self.endpoint.connect(true)).await?;
        upgrade::send(stream, slot, request).await
    }

    /// Over HTTP/2. A request that the shard has not looked at is sent again on another session (PX-06), whatever it
    /// is, unless it is too long to be kept; one that broke with a session that had been idle, if it does no harm.
    async fn send_h2(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        clock: &Arc<WallClock>,
        stamp: &Stamp<'_>,
        request: Request<Body>,
        mut place: Place,
    ) -> Result<Response<Body>, SendError> {
        let (mut parts, body) = request.into_parts();
        stamp.insert_into(&mut parts.headers);
        let malformed = |_| SendError::Malformed("the request has no form in HTTP/2");
        let mut outgoing = Outgoing::new(parts, body, &self.endpoint).map_err(malformed)?;
        let mut tries = 0;
        loop {
            let (session, has_served) = (place.session(), place.has_served());
            let failure = match outgoing.begin(place) {
                Ok(mut beginning) => match poll_fn(|cx| beginning.poll_head(cx)).await {
                    Ok(response) => return Ok(response),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            if tries == RETRIES || !outgoing.may_go_again(&failure, has_served) {
                return Err(failure.into());
            }
            tries += 1;
            place = match self.open(pool, clock, Some(&session)).await? {
                Opened::Place(place) => place,
                Opened::Lease(_) => return Err(failure.into()),
            };
        }
    }

    /// A connection for one request: of those there are, or else a new one. `but` is not good enough.
    ///
    /// Of HTTP/2 one is opened for all that wait, and a stream that ends on another is as good; of HTTP/1.1 each opens
    /// its own.
    async fn open(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        clock: &Arc<WallClock>,
        but: Option<&Arc<Session>>,
    ) -> Result<Opened, SendError> {
        let mut in_vain = 0;
        loop {
            let opened = if self.may_be_h2.load(Relaxed) {
                tokio::select! {
                    biased;
                    place = pool.sessions.place(but) => return Ok(Opened::Place(place)),
                    opened = self.another(pool, clock) => opened?,
                }
            } else {
                self.one_more(pool, clock).await?
            };
            match opened {
                Another::Lease(lease) => return Ok(Opened::Lease(lease)),
                Another::Session(session) if session.is_over() => in_vain += 1,
                Another::Session(_) | Another::Idle => {}
            }
            if in_vain > RETRIES {
                return Err(SendError::Refused("its connections end as soon as they are open".into()));
            }
        }
    }

    /// Waits for a session that is being opened, or opens one.
    async fn another(self: &Arc<Self>, pool: &Arc<Pool>, clock: &Arc<WallClock>) -> Result<Another, SendError> {
        let opening = match pool.sessions.opening() {
            Some(opening) => opening,
            None => {
                let slot = match self.reserve(pool).await? {
                    Reserved::Slot(slot) => slot,
                    Reserved::Lease(lease) => return Ok(Another::Lease(lease)),
                };
                let (remote, pool, clock) = (self.clone(), pool.clone(), clock.clone());
                pool.clone().sessions.join(async move {
                    match remote.connect(&pool, &clock, slot).await? {
                        Another::Session(session) => Ok(Some(session)),
                        Another::Lease(lease) => {
                            lease.give_back();
                            Ok(None)
                        }
                        Another::Idle => Ok(None),
                    }
                })
            }
        };
        Ok(opening.await?.map_or(Another::Idle, Another::Session))
    }

    /// One of the idle connections, or a new one.
    async fn one_more(&self, pool: &Arc<Pool>, clock: &Arc<WallClock>) -> Result<Another, SendError> {
        if let Some(lease) = pool.take() {
            return Ok(Another::Lease(lease));
        }
        match self.reserve(pool).await? {
            Reserved::Slot(slot) => Ok(self.connect(pool, clock, slot).await?),
            Reserved::Lease(lease) => Ok(Another::Lease(lease)),
        }
    }

    /// Makes a connection. A session is among the others when it stands.
    async fn connect(&self, pool: &Pool, clock: &WallClock, slot: Slot) -> Result<Another, NoConnection> {
        let connect = async {
            let (stream, is_h2) = self.endpoint.connect(false).await?;
            self.may_be_h2.store(is_h2, Relaxed);
            Ok(match is_h2 {
                true => Another::Session(pool.sessions.open(stream, slot, &self.endpoint).await?),
                false => Another::Lease(slot.open(stream)),
            })
        };
        self.attempt(clock, connect).await
    }

    async fn reserve(&self, pool: &Arc<Pool>) -> Result<Reserved, SendError> {
        pool.reserve(self.endpoint.timeout).await.ok_or(SendError::Full)
    }

    /// Lets `connect` try, if the circuit does.
    async fn attempt<T>(
        &self,
        clock: &WallClock,
        connect: impl Future<Output = Result<T, crate::BoxError>>,
    ) -> Result<T, NoConnection> {
        let attempt = self.breaker.admit(clock.now_ns()).ok_or(NoConnection::Open)?;
        match connect.await {
            Ok(connected) => {
                attempt.success();
                Ok(connected)
            }
            Err(error) => {
                attempt.failure(clock.now_ns());
                Err(NoConnection::Failed(error.into()))
            }
        }
    }
}

/// See [`Remote::open`].
enum Opened {
    Place(Place),
    Lease(Lease),
}

/// A connection that has been made.
enum Another {
    Session(Arc<Session>),
    Lease(Lease),
    /// Of HTTP/1.1, and already among the idle ones.
    Idle,
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
