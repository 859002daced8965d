//! A histogram that many threads count in without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of values by upper bound, and their sum.
pub(super) struct Histogram {
    /// Rising.
    bounds: &'static [f64],
    /// One for each bound, and one for what is above all of them.
    counts: Vec<AtomicU64>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub(super) fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Relaxed);
        }
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // Never refused: `add` always has an answer.
        let _ = self.sum.fetch_update(Relaxed, Relaxed, add);
    }

    /// The upper bounds.
    pub(super) fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// The count of each bound alone, that above all of them last, and the sum.
    pub(super) fn read(&self) -> (Vec<u64>, f64) {
        (self.counts.iter().map(|count| count.load(Relaxed)).collect(), f64::from_bits(self.sum.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_the_largest_value_that_it_counts() {
        let histogram = Histogram::new(&[1.0, 2.5]);
        for value in [0.0, 1.0, 1.5, 2.5, 2.6, 100.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.read(), (vec![2, 2, 2], 107.6));
    }
}
