//! The calendar of the simulator.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::scheduler::RequestId;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A closed-loop client of this stream sends.
    Client { stream: usize, flow: u32 },
    /// The next random arrival of this stream.
    Arrival { stream: usize },
    /// A burst of this stream.
    Burst { stream: usize },
    /// A running request ends, its tail too.
    End { id: RequestId },
    /// The answer of a running request is out; a closed-loop client may go on, the tail runs.
    Answer { stream: usize, flow: u32 },
    /// An exempt request ends.
    ExemptEnd { seats: u32 },
    /// A request has waited as long as it may.
    Expire { id: RequestId },
    /// A request that may not wait is to be running by now.
    NowOrNever { id: RequestId },
    /// A client loses patience.
    GiveUp { id: RequestId },
    /// A reconfiguration; how often it was done before.
    Change { index: usize, times: u32 },
    /// The scheduler wants to be called.
    Wakeup,
    /// A sample is taken.
    Sample,
}

/// Events in order of time, then of insertion.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    inserted: u64,
}

impl Calendar {
    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.inserted += 1;
        self.heap.push(Reverse((time, self.inserted, event)));
    }

    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((time, _, event))| (time, event))
    }
}
