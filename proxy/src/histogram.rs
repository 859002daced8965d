//! A histogram of whole numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts below each of some bounds, and the sum. An observation is a search among the bounds and two additions without
/// a lock. Observations race without loss; a reader may see one without its sum.
pub(crate) struct Histogram {
    /// Ascending; a last count is of what is larger.
    bounds: &'static [u64],
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
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

    /// Adds its counts, not cumulative and that above all bounds last, to `counts`; the result is the sum of what was
    /// observed.
    pub(crate) fn add_to(&self, counts: &mut [u64]) -> u64 {
        counts.iter_mut().zip(&self.counts).for_each(|(sum, count)| *sum += count.load(Relaxed));
        self.sum.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket_and_the_last_has_none() {
        let histogram = Histogram::new(&[10, 20]);
        [10, 11, 20, 21].into_iter().for_each(|value| histogram.observe(value));
        let mut counts = [1; 3];
        assert_eq!((histogram.add_to(&mut counts), counts), (62, [2, 3, 2]), "added to what was there");
    }
}
