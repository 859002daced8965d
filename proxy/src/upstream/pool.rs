//! The connections of one worker to one shard: idle ones of HTTP/1.1, last in first out, and sessions of HTTP/2.
//!
//! A [`Lease`] is the right to send one request on one connection. It comes back when the last byte of the answer has
//! been read; a connection that is not fit for another request then is closed.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, request::Parts};
use http_body::{Frame, SizeHint};
use tokio::{sync::Notify, time::timeout};

use super::{
    connect::Stream,
    h1::{Answer, Connection, Error, Sending},
    h2::Sessions,
};
use crate::{Body, BoxError, stamp::Stamp};

/// Idle connections to one shard that all workers together keep; more are closed when they come back.
const IDLE_MAX: usize = 1024;
/// Sweeps an idle connection survives. Below the idle timeouts in use on servers (nginx 75 s, Go programs 90 s).
const IDLE_SWEEPS: u8 = 55;

pub(crate) struct Pool {
    /// A std mutex: short sections, never held over an await, and in practice taken by one thread only.
    idle: Mutex<Vec<Idle>>,
    pub(crate) sessions: Sessions,
    open: AtomicUsize,
    open_max: usize,
    idle_max: usize,
    /// Told when one of the connections is free.
    freed: Freed,
}

struct Idle {
    /// Boxed, so that a connection does not move in memory from request to request.
    connection: Box<Connection<Stream>>,
    age: u8,
}

impl Pool {
    /// One of `pools` pools of connections to the same shard, with room for `open_max` of them.
    pub(crate) fn new(open_max: usize, pools: usize) -> Self {
        Self {
            idle: Mutex::default(),
            sessions: Sessions::default(),
            open: AtomicUsize::new(0),
            open_max,
            idle_max: (IDLE_MAX / pools.max(1)).max(1),
            freed: Freed::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// An idle connection, if there is one that the shard has not closed.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Lease> {
        loop {
            let Idle { mut connection, .. } = self.lock().pop()?;
            let is_quiet = connection.is_quiet();
            let lease = Slot(self.clone()).lease(connection);
            if is_quiet {
                return Some(lease);
            }
        }
    }

    /// Whether there is no connection that a request could have.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty() && self.sessions.is_empty()
    }

    /// A place for a new connection, or one that has become idle; waits for either, but no longer than `wait`.
    pub(crate) async fn reserve(self: &Arc<Self>, wait: Duration) -> Option<Reserved> {
        if let Some(slot) = self.slot() {
            return Some(Reserved::Slot(slot));
        }
        let free = || self.take().map(Reserved::Lease).or_else(|| self.slot().map(Reserved::Slot));
        timeout(wait, self.freed.wait(free)).await.ok()
    }

    fn slot(self: &Arc<Self>) -> Option<Slot> {
        let is_free = |open: usize| (open < self.open_max).then_some(open + 1);
        self.open.fetch_update(SeqCst, SeqCst, is_free).ok().map(|_| Slot(self.clone()))
    }

    /// Ages idle connections and closes the old and dead ones. Called once a second.
    pub(crate) fn sweep(&self) {
        let mut idle = self.lock();
        let before = idle.len();
        idle.retain_mut(|entry| {
            entry.age = entry.age.saturating_add(1);
            entry.age < IDLE_SWEEPS && entry.connection.is_quiet()
        });
        self.open.fetch_sub(before - idle.len(), SeqCst);
        drop(idle);
        self.freed.tell();
        self.sessions.sweep();
    }
}

/// See [`Pool::reserve`].
pub(crate) enum Reserved {
    Slot(Slot),
    Lease(Lease),
}

/// Those who wait for something that others use up: a connection, a place on one.
#[derive(Default)]
pub(crate) struct Freed {
    waiting: AtomicUsize,
    notify: Notify,
}

impl Freed {
    /// One of it is free: who waits the longest is told.
    pub(crate) fn tell(&self) {
        if self.waiting.load(SeqCst) > 0 {
            self.notify.notify_one();
        }
    }

    /// There may be enough for all that wait.
    pub(crate) fn tell_all(&self) {
        self.notify.notify_waiters();
    }

    /// Looks at once, and whenever it is told, until something is found.
    ///
    /// # Cancel safety
    /// Who has been told and goes before it has looked leaves the word to the next.
    pub(crate) async fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let _waiting = Waiting::new(&self.waiting);
        loop {
            let told = self.notify.notified();
            if let Some(found) = look() {
                return found;
            }
            told.await;
        }
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// One of the connections the pool may have; free again when dropped.
pub(crate) struct Slot(Arc<Pool>);

impl Slot {
    /// A fresh connection.
    pub(crate) fn open(self, stream: Stream) -> Lease {
        self.lease(Box::new(Connection::new(stream)))
    }

    fn lease(self, connection: Box<Connection<Stream>>) -> Lease {
        Lease { connection, slot: self }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
        self.0.freed.tell();
    }
}

/// The right to send one request on one connection. Dropping it closes the connection.
pub(crate) struct Lease {
    connection: Box<Connection<Stream>>,
    slot: Slot,
}

impl Lease {
    /// See [`Connection::begin`].
    pub(crate) fn begin(&mut self, parts: Parts, body: Body, host: &HeaderValue, stamp: &Stamp<'_>) -> HeaderMap {
        self.connection.begin(parts, body, host, stamp)
    }

    /// See [`Connection::begin_again`].
    pub(crate) fn begin_again(&mut self, sending: Sending) {
        self.connection.begin_again(sending);
    }

    /// Whether an earlier request was answered on this connection, so that the shard may have tired of it.
    pub(crate) fn has_served(&self) -> bool {
        self.connection.has_served()
    }

    /// See [`Connection::unanswered`].
    pub(crate) fn unanswered(mut self) -> Option<Sending> {
        self.connection.unanswered()
    }

    /// Sends the request and waits for the answer's head.
    pub(crate) async fn head(&mut self, headers: &mut HeaderMap) -> Result<Answer, Error> {
        poll_fn(|cx| self.connection.poll_head(headers, cx)).await
    }

    /// The next part of the answer's body.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.connection.poll_frame(cx)
    }

    /// See [`Connection::take_whole`].
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        self.connection.take_whole()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.connection.size_hint()
    }

    /// Whether the answer has been read to its end.
    pub(crate) fn is_done(&self) -> bool {
        self.connection.is_done()
    }

    /// Closes the connection; its place is free for another.
    pub(crate) fn close(self) -> Slot {
        self.slot
    }

    /// Gives the connection back if it may be used again, and closes it if not.
    pub(crate) fn give_back(self) {
        let Self { mut connection, slot } = self;
        let pool = &*slot.0;
        if !connection.is_reusable() {
            return;
        }
        let mut idle = pool.lock();
        if idle.len() < pool.idle_max {
            idle.push(Idle { connection, age: 0 });
            // It stays open, and the end of the slot tells who waits.
            pool.open.fetch_add(1, Relaxed);
        }
    }
}
