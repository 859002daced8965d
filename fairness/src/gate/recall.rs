//! Parked seats on the scheduler's side: what the lot's cells stand for, and how they come back.

use super::{
    parking::{Key, Place},
    state::{Grant, State, Wakes},
};
use crate::scheduler::{Releases, Spare};

/// The lot is not opened again so soon after somebody had to wait.
const CLOSED_FOR: u64 = 1_000_000;
/// Parked seats come back so long after the lot was opened: their workspaces may be idle.
const OPEN_FOR: u64 = 1_000_000_000;

/// What the seats of a cell are for.
#[derive(Clone, Copy, Debug, Default)]
struct Holder {
    grant: Option<Grant>,
    /// How many of its requests are counted.
    counted: u64,
    /// It is among [`Holders::used`].
    used: bool,
}

/// What the lot is worth to the scheduler.
#[derive(Debug, Default)]
pub(super) struct Holders {
    cells: Vec<Holder>,
    /// When the lot was last opened or closed.
    changed: u64,
    /// Cells that were given to requests since the lot was last closed; some have been given back.
    used: Vec<u32>,
    /// Cells that are being given back.
    parked: Vec<u32>,
}

impl State {
    /// A place for the seats of a request that begins to run, if the lot is open and not too much is in use or parked.
    pub(super) fn assign(&mut self, now: u64, key: Option<Key>, grant: Grant) -> Option<Place> {
        match self.shard.spare() {
            Spare::Plenty => {}
            Spare::Some => return None,
            Spare::None => {
                self.recall(now);
                return None;
            }
        }
        let place = self.parking.assign(&mut self.lot, key?)?;
        let at = place.cell as usize;
        if self.holders.cells.len() <= at {
            self.holders.cells.resize(at + 1, Holder::default());
        }
        if let Some(holder) = self.holders.cells.get_mut(at) {
            if !holder.used {
                self.holders.used.push(place.cell);
            }
            *holder = Holder { grant: Some(grant), counted: 0, used: true };
        }
        self.parking.cell(place.cell).begin(now, grant.pack());
        if let Some(id) = grant.id {
            self.shard.set_aside(id);
        }
        Some(place)
    }

    /// Opens the lot when nobody waits and enough is free.
    pub(super) fn may_open(&mut self, now: u64) {
        let rested = now.saturating_sub(self.holders.changed) >= CLOSED_FOR;
        if rested && !self.parking.is_open() && self.shard.spare() == Spare::Plenty {
            self.holders.changed = now;
            self.parking.open();
        }
    }

    /// When parked seats are due to come back.
    pub(super) fn recall_due(&self) -> Option<u64> {
        (!self.lot.is_unused()).then(|| self.holders.changed.saturating_add(OPEN_FOR))
    }

    /// Closes the lot: parked seats come back. Says whether any did. O(requests that got a cell since it was opened).
    pub(super) fn recall(&mut self, now: u64) -> bool {
        if !self.parking.is_open() && self.lot.is_unused() {
            return false;
        }
        self.holders.changed = now;
        let mut parked = std::mem::take(&mut self.holders.parked);
        self.parking.close(&mut self.lot, |cell| parked.push(cell));
        let mut used = std::mem::take(&mut self.holders.used);
        for cell in used.drain(..) {
            self.count(cell);
            let Some(holder) = self.holders.cells.get_mut(cell as usize) else { continue };
            holder.used = false;
            if let Some(Grant { id: Some(id), .. }) = holder.grant {
                self.shard.restart(id, self.parking.cell(cell).since().min(now));
            }
        }
        self.holders.used = used;
        let any = !parked.is_empty();
        for cell in parked.drain(..) {
            self.end_place(now, cell);
        }
        self.holders.parked = parked;
        any
    }

    /// As [`State::recall`], but the lot stays in use: for when exact figures are asked for.
    pub(super) fn recall_and_go_on(&mut self, now: u64) {
        let open = self.parking.is_open();
        self.recall(now);
        if open && self.shard.spare() == Spare::Plenty {
            self.parking.open();
        }
    }

    /// The last request of a cell has ended, and its seats come back.
    pub(super) fn end_place(&mut self, now: u64, cell: u32) {
        self.count(cell);
        let Some(grant) = self.holders.cells.get_mut(cell as usize).and_then(|holder| holder.grant.take()) else {
            return;
        };
        let at = self.parking.cell(cell);
        let [count, total, square_micros] = at.ended();
        let squares = u128::from(square_micros) * 1_000_000;
        let releases = Releases { count, total, squares, last: at.since() };
        self.parking.free(&mut self.lot, cell);
        let flow = self.flows.at(grant.flow);
        flow.answered();
        flow.gave_back(grant.seats);
        let ended = grant.id.is_some_and(|id| self.shard.complete_all(now, id, &releases));
        debug_assert!(ended, "a cell ends its request once");
    }

    /// Counts the requests that took the seats of a cell without the lock.
    fn count(&mut self, cell: u32) {
        let taken = self.parking.cell(cell).taken();
        let Some(holder) = self.holders.cells.get_mut(cell as usize) else { return };
        let Some(grant) = holder.grant else { return };
        let more = taken - std::mem::replace(&mut holder.counted, taken);
        if more > 0 {
            self.flows.at(grant.flow).started_at_once(more);
            self.started_at_once(grant, more);
        }
    }

    /// Gives a running request's seats back from the lot, and starts who can start then.
    pub(super) fn settle_place(&mut self, now: u64, place: Place, wakes: &mut Wakes) {
        self.end_tails(now, wakes);
        self.end_place(now, place.cell);
        self.after_settling(now, wakes);
    }
}
