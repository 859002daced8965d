//! A 4-ary heap of nodes by key, with the position of each node kept in a dense table beside the nodes: moving
//! an entry touches four bytes of that table, not the node, which is mostly out of the cache.
//!
//! Keys wrap: `a` comes before `b` if `a - b` is negative. Ties go to the node whose last dispatch is longer
//! ago, then to the smaller index: a total order.

#![allow(clippy::indexing_slicing, reason = "positions are kept exact by this module alone; a hot path")]

use super::node::{NONE, Node};

/// Position of each node in the heap it is in, [`NONE`] if in none.
pub(super) type Positions = Vec<u32>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) key: i64,
    last: u64,
    pub(super) node: u32,
}

impl Entry {
    pub(super) fn of(index: u32, node: &Node) -> Self {
        Self { key: node.key(), last: node.last, node: index }
    }

    fn before(&self, other: &Self) -> bool {
        match self.key.wrapping_sub(other.key) {
            0 => (self.last, self.node) < (other.last, other.node),
            difference => difference < 0,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Heap(Vec<Entry>);

impl Heap {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn first(&self) -> Option<Entry> {
        self.0.first().copied()
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.0
    }

    pub(super) fn push(&mut self, entry: Entry, pos: &mut Positions) {
        self.0.push(entry);
        self.up(self.0.len() - 1, entry, pos);
    }

    /// Puts `entry` in the place of the node's old one.
    pub(super) fn update(&mut self, at: u32, entry: Entry, pos: &mut Positions) {
        let at = at as usize;
        if entry.before(&self.0[at]) { self.up(at, entry, pos) } else { self.down(at, entry, pos) }
    }

    pub(super) fn remove(&mut self, at: u32, pos: &mut Positions) {
        let at = at as usize;
        pos[self.0[at].node as usize] = NONE;
        let Some(moved) = self.0.pop() else { return };
        if at < self.0.len() {
            self.update(at as u32, moved, pos);
        }
    }

    fn place(&mut self, at: usize, entry: Entry, pos: &mut Positions) {
        self.0[at] = entry;
        pos[entry.node as usize] = at as u32;
    }

    fn up(&mut self, mut at: usize, entry: Entry, pos: &mut Positions) {
        while at > 0 {
            let parent = (at - 1) / 4;
            if !entry.before(&self.0[parent]) {
                break;
            }
            self.place(at, self.0[parent], pos);
            at = parent;
        }
        self.place(at, entry, pos);
    }

    fn down(&mut self, mut at: usize, entry: Entry, pos: &mut Positions) {
        loop {
            let first = 4 * at + 1;
            let end = (first + 4).min(self.0.len());
            if first >= end {
                break;
            }
            let mut best = first;
            for i in first + 1..end {
                if self.0[i].before(&self.0[best]) {
                    best = i;
                }
            }
            if !self.0[best].before(&entry) {
                break;
            }
            self.place(at, self.0[best], pos);
            at = best;
        }
        self.place(at, entry, pos);
    }
}
