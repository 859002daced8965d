//! An answer as it comes from the shard, with the seats that end with it, and what is read of it ahead of the client.
//!
//! Seats are given back when the *shard* has done its work, not when a slow client has read it. So an answer that the
//! client does not take is read on, up to a limit per answer and per worker, by the task of the client's connection
//! (HTTP/1.1) or stream (HTTP/2), whenever hyper does not ask for it. Beyond the limit the shard is held back, the
//! seats are kept, and the stall limit ends it.
//!
//! Only answers that hold seats and do not come in one piece are shared in this way: for those one allocation. A watch
//! is read ahead until it is initialised; a slow watcher is the shard's to judge.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use bytes::Bytes;
use fairness::WatchGuard;
use http_body::{Body as _, Frame, SizeHint};

use crate::{
    Body, BoxError,
    inflight::Held,
    initial::Start,
    trail::Outcome,
    worker::{Timer, Worker},
};

/// What a part costs beside its bytes.
const PART_OVERHEAD: usize = 64;

type Part = Result<Frame<Bytes>, BoxError>;

/// What becomes of an answer when the shard does not go on with it.
pub(crate) enum Silence {
    /// It may be silent for ever: a log, a terminal.
    Allowed,
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
    /// Runs while the shard says nothing.
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

    /// How the answer ended, if the gateway ended it.
    pub(crate) fn cut(&self) -> Option<Outcome> {
        self.cut
    }

    fn give_back(&mut self) {
        (self.permit, self.start) = (None, None);
    }

    /// The next part. Without a worker there is no limit to the shard's silence.
    pub(crate) fn poll_part(&mut self, worker: Option<&Arc<Worker>>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        let Poll::Ready(part) = Pin::new(&mut self.body).poll_frame(cx) else {
            if self.start.as_mut().is_some_and(|start| start.is_over(cx)) {
                self.give_back();
            }
            return self.poll_end(worker, cx);
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

    /// The shard says nothing: the answer may have to end now.
    fn poll_end(&mut self, worker: Option<&Arc<Worker>>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        let Some(worker) = worker else { return Poll::Pending };
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
        self.body = Body::empty();
        self.give_back();
        let Silence::Limited(shard) = self.silence else {
            self.cut = Some(Outcome::Cut("drain"));
            return Poll::Ready(None);
        };
        self.cut = Some(Outcome::TimedOut("silent"));
        if let Some(entry) = worker.core.shards.get(shard) {
            worker.core.metrics.shard_failed(&entry.shard.name, "silent");
        }
        Poll::Ready(Some(Err("the shard does not go on with its answer".into())))
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A source that two may read: who passes the answer on, and who reads ahead. Both are polled by the same task, so it
/// does not matter whose waker the source has.
pub(crate) struct Ahead {
    worker: Arc<Worker>,
    /// A std mutex: short sections, taken by one task only.
    inner: Mutex<Inner>,
}

struct Inner {
    source: Source,
    /// What has been read and not passed on.
    parts: VecDeque<Part>,
    bytes: usize,
    /// Whether the last look found nothing at the source: it wakes the task.
    waits: bool,
    ended: bool,
}

impl Ahead {
    pub(crate) fn new(worker: Arc<Worker>, source: Source) -> Arc<Self> {
        let inner = Inner { source, parts: VecDeque::new(), bytes: 0, waits: false, ended: false };
        Arc::new(Self { worker, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next part, for the client.
    pub(crate) fn poll_part(&self, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        let inner = &mut *self.lock();
        if let Some(part) = inner.parts.pop_front() {
            let weight = weight(&part);
            inner.bytes -= weight;
            self.worker.ahead.fetch_sub(weight, Relaxed);
            return Poll::Ready(Some(part));
        }
        if inner.ended {
            return Poll::Ready(None);
        }
        let polled = inner.source.poll_part(Some(&self.worker), cx);
        inner.waits = polled.is_pending();
        inner.ended = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    /// Reads on while there are seats to give back and room for what comes.
    fn fill(&self, cx: &mut Context<'_>) {
        let inner = &mut *self.lock();
        if std::mem::take(&mut inner.waits) {
            // It has been looked at in this very turn.
            return;
        }
        let limits = &self.worker.core.limits;
        while !inner.ended
            && inner.source.holds_seats()
            && inner.bytes < limits.ahead_bytes
            && self.worker.ahead.load(Relaxed) < limits.ahead_bytes_per_worker
        {
            match inner.source.poll_part(Some(&self.worker), cx) {
                Poll::Pending => return,
                Poll::Ready(None) => inner.ended = true,
                Poll::Ready(Some(part)) => {
                    inner.ended = part.is_err();
                    let weight = weight(&part);
                    inner.bytes += weight;
                    self.worker.ahead.fetch_add(weight, Relaxed);
                    inner.parts.push_back(part);
                }
            }
        }
    }

    /// See [`Source::cut`].
    pub(crate) fn cut(&self) -> Option<Outcome> {
        self.lock().source.cut()
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        let inner = self.lock();
        inner.parts.is_empty() && (inner.ended || inner.source.is_end_stream())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let bytes = self.lock().bytes;
        self.worker.ahead.fetch_sub(bytes, Relaxed);
    }
}

fn weight(part: &Part) -> usize {
    PART_OVERHEAD + part.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len)
}

/// Reads an answer ahead as long as there is one.
#[derive(Debug, Default)]
pub(crate) struct Reader(Weak<Ahead>);

impl Reader {
    pub(crate) fn new(of: &Arc<Ahead>) -> Self {
        Self(Arc::downgrade(of))
    }

    /// Reads what has come; to be called after the task has passed on what the client takes. Whether to call again.
    pub(crate) fn fill(&self, cx: &mut Context<'_>) -> bool {
        let Some(ahead) = self.0.upgrade() else { return false };
        ahead.fill(cx);
        true
    }
}
