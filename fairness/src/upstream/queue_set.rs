//! The queues of one priority level and their dispatch, as in Kubernetes v1.34 `queueset.go` (apf.md 5).
//!
//! Each queue has a virtual start time on the progress meter R, which advances at the rate at which an equal
//! division of the seats would serve a queue. The waiting request with the smallest virtual finish is next;
//! if it does not fit, all wait for it.
//!
//! # Invariants
//! * A ticket leaves exactly once: its request ends, or is cancelled while it waits.
//! * Every call first advances R by the time since the last one; calls must be in order of time.
//!
//! Costs: a call is O(queues) for each request that it dispatches; a cancellation is O(queue length).

#![allow(clippy::indexing_slicing, reason = "slots and indices are given out here")]

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::{
    demand::{Integrator, Statistics},
    work::{SERVICE_ESTIMATE_NS, Work, seat_seconds},
};
use crate::{LevelKind, shuffle};

/// R is wound back by this much ...
const EPOCH: u64 = u64::MAX / 2;
/// ... when it gets here.
const EPOCH_END: u64 = EPOCH + EPOCH / 2;

/// How a queue set is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its queues, if it has any.
    pub kind: LevelKind,
    /// Seats that may be in use.
    pub limit: u32,
}

/// One accepted request; never equal to that of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Why a request was refused on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// All seats are taken and its queue is full.
    QueueFull,
    /// There are no queues and it does not fit.
    ConcurrencyLimit,
}

/// What became of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is in the queue of this index, or was dispatched from it at once.
    Queued(Ticket, usize),
    /// It runs, without a queue.
    Running(Ticket),
    /// It was refused.
    Refused(Reason),
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts to enqueue.
    pub enqueues: u64,
    /// Requests refused or cancelled.
    pub rejected: u64,
    /// Requests cancelled while they waited.
    pub cancelled: u64,
    /// Requests that were started.
    pub dispatched: u64,
}

/// What is in one queue, as upstream's debug endpoint shows it. Work is in units of 1e-8 seat-seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLoad {
    /// Requests that wait.
    pub waiting: u64,
    /// Requests that run; `None` if nobody counts them.
    pub executing: Option<u64>,
    /// Seats of those that run or linger.
    pub seats_in_use: u64,
    /// Where the next request would start on the progress meter.
    pub next_dispatch_r: u64,
    /// Initial seats of those that wait.
    pub initial_seats: u64,
    /// The larger of initial and final seats of those that wait.
    pub max_seats: u64,
    /// Cost of those that wait.
    pub total_work: u64,
}

/// What is in a queue set now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that wait.
    pub waiting: u64,
    /// Seats that they ask for.
    pub waiting_seats: u64,
    /// Requests that run, without those that linger.
    pub executing: u64,
    /// Seats of those that run or linger.
    pub seats_in_use: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: Ticket,
    work: Work,
    /// Its cost, fixed at arrival.
    total: u64,
    arrival_r: u64,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Sums over `waiting`.
    waiting_work: u64,
    waiting_seats: u64,
    executing: u32,
    /// Seats of executing and of lingering requests.
    seats_in_use: u64,
    next_dispatch_r: u64,
    /// Where the queue thinks that it is in the order: stale once it is removed (#140884).
    index: usize,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0
    }

    /// Anti-windup: no credit from before the oldest waiting request came.
    fn bound(&mut self) {
        if let Some(oldest) = self.waiting.front() {
            self.next_dispatch_r = self.next_dispatch_r.max(oldest.arrival_r);
        }
    }

    fn take(&mut self, at: usize) -> Option<Waiting> {
        let request = self.waiting.remove(at)?;
        self.waiting_work = self.waiting_work.wrapping_sub(request.total);
        self.waiting_seats -= u64::from(request.work.max_seats());
        Some(request)
    }
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Waiting { queue: usize },
    Running { queue: Option<usize>, work: Work, since: u64 },
    Lingering { queue: Option<usize>, seats: u32 },
}

/// The queue set of one level.
#[derive(Clone, Debug)]
pub struct QueueSet {
    settings: Settings,
    queues: Vec<Queue>,
    /// Slots of the present queues, in order.
    order: Vec<usize>,
    /// Slots of queues that were removed; used again once nothing refers to them.
    removed: Vec<usize>,
    requests: HashMap<Ticket, Request>,
    tickets: u64,
    now: u64,
    progress: u64,
    cursor: i64,
    waiting: u64,
    /// Drifts upward when a tail is cut at dispatch, as upstream's does.
    waiting_seats: u64,
    executing: u64,
    seats_in_use: u64,
    demand: Integrator,
    counts: Counts,
}

impl QueueSet {
    /// An empty queue set.
    pub fn new(now: u64, settings: Settings) -> Self {
        let mut set = Self {
            settings,
            queues: Vec::new(),
            order: Vec::new(),
            removed: Vec::new(),
            requests: HashMap::new(),
            tickets: 0,
            now,
            progress: 0,
            cursor: 0,
            waiting: 0,
            waiting_seats: 0,
            executing: 0,
            seats_in_use: 0,
            demand: Integrator::new(now),
            counts: Counts::default(),
        };
        set.add_queues();
        set
    }

    /// A request comes. Whatever is dispatched from a queue is added to `out`, itself perhaps included.
    pub fn arrive(&mut self, now: u64, hash: u64, work: Work, out: &mut Vec<Ticket>) -> Arrival {
        self.advance(now);
        let LevelKind::Queue(queuing) = self.settings.kind else { return self.arrive_without_queue(work) };
        let index = self.choose(&shuffle::hand(hash, queuing.queues.max(1), queuing.hand_size.max(1)));
        let slot = self.order[index];
        let queue = &mut self.queues[slot];
        let full = queue.waiting.len() >= queuing.queue_length_limit as usize;
        if full && self.seats_in_use >= u64::from(self.settings.limit) {
            self.counts.rejected += 1;
            return Arrival::Refused(Reason::QueueFull);
        }
        if queue.is_idle() {
            queue.next_dispatch_r = self.progress;
        }
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let total = work.total();
        queue.waiting.push_back(Waiting { ticket, work, total, arrival_r: self.progress });
        queue.waiting_work = queue.waiting_work.wrapping_add(total);
        queue.waiting_seats += u64::from(work.max_seats());
        queue.bound();
        self.waiting += 1;
        self.waiting_seats += u64::from(work.max_seats());
        self.requests.insert(ticket, Request::Waiting { queue: slot });
        self.note_demand();
        self.dispatch_all(out);
        Arrival::Queued(ticket, index)
    }

    fn arrive_without_queue(&mut self, work: Work) -> Arrival {
        if !self.fits(work.max_seats()) {
            self.counts.rejected += 1;
            return Arrival::Refused(Reason::ConcurrencyLimit);
        }
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.start(ticket, None, work);
        Arrival::Running(ticket)
    }

    /// The queue of the hand with the least waiting work. The first one looked at moves with each arrival.
    fn choose(&mut self, hand: &[u32]) -> usize {
        let offset = (self.counts.enqueues % hand.len().max(1) as u64) as usize;
        self.counts.enqueues += 1;
        let from_offset = hand.iter().cycle().skip(offset).take(hand.len()).map(|card| *card as usize);
        from_offset.min_by_key(|card| self.queues[self.order[*card]].waiting_work).unwrap_or_default()
    }

    /// The handler of a running request has returned. Gives the moment at which its seats must be
    /// [`release`](Self::release)d if it has a tail; `None` also when the ticket does not run.
    pub fn finish(&mut self, now: u64, ticket: Ticket, out: &mut Vec<Ticket>) -> Option<u64> {
        self.advance(now);
        let Some(&Request::Running { queue, work, since }) = self.requests.get(&ticket) else { return None };
        self.executing -= 1;
        if let Some(slot) = queue {
            let queue = &mut self.queues[slot];
            // Callers read their clocks before they take turns: `now` may be older than what others came with.
            let early = SERVICE_ESTIMATE_NS as i64 - now.saturating_sub(since) as i64;
            let correction = seat_seconds(work.initial_seats.into(), early);
            queue.next_dispatch_r = queue.next_dispatch_r.wrapping_sub(correction);
            queue.bound();
            queue.executing -= 1;
        }
        let seats = work.max_seats();
        let tail = work.additional_latency_ns;
        if tail == 0 {
            self.requests.remove(&ticket);
            self.give_back(queue, seats);
        } else {
            self.requests.insert(ticket, Request::Lingering { queue, seats });
        }
        self.dispatch_all(out);
        (tail > 0).then(|| now.saturating_add(tail))
    }

    /// The tail of a finished request is over. Without effect on any other ticket.
    pub fn release(&mut self, now: u64, ticket: Ticket, out: &mut Vec<Ticket>) {
        self.advance(now);
        if let Some(&Request::Lingering { queue, seats }) = self.requests.get(&ticket) {
            self.requests.remove(&ticket);
            self.give_back(queue, seats);
            self.dispatch_all(out);
        }
    }

    /// A request waits no longer. False if it does not wait. Dispatches nothing, even if it blocked others.
    pub fn cancel(&mut self, now: u64, ticket: Ticket) -> bool {
        let Some(&Request::Waiting { queue: slot }) = self.requests.get(&ticket) else { return false };
        // Not before: R is rounded at each advance, and upstream makes none here for others than waiting ones.
        self.advance(now);
        let queue = &mut self.queues[slot];
        let at = queue.waiting.iter().position(|r| r.ticket == ticket);
        let Some(request) = at.and_then(|at| queue.take(at)) else { return false };
        queue.bound();
        self.requests.remove(&ticket);
        self.waiting -= 1;
        self.waiting_seats -= u64::from(request.work.max_seats());
        self.counts.rejected += 1;
        self.counts.cancelled += 1;
        self.note_demand();
        true
    }

    /// Changes the configuration. More queues come at once; surplus ones go when the last of their requests
    /// releases its seats.
    pub fn reconfigure(&mut self, now: u64, settings: Settings, out: &mut Vec<Ticket>) {
        self.advance(now);
        self.settings = settings;
        self.add_queues();
        self.dispatch_all(out);
    }

    /// The progress meter R, in units of 1e-8 seat-seconds.
    pub fn progress(&self) -> u64 {
        self.progress
    }

    /// Seats of running, lingering and waiting requests.
    pub fn demand(&self) -> u64 {
        self.seats_in_use + self.waiting_seats
    }

    /// The demand since the start or the last call of this.
    pub fn end_period(&mut self, now: u64) -> Statistics {
        self.demand.reset(now)
    }

    /// What is in it now.
    pub fn load(&self) -> Load {
        Load {
            waiting: self.waiting,
            waiting_seats: self.waiting_seats,
            executing: self.executing,
            seats_in_use: self.seats_in_use,
        }
    }

    /// How many queues there are.
    pub fn queue_count(&self) -> u32 {
        self.order.len() as u32
    }

    /// What is in each queue, in order.
    pub fn queue_loads(&self) -> impl Iterator<Item = QueueLoad> {
        self.order.iter().map(|slot| {
            let queue = &self.queues[*slot];
            QueueLoad {
                waiting: queue.waiting.len() as u64,
                executing: Some(queue.executing.into()),
                seats_in_use: queue.seats_in_use,
                next_dispatch_r: queue.next_dispatch_r,
                initial_seats: queue.waiting.iter().map(|r| u64::from(r.work.initial_seats)).sum(),
                max_seats: queue.waiting_seats,
                total_work: queue.waiting_work,
            }
        })
    }

    /// The queue of a present request, if it has one, and its position there if it waits.
    pub fn place(&self, ticket: Ticket) -> (Option<u32>, Option<u32>) {
        let slot = match self.requests.get(&ticket) {
            Some(Request::Waiting { queue }) => Some(*queue),
            Some(Request::Running { queue, .. } | Request::Lingering { queue, .. }) => *queue,
            None => None,
        };
        let queue = slot.and_then(|slot| self.queues.get(slot));
        let position = queue.and_then(|queue| queue.waiting.iter().position(|r| r.ticket == ticket));
        (queue.map(|queue| queue.index as u32), position.map(|at| at as u32))
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn desired_queues(&self) -> usize {
        match self.settings.kind {
            LevelKind::Queue(queuing) => queuing.queues.max(1) as usize,
            LevelKind::Reject | LevelKind::Exempt => 0,
        }
    }

    fn add_queues(&mut self) {
        while self.order.len() < self.desired_queues() {
            let unused = |slot: &usize| self.queues[*slot].is_idle() && self.queues[*slot].seats_in_use == 0;
            let slot = match self.removed.iter().position(unused) {
                Some(at) => self.removed.swap_remove(at),
                None => {
                    self.queues.push(Queue::default());
                    self.queues.len() - 1
                }
            };
            self.queues[slot] = Queue { index: self.order.len(), ..Queue::default() };
            self.order.push(slot);
        }
    }

    /// Advances R to `now` at the rate that has held since the last call.
    fn advance(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let (mut active, mut wanted) = (0_u32, 0_u64);
        for &slot in &self.order {
            let queue = &self.queues[slot];
            active += u32::from(!queue.is_idle());
            wanted += queue.seats_in_use + queue.waiting_seats;
        }
        if active > 0 {
            let rate = (wanted as f64).min(self.settings.limit.into()) / f64::from(active);
            self.progress = self.progress.wrapping_add(seat_seconds(rate, elapsed as i64));
        }
        if self.progress >= EPOCH_END {
            self.wind_back();
        }
        self.demand.advance(now);
    }

    fn wind_back(&mut self) {
        self.progress -= EPOCH;
        for &slot in &self.order {
            let queue = &mut self.queues[slot];
            if queue.is_idle() {
                queue.next_dispatch_r = 0;
                continue;
            }
            queue.next_dispatch_r = queue.next_dispatch_r.wrapping_sub(EPOCH);
            queue.waiting.iter_mut().for_each(|r| r.arrival_r = r.arrival_r.wrapping_sub(EPOCH));
        }
    }

    fn note_demand(&mut self) {
        self.demand.set(self.now, self.demand() as f64);
    }

    fn fits(&self, seats: u32) -> bool {
        let (seats, limit) = (u64::from(seats), u64::from(self.settings.limit));
        match self.settings.kind {
            LevelKind::Exempt => true,
            _ if seats > limit => self.executing == 0,
            _ => self.seats_in_use + seats <= limit,
        }
    }

    fn dispatch_all(&mut self, out: &mut Vec<Ticket>) {
        while self.waiting > 0 && self.seats_in_use < u64::from(self.settings.limit) {
            let Some(ticket) = self.dispatch() else { break };
            out.push(ticket);
        }
    }

    /// One step: the request with the smallest virtual finish, if it fits.
    fn dispatch(&mut self) -> Option<Ticket> {
        let count = self.order.len() as i64;
        let mut best: Option<(u64, i64)> = None;
        for _ in 0..count {
            self.cursor = (self.cursor + 1) % count;
            let queue = &self.queues[self.order[self.cursor as usize]];
            let Some(head) = queue.waiting.front() else { continue };
            let finish = queue.next_dispatch_r.wrapping_add(head.total);
            if best.is_none_or(|(least, _)| finish < least) {
                best = Some((finish, self.cursor));
            }
        }
        let (_, index) = best?;
        let slot = self.order[index as usize];
        if !self.fits(self.queues[slot].waiting.front()?.work.max_seats()) {
            return None;
        }
        // The queue dispatched from comes last in the next round, so that the others win ties.
        self.cursor = index;
        let mut request = self.queues[slot].take(0)?;
        request.work.cut(self.settings.limit);
        self.waiting -= 1;
        self.waiting_seats -= u64::from(request.work.max_seats());
        let queue = &mut self.queues[slot];
        queue.next_dispatch_r = queue.next_dispatch_r.wrapping_add(request.total);
        queue.executing += 1;
        queue.seats_in_use += u64::from(request.work.max_seats());
        queue.bound();
        self.start(request.ticket, Some(slot), request.work);
        Some(request.ticket)
    }

    fn start(&mut self, ticket: Ticket, queue: Option<usize>, work: Work) {
        self.executing += 1;
        self.counts.dispatched += 1;
        self.seats_in_use += u64::from(work.max_seats());
        self.requests.insert(ticket, Request::Running { queue, work, since: self.now });
        self.note_demand();
    }

    fn give_back(&mut self, queue: Option<usize>, seats: u32) {
        self.seats_in_use -= u64::from(seats);
        if let Some(slot) = queue {
            self.queues[slot].seats_in_use -= u64::from(seats);
            if self.order.len() > self.desired_queues() && self.queues[slot].is_idle() {
                self.remove_queue(self.queues[slot].index);
            }
        }
        self.note_demand();
    }

    /// Later queues move up. The index may be that of a queue removed before, then another one goes
    /// (#140884); upstream panics when there is none at that index, here nothing happens.
    fn remove_queue(&mut self, index: usize) {
        if index >= self.order.len() {
            return;
        }
        let slot = self.order.remove(index);
        self.removed.push(slot);
        for &slot in self.order.iter().skip(index) {
            self.queues[slot].index -= 1;
        }
        if self.cursor >= index as i64 {
            self.cursor -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
