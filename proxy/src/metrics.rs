//! The gateway's own rare events, counted. Handles are made once where they are frequent; what every request counts is
//! in [`crate::phases`] and [`crate::flows`].

use metrics::{Counter, counter, describe_counter, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::{refused::Refused, series::SERIES};

pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    pub(crate) accepted: Counter,
    pub(crate) closed_by_sweep: Counter,
    pub(crate) panics: Counter,
    /// What got no further than the door.
    pub(crate) refused: Refused,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let (accepted, closed_by_sweep, panics) = with_local_recorder(&recorder, || {
            // Those that are counted here are shown with their descriptions; the others are shown by others.
            SERIES.iter().filter(|s| s.kind == "counter").for_each(|s| describe_counter!(s.name, s.help));
            (
                counter!("fairgate_connections_accepted_total"),
                counter!("fairgate_connections_closed_total", "reason" => "timeout"),
                counter!("fairgate_request_panics_total"),
            )
        });
        let refused = Refused::new(&recorder);
        Self { recorder, accepted, closed_by_sweep, panics, refused }
    }

    /// Counts a request that exceeded the rate of its `limit`: that of the user or of the workspace.
    pub(crate) fn rate_limited(&self, limit: &'static str) {
        with_local_recorder(&self.recorder, || {
            counter!("fairgate_rate_limited_requests_total", "limit" => limit).increment(1);
        });
    }

    /// Counts a new content of a configuration file, `gateway` or `fairness`: `applied` or `refused`.
    pub(crate) fn config_reloaded(&self, file: &'static str, outcome: &'static str) {
        with_local_recorder(&self.recorder, || {
            counter!("fairgate_config_reloads_total", "file" => file, "outcome" => outcome).increment(1);
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
}
