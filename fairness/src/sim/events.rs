//! The calendar of the simulator: a radix heap, since time only goes forward.
//!
//! An entry stands in the bucket of the highest bit in which its time differs from the last time taken out.
//! It moves to lower buckets only, one after the other in memory, at most 64 times.

use crate::scheduler::RequestId;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A closed-loop client of this stream sends.
    Client { stream: u32, flow: u32 },
    /// The next random arrival of this stream.
    Arrival { stream: u32 },
    /// A burst of this stream.
    Burst { stream: u32 },
    /// A running request ends, its tail too.
    End { id: RequestId },
    /// The answer of a running request is out; a closed-loop client may go on, the tail runs.
    Answer { stream: u32, flow: u32 },
    /// An exempt request ends.
    ExemptEnd { seats: u32 },
    /// A request has waited as long as it may.
    Expire { id: RequestId },
    /// A request that may not wait is to be running by now.
    NowOrNever { id: RequestId },
    /// A client loses patience.
    GiveUp { id: RequestId },
    /// A reconfiguration; how often it was done before.
    Change { index: u32, times: u32 },
    /// The scheduler wants to be called.
    Wakeup,
    /// A sample is taken.
    Sample,
}

const BUCKETS: usize = u64::BITS as usize + 1;

/// Events in order of time, then of insertion.
#[derive(Debug)]
pub(super) struct Calendar {
    /// Entries of the bucket 0 are for this time.
    last: u64,
    buckets: [Vec<(u64, Event)>; BUCKETS],
    /// How many of bucket 0 are taken out already.
    taken: usize,
}

impl Default for Calendar {
    fn default() -> Self {
        Self { last: 0, buckets: std::array::from_fn(|_| Vec::new()), taken: 0 }
    }
}

impl Calendar {
    /// Adds an event. What lies in the past happens now.
    pub(super) fn at(&mut self, time: u64, event: Event) {
        let time = time.max(self.last);
        let bucket = BUCKETS - 1 - (time ^ self.last).leading_zeros() as usize;
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.push((time, event));
        }
    }

    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        let [now, later @ ..] = &mut self.buckets;
        if self.taken == now.len() {
            self.taken = 0;
            now.clear();
            let at = later.iter().position(|bucket| !bucket.is_empty())?;
            let mut moving = std::mem::take(later.get_mut(at)?);
            self.last = moving.iter().map(|(time, _)| *time).min()?;
            // In order of insertion, which is thereby kept among equal times.
            moving.drain(..).for_each(|(time, event)| self.at(time, event));
            // Its memory is used again; all of it went to lower buckets.
            if let Some(bucket) = self.buckets.get_mut(at + 1) {
                *bucket = moving;
            }
        }
        let next = self.buckets.first()?.get(self.taken).copied();
        self.taken += 1;
        next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any insertions while events are taken out: each comes once, in order of time and insertion.
        #[test]
        fn order_is_that_of_time_then_of_insertion(delays in prop::collection::vec((0..4_u32, 0..40_u32), 1..400)) {
            let (mut calendar, mut now) = (Calendar::default(), 0);
            let (mut model, mut inserted) = (std::collections::BTreeSet::new(), 0);
            for (takes, magnitude) in delays {
                let time = now + (1_u64 << magnitude) - 1;
                calendar.at(time, Event::Arrival { stream: inserted });
                model.insert((time, inserted));
                inserted += 1;
                for _ in 0..takes {
                    let next = calendar.next();
                    let expected = model.pop_first();
                    now = expected.map_or(now, |(time, _)| time);
                    prop_assert_eq!(next, expected.map(|(time, stream)| (time, Event::Arrival { stream })));
                }
            }
            while let Some((time, stream)) = model.pop_first() {
                prop_assert_eq!(calendar.next(), Some((time, Event::Arrival { stream })));
            }
            prop_assert_eq!(calendar.next(), None);
        }
    }
}
