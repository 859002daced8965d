//! Priority and fairness exactly as Kubernetes v1.34 does it, known defects included (apf.md 3.5, 5, 7.1).
//!
//! [`QueueSet`] queues and dispatches the requests of one priority level, [`Adjustment`] divides the seats of
//! a server among levels every ten seconds, [`RetryAfter`] says when a refused client should come again.
//! [`Shard`] puts them together for the workspaces of one shard: it stands behind the [`Gate`](crate::Gate)
//! in place of [`scheduler::Shard`](crate::scheduler::Shard) under [`Compat::Upstream`](crate::Compat).
//! Everything runs under a clock that the caller gives, does no I/O and is deterministic. The parts are also
//! the oracle of the tests and what [`run_apf`](crate::sim::run_apf) plays scenarios on.

#[cfg(test)]
mod defects;
mod demand;
mod queue_set;
mod retry_after;
mod shard;
mod work;

pub use self::{
    demand::{ADJUSTMENT_PERIOD_NS, Adjustment, DemandMeter, Integrator, LevelDemand, Statistics},
    queue_set::{Arrival, Counts, Load, QueueLoad, QueueSet, Reason, Settings, Ticket},
    retry_after::RetryAfter,
    shard::{Arrived, LevelView, Shard},
    work::{SERVICE_ESTIMATE_NS, Work, seat_seconds},
};
