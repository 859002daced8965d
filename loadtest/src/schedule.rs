//! When requests are due: a fixed rate that does not depend on how the server is doing.
//!
//! Latency is counted from the due time, not from the time a connection was free to send ("coordinated omission").

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

/// How often a waiting pacer looks whether it should stop.
const LOOK: Duration = Duration::from_millis(50);

/// The times of a phase: the warm-up, then the measured part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) start: Instant,
    pub(crate) measured_from: Instant,
    pub(crate) until: Instant,
}

/// The due times of several senders of the same rate, evenly interleaved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) start: Instant,
    pub(crate) length: Duration,
    pub(crate) senders: u32,
    /// Requests per second of each.
    pub(crate) rate: u32,
}

/// One request's place in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Its number among those of its sender, from 0.
    pub(crate) number: u64,
    /// When it should be sent.
    pub(crate) due: Instant,
}

impl Schedule {
    /// All slots in the order of time, each with its sender.
    pub(crate) fn slots(self) -> impl Iterator<Item = (usize, Slot)> {
        let (senders, rate) = (u64::from(self.senders), u64::from(self.rate));
        let total = senders * self.per_sender();
        (0..total).map(move |k| {
            let nanos = u128::from(k) * 1_000_000_000 / u128::from(senders * rate);
            let after = Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32);
            ((k % senders) as usize, Slot { number: k / senders, due: self.start + after })
        })
    }

    /// Requests of each sender.
    pub(crate) fn per_sender(self) -> u64 {
        (self.length.as_nanos() * u128::from(self.rate) / 1_000_000_000) as u64
    }

    /// Requests of one sender that are due at or after some moment.
    pub(crate) fn due_from(self, sender: usize, from: Instant) -> u64 {
        self.slots().filter(|(s, slot)| *s == sender && slot.due >= from).count() as u64
    }
}

/// Hands out each slot when it is due. Blocks its thread, because the timers of the runtime are a millisecond coarse.
pub(crate) fn pace(schedule: Schedule, stop: &CancellationToken, mut send: impl FnMut(usize, Slot)) {
    for (sender, slot) in schedule.slots() {
        loop {
            if stop.is_cancelled() {
                return;
            }
            match slot.due.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => break,
                Some(wait) => thread::sleep(wait.min(LOOK)),
            }
        }
        send(sender, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_evenly_spread_and_do_not_drift() {
        let start = Instant::now();
        let schedule = Schedule { start, length: Duration::from_secs(30), senders: 3, rate: 7 };
        let slots: Vec<_> = schedule.slots().collect();
        assert_eq!((slots.len() as u64, schedule.per_sender()), (3 * 210, 210));
        for (k, (sender, slot)) in slots.iter().enumerate() {
            let expected = Duration::from_nanos((k as u64 * 1_000_000_000) / 21);
            assert_eq!((*sender, slot.number, slot.due - start), (k % 3, k as u64 / 3, expected));
        }
    }

    #[test]
    fn every_slot_is_handed_out_none_early_and_late_ones_too() {
        let start = Instant::now().checked_sub(Duration::from_millis(100)).unwrap();
        let schedule = Schedule { start, length: Duration::from_millis(200), senders: 2, rate: 100 };
        let mut seen = [0; 2];
        pace(schedule, &CancellationToken::new(), |sender, slot| {
            assert!(Instant::now() >= slot.due);
            assert_eq!(slot.number, seen[sender]);
            seen[sender] += 1;
        });
        assert_eq!(seen, [20, 20]);
    }

    #[test]
    fn a_stopped_pacer_hands_out_nothing() {
        let stop = CancellationToken::new();
        stop.cancel();
        let schedule = Schedule { start: Instant::now(), length: Duration::from_secs(3600), senders: 1, rate: 1 };
        pace(schedule, &stop, |_, _| panic!("stopped"));
    }
}
