//! What happened to a tenant's requests.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Histograms hold microseconds up to an hour, exact to three digits.
const LATENCY_MAX_US: u64 = 3_600_000_000;

/// Counters and latencies of one tenant in one phase. Only measured requests are counted, none from the warm-up.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    /// Requests that the schedule asked for; of a closed loop those that were sent.
    pub(crate) offered: u64,
    /// Requests that were sent at least once.
    pub(crate) sent: u64,
    /// Requests that ended well.
    pub(crate) ok: u64,
    /// Answers of 429. A polite client may get several for one request that ends well.
    pub(crate) rejections: u64,
    /// Requests that were given up after 429.
    pub(crate) refused: u64,
    /// Requests that ended otherwise: other answers, broken connections.
    pub(crate) other: u64,
    /// Requests that were sent later than they should have been.
    pub(crate) late: u64,
    /// From due to answered, of those that ended well.
    response: Histogram<u64>,
    /// From sent to answered, of those that ended well.
    service: Histogram<u64>,
    /// What the first request that ended otherwise ended with.
    pub(crate) example: Option<String>,
}

impl Default for Stats {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("the bounds are valid");
        Self {
            offered: 0,
            sent: 0,
            ok: 0,
            rejections: 0,
            refused: 0,
            other: 0,
            late: 0,
            response: histogram(),
            service: histogram(),
            example: None,
        }
    }
}

impl Stats {
    /// A request ended well, this long after it was due and after it was (last) sent.
    pub(crate) fn succeeded(&mut self, response: Duration, service: Duration) {
        self.ok += 1;
        self.response.saturating_record(micros(response));
        self.service.saturating_record(micros(service));
    }

    /// A request ended otherwise.
    pub(crate) fn failed(&mut self, why: impl FnOnce() -> String) {
        self.other += 1;
        self.example.get_or_insert_with(why);
    }

    /// Several as one.
    pub(crate) fn sum<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        parts.into_iter().fold(Self::default(), |mut sum, part| {
            sum.offered += part.offered;
            sum.sent += part.sent;
            sum.ok += part.ok;
            sum.rejections += part.rejections;
            sum.refused += part.refused;
            sum.other += part.other;
            sum.late += part.late;
            sum.response.add(&part.response).expect("all histograms have the same bounds");
            sum.service.add(&part.service).expect("all histograms have the same bounds");
            sum.example = sum.example.or_else(|| part.example.clone());
            sum
        })
    }

    /// The figures of the report.
    pub(crate) fn summary(&self, tenant: &str) -> Summary {
        let ended = self.ok + self.refused + self.other;
        Summary {
            tenant: tenant.to_owned(),
            offered: self.offered,
            sent: self.sent,
            ok: self.ok,
            rejections: self.rejections,
            other: self.other,
            late: self.late,
            dropped: self.offered.saturating_sub(ended),
            served: if self.offered == 0 { 0.0 } else { self.ok as f64 / self.offered as f64 },
            response: Latency::of(&self.response),
            service: Latency::of(&self.service),
            example: self.example.clone(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(LATENCY_MAX_US).max(1)
}

/// One tenant's figures in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    pub(crate) tenant: String,
    pub(crate) offered: u64,
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    #[serde(rename = "answers429")]
    pub(crate) rejections: u64,
    pub(crate) other: u64,
    pub(crate) late: u64,
    /// Never sent, or not answered when the time to wait for the rest was over.
    pub(crate) dropped: u64,
    /// ok / offered.
    pub(crate) served: f64,
    /// From due to answered.
    pub(crate) response: Latency,
    /// From sent to answered.
    pub(crate) service: Latency,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) example: Option<String>,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Latency {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: u64,
    pub(crate) p75_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) max_us: u64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let quantile = |q| if histogram.is_empty() { 0 } else { histogram.value_at_quantile(q) };
        Self {
            mean_us: if histogram.is_empty() { 0.0 } else { histogram.mean() },
            p50_us: quantile(0.5),
            p75_us: quantile(0.75),
            p99_us: quantile(0.99),
            max_us: if histogram.is_empty() { 0 } else { histogram.max() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offered_request_is_accounted_for() {
        let mut stats = Stats { offered: 10, sent: 8, rejections: 5, refused: 2, ..Stats::default() };
        for ms in 1..=4 {
            stats.succeeded(Duration::from_millis(ms), Duration::from_millis(1));
        }
        stats.failed(|| "500".into());
        stats.failed(|| "502".into());
        let summary = stats.summary("a");
        assert_eq!((summary.ok, summary.other, summary.dropped), (4, 2, 2));
        assert_eq!((summary.served, summary.example.as_deref()), (0.4, Some("500")));
    }

    #[test]
    fn percentiles_are_exact_to_three_digits() {
        let mut stats = Stats::default();
        for ms in 1..=1000 {
            stats.succeeded(Duration::from_millis(ms), Duration::from_secs(9000));
        }
        let near = |value: u64, ms: u64| value.abs_diff(ms * 1000) <= ms;
        let (response, service) = (stats.summary("a").response, stats.summary("a").service);
        assert!(
            near(response.p50_us, 500) && near(response.p99_us, 990) && near(response.max_us, 1000),
            "{response:?}"
        );
        assert!(service.p50_us.abs_diff(LATENCY_MAX_US) <= LATENCY_MAX_US / 1000, "values beyond the bound saturate");
    }

    #[test]
    fn nothing_measured_gives_zeros() {
        let summary = Stats::default().summary("a");
        assert_eq!((summary.response.p99_us, summary.served, summary.dropped), (0, 0.0, 0));
    }
}
