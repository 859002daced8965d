//! What is read of an answer ahead of its client.
//!
//! An answer that the client does not take is read on, up to a limit per answer and per worker, by the task of the
//! client's connection (HTTP/1.1) or stream (HTTP/2), whenever hyper does not ask for it. Beyond the limit the shard is
//! held back, the seats are kept, and the stall limit ends it.
//!
//! Only answers that hold seats and do not come in one piece are shared in this way: for those one allocation. A watch
//! is read ahead until it is initialised; a slow watcher is the shard's to judge. What comes on a connection with the
//! answers of others (HTTP/2) is always taken off it, within the stream's window.
//!
//! What is taken off and not read counts for the worker too; beyond the same limit the answer is ended that would take
//! more: its client is not reading.
//!
//! # Invariants
//! * Who is held back by the worker's limit is woken when there is room again, one for each time that there is: it
//!   passes on what it leaves.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http_body::Frame;

use crate::{
    source::{Part, Source},
    trail::Outcome,
    worker::Worker,
};

/// What a part costs beside its bytes.
const PART_OVERHEAD: usize = 64;

/// The bytes that the answers of one worker may hold ahead of their clients, and who waits for its share.
#[derive(Default)]
pub(crate) struct Budget {
    /// A std mutex: short sections, never held over an await, and in practice taken by one thread only.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    /// Who waits, in the order of coming. As many as there are answers.
    waiting: BTreeMap<u64, Waker>,
    tickets: u64,
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, max: usize) -> bool {
        self.lock().used < max
    }

    fn take(&self, bytes: usize) {
        self.lock().used += bytes;
    }

    /// Gives bytes back, and the room to who waits for it.
    fn give_back(&self, bytes: usize, max: usize) {
        self.lock().used -= bytes;
        self.pass_on(max);
    }

    /// Wakes who waits the longest, if there is room.
    fn pass_on(&self, max: usize) {
        let mut state = self.lock();
        let next = if state.used < max { state.waiting.pop_first() } else { None };
        drop(state);
        // Outside the lock: a waker may run arbitrary code.
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }

    /// Waits for room. The ticket stands for the place among those who wait.
    fn wait(&self, ticket: &mut Option<u64>, waker: &Waker) {
        let mut state = self.lock();
        if let Some(old) = ticket.and_then(|ticket| state.waiting.get_mut(&ticket)) {
            return old.clone_from(waker);
        }
        state.tickets += 1;
        let new = state.tickets;
        state.waiting.insert(new, waker.clone());
        *ticket = Some(new);
    }

    /// Waits no more.
    fn leave(&self, ticket: &mut Option<u64>) {
        if let Some(ticket) = ticket.take() {
            self.lock().waiting.remove(&ticket);
        }
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
    /// What the source holds that its client has not taken, as far as it is counted.
    held: usize,
    /// What has been read and not passed on.
    parts: VecDeque<Part>,
    bytes: usize,
    /// Whether the last look found nothing at the source: it wakes the task.
    waits: bool,
    ended: bool,
    /// If it waits for the worker's budget.
    ticket: Option<u64>,
}

impl Ahead {
    pub(crate) fn new(worker: Arc<Worker>, source: Source) -> Arc<Self> {
        let inner =
            Inner { source, held: 0, parts: VecDeque::new(), bytes: 0, waits: false, ended: false, ticket: None };
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
            self.worker.ahead.give_back(weight, self.worker.core.limits.ahead_bytes_per_worker);
            return Poll::Ready(Some(part));
        }
        if inner.ended {
            return Poll::Ready(None);
        }
        let polled = inner.source.poll_part(Some(&self.worker), cx);
        self.count(inner);
        inner.waits = polled.is_pending();
        inner.ended = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    /// Reads on while there are seats to give back and room for what comes.
    fn fill(&self, cx: &mut Context<'_>) {
        let inner = &mut *self.lock();
        let (budget, max) = (&self.worker.ahead, self.worker.core.limits.ahead_bytes_per_worker);
        // If it waits, it has been looked at in this very turn.
        if !std::mem::take(&mut inner.waits) && self.read(inner, cx).is_pending() {
            budget.wait(&mut inner.ticket, cx.waker());
            return;
        }
        budget.leave(&mut inner.ticket);
        budget.pass_on(max);
    }

    /// Pending when it could read on but for the worker's budget.
    fn read(&self, inner: &mut Inner, cx: &mut Context<'_>) -> Poll<()> {
        let limits = &self.worker.core.limits;
        while !inner.ended && inner.source.holds_seats() {
            let has_room = self.worker.ahead.has_room(limits.ahead_bytes_per_worker);
            if !has_room || inner.bytes >= limits.ahead_bytes {
                break;
            }
            match inner.source.poll_part(Some(&self.worker), cx) {
                Poll::Pending => return Poll::Ready(()),
                Poll::Ready(None) => inner.ended = true,
                Poll::Ready(Some(part)) => {
                    inner.ended = part.is_err();
                    self.put(inner, part);
                }
            }
        }
        // The shard is held back: what time does to the answer does not wait for that.
        inner.ended = inner.ended || inner.source.is_cut_short(&self.worker, cx);
        if !inner.ended {
            inner.source.gather(cx);
            if self.count(inner) > limits.ahead_bytes_per_worker {
                inner.source.give_up();
                self.count(inner);
                self.put(inner, Err("the client does not read its answer".into()));
                inner.ended = true;
            }
        }
        let wants_more = !inner.ended && inner.source.holds_seats() && inner.bytes < limits.ahead_bytes;
        if wants_more { Poll::Pending } else { Poll::Ready(()) }
    }

    fn put(&self, inner: &mut Inner, part: Part) {
        let weight = weight(&part);
        inner.bytes += weight;
        self.worker.ahead.take(weight);
        inner.parts.push_back(part);
    }

    /// Counts what the source holds; what all of the worker's do.
    fn count(&self, inner: &mut Inner) -> usize {
        let (before, now) = (std::mem::replace(&mut inner.held, inner.source.held()), inner.held);
        let all = &self.worker.unread;
        if now >= before {
            all.fetch_add(now - before, Relaxed) + (now - before)
        } else {
            all.fetch_sub(before - now, Relaxed) - (before - now)
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
        let inner = &mut *self.lock();
        self.worker.unread.fetch_sub(inner.held, Relaxed);
        self.worker.ahead.leave(&mut inner.ticket);
        self.worker.ahead.give_back(inner.bytes, self.worker.core.limits.ahead_bytes_per_worker);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use std::{convert::Infallible, sync::atomic::Ordering::Relaxed, time::Duration};

    use futures_util::task::ArcWake;

    use super::*;
    use crate::{Body, source::Silence, worker::tests::core};

    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicUsize);

    impl ArcWake for Woken {
        fn wake_by_ref(this: &Arc<Self>) {
            this.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn room_goes_to_one_that_waits_and_is_passed_on() {
        let budget = Budget::default();
        let tasks: [Arc<Woken>; 3] = Default::default();
        let wakers = tasks.each_ref().map(|task| futures_util::task::waker(task.clone()));
        let woken = || tasks.each_ref().map(|task| task.0.load(Relaxed));
        let mut tickets = [None; 3];
        budget.take(10);
        for (ticket, waker) in tickets.iter_mut().zip(&wakers) {
            budget.wait(ticket, waker);
            budget.wait(ticket, waker);
        }
        budget.give_back(1, 9);
        assert_eq!(woken(), [0, 0, 0], "there is no room yet");
        budget.give_back(1, 9);
        assert_eq!(woken(), [1, 0, 0]);
        budget.leave(&mut tickets[1]);
        budget.pass_on(9);
        assert_eq!(woken(), [1, 0, 1], "who has left is not told");
        budget.give_back(8, 9);
        assert_eq!(woken(), [1, 0, 1]);
    }

    /// What drops with a body, and whether it has been dropped.
    fn endless() -> (Body, Weak<()>) {
        let alive = Arc::new(());
        let seen = Arc::downgrade(&alive);
        let part = move || {
            let _alive = &alive;
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"event")))
        };
        let parts = futures_util::stream::iter(std::iter::repeat_with(part));
        (Body::new(http_body_util::StreamBody::new(parts)), seen)
    }

    #[test]
    fn a_watch_that_never_pauses_ends_with_a_drain_read_or_not() {
        let grace = Duration::from_secs(1);
        for is_read in [false, true] {
            let worker = Arc::new(Worker::new(0, core()));
            let (body, alive) = endless();
            let source = Source::new(body, None, Silence::Watch { _guard: None, workspace: 1 }, None);
            let ahead = Ahead::new(worker.clone(), source);
            let cx = &mut Context::from_waker(Waker::noop());
            if is_read {
                assert!(matches!(ahead.poll_part(cx), Poll::Ready(Some(Ok(_)))));
            } else {
                ahead.fill(cx);
            }
            worker.core.draining.store(true, Relaxed);
            worker.drain(grace, false);
            worker.pace(grace);
            if is_read {
                assert!(matches!(ahead.poll_part(cx), Poll::Ready(None)));
            } else {
                ahead.fill(cx);
            }
            assert!(alive.upgrade().is_none(), "the shard is told, read: {is_read}");
            assert_eq!(ahead.cut(), Some(Outcome::Cut("drain")));
            assert!(matches!(ahead.poll_part(cx), Poll::Ready(None)));
        }
    }
}
