//! The scheduler behind the gate: ours, or Kubernetes' own rules (`compat: upstream`).

use std::{collections::BTreeMap, ops::Range};

use super::{Compat, Cost, GateOptions, GatePolicy, WorkspaceClass, stats::DemandSums};
use crate::{
    Level,
    scheduler::{self, LevelSeats, RefusedArrival, Releases, RequestId, Spare, WorkspaceId},
    upstream,
};

/// What became of an arrival.
pub(super) enum Arrived {
    /// Its level is exempt: it runs. Ours only counts its seats and has no id for it.
    Exempt(Option<RequestId>, u32),
    /// It waits; [`Engine::dispatch`] may start it at once.
    Queued(RequestId),
    /// As `Queued`, but if it is not started at once it must be cancelled: its level does not let wait.
    NowOrNever(RequestId),
}

/// A workspace as it stands.
pub(super) struct WorkspaceLoad {
    pub(super) in_use: u64,
    pub(super) limit: u64,
    pub(super) waiting: u64,
    pub(super) waiting_seats: u64,
}

/// The shard as it stands.
pub(super) struct ShardLoad {
    pub(super) in_use: u64,
    pub(super) exempt: u64,
    pub(super) waiting: u64,
    pub(super) nodes: usize,
    pub(super) horizon: u64,
}

/// The scheduler of one shard; of each pair of rules the gate's state needs one.
#[allow(clippy::large_enum_variant, reason = "there is one per gate")]
pub(super) enum Engine {
    Tree(scheduler::Shard),
    Upstream(upstream::Shard),
}

use Engine::{Tree, Upstream};

impl Engine {
    pub(super) fn new(now: u64, options: &GateOptions, policy: &GatePolicy) -> Self {
        let (seats, levels) = (options.seats, options.profile.levels());
        match policy.compat {
            Compat::Fairgate => Tree(scheduler::Shard::new(seats, levels, policy.tuning, Compat::Fairgate)),
            Compat::Upstream => Upstream(upstream::Shard::new(now, seats, levels)),
        }
    }

    #[cfg(test)]
    pub(super) fn verify(&self) -> Result<(), String> {
        match self {
            Tree(shard) => shard.core().verify(),
            Upstream(_) => Ok(()),
        }
    }

    pub(super) fn is_upstream(&self) -> bool {
        matches!(self, Upstream(_))
    }

    pub(super) fn add_workspace(&mut self, now: u64, class: WorkspaceClass) -> WorkspaceId {
        match self {
            Tree(shard) => shard.add_workspace(now, class),
            Upstream(shard) => shard.add_workspace(now, class),
        }
    }

    pub(super) fn keep_workspace(&mut self, id: WorkspaceId) {
        match self {
            Tree(shard) => shard.keep_workspace(id),
            Upstream(shard) => shard.keep_workspace(id),
        }
    }

    pub(super) fn set_known(&mut self, workspaces: u32) {
        if let Tree(shard) = self {
            shard.core_mut().set_known(workspaces);
        }
    }

    pub(super) fn set_standing(&mut self, nodes: u32) {
        if let Tree(shard) = self {
            shard.core_mut().set_standing(nodes);
        }
    }

    /// Does what is due before an arrival is looked up; tells `gone` of each workspace that went.
    pub(super) fn advance(&mut self, now: u64, gone: impl FnMut(WorkspaceId)) {
        if let Upstream(shard) = self {
            shard.advance(now);
            self.reap(now, 0, gone);
        }
    }

    pub(super) fn arrive(
        &mut self,
        now: u64,
        id: WorkspaceId,
        level: u16,
        flow: u64,
        cost: &Cost,
    ) -> Result<Arrived, RefusedArrival> {
        match self {
            Tree(shard) => Ok(match shard.arrive(now, id, level, flow, width(cost))? {
                scheduler::Arrival::Exempt(seats) => Arrived::Exempt(None, seats),
                scheduler::Arrival::Queued(id) => Arrived::Queued(id),
                scheduler::Arrival::NowOrNever(id) => Arrived::NowOrNever(id),
            }),
            Upstream(shard) => Ok(match shard.arrive(now, id, level, flow, work(cost))? {
                upstream::Arrived::Running(id) => Arrived::Exempt(Some(id), shard.width(id)),
                upstream::Arrived::Queued(id) => Arrived::Queued(id),
            }),
        }
    }

    pub(super) fn dispatch(&mut self, now: u64) -> Option<RequestId> {
        match self {
            Tree(shard) => shard.dispatch(now),
            Upstream(shard) => shard.dispatch(now),
        }
    }

    /// A running request has been answered. When its seats come back if not at once; [`Engine::complete`] it then.
    pub(super) fn finish(&mut self, now: u64, id: Option<RequestId>, tail: u64) -> Option<u64> {
        match (self, id) {
            (Upstream(shard), Some(id)) => shard.finish(now, id),
            _ => (tail > 0).then(|| now.saturating_add(tail)),
        }
    }

    pub(super) fn complete(&mut self, now: u64, id: Option<RequestId>, seats: u32) -> bool {
        match (self, id) {
            (Tree(shard), Some(id)) => shard.complete(now, id),
            (Upstream(shard), Some(id)) => shard.complete(now, id),
            (Tree(shard), None) => {
                shard.exempt_end(now, seats);
                true
            }
            (Upstream(_), None) => false,
        }
    }

    /// As [`Engine::complete`], for seats that served several requests in turn.
    pub(super) fn complete_all(&mut self, now: u64, id: RequestId, releases: &Releases) -> bool {
        match self {
            Tree(shard) => shard.complete_all(now, id, releases),
            Upstream(shard) => shard.complete(now, id),
        }
    }

    /// The seats of a running request may go to others unseen from now on.
    pub(super) fn set_aside(&mut self, id: RequestId) {
        if let Tree(shard) = self {
            shard.core_mut().set_aside(id);
        }
    }

    /// They are with a request that began at `start`, and stay there.
    pub(super) fn restart(&mut self, id: RequestId, start: u64) {
        if let Tree(shard) = self {
            shard.core_mut().restart(id, start);
        }
    }

    /// Whether seats may be parked. Kubernetes' rules need to see each request.
    pub(super) fn spare(&self) -> Spare {
        match self {
            Tree(shard) => shard.core().spare(),
            Upstream(_) => Spare::None,
        }
    }

    pub(super) fn cancel(&mut self, now: u64, id: RequestId) -> bool {
        match self {
            Tree(shard) => shard.cancel(now, id),
            Upstream(shard) => shard.cancel(now, id),
        }
    }

    pub(super) fn width(&self, id: RequestId) -> u32 {
        match self {
            Tree(shard) => shard.core().width(id),
            Upstream(shard) => shard.width(id),
        }
    }

    pub(super) fn is_waiting(&self, id: RequestId) -> bool {
        match self {
            Tree(shard) => shard.core().is_waiting(id),
            Upstream(shard) => shard.is_waiting(id),
        }
    }

    /// Whether a request at the end of the queue would wait for more than twice the time it has. Only
    /// asked of workspaces that run something: for others the prediction is too rough (scheduler.md 11).
    pub(super) fn hopeless(&mut self, now: u64, id: WorkspaceId, level: u16, left: u64) -> bool {
        match self {
            Tree(shard) => shard.level_in_use(id, level) > 0 && shard.expected_wait(now, id, level, 0) / 2 > left,
            Upstream(_) => false,
        }
    }

    /// Seconds for a refused client; it is the `number`th.
    pub(super) fn retry_after(&mut self, now: u64, id: WorkspaceId, level: u16, width: u32, number: u64) -> u32 {
        match self {
            Tree(shard) => super::state::retry_after(shard.expected_wait(now, id, level, width), number),
            Upstream(shard) => shard.refused(now, id, level),
        }
    }

    /// Drops up to `most` nodes that idled; tells `gone` of each workspace among them.
    pub(super) fn reap(&mut self, now: u64, most: usize, mut gone: impl FnMut(WorkspaceId)) {
        match self {
            Tree(shard) => {
                shard.reap(now, most);
                while let Some(id) = shard.reaped(now) {
                    gone(id);
                }
            }
            Upstream(shard) => {
                while let Some(id) = shard.reaped() {
                    gone(id);
                }
            }
        }
    }

    /// When something is due that no request brings about.
    pub(super) fn next_due(&self) -> Option<u64> {
        match self {
            Tree(shard) => [shard.next_reap(), shard.core().next_wakeup()].into_iter().flatten().min(),
            Upstream(shard) => Some(shard.next_wakeup()),
        }
    }

    pub(super) fn set_class(&mut self, now: u64, id: WorkspaceId, class: WorkspaceClass) -> bool {
        match self {
            Tree(shard) => shard.set_class(now, id, class),
            Upstream(shard) => shard.set_class(id, class),
        }
    }

    pub(super) fn forget_workspace(&mut self, now: u64, id: WorkspaceId) {
        match self {
            Tree(shard) => shard.forget_workspace(now, id),
            Upstream(shard) => shard.forget_workspace(id),
        }
    }

    /// Of ours, a workspace follows with its next request or with [`Engine::follow_levels`].
    pub(super) fn set_levels(&mut self, now: u64, levels: &[Level]) {
        match self {
            Tree(shard) => shard.replace_levels(levels),
            Upstream(shard) => shard.set_levels(now, levels),
        }
    }

    /// Lets the workspaces with these indices follow.
    pub(super) fn follow_levels(&mut self, now: u64, workspaces: Range<usize>) {
        if let Tree(shard) = self {
            shard.follow_levels(now, workspaces);
        }
    }

    /// Seats that are promised to workspaces and cannot be kept for them.
    pub(super) fn reserves_missing(&self) -> u64 {
        match self {
            Tree(shard) => shard.reserves_missing(),
            Upstream(_) => 0,
        }
    }

    /// The ceiling of the width of requests to a level of a workspace, where each has its own.
    pub(super) fn max_seats(&self, id: WorkspaceId, level: u16) -> Option<u32> {
        match self {
            Tree(_) => None,
            Upstream(shard) => shard.max_seats(id, level),
        }
    }

    pub(super) fn set_seats(&mut self, now: u64, seats: u32) {
        match self {
            Tree(shard) => shard.set_seats(now, seats),
            Upstream(shard) => shard.set_seats(now, seats),
        }
    }

    pub(super) fn workspace_slots(&self) -> usize {
        match self {
            Tree(shard) => shard.workspace_slots(),
            Upstream(shard) => shard.workspace_slots(),
        }
    }

    pub(super) fn workspace_at(&self, index: usize) -> Option<WorkspaceId> {
        match self {
            Tree(shard) => shard.workspace_at(index),
            Upstream(shard) => shard.workspace_at(index),
        }
    }

    pub(super) fn add_level_seats(&mut self, id: WorkspaceId, sums: &mut [LevelSeats]) {
        match self {
            Tree(shard) => shard.add_level_seats(id, sums),
            Upstream(shard) => shard.add_level_seats(id, sums),
        }
    }

    /// Adds the demand of the last period, by name of level; ours keeps none.
    pub(super) fn add_demand(&self, id: WorkspaceId, sums: &mut BTreeMap<Box<str>, DemandSums>) {
        let Upstream(shard) = self else { return };
        for view in shard.levels(id) {
            let (meter, limits) = (view.demand.meter, view.demand.limits);
            let sum = sums.entry(view.level.name.clone()).or_default();
            let least = limits.min.max(limits.nominal.min(meter.high_watermark));
            sum.high_watermark += f64::from(meter.high_watermark);
            sum.average += meter.average;
            sum.deviation += meter.deviation;
            sum.smoothed += meter.smoothed;
            sum.target += if view.demand.exempt { 0.0 } else { meter.smoothed.max(f64::from(least)) };
        }
    }

    pub(super) fn workspace_load(&mut self, now: u64, id: WorkspaceId) -> Option<WorkspaceLoad> {
        match self {
            Tree(shard) => shard.workspace_state(now, id).map(|node| WorkspaceLoad {
                in_use: node.in_use.into(),
                limit: node.spec.maximum.into(),
                waiting: node.waiting.into(),
                waiting_seats: node.waiting_seats,
            }),
            Upstream(shard) => shard.workspace_load(id).map(|(load, nominal)| WorkspaceLoad {
                in_use: load.seats_in_use,
                limit: nominal.into(),
                waiting: load.waiting,
                waiting_seats: load.waiting_seats,
            }),
        }
    }

    pub(super) fn load(&self) -> ShardLoad {
        match self {
            Tree(shard) => {
                let core = shard.core();
                ShardLoad {
                    in_use: core.in_use(core.root()).into(),
                    exempt: core.exempt().into(),
                    waiting: core.waiting(core.root()).into(),
                    nodes: core.nodes(),
                    horizon: core.horizon(),
                }
            }
            Upstream(shard) => {
                let (limited, exempt) = shard.total_load();
                ShardLoad {
                    in_use: limited.seats_in_use,
                    exempt: exempt.seats_in_use,
                    waiting: limited.waiting,
                    nodes: shard.workspace_slots(),
                    horizon: 0,
                }
            }
        }
    }
}

/// Seats that ours charges from start to end.
pub(super) fn width(cost: &Cost) -> u32 {
    cost.initial_seats.max(cost.final_seats).max(1)
}

fn work(cost: &Cost) -> upstream::Work {
    upstream::Work {
        initial_seats: cost.initial_seats,
        final_seats: cost.final_seats,
        additional_latency_ns: tail(cost),
    }
}

/// Length of the tail in nanoseconds.
pub(super) fn tail(cost: &Cost) -> u64 {
    cost.additional_latency.as_nanos().min(u128::from(u64::MAX)) as u64
}
