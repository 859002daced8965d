//! Every series of `/metrics`: type, labels and meaning. The answer's `# HELP` and `# TYPE` lines and docs/metrics.md
//! say what stands here; tests hold all three together.

/// One family of series.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    /// As Prometheus spells it.
    pub(crate) kind: &'static str,
    /// Without `le`.
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

const fn series(name: &'static str, kind: &'static str, labels: &'static [&'static str], help: &'static str) -> Series {
    Series { name, kind, labels, help }
}

const LEVEL: &[&str] = &["priority_level"];
const FLOW: &[&str] = &["priority_level", "flow_schema"];
const SHARD: &[&str] = &["shard"];
const WORKSPACE: &[&str] = &["workspace"];
const NONE: &[&str] = &[];

/// All of them; a family whose name is not here is not shown.
pub(crate) const SERIES: &[Series] = &[
    // Requests.
    series(
        "apiserver_request_total",
        "counter",
        &["code", "verb"],
        "Answers by status code and verb, those that the gateway gives itself included. CONNECT stands for logs, exec, attach, port-forward and proxy, other for OPTIONS and methods that Kubernetes does not know, and for requests refused before they were read.",
    ),
    series(
        "apiserver_current_inflight_requests",
        "gauge",
        &["request_kind"],
        "Requests that the gates let run just now, by mutating and readOnly; watches and what bypasses fairness excluded.",
    ),
    series(
        "fairgate_request_phase_duration_seconds",
        "histogram",
        &["phase", "verb", "outcome"],
        "Seconds of each phase of a request: wait (at the gate), first_byte (from sending to the head of the shard's answer), total (from arrival until the answer was handed to the connection; not of streams that were opened). Without probes of the gateway itself.",
    ),
    series(
        "fairgate_stream_duration_seconds",
        "histogram",
        &["verb", "outcome"],
        "Seconds that watches, logs, terminals and port-forwards lasted, from their arrival to their end; those that were refused are in the phases.",
    ),
    series("fairgate_requests_in_flight", "gauge", NONE, "Requests between their arrival and the end of their answer."),
    series(
        "fairgate_rate_limited_requests_total",
        "counter",
        &["limit"],
        "Requests refused with 429 because the rate of their workspace or user was exceeded.",
    ),
    series("fairgate_request_panics_total", "counter", NONE, "Requests whose handler failed; they were answered 500."),
    series(
        "fairgate_door_rejections_total",
        "counter",
        &["reason"],
        "Requests and connections that got no further than the door.",
    ),
    series(
        "fairgate_access_log_lines_total",
        "counter",
        &["result"],
        "Lines of the access log: written, dropped because the writer was too slow, failed to be written. Only with an access log.",
    ),
    // Connections.
    series("fairgate_connections", "gauge", NONE, "Open client connections."),
    series("fairgate_connections_accepted_total", "counter", NONE, "Client connections accepted."),
    series("fairgate_connections_closed_total", "counter", &["reason"], "Client connections that the gateway cut off."),
    // Shards and what is known of them.
    series(
        "fairgate_shard_errors_total",
        "counter",
        &["shard", "reason"],
        "Requests that a shard did not answer, or not to the end.",
    ),
    series("fairgate_ready", "gauge", NONE, "1 when /readyz says yes."),
    series("fairgate_index_ready", "gauge", NONE, "1 when at least one shard has told its workspaces."),
    series("fairgate_index_clusters", "gauge", NONE, "Logical clusters known."),
    series("fairgate_index_synced", "gauge", SHARD, "1 when the shard has told all its workspaces."),
    series("fairgate_config_generation", "gauge", NONE, "Fairness configurations put in force so far."),
    series(
        "fairgate_config_reloads_total",
        "counter",
        &["file", "outcome"],
        "New contents of gateway.yaml with its certificates, or of the fairness file, applied or refused.",
    ),
    series("fairgate_shard_reachable", "gauge", SHARD, "1 unless the shard does not tell its workspaces."),
    series("fairgate_shard_seats", "gauge", SHARD, "Seats of the shard."),
    series("fairgate_shard_seats_in_use", "gauge", SHARD, "Seats in use."),
    series(
        "fairgate_shard_exempt_seats_in_use",
        "gauge",
        SHARD,
        "Seats in use by exempt requests, which no limit counts.",
    ),
    series("fairgate_shard_waiting_requests", "gauge", SHARD, "Requests that wait for seats."),
    series(
        "fairgate_shard_reserves_missing_seats",
        "gauge",
        SHARD,
        "Seats that classes promise to workspaces beyond those of the shard: nobody keeps them.",
    ),
    series("fairgate_shard_active_workspaces", "gauge", SHARD, "Workspaces with requests that wait or run."),
    series("fairgate_observers_workspaces", "gauge", SHARD, "Workspaces whose objects are counted."),
    series("fairgate_observers_unclaimed", "gauge", SHARD, "Workspaces with counted objects that no feed has named."),
    series("fairgate_observers_stale", "gauge", SHARD, "1 when the counts may be out of date."),
    series("fairgate_observers_snapshots_total", "counter", SHARD, "Times that all objects were counted anew."),
    series("fairgate_observers_failures_total", "counter", SHARD, "Times that counting broke off."),
    // The schedulers, under upstream's names, summed over shards and workspaces.
    series("apiserver_flowcontrol_dispatched_requests_total", "counter", FLOW, "Requests that were let run."),
    series(
        "apiserver_flowcontrol_rejected_requests_total",
        "counter",
        &["priority_level", "flow_schema", "reason"],
        "Requests refused by fairness: queue-full, concurrency-limit, time-out, deadline, cancelled.",
    ),
    series("apiserver_flowcontrol_current_inqueue_requests", "gauge", FLOW, "Requests waiting in queues."),
    series("apiserver_flowcontrol_current_inqueue_seats", "gauge", FLOW, "Seats that requests in queues wait for."),
    series("apiserver_flowcontrol_current_executing_requests", "gauge", FLOW, "Requests that hold seats."),
    series("apiserver_flowcontrol_current_executing_seats", "gauge", FLOW, "Seats held by requests."),
    series(
        "apiserver_flowcontrol_request_concurrency_in_use",
        "gauge",
        FLOW,
        "The same as current_executing_seats; deprecated upstream.",
    ),
    series(
        "apiserver_flowcontrol_request_wait_duration_seconds",
        "histogram",
        &["priority_level", "flow_schema", "execute"],
        "Seconds that requests waited in their queue.",
    ),
    series(
        "apiserver_flowcontrol_request_execution_seconds",
        "histogram",
        &["priority_level", "flow_schema", "type"],
        "Seconds that requests held their seats; of watches, until they were initialised.",
    ),
    series(
        "apiserver_flowcontrol_work_estimated_seats",
        "histogram",
        FLOW,
        "Seats charged for requests, the larger of initial and final ones.",
    ),
    series("apiserver_flowcontrol_watch_count_samples", "histogram", FLOW, "Watches that a write wakes up."),
    series("apiserver_flowcontrol_nominal_limit_seats", "gauge", LEVEL, "Nominal seats of the level."),
    series("apiserver_flowcontrol_lower_limit_seats", "gauge", LEVEL, "Seats that the level keeps for itself."),
    series(
        "apiserver_flowcontrol_upper_limit_seats",
        "gauge",
        LEVEL,
        "Most seats that the level may have by borrowing.",
    ),
    series("apiserver_flowcontrol_current_limit_seats", "gauge", LEVEL, "Seats that the level may use just now."),
    series(
        "apiserver_flowcontrol_request_concurrency_limit",
        "gauge",
        LEVEL,
        "The same as nominal_limit_seats; deprecated upstream.",
    ),
    series(
        "apiserver_flowcontrol_demand_seats_high_watermark",
        "gauge",
        LEVEL,
        "Most seats in demand during the last adjustment period; only with compat upstream, like the next four.",
    ),
    series(
        "apiserver_flowcontrol_demand_seats_average",
        "gauge",
        LEVEL,
        "Mean of the seats in demand during that period.",
    ),
    series(
        "apiserver_flowcontrol_demand_seats_stdev",
        "gauge",
        LEVEL,
        "Standard deviation of the seats in demand during that period.",
    ),
    series("apiserver_flowcontrol_demand_seats_smoothed", "gauge", LEVEL, "Smoothed demand for seats."),
    series("apiserver_flowcontrol_target_seats", "gauge", LEVEL, "Seats that the adjustment aims at."),
    // Workspaces: the busiest by name, the rest as _other, requests without a workspace as _platform.
    series("fairgate_workspace_seats_in_use", "gauge", WORKSPACE, "Seats in use by the workspace."),
    series(
        "fairgate_workspace_limit_seats",
        "gauge",
        WORKSPACE,
        "Most seats that the workspace may use just now, summed over shards.",
    ),
    series("fairgate_workspace_waiting_requests", "gauge", WORKSPACE, "Requests of the workspace that wait."),
    series(
        "fairgate_workspace_dispatched_requests_total",
        "counter",
        WORKSPACE,
        "Requests of the workspace that were let run, since it became active; that of _other may fall when a workspace gets a name of its own.",
    ),
    series(
        "fairgate_workspace_rejected_requests_total",
        "counter",
        &["workspace", "reason"],
        "Requests of the workspace that fairness refused, since it became active; that of _other may fall as above.",
    ),
];

/// The family of this name.
pub(crate) fn find(name: &str) -> Option<&'static Series> {
    SERIES.iter().find(|series| series.name == name)
}

/// Whether the line of this name has the labels of its family.
pub(crate) fn has(name: &str, labels: &[(&str, &str)]) -> bool {
    let part = || ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).and_then(find);
    let declared = find(name).or_else(part).map_or(&[][..], |series| series.labels);
    let named = || labels.iter().map(|(label, _)| *label).filter(|label| *label != "le");
    named().count() == declared.len() && named().all(|label| declared.contains(&label))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of docs/metrics.md that say what [`SERIES`] says.
    fn row(series: &Series) -> String {
        let labels: Vec<_> = series.labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{}` | {} | {} | {} |", series.name, series.kind, labels.join(", "), series.help)
    }

    #[test]
    fn the_documentation_has_every_series_and_no_other() {
        let doc = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
        let told: Vec<&str> =
            doc.lines().filter(|l| l.starts_with("| `apiserver_") || l.starts_with("| `fairgate_")).collect();
        let want: Vec<_> = SERIES.iter().map(row).collect();
        for row in &want {
            assert!(told.contains(&row.as_str()), "docs/metrics.md lacks the line\n{row}");
        }
        assert_eq!(told.len(), want.len(), "docs/metrics.md tells of a series that there is not, or of one twice");
    }

    #[test]
    fn names_are_as_prometheus_wants_them() {
        for Series { name, kind, labels, help } in SERIES {
            assert_eq!(SERIES.iter().filter(|s| s.name == *name).count(), 1, "{name}");
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
            assert!(["counter", "gauge", "histogram"].contains(kind) && help.ends_with('.'), "{name}");
            let is_label = |l: &&&str| l.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(labels.iter().all(|l| is_label(&l)) && !help.contains(['\n', '\\', '|']), "{name}");
        }
    }
}
