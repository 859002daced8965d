//! What a run measures.

use std::collections::BTreeMap;

use super::Scenario;

/// What the workspaces of one group got.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupReport {
    /// Mean seats in use.
    pub seats: f64,
    /// Median wait in seconds of requests that were started or expired.
    pub p50_wait_s: f64,
    /// The wait that one in a hundred exceeds.
    pub p99_wait_s: f64,
    /// The longest wait.
    pub max_wait_s: f64,
    /// Requests that came.
    pub arrived: u64,
    /// Requests that were started.
    pub started: u64,
    /// Requests that went unserved.
    pub unserved: u64,
}

/// What a run measured, after the warm-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Seat-seconds used over seats × time, exempt requests not counted.
    pub use_of_shard: f64,
    /// The smallest, over windows, of Jain's index of seat-seconds over weight. `None` without windows.
    pub jain_min_window: Option<f64>,
    /// The largest, over workspaces, range of their seat-seconds beside their part of all.
    pub lag_range_seat_s: Option<f64>,
    /// Seconds until the scenario's `reach` was reached; `None` if never, or if it has none.
    pub reach_s: Option<f64>,
    /// Per group.
    pub groups: BTreeMap<String, GroupReport>,
    /// Mean seats in use per `workspace/level`.
    pub level_seats: BTreeMap<String, f64>,
    /// Hash of all decisions: who was started when.
    pub decisions: u64,
    /// Heap entries looked at per started request.
    pub looks: f64,
}

/// Seat-time, integrated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Area {
    seats: u64,
    since: u64,
    /// Seat-nanoseconds.
    sum: u128,
}

impl Area {
    pub(super) fn add(&mut self, now: u64, seats: i64) {
        self.sum = self.at(now);
        self.since = now;
        self.seats = self.seats.wrapping_add_signed(seats);
    }

    pub(super) fn at(&self, now: u64) -> u128 {
        self.sum + u128::from(self.seats) * u128::from(now.saturating_sub(self.since))
    }
}

/// Waits of one group.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    pub(super) ns: Vec<u64>,
    pub(super) arrived: u64,
    pub(super) started: u64,
    pub(super) unserved: u64,
}

impl Waits {
    /// The group's figures; `seats` is its mean use.
    pub(super) fn report(mut self, seats: f64) -> GroupReport {
        self.ns.sort_unstable();
        let at = |part: f64| {
            let index = (self.ns.len() as f64 * part) as usize;
            self.ns.get(index.min(self.ns.len().saturating_sub(1))).map_or(0.0, |ns| seconds(*ns))
        };
        GroupReport {
            seats,
            p50_wait_s: at(0.5),
            p99_wait_s: at(0.99),
            max_wait_s: at(1.0),
            arrived: self.arrived,
            started: self.started,
            unserved: self.unserved,
        }
    }
}

/// Samples of the compared workspaces' seat-time.
#[derive(Debug)]
pub(super) struct Comparison {
    weights: Vec<f64>,
    /// Samples per window.
    per_window: usize,
    samples: Vec<Vec<f64>>,
}

/// Samples in one window of Jain's index.
pub(super) const SAMPLES_PER_WINDOW: u64 = 20;

impl Comparison {
    pub(super) fn new(weights: Vec<f64>) -> Self {
        Self { weights, per_window: SAMPLES_PER_WINDOW as usize, samples: Vec::new() }
    }

    pub(super) fn sample(&mut self, seat_ns: impl Iterator<Item = u128>) {
        self.samples.push(seat_ns.map(|ns| ns as f64 / 1e9).collect());
    }

    pub(super) fn jain_min(&self) -> Option<f64> {
        let windows = self.samples.iter().zip(self.samples.iter().skip(self.per_window)).step_by(self.per_window);
        let index = |(from, to): (&Vec<f64>, &Vec<f64>)| {
            let got: Vec<f64> = to.iter().zip(from).zip(&self.weights).map(|((to, from), w)| (to - from) / w).collect();
            let (sum, squares) = got.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
            if squares == 0.0 { 1.0 } else { sum * sum / (got.len() as f64 * squares) }
        };
        windows.map(index).reduce(f64::min)
    }

    pub(super) fn lag_range(&self) -> Option<f64> {
        let total: f64 = self.weights.iter().sum();
        let mut ranges = vec![(f64::INFINITY, f64::NEG_INFINITY); self.weights.len()];
        for sample in &self.samples {
            let all: f64 = sample.iter().sum();
            for ((range, got), weight) in ranges.iter_mut().zip(sample).zip(&self.weights) {
                let lag = got - all * weight / total;
                *range = (range.0.min(lag), range.1.max(lag));
            }
        }
        ranges.into_iter().map(|(low, high)| high - low).filter(|range| range.is_finite()).reduce(f64::max)
    }
}

/// Seat-time of the workspace that must reach something, on a grid.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) samples: Vec<f64>,
}

/// Distance of the samples for `reach`.
pub(super) const REACH_GRID_NS: u64 = 10_000_000;

impl Reached {
    pub(super) fn delay(&self, scenario: &Scenario) -> Option<f64> {
        let reach = scenario.reach.as_ref()?;
        let step = seconds(REACH_GRID_NS);
        let hold = (reach.hold_s / step).round() as usize;
        let pairs = self.samples.iter().zip(self.samples.iter().skip(hold));
        let at = pairs.into_iter().position(|(from, to)| (to - from) / reach.hold_s >= reach.seats - 1e-9)?;
        Some(at as f64 * step)
    }
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub(super) fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}
