//! The wall clock of the gateway: one origin, so that all its numbers compare.

use std::time::Instant;

/// Monotonic time since the gateway started.
#[derive(Debug)]
pub(crate) struct WallClock(Instant);

impl WallClock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl fairness::Clock for WallClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
