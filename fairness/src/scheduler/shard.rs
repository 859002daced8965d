//! One shard's tree as the gate and the simulator use it: workspaces, their levels, shuffle-sharded queues.
//!
//! Workspaces with shares are children of one pool node, those with absolute seats of the shard itself, so
//! that a tenant's arrival never changes what another was promised. Levels and queues get nodes on first
//! use. Nodes that idle are dropped; those of absolute workspaces stay until the workspace is forgotten.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use super::{
    class::{WorkspaceClass, leave_one, level_spec, promise, workspace_spec},
    measure::Releases,
    node::{NodeId, NodeSpec, Owner, push},
    requests::RequestId,
    tree::{NodeState, Scheduler, Tuning},
};
use crate::levels::{Compat, Level, LevelKind, Limits, limits};

/// A workspace known to the shard. Valid until [`Shard::reaped`] reports it or it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspaceId(u32);

impl WorkspaceId {
    /// An id outside this scheduler, for the other one behind the gate.
    pub(crate) fn new(index: u32) -> Self {
        Self(index)
    }

    /// A small number that no other present workspace has, for tables beside the scheduler.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What became of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its level is exempt: it runs. Give the seats back with [`Shard::exempt_end`].
    Exempt(u32),
    /// It waits in a queue; [`Shard::dispatch`] may start it at once.
    Queued(RequestId),
    /// As `Queued`, but if it is not started at once it must be cancelled: its level does not let wait.
    NowOrNever(RequestId),
}

/// Why an arrival was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedArrival {
    /// As many requests as may wait in its queue do.
    QueueFull,
    /// Its level has no seats and may borrow none.
    ConcurrencyLimit,
}

/// Seats of one level, summed over the workspaces that have nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelSeats {
    /// Its part of the workspaces' seats.
    pub nominal: u64,
    /// What is kept for it.
    pub lower: u64,
    /// What it may use at most, no more than the shard has.
    pub upper: u64,
    /// What it uses or keeps now.
    pub current: u64,
}

#[derive(Debug)]
struct Workspace {
    node: NodeId,
    class: WorkspaceClass,
    nominal: u32,
    nominal_at: u64,
    /// Which of the successive tables of levels it follows.
    version: u64,
    /// Levels with nodes, a handful.
    levels: Vec<LevelSlot>,
}

#[derive(Debug)]
struct LevelSlot {
    /// Index into [`Shard::levels`].
    level: u16,
    node: NodeId,
    /// Arrivals so far: where the search for the shortest queue begins.
    arrivals: u32,
    /// Queues with nodes, sorted by number.
    queues: Vec<(u32, NodeId)>,
}

#[derive(Clone, Debug)]
struct LevelEntry {
    level: Level,
    /// Its place in the profile; `None` when it is no longer in it and only drains.
    place: Option<u16>,
    /// Workspaces with a node for it. Once it is in no profile and has none, another level takes its index.
    slots: u32,
}

/// Divisions of seats among the levels that are remembered.
const CACHED_LIMITS: usize = 256;
/// A workspace's levels follow its nominal seats no more often than this.
const NOMINAL_EVERY: u64 = 10_000_000;

/// The scheduler of one shard.
#[derive(Debug)]
pub struct Shard {
    core: Scheduler,
    pool: NodeId,
    seats: u32,
    /// Sum of the absolute seats given away.
    absolute: u32,
    /// Workspaces with absolute seats, in the order in which they came.
    promised: Vec<u32>,
    workspaces: Vec<Option<Workspace>>,
    free: Vec<u32>,
    /// The levels of the profile, and those that drain, by an index that outlives a change of the profile.
    levels: Vec<LevelEntry>,
    version: u64,
    /// From the profile's index to that one.
    places: Vec<u16>,
    profile: Vec<Level>,
    /// Workspaces whose level that is gone has drained: their levels in force get their reserves.
    drained: Vec<u32>,
    limits: BTreeMap<u32, Arc<[Limits]>>,
    compat: Compat,
}

impl Shard {
    /// A shard with all seats free. `compat` says how a workspace's seats are divided among its levels.
    pub fn new(seats: u32, levels: &[Level], tuning: Tuning, compat: Compat) -> Self {
        let mut core = Scheduler::new(seats, tuning);
        let pool = core.add_pool(0, seats);
        let mut shard = Self {
            core,
            pool,
            seats,
            absolute: 0,
            promised: Vec::new(),
            workspaces: Vec::new(),
            free: Vec::new(),
            levels: Vec::new(),
            version: 0,
            places: Vec::new(),
            profile: Vec::new(),
            drained: Vec::new(),
            limits: BTreeMap::new(),
            compat,
        };
        shard.set_levels(0, levels);
        shard
    }

    /// The tree below.
    pub fn core(&self) -> &Scheduler {
        &self.core
    }

    /// The tree below, for questions that bring it up to date first.
    pub fn core_mut(&mut self) -> &mut Scheduler {
        &mut self.core
    }

    /// Puts other levels in force. Levels of the same name are the same level; those that are gone serve who
    /// waits there under their old dials. O(workspaces × levels). Call [`Shard::dispatch`] then.
    pub fn set_levels(&mut self, now: u64, levels: &[Level]) {
        self.replace_levels(levels);
        self.follow_levels(now, 0..self.workspaces.len());
    }

    /// As [`Shard::set_levels`], but a workspace follows with its next request, or when [`Shard::follow_levels`] comes to
    /// it. O(levels).
    pub(crate) fn replace_levels(&mut self, levels: &[Level]) {
        let mut known = HashMap::with_capacity(self.levels.len());
        for (at, entry) in self.levels.iter_mut().enumerate() {
            entry.place = None;
            known.insert(entry.level.name.clone(), at);
        }
        let in_force: HashSet<&str> = levels.iter().map(|level| &*level.name).collect();
        let is_new = |level: &&Level| !known.contains_key(&level.name);
        let mut new = levels.iter().filter(is_new).cloned().collect::<Vec<_>>().into_iter();
        let is_free = |entry: &LevelEntry| entry.slots == 0 && !in_force.contains(&*entry.level.name);
        for (at, entry) in self.levels.iter_mut().enumerate().filter(|(_, entry)| is_free(entry)) {
            let Some(level) = new.next() else { break };
            known.insert(level.name.clone(), at);
            entry.level = level;
        }
        for level in new {
            known.insert(level.name.clone(), self.levels.len());
            self.levels.push(LevelEntry { level, place: None, slots: 0 });
        }
        self.places.clear();
        self.limits.clear();
        self.profile = levels.to_vec();
        self.version += 1;
        for (place, level) in (0..).zip(levels) {
            let at = *known.get(&level.name).expect("each level was entered above");
            if let Some(entry) = self.levels.get_mut(at) {
                (entry.level, entry.place) = (level.clone(), Some(place));
            }
            // One too many, while so many others drain, is refused.
            self.places.push(u16::try_from(at).unwrap_or(u16::MAX));
        }
    }

    /// Lets the workspaces with these indices follow the levels. Call [`Shard::dispatch`] then.
    pub(crate) fn follow_levels(&mut self, now: u64, workspaces: Range<usize>) {
        for at in workspaces.start..workspaces.end.min(self.workspaces.len()) {
            self.apply_limits(now, at as u32);
        }
    }

    /// Changes the shard's seats. O(nodes). Call [`Shard::dispatch`] then.
    pub fn set_seats(&mut self, now: u64, seats: u32) {
        self.seats = seats;
        self.core.set_seats(now, seats);
        self.weigh_pool(now);
        self.keep_promises(now);
    }

    /// Seats that are promised to workspaces and not kept for them, since the shard has not so many.
    pub fn reserves_missing(&self) -> u64 {
        let workspaces = self.promised.iter().filter_map(|at| self.workspaces.get(*at as usize)?.as_ref());
        let promised = workspaces.map(|workspace| u64::from(promise(workspace.class))).sum::<u64>();
        promised.saturating_sub(self.seats.into())
    }

    /// Gives reserves out, first come, first served, as far as the shard has the seats. Whose shrink come first, so that
    /// their sum does not exceed the shard meanwhile.
    fn keep_promises(&mut self, now: u64) {
        let (mut left, mut grown) = (self.seats, Vec::new());
        for at in &self.promised {
            let Some(workspace) = self.workspaces.get(*at as usize).and_then(Option::as_ref) else { continue };
            let (node, spec) = (workspace.node, self.core.spec(workspace.node));
            let reserve = promise(workspace.class).min(left);
            left -= reserve;
            match reserve.cmp(&spec.reserve) {
                Ordering::Less => self.core.reconfigure(now, node, NodeSpec { reserve, ..spec }),
                Ordering::Equal => {}
                Ordering::Greater => grown.push((node, NodeSpec { reserve, ..spec })),
            }
        }
        grown.into_iter().for_each(|(node, spec)| self.core.reconfigure(now, node, spec));
    }

    fn weigh_pool(&mut self, now: u64) {
        let weight = self.seats.saturating_sub(self.absolute).max(1);
        self.core.reconfigure(now, self.pool, NodeSpec { weight, reserve: 0, maximum: u32::MAX });
    }

    /// Makes a node for a workspace. Reserves beyond the shard's seats are not given, see
    /// [`Shard::reserves_missing`].
    pub fn add_workspace(&mut self, now: u64, class: WorkspaceClass) -> WorkspaceId {
        let at = self.free.pop().unwrap_or(self.workspaces.len() as u32);
        let (parent, absolute) = match class {
            WorkspaceClass::Shares { .. } => (self.pool, 0),
            WorkspaceClass::Seats { seats, .. } => (self.core.root(), seats),
        };
        let spec = workspace_spec(class, self.seats, 0);
        let owner = Owner { workspace: at, level: None, queue: None };
        let node = self.core.add_node(now, parent, spec, true, owner);
        let workspace = Workspace { node, class, nominal: 0, nominal_at: 0, version: self.version, levels: Vec::new() };
        match self.workspaces.get_mut(at as usize) {
            Some(place) => *place = Some(workspace),
            None => push(&mut self.workspaces, Some(workspace)),
        }
        if let WorkspaceClass::Seats { .. } = class {
            self.core.keep(node);
            self.promised.push(at);
            self.absolute = self.absolute.saturating_add(absolute);
            self.weigh_pool(now);
            self.keep_promises(now);
        }
        self.follow_nominal(now, at);
        WorkspaceId(at)
    }

    /// Gives a workspace another class. `false`: a change between shares and seats takes another node;
    /// forget the workspace and add it again. Call [`Shard::dispatch`] then.
    pub fn set_class(&mut self, now: u64, id: WorkspaceId, class: WorkspaceClass) -> bool {
        let Some(workspace) = self.workspaces.get_mut(id.index()).and_then(Option::as_mut) else { return true };
        match (workspace.class, class) {
            (WorkspaceClass::Seats { seats: old, .. }, WorkspaceClass::Seats { seats, .. }) => {
                self.absolute = self.absolute.saturating_sub(old).saturating_add(seats);
            }
            (WorkspaceClass::Shares { .. }, WorkspaceClass::Shares { .. }) => {}
            _ => return false,
        }
        workspace.class = class;
        workspace.nominal_at = 0;
        let node = workspace.node;
        let spec = workspace_spec(class, self.seats, self.core.spec(node).reserve);
        self.core.reconfigure(now, node, spec);
        self.weigh_pool(now);
        self.keep_promises(now);
        self.follow_nominal(now, id.0);
        true
    }

    /// The workspace is not dropped when it idles, only when it is forgotten.
    pub fn keep_workspace(&mut self, id: WorkspaceId) {
        if let Some(workspace) = self.workspaces.get(id.index()).and_then(Option::as_ref) {
            self.core.keep(workspace.node);
        }
    }

    /// Nobody will send requests for this workspace any more: its queues drain, what it was promised is free.
    pub fn forget_workspace(&mut self, now: u64, id: WorkspaceId) {
        let Some(workspace) = self.workspaces.get_mut(id.index()).and_then(Option::take) else { return };
        self.free.push(id.0);
        for slot in &workspace.levels {
            if let Some(entry) = self.levels.get_mut(usize::from(slot.level)) {
                entry.slots -= 1;
            }
            slot.queues.iter().for_each(|(_, queue)| self.core.disown(now, *queue));
            self.core.disown(now, slot.node);
        }
        let spec = self.core.state(now, workspace.node).spec;
        self.core.reconfigure(now, workspace.node, NodeSpec { reserve: 0, ..spec });
        self.core.disown(now, workspace.node);
        if let WorkspaceClass::Seats { seats, .. } = workspace.class {
            self.absolute = self.absolute.saturating_sub(seats);
            self.promised.retain(|at| *at != id.0);
            self.weigh_pool(now);
            self.keep_promises(now);
        }
    }

    /// The seats that a workspace's levels divide now.
    fn nominal(&self, workspace: &Workspace) -> u32 {
        match workspace.class {
            WorkspaceClass::Seats { seats, .. } => seats,
            WorkspaceClass::Shares { shares, .. } => {
                let pool = u64::from(self.seats.saturating_sub(self.absolute));
                let active = self.core.active_weight(self.pool, workspace.node);
                (pool * u64::from(shares.max(1)) / active.max(1)) as u32
            }
        }
    }

    fn follow_nominal(&mut self, now: u64, at: u32) {
        let Some(workspace) = self.workspaces.get(at as usize).and_then(Option::as_ref) else { return };
        let early = now.saturating_sub(workspace.nominal_at) < NOMINAL_EVERY && workspace.nominal_at > 0;
        let stale = workspace.version != self.version;
        if early && !stale {
            return;
        }
        let nominal = self.nominal(workspace);
        if nominal != workspace.nominal || workspace.nominal_at == 0 || stale {
            let (node, class) = (workspace.node, workspace.class);
            if let WorkspaceClass::Shares { borrowing_limit_percent: Some(_), .. } = class {
                let spec = workspace_spec(class, nominal, 0);
                self.core.reconfigure(now, node, spec);
            }
            if let Some(workspace) = self.workspaces.get_mut(at as usize).and_then(Option::as_mut) {
                workspace.nominal = nominal;
                workspace.nominal_at = now.max(1);
            }
            self.apply_limits(now, at);
        }
    }

    /// The division of `nominal` seats among the levels of the profile.
    fn division(&mut self, nominal: u32) -> Arc<[Limits]> {
        if let Some(known) = self.limits.get(&nominal) {
            return known.clone();
        }
        if self.limits.len() >= CACHED_LIMITS {
            self.limits.clear();
        }
        let mut division = limits(nominal, &self.profile, self.compat);
        leave_one(&mut division, &self.profile, nominal);
        let division: Arc<[Limits]> = division.into();
        self.limits.insert(nominal, division.clone());
        division
    }

    /// Whether requests of levels that are gone still wait or run here. Until then the levels in force keep nothing, so
    /// that their reserves cannot shut the old ones out.
    fn drains(&self, workspace: &Workspace) -> bool {
        let busy = |slot: &LevelSlot| self.core.in_use(slot.node) > 0 || self.core.waiting(slot.node) > 0;
        let gone = |slot: &LevelSlot| self.levels.get(usize::from(slot.level)).is_none_or(|e| e.place.is_none());
        workspace.levels.iter().any(|slot| gone(slot) && busy(slot))
    }

    fn apply_limits(&mut self, now: u64, at: u32) {
        let Some(workspace) = self.workspaces.get_mut(at as usize).and_then(Option::as_mut) else { return };
        workspace.version = self.version;
        let nominal = workspace.nominal;
        let division = self.division(nominal);
        let Some(workspace) = self.workspaces.get(at as usize).and_then(Option::as_ref) else { return };
        let drains = self.drains(workspace);
        let limited = self.profile.iter().zip(division.iter()).filter(|(l, _)| l.kind != LevelKind::Exempt);
        let mut absent: u32 = if drains { 0 } else { limited.map(|(_, limits)| limits.min).sum() };
        for slot in &workspace.levels {
            let Some(entry) = self.levels.get(usize::from(slot.level)) else { continue };
            let old = self.core.spec(slot.node);
            let mut new = match entry.place.and_then(|place| division.get(usize::from(place))) {
                Some(limits) => level_spec(&entry.level, limits),
                None => NodeSpec { reserve: 0, ..old },
            };
            if drains {
                new.reserve = 0;
            }
            absent = absent.saturating_sub(new.reserve);
            if new != old {
                self.core.reconfigure(now, slot.node, new);
            }
        }
        self.core.set_absent_reserve(now, workspace.node, absent);
    }

    /// A request arrives at the level with this index in the profile, as `flow`, asking for `width` seats.
    ///
    /// # Errors
    /// It is refused, and nothing remembers it.
    pub fn arrive(
        &mut self,
        now: u64,
        id: WorkspaceId,
        level: u16,
        flow: u64,
        width: u32,
    ) -> Result<Arrival, RefusedArrival> {
        let place = self.places.get(usize::from(level)).copied().ok_or(RefusedArrival::ConcurrencyLimit)?;
        let kind = self.levels.get(usize::from(place)).map(|e| e.level.kind).ok_or(RefusedArrival::ConcurrencyLimit)?;
        if kind == LevelKind::Exempt {
            self.core.exempt_start(now, width);
            return Ok(Arrival::Exempt(width));
        }
        self.follow_nominal(now, id.0);
        let slot = self.level_slot(now, id, place).ok_or(RefusedArrival::ConcurrencyLimit)?;
        let LevelKind::Queue(queuing) = kind else {
            let queue = self.queue(now, id, slot, 0).ok_or(RefusedArrival::ConcurrencyLimit)?;
            return Ok(Arrival::NowOrNever(self.enqueue(now, queue, width)?));
        };
        let number = self.shortest_queue(id, slot, flow, queuing).ok_or(RefusedArrival::ConcurrencyLimit)?;
        let queue = self.queue(now, id, slot, number).ok_or(RefusedArrival::ConcurrencyLimit)?;
        // Whoever waits there could not start in the step before this one, and stands before this one.
        if self.core.waiting(queue) >= queuing.queue_length_limit {
            return Err(RefusedArrival::QueueFull);
        }
        Ok(Arrival::Queued(self.enqueue(now, queue, width)?))
    }

    fn enqueue(&mut self, now: u64, queue: NodeId, width: u32) -> Result<RequestId, RefusedArrival> {
        match self.core.widest(queue) {
            // To wait for what can never be is worse than a refusal.
            0 => Err(RefusedArrival::ConcurrencyLimit),
            widest => Ok(self.core.enqueue(now, queue, width.clamp(1, widest))),
        }
    }

    /// The place of the level among the workspace's; makes its node. `None` if the level can have no seat.
    fn level_slot(&mut self, now: u64, id: WorkspaceId, level: u16) -> Option<usize> {
        let workspace = self.workspaces.get(id.index())?.as_ref()?;
        if let Some(at) = workspace.levels.iter().position(|slot| slot.level == level) {
            let slot = workspace.levels.get(at)?;
            return (self.core.spec(slot.node).maximum > 0).then_some(at);
        }
        let (node, nominal, drains) = (workspace.node, workspace.nominal, self.drains(workspace));
        let division = self.division(nominal);
        let entry = self.levels.get(usize::from(level))?;
        let mut spec = level_spec(&entry.level, division.get(usize::from(entry.place?))?);
        if drains {
            spec.reserve = 0;
        }
        if spec.maximum == 0 {
            return None;
        }
        let owner = Owner { workspace: id.0, level: Some(level), queue: None };
        let node = self.core.add_node(now, node, spec, true, owner);
        let workspace = self.workspaces.get_mut(id.index())?.as_mut()?;
        workspace.levels.reserve_exact(1);
        workspace.levels.push(LevelSlot { level, node, arrivals: 0, queues: Vec::new() });
        let slot = workspace.levels.len() - 1;
        self.levels.get_mut(usize::from(level))?.slots += 1;
        Some(slot)
    }

    /// The queue of the flow's hand with the least waiting work; the search begins one further each time.
    fn shortest_queue(
        &mut self,
        id: WorkspaceId,
        slot: usize,
        flow: u64,
        queuing: crate::levels::Queuing,
    ) -> Option<u32> {
        let slot = self.workspaces.get_mut(id.index())?.as_mut()?.levels.get_mut(slot)?;
        if queuing.queues == 1 {
            return Some(0);
        }
        let hand = crate::shuffle::hand(flow, queuing.queues, queuing.hand_size);
        let offset = slot.arrivals as usize % hand.len().max(1);
        slot.arrivals = slot.arrivals.wrapping_add(1);
        let work = |number: &u32| match slot.queues.binary_search_by_key(number, |(n, _)| *n) {
            Ok(at) => slot.queues.get(at).map_or(0, |(_, node)| self.core.waiting_seats(*node)),
            Err(_) => 0,
        };
        let (before, after) = hand.split_at_checked(offset)?;
        // The first of the smallest, which is what `min_by_key` gives.
        after.iter().chain(before).min_by_key(|number| work(number)).copied()
    }

    fn queue(&mut self, now: u64, id: WorkspaceId, slot: usize, number: u32) -> Option<NodeId> {
        let slot = self.workspaces.get_mut(id.index())?.as_mut()?.levels.get_mut(slot)?;
        match slot.queues.binary_search_by_key(&number, |(n, _)| *n) {
            Ok(at) => slot.queues.get(at).map(|(_, node)| *node),
            Err(at) => {
                let spec = NodeSpec { weight: 1, reserve: 0, maximum: u32::MAX };
                let owner = Owner { workspace: id.0, level: Some(slot.level), queue: Some(number) };
                let node = self.core.add_node(now, slot.node, spec, false, owner);
                slot.queues.reserve_exact(slot.queues.is_empty().into());
                slot.queues.insert(at, (number, node));
                Some(node)
            }
        }
    }

    /// Starts the next request; to be called after every event until it says `None`.
    pub fn dispatch(&mut self, now: u64) -> Option<RequestId> {
        self.core.dispatch(now)
    }

    /// A running request has ended, its tail too. Call [`Shard::dispatch`] then.
    pub fn complete(&mut self, now: u64, id: RequestId) -> bool {
        let workspace = self.core.workspace_of(id);
        let ended = self.core.complete(now, id);
        self.after_end(now, workspace);
        ended
    }

    /// What its workspace may use is looked at again when a request ends too: a backlog that gets no more arrivals would
    /// go on with what it had among more neighbours.
    fn after_end(&mut self, now: u64, workspace: Option<u32>) {
        if let Some(workspace) = workspace.filter(|_| self.core.waiting(self.core.root()) > 0) {
            self.follow_nominal(now, workspace);
        }
    }

    /// As [`Shard::complete`], for seats that served several requests in turn.
    pub(crate) fn complete_all(&mut self, now: u64, id: RequestId, releases: &Releases) -> bool {
        let workspace = self.core.workspace_of(id);
        let ended = self.core.complete_all(now, id, releases);
        self.after_end(now, workspace);
        ended
    }

    /// A waiting request goes away unserved. Call [`Shard::dispatch`] then.
    pub fn cancel(&mut self, now: u64, id: RequestId) -> bool {
        self.core.cancel(now, id)
    }

    /// Exempt seats come back. Call [`Shard::dispatch`] then.
    pub fn exempt_end(&mut self, now: u64, width: u32) {
        self.core.exempt_end(now, width);
    }

    /// Drops up to `most` nodes that idled; says when to come again.
    pub fn reap(&mut self, now: u64, most: usize) -> Option<u64> {
        self.core.reap(now, most)
    }

    /// When [`Shard::reap`] has something to do.
    pub fn next_reap(&self) -> Option<u64> {
        self.core.next_reap()
    }

    /// A workspace that was dropped because it idled, one at a time; to be called after [`Shard::reap`] until it says
    /// `None`.
    pub fn reaped(&mut self, now: u64) -> Option<WorkspaceId> {
        while let Some(owner) = self.core.reaped() {
            let Some(place) = self.workspaces.get_mut(owner.workspace as usize) else { continue };
            let Some(level) = owner.level else {
                *place = None;
                self.free.push(owner.workspace);
                return Some(WorkspaceId(owner.workspace));
            };
            let Some(workspace) = place else { continue };
            let Some(at) = workspace.levels.iter().position(|slot| slot.level == level) else { continue };
            match owner.queue {
                None => {
                    workspace.levels.swap_remove(at);
                    if let Some(entry) = self.levels.get_mut(usize::from(level)) {
                        entry.slots -= 1;
                        if entry.place.is_none() {
                            self.drained.push(owner.workspace);
                        }
                    }
                }
                Some(number) => {
                    if let Some(slot) = workspace.levels.get_mut(at)
                        && let Ok(queue) = slot.queues.binary_search_by_key(&number, |(n, _)| *n)
                    {
                        slot.queues.remove(queue);
                    }
                }
            }
        }
        // Not before all that was dropped is forgotten here: a dropped node must not be touched again.
        for at in std::mem::take(&mut self.drained) {
            self.apply_limits(now, at);
        }
        None
    }

    /// Expected wait in nanoseconds of a new request of `width` seats at the end of the queues of this level
    /// (scheduler.md 11); 1 s when nothing has been measured yet.
    pub fn expected_wait(&mut self, now: u64, id: WorkspaceId, level: u16, width: u32) -> u64 {
        const UNKNOWN: u64 = 1_000_000_000;
        let Some(workspace) = self.workspaces.get(id.index()).and_then(Option::as_ref) else { return UNKNOWN };
        let place = self.places.get(usize::from(level)).copied();
        let slot = workspace.levels.iter().find(|slot| Some(slot.level) == place);
        let (node, slot_node) = (workspace.node, slot.map(|slot| slot.node));
        let own = self.core.state(now, node);
        let (ahead, in_use) = slot_node.map_or((0, 0), |n| (self.core.waiting_seats(n), self.core.in_use(n)));
        let k = u128::from(ahead + u64::from(width));
        let all = self.core.mean_duration().unwrap_or(UNKNOWN);
        let (weight, backlogged, seats) = self.core.share_of(node);
        let by_share = k * u128::from(all) * u128::from(backlogged) / (seats * u128::from(weight)).max(1);
        let by_use = own.mean_duration.filter(|_| in_use > 0).map(|h| k * u128::from(h) / u128::from(in_use));
        by_use.map_or(by_share, |by_use| by_use.min(by_share)).min(u128::from(u64::MAX)) as u64
    }

    /// The workspace's node as it stands.
    pub fn workspace_state(&mut self, now: u64, id: WorkspaceId) -> Option<NodeState> {
        let node = self.workspaces.get(id.index())?.as_ref()?.node;
        Some(self.core.state(now, node))
    }

    /// Seats in use at a level of the workspace.
    pub fn level_in_use(&self, id: WorkspaceId, level: u16) -> u32 {
        let place = self.places.get(usize::from(level)).copied();
        let workspace = self.workspaces.get(id.index()).and_then(Option::as_ref);
        let slot = workspace.and_then(|w| w.levels.iter().find(|slot| Some(slot.level) == place));
        slot.map_or(0, |slot| self.core.in_use(slot.node))
    }

    /// The queues with nodes of a workspace's level, by number.
    pub fn queues(&self, id: WorkspaceId, level: u16) -> &[(u32, NodeId)] {
        let place = self.places.get(usize::from(level)).copied();
        let workspace = self.workspaces.get(id.index()).and_then(Option::as_ref);
        let slot = workspace.and_then(|w| w.levels.iter().find(|slot| Some(slot.level) == place));
        slot.map_or(&[], |slot| &slot.queues)
    }

    /// One past the largest index of a workspace, for walks in parts.
    pub fn workspace_slots(&self) -> usize {
        self.workspaces.len()
    }

    /// The workspace at this index, if there is one.
    pub fn workspace_at(&self, index: usize) -> Option<WorkspaceId> {
        self.workspaces.get(index)?.as_ref().map(|_| WorkspaceId(index as u32))
    }

    /// Adds the seats of a workspace's levels to `sums`, which has one entry per level of the profile.
    pub fn add_level_seats(&mut self, id: WorkspaceId, sums: &mut [LevelSeats]) {
        let Some(workspace) = self.workspaces.get(id.index()).and_then(Option::as_ref) else { return };
        let nominal = workspace.nominal;
        let division = self.division(nominal);
        let Some(workspace) = self.workspaces.get(id.index()).and_then(Option::as_ref) else { return };
        let most = self.core.spec(workspace.node).maximum.min(self.seats);
        let limited = self.profile.iter().zip(division.iter()).filter(|(level, _)| level.kind != LevelKind::Exempt);
        let reserved: u32 = limited.map(|(_, limits)| limits.min).sum();
        for (((at, level), limits), sum) in (0..).zip(&self.profile).zip(division.iter()).zip(sums) {
            let place = self.places.get(at).copied();
            let slot = workspace.levels.iter().find(|slot| Some(slot.level) == place);
            let spec = level_spec(level, limits);
            sum.nominal += u64::from(limits.nominal);
            sum.lower += u64::from(spec.reserve);
            // The other levels' reserves are never lent (#129086).
            sum.upper += u64::from(spec.maximum.min(most.saturating_sub(reserved.saturating_sub(spec.reserve))));
            sum.current += u64::from(slot.map_or(0, |slot| self.core.in_use(slot.node)).max(spec.reserve));
        }
    }
}

#[cfg(test)]
mod tests;
