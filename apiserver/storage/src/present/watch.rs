//! One watcher: first history, then live, each change once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use futures_util::stream;

use super::{Present, hub::CatchUp, lock};
use crate::{Event, StoreError, WatchStream, labels::Wanted};

/// Most changes, and most bytes of their values, that wait for one live watcher.
pub(crate) const BUFFER_EVENTS_MAX: usize = 8192;
const BUFFER_BYTES_MAX: usize = 64 << 20;

/// Opens a watch, or says at once why it cannot be.
pub(super) fn open(
    present: &Arc<Present>,
    prefix: &str,
    after: u64,
    wanted: Wanted,
) -> Result<WatchStream, StoreError> {
    let (oldest, current, epoch) = {
        let hub = lock(&present.hub);
        (present.oldest_of(&hub), present.revision(), hub.epoch())
    };
    if after < oldest {
        return Err(StoreError::Compacted { requested: after, oldest });
    }
    if after > current {
        return Err(StoreError::Future { requested: after, current });
    }
    let watch = Watch {
        present: present.clone(),
        prefix: prefix.into(),
        wanted: wanted.into(),
        epoch,
        cursor: after,
        caught: VecDeque::new(),
        buffer: Arc::default(),
        live: None,
        told: 0,
        over: false,
    };
    Ok(Box::pin(stream::unfold(watch, |mut watch| async move {
        let item = watch.next().await?;
        watch.over = item.is_err();
        Some((item, watch))
    })))
}

struct Watch {
    present: Arc<Present>,
    prefix: Arc<str>,
    wanted: Arc<Wanted>,
    /// The history that it began in.
    epoch: u64,
    /// Everything up to here was delivered or is in `caught`.
    cursor: u64,
    caught: VecDeque<Event>,
    buffer: Arc<Buffer>,
    live: Option<u64>,
    /// The last progress that was told.
    told: u64,
    over: bool,
}

impl Watch {
    async fn next(&mut self) -> Option<Result<Event, StoreError>> {
        loop {
            if self.over {
                return None;
            }
            if let Some(event) = self.caught.pop_front() {
                return Some(Ok(event));
            }
            if self.live.is_some() {
                return Some(std::future::poll_fn(|cx| self.poll_live(cx)).await);
            }
            if let Err(error) = self.catch_up().await {
                return Some(Err(error));
            }
        }
    }

    /// A change, or how far this watch is if that is further than was said before: nobody is woken to say so.
    fn poll_live(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, StoreError>> {
        // Before the look into the buffer: what it does not hold then is not for this watch.
        let delivered = self.present.delivered.load(Ordering::Acquire);
        let item = self.buffer.poll(cx, delivered, delivered > self.told);
        if let Poll::Ready(Ok(Event::Progress(revision))) = item {
            self.told = revision;
        }
        item
    }

    async fn catch_up(&mut self) -> Result<(), StoreError> {
        // Bound to a name: the guard must not live across the await below.
        let (what, from) = ((&self.prefix, &self.wanted), (self.epoch, self.cursor));
        let step = lock(&self.present.hub).catch_up(what, from, &self.buffer)?;
        match (step, &self.present.past) {
            (CatchUp::Live(id), _) => self.live = Some(id),
            (CatchUp::Events(events, upto), _) => (self.caught, self.cursor) = (events, upto),
            (CatchUp::Behind(upto), Some(past)) => {
                (self.caught, self.cursor) = past(self.prefix.clone(), self.cursor, upto).await?;
            }
            (CatchUp::Behind(_), None) => {
                return Err(StoreError::Compacted { requested: self.cursor, oldest: self.present.oldest() });
            }
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(id) = self.live {
            lock(&self.present.hub).unregister(&self.prefix, id);
        }
    }
}

/// What waits for a live watcher. The mutex is held for a push or a pop, never while anything runs.
#[derive(Default)]
pub(super) struct Buffer(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    events: VecDeque<Event>,
    bytes: usize,
    /// A sign of life is due.
    sign: bool,
    /// Progress was the last thing told: more of it only after something else, so that who asks in a loop comes to rest.
    rested: bool,
    end: Option<StoreError>,
    waker: Option<Waker>,
}

impl Buffer {
    /// Takes a change; false once the watcher has ended, also by this very call because it is too slow.
    pub(super) fn push(&self, event: &Event) -> bool {
        let mut waiting = lock(&self.0);
        if waiting.end.is_some() {
            return false;
        }
        if waiting.events.len() >= BUFFER_EVENTS_MAX || waiting.bytes > BUFFER_BYTES_MAX {
            // What waits is of no use after a gap: free it now, the consumer may never come.
            *waiting =
                Waiting { end: Some(StoreError::SlowConsumer), waker: waiting.waker.take(), ..Waiting::default() };
            waiting.wake();
            return false;
        }
        waiting.bytes += event.bytes();
        waiting.events.push_back(event.clone());
        waiting.wake();
        true
    }

    /// Lets the watcher say how far it is, whether that is news or not.
    pub(super) fn sign(&self) {
        let mut waiting = lock(&self.0);
        waiting.sign = true;
        waiting.wake();
    }

    /// Ends the watch after what already waits.
    pub(super) fn end(&self, error: StoreError) {
        let mut waiting = lock(&self.0);
        waiting.end.get_or_insert(error);
        waiting.wake();
    }

    /// The next item. All changes up to `delivered` are in the buffer; `news` tells whether that was not said yet.
    pub(super) fn poll(&self, cx: &mut Context<'_>, delivered: u64, news: bool) -> Poll<Result<Event, StoreError>> {
        let mut waiting = lock(&self.0);
        if let Some(event) = waiting.events.pop_front() {
            waiting.bytes -= event.bytes();
            waiting.rested = false;
            return Poll::Ready(Ok(event));
        }
        if waiting.events.capacity() > 64 {
            waiting.events = VecDeque::new(); // a burst must not cost memory forever
        }
        if let Some(error) = waiting.end.clone() {
            return Poll::Ready(Err(error));
        }
        let sign = std::mem::take(&mut waiting.sign);
        if sign || (news && !waiting.rested) {
            waiting.rested = true;
            return Poll::Ready(Ok(Event::Progress(delivered)));
        }
        waiting.rested = false;
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Waiting {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
