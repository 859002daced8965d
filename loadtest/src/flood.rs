//! The tenant that floods: many connections, each of which sends its next request when the last one is answered.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use http::StatusCode;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout_at},
};

use crate::{client::Connection, open_loop::polite_wait, schedule::Timing, stats::Stats, traffic::Traffic};

/// Pause after a broken connection.
const BROKEN: Duration = Duration::from_millis(100);

/// The flood of a phase.
pub(crate) struct Flood {
    pub(crate) traffic: Traffic,
    pub(crate) polite: bool,
}

impl Flood {
    /// Floods until the time is over. Runs inside a `LocalSet`.
    pub(crate) async fn run(self, timing: Timing, connections: Vec<Connection>) -> Stats {
        let stats = Rc::new(RefCell::new(Stats::default()));
        let flood = Rc::new(self);
        let mut loops = JoinSet::new();
        for (number, connection) in (0..).zip(connections) {
            loops.spawn_local(Rc::clone(&flood).one(timing, number, connection, Rc::clone(&stats)));
        }
        let _ = timeout_at(timing.until.into(), async { while loops.join_next().await.is_some() {} }).await;
        drop(loops);
        stats.take()
    }

    async fn one(self: Rc<Self>, timing: Timing, number: u64, mut connection: Connection, stats: Rc<RefCell<Stats>>) {
        for sequence in 0.. {
            let sent = Instant::now();
            let answer = connection.exchange(self.traffic.request(number, sequence)).await;
            let done = Instant::now();
            let pause = match &answer {
                Err(_) => BROKEN,
                Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS && self.polite => {
                    polite_wait(answer.retry_after, number + sequence)
                }
                Ok(_) => Duration::ZERO,
            };
            if done >= timing.measured_from {
                let mut stats = stats.borrow_mut();
                stats.offered += 1;
                stats.sent += 1;
                match answer {
                    Ok(answer) if answer.status.is_success() => stats.succeeded(done - sent, done - sent),
                    Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => {
                        stats.rejections += 1;
                        stats.refused += 1;
                    }
                    Ok(answer) => stats.failed(|| format!("status {}", answer.status)),
                    Err(error) => stats.failed(|| format!("{error:#}")),
                }
            }
            if pause.is_zero() {
                tokio::task::yield_now().await;
            } else {
                sleep(pause).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::{cli::RequestKind, open_loop::open_all, stub::Stub};

    async fn run(stub: &Stub, polite: bool, length_ms: u64) -> crate::stats::Summary {
        let endpoint = stub.endpoint();
        let flood = Flood { traffic: Traffic::new(&endpoint, "a", RequestKind::List, 1).unwrap(), polite };
        let connections = open_all(&endpoint, 5).await;
        let start = Instant::now();
        let timing = Timing { start, measured_from: start, until: start + Duration::from_millis(length_ms) };
        LocalSet::new().run_until(flood.run(timing, connections)).await.summary("flood")
    }

    #[tokio::test]
    async fn each_connection_goes_on_until_the_time_is_over() {
        let stub = Stub::start().await;
        let summary = run(&stub, true, 200).await;
        assert!(summary.ok >= 5 && summary.ok == summary.sent && summary.dropped == 0, "{summary:?}");
    }

    #[tokio::test]
    async fn only_a_rude_flood_goes_on_after_429() {
        for polite in [true, false] {
            let stub = Stub::start().await;
            (0..1000).for_each(|_| stub.answer_next(429, Some(100)));
            let summary = run(&stub, polite, 300).await;
            assert!(if polite { summary.sent == 5 } else { summary.sent > 5 }, "{summary:?}");
            assert_eq!(summary.rejections.min(1000), summary.sent.min(1000));
        }
    }
}
