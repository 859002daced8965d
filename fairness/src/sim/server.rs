//! What a scenario is played on: our scheduler, or [`Apf`](super::apf::Apf).

use crate::scheduler::{Arrival, RequestId, Shard, WorkspaceClass, WorkspaceId};

/// What became of a request at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// Its seats are free.
    Ended,
    /// Its seats are free at this moment.
    Lingers(u64),
    /// It did not run.
    Unknown,
}

/// A server under a scenario. Tenants and levels are numbers.
pub(super) trait Server {
    /// Whether the server itself knows how long a tail lasts: then requests end without theirs.
    const TIMES_TAILS: bool;

    /// A request comes; `None` if it is refused.
    fn arrive(&mut self, now: u64, to: (usize, usize), queue: u32, width: u32, tail: u64) -> Option<Arrival>;
    fn dispatch(&mut self, now: u64) -> Option<RequestId>;
    fn complete(&mut self, now: u64, id: RequestId) -> Completion;
    fn cancel(&mut self, now: u64, id: RequestId) -> bool;
    fn exempt_end(&mut self, now: u64, seats: u32);
    fn set_seats(&mut self, now: u64, seats: u32);
    fn set_class(&mut self, now: u64, tenant: usize, class: WorkspaceClass);
    /// Seats charged for a present request.
    fn width(&self, id: RequestId) -> u32;
    fn next_wakeup(&self) -> Option<u64>;
    /// Heap entries looked at so far.
    fn looks(&self) -> u64;
}

/// Our scheduler. Tenants come with their first request and go after a while without.
pub(super) struct Tree {
    pub(super) shard: Shard,
    tenants: Vec<(WorkspaceClass, Option<WorkspaceId>)>,
}

impl Tree {
    pub(super) fn new(shard: Shard, classes: impl Iterator<Item = WorkspaceClass>) -> Self {
        Self { shard, tenants: classes.map(|class| (class, None)).collect() }
    }

    fn workspace(&mut self, now: u64, at: usize) -> Option<WorkspaceId> {
        let (class, id) = self.tenants.get_mut(at)?;
        Some(*id.get_or_insert_with(|| self.shard.add_workspace(now, *class)))
    }
}

impl Server for Tree {
    const TIMES_TAILS: bool = false;

    fn arrive(&mut self, now: u64, (at, level): (usize, usize), queue: u32, width: u32, _: u64) -> Option<Arrival> {
        let id = self.workspace(now, at)?;
        self.shard.arrive(now, id, level as u16, u64::from(queue), width).ok()
    }

    fn dispatch(&mut self, now: u64) -> Option<RequestId> {
        self.shard.dispatch(now)
    }

    fn complete(&mut self, now: u64, id: RequestId) -> Completion {
        let ran = self.shard.complete(now, id);
        self.shard.reap(now, 2);
        while let Some(gone) = self.shard.reaped(now) {
            for (_, id) in &mut self.tenants {
                *id = id.filter(|id| *id != gone);
            }
        }
        if ran { Completion::Ended } else { Completion::Unknown }
    }

    fn cancel(&mut self, now: u64, id: RequestId) -> bool {
        self.shard.cancel(now, id)
    }

    fn exempt_end(&mut self, now: u64, seats: u32) {
        self.shard.exempt_end(now, seats);
    }

    fn set_seats(&mut self, now: u64, seats: u32) {
        self.shard.set_seats(now, seats);
    }

    fn set_class(&mut self, now: u64, at: usize, new: WorkspaceClass) {
        let Some(id) = self.workspace(now, at) else { return };
        if let Some((class, _)) = self.tenants.get_mut(at) {
            *class = new;
        }
        self.shard.set_class(now, id, new);
    }

    fn width(&self, id: RequestId) -> u32 {
        self.shard.core().width(id)
    }

    fn next_wakeup(&self) -> Option<u64> {
        self.shard.core().next_wakeup()
    }

    fn looks(&self) -> u64 {
        self.shard.core().looks()
    }
}
