//! A 4-ary heap of nodes by key, with the position of each node kept in a dense table beside the nodes: moving
//! an entry touches four bytes of that table, not the node, which is mostly out of the cache.
//!
//! Keys wrap: `a` comes before `b` if `a - b` is negative. Ties go to the node whose last dispatch is longer
//! ago, then to the smaller index: a total order.

#![allow(clippy::indexing_slicing, reason = "positions are kept exact by this module alone; a hot path")]

use super::node::{NONE, Node, SCALE};

/// Position of each node in the heap it is in, [`NONE`] if in none.
pub(super) type Positions = Vec<u32>;

/// With no more entries than this, all of weight 1, the first is found by looking at each.
const FEW: usize = 128;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The key; while entries are scanned, what is left of it when `rate` × the parent's clock is taken off.
    key: i64,
    rate: u32,
    /// The low half of the number of its last dispatch, for ties.
    last: u32,
    pub(super) node: u32,
}

impl Entry {
    fn of(index: u32, node: &Node) -> Self {
        Self { key: node.key(), rate: 0, last: node.last as u32, node: index }
    }

    /// As the key of a node of weight 1 grows with the clock exactly, it need not be brought up to date.
    fn growing(index: u32, node: &Node) -> Self {
        let rate = node.u.saturating_add(node.hold);
        let key = node.key().wrapping_sub(grown(rate, node.mark));
        Self { key, rate, ..Self::of(index, node) }
    }

    fn key_at(&self, tau: u64) -> i64 {
        self.key.wrapping_add(grown(self.rate, tau))
    }

    fn at(&self, tau: u64) -> Self {
        Self { key: self.key_at(tau), rate: 0, ..*self }
    }

    fn before(&self, other: &Self) -> bool {
        // Without branches: which of two is first is as good as random.
        let difference = self.key.wrapping_sub(other.key);
        (difference < 0) | ((difference == 0) & self.wins_tie(other))
    }

    fn wins_tie(&self, other: &Self) -> bool {
        let longer_ago = self.last.wrapping_sub(other.last) as i32;
        (longer_ago < 0) | ((longer_ago == 0) & (self.node < other.node))
    }
}

/// What the tag of a child of weight 1 with so many seats grows by in that time.
fn grown(seats: u32, time: u64) -> i64 {
    (u64::from(seats) * SCALE).wrapping_mul(time) as i64
}

/// Backlogged children in the order of their keys. The keys of those that run grow all the time, so that in a heap the
/// first must be looked at again and again until it stays first; few are better scanned.
#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    entries: Vec<Entry>,
    /// The entries stand in no order.
    scan: bool,
    /// There was a child of another weight than 1.
    mixed: bool,
}

impl Heap {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The first by the keys as they are at this time of the parent's clock, if that is known without further looks.
    pub(super) fn scanned(&self, tau: u64) -> Option<u32> {
        if !self.scan {
            return None;
        }
        let mut best = self.entries.first()?;
        let mut key = best.key_at(tau);
        for entry in &self.entries {
            // A smaller one is found rarely, a tie hardly ever.
            let difference = entry.key_at(tau).wrapping_sub(key);
            if difference < 0 || (difference == 0 && entry.wins_tie(best)) {
                (best, key) = (entry, key.wrapping_add(difference));
            }
        }
        Some(best.node)
    }

    /// The first by the keys as they were when they were put here. Whether it is still up to date is for
    /// [`Heap::refresh`] to say.
    pub(super) fn first(&self) -> Option<u32> {
        self.entries.first().map(|entry| entry.node)
    }

    /// Brings the first up to date. Says whether it was.
    pub(super) fn refresh(&mut self, node: &Node, pos: &mut Positions) -> bool {
        let Some(first) = self.entries.first() else { return true };
        let exact = Entry::of(first.node, node);
        let same = exact.key == first.key;
        if !same {
            self.update(0, exact, pos);
        }
        same
    }

    pub(super) fn push(&mut self, index: u32, node: &Node, pos: &mut Positions) {
        if self.entries.is_empty() {
            self.scan = !self.mixed;
        }
        self.keep_scanning(node, self.entries.len() < FEW, pos);
        if self.scan {
            pos[index as usize] = self.entries.len() as u32;
            return self.entries.push(Entry::growing(index, node));
        }
        let entry = Entry::of(index, node);
        self.entries.push(entry);
        self.up(self.entries.len() - 1, entry, pos);
    }

    /// A child's key has changed.
    pub(super) fn put(&mut self, index: u32, node: &Node, pos: &mut Positions) {
        self.keep_scanning(node, true, pos);
        let at = pos[index as usize];
        if self.scan {
            self.entries[at as usize] = Entry::growing(index, node);
        } else {
            self.update(at, Entry::of(index, node), pos);
        }
    }

    /// Puts the entries in order if they cannot be scanned with this child among them.
    fn keep_scanning(&mut self, node: &Node, few: bool, pos: &mut Positions) {
        if !self.scan || (few && node.weight == 1) {
            return;
        }
        self.scan = false;
        self.mixed |= node.weight != 1;
        for at in 0..self.entries.len() {
            // The child was accrued: its mark is the time of the parent's clock.
            let entry = self.entries[at].at(node.mark);
            self.up(at, entry, pos);
        }
    }

    /// Puts `entry` in the place of the node's old one.
    fn update(&mut self, at: u32, entry: Entry, pos: &mut Positions) {
        let at = at as usize;
        if entry.before(&self.entries[at]) { self.up(at, entry, pos) } else { self.down(at, entry, pos) }
    }

    pub(super) fn remove(&mut self, at: u32, pos: &mut Positions) {
        let at = at as usize;
        pos[self.entries[at].node as usize] = NONE;
        let Some(moved) = self.entries.pop() else { return };
        if at == self.entries.len() {
            return;
        }
        if self.scan {
            self.place(at, moved, pos);
        } else {
            self.update(at as u32, moved, pos);
        }
    }

    fn place(&mut self, at: usize, entry: Entry, pos: &mut Positions) {
        self.entries[at] = entry;
        pos[entry.node as usize] = at as u32;
    }

    fn up(&mut self, mut at: usize, entry: Entry, pos: &mut Positions) {
        while at > 0 {
            let parent = (at - 1) / 4;
            if !entry.before(&self.entries[parent]) {
                break;
            }
            self.place(at, self.entries[parent], pos);
            at = parent;
        }
        self.place(at, entry, pos);
    }

    fn down(&mut self, mut at: usize, entry: Entry, pos: &mut Positions) {
        loop {
            let first = 4 * at + 1;
            let end = (first + 4).min(self.entries.len());
            if first >= end {
                break;
            }
            let mut best = first;
            for i in first + 1..end {
                if self.entries[i].before(&self.entries[best]) {
                    best = i;
                }
            }
            if !self.entries[best].before(&entry) {
                break;
            }
            self.place(at, self.entries[best], pos);
            at = best;
        }
        self.place(at, entry, pos);
    }
}
