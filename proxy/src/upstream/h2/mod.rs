//! HTTP/2 towards a shard: several connections per worker, so that no stream limit throttles.
//!
//! A [`Session`] is one connection with a task of its own; an [`Exchange`] is one request on it, driven by the task of
//! that request. Sessions are filled one after the other; a request that finds all of them full opens the next.
//!
//! # Invariants
//! * No session has more streams than the shard allows: the first request waits for the shard's settings.
//! * The window of a connection is as large as those of all its streams together: an answer whose client does not read
//!   holds up no other.
//! * A session is given out only while it takes new streams; after GOAWAY it ends with its last one.
//! * A session on which nothing comes after a ping ends, and with it every stream on it (PX-04).

mod exchange;

use std::{
    future::{Future as _, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h2::{
    Ping, PingPong,
    client::{Builder, Connection, SendRequest},
};
use tokio::time::{Instant, sleep, timeout};

pub(crate) use self::exchange::{Exchange, Failure, Outgoing};
use super::{
    connect::{Endpoint, Stream},
    pool::Slot,
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
/// Bytes of an answer's head.
const HEAD_MAX: u32 = 64 << 10;
/// What h2 gathers of one request's body before it is written.
const SEND_BUFFER: usize = 64 << 10;
/// Sweeps a session without streams survives; as for HTTP/1.1.
const IDLE_SWEEPS: u8 = 55;

type Out = Deferred<Stream>;

/// The sessions of one worker with one shard.
#[derive(Default)]
pub(crate) struct Sessions {
    /// A std mutex: short sections, never held over an await.
    list: Mutex<Vec<Arc<Session>>>,
    /// Held by who opens the next session; the others wait for that one.
    pub(crate) opening: tokio::sync::Mutex<()>,
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

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Forgets sessions that have had no stream for long; they close by themselves. Called once a second.
    pub(crate) fn sweep(&self) {
        self.lock().retain(|session| {
            let age = if session.streams.load(Relaxed) == 0 { session.age.load(Relaxed).saturating_add(1) } else { 0 };
            session.age.store(age, Relaxed);
            age < IDLE_SWEEPS && !matches!(session.room(), Room::Never)
        });
    }

    /// Greets the shard on a fresh connection; the session is among the others as soon as the shard has greeted back,
    /// within the endpoint's timeout. The connection's task ends with its last stream after the session is forgotten.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn open(&self, stream: Stream, slot: Slot, endpoint: &Endpoint) -> Result<Place, BoxError> {
        let out = Deferred::new(stream);
        let greet = async {
            let (sender, mut connection) = Builder::new()
                .enable_push(false)
                .initial_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_frame_size(FRAME_MAX)
                .max_header_list_size(HEAD_MAX)
                .max_send_buffer_size(SEND_BUFFER)
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
            age: AtomicU8::new(0),
        });
        let place = Place::new(session.clone());
        let (watched, probes) = (Arc::downgrade(&session), endpoint.probes);
        self.lock().push(session);
        tokio::spawn(async move {
            let _slot = slot;
            let heard = move || watched.upgrade().is_some_and(|session| session.heard.swap(false, Relaxed));
            if let Err(error) = drive(connection, out, pings, probes, heard).await {
                tracing::debug!(%error, "connection to a shard ended");
            }
        });
        Ok(place)
    }
}

/// Reads and writes; then what was written leaves in as few pieces as possible.
fn poll_both(connection: &mut Connection<Out, Bytes>, out: &Out, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
    let done = Pin::new(connection).poll(cx);
    match out.push(cx) {
        Poll::Ready(Err(error)) if done.is_pending() => Poll::Ready(Err(error.into())),
        _ => done.map_err(BoxError::from),
    }
}

/// Drives a connection until it ends or gives no sign of life. `heard` says whether an answer has gone on since it was
/// asked last: a pong may be stuck behind one.
async fn drive(
    mut connection: Connection<Out, Bytes>,
    out: Out,
    mut pings: PingPong,
    probes: Probes,
    heard: impl Fn() -> bool,
) -> Result<(), BoxError> {
    let mut timer = pin!(sleep(probes.after));
    let mut is_pinged = false;
    poll_fn(|cx| {
        while timer.as_mut().poll(cx).is_ready() {
            let is_alive = is_pinged && (matches!(pings.poll_pong(cx), Poll::Ready(Ok(_))) || heard());
            let next = match (is_pinged, is_alive) {
                (true, false) => return Poll::Ready(Err("it does not answer to a ping".into())),
                (true, true) => probes.after,
                (false, _) => {
                    heard();
                    // Refused while an earlier pong is still out; that one will do.
                    let _ = pings.send_ping(Ping::opaque());
                    probes.patience
                }
            };
            is_pinged = !is_pinged;
            timer.as_mut().reset(Instant::now() + next);
        }
        poll_both(&mut connection, &out, cx)
    })
    .await
}

/// One connection.
pub(crate) struct Session {
    sender: SendRequest<Bytes>,
    streams: AtomicUsize,
    /// Whether a part of an answer has come since it was asked last.
    heard: AtomicBool,
    /// Sweeps since the last stream.
    age: AtomicU8,
}

enum Room {
    Some,
    NotNow,
    /// It is going away.
    Never,
}

impl Session {
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
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
    }
}
