//! Who gets the next seat.

#![allow(clippy::indexing_slicing, reason = "node indices live as long as their nodes; a hot path")]

use super::{
    measure::{Evidence, SECOND},
    node::{NONE, NodeId},
    requests::{RequestId, State},
    tree::{Claim, ROOT, Scheduler},
};

/// Where a request's way to its seats ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// There is room on the whole path.
    Fits,
    /// This node below the shard has no room for it.
    Below(u32),
    /// The shard has too few free seats.
    Shard,
}

/// The head that is next by its keys.
struct Choice {
    leaf: u32,
    /// The workspace's node.
    customer: u32,
    /// It is served from its reserve at the shard.
    reserved: bool,
}

/// A workspace is slow when its requests hold seats for so many times the shard's mean.
const SLOW: u64 = 4;

impl Scheduler {
    /// Starts the request that is next, if one can start. To be called after every event until it says `None`.
    pub fn dispatch(&mut self, now: u64) -> Option<RequestId> {
        self.wakeup = None;
        if let Some(ready) = self.ready.take() {
            return Some(ready);
        }
        let started = self.next(now);
        while let Some(n) = self.passed.pop() {
            let node = &self.nodes[n as usize];
            let parent = node.parent;
            let missing = node.member && self.positions[n as usize] == NONE;
            let p = self.inner_of(parent);
            self.inners[p].passed = 0;
            if missing {
                self.place(n);
            }
        }
        while let Some(request) = self.passed_requests.pop() {
            if started.is_some() {
                self.requests.at_mut(request).passed += 1;
            }
        }
        started
    }

    /// When to call [`Scheduler::dispatch`] even if nothing happens until then.
    pub fn next_wakeup(&self) -> Option<u64> {
        self.wakeup
    }

    fn next(&mut self, now: u64) -> Option<RequestId> {
        if self.nodes[ROOT as usize].waiting == 0 {
            return None;
        }
        loop {
            if let Some(claim) = self.claim {
                let width = self.requests.at(claim.request).width;
                match self.room(claim.leaf, width) {
                    Room::Fits => {
                        self.drop_claim(now);
                        return Some(self.start(now, claim.leaf));
                    }
                    Room::Below(_) => {
                        self.drop_claim(now);
                        continue;
                    }
                    Room::Shard => self.collect(now, claim.leaf),
                }
                if !self.inners[0].reserves_wait() {
                    return None;
                }
            }
            let choice = match self.descend(now) {
                Ok(choice) => choice,
                Err(true) => continue,
                Err(false) => return None,
            };
            let head = self.nodes[choice.leaf as usize].head;
            let width = self.requests.at(head).width;
            match self.room(choice.leaf, width) {
                Room::Below(n) => self.block(n, now),
                Room::Shard => self.too_wide(&choice, head, width),
                Room::Fits if choice.reserved => return Some(self.start(now, choice.leaf)),
                Room::Fits => {
                    if let Some(end) = self.unripe(now, choice.customer, width) {
                        self.wakeup = Some(self.wakeup.map_or(end, |w| w.min(end)));
                        self.pass(choice.customer);
                        continue;
                    }
                    if self.headroom_forbids(now, choice.customer, width) {
                        return None;
                    }
                    self.marks.lend(width);
                    return Some(self.start(now, choice.leaf));
                }
            }
        }
    }

    /// Starts a request that need not wait: nobody else does, so that there is no order to keep. [`Scheduler::dispatch`]
    /// says so next.
    pub(super) fn start_at_once(&mut self, now: u64, leaf: u32, width: u32) -> Option<RequestId> {
        let idle = self.nodes[ROOT as usize].waiting == 0 && self.claim.is_none() && self.ready.is_none();
        if !idle || self.room(leaf, width) != Room::Fits {
            return None;
        }
        let customer = self.customer_of(leaf)?;
        let parent = self.nodes[customer as usize].parent;
        let top = &self.nodes[if parent == ROOT { customer } else { parent } as usize];
        if top.u >= top.r {
            if self.unripe(now, customer, width).is_some() || self.headroom_forbids(now, customer, width) {
                return None;
            }
            self.marks.lend(width);
        }
        let id = self.requests.push(leaf, width, &mut self.nodes[leaf as usize]);
        self.run(now, leaf, id.index, false);
        self.ready = Some(id);
        Some(id)
    }

    /// Follows the smallest keys down to a queue. `Err(true)`: look again, something was put aside.
    fn descend(&mut self, now: u64) -> Result<Choice, bool> {
        let (mut p, mut customer, mut reserved) = (ROOT, NONE, false);
        loop {
            self.clock(p, now);
            let from_r = self.top(p, true);
            let lends = self.available(p) > 0 && (p != ROOT || self.claim.is_none());
            let Some(child) = from_r.or_else(|| if lends { self.top(p, false) } else { None }) else {
                if p == ROOT {
                    return Err(false);
                }
                let inner = self.inner_of(p);
                if self.inners[inner].passed > 0 {
                    self.pass(p)
                } else {
                    self.block(p, now)
                }
                return Err(true);
            };
            if p == ROOT {
                reserved = from_r.is_some();
            }
            if p == ROOT || p == self.pool {
                customer = child;
            }
            if self.nodes[child as usize].inner == NONE {
                return Ok(Choice { leaf: child, customer, reserved });
            }
            p = child;
        }
    }

    /// Whether a request of this width fits at every step of its path. Own limits come before the shard's:
    /// for a request that its own level or workspace cannot take now, collecting seats would be in vain.
    /// The pool has no limit of its own: what does not fit there does not fit the shard.
    pub(super) fn room(&self, leaf: u32, width: u32) -> Room {
        let seats = self.nodes[ROOT as usize].m;
        let mut at = leaf;
        let mut shard = true;
        while at != ROOT {
            let node = &self.nodes[at as usize];
            let maximum = self.maximum(at);
            // A maximum that fell below a waiting request's width: it may run alone there.
            let alone = node.u == 0 && maximum > 0;
            if node.u.saturating_add(width) > maximum && !alone && at != self.pool {
                if node.m < seats {
                    return Room::Below(at);
                }
                shard = false;
            }
            let parent = node.parent;
            if !self.parent_has_room(at, width) {
                let p = &self.nodes[parent as usize];
                // What would exceed the shard's seats is not in want of room below the shard.
                let exceeds = p.m >= seats && p.u.saturating_add(width) > seats;
                if parent != ROOT && parent != self.pool && !exceeds {
                    return Room::Below(parent);
                }
                shard = false;
            }
            at = parent;
        }
        if shard { Room::Fits } else { Room::Shard }
    }

    fn parent_has_room(&self, child: u32, width: u32) -> bool {
        let node = &self.nodes[child as usize];
        let p = &self.nodes[node.parent as usize];
        let inner = &self.inners[p.inner as usize];
        let capacity = self.capacity(node.parent);
        let extra = node.extra(width);
        let fits = match self.available(node.parent) {
            // Reserves exceed what is there (seats were lowered): they are served while seats are free.
            available if available < 0 => extra == 0 && u64::from(p.u) + u64::from(width) <= capacity,
            available => extra <= available as u64,
        };
        // Capacity fell below a waiting request's width: it may run alone there.
        let others = inner.reserved.saturating_sub(u64::from(node.r));
        let may_alone = capacity > others || (capacity > 0 && node.r > 0);
        fits || (p.u == 0 && may_alone && u64::from(width) > capacity.saturating_sub(others))
    }

    /// The head does not fit the free seats of the shard: narrower ones pass it until it is clearly owed
    /// its seats; then they are collected for it.
    fn too_wide(&mut self, choice: &Choice, head: u32, width: u32) {
        let parent = self.nodes[choice.customer as usize].parent;
        let mean = self.mean(parent);
        let node = &self.nodes[choice.customer as usize];
        // Tags are seat-time × 16 / weight.
        let owed = i128::from(mean.wrapping_sub(node.f)) * i128::from(node.weight) / 16;
        let clear = owed >= 2 * i128::from(width) * i128::from(self.horizon.t);
        let passed_often = self.requests.at(head).passed >= width.saturating_mul(8);
        // Who became too wide by a change of configuration has no claim: it waits until nothing else runs.
        let fits_ever = width <= self.widest(NodeId(choice.leaf));
        if self.claim.is_none() && fits_ever && (clear || passed_often) {
            self.claim = Some(Claim { leaf: choice.leaf, request: head });
        } else {
            self.passed_requests.push(head);
            self.pass(choice.customer);
        }
    }

    /// Leaves a child out of this dispatch; it keeps its place in all sums.
    fn pass(&mut self, n: u32) {
        self.unplace(n);
        let parent = self.nodes[n as usize].parent;
        let p = self.inner_of(parent);
        self.inners[p].passed += 1;
        self.passed.push(n);
    }

    /// All free seats are held for the claim, and charged to its path.
    fn collect(&mut self, now: u64, leaf: u32) {
        let free = self.available(ROOT).max(0) as u32;
        if self.nodes[leaf as usize].hold != free {
            self.set_hold(now, leaf, free);
        }
    }

    pub(super) fn drop_claim(&mut self, now: u64) {
        if let Some(claim) = self.claim.take()
            && self.nodes[claim.leaf as usize].hold > 0
        {
            self.set_hold(now, claim.leaf, 0);
        }
    }

    fn set_hold(&mut self, now: u64, leaf: u32, seats: u32) {
        let mut at = leaf;
        while at != ROOT {
            let before = self.leave(at, now);
            self.nodes[at as usize].hold = seats;
            self.enter(at, now, before);
            at = self.nodes[at as usize].parent;
        }
    }

    /// The head of the queue `leaf` gets its seats.
    fn start(&mut self, now: u64, leaf: u32) -> RequestId {
        let head = self.nodes[leaf as usize].head;
        self.run(now, leaf, head, true);
        self.requests.id(head)
    }

    /// A request, which may have waited, gets its seats.
    fn run(&mut self, now: u64, leaf: u32, head: u32, waited: bool) {
        let horizon = self.horizon.t;
        self.requests.unlink(head, &mut self.nodes[leaf as usize]);
        let request = self.requests.at_mut(head);
        request.state = State::Running;
        request.start = now;
        request.horizon = horizon;
        let width = request.width;
        self.dispatches += 1;
        let number = self.dispatches;
        self.note_start(now, width);
        self.change_path(leaf, now, |node| {
            node.u += width;
            node.c += u64::from(width) * horizon;
            node.charge();
            node.waiting -= u32::from(waited);
            node.waiting_seats -= u64::from(waited) * u64::from(width);
            node.last = number;
        });
        self.refresh_free(now);
    }

    /// The part of the shard's seats that the siblings of `customer` divide, as a fraction.
    fn divided(&self, customer: u32) -> (u128, u128) {
        let seats = u128::from(self.nodes[ROOT as usize].m);
        let parent = self.nodes[customer as usize].parent;
        if parent == ROOT {
            return (seats, 1);
        }
        (seats * u128::from(self.nodes[parent as usize].weight), u128::from(self.inners[0].active_weight.max(1)))
    }

    /// Workspaces that run or wait.
    pub(super) fn active_customers(&self) -> u32 {
        match self.pool {
            NONE => self.inners[0].active,
            pool => {
                let itself = u32::from(self.nodes[pool as usize].active());
                self.inners[0].active - itself + self.inners[self.inner_of(pool)].active
            }
        }
    }

    fn known_customers(&self) -> u32 {
        let nodes = match self.pool {
            NONE => self.inners[0].children,
            pool => self.inners[0].children - 1 + self.inners[self.inner_of(pool)].children,
        };
        nodes.saturating_sub(self.standing).max(self.active_customers()).max(self.known)
    }

    /// Whether a workspace over its share must leave the last free seats free.
    pub(super) fn headroom_forbids(&mut self, now: u64, customer: u32, width: u32) -> bool {
        if self.tuning.headroom_percent == 0 || self.known_customers() < 2 {
            return false;
        }
        // Nothing runs outside the reserves, so what is free now is all that can ever be: a request as wide as that would
        // wait for ever.
        let shard = &self.inners[self.inner_of(ROOT)];
        if shard.committed == shard.reserved {
            return false;
        }
        let node = &self.nodes[customer as usize];
        let (weight, use_then) = (u128::from(node.weight), node.u.saturating_add(width));
        let active = u128::from(self.inners[self.inner_of(node.parent)].active_weight);
        let (seats_n, seats_d) = self.divided(customer);
        if u128::from(use_then) * (active + weight) * seats_d <= seats_n * weight {
            return false;
        }
        let seats = self.nodes[ROOT as usize].m;
        let share = (u64::from(seats) * u64::from(self.tuning.headroom_percent) + 50) / 100;
        let most = share.max(u64::from((seats / 10).min(2)));
        let most = most.min(u64::from(seats.div_ceil(self.active_customers() + 1)));
        let dominates = 2 * u64::from(use_then) > u64::from(seats);
        let floor = if dominates && self.floor_applies(customer) { seats.div_ceil(100).min(seats / 20) } else { 0 };
        let least =
            (most * Evidence::ONE).saturating_sub(self.evidence.seats(now)).max(u64::from(floor) * Evidence::ONE);
        let left = (self.available(ROOT) - self.extra_at_shard(customer, width) as i64).max(0) as u64;
        left * Evidence::ONE < least
    }

    fn floor_applies(&self, customer: u32) -> bool {
        self.tuning.floor_always || self.seat_duration(customer).is_none_or(|d| d > SECOND)
    }

    fn extra_at_shard(&self, customer: u32, width: u32) -> u64 {
        let parent = self.nodes[customer as usize].parent;
        let child = if parent == ROOT { customer } else { parent };
        self.nodes[child as usize].extra(width)
    }

    /// Mean duration of the workspace's requests as a seat sees it.
    fn seat_duration(&self, customer: u32) -> Option<u64> {
        let inner = self.nodes[customer as usize].inner;
        self.inners.get(inner as usize).and_then(|inner| inner.durations.as_ref()?.weighted_mean())
    }

    /// Whether the workspace holds seats far longer than others and has its present share already.
    fn is_slow(&self, customer: u32) -> bool {
        if self.tuning.ripeness == 0 {
            return false;
        }
        let node = &self.nodes[customer as usize];
        let active = u128::from(self.inners[self.inner_of(node.parent)].active_weight);
        let (seats_n, seats_d) = self.divided(customer);
        // u >= ceil(seats · weight / active) iff u >= the exact quotient, u being whole.
        if u128::from(node.u) * active * seats_d < seats_n * u128::from(node.weight) {
            return false;
        }
        match (self.seat_duration(customer), self.horizon.usual.mean()) {
            (Some(own), Some(all)) => own >= all.saturating_mul(SLOW),
            _ => false,
        }
    }

    /// When a slow workspace must be looked at again, if the seats it would take are not ripe for it.
    pub(super) fn unripe(&mut self, now: u64, customer: u32, width: u32) -> Option<u64> {
        if !self.is_slow(customer) {
            return None;
        }
        let needed = self.seat_duration(customer)? / u64::from(self.tuning.ripeness);
        let (ripe, end) = self.marks.over(now, needed);
        (ripe < i64::from(width)).then_some(end)
    }
}
