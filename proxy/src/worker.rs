//! One worker: a thread with a single-threaded runtime that owns its client connections and its pools.
//!
//! There is no timer per request. Once a second the worker advances its tick, looks at its connections and fires the
//! deadlines that have passed; every time limit at the door is that coarse. Only the ends of watches during a drain are
//! finer.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::Waker,
    time::Duration,
};

use fairness::Gate;
use futures_util::task::AtomicWaker;
use slab::Slab;

use crate::{ahead::Budget, core::Core, drain, inflight::InFlight, phases::Phases, refused::Why};

/// Ticks of silence after which a connection without a request is closed during a drain: longer than a request is on
/// its way.
const DRAIN_SILENCE: u32 = 1;
/// Ticks for which a request may be on its way on an HTTP/2 connection that was told to go.
const LATE_REQUESTS: u32 = 5;

/// What a worker's tasks share.
pub(crate) struct Worker {
    pub(crate) number: usize,
    pub(crate) core: Arc<Core>,
    /// Requests between their arrival and the end of their answer.
    pub(crate) in_flight: AtomicUsize,
    /// Open client connections.
    pub(crate) connections: AtomicUsize,
    /// Requests that wait or run.
    pub(crate) requests: InFlight,
    pub(crate) phases: Phases,
    /// Everything that still runs is being dropped.
    pub(crate) is_stopped: AtomicBool,
    /// Bytes of answers that have been read ahead of their clients.
    pub(crate) ahead: Budget,
    /// Bytes of answers that have been taken off connections which they share with others, and not been read.
    pub(crate) unread: AtomicUsize,
    next_id: AtomicU64,
    tick: AtomicU32,
    /// Std mutexes: short sections, never held over an await, and in practice taken by one thread only.
    links: Mutex<Slab<Arc<Link>>>,
    /// Connections that have not said a word yet, the oldest first, among others that have.
    newcomers: Mutex<VecDeque<Weak<Link>>>,
    deadlines: Mutex<Slab<Deadline>>,
    /// What ends while the worker drains, counted from its beginning: in order, by keys of `deadlines`.
    endings: Mutex<VecDeque<(Duration, usize)>>,
}

/// What the sweep knows of one client connection.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// The client's.
    pub(crate) address: Option<SocketAddr>,
    drain: AtomicBool,
    kill: AtomicBool,
    aged: AtomicBool,
    /// Tick from which on it takes no new requests; 0 if it may grow as old as it likes.
    aged_at: AtomicU32,
    waker: AtomicWaker,
    /// Tick at which HTTP/2 was told to go (GOAWAY), 0 before.
    pub(crate) told: AtomicU32,
    /// Requests being served on it.
    pub(crate) requests: AtomicU32,
    /// Whether the socket's next event wakes who reads from it, so that the end of the connection is seen.
    pub(crate) watched: AtomicBool,
    /// Tick of the last sign of life.
    pub(crate) seen: AtomicU32,
    /// Tick of the first byte of an unfinished request head, 0 if there is none.
    pub(crate) head_since: AtomicU32,
    /// Whether it has got behind its TLS handshake and first bytes.
    pub(crate) established: AtomicBool,
    /// Whether it has switched protocols.
    pub(crate) is_tunnel: AtomicBool,
    /// Whether the client has closed its end of such a connection behind bytes that nobody takes.
    pub(crate) has_left: AtomicBool,
    /// Whether all that the client has sent on such a connection has been read, its end included.
    pub(crate) is_read: AtomicBool,
}

impl Link {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address: Some(address), ..Self::default() }
    }

    /// The client is to open another connection for its next requests: HTTP/2 hears it at once, but not before its first
    /// request (GOAWAY), HTTP/1.1 with the next answer, since only an answer can say so. What runs, and what is on its
    /// way, is not touched (PX-10).
    pub(crate) fn age(&self) {
        if !self.aged.swap(true, Relaxed) {
            self.waker.wake();
        }
    }

    pub(crate) fn is_aged(&self) -> bool {
        self.aged.load(Relaxed)
    }

    /// Whether its client has been told to go for so many ticks, and has not gone.
    fn is_told_since(&self, ticks: u32, now: u32) -> bool {
        let told = self.told.load(Relaxed);
        told > 0 && now.saturating_sub(told) > ticks
    }

    /// Whether new requests come too late on it: h2 closes a connection only when its client says that it has heard the
    /// goodbye, and one that does not must not keep what it was let in with.
    pub(crate) fn is_over(&self, now: u32) -> bool {
        self.is_told_since(LATE_REQUESTS, now)
    }

    /// Whether what comes on it is a sign of life: not on one that waits for a request.
    pub(crate) fn is_used(&self) -> bool {
        !self.established.load(Relaxed) || self.requests.load(Relaxed) > 0 || self.is_tunnel.load(Relaxed)
    }

    /// Registers the task that owns the connection; it is woken by [`kill`](Self::kill), [`drain`](Self::drain) and
    /// [`age`](Self::age).
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Ends the connection at once.
    pub(crate) fn kill(&self) {
        self.kill.store(true, Relaxed);
        self.waker.wake();
    }

    /// Ends the connection after the requests that run on it; an idle one at once.
    pub(crate) fn drain(&self) {
        self.drain.store(true, Relaxed);
        self.waker.wake();
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.kill.load(Relaxed)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain.load(Relaxed)
    }
}

struct Deadline {
    tick: u32,
    action: Action,
}

enum Action {
    Wake(Waker),
    /// Wakes a watch of the workspace with this hash when it should end, while the worker drains.
    End(Waker, u64),
    /// Wakes a request that waits for seats when it should give up, late in a drain.
    GiveUp(Waker),
    Kill(Arc<Link>),
    Fired,
}

impl Action {
    fn fire(self) {
        match self {
            Self::Wake(waker) | Self::End(waker, _) | Self::GiveUp(waker) => waker.wake(),
            Self::Kill(link) => link.kill(),
            Self::Fired => {}
        }
    }
}

/// A time limit on something; lifted when dropped.
pub(crate) struct Timer {
    worker: Arc<Worker>,
    key: usize,
}

impl Timer {
    /// Whether the time is over. If not, `waker` is woken when it is.
    pub(crate) fn is_over(&self, waker: &Waker) -> bool {
        match lock(&self.worker.deadlines).get_mut(self.key).map(|d| &mut d.action) {
            Some(Action::Wake(old) | Action::End(old, _) | Action::GiveUp(old)) => {
                old.clone_from(waker);
                false
            }
            Some(Action::Kill(_)) => false,
            Some(Action::Fired) | None => true,
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        lock(&self.worker.deadlines).try_remove(self.key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub(crate) fn new(number: usize, core: Arc<Core>) -> Self {
        Self {
            number,
            core,
            in_flight: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            requests: InFlight::default(),
            phases: Phases::new(),
            is_stopped: AtomicBool::new(false),
            ahead: Budget::default(),
            unread: AtomicUsize::new(0),
            next_id: AtomicU64::new(uuid::Uuid::new_v4().as_u64_pair().0),
            tick: AtomicU32::new(1),
            links: Mutex::default(),
            newcomers: Mutex::default(),
            deadlines: Mutex::default(),
            endings: Mutex::default(),
        }
    }

    /// This thread's own handle of the gate of a shard; `None` without fairness.
    pub(crate) fn gate(&self, shard: usize) -> Option<&Arc<Gate>> {
        self.core.shards.gate(shard, self.number)
    }

    /// Seconds since the start, never 0.
    pub(crate) fn tick(&self) -> u32 {
        self.tick.load(Relaxed)
    }

    /// Wakes `waker` when `after` has passed, rounded up to the next tick but one.
    pub(crate) fn wake_after(self: &Arc<Self>, after: Duration, waker: Waker) -> Timer {
        self.deadline(self.tick().saturating_add(ticks(after)), Action::Wake(waker))
    }

    /// Ends the connection unless the timer is dropped before `after` has passed.
    pub(crate) fn kill_after(self: &Arc<Self>, after: Duration, link: Arc<Link>) -> Timer {
        self.deadline(self.tick().saturating_add(ticks(after)), Action::Kill(link))
    }

    /// Wakes `waker`, of a watch of the workspace with this hash, when it should end because the worker drains.
    pub(crate) fn wake_to_end(self: &Arc<Self>, waker: Waker, workspace: u64) -> Timer {
        self.deadline(self.end_tick(), Action::End(waker, workspace))
    }

    /// Wakes `waker`, of a request that waits for seats, when the worker drains and there is little time left.
    pub(crate) fn wake_to_give_up(self: &Arc<Self>, waker: Waker) -> Timer {
        self.deadline(self.end_tick(), Action::GiveUp(waker))
    }

    /// What comes after the drain has begun is in no plan: it ends with the next sweep.
    fn end_tick(&self) -> u32 {
        if self.core.draining.load(Relaxed) { self.tick() } else { u32::MAX }
    }

    fn deadline(self: &Arc<Self>, tick: u32, action: Action) -> Timer {
        let key = lock(&self.deadlines).insert(Deadline { tick, action });
        Timer { worker: self.clone(), key }
    }

    /// Makes a connection known to the sweep; the key is for [`forget`](Self::forget).
    ///
    /// One that comes while the worker drains gets one answer, and that says no.
    pub(crate) fn register(&self, link: Arc<Link>) -> usize {
        link.seen.store(self.tick(), Relaxed);
        if let Some(age) = self.core.limits.connection_age {
            let (age, chance) = (ticks(age), mix(self.next_id.fetch_add(1, Relaxed)) as u32);
            // A tenth more or less, so that connections that came together do not go together.
            let jitter = chance.checked_rem(age / 5 + 1).unwrap_or(0);
            link.aged_at.store((self.tick() + age - age / 10).saturating_add(jitter), Relaxed);
        }
        lock(&self.newcomers).push_back(Arc::downgrade(&link));
        if self.core.silent.fetch_add(1, Relaxed) >= self.core.limits.handshakes {
            self.end_oldest_newcomer();
        }
        let key = lock(&self.links).insert(link.clone());
        if self.core.draining.load(Relaxed) {
            link.age();
        }
        key
    }

    pub(crate) fn forget(&self, key: usize) {
        let link = lock(&self.links).try_remove(key);
        if let Some(link) = link {
            self.establish(&link);
        }
    }

    /// The connection has got behind its handshake and first bytes, or has ended: it is no newcomer any more.
    pub(crate) fn establish(&self, link: &Link) {
        if !link.established.load(Relaxed) && !link.established.swap(true, Relaxed) {
            self.core.silent.fetch_sub(1, Relaxed);
        }
    }

    /// Who is at it the longest is the least likely to mean it: an honest handshake takes a moment.
    fn end_oldest_newcomer(&self) {
        let is_newcomer = |link: &Arc<Link>| !link.established.load(Relaxed) && !link.is_killed();
        let oldest = {
            let mut newcomers = lock(&self.newcomers);
            std::iter::from_fn(|| newcomers.pop_front()).find_map(|link| link.upgrade().filter(is_newcomer))
        };
        if let Some(link) = oldest {
            link.kill();
            self.core.refused(Why::Handshakes, &link.address, &"too many connections have not said a word yet");
        }
    }

    /// Whether the connection of this HTTP/2 request is to be left for another after it.
    pub(crate) fn wants_another_connection(&self) -> bool {
        let chance = u64::from(self.core.limits.goaways_per_million);
        chance > 0 && mix(self.next_id.fetch_add(1, Relaxed)) % 1_000_000 < chance
    }

    /// A UUID for one request: unique, not secret, and without a system call.
    pub(crate) fn next_uuid(&self) -> uuid::Uuid {
        let seed = self.next_id.fetch_add(1, Relaxed);
        let bytes = u128::from(mix(seed)) << 64 | u128::from(mix(!seed));
        uuid::Builder::from_random_bytes(bytes.to_be_bytes()).into_uuid()
    }

    /// A number that no other request of this worker gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    /// Asks the clients of all connections there are to go elsewhere.
    pub(crate) fn leave(&self) {
        self.links().iter().for_each(|link| link.age());
    }

    /// Tells every connection to end after the requests that run on it, and plans the ends of watches, one by one
    /// within most of `grace`. An idle connection on which a request may be on its way is left to the sweep, which
    /// closes it after a moment of silence; with `at_once` it is closed now.
    pub(crate) fn drain(&self, grace: Duration, at_once: bool) {
        self.plan_endings(grace);
        for link in self.links() {
            link.age();
            let is_silent = link.head_since.load(Relaxed) == 0;
            match link.established.load(Relaxed) {
                true if link.requests.load(Relaxed) > 0 || (at_once && is_silent) => link.drain(),
                // A connection that has not said a word yet cannot say goodbye either.
                false if at_once => link.kill(),
                _ => {}
            }
        }
    }

    /// Requests and tunnels on all connections.
    pub(crate) fn running(&self) -> usize {
        self.links().iter().map(|link| link.requests.load(Relaxed) as usize).sum()
    }

    fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.links).iter().map(|(_, link)| link.clone()).collect()
    }

    fn plan_endings(&self, grace: Duration) {
        let (mut watches, mut waiting) = (Vec::new(), Vec::new());
        for (key, deadline) in lock(&self.deadlines).iter() {
            match deadline.action {
                Action::End(_, workspace) => watches.push((key, workspace)),
                Action::GiveUp(_) => waiting.push((drain::last_call(grace), key)),
                _ => {}
            }
        }
        let mut plan = drain::endings(&watches, grace);
        plan.append(&mut waiting);
        plan.sort_unstable();
        *lock(&self.endings) = plan.into();
    }

    /// Fires what was planned to end until `elapsed` after the beginning of the drain. Called every [`drain::PACE`].
    pub(crate) fn pace(&self, elapsed: Duration) {
        while let Some(key) = self.next_ending(elapsed) {
            let action = match lock(&self.deadlines).get_mut(key).map(|d| &mut d.action) {
                Some(action @ (Action::End(..) | Action::GiveUp(_))) => std::mem::replace(action, Action::Fired),
                _ => continue,
            };
            action.fire();
        }
    }

    fn next_ending(&self, elapsed: Duration) -> Option<usize> {
        let mut endings = lock(&self.endings);
        let (at, key) = *endings.front()?;
        (at <= elapsed).then(|| {
            endings.pop_front();
            key
        })
    }

    /// Advances the tick and enforces the time limits. Called once a second.
    pub(crate) fn sweep(&self) {
        let now = self.tick.fetch_add(1, Relaxed).saturating_add(1);
        let late: Vec<_> = {
            let links = lock(&self.links);
            let is_aged = |link: &Link| (1..=now).contains(&link.aged_at.load(Relaxed));
            links.iter().filter(|(_, l)| is_aged(l)).for_each(|(_, l)| l.age());
            links.iter().filter(|(_, l)| self.is_late(l, now)).map(|(_, l)| l.clone()).collect()
        };
        lock(&self.newcomers).retain(|l| l.upgrade().is_some_and(|l| !l.established.load(Relaxed)));
        for link in late {
            let is_idle =
                link.established.load(Relaxed) && link.head_since.load(Relaxed) == 0 && !link.is_tunnel.load(Relaxed);
            if is_idle && !link.is_draining() {
                // With a goodbye: a request may be on its way.
                link.drain();
            } else {
                self.core.metrics.closed_by_sweep.increment(1);
                self.core.refused(Why::Timeout, &link.address, &"a handshake, head or silence took too long");
                link.kill();
            }
        }
        let due: Vec<_> = lock(&self.deadlines)
            .iter_mut()
            .filter(|(_, d)| d.tick <= now)
            .map(|(_, d)| std::mem::replace(&mut d.action, Action::Fired))
            .collect();
        // Outside the locks: a waker may run arbitrary code.
        due.into_iter().for_each(Action::fire);
        // Those that are gone too, until their connections are.
        self.core.shards.all().for_each(|(_, entry)| entry.shard.sweep(self.number));
    }

    fn is_late(&self, link: &Link, now: u32) -> bool {
        let limits = &self.core.limits;
        let over = |since: u32, limit| now.saturating_sub(since) > ticks(limit);
        if link.is_tunnel.load(Relaxed) {
            let limit = if link.has_left.load(Relaxed) { limits.stall_timeout } else { limits.tunnel_idle_timeout };
            return over(link.seen.load(Relaxed), limit.min(limits.tunnel_idle_timeout));
        }
        if link.requests.load(Relaxed) > 0 {
            return false;
        }
        if self.core.draining.load(Relaxed) {
            return now.saturating_sub(link.seen.load(Relaxed)) > DRAIN_SILENCE;
        }
        if !link.established.load(Relaxed) {
            return over(link.seen.load(Relaxed), limits.head_timeout);
        }
        if link.is_told_since(ticks(limits.stall_timeout), now) {
            return true;
        }
        match link.head_since.load(Relaxed) {
            0 => over(link.seen.load(Relaxed), limits.idle_timeout),
            since => over(since, limits.head_timeout),
        }
    }
}

/// The finaliser of SplitMix64: a bijection, so distinct seeds give distinct values.
pub(crate) fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Whole ticks that are certainly not less than `time`.
fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_millis().div_ceil(1000)).unwrap_or(u32::MAX / 2).saturating_add(1)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use std::net::TcpListener;

    use super::*;
    use crate::{Body, GatewayOptions, Limits, LocalService, ShardOptions, Upstream};

    /// That of a gateway with one shard and nothing else.
    pub(crate) fn core() -> Arc<Core> {
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let service = tower::service_fn(async |_| Ok(http::Response::new(Body::empty())));
        let upstream = Upstream::Local(LocalService::new(service));
        let options = GatewayOptions {
            listener: listener(),
            tls: None,
            admin: listener(),
            workers: 1,
            anonymous: true,
            drop_groups: Vec::new(),
            shards: vec![ShardOptions { name: "root".into(), seats: 1, upstream, observers: None }],
            fairness: None,
            compat: config::Compat::Fairgate,
            directory: crate::Directory::Static,
            limits: Limits::default(),
            access_log: None,
            healthy: None,
        };
        Arc::new(crate::gateway::build(&options, crate::clock::WallClock::new(), 1).unwrap())
    }

    #[test]
    fn a_connection_that_comes_during_a_drain_gets_an_answer_and_a_silent_one_is_ended() {
        let worker = Worker::new(0, core());
        let (busy, idle, late) = (Arc::new(Link::default()), Arc::new(Link::default()), Arc::new(Link::default()));
        busy.established.store(true, Relaxed);
        busy.requests.store(1, Relaxed);
        idle.established.store(true, Relaxed);
        worker.register(busy.clone());
        worker.register(idle.clone());
        worker.core.draining.store(true, Relaxed);
        worker.drain(Duration::from_secs(1), false);
        worker.register(late.clone());
        assert!(busy.is_draining() && busy.is_aged() && !busy.is_killed());
        assert!(idle.is_aged() && !idle.is_draining(), "a request may be on its way");
        assert!(late.is_aged() && !late.is_draining() && !late.is_killed());
        worker.sweep();
        assert!(!late.is_killed() && !idle.is_draining());
        worker.sweep();
        assert!(late.is_killed() && idle.is_draining() && !busy.is_killed());
    }

    #[test]
    fn with_no_time_to_wait_idle_connections_go_at_once() {
        let worker = Worker::new(0, core());
        let (silent, idle) = (Arc::new(Link::default()), Arc::new(Link::default()));
        idle.established.store(true, Relaxed);
        worker.register(silent.clone());
        worker.register(idle.clone());
        worker.drain(Duration::from_secs(1), true);
        assert!(silent.is_killed() && idle.is_draining() && !idle.is_killed());
    }
}
