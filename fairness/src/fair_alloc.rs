//! The division of seats that Kubernetes' periodic adjustment makes (apf.md 3.5).
//!
//! [`fair_alloc`] is the pure problem: every class gets `f` times its target, held between its bounds, with
//! the one `f` that makes the sum right. [`current_limits`] turns the limits and the measured demand of
//! levels into that problem. Our scheduler lends at each dispatch and needs neither; they say what APF
//! would give, for comparison.

use crate::Limits;

/// Targets below this count as this much, so that nothing is divided by zero.
const TARGET_MIN: f64 = 0.001;
/// By how much a sum of bounds may miss the required sum.
const EPSILON: f64 = 1e-7;

/// One class that wants a part of the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// It gets at least this, 0 or more.
    pub lower: f64,
    /// What it wants, `lower` or more.
    pub target: f64,
    /// It gets at most this, `lower` or more.
    pub upper: f64,
}

/// What the classes get.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// One amount per class, in the order given.
    pub amounts: Vec<f64>,
    /// The fraction of its target that every class gets whose bounds allow it.
    pub fraction: f64,
}

/// A problem without a solution.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum AllocationError {
    /// The sum to divide is negative or no number.
    #[error("the sum to divide is {0}: want 0 or more")]
    Sum(f64),
    /// The bounds and the target of a class contradict each other.
    #[error("class {0}: want 0 <= lower <= target and lower <= upper, all finite")]
    Class(usize),
    /// The bounds of the classes do not admit the sum.
    #[error("the classes can take {least} to {most}, which does not include the sum of {sum}")]
    Bounds {
        /// Sum of the lower bounds.
        least: f64,
        /// Sum of the upper bounds.
        most: f64,
        /// The sum to divide.
        sum: f64,
    },
}

/// Divides `sum` among `classes`: the sum of `min(upper, max(lower, fraction * target))` is `sum`.
/// O(n log n).
///
/// # Errors
/// See [`AllocationError`].
pub fn fair_alloc(sum: f64, classes: &[Class]) -> Result<Allocation, AllocationError> {
    let (least, most) = check(sum, classes)?;
    let targets = || classes.iter().map(|c| c.target.max(TARGET_MIN));
    let ratios = |bound: fn(&Class) -> f64| classes.iter().zip(targets()).map(move |(c, t)| bound(c) / t);
    let lowest = ratios(|c| c.lower).fold(f64::INFINITY, f64::min);
    let all =
        |bound: fn(&Class) -> f64, fraction| Allocation { amounts: classes.iter().map(bound).collect(), fraction };

    if sum == 0.0 {
        return Ok(Allocation { amounts: vec![0.0; classes.len()], fraction: 0.0 });
    }
    if least - sum > -EPSILON {
        return Ok(all(|c| c.lower, lowest));
    }
    if sum - most > -EPSILON {
        return Ok(all(|c| c.upper, ratios(|c| c.upper).fold(f64::NEG_INFINITY, f64::max)));
    }
    let unbounded = sum / targets().sum::<f64>();
    let fits = ratios(|c| c.lower).all(|r| r <= unbounded) && ratios(|c| c.upper).all(|r| unbounded <= r);
    let fraction = if fits { unbounded } else { sweep(sum, least, lowest, classes) };
    let amounts = classes.iter().zip(targets()).map(|(c, t)| (fraction * t).min(c.upper).max(c.lower)).collect();
    Ok(Allocation { amounts, fraction })
}

/// The sums of the lower and upper bounds.
fn check(sum: f64, classes: &[Class]) -> Result<(f64, f64), AllocationError> {
    if !sum.is_finite() || sum < 0.0 {
        return Err(AllocationError::Sum(sum));
    }
    let ordered = |c: &Class| {
        let finite = c.lower.is_finite() && c.target.is_finite() && c.upper.is_finite();
        finite && 0.0 <= c.lower && c.lower <= c.target && c.lower <= c.upper
    };
    if let Some(bad) = classes.iter().position(|c| !ordered(c)) {
        return Err(AllocationError::Class(bad));
    }
    let (least, most) = classes.iter().fold((0.0, 0.0), |(l, u), c| (l + c.lower, u + c.upper));
    if least - sum > EPSILON || sum - most > EPSILON {
        return Err(AllocationError::Bounds { least, most, sum });
    }
    Ok((least, most))
}

/// Raises the fraction from `lowest` until the amounts add up to `sum`. Between two bounds the sum grows
/// linearly, by the targets of the classes that are between theirs.
fn sweep(sum: f64, least: f64, lowest: f64, classes: &[Class]) -> f64 {
    let mut bounds: Vec<(f64, f64)> = classes
        .iter()
        .flat_map(|c| {
            let target = c.target.max(TARGET_MIN);
            [(c.lower / target, target), (c.upper / target, -target)]
        })
        .collect();
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut fraction, mut reached, mut slope, mut growing) = (lowest, least, 0.0, 0i32);
    for (bound, change) in bounds {
        if bound > fraction {
            if growing > 0 {
                let end = fraction + (sum - reached) / slope;
                if end <= bound {
                    return end;
                }
                reached += (bound - fraction) * slope;
            }
            fraction = bound;
        }
        slope += change;
        growing += if change > 0.0 { 1 } else { -1 };
    }
    // All classes are at their upper bounds, within the tolerance that `check` allows.
    fraction
}

/// What the adjustment knows of one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Whether the level is exempt: it takes what it takes.
    pub exempt: bool,
    /// The level's configured limits.
    pub limits: Limits,
    /// Most seats wanted at any moment of the period.
    pub high_watermark: u32,
    /// Smoothed envelope of the seats wanted.
    pub smoothed: f64,
}

/// The seats that APF would let each level use for the next period, in the order given.
///
/// What the exempt levels take reduces what the others divide only when it leaves less than their minimums, as in v1.34.
///
/// # Errors
/// See [`AllocationError`]; upstream then keeps the limits of the last period.
pub fn current_limits(levels: &[Demand]) -> Result<Vec<u32>, AllocationError> {
    let lower = |level: &Demand| {
        let wanted = if level.exempt { level.high_watermark } else { level.limits.nominal.min(level.high_watermark) };
        f64::from(level.limits.min.max(wanted))
    };
    let limited = || levels.iter().filter(|level| !level.exempt);
    let nominal: f64 = levels.iter().map(|level| f64::from(level.limits.nominal)).sum();
    let remaining = nominal - levels.iter().filter(|level| level.exempt).map(lower).sum::<f64>();
    let min_sum: f64 = limited().map(|level| f64::from(level.limits.min)).sum();
    let lower_sum: f64 = limited().map(lower).sum();

    let amounts: Vec<f64> = if remaining <= min_sum {
        limited().map(|level| f64::from(level.limits.min)).collect()
    } else if remaining <= lower_sum {
        let part = (remaining - min_sum) / (lower_sum - min_sum);
        let amount = |min: f64, lower: f64| min + (lower - min) * part;
        limited().map(|level| amount(f64::from(level.limits.min), lower(level))).collect()
    } else {
        let class = |level: &Demand| {
            let lower = lower(level);
            Class { lower, target: level.smoothed.max(lower), upper: f64::from(level.limits.max) }
        };
        fair_alloc(nominal, &limited().map(class).collect::<Vec<_>>())?.amounts
    };
    let mut amounts = amounts.into_iter();
    let current = levels.iter().map(|level| if level.exempt { Some(lower(level)) } else { amounts.next() });
    Ok(current.map(|seats| seats.unwrap_or_default().round() as u32).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::vectors;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
    }

    #[test]
    fn allocations_are_those_of_kubernetes() {
        let cases = vectors::cases("fair_alloc.json");
        for case in &cases {
            let float = |of: &Value, field| of[field].as_f64().unwrap();
            let classes: Vec<Class> = case["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| Class {
                    lower: float(item, "lowerBound"),
                    target: float(item, "target"),
                    upper: float(item, "upperBound"),
                })
                .collect();
            let result = fair_alloc(float(case, "requiredSum"), &classes);
            assert_eq!(result.is_err(), case.get("error").is_some(), "{case}: {result:?}");
            let Ok(got) = result else { continue };
            let want: Vec<f64> = serde_json::from_value(case["allocs"].clone()).unwrap();
            assert!(got.amounts.iter().zip(&want).all(|(a, b)| near(*a, *b)), "{case}: {got:?}");
            assert_eq!(got.amounts.len(), want.len());
            assert!(near(got.fraction, float(case, "fairProp")), "{case}: {got:?}");
        }
        assert_eq!(cases.len(), 118);
    }

    /// Every adjustment of `borrowing.json`, from the demand that was measured.
    #[test]
    fn adjustments_are_those_of_kubernetes() {
        let (cases, mut steps) = (vectors::cases("borrowing.json"), 0);
        for case in &cases {
            let configured = case["initialLevels"].as_array().unwrap();
            for step in case["steps"].as_array().unwrap() {
                steps += 1;
                let levels = step["levels"].as_array().unwrap();
                let demand = |level: &Value| Demand {
                    exempt: level["name"] == "exempt",
                    limits: vectors::limits(configured.iter().find(|c| c["name"] == level["name"]).unwrap()),
                    high_watermark: vectors::number(level, "highWatermark") as u32,
                    smoothed: level["smoothed"].as_f64().unwrap(),
                };
                let got = current_limits(&levels.iter().map(demand).collect::<Vec<_>>()).unwrap();
                let want: Vec<u32> = levels.iter().map(|l| vectors::number(l, "currentCL") as u32).collect();
                assert_eq!(got, want, "{}: {step}", case["id"]);
            }
        }
        assert!(steps > cases.len());
    }

    #[test]
    fn exempt_use_leaves_the_others_their_seats() {
        let level = |exempt, high_watermark| Demand {
            exempt,
            limits: Limits { nominal: 10, lendable: 10, min: 0, borrowing: 20, max: 30, max_seats: 0 },
            high_watermark,
            smoothed: f64::from(high_watermark),
        };
        let levels = [level(true, 8), level(false, 10), level(false, 2)];
        assert_eq!(current_limits(&levels).unwrap(), [8, 25, 5]);
    }

    proptest! {
        #[test]
        fn amounts_add_up_and_keep_their_bounds(
            classes in prop::collection::vec((0.0f64..50.0, 0.0f64..50.0, 0.0f64..50.0), 1..12),
            part in 0.0f64..=1.0,
        ) {
            let class = |&(lower, more, room)| Class { lower, target: lower + more, upper: lower + room };
            let classes: Vec<Class> = classes.iter().map(class).collect();
            let (least, most) = classes.iter().fold((0.0, 0.0), |(l, u), c| (l + c.lower, u + c.upper));
            let sum = least + (most - least) * part;
            let got = fair_alloc(sum, &classes).unwrap();
            prop_assert!((got.amounts.iter().sum::<f64>() - sum).abs() < 1e-5);
            for (c, &a) in classes.iter().zip(&got.amounts) {
                prop_assert!(c.lower <= a && a <= c.upper);
            }
        }
    }
}
