//! The body of an answer on its way to a client, and everything that ends with it.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
};

use apiserver_api::ClusterName;
use bytes::Bytes;
use fairness::{Clock, WatchGuard};
use http_body::{Frame, SizeHint};

use crate::{
    Body, BoxError,
    connection::Peer,
    h2,
    inflight::Held,
    trail::{Outcome, Trail},
    worker::{Timer, Worker},
};

/// An answer's body with the seats of its request.
pub(crate) struct Reply {
    body: Body,
    /// Given back when the last byte has been read from the shard, however slow the client is.
    permit: Option<Held>,
    /// Runs on HTTP/1.1 while a part of the answer waits for the client to take it; on HTTP/2 the stream has it.
    stall: Option<Timer>,
    silence: Silence,
    /// Runs while the shard says nothing.
    end: Option<Timer>,
    flight: Option<Flight>,
}

/// What becomes of an answer when the shard does not go on with it.
enum Silence {
    /// It may be silent for ever: a log, a terminal.
    Allowed,
    /// It is cut off after the limit of a request: its seats are not the shard's to keep. With the shard's number.
    Limited(usize),
    /// A watch: it ends, as if the shard had ended it, when the gateway drains.
    Watch { _guard: Option<WatchGuard>, workspace: u64 },
}

impl Reply {
    fn silent(body: Body, permit: Option<Held>, silence: Silence) -> Self {
        let permit = permit.filter(|_| !http_body::Body::is_end_stream(&body));
        Self { body, permit, stall: None, silence, end: None, flight: None }
    }

    /// An answer that the shard of this number has to go on with.
    pub(crate) fn new(body: Body, permit: Option<Held>, shard: usize) -> Self {
        Self::silent(body, permit, Silence::Limited(shard))
    }

    /// An answer that holds no seats.
    pub(crate) fn plain(body: Body) -> Self {
        Self::silent(body, None, Silence::Allowed)
    }

    /// A watch's answer: without seats, and counted as a watch until it ends.
    pub(crate) fn watch(body: Body, guard: Option<WatchGuard>, workspace: Option<&ClusterName>) -> Self {
        let workspace = BuildHasherDefault::<DefaultHasher>::default().hash_one(workspace);
        Self::silent(body, None, Silence::Watch { _guard: guard, workspace })
    }

    /// The shard says nothing: the answer may have to end now.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(Flight { worker, .. }) = &self.flight else { return Poll::Pending };
        let waker = || cx.waker().clone();
        let end = match self.silence {
            Silence::Allowed => return Poll::Pending,
            Silence::Limited(_) => {
                self.end.get_or_insert_with(|| worker.wake_after(worker.core.limits.request_timeout, waker()))
            }
            Silence::Watch { workspace, .. } => self.end.get_or_insert_with(|| worker.wake_to_end(waker(), workspace)),
        };
        if !end.is_over(cx.waker()) {
            return Poll::Pending;
        }
        let failed = match self.silence {
            Silence::Limited(shard) => worker.core.shards.get(shard),
            _ => None,
        };
        if let Some(entry) = failed {
            worker.core.metrics.shard_failed(&entry.shard.name, "silent");
        }
        (self.body, self.permit) = (Body::empty(), None);
        if !matches!(self.silence, Silence::Limited(_)) {
            self.end_with(Outcome::Cut("drain"));
            return Poll::Ready(None);
        }
        self.end_with(Outcome::TimedOut("silent"));
        Poll::Ready(Some(Err("the shard does not go on with its answer".into())))
    }

    /// Ties the request's flight to the body.
    ///
    /// The stall limit begins now: a client that opens no window for the first byte would never have the body polled.
    pub(crate) fn fly(&mut self, flight: Flight) {
        let is_done = http_body::Body::is_end_stream(&self.body);
        if !is_done {
            self.stall = flight.stall_timer();
        }
        self.flight = Some(flight);
        if is_done {
            self.end_with(Outcome::Served);
        }
    }

    /// Notes how the answer ended, unless that has been said.
    fn end_with(&mut self, outcome: Outcome) {
        if let Some(flight) = &mut self.flight
            && flight.trail.outcome == Outcome::Cancelled
        {
            flight.trail.outcome = outcome;
        }
    }
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.stall = None;
        h2::set_stall(None);
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else { return this.poll_end(cx) };
        if matches!(this.silence, Silence::Limited(_)) {
            this.end = None;
        }
        if let (Some(Ok(frame)), Some(flight)) = (&frame, &mut this.flight) {
            flight.trail.bytes_out += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        if !matches!(frame, Some(Ok(_))) || http_body::Body::is_end_stream(&this.body) {
            this.permit = None;
            let is_broken = matches!(frame, Some(Err(_)));
            this.end_with(if is_broken { Outcome::UpstreamError("broken-off") } else { Outcome::Served });
        }
        // On HTTP/2 the last part may wait for the client's window too; on HTTP/1.1 it is in the socket's hands.
        let is_over = !matches!(frame, Some(Ok(_))) || http_body::Body::is_end_stream(&this.body);
        if let Some(flight) = this.flight.as_ref().filter(|flight| !is_over || flight.peer.is_h2) {
            this.stall = flight.stall_timer();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight").finish_non_exhaustive()
    }
}

/// A request between its arrival and the end of its answer, or of its tunnel. What goes up here comes down in `drop`, nowhere else.
pub(crate) struct Flight {
    worker: Arc<Worker>,
    peer: Arc<Peer>,
    pub(crate) trail: Trail,
}

impl Flight {
    pub(crate) fn new(worker: Arc<Worker>, peer: Arc<Peer>, arrived_ns: u64) -> Self {
        worker.in_flight.fetch_add(1, Relaxed);
        peer.link.requests.fetch_add(1, Relaxed);
        peer.link.head_since.store(0, Relaxed);
        Self { worker, peer, trail: Trail::new(arrived_ns) }
    }

    /// Begins the time that the client may leave a part of the answer waiting.
    fn stall_timer(&self) -> Option<Timer> {
        let after = self.worker.core.limits.stall_timeout;
        if self.peer.is_h2 {
            h2::set_stall(Some(self.worker.wake_after(after, Waker::noop().clone())));
            return None;
        }
        Some(self.worker.kill_after(after, self.peer.link.clone()))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.worker.in_flight.fetch_sub(1, Relaxed);
        self.peer.link.requests.fetch_sub(1, Relaxed);
        self.peer.link.seen.store(self.worker.tick(), Relaxed);
        if self.trail.outcome == Outcome::Cancelled {
            self.trail.outcome = match () {
                () if self.worker.is_stopped.load(Relaxed) => Outcome::Cut("stop"),
                () if self.peer.link.is_killed() || h2::is_stalled() => Outcome::Cut("time-limit"),
                () => Outcome::Cancelled,
            };
        }
        self.trail.ended_ns = self.worker.core.clock.now_ns();
        self.worker.phases.ended(&self.trail);
        if let Some(draft) = self.trail.draft.take() {
            draft.end(&self.worker, std::mem::replace(&mut self.trail, Trail::new(0)));
        }
    }
}
