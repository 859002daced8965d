//! An answer as it comes from the shard, with the seats that end with it.
//!
//! Seats are given back when the *shard* has done its work, not when a slow client has read it: see `ahead`.
//!
//! # Invariants
//! * A watch gives its seats back when it is initialised, or when the time for that is over, whatever its shard sends
//!   and its client reads.
//! * The end that a drain has planned for a watch does not wait until its shard has nothing to say.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use fairness::WatchGuard;
use http_body::{Body as _, Frame, SizeHint};

use crate::{
    Body, BoxError,
    inflight::Held,
    initial::Start,
    places::Place,
    trail::Outcome,
    worker::{Timer, Worker},
};

/// A piece of an answer.
pub(crate) type Part = Result<Frame<Bytes>, BoxError>;

/// What becomes of an answer when the shard does not go on with it.
pub(crate) enum Silence {
    /// It may be silent for ever: a log, a terminal. With its place among what lasts, if it has one.
    Allowed { _place: Option<Place> },
    /// It is cut off after the limit of a request: its seats are not the shard's to keep. With the shard's number.
    Limited(usize),
    /// A watch: it ends, as if the shard had ended it, when the gateway drains; those of one workspace, which is
    /// given as a hash, not all at once.
    Watch { _guard: Option<WatchGuard>, workspace: u64 },
}

/// The shard's side of an answer.
pub(crate) struct Source {
    body: Body,
    /// Given back when the last byte has been read from the shard, or when a watch has been initialised.
    permit: Option<Held>,
    silence: Silence,
    /// Runs while the shard says nothing; that of a watch, always.
    end: Option<Timer>,
    /// How the answer ended, if the gateway ended it.
    cut: Option<Outcome>,
    /// What has yet to come before a watch has been initialised. Boxed: answers are moved by value, and few are this.
    start: Option<Box<Start>>,
}

impl Source {
    pub(crate) fn new(body: Body, permit: Option<Held>, silence: Silence, start: Option<Start>) -> Self {
        let permit = permit.filter(|_| !body.is_at_hand());
        Self { body, permit, silence, end: None, cut: None, start: start.map(Box::new) }
    }

    /// Whether there are seats that the end of the answer gives back.
    pub(crate) fn holds_seats(&self) -> bool {
        self.permit.is_some()
    }

    /// Whether it is for the good of others to read on while the client does not: there are seats to give back, or
    /// the connection to the shard is that of others too.
    pub(crate) fn concerns_others(&self) -> bool {
        self.holds_seats() || self.body.is_shared()
    }

    /// See [`Body::held`].
    pub(crate) fn held(&self) -> usize {
        self.body.held()
    }

    /// Gives the answer up: its client does not take it, and what all such answers hold is too much.
    pub(crate) fn give_up(&mut self) {
        self.body = Body::empty();
        self.give_back();
        self.cut = Some(Outcome::Cut("unread"));
    }

    /// See [`Body::gather`].
    pub(crate) fn gather(&mut self, cx: &mut Context<'_>) {
        self.body.gather(cx);
    }

    /// How the answer ended, if the gateway ended it.
    pub(crate) fn cut(&self) -> Option<Outcome> {
        self.cut
    }

    fn give_back(&mut self) {
        (self.permit, self.start) = (None, None);
    }

    /// The next part. Without a worker there is no limit to the shard's silence.
    pub(crate) fn poll_part(&mut self, worker: Option<&Arc<Worker>>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        if self.is_drained(worker, cx) {
            return Poll::Ready(None);
        }
        let Poll::Ready(part) = Pin::new(&mut self.body).poll_frame(cx) else {
            if self.start.as_mut().is_some_and(|start| start.is_over(cx)) {
                self.give_back();
            }
            return self.poll_silence(worker, cx);
        };
        if matches!(self.silence, Silence::Limited(_)) {
            self.end = None;
        }
        let ended = match &part {
            Some(Ok(frame)) => {
                let data = frame.data_ref();
                self.body.is_end_stream()
                    || self.start.as_mut().is_some_and(|start| data.is_some_and(|data| start.saw(data)))
            }
            Some(Err(_)) | None => true,
        };
        if ended {
            self.give_back();
        }
        Poll::Ready(part)
    }

    /// What time does to an answer that nobody reads on with; whether it is over. The task is woken when that changes.
    pub(crate) fn is_cut_short(&mut self, worker: &Arc<Worker>, cx: &mut Context<'_>) -> bool {
        if self.start.as_mut().is_some_and(|start| start.is_overdue(cx)) {
            self.give_back();
        }
        self.is_drained(Some(worker), cx)
    }

    /// Whether this is a watch that ends with a drain.
    fn is_drained(&mut self, worker: Option<&Arc<Worker>>, cx: &mut Context<'_>) -> bool {
        let (Silence::Watch { workspace, .. }, Some(worker)) = (&self.silence, worker) else { return false };
        let end = self.end.get_or_insert_with(|| worker.wake_to_end(cx.waker().clone(), *workspace));
        if !end.is_over(cx.waker()) {
            return false;
        }
        self.body = Body::empty();
        self.give_back();
        self.cut = Some(Outcome::Cut("drain"));
        true
    }

    /// The shard says nothing: the answer may have to end now.
    fn poll_silence(&mut self, worker: Option<&Arc<Worker>>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        let (Silence::Limited(shard), Some(worker)) = (&self.silence, worker) else { return Poll::Pending };
        let begin = || worker.wake_after(worker.core.limits.request_timeout, cx.waker().clone());
        if !self.end.get_or_insert_with(begin).is_over(cx.waker()) {
            return Poll::Pending;
        }
        if let Some(entry) = worker.core.shards.get(*shard) {
            worker.core.metrics.shard_failed(&entry.shard.name, "silent");
        }
        self.body = Body::empty();
        self.give_back();
        self.cut = Some(Outcome::TimedOut("silent"));
        Poll::Ready(Some(Err("the shard does not go on with its answer".into())))
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
