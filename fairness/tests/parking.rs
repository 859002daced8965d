//! The lot of parked seats under every interleaving that loom finds: a seat is held, parked or given back, once.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

#[allow(dead_code, reason = "what the gate uses beyond the protocol")]
#[path = "../src/gate/parking.rs"]
mod parking;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use loom::{
    sync::{Arc, Mutex},
    thread,
};
use parking::{Key, Lot, Parking, Place};

const OURS: Key = Key(0, 1);
/// Another key of the same stack.
const THEIRS: Key = Key(0, 2);

/// What the gate's lock protects: the lot, and how often each cell was given back.
struct Locked {
    lot: Lot,
    given_back: [u32; 2],
}

struct Gate {
    parking: Parking,
    locked: Mutex<Locked>,
}

impl Gate {
    fn open() -> Arc<Self> {
        let (parking, lot) = Parking::new(1, 2);
        parking.open();
        Arc::new(Self { parking, locked: Mutex::new(Locked { lot, given_back: [0; 2] }) })
    }

    /// One request of ours came and went.
    fn with_one_parked() -> Arc<Self> {
        let gate = Self::open();
        gate.end(gate.assign(OURS));
        gate
    }

    fn assign(&self, key: Key) -> Place {
        let mut locked = self.locked.lock().unwrap();
        self.parking.assign(&mut locked.lot, key).expect("the lot is open and has a cell")
    }

    /// A request ends.
    fn end(&self, place: Place) {
        if !self.parking.park(place) {
            let mut locked = self.locked.lock().unwrap();
            locked.given_back[place.cell as usize] += 1;
            self.parking.free(&mut locked.lot, place.cell);
        }
    }

    /// A request begins and ends; whether it got parked seats.
    fn run(&self, key: Key) -> Option<u32> {
        let place = self.parking.take(key)?;
        self.end(place);
        Some(place.cell)
    }

    fn close(&self) {
        let mut locked = self.locked.lock().unwrap();
        let Locked { lot, given_back } = &mut *locked;
        let mut parked = Vec::new();
        self.parking.close(lot, |cell| parked.push(cell));
        for cell in parked {
            given_back[cell as usize] += 1;
            self.parking.free(lot, cell);
        }
    }

    fn given_back(&self) -> [u32; 2] {
        self.locked.lock().unwrap().given_back
    }
}

#[test]
fn what_is_parked_while_the_lot_closes_is_given_back_once() {
    loom::model(|| {
        let gate = Gate::open();
        let place = gate.assign(OURS);
        let other = gate.clone();
        let ends = thread::spawn(move || other.end(place));
        gate.close();
        ends.join().unwrap();
        assert_eq!(gate.given_back(), [1, 0]);
        assert!(gate.parking.take(OURS).is_none(), "nothing is left in a closed lot");
    });
}

#[test]
fn a_request_that_takes_seats_while_the_lot_closes_gives_them_back_once() {
    loom::model(|| {
        let gate = Gate::with_one_parked();
        let other = gate.clone();
        let runs = thread::spawn(move || other.run(OURS));
        gate.close();
        runs.join().unwrap();
        assert_eq!(gate.given_back(), [1, 0]);
    });
}

#[test]
fn parked_seats_go_to_one_request_only() {
    loom::model(|| {
        let gate = Gate::with_one_parked();
        let other = gate.clone();
        let first = thread::spawn(move || other.parking.take(OURS));
        let second = gate.parking.take(OURS);
        let first = first.join().unwrap();
        assert!(first.is_some() != second.is_some(), "{first:?} {second:?}");
        first.or(second).into_iter().for_each(|place| gate.end(place));
        gate.close();
        assert_eq!(gate.given_back(), [1, 0]);
    });
}

#[test]
fn two_requests_come_and_go_in_one_stack() {
    loom::model(|| {
        let gate = Gate::open();
        let (a, b) = (gate.assign(OURS), gate.assign(OURS));
        gate.end(a);
        let other = gate.clone();
        let runs = thread::spawn(move || other.run(OURS));
        gate.end(b);
        runs.join().unwrap().expect("one of the two is parked throughout");
        gate.close();
        assert_eq!(gate.given_back(), [1, 1]);
    });
}

#[test]
fn a_stack_that_changes_hands_gives_nothing_to_the_old_ones() {
    loom::model(|| {
        let gate = Gate::with_one_parked();
        let other = gate.clone();
        let runs = thread::spawn(move || other.run(OURS));
        gate.close();
        gate.parking.open();
        let theirs = gate.assign(THEIRS);
        gate.end(theirs);
        runs.join().unwrap();
        let before = gate.given_back();
        assert_eq!(gate.parking.take(THEIRS).map(|place| place.cell), Some(theirs.cell), "theirs is still there");
        assert_eq!(before.iter().sum::<u32>(), 1, "ours came back once: {before:?}");
    });
}

#[test]
fn a_request_of_before_does_not_park_in_a_lot_that_was_opened_again() {
    loom::model(|| {
        let gate = Gate::open();
        let old = gate.assign(OURS);
        let other = gate.clone();
        let ends = thread::spawn(move || other.end(old));
        gate.close();
        gate.parking.open();
        let new = gate.assign(OURS);
        ends.join().unwrap();
        gate.end(new);
        gate.close();
        assert_eq!(gate.given_back().iter().sum::<u32>(), 2, "both came back, each once");
    });
}
