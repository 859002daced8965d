//! What a run measures.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Scenario;

/// Requests that went unserved, by reason; the names are those of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rejected {
    /// As many as may wait in the queue did.
    pub queue_full: u64,
    /// The level has no seats, or does not let anybody wait.
    pub concurrency_limit: u64,
    /// It waited as long as it may.
    pub time_out: u64,
    /// Its client lost patience.
    pub cancelled: u64,
}

/// What a group of workspaces, one of them or one of its levels got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Mean seats in use.
    pub seats: f64,
    /// Median wait in seconds of requests that were started, expired or given up.
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
    pub rejected: Rejected,
}

/// What a run measured, after the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Seat-seconds used over seats × time, exempt requests not counted.
    pub use_of_shard: f64,
    /// The smallest, over windows, of Jain's index of seat-seconds over weight. `None` without windows, and
    /// when nobody is compared.
    pub jain_min_window: Option<f64>,
    /// Jain's index over the whole time.
    pub jain: Option<f64>,
    /// The largest, over workspaces, range of their seat-seconds beside their part of all.
    pub lag_range_seat_s: Option<f64>,
    /// Seconds until the scenario's `reach` was reached; `None` if never, or if it has none.
    pub reach_s: Option<f64>,
    /// Per group.
    pub groups: BTreeMap<String, Figures>,
    /// Per workspace.
    pub workspaces: BTreeMap<String, Figures>,
    /// Per `workspace/level`. Exempt requests have a level of their own here and are in no other figure.
    pub levels: BTreeMap<String, Figures>,
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

/// What became of the requests of one level, or of several.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) area: Area,
    /// Seat-nanoseconds before the end of the warm-up.
    pub(super) at_warmup: u128,
    /// Requests that did not wait at all: most, so they are only counted.
    prompt: usize,
    /// Waits of the others.
    waits: Vec<u64>,
    pub(super) arrived: u64,
    started: u64,
    pub(super) rejected: Rejected,
}

impl Tally {
    pub(super) fn waited(&mut self, ns: u64) {
        match ns {
            0 => self.prompt += 1,
            _ => self.waits.push(ns),
        }
    }

    pub(super) fn started(&mut self, ns: u64) {
        self.waited(ns);
        self.started += 1;
    }

    /// The figures of all of these, from the end of the warm-up to `end`; `time` seconds lie between.
    pub(super) fn figures<'a>(of: impl IntoIterator<Item = &'a Self>, end: u64, time: f64) -> Figures {
        let (mut sum, mut prompt, mut waits) = (Figures::default(), 0, Vec::new());
        for tally in of {
            sum.seats += (tally.area.at(end) - tally.at_warmup) as f64 / 1e9 / time;
            prompt += tally.prompt;
            waits.extend_from_slice(&tally.waits);
            sum.arrived += tally.arrived;
            sum.started += tally.started;
            sum.rejected.queue_full += tally.rejected.queue_full;
            sum.rejected.concurrency_limit += tally.rejected.concurrency_limit;
            sum.rejected.time_out += tally.rejected.time_out;
            sum.rejected.cancelled += tally.rejected.cancelled;
        }
        waits.sort_unstable();
        let count = prompt + waits.len();
        let at = |part: f64| {
            let index = ((count as f64 * part) as usize).min(count.saturating_sub(1));
            index.checked_sub(prompt).and_then(|i| waits.get(i)).map_or(0.0, |ns| seconds(*ns))
        };
        Figures { p50_wait_s: at(0.5), p99_wait_s: at(0.99), max_wait_s: at(1.0), ..sum }
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

    /// Jain's index of what was got between two samples.
    fn index(&self, from: &[f64], to: &[f64]) -> f64 {
        let got = to.iter().zip(from).zip(&self.weights).map(|((to, from), w)| (to - from) / w);
        let (sum, squares) = got.fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        if squares == 0.0 { 1.0 } else { sum * sum / (self.weights.len() as f64 * squares) }
    }

    pub(super) fn jain_min(&self) -> Option<f64> {
        let windows = self.samples.iter().zip(self.samples.iter().skip(self.per_window)).step_by(self.per_window);
        windows.map(|(from, to)| self.index(from, to)).reduce(f64::min).filter(|_| !self.weights.is_empty())
    }

    pub(super) fn jain(&self) -> Option<f64> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        (self.samples.len() > 1 && !self.weights.is_empty()).then(|| self.index(first, last))
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
