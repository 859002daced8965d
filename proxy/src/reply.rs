//! The body of an answer on its way to a client, and everything that ends with it.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker, ready},
};

use apiserver_api::ClusterName;
use bytes::Bytes;
use fairness::{Clock, WatchGuard};
use http_body::{Frame, SizeHint};

use crate::{
    Body, BoxError,
    ahead::{Ahead, Reader},
    connection::Peer,
    h2,
    inflight::Held,
    initial::Start,
    places::Place,
    source::{Silence, Source},
    trail::{Outcome, Trail},
    worker::{Timer, Worker},
};

/// An answer's body with the seats of its request.
pub(crate) struct Reply {
    from: From,
    /// Runs on HTTP/1.1 while a part of the answer waits for the client to take it; on HTTP/2 the stream has it.
    stall: Option<Timer>,
    flight: Option<Flight>,
}

#[allow(clippy::large_enum_variant, reason = "the large one is the common one")]
enum From {
    Source(Source),
    /// What is read ahead of the client.
    Ahead(Arc<Ahead>),
}

impl Reply {
    fn silent(body: Body, permit: Option<Held>, silence: Silence, start: Option<Start>) -> Self {
        Self { from: From::Source(Source::new(body, permit, silence, start)), stall: None, flight: None }
    }

    /// An answer that the shard of this number has to go on with.
    pub(crate) fn new(body: Body, permit: Option<Held>, shard: usize) -> Self {
        Self::silent(body, permit, Silence::Limited(shard), None)
    }

    /// An answer that holds no seats.
    pub(crate) fn plain(body: Body) -> Self {
        Self::lasting(body, None)
    }

    /// The same of one that lasts.
    pub(crate) fn lasting(body: Body, place: Option<Place>) -> Self {
        Self::silent(body, None, Silence::Allowed { _place: place }, None)
    }

    /// A watch's answer: counted as a watch until it ends, and with seats until it has started.
    pub(crate) fn watch(
        body: Body,
        guard: Option<WatchGuard>,
        workspace: Option<&ClusterName>,
        permit: Option<Held>,
        start: Option<Start>,
    ) -> Self {
        let workspace = BuildHasherDefault::<DefaultHasher>::default().hash_one(workspace);
        let silence = Silence::Watch { _guard: guard, workspace };
        Self::silent(body, permit.filter(|_| start.is_some()), silence, start)
    }

    /// Lets what comes be read ahead of the client, if that is of use to others.
    fn share(&mut self) {
        let (From::Source(source), Some(flight)) = (&mut self.from, &self.flight) else { return };
        if !source.concerns_others() {
            return;
        }
        let source =
            std::mem::replace(source, Source::new(Body::empty(), None, Silence::Allowed { _place: None }, None));
        let ahead = Ahead::new(flight.worker.clone(), source);
        let reader = Reader::new(&ahead);
        if flight.peer.is_h2 {
            h2::set_reader(reader)
        } else {
            flight.peer.read_ahead(reader)
        }
        self.from = From::Ahead(ahead);
    }

    /// Ties the request's flight to the body.
    ///
    /// The stall limit begins now: a client that opens no window for the first byte would never have the body polled.
    pub(crate) fn fly(&mut self, flight: Flight) {
        let (is_done, is_h2) = (http_body::Body::is_end_stream(self), flight.peer.is_h2);
        if !is_done {
            self.stall = flight.stall_timer();
        }
        self.flight = Some(flight);
        if is_done {
            self.end_with(Outcome::Served);
        } else if is_h2 {
            // hyper may never ask for the body of a client that opens no window.
            self.share();
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
        let part = ready!(match &mut this.from {
            From::Source(source) => source.poll_part(this.flight.as_ref().map(|flight| &flight.worker), cx),
            From::Ahead(ahead) => ahead.poll_part(cx),
        });
        if let (Some(Ok(frame)), Some(flight)) = (&part, &mut this.flight) {
            flight.trail.bytes_out += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        let is_broken = matches!(part, Some(Err(_)));
        let is_over = is_broken || part.is_none() || http_body::Body::is_end_stream(this);
        if is_over {
            let cut = match &this.from {
                From::Source(source) => source.cut(),
                From::Ahead(ahead) => ahead.cut(),
            };
            let ended = if is_broken { Outcome::UpstreamError("broken-off") } else { Outcome::Served };
            this.end_with(cut.unwrap_or(ended));
        } else {
            this.share();
        }
        // On HTTP/2 the last part may wait for the client's window too; on HTTP/1.1 it is in the socket's hands.
        if let Some(flight) = this.flight.as_ref().filter(|flight| !is_over || flight.peer.is_h2) {
            this.stall = flight.stall_timer();
        }
        Poll::Ready(part)
    }

    fn is_end_stream(&self) -> bool {
        match &self.from {
            From::Source(source) => source.is_end_stream(),
            From::Ahead(ahead) => ahead.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.from {
            From::Source(source) => source.size_hint(),
            // Only shared once hyper has asked, or where it does not.
            From::Ahead(_) => SizeHint::default(),
        }
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
