//! The requests that wait or run, in one slab, with the FIFO of each queue linked through it.

#![allow(
    clippy::indexing_slicing,
    reason = "indices come from the slab itself or from ids checked by `get`; a hot path"
)]

use super::node::{NONE, Node, push};

/// A request that waits or runs. Never equal to that of an earlier request in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl RequestId {
    /// An id outside the scheduler, for the simulator's other servers.
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// The id as one number, and back.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }

    /// A small number that no other present request has, for tables beside the scheduler.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Waiting,
    Running,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) leaf: u32,
    /// Seats charged.
    pub(super) width: u32,
    /// Neighbours in the queue; `next` of a free place is the next free one.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Times that narrower requests went first because it did not fit.
    pub(super) passed: u32,
    generation: u32,
    pub(super) state: State,
    /// Not counted in the ages of those that run.
    pub(super) aside: bool,
    pub(super) start: u64,
    /// The horizon it was charged with.
    pub(super) horizon: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Requests {
    slots: Vec<Request>,
    free: u32,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: NONE }
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Request> {
        self.slots.get(id.index as usize).filter(|r| r.generation == id.generation && r.state != State::Free)
    }

    pub(super) fn at(&self, index: u32) -> &Request {
        &self.slots[index as usize]
    }

    pub(super) fn at_mut(&mut self, index: u32) -> &mut Request {
        &mut self.slots[index as usize]
    }

    pub(super) fn id(&self, index: u32) -> RequestId {
        RequestId { index, generation: self.slots[index as usize].generation }
    }

    /// Appends a request to the queue `leaf`.
    pub(super) fn push(&mut self, leaf: u32, width: u32, node: &mut Node) -> RequestId {
        let new = |generation, prev| Request {
            leaf,
            width,
            prev,
            next: NONE,
            passed: 0,
            generation,
            state: State::Waiting,
            aside: false,
            start: 0,
            horizon: 0,
        };
        let index = self.free;
        let index = if index == NONE {
            push(&mut self.slots, new(0, node.tail));
            self.slots.len() as u32 - 1
        } else {
            let slot = &mut self.slots[index as usize];
            self.free = slot.next;
            *slot = new(slot.generation.wrapping_add(1), node.tail);
            index
        };
        match node.tail {
            NONE => node.head = index,
            tail => self.slots[tail as usize].next = index,
        }
        node.tail = index;
        self.id(index)
    }

    /// Takes a request out of its queue, wherever it stands.
    pub(super) fn unlink(&mut self, index: u32, node: &mut Node) {
        let Request { prev, next, .. } = self.slots[index as usize];
        match prev {
            NONE => node.head = next,
            prev => self.slots[prev as usize].next = next,
        }
        match next {
            NONE => node.tail = prev,
            next => self.slots[next as usize].prev = prev,
        }
    }

    pub(super) fn release(&mut self, index: u32) {
        let free = self.free;
        let slot = self.at_mut(index);
        slot.state = State::Free;
        slot.next = free;
        self.free = index;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Request)> {
        self.slots.iter().enumerate().filter(|(_, r)| r.state != State::Free).map(|(i, r)| (i as u32, r))
    }
}
