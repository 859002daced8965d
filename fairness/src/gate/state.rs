//! What stands behind the gate's lock, and every change of it.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, task::Waker, time::Duration};

use apiserver_api::ClusterName;
use hashbrown::HashMap;

use super::{
    Classified, GateOptions, GatePolicy, Profile, Rejection, Request,
    engine::{self, Arrived, Engine},
    parking::{Key, Lot, Parking, Place},
    recall::Holders,
    stats::{Counters, FlowTable, Reason},
};
use crate::{
    profile::CATCH_ALL,
    scheduler::{RefusedArrival, RequestId, Spare, WorkspaceClass, WorkspaceId},
    wait::{DEFAULT_WAIT_LIMIT, wait_limit},
};

/// Whose request it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tenant<'a> {
    Known(&'a ClusterName),
    Platform,
}

/// Why an arrival is not decided yet.
pub(super) enum Undecided {
    /// Its workspace has no node: to be asked again with its class.
    Class,
    /// The profile in force has not its level.
    Level,
}

/// What is decided about an arrival.
pub(super) enum Decision {
    Run(Grant, Option<Place>),
    Wait(Ticket),
    Reject(Rejection),
}

/// What a permit must give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Grant {
    /// `None`: exempt, and without an id.
    pub(super) id: Option<RequestId>,
    pub(super) flow: u32,
    pub(super) seats: u32,
    /// Length of the tail in nanoseconds.
    tail: u64,
}

impl Grant {
    /// A grant of the scheduler's without a tail, as two numbers.
    pub(super) fn pack(self) -> [u64; 2] {
        let id = self.id.map_or(u64::MAX, RequestId::to_bits);
        [id, u64::from(self.flow) << 32 | u64::from(self.seats)]
    }

    pub(super) fn unpack([id, rest]: [u64; 2]) -> Self {
        Self { id: Some(RequestId::from_bits(id)), flow: (rest >> 32) as u32, seats: rest as u32, tail: 0 }
    }
}

/// A place in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    grant: Grant,
    pub(super) id: RequestId,
    workspace: WorkspaceId,
    pub(super) deadline: u64,
}

/// What is kept beside each request of the scheduler, by its index.
#[derive(Debug, Default)]
struct Slot {
    waker: Option<Waker>,
    arrived: u64,
    flow: u32,
    workspace: usize,
    /// Which of the successive users of that workspace index it is.
    serial: u64,
}

/// A workspace that has a node.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// `None` for the platform, and for those that share a node.
    pub(super) name: Option<ClusterName>,
    pub(super) counters: Counters,
    /// The same by pair of level and FlowSchema, for those of which there were any.
    by_flow: Vec<(u32, Counters)>,
    serial: u64,
}

impl Known {
    fn count(&mut self, flow: u32, count: impl Fn(&mut Counters)) {
        count(&mut self.counters);
        match self.by_flow.iter_mut().find(|(f, _)| *f == flow) {
            Some((_, counters)) => count(counters),
            None => {
                let mut counters = Counters::default();
                count(&mut counters);
                self.by_flow.push((flow, counters));
            }
        }
    }

    /// What happened at the level of this name.
    pub(super) fn at_level(&self, flows: &FlowTable, level: &str) -> Counters {
        let mut sum = Counters::default();
        self.by_flow.iter().filter(|(flow, _)| flows.level(*flow) == level).for_each(|(_, c)| sum.add(c));
        sum
    }

    pub(super) fn is_present(&self) -> bool {
        self.serial > 0
    }
}

/// Wakers to be called, or dropped, after the lock is released: either may run any code. One is the common case.
#[derive(Default)]
pub(super) struct Wakes {
    first: Option<Waker>,
    rest: Vec<Waker>,
    /// Of one who left, or has a new one.
    idle: Option<Waker>,
}

impl Wakes {
    fn push(&mut self, waker: Waker) {
        match self.first {
            None => self.first = Some(waker),
            Some(_) => self.rest.push(waker),
        }
    }

    /// Nobody waits for this one any more.
    fn retire(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            debug_assert!(self.idle.is_none(), "one request leaves at a time");
            self.idle = Some(waker);
        }
    }

    pub(super) fn wake(self) {
        self.first.into_iter().chain(self.rest).for_each(Waker::wake);
    }
}

pub(super) struct State {
    pub(super) shard: Engine,
    pub(super) profile: Arc<Profile>,
    pub(super) seats: u32,
    names: HashMap<ClusterName, WorkspaceId>,
    /// By index of the workspace.
    pub(super) known: Vec<Known>,
    serials: u64,
    platform: WorkspaceId,
    /// What those share whose names find no room.
    pub(super) others: WorkspaceId,
    /// So many names get nodes of their own.
    names_max: usize,
    slots: Vec<Slot>,
    /// Ends of tails, with what ends.
    tails: BinaryHeap<Reverse<(u64, Grant)>>,
    pub(super) flows: FlowTable,
    /// What the driver sleeps for; `u64::MAX` if for nothing.
    armed: u64,
    rejections: u64,
    pub(super) parking: Arc<Parking>,
    pub(super) lot: Lot,
    pub(super) holders: Holders,
}

/// Flows whose seats can be parked at a time, and requests.
const STACKS: u32 = 4_096;
const MOST_CELLS: u32 = 4_096;
/// Idle nodes dropped per event, and per tick.
const REAP_PER_EVENT: usize = 2;
const REAP_PER_TICK: usize = 256;
/// Workspaces that follow a profile before the lock is free for others.
const FOLLOW_PER_LOCK: usize = 256;

impl State {
    pub(super) fn new(now: u64, options: &GateOptions, policy: &GatePolicy) -> Self {
        let mut shard = Engine::new(now, options, policy);
        let shares = |shares| WorkspaceClass::Shares { shares, borrowing_limit_percent: None };
        let platform = shard.add_workspace(now, shares(policy.platform_shares));
        let others = shard.add_workspace(now, shares(policy.other_shares));
        for id in [platform, others] {
            shard.keep_workspace(id);
        }
        shard.set_standing(2);
        shard.set_known(2);
        let (parking, lot) = Parking::new(STACKS, options.seats.min(MOST_CELLS));
        let mut state = Self {
            shard,
            profile: options.profile.clone(),
            seats: options.seats,
            names: HashMap::new(),
            known: Vec::new(),
            serials: 0,
            platform,
            others,
            names_max: usize::MAX,
            slots: Vec::new(),
            tails: BinaryHeap::new(),
            flows: FlowTable::new(&options.profile),
            armed: u64::MAX,
            rejections: 0,
            parking: Arc::new(parking),
            lot,
            holders: Holders::default(),
        };
        state.register(platform, None);
        state.register(others, None);
        state
    }

    fn register(&mut self, id: WorkspaceId, name: Option<ClusterName>) {
        self.serials += 1;
        let known = Known { name, serial: self.serials, ..Known::default() };
        if self.known.len() <= id.index() {
            self.known.resize_with(id.index() + 1, Known::default);
        }
        if let Some(place) = self.known.get_mut(id.index()) {
            *place = known;
        }
    }

    /// A node for a workspace that has none.
    fn add(&mut self, now: u64, name: &ClusterName, class: WorkspaceClass) -> WorkspaceId {
        let id = self.shard.add_workspace(now, class);
        self.names.insert(name.clone(), id);
        self.register(id, Some(name.clone()));
        id
    }

    /// The node that a tenant's requests go to, made if need be; `None` while its class is to be looked up for that.
    fn node(&mut self, now: u64, tenant: Tenant<'_>, class: Option<WorkspaceClass>) -> Option<WorkspaceId> {
        let Tenant::Known(name) = tenant else { return Some(self.platform) };
        match self.names.get(name) {
            Some(id) => Some(*id),
            None if self.names.len() >= self.names_max => Some(self.others),
            None => Some(self.add(now, name, class?)),
        }
    }

    /// Decides about an arrival.
    ///
    /// # Errors
    /// See [`Undecided`]; nothing remembers the request then.
    pub(super) fn admit(
        &mut self,
        now: u64,
        tenant: Tenant<'_>,
        class: Option<WorkspaceClass>,
        request: &Request<'_>,
        key: Option<Key>,
        wakes: &mut Wakes,
    ) -> Result<Decision, Undecided> {
        self.end_tails(now, wakes);
        let (known, names) = (&mut self.known, &mut self.names);
        self.shard.advance(now, |id| forget_name(known, names, id));
        let workspace = self.node(now, tenant, class).ok_or(Undecided::Class)?;
        Ok(self.arrive(now, workspace, request, key, wakes))
    }

    fn arrive(
        &mut self,
        now: u64,
        workspace: WorkspaceId,
        request: &Request<'_>,
        key: Option<Key>,
        wakes: &mut Wakes,
    ) -> Decision {
        let cost = request.cost;
        let (width, tail) = (engine::width(&cost), engine::tail(&cost));
        let (level, flow) = self.place(request);
        let (id, may_wait) = match self.shard.arrive(now, workspace, level, request.class.flow, &cost) {
            Ok(Arrived::Exempt(id, seats)) => {
                self.flows.at(flow).started(seats);
                self.known(workspace).count(flow, |c| c.dispatched += 1);
                if self.shard.spare() == Spare::None {
                    self.recall(now);
                }
                // Looking the workspace up may have given others seats.
                self.pump(now, None, wakes);
                return Decision::Run(Grant { id, flow, seats, tail }, None);
            }
            Ok(Arrived::Queued(id)) => (id, true),
            Ok(Arrived::NowOrNever(id)) => (id, false),
            Err(refused) => {
                let reason = match refused {
                    RefusedArrival::QueueFull => Reason::QueueFull,
                    RefusedArrival::ConcurrencyLimit => Reason::ConcurrencyLimit,
                };
                self.pump(now, None, wakes);
                return Decision::Reject(self.reject(now, workspace, level, flow, width, reason));
            }
        };
        let seats = self.shard.width(id);
        let grant = Grant { id: Some(id), flow, seats, tail };
        self.take_slot(id, now, workspace, flow);
        self.flows.at(flow).queued(seats);
        // What is parked is free for whoever would have to wait.
        if self.pump(now, Some(id), wakes) || (self.recall(now) && self.pump(now, Some(id), wakes)) {
            self.may_open(now);
            return Decision::Run(grant, self.assign(now, key, grant));
        }
        let deadline = wait_limit(request.received_ns, request.timeout, DEFAULT_WAIT_LIMIT);
        let reason = if !may_wait {
            Reason::ConcurrencyLimit
        } else if deadline <= now {
            Reason::TimeOut
        } else if self.shard.hopeless(now, workspace, level, deadline - now) {
            Reason::Deadline
        } else {
            return Decision::Wait(Ticket { grant, id, workspace, deadline });
        };
        self.leave_queue(now, grant, id, wakes);
        Decision::Reject(self.reject(now, workspace, level, flow, width, reason))
    }

    /// Whether the profile in force has the level that the request was classified into.
    pub(super) fn has_level_of(&self, request: &Request<'_>) -> bool {
        request.profile.serial() == self.profile.serial()
            || (request.profile.levels().get(usize::from(request.class.level)))
                .is_some_and(|level| self.profile.level_named(&level.name).is_some())
    }

    /// Level and counters of a request. A stale classification is read by name: an index of another profile could
    /// mean any level, even `exempt`. What was not exempt there cannot become it: that level has a name of its own.
    fn place(&self, request: &Request<'_>) -> (u16, u32) {
        let Classified { flow_schema, level, .. } = request.class;
        if std::ptr::eq(request.profile, &*self.profile) {
            return (level, self.flows.of(flow_schema));
        }
        let old = request.profile.levels().get(usize::from(level)).map_or(CATCH_ALL, |level| &*level.name);
        let schema = request.profile.flow_schemas().get(usize::from(flow_schema)).map_or("", |schema| &*schema.name);
        match self.profile.level_named(old) {
            Some(level) => (level, self.flows.named(old, schema)),
            None => (self.profile.catch_all_level(), self.flows.named(CATCH_ALL, CATCH_ALL)),
        }
    }

    /// The workspace's node, if it has one; that of the platform for no name.
    pub(super) fn find(&self, name: Option<&ClusterName>) -> Option<WorkspaceId> {
        name.map_or(Some(self.platform), |name| self.names.get(name).copied())
    }

    /// The workspaces that have nodes of their own.
    pub(super) fn names(&self) -> Vec<ClusterName> {
        self.names.keys().cloned().collect()
    }

    fn take_slot(&mut self, id: RequestId, now: u64, workspace: WorkspaceId, flow: u32) {
        if self.slots.len() <= id.index() {
            self.slots.resize_with(id.index() + 1, Slot::default);
        }
        let serial = self.known.get(workspace.index()).map_or(0, |known| known.serial);
        if let Some(slot) = self.slots.get_mut(id.index()) {
            debug_assert!(slot.waker.is_none(), "whoever leaves or starts takes its waker along");
            *slot = Slot { waker: None, arrived: now, flow, workspace: workspace.index(), serial };
        }
    }

    /// Starts all that can start. Says whether `own` did; nobody is woken for that one.
    fn pump(&mut self, now: u64, own: Option<RequestId>, wakes: &mut Wakes) -> bool {
        let mut own_started = false;
        while let Some(id) = self.shard.dispatch(now) {
            let seats = self.shard.width(id);
            let Some(slot) = self.slots.get_mut(id.index()) else { continue };
            let wait = now.saturating_sub(slot.arrived);
            let flow = self.flows.at(slot.flow);
            flow.unqueued(seats);
            flow.started(seats);
            flow.waited(wait);
            if let Some(known) = self.known.get_mut(slot.workspace).filter(|known| known.serial == slot.serial) {
                known.count(slot.flow, |c| c.dispatched += 1);
            }
            match slot.waker.take() {
                Some(waker) => wakes.push(waker),
                None => own_started |= own == Some(id),
            }
        }
        own_started
    }

    fn known(&mut self, workspace: WorkspaceId) -> &mut Known {
        if self.known.len() <= workspace.index() {
            self.known.resize_with(workspace.index() + 1, Known::default);
        }
        self.known.get_mut(workspace.index()).expect("made above if it was missing")
    }

    fn reject(
        &mut self,
        now: u64,
        workspace: WorkspaceId,
        level: u16,
        flow: u32,
        width: u32,
        reason: Reason,
    ) -> Rejection {
        self.flows.at(flow).counters.reject(reason);
        self.known(workspace).count(flow, |c| c.reject(reason));
        self.rejections += 1;
        let retry_after = self.shard.retry_after(now, workspace, level, width, self.rejections);
        Rejection { reason: reason.as_str(), retry_after }
    }

    /// A waiting request goes, unserved.
    fn leave_queue(&mut self, now: u64, grant: Grant, id: RequestId, wakes: &mut Wakes) {
        wakes.retire(self.slots.get_mut(id.index()).and_then(|slot| slot.waker.take()));
        let waited = self.shard.cancel(now, id);
        debug_assert!(waited, "whoever starts is told before the lock is free");
        if waited {
            self.flows.at(grant.flow).unqueued(grant.seats);
        }
        self.pump(now, None, wakes);
    }

    /// What has become of a waiting request; `None`: it still waits, and `waker` will be called.
    pub(super) fn poll(
        &mut self,
        now: u64,
        ticket: Ticket,
        expired: bool,
        waker: &Waker,
        wakes: &mut Wakes,
    ) -> Option<Result<Grant, Rejection>> {
        if !self.shard.is_waiting(ticket.id) {
            return Some(Ok(ticket.grant));
        }
        let slot = self.slots.get_mut(ticket.id.index())?;
        if !expired {
            if !slot.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
                wakes.retire(slot.waker.replace(waker.clone()));
            }
            return None;
        }
        let wait = now.saturating_sub(slot.arrived);
        Some(Err(self.time_out(now, ticket, wait, wakes)))
    }

    fn time_out(&mut self, now: u64, ticket: Ticket, wait: u64, wakes: &mut Wakes) -> Rejection {
        let current = self.is_current(ticket);
        self.flows.at(ticket.grant.flow).waited(wait);
        self.leave_queue(now, ticket.grant, ticket.id, wakes);
        let (workspace, flow) = (ticket.workspace, ticket.grant.flow);
        let level = self.profile.level_named(self.flows.level(flow)).unwrap_or(self.profile.catch_all_level());
        // Its workspace may have been forgotten, and another have taken its place.
        let workspace = if current { workspace } else { self.others };
        self.reject(now, workspace, level, flow, ticket.grant.seats, Reason::TimeOut)
    }

    fn is_current(&self, ticket: Ticket) -> bool {
        let serial = self.slots.get(ticket.id.index()).map(|slot| slot.serial);
        self.known.get(ticket.workspace.index()).map(|known| known.serial) == serial
    }

    /// Nobody waits for this request any more.
    pub(super) fn abandon(&mut self, now: u64, ticket: Ticket, wakes: &mut Wakes) {
        if !self.shard.is_waiting(ticket.id) {
            // It was started in the meantime: it did nothing, and leaves no tail.
            return self.settle(now, Grant { tail: 0, ..ticket.grant }, wakes);
        }
        if self.shard.is_upstream() {
            // Upstream does not tell a client that went from one whose time was up.
            let wait = self.slots.get(ticket.id.index()).map_or(0, |slot| now.saturating_sub(slot.arrived));
            self.time_out(now, ticket, wait, wakes);
            return;
        }
        self.flows.at(ticket.grant.flow).counters.reject(Reason::Cancelled);
        if self.is_current(ticket) {
            self.known(ticket.workspace).count(ticket.grant.flow, |c| c.reject(Reason::Cancelled));
        }
        self.leave_queue(now, ticket.grant, ticket.id, wakes);
    }

    /// A running request has been answered; its seats come back after its tail.
    pub(super) fn settle(&mut self, now: u64, grant: Grant, wakes: &mut Wakes) {
        self.end_tails(now, wakes);
        self.flows.at(grant.flow).answered();
        match self.shard.finish(now, grant.id, grant.tail) {
            Some(until) => self.tails.push(Reverse((until, grant))),
            None => self.give_back(now, grant),
        }
        self.after_settling(now, wakes);
    }

    pub(super) fn after_settling(&mut self, now: u64, wakes: &mut Wakes) {
        self.pump(now, None, wakes);
        self.reap(now, REAP_PER_EVENT);
        self.may_open(now);
    }

    /// As many more requests of the workspace ran on these seats.
    pub(super) fn started_at_once(&mut self, grant: Grant, requests: u64) {
        let Some(slot) = grant.id.and_then(|id| self.slots.get(id.index())) else { return };
        if let Some(known) = self.known.get_mut(slot.workspace).filter(|known| known.serial == slot.serial) {
            known.count(grant.flow, |c| c.dispatched += requests);
        }
    }

    fn give_back(&mut self, now: u64, grant: Grant) {
        self.flows.at(grant.flow).gave_back(grant.seats);
        let ended = self.shard.complete(now, grant.id, grant.seats);
        debug_assert!(ended, "a permit ends its request once");
    }

    pub(super) fn end_tails(&mut self, now: u64, wakes: &mut Wakes) {
        let mut ended = false;
        while self.tails.peek().is_some_and(|Reverse((end, _))| *end <= now) {
            let Some(Reverse((_, grant))) = self.tails.pop() else { break };
            self.give_back(now, grant);
            ended = true;
        }
        if ended {
            self.pump(now, None, wakes);
        }
    }

    fn reap(&mut self, now: u64, most: usize) {
        let (known, names) = (&mut self.known, &mut self.names);
        self.shard.reap(now, most, |id| forget_name(known, names, id));
    }

    pub(super) fn tick(&mut self, now: u64, wakes: &mut Wakes) -> Option<u64> {
        self.end_tails(now, wakes);
        if self.recall_due().is_some_and(|due| due <= now) {
            self.recall_and_go_on(now);
        }
        self.pump(now, None, wakes);
        self.reap(now, REAP_PER_TICK);
        self.may_open(now);
        self.armed = u64::MAX;
        self.rearm();
        (self.armed < u64::MAX).then_some(self.armed)
    }

    /// Notes the next thing that is due; says whether it is earlier than what the driver sleeps for.
    pub(super) fn rearm(&mut self) -> bool {
        let tail = self.tails.peek().map(|Reverse((end, _))| *end);
        let next = [tail, self.shard.next_due(), self.recall_due()].into_iter().flatten().min().unwrap_or(u64::MAX);
        let earlier = next < self.armed;
        self.armed = self.armed.min(next);
        earlier
    }

    /// Gives a workspace a class, if it has a node. `declared`: one is made if seats are to be kept for it.
    pub(super) fn set_class(
        &mut self,
        now: u64,
        name: &ClusterName,
        class: WorkspaceClass,
        declared: bool,
        wakes: &mut Wakes,
    ) {
        let has_seats = matches!(class, WorkspaceClass::Seats { .. });
        let id = self.names.get(name).copied();
        if id.is_some() || (declared && has_seats) {
            self.recall(now);
        }
        match id {
            Some(id) if self.shard.set_class(now, id, class) => {}
            // Between shares and seats its place in the tree is another one: it gets a new node.
            Some(_) => {
                self.forget(now, name, wakes);
                if has_seats {
                    self.add(now, name, class);
                }
            }
            None if declared && has_seats => {
                self.add(now, name, class);
            }
            None => return,
        }
        self.pump(now, None, wakes);
    }

    /// No more than so many names get nodes of their own from now on.
    pub(super) fn set_names_max(&mut self, names: usize) {
        self.names_max = names;
    }

    pub(super) fn forget(&mut self, now: u64, name: &ClusterName, wakes: &mut Wakes) {
        self.recall(now);
        let Some(id) = self.names.remove(name) else { return };
        if let Some(known) = self.known.get_mut(id.index()) {
            *known = Known::default();
        }
        self.shard.forget_workspace(now, id);
        self.pump(now, None, wakes);
    }

    pub(super) fn set_profile(&mut self, now: u64, profile: Arc<Profile>, wakes: &mut Wakes) {
        self.recall(now);
        self.shard.set_levels(now, profile.levels());
        let replaced = self.flows.set_profile(&profile);
        if !replaced.is_empty() {
            for known in &mut self.known {
                known.by_flow.retain(|(flow, _)| !replaced.contains(flow));
            }
        }
        self.profile = profile;
        self.pump(now, None, wakes);
    }

    /// Lets some workspaces follow the profile, from this index on; the index to go on with, if there are more.
    pub(super) fn follow_profile(&mut self, now: u64, from: usize, wakes: &mut Wakes) -> Option<usize> {
        let end = from + FOLLOW_PER_LOCK;
        self.shard.follow_levels(now, from..end);
        self.pump(now, None, wakes);
        (end < self.shard.workspace_slots()).then_some(end)
    }

    pub(super) fn set_known(&mut self, now: u64, workspaces: u32, wakes: &mut Wakes) {
        self.shard.set_known(workspaces);
        self.pump(now, None, wakes);
    }

    pub(super) fn set_seats(&mut self, now: u64, seats: u32, wakes: &mut Wakes) {
        self.recall(now);
        self.seats = seats;
        self.shard.set_seats(now, seats);
        self.pump(now, None, wakes);
    }
}

/// The scheduler has dropped a workspace.
fn forget_name(known: &mut [Known], names: &mut HashMap<ClusterName, WorkspaceId>, id: WorkspaceId) {
    if let Some(known) = known.get_mut(id.index())
        && let Some(name) = std::mem::take(known).name
    {
        names.remove(&name);
    }
}

/// Seconds after which a retry makes sense: the expected wait, spread by up to a fifth to either side so that
/// clients do not come back together, 1 to 32.
pub(super) fn retry_after(wait_ns: u64, number: u64) -> u32 {
    // Any mixing will do: neighbours must differ.
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    let spread = u128::from(wait_ns) * u128::from(800 + mixed * 400 / 1024) / 1000;
    spread.div_ceil(Duration::from_secs(1).as_nanos()).clamp(1, 32) as u32
}

#[cfg(test)]
mod tests {
    use super::retry_after;

    #[test]
    fn retries_are_spread_and_bounded() {
        assert_eq!(retry_after(0, 1), 1);
        assert_eq!(retry_after(u64::MAX, 1), 32);
        let all: Vec<u32> = (0..100).map(|n| retry_after(20_000_000_000, n)).collect();
        assert!(all.iter().all(|s| (16..=24).contains(s)), "{all:?}");
        assert!(all.contains(&17) && all.contains(&23), "{all:?}");
    }
}
