//! Kubernetes' priority and fairness for the workspaces of one shard: each is a server of its own.
//!
//! A workspace has a queue set per level. The seats of a level are CurrentCL of the ten-second adjustment on the
//! workspace's nominal seats: those it was given, or its part of what these leave, by its shares among those of
//! the active workspaces. A workspace is active from its first request until an adjustment finds it without one
//! and with a smoothed demand below half a seat. Nothing else goes from one workspace to another: no headroom,
//! no claims, no lending. With one workspace that owns the shard every decision is that of Kubernetes.
//!
//! # Invariants
//! * Each request leaves once: [`finish`](Shard::finish) then [`complete`](Shard::complete), or
//!   [`cancel`](Shard::cancel).
//! * A workspace that was forgotten keeps its place until its last request has left.
//!
//! # Costs
//! A request costs what its [`QueueSet`] does, an adjustment O(workspaces × levels) every ten seconds, a
//! workspace some 50 kB under the bootstrap levels: queues are made with their level.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::{
    ADJUSTMENT_PERIOD_NS, Adjustment, Arrival, LevelDemand, Load, QueueSet, Reason, RetryAfter, Settings, Ticket, Work,
    demand::DemandMeter,
};
use crate::{
    Compat, Level, LevelKind, Limits, limits,
    scheduler::{LevelSeats, RefusedArrival, RequestId, WorkspaceClass, WorkspaceId},
};

/// A workspace without a request for so long is dropped, at the next adjustment.
const IDLE_NS: u64 = 600_000_000_000;
/// Smoothed seats from which a workspace without requests counts as active.
const ACTIVE_SEATS: f64 = 0.5;
/// Seconds between the epoch of [`RetryAfter`] and the start of the clock: long past, as it demands.
const EPOCH_S: u64 = 1 << 32;

/// What became of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// It runs: its level is exempt.
    Running(RequestId),
    /// It waits until [`Shard::dispatch`] says that it runs, which may be at once.
    Queued(RequestId),
}

/// One level of a workspace, to look at.
#[derive(Clone, Copy, Debug)]
pub struct LevelView<'a> {
    /// Its configuration.
    pub level: &'a Level,
    /// Whether it is no longer configured and only drains.
    pub quiescing: bool,
    /// Its queues.
    pub set: &'a QueueSet,
    /// Its seats and demand.
    pub demand: &'a LevelDemand,
}

/// One level of a workspace.
#[derive(Debug)]
struct LevelState {
    set: QueueSet,
    kind: LevelKind,
    demand: LevelDemand,
    retry: RetryAfter,
    ids: HashMap<Ticket, RequestId>,
}

impl LevelState {
    fn new(now: u64, kind: LevelKind, limits: Limits) -> Self {
        let current = limits.nominal - limits.lendable / 2;
        let exempt = kind == LevelKind::Exempt;
        Self {
            set: QueueSet::new(now, Settings { kind, limit: current }),
            kind,
            demand: LevelDemand { exempt, limits, meter: DemandMeter::default(), current },
            retry: RetryAfter::default(),
            ids: HashMap::new(),
        }
    }
}

#[derive(Debug)]
struct Workspace {
    class: WorkspaceClass,
    nominal: u32,
    /// The [`Shard::division`] that `nominal` belongs to.
    division: u64,
    active: bool,
    /// Not dropped when it idles.
    keep: bool,
    /// Nobody sends requests any more; it goes with the last that is here.
    forgotten: bool,
    /// Requests that wait, run or linger.
    open: u32,
    last_seen: u64,
    /// By [`Shard::entries`].
    levels: Vec<Option<LevelState>>,
}

/// A level that some profile has had.
#[derive(Debug)]
struct Entry {
    level: Level,
    /// Whether the profile in force has it; if not it only drains.
    in_force: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    workspace: u32,
    entry: usize,
    /// `None`: free.
    ticket: Option<Ticket>,
    seats: u32,
    waits: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Shard {
    seats: u32,
    entries: Vec<Entry>,
    /// From the profile's index of a level to that of `entries`.
    places: Vec<usize>,
    workspaces: Vec<Option<Workspace>>,
    free: Vec<u32>,
    reaped: VecDeque<WorkspaceId>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    started: VecDeque<RequestId>,
    /// Changes with the seats, the classes and the set of active workspaces.
    division: u64,
    /// Shares of the active workspaces.
    active_shares: u64,
    /// Sum of the absolute seats given away.
    absolute: u64,
    next_adjustment: u64,
}

impl Shard {
    /// A shard with all seats free. The first adjustment is due ten seconds from `now`.
    pub fn new(now: u64, seats: u32, levels: &[Level]) -> Self {
        let mut shard = Self {
            seats,
            entries: Vec::new(),
            places: Vec::new(),
            workspaces: Vec::new(),
            free: Vec::new(),
            reaped: VecDeque::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            started: VecDeque::new(),
            division: 0,
            active_shares: 0,
            absolute: 0,
            next_adjustment: now.saturating_add(ADJUSTMENT_PERIOD_NS),
        };
        shard.set_levels(now, levels);
        shard
    }

    /// Makes a workspace. It gets its queues with its first request.
    pub fn add_workspace(&mut self, now: u64, class: WorkspaceClass) -> WorkspaceId {
        let at = self.free.pop().unwrap_or(self.workspaces.len() as u32);
        let workspace = Workspace {
            class,
            nominal: 0,
            division: u64::MAX,
            active: false,
            keep: matches!(class, WorkspaceClass::Seats { .. }),
            forgotten: false,
            open: 0,
            last_seen: now,
            levels: Vec::new(),
        };
        match self.workspaces.get_mut(at as usize) {
            Some(place) => *place = Some(workspace),
            None => self.workspaces.push(Some(workspace)),
        }
        self.absolute += absolute(class);
        self.division += 1;
        WorkspaceId::new(at)
    }

    /// The workspace is not dropped when it idles, only when it is forgotten.
    pub fn keep_workspace(&mut self, id: WorkspaceId) {
        if let Some(workspace) = self.workspace_mut(id.index()) {
            workspace.keep = true;
        }
    }

    /// Gives a workspace another class; its next request finds the new seats. `false`: a change between shares
    /// and seats; forget it and add it again.
    pub fn set_class(&mut self, id: WorkspaceId, class: WorkspaceClass) -> bool {
        let Some(workspace) = self.workspace_mut(id.index()) else { return true };
        let old = std::mem::replace(&mut workspace.class, class);
        let active = workspace.active;
        self.absolute = self.absolute - absolute(old) + absolute(class);
        if active {
            self.active_shares = self.active_shares - shares(old) + shares(class);
        }
        self.division += 1;
        std::mem::discriminant(&old) == std::mem::discriminant(&class)
    }

    /// Nobody will send requests for this workspace any more: what is here is served.
    pub fn forget_workspace(&mut self, id: WorkspaceId) {
        self.deactivate(id.index());
        let Some(workspace) = self.workspace_mut(id.index()) else { return };
        workspace.forgotten = true;
        let class = workspace.class;
        self.absolute -= absolute(class);
        self.division += 1;
        self.drop_if_done(id.index());
    }

    /// Puts other levels in force. Levels of the same name are the same level; those that are gone take part in
    /// the division until their last request has left. Call [`Shard::dispatch`] then.
    pub fn set_levels(&mut self, now: u64, levels: &[Level]) {
        self.entries.iter_mut().for_each(|entry| entry.in_force = false);
        self.places.clear();
        for level in levels {
            let entry = Entry { level: level.clone(), in_force: true };
            let at = self.entries.iter().position(|e| e.level.name == level.name).unwrap_or(self.entries.len());
            match self.entries.get_mut(at) {
                Some(old) => *old = entry,
                None => self.entries.push(entry),
            }
            self.places.push(at);
        }
        self.division += 1;
        for at in 0..self.workspaces.len() {
            if self.workspace(at).is_some_and(|w| !w.levels.is_empty()) {
                self.digest(now, at);
            }
        }
    }

    /// Changes the shard's seats. Call [`Shard::dispatch`] then.
    pub fn set_seats(&mut self, now: u64, seats: u32) {
        self.seats = seats;
        self.division += 1;
        for at in 0..self.workspaces.len() {
            if self.workspace(at).is_some_and(|w| !w.levels.is_empty()) {
                self.digest(now, at);
            }
        }
    }

    /// A request arrives at the level with this index in the profile, as `flow`.
    ///
    /// # Errors
    /// It is refused, and nothing remembers it but the counts.
    pub fn arrive(
        &mut self,
        now: u64,
        id: WorkspaceId,
        level: u16,
        flow: u64,
        work: Work,
    ) -> Result<Arrived, RefusedArrival> {
        const REFUSED: RefusedArrival = RefusedArrival::ConcurrencyLimit;
        self.adjust_if_due(now);
        let entry = self.places.get(usize::from(level)).copied().ok_or(REFUSED)?;
        let is_exempt = self.entries.get(entry).is_some_and(|entry| entry.level.kind == LevelKind::Exempt);
        if !is_exempt
            && self
                .workspace(id.index())
                .is_some_and(|workspace| matches!(workspace.class, WorkspaceClass::Seats { seats: 0, .. }))
        {
            return Err(REFUSED);
        }
        self.activate(now, id.index());
        let state = self.level_mut(id.index(), entry).ok_or(REFUSED)?;
        let mut out = Vec::new();
        let (ticket, runs, exempt) = match state.set.arrive(now, flow, work, &mut out) {
            Arrival::Refused(Reason::QueueFull) => return Err(RefusedArrival::QueueFull),
            Arrival::Refused(Reason::ConcurrencyLimit) => return Err(REFUSED),
            Arrival::Queued(ticket, _) => (ticket, false, false),
            Arrival::Running(ticket) => (ticket, true, state.kind == LevelKind::Exempt),
        };
        let id = self.take_slot(id.index() as u32, entry, ticket, work.max_seats());
        if exempt {
            self.set_waits(id, false);
            return Ok(Arrived::Running(id));
        }
        match runs {
            true => self.started.push_back(id),
            false => self.note_started(id.index(), out),
        }
        Ok(Arrived::Queued(id))
    }

    /// The next request that runs now; to be called after every event until it says `None`.
    pub fn dispatch(&mut self, now: u64) -> Option<RequestId> {
        self.adjust_if_due(now);
        let id = self.started.pop_front()?;
        self.set_waits(id, false);
        Some(id)
    }

    /// The handler of a running request has returned. Gives the moment at which its seats come back if it has a
    /// tail; [`Shard::complete`] it then, or at once. Call [`Shard::dispatch`] in either case.
    pub fn finish(&mut self, now: u64, id: RequestId) -> Option<u64> {
        let (slot, ticket) = self.slot(id)?;
        let mut out = Vec::new();
        let until = self.level_mut(slot.workspace as usize, slot.entry)?.set.finish(now, ticket, &mut out);
        self.note_started(id.index(), out);
        until
    }

    /// A finished request's seats come back. Call [`Shard::dispatch`] then.
    pub fn complete(&mut self, now: u64, id: RequestId) -> bool {
        let Some((slot, ticket)) = self.slot(id) else { return false };
        let mut out = Vec::new();
        if let Some(level) = self.level_mut(slot.workspace as usize, slot.entry) {
            level.set.release(now, ticket, &mut out);
        }
        self.note_started(id.index(), out);
        self.drop_slot(now, id, slot, ticket);
        true
    }

    /// A waiting request goes away unserved. It starts nobody, even if it stood in the way.
    pub fn cancel(&mut self, now: u64, id: RequestId) -> bool {
        let Some((slot, ticket)) = self.slot(id) else { return false };
        let level = self.level_mut(slot.workspace as usize, slot.entry);
        let cancelled = level.is_some_and(|level| level.set.cancel(now, ticket));
        if cancelled {
            self.drop_slot(now, id, slot, ticket);
        }
        cancelled
    }

    /// Notes a refusal; gives the seconds after which its client should come again.
    pub fn refused(&mut self, now: u64, id: WorkspaceId, level: u16) -> u32 {
        let entry = self.places.get(usize::from(level)).copied().unwrap_or(usize::MAX);
        let second = EPOCH_S + now / 1_000_000_000;
        self.level_mut(id.index(), entry).map_or(1, |level| level.retry.refused(second) as u32)
    }

    /// Whether the request waits.
    pub fn is_waiting(&self, id: RequestId) -> bool {
        self.slot(id).is_some_and(|(slot, _)| slot.waits)
    }

    /// Seats that the request asked for.
    pub fn width(&self, id: RequestId) -> u32 {
        self.slot(id).map_or(0, |(slot, _)| slot.seats)
    }

    /// A workspace that was dropped because it idled, until it says `None`.
    pub fn reaped(&mut self) -> Option<WorkspaceId> {
        let id = self.reaped.pop_front()?;
        // Not earlier: until now the caller takes the index for that workspace.
        self.free.push(id.index() as u32);
        Some(id)
    }

    /// Does what is due; before an arrival is looked up, since idle workspaces may go. See [`Shard::reaped`].
    pub fn advance(&mut self, now: u64) {
        self.adjust_if_due(now);
    }

    /// When the next adjustment is due.
    pub fn next_wakeup(&self) -> u64 {
        self.next_adjustment
    }

    /// One past the largest index of a workspace.
    pub fn workspace_slots(&self) -> usize {
        self.workspaces.len()
    }

    /// The workspace at this index, if there is one.
    pub fn workspace_at(&self, index: usize) -> Option<WorkspaceId> {
        self.workspace(index).filter(|w| !w.forgotten).map(|_| WorkspaceId::new(index as u32))
    }

    /// Adds the seats of a workspace's levels to `sums`, which has one entry per level of the profile.
    pub fn add_level_seats(&self, id: WorkspaceId, sums: &mut [LevelSeats]) {
        for (entry, sum) in self.places.iter().zip(sums) {
            let Some(LevelDemand { limits, current, .. }) = self.level(id.index(), *entry).map(|l| l.demand) else {
                continue;
            };
            sum.nominal += u64::from(limits.nominal);
            sum.lower += u64::from(limits.min);
            sum.upper += u64::from(limits.max);
            sum.current += u64::from(current);
        }
    }

    /// Ceiling of the width of a request to a level of the workspace, which is a server of its own (apf.md 6.2); 0: none.
    /// `None` before its first request.
    pub fn max_seats(&self, id: WorkspaceId, level: u16) -> Option<u32> {
        let entry = self.places.get(usize::from(level))?;
        Some(self.level(id.index(), *entry)?.demand.limits.max_seats)
    }

    /// The levels of a workspace that has had a request.
    pub fn levels(&self, id: WorkspaceId) -> impl Iterator<Item = LevelView<'_>> {
        let states = self.workspace(id.index()).map_or(&[][..], |w| &w.levels).iter();
        states.zip(&self.entries).filter_map(|(state, entry)| {
            let LevelState { set, demand, .. } = state.as_ref()?;
            Some(LevelView { level: &entry.level, quiescing: !entry.in_force, set, demand })
        })
    }

    /// See [`QueueSet::place`].
    pub fn place(&self, id: RequestId) -> Option<(Option<u32>, Option<u32>)> {
        let (slot, ticket) = self.slot(id)?;
        Some(self.level(slot.workspace as usize, slot.entry)?.set.place(ticket))
    }

    /// What is in a workspace's limited levels, and the seats that these divide.
    pub fn workspace_load(&self, id: WorkspaceId) -> Option<(Load, u32)> {
        let workspace = self.workspace(id.index())?;
        let limited = workspace.levels.iter().flatten().filter(|l| l.kind != LevelKind::Exempt);
        Some((sum(limited.map(|l| l.set.load())), workspace.nominal))
    }

    /// What is in all limited levels, and in all exempt ones.
    pub fn total_load(&self) -> (Load, Load) {
        let levels = || self.workspaces.iter().flatten().flat_map(|w| w.levels.iter().flatten());
        let of = |exempt: bool| sum(levels().filter(|l| (l.kind == LevelKind::Exempt) == exempt).map(|l| l.set.load()));
        (of(false), of(true))
    }

    fn workspace(&self, at: usize) -> Option<&Workspace> {
        self.workspaces.get(at)?.as_ref()
    }

    fn workspace_mut(&mut self, at: usize) -> Option<&mut Workspace> {
        self.workspaces.get_mut(at)?.as_mut()
    }

    fn level(&self, workspace: usize, entry: usize) -> Option<&LevelState> {
        self.workspace(workspace)?.levels.get(entry)?.as_ref()
    }

    fn level_mut(&mut self, workspace: usize, entry: usize) -> Option<&mut LevelState> {
        self.workspace_mut(workspace)?.levels.get_mut(entry)?.as_mut()
    }

    /// A request comes: the workspace takes part in the division.
    fn activate(&mut self, now: u64, at: usize) {
        let Some(workspace) = self.workspace_mut(at) else { return };
        workspace.last_seen = now;
        if !workspace.active {
            workspace.active = true;
            let class = workspace.class;
            self.active_shares += shares(class);
            self.division += u64::from(shares(class) > 0);
        }
        let Some(workspace) = self.workspace(at) else { return };
        if workspace.levels.is_empty() {
            self.digest(now, at);
        } else if workspace.division != self.division && self.nominal(workspace) != workspace.nominal {
            self.set_limits(now, at);
            self.apply(now, at, Adjustment::divide);
        }
    }

    fn deactivate(&mut self, at: usize) {
        let Some(workspace) = self.workspace_mut(at).filter(|w| w.active) else { return };
        workspace.active = false;
        let class = workspace.class;
        self.active_shares -= shares(class);
        self.division += u64::from(shares(class) > 0);
    }

    /// The seats that a workspace's levels divide: if it is not active, what they would be if it were.
    fn nominal(&self, workspace: &Workspace) -> u32 {
        let own = shares(workspace.class);
        match workspace.class {
            WorkspaceClass::Seats { seats, .. } => seats,
            WorkspaceClass::Shares { .. } => {
                let pool = u64::from(self.seats).saturating_sub(self.absolute);
                let all = self.active_shares + if workspace.active { 0 } else { own };
                (pool * own).div_ceil(all.max(1)) as u32
            }
        }
    }

    /// Limits of the levels in force and of those that drain; makes and drops levels.
    fn set_limits(&mut self, now: u64, at: usize) {
        let Some(workspace) = self.workspaces.get_mut(at).and_then(Option::take) else { return };
        let mut workspace = workspace;
        (workspace.nominal, workspace.division) = (self.nominal(&workspace), self.division);
        workspace.levels.resize_with(self.entries.len(), || None);
        let both = || self.entries.iter().zip(0..);
        let busy = |state: &Option<LevelState>| state.as_ref().is_some_and(|level| !level.ids.is_empty());
        let present: Vec<usize> = both()
            .filter(|(entry, n)| entry.in_force || workspace.levels.get(*n).is_some_and(busy))
            .map(|(_, n)| n)
            .collect();
        let levels: Vec<Level> = present.iter().filter_map(|n| self.entries.get(*n)).map(|e| e.level.clone()).collect();
        let mut division = limits(workspace.nominal, &levels, Compat::Upstream).into_iter().zip(&levels);
        for (n, place) in workspace.levels.iter_mut().enumerate() {
            if present.binary_search(&n).is_err() {
                *place = None;
                continue;
            }
            let Some((limits, level)) = division.next() else { continue };
            let state = place.get_or_insert_with(|| LevelState::new(now, level.kind, limits));
            (state.kind, state.demand.limits) = (level.kind, limits);
            state.demand.exempt = level.kind == LevelKind::Exempt;
        }
        if let Some(place) = self.workspaces.get_mut(at) {
            *place = Some(workspace);
        }
    }

    /// Takes in levels and seats, and adjusts at once; the ten seconds run on.
    fn digest(&mut self, now: u64, at: usize) {
        self.set_limits(now, at);
        self.adjust(now, at);
    }

    fn adjust(&mut self, now: u64, at: usize) {
        let Some(workspace) = self.workspace_mut(at) else { return };
        let periods: Vec<_> = workspace.levels.iter_mut().flatten().map(|l| l.set.end_period(now)).collect();
        self.apply(now, at, |adjustment| adjustment.adjust(periods));
    }

    /// Divides the workspace's seats by `divide`, and lets each queue set start what it can.
    fn apply(&mut self, now: u64, at: usize, divide: impl FnOnce(&mut Adjustment)) {
        let Some(workspace) = self.workspaces.get_mut(at).and_then(Option::as_mut) else { return };
        let mut adjustment = Adjustment { levels: workspace.levels.iter().flatten().map(|l| l.demand).collect() };
        divide(&mut adjustment);
        let mut out = Vec::new();
        for (level, demand) in workspace.levels.iter_mut().flatten().zip(adjustment.levels) {
            level.demand = demand;
            level.set.reconfigure(now, Settings { kind: level.kind, limit: demand.current }, &mut out);
            self.started.extend(out.drain(..).filter_map(|ticket| level.ids.get(&ticket)));
        }
    }

    fn adjust_if_due(&mut self, now: u64) {
        if now < self.next_adjustment {
            return;
        }
        let periods = (now - self.next_adjustment) / ADJUSTMENT_PERIOD_NS + 1;
        self.next_adjustment = self.next_adjustment.saturating_add(periods * ADJUSTMENT_PERIOD_NS);
        for at in 0..self.workspaces.len() {
            let Some(workspace) = self.workspace(at).filter(|w| !w.levels.is_empty() || !w.keep) else { continue };
            let idle = workspace.open == 0;
            if idle && !workspace.keep && now.saturating_sub(workspace.last_seen) >= IDLE_NS {
                self.deactivate(at);
                self.remove(at);
                self.reaped.push_back(WorkspaceId::new(at as u32));
                continue;
            }
            if self.nominal(workspace) != workspace.nominal {
                self.set_limits(now, at);
            }
            self.adjust(now, at);
            let smoothed = |w: &Workspace| w.levels.iter().flatten().map(|l| l.demand.meter.smoothed).sum::<f64>();
            if idle && self.workspace(at).is_some_and(|w| smoothed(w) < ACTIVE_SEATS) {
                self.deactivate(at);
            }
        }
    }

    fn slot(&self, id: RequestId) -> Option<(Slot, Ticket)> {
        let slot = self.slots.get(id.index())?;
        let ticket = slot.ticket.filter(|_| id == RequestId::new(id.index() as u32, slot.generation))?;
        Some((*slot, ticket))
    }

    fn take_slot(&mut self, workspace: u32, entry: usize, ticket: Ticket, seats: u32) -> RequestId {
        let index = self.free_slots.pop().unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation.wrapping_add(1));
        let slot = Slot { generation, workspace, entry, ticket: Some(ticket), seats, waits: true };
        match self.slots.get_mut(index as usize) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        let id = RequestId::new(index, generation);
        if let Some(level) = self.level_mut(workspace as usize, entry) {
            level.ids.insert(ticket, id);
        }
        if let Some(workspace) = self.workspace_mut(workspace as usize) {
            workspace.open += 1;
        }
        id
    }

    fn drop_slot(&mut self, now: u64, id: RequestId, slot: Slot, ticket: Ticket) {
        let at = slot.workspace as usize;
        if let Some(place) = self.slots.get_mut(id.index()) {
            place.ticket = None;
            self.free_slots.push(id.index() as u32);
        }
        let drained = !self.entries.get(slot.entry).is_some_and(|entry| entry.in_force);
        let mut last = false;
        if let Some(level) = self.level_mut(at, slot.entry) {
            level.ids.remove(&ticket);
            last = drained && level.ids.is_empty();
        }
        if let Some(workspace) = self.workspace_mut(at) {
            workspace.open -= 1;
        }
        if last {
            // As upstream: a level that became idle is dropped by a digestion.
            self.digest(now, at);
        }
        self.drop_if_done(at);
    }

    fn set_waits(&mut self, id: RequestId, waits: bool) {
        if let Some(slot) = self.slots.get_mut(id.index()) {
            slot.waits = waits;
        }
    }

    /// Queues what the level of the request at this slot started.
    fn note_started(&mut self, slot: usize, out: Vec<Ticket>) {
        let Some(&Slot { workspace, entry, .. }) = self.slots.get(slot) else { return };
        let level = self.workspaces.get(workspace as usize).and_then(Option::as_ref);
        let Some(level) = level.and_then(|w| w.levels.get(entry)?.as_ref()) else { return };
        self.started.extend(out.into_iter().filter_map(|ticket| level.ids.get(&ticket)));
    }

    fn drop_if_done(&mut self, at: usize) {
        if self.workspace(at).is_some_and(|w| w.forgotten && w.open == 0) {
            self.remove(at);
            // Its name is forgotten already.
            self.free.push(at as u32);
        }
    }

    fn remove(&mut self, at: usize) {
        if let Some(place) = self.workspaces.get_mut(at) {
            *place = None;
        }
    }
}

fn shares(class: WorkspaceClass) -> u64 {
    match class {
        WorkspaceClass::Shares { shares, .. } => shares.max(1).into(),
        WorkspaceClass::Seats { .. } => 0,
    }
}

fn absolute(class: WorkspaceClass) -> u64 {
    match class {
        WorkspaceClass::Shares { .. } => 0,
        WorkspaceClass::Seats { seats, .. } => seats.into(),
    }
}

fn sum(loads: impl Iterator<Item = Load>) -> Load {
    loads.fold(Load::default(), |a, b| Load {
        waiting: a.waiting + b.waiting,
        waiting_seats: a.waiting_seats + b.waiting_seats,
        executing: a.executing + b.executing,
        seats_in_use: a.seats_in_use + b.seats_in_use,
    })
}

#[cfg(test)]
mod tests;
