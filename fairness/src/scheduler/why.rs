//! Why a waiting request waits: law 2 as a question that can be asked at any time.

#![allow(clippy::indexing_slicing, reason = "node indices live as long as their nodes")]

use super::{
    dispatch::Room,
    requests::{RequestId, State},
    tree::{ROOT, Scheduler},
};

/// The reason why a request waits. There is always exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The shard has no free seat, or too few for its width.
    NoSeat,
    /// A sibling is served first.
    Turn,
    /// Its queue, level or workspace uses all it may.
    Max,
    /// The free seats are kept for others.
    Reserved,
    /// The last free seats stay free for those below their share.
    Headroom,
    /// Its workspace holds seats for long and takes only seats that have been free for a while.
    Unripe,
    /// Free seats are being collected for a wide request: for this one, or for another.
    Collecting,
}

impl Why {
    /// The word for `explain` and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSeat => "no-seat",
            Self::Turn => "turn",
            Self::Max => "max",
            Self::Reserved => "reserved",
            Self::Headroom => "headroom",
            Self::Unripe => "unripe",
            Self::Collecting => "collecting",
        }
    }
}

impl Scheduler {
    /// Why the request waits; `None` if it does not. The answer is that of the head of its queue. To be
    /// asked after [`Scheduler::dispatch`] has said `None`.
    pub fn why_waiting(&mut self, now: u64, id: RequestId) -> Option<Why> {
        let leaf = self.requests.get(id).filter(|r| r.state == State::Waiting)?.leaf;
        let width = self.requests.at(self.nodes[leaf as usize].head).width;
        let customer = self.customer_of(leaf)?;
        let shard = &self.nodes[ROOT as usize];
        let free = i64::from(shard.m) - i64::from(self.exempt) - i64::from(shard.u);
        match self.room(leaf, width) {
            Room::Below(n) => return Some(self.why_below(leaf, n, width)),
            _ if free <= 0 => return Some(Why::NoSeat),
            _ if self.claim.is_some() => return Some(Why::Collecting),
            Room::Shard if free < i64::from(width) => return Some(Why::NoSeat),
            Room::Shard => return Some(Why::Reserved),
            Room::Fits => {}
        }
        if let Some(why) = self.why_path(leaf) {
            return Some(why);
        }
        if self.unripe(now, customer, width).is_some() {
            return Some(Why::Unripe);
        }
        Some(if self.headroom_forbids(now, customer, width) { Why::Headroom } else { Why::Turn })
    }

    /// No room below the shard: the node's own maximum, or what its children keep for one another.
    fn why_below(&self, leaf: u32, n: u32, width: u32) -> Why {
        let node = &self.nodes[n as usize];
        if n == leaf || node.u.saturating_add(width) > self.maximum(n) { Why::Max } else { Why::Reserved }
    }

    /// The head would fit, but a node above it is put aside or lends nothing.
    fn why_path(&self, leaf: u32) -> Option<Why> {
        let mut at = leaf;
        while at != ROOT {
            let node = &self.nodes[at as usize];
            if node.blocked {
                // A wider sibling stands first below this node and waits for room there.
                return Some(Why::Max);
            }
            if node.u >= node.r && self.available(node.parent) <= 0 {
                return Some(if node.parent == ROOT { Why::Reserved } else { Why::Max });
            }
            at = node.parent;
        }
        None
    }
}
