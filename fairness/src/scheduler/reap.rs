//! Nodes that do nothing are dropped, so that idle workspaces cost nothing.
//!
//! A node is dropped once it has been idle for a while and owes nothing any more; what it was owed is not
//! kept. Its reserve goes on counting as that of an absent child. Work is bounded per call.

#![allow(clippy::indexing_slicing, reason = "node indices live as long as their nodes")]

use super::{
    measure::SECOND,
    node::{NONE, NodeId, Owner},
    tree::{ROOT, Scheduler},
};

impl Scheduler {
    /// A node became idle: it is looked at when its time has come.
    pub(super) fn may_idle(&mut self, n: u32, now: u64) {
        let due = now.saturating_add(self.tuning.idle_ns);
        let node = &mut self.nodes[n as usize];
        node.idle_since = now;
        if !node.in_reap && n != ROOT && n != self.pool {
            node.in_reap = true;
            if self.reap_queue.len() == self.reap_queue.capacity() {
                self.reap_queue.reserve_exact((self.reap_queue.len() / 8).max(8));
            }
            self.reap_queue.push_back((due, n));
        }
    }

    /// Looks at up to `most` nodes that were idle, drops those it can, and says when to come again.
    pub fn reap(&mut self, now: u64, most: usize) -> Option<u64> {
        for _ in 0..most {
            if self.reap_queue.front().is_none_or(|(due, _)| *due > now) {
                break;
            }
            let Some((_, n)) = self.reap_queue.pop_front() else { break };
            if !self.is_idle(n) {
                // It comes again when it is idle again.
                self.nodes[n as usize].in_reap = false;
                continue;
            }
            let due = self.nodes[n as usize].idle_since.saturating_add(self.tuning.idle_ns);
            if due > now {
                // It was busy in between.
                self.reap_queue.push_back((due, n));
            } else if self.owes_nothing(n, now) {
                self.remove(n, now);
            } else {
                self.reap_queue.push_back((now.saturating_add(self.tuning.idle_ns), n));
            }
        }
        self.next_reap()
    }

    /// When [`Scheduler::reap`] has something to do.
    pub fn next_reap(&self) -> Option<u64> {
        self.reap_queue.front().map(|(due, _)| *due)
    }

    /// The owner of a node that was dropped since the last call, one at a time. Its [`NodeId`] is void.
    pub fn reaped(&mut self) -> Option<Owner> {
        self.reaped.pop()
    }

    /// Nobody asks for this node and its children any more: they end when they are idle, in silence.
    pub fn disown(&mut self, now: u64, node: NodeId) {
        let at = &mut self.nodes[node.0 as usize];
        at.owner = Owner::NOBODY;
        at.keep = false;
        if !at.active() {
            self.may_idle(node.0, now);
        }
    }

    fn is_idle(&self, n: u32) -> bool {
        let node = &self.nodes[n as usize];
        let childless = node.inner == NONE || self.inners[node.inner as usize].children == 0;
        !node.active() && node.hold == 0 && childless && !node.keep
    }

    fn owes_nothing(&mut self, n: u32, now: u64) -> bool {
        let parent = self.nodes[n as usize].parent;
        self.clock(parent, now);
        let mean = self.mean(parent);
        let p = &self.inners[self.inner_of(parent)];
        let node = &self.nodes[n as usize];
        let quiet = p.members == 0 && now.saturating_sub(p.contended_at) >= SECOND;
        node.epoch != p.epoch || quiet || mean.wrapping_sub(node.f) >= 0
    }

    fn remove(&mut self, n: u32, now: u64) {
        let node = &self.nodes[n as usize];
        let (parent, inner, owner, r) = (node.parent, node.inner, node.owner, u64::from(node.r));
        let p = self.inner_of(parent);
        let p = &mut self.inners[p];
        p.children -= 1;
        // An idle node commits exactly its reserve, which stays.
        p.absent_reserve += r;
        if inner != NONE {
            self.free_inners.push(inner);
        }
        let free = self.free_node;
        let node = &mut self.nodes[n as usize];
        node.live = false;
        node.in_reap = false;
        node.head = free;
        self.free_node = n;
        self.free_nodes += 1;
        if owner != Owner::NOBODY {
            self.reaped.push(owner);
        }
        if self.is_idle(parent) && parent != ROOT {
            self.may_idle(parent, now);
        }
    }

    /// Nodes in use, the shard's own included.
    pub fn nodes(&self) -> usize {
        self.nodes.len() - self.free_nodes
    }
}
