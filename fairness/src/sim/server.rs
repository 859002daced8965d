//! What a scenario is played on: our scheduler, or [`Apf`](super::apf::Apf).

use crate::scheduler::{Arrival, RefusedArrival, RequestId, Shard, WorkspaceClass, WorkspaceId};

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

    /// A request of a flow comes, to this tenant and level.
    fn arrive(
        &mut self,
        now: u64,
        to: (usize, usize),
        flow: u64,
        width: u32,
        tail: u64,
    ) -> Result<Arrival, RefusedArrival>;
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
    /// Which tenant a workspace of the scheduler is, by its index.
    holders: Vec<usize>,
}

impl Tree {
    pub(super) fn new(shard: Shard, classes: impl Iterator<Item = WorkspaceClass>) -> Self {
        Self { shard, tenants: classes.map(|class| (class, None)).collect(), holders: Vec::new() }
    }

    fn workspace(&mut self, now: u64, at: usize) -> Option<WorkspaceId> {
        let (class, id) = self.tenants.get_mut(at)?;
        if let Some(id) = *id {
            return Some(id);
        }
        let new = self.shard.add_workspace(now, *class);
        *id = Some(new);
        if self.holders.len() <= new.index() {
            self.holders.resize(new.index() + 1, 0);
        }
        if let Some(holder) = self.holders.get_mut(new.index()) {
            *holder = at;
        }
        Some(new)
    }
}

impl Server for Tree {
    const TIMES_TAILS: bool = false;

    fn arrive(
        &mut self,
        now: u64,
        (at, level): (usize, usize),
        flow: u64,
        width: u32,
        _: u64,
    ) -> Result<Arrival, RefusedArrival> {
        let id = self.workspace(now, at).ok_or(RefusedArrival::ConcurrencyLimit)?;
        self.shard.arrive(now, id, level as u16, flow, width)
    }

    fn dispatch(&mut self, now: u64) -> Option<RequestId> {
        self.shard.dispatch(now)
    }

    fn complete(&mut self, now: u64, id: RequestId) -> Completion {
        let ran = self.shard.complete(now, id);
        self.shard.reap(now, 2);
        while let Some(gone) = self.shard.reaped(now) {
            let holder = self.holders.get(gone.index()).copied();
            if let Some((_, id)) = holder.and_then(|at| self.tenants.get_mut(at)) {
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
