//! Demand over time, and the division of seats that follows from it every ten seconds (apf.md 3.5).
//!
//! An [`Integrator`] keeps the moments of a value over a period, a [`DemandMeter`] smooths them over periods,
//! and an [`Adjustment`] divides the seats of a server by what its levels' meters say.
//! Cost: O(1) for each change of demand, O(n log n) in the levels for an adjustment.

use crate::{
    Limits,
    fair_alloc::{Demand, current_limits},
};

/// Time between two adjustments: 10 s.
pub const ADJUSTMENT_PERIOD_NS: u64 = 10_000_000_000;
/// What remains of the smoothed demand after one period: half in five minutes.
const SMOOTHING: f64 = 0.977;

/// The moments of a value since the last reset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Integrator {
    now: u64,
    value: f64,
    elapsed_s: f64,
    /// Of the value and of its square, times seconds.
    sum: f64,
    sum_squares: f64,
    min: f64,
    max: f64,
}

/// What an [`Integrator`] saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Seconds.
    pub duration_s: f64,
    /// Mean over time; `None` if no time passed.
    pub average: Option<f64>,
    /// Standard deviation over time; `None` if no time passed or rounding made the variance negative.
    pub deviation: Option<f64>,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

/// As Go converts a duration, so that equal durations give equal floats.
fn seconds(ns: u64) -> f64 {
    (ns / 1_000_000_000) as f64 + (ns % 1_000_000_000) as f64 / 1e9
}

impl Integrator {
    /// Zero from now on.
    pub fn new(now: u64) -> Self {
        Self { now, value: 0.0, elapsed_s: 0.0, sum: 0.0, sum_squares: 0.0, min: 0.0, max: 0.0 }
    }

    /// The value has not changed until now.
    pub fn advance(&mut self, now: u64) {
        let elapsed = seconds(now.saturating_sub(self.now));
        self.now = self.now.max(now);
        self.elapsed_s += elapsed;
        self.sum += elapsed * self.value;
        self.sum_squares += elapsed * self.value * self.value;
    }

    /// The value changes.
    pub fn set(&mut self, now: u64, value: f64) {
        self.advance(now);
        self.value = value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// The present value.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// What was seen since the last reset.
    pub fn statistics(&mut self, now: u64) -> Statistics {
        self.advance(now);
        let mean = |sum: f64| (self.elapsed_s > 0.0).then(|| sum / self.elapsed_s);
        let average = mean(self.sum);
        let variance = average.zip(mean(self.sum_squares)).map(|(average, squares)| squares - average * average);
        Statistics {
            duration_s: self.elapsed_s,
            average,
            deviation: variance.filter(|v| *v >= 0.0).map(f64::sqrt),
            min: self.min,
            max: self.max,
        }
    }

    /// The same, and starts anew with the present value.
    pub fn reset(&mut self, now: u64) -> Statistics {
        let seen = self.statistics(now);
        *self = Self { value: self.value, min: self.value, max: self.value, ..Self::new(self.now) };
        seen
    }
}

/// Demand of one level, smoothed over periods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DemandMeter {
    /// Most seats wanted in the last period.
    pub high_watermark: u32,
    /// Mean of the last period.
    pub average: f64,
    /// Standard deviation in the last period.
    pub deviation: f64,
    /// What counts: rises at once, falls slowly.
    pub smoothed: f64,
}

impl DemandMeter {
    /// A period ends.
    pub fn note(&mut self, period: Statistics) {
        self.high_watermark = period.max.round() as u32;
        let Some(average) = period.average else { return };
        self.average = average;
        self.deviation = period.deviation.unwrap_or_default();
        let envelope = self.average + self.deviation;
        self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
    }
}

/// One level in an [`Adjustment`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelDemand {
    /// Whether the level is exempt.
    pub exempt: bool,
    /// Its configured limits.
    pub limits: Limits,
    /// Its demand.
    pub meter: DemandMeter,
    /// Seats that it may use until the next adjustment.
    pub current: u32,
}

/// The levels of one server, and their seats now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adjustment {
    /// The levels, in the order of the measurements.
    pub levels: Vec<LevelDemand>,
}

impl Adjustment {
    /// Levels that have not been seen yet; each as exempt or not, with its limits.
    pub fn new(levels: impl IntoIterator<Item = (bool, Limits)>) -> Self {
        let level = |(exempt, limits): (bool, Limits)| LevelDemand {
            exempt,
            limits,
            meter: DemandMeter::default(),
            current: limits.nominal - limits.lendable / 2,
        };
        Self { levels: levels.into_iter().map(level).collect() }
    }

    /// A period ends, in which each level's demand was this; divides the seats anew. If the problem has no
    /// solution, all keep what they had.
    pub fn adjust(&mut self, periods: impl IntoIterator<Item = Statistics>) {
        for (level, period) in self.levels.iter_mut().zip(periods) {
            level.meter.note(period);
        }
        self.divide();
    }

    /// Divides the seats anew by the demand of the last period.
    pub fn divide(&mut self) {
        let demand = |level: &LevelDemand| Demand {
            exempt: level.exempt,
            limits: level.limits,
            high_watermark: level.meter.high_watermark,
            smoothed: level.meter.smoothed,
        };
        let problem: Vec<Demand> = self.levels.iter().map(demand).collect();
        if let Ok(seats) = current_limits(&problem) {
            self.levels.iter_mut().zip(seats).for_each(|(level, seats)| level.current = seats);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::vectors;

    fn near(got: f64, want: &Value) -> bool {
        let want = want.as_f64().unwrap();
        (got - want).abs() <= 1e-9 * got.abs().max(want.abs())
    }

    fn number(of: &Value) -> f64 {
        of.as_f64().unwrap()
    }

    #[test]
    fn moments_are_those_of_kubernetes() {
        let cases = vectors::cases("integrator.json");
        for (at, case) in cases.iter().enumerate() {
            let (mut now, mut integrator) = (0, Integrator::new(0));
            for op in case["ops"].as_array().unwrap() {
                now += vectors::number(op, "advance_ns") as u64;
                let got = match op["op"].as_str().unwrap() {
                    "get" => integrator.statistics(now),
                    "reset" => integrator.reset(now),
                    change => {
                        let value = match change {
                            "set" => number(&op["value"]),
                            "add" => integrator.value() + number(&op["value"]),
                            "inc" => integrator.value() + 1.0,
                            "dec" => integrator.value() - 1.0,
                            other => panic!("{other}"),
                        };
                        integrator.set(now, value);
                        continue;
                    }
                };
                let want = &op["result"];
                assert_eq!(got.average.is_some(), want.get("avg").is_some(), "case {at}: {op} {got:?}");
                assert_eq!(got.deviation.is_some(), want.get("stddev").is_some(), "case {at}: {op} {got:?}");
                assert!(got.average.is_none_or(|average| near(average, &want["avg"])), "case {at}: {op} {got:?}");
                assert!(got.deviation.is_none_or(|d| near(d, &want["stddev"])), "case {at}: {op} {got:?}");
                assert!(near(got.duration_s, &want["duration_s"]), "case {at}: {op} {got:?}");
                assert_eq!((got.min, got.max), (number(&want["min"]), number(&want["max"])), "case {at}: {op}");
            }
        }
        assert_eq!(cases.len(), 30);
    }

    /// `borrowing.json` from the raw events of demand.
    #[test]
    fn adjustments_from_raw_demand_are_those_of_kubernetes() {
        let (cases, mut steps) = (vectors::cases("borrowing.json"), 0);
        for case in &cases {
            let configured = case["initialLevels"].as_array().unwrap();
            let name = |level: &Value| level["name"].as_str().unwrap().to_owned();
            let mut adjustment =
                Adjustment::new(configured.iter().map(|l| (l["name"] == "exempt", vectors::limits(l))));
            let mut demand = vec![Integrator::new(0); configured.len()];
            adjustment.adjust(demand.iter_mut().map(|d| d.reset(0)));
            for (level, want) in adjustment.levels.iter().zip(configured) {
                assert_eq!(i64::from(level.current), vectors::number(want, "currentCL"), "{}: {want}", case["id"]);
            }
            for (period, step) in (0..).zip(case["steps"].as_array().unwrap()) {
                let begin = period * ADJUSTMENT_PERIOD_NS;
                for event in step["demand"].as_array().into_iter().flatten() {
                    let at = configured.iter().position(|l| name(l) == event[1]).unwrap();
                    let ms = event[0].as_u64().unwrap();
                    demand[at].set(begin + ms * 1_000_000, number(&event[2]));
                }
                adjustment.adjust(demand.iter_mut().map(|d| d.reset(begin + ADJUSTMENT_PERIOD_NS)));
                for want in step["levels"].as_array().unwrap() {
                    let at = configured.iter().position(|l| name(l) == want["name"]).unwrap();
                    let LevelDemand { meter, current, .. } = adjustment.levels[at];
                    let what = format!("{} step {period}: {want} {meter:?}", case["id"]);
                    assert_eq!(i64::from(meter.high_watermark), vectors::number(want, "highWatermark"), "{what}");
                    assert_eq!(i64::from(current), vectors::number(want, "currentCL"), "{what}");
                    assert!(near(meter.average, &want["avg"]) && near(meter.smoothed, &want["smoothed"]), "{what}");
                    assert!(near(meter.deviation, &want["stdDev"]), "{what}");
                }
                steps += 1;
            }
        }
        assert_eq!((cases.len(), steps), (13, 315));
    }
}
