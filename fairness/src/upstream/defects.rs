//! Where upstream's known defects (apf.md 8.1, 8.3) are mended: each test shows upstream's rule and ours on
//! the same requests. One level, one workspace that owns the shard.

use super::{Arrival, QueueSet, Reason, Settings, Ticket, Work};
use crate::{
    Compat, Level, LevelKind, Queuing,
    scheduler::{Arrival as Ours, RefusedArrival, RequestId, Shard, Tuning, WorkspaceClass, WorkspaceId},
};

const QUEUING: Queuing = Queuing { queues: 1, hand_size: 1, queue_length_limit: 2 };

/// Both schedulers, with so many seats.
struct Both {
    upstream: QueueSet,
    ours: Shard,
    workspace: WorkspaceId,
}

impl Both {
    fn new(seats: u32, kind: LevelKind) -> Self {
        let level = Level { name: "l".into(), kind, shares: 1, lendable_percent: 0, borrowing_limit_percent: Some(0) };
        let mut ours = Shard::new(seats.max(1), &[level], Tuning::default(), Compat::Fairgate);
        let class = WorkspaceClass::Seats { seats, lendable_percent: 100, borrowing_limit_percent: Some(0) };
        let workspace = ours.add_workspace(0, class);
        Self { upstream: QueueSet::new(0, Settings { kind, limit: seats }), ours, workspace }
    }

    /// What upstream says, and the tickets it starts.
    fn upstream(&mut self, now: u64, seats: u32) -> (Arrival, Vec<Ticket>) {
        let (mut out, work) = (Vec::new(), Work { initial_seats: seats, ..Work::default() });
        (self.upstream.arrive(now, 0, work, &mut out), out)
    }

    fn ours(&mut self, now: u64, seats: u32) -> Result<RequestId, RefusedArrival> {
        match self.ours.arrive(now, self.workspace, 0, 0, seats)? {
            Ours::Queued(id) | Ours::NowOrNever(id) => Ok(id),
            Ours::Exempt(_) => panic!("no level is exempt"),
        }
    }
}

/// A wide head leaves seats idle, and upstream's limit holds only while none is.
#[test]
fn a_queue_behind_a_wide_head_keeps_its_length_limit() {
    let mut both = Both::new(4, LevelKind::Queue(QUEUING));
    assert_eq!(both.upstream(0, 2).1.len(), 1);
    let running = both.ours(0, 2).unwrap();
    assert_eq!(both.ours.dispatch(0), Some(running));
    for now in 1..10 {
        let (arrival, started) = both.upstream(now, 4);
        assert!(matches!(arrival, Arrival::Queued(..)) && started.is_empty(), "grows without end");
        let accepted = both.ours(now, 4);
        assert_eq!(both.ours.dispatch(now), None);
        assert_eq!(accepted.is_ok(), now <= 2, "request {now}");
        assert!(accepted.is_ok() || accepted == Err(RefusedArrival::QueueFull));
    }
}

/// Upstream dispatches nothing when the request that blocked the others goes.
#[test]
fn cancelling_a_blocking_head_lets_the_next_one_start_at_once() {
    let mut both = Both::new(4, LevelKind::Queue(QUEUING));
    both.upstream(0, 3);
    let Arrival::Queued(head, _) = both.upstream(1, 4).0 else { panic!() };
    assert_eq!(both.upstream(2, 1).1, []);
    assert!(both.upstream.cancel(3, head));
    assert_eq!(both.upstream(4, 1).1.len(), 1, "only the next arrival starts it");

    let running = both.ours(0, 3).unwrap();
    assert_eq!(both.ours.dispatch(0), Some(running));
    let head = both.ours(1, 4).unwrap();
    let behind = both.ours(2, 1).unwrap();
    assert_eq!(both.ours.dispatch(2), None);
    assert!(both.ours.cancel(3, head));
    assert_eq!(both.ours.dispatch(3), Some(behind));
}

/// Without a seat upstream admits one request at a time where there are no queues, and none where there are.
#[test]
fn no_seats_means_none_with_queues_and_without() {
    let mut reject = Both::new(0, LevelKind::Reject);
    assert!(matches!(reject.upstream(0, 1).0, Arrival::Running(_)));
    assert_eq!(reject.upstream(0, 1).0, Arrival::Refused(Reason::ConcurrencyLimit));
    let mut queue = Both::new(0, LevelKind::Queue(QUEUING));
    assert_eq!(queue.upstream(0, 1).1, []);
    for both in [&mut reject, &mut queue] {
        let accepted = both.ours(0, 1);
        assert_eq!(both.ours.dispatch(0), None, "{accepted:?}");
    }
}

/// Upstream charges the tail's full width to those that wait and takes off what was left after the cut.
#[test]
fn a_tail_that_was_cut_leaves_no_demand_behind() {
    let mut both = Both::new(2, LevelKind::Queue(QUEUING));
    let (mut out, work) = (Vec::new(), Work { initial_seats: 1, final_seats: 10, additional_latency_ns: 1_000_000 });
    let Arrival::Queued(ticket, _) = both.upstream.arrive(0, 0, work, &mut out) else { panic!() };
    let until = both.upstream.finish(1, ticket, &mut out).unwrap();
    both.upstream.release(until, ticket, &mut out);
    assert_eq!(both.upstream.demand(), 8, "of nobody");

    let wide = both.ours(0, 10).unwrap();
    assert_eq!(both.ours.dispatch(0), Some(wide));
    assert!(both.ours.complete(1, wide));
    let state = both.ours.workspace_state(1, both.workspace).unwrap();
    assert_eq!((state.in_use, state.waiting_seats), (0, 0));
}
