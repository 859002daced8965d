//! What is observed of each FlowSchema's requests before and after the gate, under upstream's names (apf.md 7.4).
//!
//! The histograms belong to the rules in force: they go with their FlowSchema, and one that stays keeps its counts. All
//! workers count in the same ones.

use crate::histogram::Histogram;

/// Nanoseconds.
const EXECUTION: [u64; 13] = {
    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;
    [0, 5 * MS, 20 * MS, 50 * MS, 100 * MS, 200 * MS, 500 * MS, S, 2 * S, 5 * S, 10 * S, 15 * S, 30 * S]
};
const SEATS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 100];
const WATCHES: [u64; 6] = [0, 1, 10, 100, 1000, 10_000];

/// The histograms of one FlowSchema.
pub(crate) struct FlowMetrics {
    pub(crate) level: Box<str>,
    pub(crate) flow_schema: Box<str>,
    /// Nanoseconds that a request held its seats, the tail excluded.
    pub(crate) execution: Histogram,
    /// The same of a watch, until it was initialised.
    pub(crate) watch_execution: Histogram,
    /// The larger of initial and final seats.
    pub(crate) seats: Histogram,
    /// Watches that a write wakes up.
    pub(crate) watches: Histogram,
}

impl FlowMetrics {
    pub(crate) fn new(level: &str, flow_schema: &str) -> Self {
        Self {
            level: level.into(),
            flow_schema: flow_schema.into(),
            execution: Histogram::new(&EXECUTION),
            watch_execution: Histogram::new(&EXECUTION),
            seats: Histogram::new(&SEATS),
            watches: Histogram::new(&WATCHES),
        }
    }
}
