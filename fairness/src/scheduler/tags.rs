//! Service tags: the clock of each parent, accrual, the mean tag of those who wait, and the join rule.
//!
//! Every change of a node goes `leave` – change – `enter`, which keep all sums of the parent exact.

#![allow(clippy::indexing_slicing, reason = "node indices live as long as their nodes; a hot path")]

use super::{
    measure::SECOND,
    node::{NONE, Node, SCALE, divide, scaled},
    tree::{ROOT, Scheduler},
};

/// What a node was before a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    member: bool,
    waiting: bool,
}

/// The most that a node of this weight can owe or be owed, as a tag: 120 seat-seconds.
pub(super) fn debt(weight: u32) -> i64 {
    scaled(120 * SECOND, weight)
}

/// Without contention for so long, old debts are void.
const CONTENTION_MEMORY: u64 = SECOND;
/// The base of the mean is moved when the mean is this far away from it.
const REBASE: u64 = 1 << 40;

impl Scheduler {
    /// Advances the clock of a parent: it runs while one of its children is backlogged.
    pub(super) fn clock(&mut self, parent: u32, now: u64) {
        let p = self.inner_of(parent);
        let p = &mut self.inners[p];
        if p.members > 0 {
            p.tau += now.saturating_sub(p.tau_at);
            p.contended_at = now;
        }
        p.tau_at = p.tau_at.max(now);
    }

    /// Charges a child for the time since its last accrual. The parent's clock must be right.
    #[inline]
    pub(super) fn accrue(&mut self, n: u32) {
        let node = &self.nodes[n as usize];
        let inner = self.nodes[node.parent as usize].inner as usize;
        if self.inners[inner].tau != node.mark {
            self.accrue_in(n, inner);
        }
    }

    fn accrue_in(&mut self, n: u32, inner: usize) {
        let p = &mut self.inners[inner];
        let node = &mut self.nodes[n as usize];
        let used = u64::from(node.u) + u64::from(node.hold);
        let since = p.tau - node.mark;
        if used > 0 && since > 0 {
            let step = node.serve(used, since);
            node.f = node.f.wrapping_add(step);
            if node.member {
                p.wf += i128::from(step) * i128::from(node.weight);
                p.used_mark += i128::from(used) * i128::from(since);
            }
        }
        node.mark = p.tau;
    }

    /// The weighted mean of the true tags of the backlogged children. The parent's clock must be right.
    pub(super) fn mean(&mut self, parent: u32) -> i64 {
        let p = self.inner_of(parent);
        let p = &mut self.inners[p];
        if p.w == 0 {
            return p.v0;
        }
        let unaccrued = i128::from(p.used) * i128::from(p.tau) - p.used_mark;
        let offset = divide(p.wf + i128::from(SCALE) * unaccrued, p.w) as i64;
        if offset.unsigned_abs() > REBASE {
            p.v0 = p.v0.wrapping_add(offset);
            p.wf -= i128::from(p.w) * i128::from(offset);
            return p.v0;
        }
        p.v0.wrapping_add(offset)
    }

    /// Changes a child that is not blocked afterwards, and gives its parent. `change` may not touch weight, reserve,
    /// maximum or tag. In nearly all cases it is backlogged before and after, or neither: then only what differs is
    /// brought up to date.
    pub(super) fn change(&mut self, n: u32, now: u64, change: impl Fn(&mut Node)) -> u32 {
        let parent = self.nodes[n as usize].parent;
        self.clock(parent, now);
        self.accrue(n);
        let limit = self.bound(n, parent);
        let node = &mut self.nodes[n as usize];
        let (used, committed, active) = (u64::from(node.u) + u64::from(node.hold), node.u.max(node.r), node.active());
        let (waited, key) = (node.waiting > 0, node.key());
        change(node);
        node.blocked = false;
        let backlogged = node.waiting > 0 && node.u < limit;
        let member = node.member;
        let (used_now, committed_now) = (u64::from(node.u) + u64::from(node.hold), node.u.max(node.r));
        let (active_now, weight, mark) = (node.active(), u64::from(node.weight), node.mark);
        let moved = node.key() != key || (node.u < node.r) != node.in_r;
        let p = &mut self.inners[self.nodes[parent as usize].inner as usize];
        p.committed = p.committed + u64::from(committed_now) - u64::from(committed);
        match (active, active_now) {
            (false, true) => (p.active, p.active_weight) = (p.active + 1, p.active_weight + weight),
            (true, false) => (p.active, p.active_weight) = (p.active - 1, p.active_weight - weight),
            _ => {}
        }
        match (member, backlogged) {
            (true, true) => {
                p.used = p.used + used_now - used;
                p.used_mark += (i128::from(used_now) - i128::from(used)) * i128::from(mark);
                if moved {
                    self.place(n);
                }
            }
            (true, false) => {
                self.drop_member(n, parent, used);
                if self.inners[self.nodes[parent as usize].inner as usize].members == 0 {
                    // Nobody waits: the mean stays where the last one was.
                    let f = self.nodes[n as usize].f;
                    self.inners[self.nodes[parent as usize].inner as usize].v0 = f;
                }
                self.unplace(n);
            }
            (false, true) => {
                self.join(n, parent, now, waited);
                self.add_member(n, parent);
            }
            (false, false) => {}
        }
        if active && !active_now {
            self.may_idle(n, now);
        }
        parent
    }

    /// Below how many seats in use a child can be backlogged. One whose maximum is not below its parent's never stops
    /// being so because of it.
    fn bound(&self, n: u32, parent: u32) -> u32 {
        let maximum = self.maximum(n);
        if maximum < self.maximum(parent) { maximum } else { u32::MAX }
    }

    fn drop_member(&mut self, n: u32, parent: u32, used: u64) {
        let p = &mut self.inners[self.nodes[parent as usize].inner as usize];
        let node = &mut self.nodes[n as usize];
        node.member = false;
        p.members -= 1;
        p.w -= u64::from(node.weight);
        p.wf -= i128::from(node.weight) * i128::from(node.f.wrapping_sub(p.v0));
        p.used -= used;
        p.used_mark -= i128::from(used) * i128::from(node.mark);
    }

    fn add_member(&mut self, n: u32, parent: u32) {
        let p = &mut self.inners[self.nodes[parent as usize].inner as usize];
        let node = &mut self.nodes[n as usize];
        let used = u64::from(node.u) + u64::from(node.hold);
        node.member = true;
        p.members += 1;
        p.w += u64::from(node.weight);
        p.wf += i128::from(node.weight) * i128::from(node.f.wrapping_sub(p.v0));
        p.used += used;
        p.used_mark += i128::from(used) * i128::from(node.mark);
        self.place(n);
    }

    /// Takes a child out of its parent's sums, so that it can be changed.
    pub(super) fn leave(&mut self, n: u32, now: u64) -> Before {
        let parent = self.nodes[n as usize].parent;
        self.clock(parent, now);
        self.accrue(n);
        let p = self.inner_of(parent);
        let p = &mut self.inners[p];
        let node = &self.nodes[n as usize];
        p.committed -= u64::from(node.u.max(node.r));
        if node.active() {
            p.active -= 1;
            p.active_weight -= u64::from(node.weight);
        }
        let before = Before { member: node.member, waiting: node.waiting > 0 };
        if node.member {
            self.drop_member(n, parent, u64::from(node.u) + u64::from(node.hold));
        }
        before
    }

    /// Puts it back, by the join rule if it begins to be backlogged.
    pub(super) fn enter(&mut self, n: u32, now: u64, before: Before) {
        let parent = self.nodes[n as usize].parent;
        let backlogged = {
            let node = &self.nodes[n as usize];
            node.waiting > 0 && !node.blocked && node.u < self.bound(n, parent)
        };
        if backlogged && !before.member {
            self.join(n, parent, now, before.waiting);
        }
        let p = self.inner_of(parent);
        let p = &mut self.inners[p];
        let node = &self.nodes[n as usize];
        p.committed += u64::from(node.u.max(node.r));
        let active = node.active();
        if active {
            p.active += 1;
            p.active_weight += u64::from(node.weight);
        }
        if backlogged {
            self.add_member(n, parent);
        } else {
            if before.member && p.members == 0 {
                // Nobody waits: the mean stays where the last one was.
                p.v0 = node.f;
            }
            if before.member {
                self.unplace(n);
            }
            if !active {
                self.may_idle(n, now);
            }
        }
    }

    /// Who begins to wait has neither credit nor more debt than the cap; who comes back from being unable to
    /// take a seat may keep what it was owed for about as long as its seats are expected to last.
    fn join(&mut self, n: u32, parent: u32, now: u64, comes_back: bool) {
        let mean = self.mean(parent);
        let p = self.inner_of(parent);
        let maximum = u64::from(self.maximum(n));
        let p = &mut self.inners[p];
        if !comes_back && p.members == 0 && now.saturating_sub(p.contended_at) >= CONTENTION_MEMORY {
            p.epoch = p.epoch.wrapping_add(1);
        }
        let node = &mut self.nodes[n as usize];
        if node.epoch != p.epoch {
            node.epoch = p.epoch;
            node.f = mean;
            return;
        }
        let bank = if comes_back { scaled(self.horizon.t * maximum, node.weight) } else { 0 };
        let lag = node.f.wrapping_sub(mean).clamp(-bank, debt(node.weight));
        node.f = mean.wrapping_add(lag);
    }

    /// Puts a backlogged child into the right heap at the right place.
    pub(super) fn place(&mut self, n: u32) {
        let node = &self.nodes[n as usize];
        let inner = self.nodes[node.parent as usize].inner as usize;
        let in_r = node.u < node.r;
        if self.positions[n as usize] != NONE && node.in_r == in_r {
            let p = &mut self.inners[inner];
            return p.heap(in_r).put(n, node, &mut self.positions);
        }
        self.unplace(n);
        self.nodes[n as usize].in_r = in_r;
        let p = &mut self.inners[inner];
        p.heap(in_r).push(n, &self.nodes[n as usize], &mut self.positions);
    }

    /// Takes a child out of its heap, if it is in one.
    pub(super) fn unplace(&mut self, n: u32) {
        let pos = self.positions[n as usize];
        if pos == NONE {
            return;
        }
        let node = &self.nodes[n as usize];
        let in_r = node.in_r;
        let p = &mut self.inners[self.nodes[node.parent as usize].inner as usize];
        p.heap(in_r).remove(pos, &mut self.positions);
    }

    /// The child with the smallest true key. Keys stored in a heap are lower bounds: the first is made exact until
    /// it stays first.
    pub(super) fn top(&mut self, parent: u32, reserves: bool) -> Option<u32> {
        let inner = self.inner_of(parent);
        let p = &self.inners[inner];
        let heap = if reserves { p.r.as_deref()? } else { &p.g };
        if let Some(n) = heap.scanned(p.tau) {
            self.looks += heap.len() as u64;
            self.accrue(n);
            return Some(n);
        }
        loop {
            let n = self.inners[inner].heap(reserves).first()?;
            self.looks += 1;
            self.accrue(n);
            if self.inners[inner].heap(reserves).refresh(&self.nodes[n as usize], &mut self.positions) {
                return Some(n);
            }
        }
    }

    /// The node's subtree cannot take a seat: it leaves its heap until something happens in the subtree.
    pub(super) fn block(&mut self, n: u32, now: u64) {
        debug_assert!(n != ROOT, "the shard itself is never blocked");
        let before = self.leave(n, now);
        self.nodes[n as usize].blocked = true;
        self.enter(n, now, before);
    }
}
