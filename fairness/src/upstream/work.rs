//! The cost of a request in the fixed point of upstream (apf.md 5.1).
//!
//! The unit is 1e-8 seat-seconds, in a `u64` that wraps: a negative amount is its two's complement, so that
//! adding it subtracts.

/// What upstream expects every request to take, G: 3 ms.
pub const SERVICE_ESTIMATE_NS: u64 = 3_000_000;
/// Seat-nanoseconds in one unit.
const NS_PER_UNIT: f64 = 10.0;

/// `seats` over `ns` nanoseconds, in units of 1e-8 seat-seconds; negative amounts wrap.
pub fn seat_seconds(seats: f64, ns: i64) -> u64 {
    (seats * ns as f64 / NS_PER_UNIT).round() as i64 as u64
}

/// What a request takes, as the work estimator says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Seats until the answer is out.
    pub initial_seats: u32,
    /// Seats after that ...
    pub final_seats: u32,
    /// ... for so many nanoseconds.
    pub additional_latency_ns: u64,
}

impl Work {
    /// Seats that are taken from dispatch to the end of the tail.
    pub fn max_seats(self) -> u32 {
        self.initial_seats.max(self.final_seats)
    }

    fn final_work(self) -> u64 {
        seat_seconds(self.final_seats.into(), self.additional_latency_ns as i64)
    }

    /// Expected cost of both phases, in units of 1e-8 seat-seconds.
    pub fn total(self) -> u64 {
        let initial = seat_seconds(self.initial_seats.into(), SERVICE_ESTIMATE_NS as i64);
        initial.wrapping_add(self.final_work())
    }

    /// Narrows a tail that exceeds the limit and makes it longer by as much; the cost stays the same.
    pub(super) fn cut(&mut self, limit: u32) {
        if self.final_seats > limit && limit > 0 {
            let work = self.final_work() as f64;
            self.final_seats = limit;
            self.additional_latency_ns = (work / f64::from(limit) * NS_PER_UNIT) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_kubernetes() {
        assert_eq!(seat_seconds(1.0, 3_000_000), 300_000);
        assert_eq!(seat_seconds(0.5, 10), 1, "halves are rounded away from zero");
        assert_eq!(5_u64.wrapping_add(seat_seconds(2.0, -10)), 3, "negative amounts wrap");
    }

    #[test]
    fn a_tail_above_the_limit_becomes_narrow_and_long() {
        let mut work = Work { initial_seats: 1, final_seats: 8, additional_latency_ns: 1_000 };
        let total = work.total();
        work.cut(4);
        assert_eq!((work.final_seats, work.additional_latency_ns, work.total()), (4, 2_000, total));
    }
}
