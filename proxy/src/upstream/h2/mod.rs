//! HTTP/2 towards a shard: several connections per worker, so that no stream limit throttles.
//!
//! A [`Session`] is one connection with a task of its own; an [`Exchange`] is one request on it, driven by the task of
//! that request. Sessions are filled one after the other; a request that finds all of them full opens the next.
//!
//! # Invariants
//! * No session has more streams than the shard allows: the first request waits for the shard's settings.
//! * Who waits for a session to be opened is served by whatever is free first. One is opened at a time, for all.
//! * The window of a connection is as large as those of all its streams together: an answer whose client does not read
//!   holds up no other.
//! * A session is given out only while it takes new streams; after GOAWAY it ends with its last one.
//! * A session on which nothing comes after a ping ends, and with it every stream on it (PX-04).

mod exchange;
#[cfg(test)]
mod tests;

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use h2::{
    Ping, PingPong,
    client::{Builder, Connection, SendRequest},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep, timeout},
};

pub(crate) use self::exchange::{Exchange, Failure, Outgoing};
use super::{
    NoConnection,
    connect::{Endpoint, Stream},
    pool::{Freed, Slot},
};
use crate::{BoxError, h2::Deferred, io::Probes};

/// Streams of one session that we open at most, whatever the shard allows: what its death takes along, and what one
/// TCP connection carries, is bounded.
const STREAMS_MAX: usize = 100;
/// What a shard may send of one answer before we take it.
const STREAM_WINDOW: u32 = 256 << 10;
#[allow(clippy::cast_possible_truncation, reason = "100")]
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX as u32;
const FRAME_MAX: u32 = 16 << 10;
/// Bytes of an answer's head, or of its trailers, that are passed on.
const HEAD_MAX: usize = 64 << 10;
/// What h2 reads of one. It ends the connection with all its streams, and not that one, when there is more than about a
/// quarter beyond this: far above what one may have, so that a head that is too long is the fault of its own request.
const HEAD_READ_MAX: u32 = 1 << 20;
/// What h2 gathers of one request's body before it is written.
const SEND_BUFFER: usize = 64 << 10;
/// Streams that we have reset and still know, and for how long. A shard goes on for a moment with an answer that nobody
/// wants any more. What comes on a stream that h2 has forgotten it takes for a fault, and after 1024 of these it ends
/// the connection, and with it the streams of everybody else.
const RESETS_KNOWN: usize = 4096;
const RESETS_KNOWN_FOR: Duration = Duration::from_secs(5);
/// Sweeps a session without streams survives; as for HTTP/1.1.
const IDLE_SWEEPS: u8 = 55;

/// A connection that is being made, for all that wait for it. The session that it has become, unless the shard speaks
/// HTTP/1.1: then it is among the idle connections.
pub(crate) type Opening = Shared<Begun>;
type Begun = BoxFuture<'static, Begins>;
type Begins = Result<Option<Arc<Session>>, NoConnection>;

/// The sessions of one worker with one shard.
#[derive(Default)]
pub(crate) struct Sessions {
    /// Std mutexes: short sections, never held over an await.
    list: Mutex<Vec<Arc<Session>>>,
    opening: Mutex<Option<WeakShared<Begun>>>,
    /// Told when there is a place on a session.
    freed: Arc<Freed>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream's place on a session that is not `but`. Those that take no streams any more are forgotten.
    pub(crate) fn pick(&self, but: Option<&Arc<Session>>) -> Option<Place> {
        let mut found = None;
        self.lock().retain(|session| {
            if found.is_some() {
                return true;
            }
            match session.room() {
                Room::Never => return false,
                Room::Some if but.is_none_or(|but| !Arc::ptr_eq(but, session)) => {
                    found = Some(Place::new(session.clone()));
                }
                Room::Some | Room::NotNow => {}
            }
            true
        });
        found
    }

    /// The same as soon as there is one. A session on which a stream has ended since is good enough, `but` or not.
    pub(crate) async fn place(&self, but: Option<&Arc<Session>>) -> Place {
        let mut is_first = true;
        let look = || {
            let others_only = std::mem::take(&mut is_first);
            self.pick(but).or_else(|| if others_only { None } else { self.pick(None) })
        };
        self.freed.wait(look).await
    }

    /// The connection that is being made, if there is one.
    pub(crate) fn opening(&self) -> Option<Opening> {
        let opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()?;
        opening.peek().is_none().then_some(opening)
    }

    /// The same, or else this one. It goes on when nobody waits any more, because other streams have ended: handshakes
    /// that are given up cost the shard as much, and there would be one for each request at the edge of what there is.
    pub(crate) fn join(&self, begin: impl Future<Output = Begins> + Send + 'static) -> Opening {
        self.opening().unwrap_or_else(|| {
            let opening = begin.boxed().shared();
            *self.opening.lock().unwrap_or_else(PoisonError::into_inner) = opening.downgrade();
            tokio::spawn(opening.clone());
            opening
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Forgets sessions that have had no stream for long; they close by themselves. Called once a second.
    pub(crate) fn sweep(&self) {
        self.lock().retain(|session| {
            let age = if session.streams.load(Relaxed) == 0 { session.age.load(Relaxed).saturating_add(1) } else { 0 };
            session.age.store(age, Relaxed);
            age < IDLE_SWEEPS && !session.is_over()
        });
    }

    /// Greets the shard on a fresh connection; the session is among the others as soon as the shard has greeted back,
    /// within the endpoint's timeout. The connection's task ends with its last stream after the session is forgotten.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn open(&self, stream: Stream, slot: Slot, endpoint: &Endpoint) -> Result<Arc<Session>, BoxError> {
        let out = Deferred::new(stream);
        let greet = async {
            let (sender, mut connection) = Builder::new()
                .enable_push(false)
                .initial_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_frame_size(FRAME_MAX)
                .max_header_list_size(HEAD_READ_MAX)
                .max_send_buffer_size(SEND_BUFFER)
                .max_concurrent_reset_streams(RESETS_KNOWN)
                .reset_stream_duration(RESETS_KNOWN_FOR)
                // None before the shard's settings say how many.
                .initial_max_send_streams(0)
                .handshake(out.clone())
                .await?;
            poll_fn(|cx| match poll_both(&mut connection, &out, cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => Poll::Ready(Err("the shard hangs up".into())),
                Poll::Pending if connection.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            })
            .await?;
            Ok::<_, BoxError>((sender, connection))
        };
        let late = |_| format!("no HTTP/2 settings within {:?}", endpoint.timeout);
        let (sender, mut connection) = timeout(endpoint.timeout, greet).await.map_err(late)??;
        let pings = connection.ping_pong().ok_or("pings are in other hands")?;
        let session = Arc::new(Session {
            sender,
            streams: AtomicUsize::new(0),
            heard: AtomicBool::new(false),
            has_served: AtomicBool::new(false),
            age: AtomicU8::new(0),
            freed: self.freed.clone(),
        });
        let (watched, probes, freed) = (Arc::downgrade(&session), endpoint.probes, self.freed.clone());
        self.lock().push(session.clone());
        self.freed.tell_all();
        tokio::spawn(async move {
            let _slot = slot;
            let heard = move || watched.upgrade().is_some_and(|session| session.heard.swap(false, Relaxed));
            if let Err(error) = drive(connection, out, pings, probes, heard, &freed).await {
                tracing::debug!(%error, "connection to a shard ended");
            }
        });
        Ok(session)
    }
}

/// Reads and writes; then what was written leaves in as few pieces as possible.
fn poll_both<S>(
    connection: &mut Connection<Deferred<S>, Bytes>,
    out: &Deferred<S>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), BoxError>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let done = Pin::new(connection).poll(cx);
    match out.push(cx) {
        Poll::Ready(Err(error)) if done.is_pending() => Poll::Ready(Err(error.into())),
        _ => done.map_err(BoxError::from),
    }
}

/// Drives a connection until it ends or gives no sign of life. `heard` says whether an answer has gone on since it was
/// asked last: a pong may be stuck behind one. `freed` is told when the shard allows more streams than before.
async fn drive<S>(
    mut connection: Connection<Deferred<S>, Bytes>,
    out: Deferred<S>,
    mut pings: PingPong,
    probes: Probes,
    heard: impl Fn() -> bool,
    freed: &Freed,
) -> Result<(), BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut timer = pin!(sleep(probes.after));
    let mut is_pinged = false;
    let mut streams = connection.max_concurrent_send_streams();
    poll_fn(|cx| {
        while timer.as_mut().poll(cx).is_ready() {
            let is_alive = is_pinged && (matches!(pings.poll_pong(cx), Poll::Ready(Ok(_))) || heard());
            let next = match (is_pinged, is_alive) {
                (true, false) => return Poll::Ready(Err("it does not answer to a ping".into())),
                (true, true) => probes.after,
                (false, _) => {
                    heard();
                    // A pong that came late is no answer to this ping.
                    let _ = pings.poll_pong(cx);
                    // Refused while an earlier pong is still out; that one will do.
                    let _ = pings.send_ping(Ping::opaque());
                    probes.patience
                }
            };
            is_pinged = !is_pinged;
            timer.as_mut().reset(Instant::now() + next);
        }
        let done = poll_both(&mut connection, &out, cx);
        let before = std::mem::replace(&mut streams, connection.max_concurrent_send_streams());
        if streams > before {
            freed.tell_all();
        }
        done
    })
    .await
}

/// One connection.
pub(crate) struct Session {
    sender: SendRequest<Bytes>,
    streams: AtomicUsize,
    /// Whether a part of an answer has come since it was asked last.
    heard: AtomicBool,
    /// Whether any request has been answered on it.
    has_served: AtomicBool,
    /// Sweeps since the last stream.
    age: AtomicU8,
    /// See [`Sessions`].
    freed: Arc<Freed>,
}

enum Room {
    Some,
    NotNow,
    /// It is going away.
    Never,
}

impl Session {
    /// Whether it takes no streams any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.room(), Room::Never)
    }

    fn room(&self) -> Room {
        let mut sender = self.sender.clone();
        if let Poll::Ready(Err(_)) = sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
            return Room::Never;
        }
        let most = sender.current_max_send_streams().min(STREAMS_MAX);
        if self.streams.load(Relaxed) < most { Room::Some } else { Room::NotNow }
    }
}

/// The right to one stream of a session; the stream counts until this is dropped.
pub(crate) struct Place(Arc<Session>);

impl Place {
    fn new(session: Arc<Session>) -> Self {
        session.streams.fetch_add(1, Relaxed);
        Self(session)
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        self.0.clone()
    }

    /// Whether an earlier request was answered on its session, so that the shard may have tired of it.
    pub(crate) fn has_served(&self) -> bool {
        self.0.has_served.load(Relaxed)
    }

    /// A part of an answer has come.
    fn heard(&self) {
        self.0.heard.store(true, Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
        self.0.freed.tell();
    }
}
