//! How long a request may wait in a queue (apf.md 5.7).

use std::time::Duration;

/// A quarter of the default request timeout of 60 s: the wait limit of requests that name no timeout.
pub const DEFAULT_WAIT_LIMIT: Duration = Duration::from_secs(15);
/// Nobody waits longer than this.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// Until when a request may wait, on the clock of `received_ns`.
///
/// The limit is a quarter of the request's own `timeout` if it has one, otherwise `default` (watches in
/// particular), and never more than [`MAX_WAIT`]. It counts from the moment the request was received, not
/// from when it was queued, so the deadline can lie in the past on arrival: then nobody waits.
pub fn wait_limit(received_ns: u64, timeout: Option<Duration>, default: Duration) -> u64 {
    let limit = timeout.map_or(default, |t| t / 4).min(MAX_WAIT);
    // At most 60 s, which fits.
    received_ns.saturating_add(limit.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    /// The vectors count from "now"; here that is this moment, so that nothing goes below zero.
    const NOW_NS: i64 = 1_000_000_000_000;

    #[test]
    fn deadlines_are_those_of_kubernetes() {
        let cases = vectors::cases("wait_limit.json");
        for case in &cases {
            let number = |field| vectors::number(case, field);
            let before = number("receivedBeforeNow_ns");
            let timeout = case
                .get("requestDeadlineAfterNow_ns")
                .map(|_| Duration::from_nanos((number("requestDeadlineAfterNow_ns") + before) as u64));
            let default = Duration::from_nanos(number("defaultRequestWaitLimit_ns") as u64);
            let deadline = wait_limit((NOW_NS - before) as u64, timeout, default);
            assert_eq!(deadline as i64 - NOW_NS, number("waitDeadlineAfterNow_ns"), "{case}");
        }
        assert_eq!(cases.len(), 40);
    }
}
