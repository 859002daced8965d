//! A victim: requests at fixed times, however long the answers take.
//!
//! Each request is a task of its own from the moment it is due. It waits for one of the tenant's connections, so a
//! server that stalls makes requests late and never makes them fewer. Latency counts from the due time.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use http::StatusCode;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout_at},
};

use crate::{
    client::{Connection, Endpoint},
    schedule::{Slot, Timing},
    stats::Stats,
    traffic::Traffic,
};

/// A request that is sent this much after it was due is counted as late.
const LATE: Duration = Duration::from_millis(10);
/// Requests under way of one tenant, waiting for a connection included; more are dropped, and counted.
const UNDER_WAY_MAX: usize = 100_000;
/// How often a polite client tries one request, as client-go does.
const ATTEMPTS_MAX: u32 = 10;
/// Connections that are opened at the same time.
const OPENING: usize = 8;

/// One victim of a phase.
pub(crate) struct Victim {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) traffic: Traffic,
    pub(crate) connections: usize,
    pub(crate) polite: bool,
    /// How long answers are waited for after the last request was due.
    pub(crate) grace: Duration,
}

/// Connections that are not in use. The semaphore has one permit for each and is fair.
struct Pool {
    idle: RefCell<Vec<Connection>>,
    permits: Semaphore,
}

impl Victim {
    /// Opens the connections, as far as they can be opened; those that cannot are tried again when they are used.
    pub(crate) async fn connect(&self) -> Vec<Connection> {
        open_all(&self.endpoint, self.connections).await
    }

    /// Sends what is due until the slots end, then waits for the rest. `offered` is the number of measured requests
    /// that the schedule asks for. The result is by level: what was never handed out counts in the first. Runs inside a
    /// `LocalSet`.
    pub(crate) async fn run(
        self,
        timing: Timing,
        offered: u64,
        connections: Vec<Connection>,
        mut slots: mpsc::Receiver<Slot>,
    ) -> Vec<Stats> {
        let stats = Rc::new(RefCell::new(vec![Stats::default(); self.traffic.levels()]));
        let pool = Rc::new(Pool { permits: Semaphore::new(connections.len()), idle: RefCell::new(connections) });
        let give_up_at = (timing.until + self.grace).into();
        let victim = Rc::new(self);
        let mut under_way = JoinSet::new();
        while let Ok(Some(slot)) = timeout_at(give_up_at, slots.recv()).await {
            while under_way.try_join_next().is_some() {}
            if slot.due >= timing.measured_from {
                let level = victim.traffic.level(slot.number);
                stats.borrow_mut().get_mut(level).into_iter().for_each(|s| s.offered += 1);
            }
            if under_way.len() < UNDER_WAY_MAX {
                let request = Rc::clone(&victim).request(
                    slot,
                    slot.due >= timing.measured_from,
                    Rc::clone(&pool),
                    Rc::clone(&stats),
                );
                under_way.spawn_local(request);
            }
        }
        let _ = timeout_at(give_up_at, async { while under_way.join_next().await.is_some() {} }).await;
        drop(under_way); // what is not answered by now stays unaccounted and shows as dropped
        let mut stats = stats.take();
        let handed_out: u64 = stats.iter().map(|s| s.offered).sum();
        stats.first_mut().into_iter().for_each(|s| s.offered += offered.saturating_sub(handed_out));
        stats
    }

    /// One request from due to done, with its retries.
    async fn request(self: Rc<Self>, slot: Slot, measured: bool, pool: Rc<Pool>, stats: Rc<RefCell<Vec<Stats>>>) {
        let count = |f: &dyn Fn(&mut Stats)| {
            if measured {
                stats.borrow_mut().get_mut(self.traffic.level(slot.number)).into_iter().for_each(f);
            }
        };
        for attempt in 1..=ATTEMPTS_MAX {
            let permit = pool.permits.acquire().await.expect("never closed");
            let mut connection = pool.idle.borrow_mut().pop().expect("one connection per permit");
            let sent = Instant::now();
            if attempt == 1 {
                count(&|s| s.sent += 1);
                count(&|s| s.late += u64::from(sent.duration_since(slot.due) > LATE));
            }
            let answer = connection.exchange(self.traffic.request(slot.number, slot.number)).await;
            let done = Instant::now();
            pool.idle.borrow_mut().push(connection);
            drop(permit);
            match answer {
                Ok(answer) if answer.status.is_success() => {
                    return count(&|s| s.succeeded(done - slot.due, done - sent));
                }
                Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => {
                    count(&|s| s.rejections += 1);
                    if !self.polite || attempt == ATTEMPTS_MAX {
                        return count(&|s| s.refused += 1);
                    }
                    sleep(polite_wait(answer.retry_after, slot.number)).await;
                }
                Ok(answer) => return count(&|s| s.failed(|| format!("status {}", answer.status))),
                Err(error) => return count(&|s| s.failed(|| format!("{error:#}"))),
            }
        }
    }
}

/// What the server asked for (a second if nothing) and up to a fifth more, so that clients do not come back as one.
pub(crate) fn polite_wait(retry_after: Option<Duration>, seed: u64) -> Duration {
    let wait = retry_after.unwrap_or(Duration::from_secs(1));
    let spread = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    wait + wait * u32::try_from(spread).expect("8 bits") / (5 * 256)
}

/// `count` connections, opened if the server lets them.
pub(crate) async fn open_all(endpoint: &Arc<Endpoint>, count: usize) -> Vec<Connection> {
    let mut opening = JoinSet::new();
    let mut opened = Vec::with_capacity(count);
    for _ in 0..count {
        if opening.len() >= OPENING {
            opened.extend(opening.join_next().await.and_then(Result::ok));
        }
        let mut connection = Connection::new(Arc::clone(endpoint));
        opening.spawn(async move {
            connection.open().await.ok();
            connection
        });
    }
    while let Some(connection) = opening.join_next().await {
        opened.extend(connection.ok());
    }
    opened
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::{cli::RequestKind, schedule::Schedule, stub::Stub};

    /// Runs one victim against the stub, all slots handed out when they are due; `meanwhile` starts with the schedule.
    async fn run(
        stub: &Stub,
        rate: u32,
        length_ms: u64,
        change: impl FnOnce(&mut Victim),
        meanwhile: impl Future<Output = ()>,
    ) -> Stats {
        let endpoint = stub.endpoint();
        let traffic = Traffic::new(&endpoint, "a", RequestKind::Get, 1, 1).unwrap();
        let grace = Duration::from_secs(20);
        let mut victim = Victim { endpoint, traffic, connections: 4, polite: true, grace };
        change(&mut victim);
        let connections = victim.connect().await;
        let start = Instant::now();
        let schedule = Schedule { start, length: Duration::from_millis(length_ms), senders: 1, rate };
        let timing = Timing { start, measured_from: start, until: start + schedule.length };
        let (sender, slots) = mpsc::channel(10_000);
        let pacing = async move {
            for (_, slot) in schedule.slots() {
                tokio::time::sleep_until(slot.due.into()).await;
                sender.send(slot).await.unwrap();
            }
        };
        let offered = schedule.per_sender();
        let victim = victim.run(timing, offered, connections, slots);
        Stats::sum(&LocalSet::new().run_until(async { tokio::join!(victim, pacing, meanwhile).0 }).await)
    }

    /// LT-01, shortened: a stall shows in full, though only four requests were ever waiting in the server.
    #[tokio::test]
    async fn a_stall_is_counted_for_every_request_that_was_due() {
        let stub = Stub::start().await;
        let stall = async {
            sleep(Duration::from_millis(300)).await;
            stub.freeze(true);
            sleep(Duration::from_millis(900)).await;
            stub.freeze(false);
        };
        let stats = run(&stub, 200, 1500, |_| (), stall).await;
        let summary = stats.summary("a");
        assert_eq!((summary.offered, summary.sent, summary.ok, summary.dropped), (300, 300, 300, 0));
        // Due between 0.3 s and 0.7 s and answered after 1.2 s: 80 of 300, more than a quarter.
        assert!(summary.response.p75_us >= 500_000 && summary.response.max_us >= 880_000, "{:?}", summary.response);
        assert!(summary.late >= 80, "{}", summary.late);
        assert!(summary.service.p75_us < summary.response.p75_us, "what a closed loop would have reported");
    }

    /// LT-02: too few connections do not make the result better.
    #[tokio::test]
    async fn what_could_not_be_sent_is_dropped_and_counted() {
        let stub = Stub::start().await;
        stub.freeze(true);
        let few = |victim: &mut Victim| (victim.connections, victim.grace) = (1, Duration::from_millis(50));
        let summary = run(&stub, 100, 200, few, async {}).await.summary("a");
        assert_eq!((summary.offered, summary.sent, summary.ok, summary.dropped), (20, 1, 0, 20));
        assert_eq!(summary.served, 0.0);
    }

    /// LT-03: a polite client succeeds late, a rude one loses its request.
    #[tokio::test]
    async fn a_429_is_a_rejection_and_then_depends_on_manners() {
        for polite in [true, false] {
            let stub = Stub::start().await;
            stub.answer_next(429, Some(1));
            let summary = run(&stub, 10, 100, |victim| victim.polite = polite, async {}).await.summary("a");
            assert_eq!((summary.offered, summary.sent, summary.rejections), (1, 1, 1));
            assert_eq!((summary.ok, summary.dropped), (u64::from(polite), 0));
            assert_eq!(summary.response.max_us >= 1_000_000, polite, "{summary:?}");
        }
    }

    #[tokio::test]
    async fn other_answers_are_neither_successes_nor_rejections() {
        let stub = Stub::start().await;
        stub.answer_next(500, None);
        let summary = run(&stub, 20, 100, |_| (), async {}).await.summary("a");
        assert_eq!((summary.ok, summary.other, summary.rejections), (1, 1, 0));
        assert!(summary.example.unwrap().contains("500"));
    }

    #[test]
    fn a_polite_wait_is_at_least_what_was_asked_and_at_most_a_fifth_more() {
        for seed in 0..1000 {
            let wait = polite_wait(Some(Duration::from_secs(5)), seed);
            assert!((Duration::from_secs(5)..=Duration::from_secs(6)).contains(&wait), "{wait:?}");
        }
        assert!(polite_wait(None, 0) >= Duration::from_secs(1));
    }
}
