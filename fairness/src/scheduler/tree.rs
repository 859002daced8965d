//! The scheduler's state and the events that change it.

#![allow(clippy::indexing_slicing, reason = "node indices are made here and live as long as their nodes; a hot path")]

use super::{
    heap::Positions,
    measure::{Evidence, Horizon, LowWater, Releases},
    node::{Inner, NONE, Node, NodeId, NodeSpec, Owner, push},
    requests::{Request, RequestId, Requests, State},
};

/// The shard's own node.
pub(super) const ROOT: u32 = 0;

/// The operator's dials of one shard's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Percentage of the seats that a workspace over its share leaves free where seats come back slowly; 0 is off.
    pub headroom_percent: u32,
    /// Whether who would hold more than half the seats always leaves the last one per cent free, or only
    /// while his requests are known to be slow.
    pub floor_always: bool,
    /// Slow borrowers take only seats that have been free for this fraction of their duration; 0 is off.
    pub ripeness: u32,
    /// Nodes that did nothing for so long are dropped, in nanoseconds.
    pub idle_ns: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { headroom_percent: 5, floor_always: true, ripeness: 200, idle_ns: 10_000_000_000 }
    }
}

/// Whether seats need not be given back at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    /// They are needed: somebody waits, or no more is free than is left for newcomers.
    None,
    /// Nobody needs them, but there are not many more.
    Some,
    /// More than a quarter of all are free beyond that.
    Plenty,
}

/// A node as it stands, for metrics and `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Seats in use, tails included.
    pub in_use: u32,
    /// Free seats being collected for a wide request.
    pub hold: u32,
    /// Waiting requests.
    pub waiting: u32,
    /// Seats they ask for.
    pub waiting_seats: u64,
    /// What the node may use and keeps.
    pub spec: NodeSpec,
    /// How far its tag is from the mean of the siblings that wait, in seat-nanoseconds; positive: it had more.
    pub lag: i64,
    /// Mean duration of its requests in nanoseconds, if known (inner nodes only).
    pub mean_duration: Option<u64>,
}

/// A wide request for which free seats are collected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) leaf: u32,
    pub(super) request: u32,
}

/// The tree of one shard. See the [module](super) for what it promises.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(super) nodes: Vec<Node>,
    pub(super) positions: Positions,
    pub(super) inners: Vec<Inner>,
    pub(super) free_node: u32,
    pub(super) free_nodes: usize,
    pub(super) free_inners: Vec<u32>,
    pub(super) requests: Requests,
    /// The node between the shard and the workspaces with shares, or [`NONE`].
    pub(super) pool: u32,
    pub(super) tuning: Tuning,
    pub(super) exempt: u32,
    /// Workspaces that may come, whether or not they have a node.
    pub(super) known: u32,
    pub(super) standing: u32,
    pub(super) dispatches: u64,
    pub(super) horizon: Horizon,
    pub(super) evidence: Evidence,
    pub(super) marks: LowWater,
    /// Σ width × start of the running requests, wrapping, and Σ width: what the mean age is computed from. Without those
    /// whose seats go from one request to the next unseen.
    pub(super) starts: u64,
    pub(super) aged: u64,
    pub(super) claim: Option<Claim>,
    /// A request that was started when it arrived and is to be named by the next dispatch.
    pub(super) ready: Option<RequestId>,
    /// Children and requests passed over in this dispatch.
    pub(super) passed: Vec<u32>,
    pub(super) passed_requests: Vec<u32>,
    pub(super) wakeup: Option<u64>,
    /// Nodes that were idle, with the time to look at them.
    pub(super) reap_queue: std::collections::VecDeque<(u64, u32)>,
    pub(super) reaped: Vec<Owner>,
    /// Children looked at, for the cost law.
    pub(super) looks: u64,
}

impl Scheduler {
    /// A shard with `seats` free seats and no children.
    pub fn new(seats: u32, tuning: Tuning) -> Self {
        let spec = NodeSpec { weight: 1, reserve: 0, maximum: seats };
        Self {
            nodes: vec![Node::new(NONE, 0, spec, Owner::NOBODY)],
            positions: vec![NONE],
            inners: vec![Inner::default()],
            free_node: NONE,
            free_nodes: 0,
            free_inners: Vec::new(),
            requests: Requests::new(),
            pool: NONE,
            tuning,
            exempt: 0,
            known: 0,
            standing: 0,
            dispatches: 0,
            horizon: Horizon::new(),
            evidence: Evidence::default(),
            marks: LowWater::new(i64::from(seats)),
            starts: 0,
            aged: 0,
            claim: None,
            ready: None,
            passed: Vec::new(),
            passed_requests: Vec::new(),
            wakeup: None,
            reap_queue: std::collections::VecDeque::new(),
            reaped: Vec::new(),
            looks: 0,
        }
    }

    /// The shard's node.
    pub fn root(&self) -> NodeId {
        NodeId(ROOT)
    }

    /// Adds the one child of the shard whose children are workspaces too. It may use all seats.
    pub fn add_pool(&mut self, now: u64, weight: u32) -> NodeId {
        let spec = NodeSpec { weight, reserve: 0, maximum: u32::MAX };
        let pool = self.add_node(now, self.root(), spec, true, Owner::NOBODY);
        self.pool = pool.0;
        pool
    }

    /// Adds a child; `inner` nodes have children of their own, the others have a queue of requests. Its
    /// reserve is moved from those of absent children, as far as there are any.
    pub fn add_node(&mut self, now: u64, parent: NodeId, spec: NodeSpec, inner: bool, owner: Owner) -> NodeId {
        let inner = if inner { self.new_inner() } else { NONE };
        let p = self.inner_of(parent.0);
        let epoch = self.inners[p].epoch.wrapping_sub(1);
        let node = Node { epoch, idle_since: now, ..Node::new(parent.0, inner, spec, owner) };
        let r = u64::from(node.r);
        let index = match self.free_node {
            NONE => {
                push(&mut self.nodes, node);
                push(&mut self.positions, NONE);
                self.nodes.len() as u32 - 1
            }
            free => {
                self.free_node = self.nodes[free as usize].head;
                self.free_nodes -= 1;
                self.nodes[free as usize] = node;
                free
            }
        };
        self.clock(parent.0, now);
        let mark = self.inners[p].tau;
        self.nodes[index as usize].mark = mark;
        let p = &mut self.inners[p];
        let present = r.min(p.absent_reserve);
        p.absent_reserve -= present;
        p.reserved += r - present;
        p.committed += r - present;
        p.children += 1;
        self.refresh_free(now);
        self.may_idle(index, now);
        NodeId(index)
    }

    fn new_inner(&mut self) -> u32 {
        match self.free_inners.pop() {
            Some(free) => {
                self.inners[free as usize] = Inner::default();
                free
            }
            None => {
                push(&mut self.inners, Inner::default());
                self.inners.len() as u32 - 1
            }
        }
    }

    pub(super) fn inner_of(&self, node: u32) -> usize {
        self.nodes[node as usize].inner as usize
    }

    /// What the node may use at most, the shard's seats considered.
    pub(super) fn maximum(&self, node: u32) -> u32 {
        self.nodes[node as usize].m.min(self.nodes[ROOT as usize].m)
    }

    /// Seats that the children of `p` may use together.
    pub(super) fn capacity(&self, p: u32) -> u64 {
        let seats = u64::from(self.maximum(p));
        if p != ROOT {
            return seats;
        }
        let floor = self.inners[0].reserved.max(seats / 10).min(seats);
        seats.saturating_sub(u64::from(self.exempt)).max(floor)
    }

    /// Seats that may be lent to the children of `p`.
    pub(super) fn available(&self, p: u32) -> i64 {
        self.capacity(p) as i64 - self.inners[self.inner_of(p)].committed as i64
    }

    /// Notes how many seats are free now; after every change of use, reserves or seats.
    pub(super) fn refresh_free(&mut self, now: u64) {
        let available = self.available(ROOT);
        self.marks.set(now, available);
    }

    /// A request asks for `width` seats (at least 1) at the queue `leaf`. What exceeds the room on its path
    /// is cut off; see [`Scheduler::width`]. Where there is none at all it waits for a change of configuration. It may run at once: ask [`Scheduler::dispatch`].
    pub fn arrive(&mut self, now: u64, leaf: NodeId, width: u32) -> RequestId {
        let width = width.min(self.widest(leaf)).max(1);
        self.enqueue(now, leaf, width)
    }

    /// As [`Scheduler::arrive`], for a width that is no more than [`Scheduler::widest`].
    pub(super) fn enqueue(&mut self, now: u64, leaf: NodeId, width: u32) -> RequestId {
        if let Some(id) = self.start_at_once(now, leaf.0, width) {
            return id;
        }
        let id = self.requests.push(leaf.0, width, &mut self.nodes[leaf.0 as usize]);
        let mut at = leaf.0;
        loop {
            // Whoever is backlogged already stays where it is: stored keys are lower bounds.
            let touch = at != ROOT && !self.nodes[at as usize].member;
            let before = if touch { Some(self.leave(at, now)) } else { None };
            let node = &mut self.nodes[at as usize];
            node.waiting += 1;
            node.waiting_seats += u64::from(width);
            let parent = node.parent;
            if let Some(before) = before {
                node.blocked = false;
                self.enter(at, now, before);
            }
            if at == ROOT {
                return id;
            }
            at = parent;
        }
    }

    /// The widest request that can ever run at `leaf` as things are configured; 0 if none.
    pub fn widest(&self, leaf: NodeId) -> u32 {
        let mut room = u64::from(u32::MAX);
        let mut at = leaf.0;
        while at != ROOT {
            let node = &self.nodes[at as usize];
            let parent = node.parent;
            let others = self.inners[self.inner_of(parent)].reserved.saturating_sub(u64::from(node.r));
            let all = u64::from(self.maximum(parent));
            // Reserves that exceed what is there (seats were lowered) are served while seats are free.
            let beside = all.saturating_sub(others).max(all.min(node.r.into()));
            room = room.min(u64::from(self.maximum(at))).min(beside);
            at = parent;
        }
        room as u32
    }

    /// Seats charged to a present request.
    pub fn width(&self, id: RequestId) -> u32 {
        self.requests.get(id).map_or(0, |r| r.width)
    }

    /// Whether the request is present and waits.
    pub fn is_waiting(&self, id: RequestId) -> bool {
        self.requests.get(id).is_some_and(|r| r.state == State::Waiting)
    }

    /// A running request has ended, its tail too. Says whether it was running; call
    /// [`Scheduler::dispatch`] then.
    pub fn complete(&mut self, now: u64, id: RequestId) -> bool {
        let start = self.requests.get(id).map_or(now, |request| request.start);
        self.complete_all(now, id, &Releases::one(now, now.saturating_sub(start)))
    }

    /// As [`Scheduler::complete`], for seats that served several requests in turn without the scheduler's knowing.
    pub(crate) fn complete_all(&mut self, now: u64, id: RequestId, releases: &Releases) -> bool {
        let Some(&Request { leaf, width, start, horizon, aside, .. }) =
            self.requests.get(id).filter(|r| r.state == State::Running)
        else {
            return false;
        };
        self.requests.release(id.index);
        let charged = u64::from(width) * horizon;
        self.change_path(leaf, now, |node| {
            node.u -= width;
            node.c -= charged;
            node.charge();
        });
        if !aside {
            self.forget_start(start, width);
        }
        // Clocks are read before the lock is taken: one that runs may have begun after now.
        let ages = (self.aged.wrapping_mul(now).wrapping_sub(self.starts) as i64).max(0) as u64;
        self.horizon.released(width, releases, ages.checked_div(self.aged).unwrap_or(0));
        self.evidence.released(now, width, releases);
        if let Some(customer) = self.customer_of(leaf) {
            let inner = self.nodes[customer as usize].inner;
            if inner != NONE {
                self.inners[inner as usize].durations.get_or_insert_default().observe_workspace(width, releases);
            }
        }
        self.refresh_free(now);
        true
    }

    pub(super) fn note_start(&mut self, start: u64, width: u32) {
        self.starts = self.starts.wrapping_add(start.wrapping_mul(u64::from(width)));
        self.aged += u64::from(width);
    }

    fn forget_start(&mut self, start: u64, width: u32) {
        self.starts = self.starts.wrapping_sub(start.wrapping_mul(u64::from(width)));
        self.aged -= u64::from(width);
    }

    /// The seats of a running request may go to others from now on: its age means nothing.
    pub(crate) fn set_aside(&mut self, id: RequestId) {
        if let Some(&Request { state: State::Running, aside: false, start, width, .. }) = self.requests.get(id) {
            self.forget_start(start, width);
            self.requests.at_mut(id.index).aside = true;
        }
    }

    /// The seats that were set aside are with a request that began at `start`, and stay there.
    pub(crate) fn restart(&mut self, id: RequestId, start: u64) {
        if let Some(&Request { state: State::Running, aside: true, width, .. }) = self.requests.get(id) {
            self.note_start(start, width);
            let request = self.requests.at_mut(id.index);
            (request.start, request.aside) = (start, false);
        }
    }

    /// Whether nobody waits, and whether more seats are free than must be left for newcomers.
    pub(crate) fn spare(&self) -> Spare {
        let seats = u64::from(self.nodes[ROOT as usize].m);
        let kept = seats * u64::from(self.tuning.headroom_percent) / 100 + 2;
        let free = self.available(ROOT).max(0) as u64;
        if self.nodes[ROOT as usize].waiting > 0 || self.claim.is_some() || free <= kept {
            Spare::None
        } else if free <= kept + seats / 4 {
            Spare::Some
        } else {
            Spare::Plenty
        }
    }

    /// A waiting request goes away unserved: cancelled, expired or refused. Says whether it was waiting;
    /// call [`Scheduler::dispatch`] then.
    pub fn cancel(&mut self, now: u64, id: RequestId) -> bool {
        let Some((leaf, width)) =
            self.requests.get(id).filter(|r| r.state == State::Waiting).map(|r| (r.leaf, r.width))
        else {
            return false;
        };
        if self.claim.is_some_and(|claim| claim.request == id.index) {
            self.drop_claim(now);
        }
        self.requests.unlink(id.index, &mut self.nodes[leaf as usize]);
        self.requests.release(id.index);
        self.change_path(leaf, now, |node| {
            node.waiting -= 1;
            node.waiting_seats -= u64::from(width);
        });
        true
    }

    /// Applies `change` to the nodes from `leaf` up to the shard; whatever was blocked is looked at again.
    pub(super) fn change_path(&mut self, leaf: u32, now: u64, change: impl Fn(&mut Node)) {
        let mut at = leaf;
        loop {
            if at == ROOT {
                change(&mut self.nodes[ROOT as usize]);
                return;
            }
            at = self.change(at, now, &change);
        }
    }

    /// The workspace's node on the way up from `leaf`.
    pub(super) fn customer_of(&self, leaf: u32) -> Option<u32> {
        let mut at = leaf;
        while at != ROOT && at != NONE {
            let parent = self.nodes[at as usize].parent;
            if parent == ROOT || parent == self.pool {
                return Some(at);
            }
            at = parent;
        }
        None
    }

    /// Exempt requests began: `width` seats fewer for all others.
    pub fn exempt_start(&mut self, now: u64, width: u32) {
        self.exempt = self.exempt.saturating_add(width);
        self.refresh_free(now);
    }

    /// Exempt requests ended; call [`Scheduler::dispatch`] then.
    pub fn exempt_end(&mut self, now: u64, width: u32) {
        self.exempt = self.exempt.saturating_sub(width);
        self.refresh_free(now);
    }

    /// Gives a node other dials. What it has used more or less than others stays in proportion. Call
    /// [`Scheduler::dispatch`] then.
    pub fn reconfigure(&mut self, now: u64, node: NodeId, spec: NodeSpec) {
        let n = node.0;
        if n == ROOT {
            return self.set_seats(now, spec.maximum);
        }
        let parent = self.nodes[n as usize].parent;
        self.clock(parent, now);
        self.accrue(n);
        let mean = self.mean(parent);
        let before = self.leave(n, now);
        let node = &mut self.nodes[n as usize];
        let (old_weight, old_r) = (node.weight, node.r);
        node.weight = spec.weight.max(1);
        node.r = spec.reserve.min(spec.maximum);
        node.m = spec.maximum;
        node.charge();
        if old_weight != node.weight {
            node.rest = 0;
            let lag = i128::from(node.f.wrapping_sub(mean)) * i128::from(old_weight) / i128::from(node.weight);
            let debt = i128::from(super::tags::debt(node.weight));
            node.f = mean.wrapping_add(lag.clamp(-debt, debt) as i64);
        }
        let (new_r, inner) = (u64::from(node.r), self.inner_of(parent));
        self.inners[inner].reserved = self.inners[inner].reserved - u64::from(old_r) + new_r;
        self.nodes[n as usize].blocked = false;
        self.enter(n, now, before);
        self.change_path(parent, now, |_| {});
        self.refresh_free(now);
    }

    /// The reserves of children of `parent` that have no node; they count as if those children were idle.
    pub fn set_absent_reserve(&mut self, now: u64, parent: NodeId, seats: u32) {
        let inner = self.inner_of(parent.0);
        let p = &mut self.inners[inner];
        let (old, new) = (p.absent_reserve, u64::from(seats));
        p.absent_reserve = new;
        p.reserved = p.reserved - old + new;
        p.committed = p.committed - old + new;
        self.change_path(parent.0, now, |_| {});
        self.refresh_free(now);
    }

    /// Changes the shard's seats. Running requests keep theirs. O(nodes). Call [`Scheduler::dispatch`] then.
    pub fn set_seats(&mut self, now: u64, seats: u32) {
        // Every rule that compares with the shard's seats may turn out differently: all that waits is
        // looked at again, under the new number.
        let waiting: Vec<u32> = (1..self.nodes.len() as u32)
            .filter(|&n| self.nodes[n as usize].live && self.nodes[n as usize].waiting > 0)
            .collect();
        for &n in &waiting {
            self.clock(self.nodes[n as usize].parent, now);
            self.accrue(n);
        }
        self.nodes[ROOT as usize].m = seats;
        for n in waiting {
            let before = self.leave(n, now);
            self.nodes[n as usize].blocked = false;
            self.enter(n, now, before);
        }
        self.refresh_free(now);
    }

    /// How many workspaces may send requests, whether or not they have a node now. Headroom is kept for
    /// those who are not here: with fewer than two there is nobody to keep it for.
    pub fn set_known(&mut self, workspaces: u32) {
        self.known = workspaces;
    }

    /// How many of the nodes beside the workspaces' are always there, whether or not anybody is behind them.
    pub(crate) fn set_standing(&mut self, nodes: u32) {
        self.standing = nodes;
    }

    /// The node as it stands.
    pub fn state(&mut self, now: u64, node: NodeId) -> NodeState {
        let n = node.0;
        let lag = if n == ROOT {
            0
        } else {
            let parent = self.nodes[n as usize].parent;
            self.clock(parent, now);
            self.accrue(n);
            let mean = self.mean(parent);
            let node = &self.nodes[n as usize];
            let lag = i128::from(node.f.wrapping_sub(mean)) * i128::from(node.weight) / 16;
            lag.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
        };
        let node = &self.nodes[n as usize];
        NodeState {
            in_use: node.u,
            hold: node.hold,
            waiting: node.waiting,
            waiting_seats: node.waiting_seats,
            spec: NodeSpec { weight: node.weight, reserve: node.r, maximum: node.m },
            lag,
            mean_duration: self.inners.get(node.inner as usize).and_then(|inner| inner.durations.as_ref()?.mean()),
        }
    }

    /// A node's dials.
    pub fn spec(&self, node: NodeId) -> NodeSpec {
        let node = &self.nodes[node.0 as usize];
        NodeSpec { weight: node.weight, reserve: node.r, maximum: node.m }
    }

    /// Seats in use below a node.
    pub fn in_use(&self, node: NodeId) -> u32 {
        self.nodes[node.0 as usize].u
    }

    /// Requests that wait below a node.
    pub fn waiting(&self, node: NodeId) -> u32 {
        self.nodes[node.0 as usize].waiting
    }

    /// Seats that they ask for.
    pub fn waiting_seats(&self, node: NodeId) -> u64 {
        self.nodes[node.0 as usize].waiting_seats
    }

    /// Weight of the children of `parent` that run or wait, `child` included.
    pub(super) fn active_weight(&self, parent: NodeId, child: NodeId) -> u64 {
        let child = &self.nodes[child.0 as usize];
        let own = if child.active() { 0 } else { u64::from(child.weight) };
        self.inners[self.inner_of(parent.0)].active_weight + own
    }

    /// A child's weight, that of its siblings that wait (itself included), and the seats they divide.
    pub(super) fn share_of(&self, child: NodeId) -> (u32, u64, u128) {
        let node = &self.nodes[child.0 as usize];
        let own = if node.member { 0 } else { u64::from(node.weight) };
        let parent = &self.nodes[node.parent as usize];
        let seats = if node.parent == ROOT { self.nodes[ROOT as usize].m } else { parent.weight };
        (node.weight, self.inners[parent.inner as usize].w + own, u128::from(seats))
    }

    /// Whose request it is, if anybody's.
    pub(super) fn workspace_of(&self, id: RequestId) -> Option<u32> {
        let leaf = self.requests.get(id)?.leaf;
        Some(self.nodes[leaf as usize].owner.workspace).filter(|workspace| *workspace != NONE)
    }

    /// The node is never dropped for being idle, until it is disowned.
    pub(super) fn keep(&mut self, node: NodeId) {
        self.nodes[node.0 as usize].keep = true;
    }

    /// Seats in use by exempt requests.
    pub fn exempt(&self) -> u32 {
        self.exempt
    }

    /// Mean duration of the shard's requests in nanoseconds, if known.
    pub fn mean_duration(&self) -> Option<u64> {
        self.horizon.durations.mean()
    }

    /// Children looked at so far to find the next one, for the law of cost.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// The horizon: how long a running seat is expected to last, in nanoseconds.
    pub fn horizon(&self) -> u64 {
        self.horizon.t
    }
}
