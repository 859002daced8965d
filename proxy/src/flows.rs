//! What is observed of each FlowSchema's requests before and after the gate, under upstream's names (apf.md 7.4).
//!
//! The histograms belong to the rules in force: they go with their FlowSchema, and one that stays keeps its counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nanoseconds.
const EXECUTION: [u64; 13] = {
    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;
    [0, 5 * MS, 20 * MS, 50 * MS, 100 * MS, 200 * MS, 500 * MS, S, 2 * S, 5 * S, 10 * S, 15 * S, 30 * S]
};
const SEATS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 100];
const WATCHES: [u64; 6] = [0, 1, 10, 100, 1000, 10_000];

/// A histogram of whole numbers. Observations race without loss; a reader may see one without its sum.
pub(crate) struct Buckets {
    /// Ascending; a last bucket takes what is larger.
    bounds: &'static [u64],
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Buckets {
    fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: u64) {
        if let Some(count) = self.counts.get(self.bounds.partition_point(|bound| *bound < value)) {
            count.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
    }

    pub(crate) fn bounds(&self) -> &'static [u64] {
        self.bounds
    }

    /// Per bucket, not cumulative, and the sum.
    pub(crate) fn read(&self) -> (Vec<u64>, u64) {
        (self.counts.iter().map(|count| count.load(Relaxed)).collect(), self.sum.load(Relaxed))
    }
}

/// The histograms of one FlowSchema.
pub(crate) struct FlowMetrics {
    pub(crate) level: Box<str>,
    pub(crate) flow_schema: Box<str>,
    /// Nanoseconds that a request held its seats, the tail excluded.
    pub(crate) execution: Buckets,
    /// The same of a watch, until it was initialised.
    pub(crate) watch_execution: Buckets,
    /// The larger of initial and final seats.
    pub(crate) seats: Buckets,
    /// Watches that a write wakes up.
    pub(crate) watches: Buckets,
}

impl FlowMetrics {
    pub(crate) fn new(level: &str, flow_schema: &str) -> Self {
        Self {
            level: level.into(),
            flow_schema: flow_schema.into(),
            execution: Buckets::new(&EXECUTION),
            watch_execution: Buckets::new(&EXECUTION),
            seats: Buckets::new(&SEATS),
            watches: Buckets::new(&WATCHES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let buckets = Buckets::new(&SEATS);
        [1, 2, 3, 100, 101].into_iter().for_each(|value| buckets.observe(value));
        assert_eq!(buckets.read(), (vec![1, 1, 1, 0, 0, 0, 0, 1, 1], 207));
    }
}
