//! Priority levels and the division of a workspace's seats among them (apf.md 3.4 and 6.2).
//!
//! Under [`Compat::Upstream`] the figures are those of Kubernetes v1.34: nominal seats are rounded up, so
//! that their sum exceeds the seats divided by up to one per level. The default divides exactly: largest
//! remainder, the sum is the number of seats. Levels whose shares are all zero get nothing of their own in
//! either form (upstream divides by zero there) and run on what they may borrow.
//!
//! Cost: [`limits`] is O(n log n) in the levels, and runs when a configuration or a workspace's seats change.

pub use config::Compat;

/// Queues of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queuing {
    /// Number of queues, at least 1.
    pub queues: u32,
    /// Queues a flow may use, 1 to [`MAX_HAND_SIZE`](crate::shuffle::MAX_HAND_SIZE), at most `queues`.
    pub hand_size: u32,
    /// Requests that may wait in one queue, at least 1.
    pub queue_length_limit: u32,
}

/// What becomes of requests that exceed the level's seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// Nothing: they all run at once and are only counted.
    Exempt,
    /// They are refused.
    Reject,
    /// They wait.
    Queue(Queuing),
}

/// One priority level of a profile, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Its name.
    pub name: Box<str>,
    /// What happens beyond its seats.
    pub kind: LevelKind,
    /// `nominalConcurrencyShares`; 0 builds a jail that runs only what it can borrow.
    pub shares: u32,
    /// Percentage of the nominal seats that other levels may use, 0 to 100.
    pub lendable_percent: u32,
    /// Percentage of the nominal seats that the level may borrow; `None` is no limit of its own. Always
    /// `None` for exempt levels.
    pub borrowing_limit_percent: Option<u32>,
}

/// Seats of one level. All figures are whole seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The level's part of the seats divided; its weight among its siblings.
    pub nominal: u32,
    /// Part of `nominal` that others may use.
    pub lendable: u32,
    /// What is never lent: `nominal - lendable`, the scheduler's reserve `r`.
    pub min: u32,
    /// How much it may borrow.
    pub borrowing: u32,
    /// `nominal + borrowing`, the scheduler's maximum `m`.
    pub max: u32,
    /// Ceiling of the width of one request (apf.md 6.2), so that one flow's hand of queues cannot take the
    /// whole level; 0 = none (levels without queues).
    pub max_seats: u32,
}

/// Fraction of the nominal seats that one request may take at most.
const MAX_SEATS_FRACTION: f64 = 0.15;

/// Divides `seats` (the nominal seats of one workspace) among its levels, in their order.
///
/// With [`Compat::Fairgate`] the nominal seats add up to `seats` exactly; equal remainders go to the
/// earlier level.
pub fn limits(seats: u32, levels: &[Level], compat: Compat) -> Vec<Limits> {
    let shares: Vec<u32> = levels.iter().map(|l| l.shares).collect();
    let nominal = match compat {
        Compat::Fairgate => largest_remainder(seats, &shares),
        Compat::Upstream => round_up(seats, &shares),
    };
    levels.iter().zip(nominal).map(|(level, nominal)| level_limits(seats, level, nominal)).collect()
}

fn level_limits(seats: u32, level: &Level, nominal: u32) -> Limits {
    let lendable = percent(nominal, level.lendable_percent).min(nominal);
    let borrowing = match (level.kind, level.borrowing_limit_percent) {
        (LevelKind::Exempt, _) | (_, None) => seats,
        (_, Some(limit)) => percent(nominal, limit),
    };
    let max_seats = match level.kind {
        LevelKind::Queue(q) => {
            let part = (MAX_SEATS_FRACTION * f64::from(nominal)).ceil() as u32;
            part.min(nominal / q.hand_size.max(1)).max(1)
        }
        LevelKind::Exempt | LevelKind::Reject => 0,
    };
    Limits { nominal, lendable, min: nominal - lendable, borrowing, max: nominal.saturating_add(borrowing), max_seats }
}

/// Half away from zero, as upstream rounds; saturates.
fn percent(seats: u32, percent: u32) -> u32 {
    (f64::from(seats) * f64::from(percent) / 100.0).round() as u32
}

/// Each level's quota, rounded up, by the same floating-point operations as upstream.
fn round_up(seats: u32, shares: &[u32]) -> Vec<u32> {
    let sum: f64 = shares.iter().copied().map(f64::from).sum();
    if sum == 0.0 {
        return vec![0; shares.len()];
    }
    shares.iter().map(|&s| (f64::from(seats) * f64::from(s) / sum).ceil() as u32).collect()
}

/// Hamilton's method: the integer part of each quota, and one more for those with the largest remainders.
fn largest_remainder(seats: u32, shares: &[u32]) -> Vec<u32> {
    let sum: u64 = shares.iter().copied().map(u64::from).sum();
    if sum == 0 {
        return vec![0; shares.len()];
    }
    // A share is at most the sum, so the quotient is at most `seats`; the product of two u32 fits.
    let product = |s: u32| u64::from(seats) * u64::from(s);
    let mut nominal: Vec<u32> = shares.iter().map(|&s| (product(s) / sum) as u32).collect();
    let given: u64 = nominal.iter().copied().map(u64::from).sum();
    let mut rest: Vec<(u64, &mut u32)> = shares.iter().zip(&mut nominal).map(|(&s, n)| (product(s) % sum, n)).collect();
    rest.sort_by_key(|(remainder, _)| std::cmp::Reverse(*remainder));
    for (_, n) in rest.into_iter().take((u64::from(seats) - given) as usize) {
        *n += 1;
    }
    nominal
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn level(shares: u32, lendable_percent: u32) -> Level {
        let kind = LevelKind::Queue(Queuing { queues: 64, hand_size: 6, queue_length_limit: 50 });
        Level { name: "l".into(), kind, shares, lendable_percent, borrowing_limit_percent: None }
    }

    #[test]
    fn exact_nominal_seats_add_up_and_ties_go_to_the_earlier() {
        let nominal = |seats, shares: &[u32]| largest_remainder(seats, shares);
        assert_eq!(nominal(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(nominal(1, &[5, 30, 40, 40]), [0, 0, 1, 0]);
        assert_eq!(nominal(7, &[0, 0]), [0, 0], "no shares at all: jails");
        assert_eq!(nominal(u32::MAX, &[u32::MAX, 0]), [u32::MAX, 0]);
    }

    #[test]
    fn upstream_rounds_up() {
        assert_eq!(round_up(600, &[0, 5, 10, 40, 30, 40, 100, 20]), [0, 13, 25, 98, 74, 98, 245, 49]);
    }

    #[test]
    fn a_jail_may_borrow_but_owns_nothing() {
        let all = limits(100, &[level(0, 50), level(10, 0)], Compat::Fairgate);
        assert_eq!((all[0].nominal, all[0].min, all[0].max, all[0].max_seats), (0, 0, 100, 1));
        assert_eq!((all[1].nominal, all[1].min), (100, 100));
    }

    proptest! {
        #[test]
        fn division_is_exact_and_within_one_of_the_quota(
            seats in 0u32..100_000,
            shares in prop::collection::vec(0u32..1_000, 1..20),
        ) {
            let sum: u64 = shares.iter().copied().map(u64::from).sum();
            prop_assume!(sum > 0);
            let nominal = largest_remainder(seats, &shares);
            prop_assert_eq!(nominal.iter().sum::<u32>(), seats);
            for (&n, &s) in nominal.iter().zip(&shares) {
                let quota = u64::from(seats) * u64::from(s) / sum;
                prop_assert!((quota..=quota + 1).contains(&u64::from(n)));
                prop_assert!(s > 0 || n == 0);
            }
        }

        #[test]
        fn figures_of_a_level_belong_together(seats in 0u32..10_000, lendable in 0u32..=100) {
            for compat in [Compat::Fairgate, Compat::Upstream] {
                for l in limits(seats, &[level(3, lendable), level(7, 100 - lendable)], compat) {
                    prop_assert_eq!(l.min + l.lendable, l.nominal);
                    prop_assert_eq!(l.max, l.nominal + l.borrowing);
                    prop_assert!(l.max_seats >= 1);
                }
            }
        }
    }
}
