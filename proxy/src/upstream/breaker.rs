//! Remembers that a shard does not accept connections, so that its requests fail at once instead of one by one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const FIRST_PAUSE_NS: u64 = 100_000_000;
const MAX_PAUSE_NS: u64 = 5_000_000_000;

/// Closed while `retry_at_ns` is 0. Only failures to connect open it: whatever a shard answers is its own affair.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: AtomicU32,
    retry_at_ns: AtomicU64,
}

impl Breaker {
    /// Whether requests should be refused now.
    pub(crate) fn is_open(&self, clock: impl Fn() -> u64) -> bool {
        let retry_at = self.retry_at_ns.load(Relaxed);
        retry_at != 0 && clock() < retry_at
    }

    /// Whether a connection may be tried now. After a pause exactly one caller gets a yes, the others wait for what
    /// becomes of it.
    pub(crate) fn admit(&self, now_ns: u64) -> bool {
        let retry_at = self.retry_at_ns.load(Relaxed);
        retry_at == 0
            || (now_ns >= retry_at
                && self.retry_at_ns.compare_exchange(retry_at, now_ns + MAX_PAUSE_NS, Relaxed, Relaxed).is_ok())
    }

    pub(crate) fn success(&self) {
        if self.retry_at_ns.load(Relaxed) != 0 {
            self.retry_at_ns.store(0, Relaxed);
        }
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
    }

    pub(crate) fn failure(&self, now_ns: u64) {
        let before = self.failures.fetch_add(1, Relaxed).min(16);
        let pause = FIRST_PAUSE_NS.saturating_mul(1 << before).min(MAX_PAUSE_NS);
        self.retry_at_ns.store(now_ns + pause, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_after_each_pause_and_longer_pauses() {
        let breaker = Breaker::default();
        assert!(breaker.admit(5) && breaker.admit(5));
        breaker.failure(0);
        assert!(breaker.is_open(|| FIRST_PAUSE_NS - 1) && !breaker.admit(FIRST_PAUSE_NS - 1));
        assert!(!breaker.is_open(|| FIRST_PAUSE_NS));
        assert!(breaker.admit(FIRST_PAUSE_NS), "the probe");
        assert!(!breaker.admit(FIRST_PAUSE_NS) && breaker.is_open(|| FIRST_PAUSE_NS + 1), "the others wait for it");
        breaker.failure(FIRST_PAUSE_NS);
        assert!(breaker.is_open(|| 2 * FIRST_PAUSE_NS) && !breaker.is_open(|| 3 * FIRST_PAUSE_NS));
        for _ in 0..40 {
            breaker.failure(0);
        }
        assert!(!breaker.is_open(|| MAX_PAUSE_NS));
        breaker.success();
        assert!(breaker.admit(0) && breaker.admit(0));
    }
}
