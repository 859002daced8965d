//! The wall clock of the gateway: one origin, so that all its numbers compare.

use std::time::Instant;

use time::OffsetDateTime;

/// Monotonic time since the gateway started.
#[derive(Debug)]
pub(crate) struct WallClock {
    start: Instant,
    /// Time that only a test moves, and what the wall clock said at its origin.
    #[cfg(test)]
    virtual_ns: Option<(std::sync::atomic::AtomicU64, OffsetDateTime)>,
}

impl WallClock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            #[cfg(test)]
            virtual_ns: None,
        }
    }

    /// The calendar's time, and the monotonic time at the same moment.
    pub(crate) fn wall(&self) -> (OffsetDateTime, u64) {
        let now = fairness::Clock::now_ns(self);
        #[cfg(test)]
        if let Some((_, origin)) = &self.virtual_ns {
            return (*origin + std::time::Duration::from_nanos(now), now);
        }
        (OffsetDateTime::now_utc(), now)
    }
}

#[cfg(test)]
impl WallClock {
    /// A clock that stands still until it is [`set`](Self::set).
    pub(crate) fn at_rest(origin: OffsetDateTime) -> Self {
        Self { virtual_ns: Some((std::sync::atomic::AtomicU64::new(0), origin)), ..Self::new() }
    }

    pub(crate) fn set(&self, ns: u64) {
        let (now, _) = self.virtual_ns.as_ref().expect("only a clock at rest is set");
        now.store(ns, std::sync::atomic::Ordering::SeqCst);
    }
}

impl fairness::Clock for WallClock {
    fn now_ns(&self) -> u64 {
        #[cfg(test)]
        if let Some((now, _)) = &self.virtual_ns {
            return now.load(std::sync::atomic::Ordering::SeqCst);
        }
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
