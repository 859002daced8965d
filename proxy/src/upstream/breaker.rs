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

/// A connection that may be tried. Dropped without a verdict, because nobody waits for it any more, it leaves the try
/// to the next.
#[must_use]
pub(crate) struct Attempt<'a> {
    breaker: &'a Breaker,
    /// What this one has put into `retry_at_ns`, and when; 0 and 0 if the circuit was closed.
    claim_ns: u64,
    since_ns: u64,
}

impl Breaker {
    /// Whether requests should be refused now.
    pub(crate) fn is_open(&self, clock: impl Fn() -> u64) -> bool {
        let retry_at = self.retry_at_ns.load(Relaxed);
        retry_at != 0 && clock() < retry_at
    }

    /// The right to try a connection now. After a pause exactly one caller gets it, the others wait for what becomes
    /// of it.
    pub(crate) fn admit(&self, now_ns: u64) -> Option<Attempt<'_>> {
        let retry_at = self.retry_at_ns.load(Relaxed);
        if retry_at == 0 {
            return Some(Attempt { breaker: self, claim_ns: 0, since_ns: 0 });
        }
        let claim_ns = now_ns + MAX_PAUSE_NS;
        let is_due = now_ns >= retry_at;
        let is_mine = is_due && self.retry_at_ns.compare_exchange(retry_at, claim_ns, Relaxed, Relaxed).is_ok();
        is_mine.then(|| Attempt { breaker: self, claim_ns, since_ns: now_ns })
    }
}

impl Attempt<'_> {
    /// The shard accepts connections.
    pub(crate) fn success(mut self) {
        self.claim_ns = 0;
        if self.breaker.retry_at_ns.load(Relaxed) != 0 {
            self.breaker.retry_at_ns.store(0, Relaxed);
        }
        if self.breaker.failures.load(Relaxed) != 0 {
            self.breaker.failures.store(0, Relaxed);
        }
    }

    /// It does not. Of many that were tried at once only the first opens the circuit: the pause grows with the time
    /// that the shard is gone, not with the number of its clients.
    pub(crate) fn failure(mut self, now_ns: u64) {
        let claim = std::mem::take(&mut self.claim_ns);
        let breaker = self.breaker;
        let pause = FIRST_PAUSE_NS.saturating_mul(1 << breaker.failures.load(Relaxed).min(16)).min(MAX_PAUSE_NS);
        if breaker.retry_at_ns.compare_exchange(claim, now_ns + pause, Relaxed, Relaxed).is_ok() {
            breaker.failures.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.claim_ns != 0 {
            let again = self.since_ns.max(1);
            let _ = self.breaker.retry_at_ns.compare_exchange(self.claim_ns, again, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_after_each_pause_and_longer_pauses() {
        let breaker = Breaker::default();
        breaker.admit(5).unwrap().failure(0);
        assert!(breaker.is_open(|| FIRST_PAUSE_NS - 1) && breaker.admit(FIRST_PAUSE_NS - 1).is_none());
        assert!(!breaker.is_open(|| FIRST_PAUSE_NS));
        let probe = breaker.admit(FIRST_PAUSE_NS).unwrap();
        assert!(breaker.admit(FIRST_PAUSE_NS).is_none(), "the others wait for it");
        assert!(breaker.is_open(|| FIRST_PAUSE_NS + 1));
        probe.failure(FIRST_PAUSE_NS);
        assert!(breaker.is_open(|| 3 * FIRST_PAUSE_NS - 1) && !breaker.is_open(|| 3 * FIRST_PAUSE_NS));
        let mut now = 3 * FIRST_PAUSE_NS;
        for _ in 0..40 {
            breaker.admit(now).unwrap().failure(now);
            now += MAX_PAUSE_NS;
        }
        assert!(!breaker.is_open(|| now));
        breaker.admit(now).unwrap().success();
        assert!(breaker.admit(0).is_some() && breaker.admit(0).is_some());
    }

    #[test]
    fn many_failures_at_once_are_one() {
        let breaker = Breaker::default();
        let tried: Vec<_> = (0..50).map(|_| breaker.admit(0).unwrap()).collect();
        tried.into_iter().for_each(|attempt| attempt.failure(0));
        assert!(!breaker.is_open(|| FIRST_PAUSE_NS));
    }

    #[test]
    fn a_probe_that_is_given_up_leaves_the_try_to_the_next() {
        let breaker = Breaker::default();
        breaker.admit(0).unwrap().failure(0);
        drop(breaker.admit(FIRST_PAUSE_NS).unwrap());
        assert!(breaker.admit(FIRST_PAUSE_NS).is_some());
    }
}
