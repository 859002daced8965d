//! The gateway's own metrics. Handles are made once, never looked up by label on the path of a request.

use std::{sync::OnceLock, time::Duration};

use http::StatusCode;
use metrics::{Counter, Histogram, counter, histogram, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Seconds; the upper ones are Kubernetes' longest wait and request timeout.
const BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0];

pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    /// By status code, from 100.
    codes: Box<[OnceLock<Counter>]>,
    /// Queue wait of requests that had to wait.
    pub(crate) wait: Histogram,
    /// From sending to the head of the shard's answer.
    pub(crate) shard: Histogram,
    /// From arrival to the end of the answer.
    pub(crate) total: Histogram,
    pub(crate) accepted: Counter,
    pub(crate) closed_by_sweep: Counter,
    pub(crate) panics: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let recorder =
            PrometheusBuilder::new().set_buckets(&BUCKETS).expect("the list of buckets is not empty").build_recorder();
        let (wait, shard, total, accepted, closed_by_sweep, panics) = with_local_recorder(&recorder, || {
            let phase = |phase: &'static str| histogram!("fairgate_request_phase_seconds", "phase" => phase);
            (
                phase("wait"),
                phase("shard"),
                phase("total"),
                counter!("fairgate_connections_accepted_total"),
                counter!("fairgate_connections_closed_total", "reason" => "timeout"),
                counter!("fairgate_request_panics_total"),
            )
        });
        let codes = (0..500).map(|_| OnceLock::new()).collect();
        Self { recorder, codes, wait, shard, total, accepted, closed_by_sweep, panics }
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, code: StatusCode) {
        let Some(slot) = self.codes.get(usize::from(code.as_u16()).saturating_sub(100)) else { return };
        slot.get_or_init(|| {
            let code = code.as_u16().to_string();
            with_local_recorder(&self.recorder, || counter!("fairgate_requests_total", "code" => code))
        })
        .increment(1);
    }

    /// Counts a request or connection that got no further than the door.
    pub(crate) fn refused(&self, reason: &'static str) {
        with_local_recorder(&self.recorder, || {
            counter!("fairgate_door_rejections_total", "reason" => reason).increment(1);
        });
    }

    /// Counts a request that exceeded the rate of its `limit`: that of the user or of the workspace.
    pub(crate) fn rate_limited(&self, limit: &'static str) {
        with_local_recorder(&self.recorder, || {
            counter!("fairgate_rate_limited_requests_total", "limit" => limit).increment(1);
        });
    }

    /// Counts a new content of the fairness file, `applied` or `refused`.
    pub(crate) fn config_reloaded(&self, outcome: &'static str) {
        with_local_recorder(&self.recorder, || {
            counter!("fairgate_config_reloads_total", "outcome" => outcome).increment(1);
        });
    }

    /// Counts a request that a shard did not answer.
    pub(crate) fn shard_failed(&self, shard: &str, why: &'static str) {
        with_local_recorder(&self.recorder, || {
            counter!("fairgate_shard_errors_total", "shard" => shard.to_owned(), "reason" => why).increment(1);
        });
    }

    pub(crate) fn handle(&self) -> PrometheusHandle {
        self.recorder.handle()
    }

    /// Time since `since_ns` in seconds.
    pub(crate) fn seconds(since_ns: u64, now_ns: u64) -> f64 {
        Duration::from_nanos(now_ns.saturating_sub(since_ns)).as_secs_f64()
    }
}
