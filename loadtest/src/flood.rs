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
    /// How long answers are waited for after the time is over.
    pub(crate) grace: Duration,
}

impl Flood {
    /// Floods until the time is over, then waits for the rest; the result is by level. Runs inside a `LocalSet`.
    pub(crate) async fn run(self, timing: Timing, connections: Vec<Connection>) -> Vec<Stats> {
        let stats = Rc::new(RefCell::new(vec![Stats::default(); self.traffic.levels()]));
        let give_up_at = (timing.until + self.grace).into();
        let flood = Rc::new(self);
        let mut loops = JoinSet::new();
        for (number, connection) in (0..).zip(connections) {
            loops.spawn_local(Rc::clone(&flood).one(timing, number, connection, Rc::clone(&stats)));
        }
        let _ = timeout_at(give_up_at, async { while loops.join_next().await.is_some() {} }).await;
        drop(loops); // what is not answered by now shows as dropped
        stats.take()
    }

    async fn one(
        self: Rc<Self>,
        timing: Timing,
        number: u64,
        mut connection: Connection,
        stats: Rc<RefCell<Vec<Stats>>>,
    ) {
        for sequence in 0.. {
            let sent = Instant::now();
            if sent >= timing.until {
                return;
            }
            let count = |f: &dyn Fn(&mut Stats)| {
                if sent >= timing.measured_from {
                    stats.borrow_mut().get_mut(self.traffic.level(number)).into_iter().for_each(f);
                }
            };
            count(&|s| (s.offered, s.sent) = (s.offered + 1, s.sent + 1));
            let answer = connection.exchange(self.traffic.request(number, sequence)).await;
            let done = Instant::now();
            let pause = match &answer {
                Err(_) => BROKEN,
                Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS && self.polite => {
                    polite_wait(answer.retry_after, number + sequence)
                }
                Ok(_) => Duration::ZERO,
            };
            count(&|s| match &answer {
                Ok(answer) if answer.status.is_success() => s.succeeded(done - sent, done - sent),
                Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => {
                    (s.rejections, s.refused) = (s.rejections + 1, s.refused + 1);
                }
                Ok(answer) => s.failed(|| format!("status {}", answer.status)),
                Err(error) => s.failed(|| format!("{error:#}")),
            });
            if pause.is_zero() {
                tokio::task::yield_now().await;
            } else {
                let _ = timeout_at(timing.until.into(), sleep(pause)).await;
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
        let flood = Flood {
            traffic: Traffic::new(&endpoint, "a", RequestKind::List, 1, 1).unwrap(),
            polite,
            grace: Duration::from_secs(10),
        };
        let connections = open_all(&endpoint, 5).await;
        let start = Instant::now();
        let timing = Timing { start, measured_from: start, until: start + Duration::from_millis(length_ms) };
        Stats::sum(&LocalSet::new().run_until(flood.run(timing, connections)).await).summary("flood")
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
