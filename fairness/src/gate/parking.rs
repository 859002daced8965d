//! Seats that stay with a flow between two of its requests: admission without the gate's lock while nobody waits.
//!
//! A short request that ends while nobody waits does not give its seats back to the scheduler: it *parks* them, and
//! the next request of the same flow and width takes them from there. For the scheduler the first request still runs,
//! so that no limit can be exceeded. As soon as anybody has to wait the lot is closed: what is parked goes back
//! at once, and every request takes the lock until it is open again.
//!
//! # Protocol
//! One stack of cells per flow, its head a counter and an index in one word. Closing stores the word of state, then
//! swaps the head of every stack in use. A change of a head by a request reads the head, then the state, then exchanges
//! the head: if the exchange succeeds no swap came between, so the swap that follows a closed state finds what
//! was parked. Everything else about a cell changes behind the gate's lock, or by the one request that holds it.
//! `tests/parking.rs` has the interleavings checked by loom.
//!
//! # Costs
//! Two exchanges per request, on a line that only requests of the same flow touch. Fixed memory for each gate.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// No cell.
const NONE: u32 = u32::MAX;

/// What a stack is for: 128 bits of a keyed hash of workspace, level, flow and width. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(pub(super) u64, pub(super) u64);

/// Where a request keeps its seats, for as long as it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) cell: u32,
    stack: u32,
    /// The state of the lot when it was opened.
    opened: u64,
}

#[derive(Debug)]
struct Stack {
    key: [AtomicU64; 2],
    /// Number of changes, then index of the first cell, 32 bits each.
    head: AtomicU64,
}

/// The seats of one request of the scheduler, and the requests that had them. As large as a cache line and on one of
/// its own: requests of two flows must not meet there.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Cell {
    next: AtomicU32,
    /// When the present request began, or the last one ended.
    since: AtomicU64,
    grant: [AtomicU64; 2],
    /// Requests that took these seats from the stack, and requests that ended.
    taken: AtomicU64,
    ended: AtomicU64,
    /// Over the latter: durations in nanoseconds, and their squares in square microseconds.
    busy: AtomicU64,
    busy_squared: AtomicU64,
}

/// The lot of one gate.
#[derive(Debug)]
pub(super) struct Parking {
    /// Odd: open. Grows with each change.
    state: AtomicU64,
    stacks: Box<[Stack]>,
    cells: Box<[Cell]>,
}

/// What only the holder of the gate's lock changes.
#[derive(Debug)]
pub(super) struct Lot {
    free: Vec<u32>,
    /// Stacks that have a key.
    used: Vec<u32>,
}

impl Lot {
    /// Whether nothing can be parked.
    pub(super) fn is_unused(&self) -> bool {
        self.used.is_empty()
    }
}

fn index(head: u64) -> u32 {
    head as u32
}

fn changed(head: u64, index: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(index)
}

impl Cell {
    /// The seats are given to a first request. Behind the lock.
    pub(super) fn begin(&self, now: u64, grant: [u64; 2]) {
        self.since.store(now, Ordering::Relaxed);
        self.grant.iter().zip(grant).for_each(|(place, bits)| place.store(bits, Ordering::Relaxed));
    }

    /// A further request begins, or the present one ends. Only for the request that holds the cell.
    fn add(&self, count: &AtomicU64, more: u64) {
        count.store(count.load(Ordering::Relaxed).saturating_add(more), Ordering::Relaxed);
    }

    /// A request has taken the cell from its stack; what the seats are for.
    pub(super) fn enter(&self, now: u64) -> [u64; 2] {
        self.add(&self.taken, 1);
        self.since.store(now, Ordering::Relaxed);
        let [a, b] = &self.grant;
        [a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)]
    }

    /// The request that holds the cell ends; how long it ran, in nanoseconds.
    pub(super) fn leave(&self, now: u64) -> u64 {
        let ran = now.saturating_sub(self.since.load(Ordering::Relaxed));
        let micros = ran / 1_000;
        self.add(&self.ended, 1);
        self.add(&self.busy, ran);
        self.add(&self.busy_squared, micros.saturating_mul(micros));
        self.since.store(now, Ordering::Relaxed);
        ran
    }

    /// When the present request began, or the last one ended.
    pub(super) fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    /// Requests that took the cell from its stack so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// The requests that ended here: their number, nanoseconds, square microseconds.
    pub(super) fn ended(&self) -> [u64; 3] {
        [&self.ended, &self.busy, &self.busy_squared].map(|sum| sum.load(Ordering::Relaxed))
    }
}

impl Parking {
    /// A closed lot with this many stacks (a power of two) and cells.
    pub(super) fn new(stacks: u32, cells: u32) -> (Self, Lot) {
        let stack = |_| Stack { key: [AtomicU64::new(0), AtomicU64::new(0)], head: AtomicU64::new(u64::from(NONE)) };
        let cell = |_| Cell {
            next: AtomicU32::new(NONE),
            since: AtomicU64::new(0),
            grant: [AtomicU64::new(0), AtomicU64::new(0)],
            taken: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            busy_squared: AtomicU64::new(0),
        };
        let parking = Self {
            state: AtomicU64::new(0),
            stacks: (0..stacks.next_power_of_two()).map(stack).collect(),
            cells: (0..cells).map(cell).collect(),
        };
        (parking, Lot { free: (0..cells).rev().collect(), used: Vec::new() })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.state.load(Ordering::Acquire).is_multiple_of(2)
    }

    pub(super) fn cell(&self, index: u32) -> &Cell {
        self.cells.get(index as usize).expect("places are made by this lot")
    }

    fn stack(&self, key: Key) -> u32 {
        (key.0 as usize & (self.stacks.len() - 1)) as u32
    }

    fn at(&self, stack: u32) -> &Stack {
        self.stacks.get(stack as usize).expect("a masked hash, or from a place")
    }

    /// Takes parked seats, if there are any for this key. The cell is the caller's.
    pub(super) fn take(&self, key: Key) -> Option<Place> {
        let number = self.stack(key);
        let stack = self.at(number);
        let mut head = stack.head.load(Ordering::Acquire);
        loop {
            let cell = index(head);
            let [a, b] = &stack.key;
            if cell == NONE || a.load(Ordering::Relaxed) != key.0 || b.load(Ordering::Relaxed) != key.1 {
                return None;
            }
            let opened = self.state.load(Ordering::Acquire);
            if opened.is_multiple_of(2) {
                return None;
            }
            let next = self.cell(cell).next.load(Ordering::Relaxed);
            // A key, a cell or a state that has changed since the head was read has changed the head.
            match stack.head.compare_exchange(head, changed(head, next), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(Place { cell, stack: number, opened }),
                Err(now) => head = now,
            }
        }
    }

    /// Parks the seats of a place. `false`: the lot is closed or was in between; the place is still the caller's,
    /// who must give the seats back behind the lock.
    pub(super) fn park(&self, place: Place) -> bool {
        let stack = self.at(place.stack);
        let mut head = stack.head.load(Ordering::Acquire);
        loop {
            if self.state.load(Ordering::Acquire) != place.opened {
                return false;
            }
            self.cell(place.cell).next.store(index(head), Ordering::Relaxed);
            match stack.head.compare_exchange(head, changed(head, place.cell), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    /// Opens the lot. Behind the lock.
    pub(super) fn open(&self) {
        let state = self.state.load(Ordering::Relaxed);
        if state.is_multiple_of(2) {
            self.state.store(state + 1, Ordering::Release);
        }
    }

    /// Closes the lot, and hands out every cell that is parked; give them back with [`Parking::free`]. Behind the lock.
    pub(super) fn close(&self, lot: &mut Lot, mut each: impl FnMut(u32)) {
        let state = self.state.load(Ordering::Relaxed);
        if !state.is_multiple_of(2) {
            self.state.store(state + 1, Ordering::Release);
        }
        for number in lot.used.drain(..) {
            let stack = self.at(number);
            let mut head = stack.head.load(Ordering::Relaxed);
            while let Err(now) =
                stack.head.compare_exchange(head, changed(head, NONE), Ordering::AcqRel, Ordering::Acquire)
            {
                head = now;
            }
            for part in &stack.key {
                part.store(0, Ordering::Relaxed);
            }
            let mut cell = index(head);
            while cell != NONE {
                let next = self.cell(cell).next.load(Ordering::Relaxed);
                each(cell);
                cell = next;
            }
        }
    }

    /// A cell for a request that begins to run, in the stack of its key. `None` if the lot is closed or full, or
    /// another key has that stack. Behind the lock.
    pub(super) fn assign(&self, lot: &mut Lot, key: Key) -> Option<Place> {
        let opened = self.state.load(Ordering::Relaxed);
        let number = self.stack(key);
        let stack = self.at(number);
        let [a, b] = &stack.key;
        let own = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
        if opened.is_multiple_of(2) || (own != (0, 0) && own != (key.0, key.1)) {
            return None;
        }
        let cell = lot.free.pop()?;
        if own == (0, 0) {
            a.store(key.0, Ordering::Relaxed);
            b.store(key.1, Ordering::Relaxed);
            lot.used.push(number);
            // Nobody else changes the head of a stack without a key and without cells.
            let head = stack.head.load(Ordering::Relaxed);
            stack.head.store(changed(head, NONE), Ordering::Release);
        }
        let at = self.cell(cell);
        for count in [&at.taken, &at.ended, &at.busy, &at.busy_squared] {
            count.store(0, Ordering::Relaxed);
        }
        Some(Place { cell, stack: number, opened })
    }

    /// The seats of a cell have been given back. Behind the lock.
    pub(super) fn free(&self, lot: &mut Lot, cell: u32) {
        lot.free.push(cell);
    }
}
