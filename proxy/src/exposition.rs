//! The text of `/metrics`: the gateway's own, the schedulers' under upstream's names (apf.md 7.4) summed over shards
//! and workspaces, and a bounded number of series per workspace.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{Display, Write as _},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use fairness::gate::{DemandSums, FlowStats, LevelLimits, REASONS, ShardStats, WAIT_BUCKETS_SECONDS, WorkspaceStats};
use metrics_exporter_prometheus::PrometheusHandle;
use observers::Observers;

use crate::{
    core::Core, flows::FlowMetrics, histogram::Histogram, phases, probes, series, shards::Entry, worker::Worker,
};

/// Workspaces with series of their own; the others are summed as `_other`.
const WORKSPACES: usize = 200;

/// Everything there is to tell.
pub(crate) fn render(core: &Core, workers: &[Arc<Worker>], metrics: &PrometheusHandle) -> String {
    let mut out = Text(metrics.render());
    let sum = |of: fn(&Worker) -> usize| workers.iter().map(|w| of(w)).sum::<usize>();
    phases::render(&mut out, &workers.iter().map(|w| &w.phases).collect::<Vec<_>>());
    running(&mut out, workers);
    out.one("fairgate_requests_in_flight", sum(|w| w.in_flight.load(Relaxed)));
    out.one("fairgate_connections", sum(|w| w.connections.load(Relaxed)));
    out.one("fairgate_ready", u8::from(probes::is_ready(core)));
    out.one("fairgate_index_ready", u8::from(core.index.is_ready()));
    out.one("fairgate_index_clusters", core.index.len());
    if let Some(log) = core.access_log.get() {
        let name = "fairgate_access_log_lines_total";
        out.head(name);
        let counts = &log.counts;
        for (result, count) in [("written", &counts.written), ("dropped", &counts.dropped), ("failed", &counts.failed)]
        {
            out.value(name, &[("result", result)], count.load(Relaxed));
        }
    }
    if let Some(fairness) = &core.fairness {
        out.one("fairgate_config_generation", fairness.status().generation);
    }
    shards(&mut out, core);
    levels(&mut out, core);
    demand(&mut out, core);
    observed(&mut out, core);
    workspaces(&mut out, core);
    out.0
}

/// The text so far.
#[derive(Default)]
pub(crate) struct Text(String);

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl Text {
    /// Begins a family.
    pub(crate) fn head(&mut self, name: &str) {
        let series = series::find(name);
        debug_assert!(series.is_some(), "{name} is not in the table of series");
        if let Some(series) = series {
            let _ = write!(self.0, "# HELP {name} {}\n# TYPE {name} {}\n", series.help, series.kind);
        }
    }

    fn one(&mut self, name: &str, value: impl Display) {
        self.head(name);
        self.value(name, &[], value);
    }

    pub(crate) fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let is_listed = series::has(name, labels);
        debug_assert!(is_listed, "{name}{labels:?} is not in the table of series");
        if !is_listed {
            return;
        }
        self.0.push_str(name);
        for (n, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if n == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// One histogram of a family. `counts`, one more than there are `bounds`, are not cumulative.
    pub(crate) fn histogram(&mut self, name: &str, labels: &[(&str, &str)], bounds: &[f64], counts: &[u64], sum: f64) {
        let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (bound, bucket) in bounds.zip(counts) {
            count += bucket;
            let labels = [labels, &[("le", bound.as_str())]].concat();
            self.value(&format!("{name}_bucket"), &labels, count);
        }
        self.value(&format!("{name}_sum"), labels, sum);
        self.value(&format!("{name}_count"), labels, count);
    }
}

/// Requests that hold seats, by upstream's two kinds.
fn running(out: &mut Text, workers: &[Arc<Worker>]) {
    let name = "apiserver_current_inflight_requests";
    out.head(name);
    let [mut mutating, mut read_only] = [0, 0];
    for worker in workers {
        worker.requests.each(|entry| {
            if entry.started_ns.is_some() && !entry.is_watch {
                let is_read = matches!(entry.method, http::Method::GET | http::Method::HEAD);
                *if is_read { &mut read_only } else { &mut mutating } += 1;
            }
        });
    }
    out.value(name, &[("request_kind", "mutating")], mutating);
    out.value(name, &[("request_kind", "readOnly")], read_only);
}

fn shards(out: &mut Text, core: &Core) {
    let shards: Vec<_> = core.shards.iter().collect();
    let mut each = |name: &str, value: &dyn Fn(usize, &Entry) -> Option<u64>| {
        let values: Vec<_> = shards.iter().filter_map(|&(n, e)| Some((e, value(n, e)?))).collect();
        if !values.is_empty() {
            out.head(name);
        }
        for (entry, value) in values {
            out.value(name, &[("shard", &entry.shard.name)], value);
        }
    };
    let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    // Asked for once: it takes the gate's lock, and the numbers belong together.
    let stats = |&(n, e): &(usize, &Entry)| Some((n, e.gate.as_ref()?.shard_stats()));
    let stats: HashMap<_, _> = shards.iter().filter_map(stats).collect();
    let gate = |of: fn(&ShardStats) -> u64| {
        let stats = &stats;
        move |n: usize, _: &Entry| stats.get(&n).map(of)
    };
    let observers = |e: &Entry| e.observers.as_ref().map(Observers::status);
    each("fairgate_index_synced", &|n, _| Some(u64::from(core.index.is_synced(n))));
    each("fairgate_shard_reachable", &|_, entry| Some(u64::from(entry.reachability.is_well())));
    each("fairgate_shard_seats", &gate(|s| s.seats.into()));
    each("fairgate_shard_seats_in_use", &gate(|s| s.in_use.into()));
    each("fairgate_shard_exempt_seats_in_use", &gate(|s| s.exempt.into()));
    each("fairgate_shard_waiting_requests", &gate(|s| s.waiting.into()));
    each("fairgate_shard_reserves_missing_seats", &gate(|s| s.reserves_missing));
    each("fairgate_shard_active_workspaces", &gate(|s| s.workspaces as u64));
    each("fairgate_observers_workspaces", &|_, e| Some(number(observers(e)?.workspaces)));
    each("fairgate_observers_unclaimed", &|_, e| Some(number(observers(e)?.unclaimed)));
    each("fairgate_observers_stale", &|_, e| Some(u64::from(observers(e)?.stale)));
    each("fairgate_observers_snapshots_total", &|_, e| Some(observers(e)?.snapshots));
    each("fairgate_observers_failures_total", &|_, e| Some(observers(e)?.failures));
}

/// Name below `apiserver_flowcontrol_`, value.
type Column<T> = (&'static str, fn(&T) -> u64);

const FLOWS: [Column<FlowStats>; 6] = [
    ("dispatched_requests_total", |f| f.dispatched),
    ("current_inqueue_requests", |f| f.waiting_requests),
    ("current_inqueue_seats", |f| f.waiting_seats),
    ("current_executing_requests", |f| f.executing_requests),
    ("current_executing_seats", |f| f.executing_seats),
    // Deprecated by upstream, and still looked at.
    ("request_concurrency_in_use", |f| f.executing_seats),
];
const LEVELS: [Column<LevelLimits>; 5] = [
    ("nominal_limit_seats", |l| l.seats.nominal),
    ("lower_limit_seats", |l| l.seats.lower),
    ("upper_limit_seats", |l| l.seats.upper),
    ("current_limit_seats", |l| l.seats.current),
    ("request_concurrency_limit", |l| l.seats.nominal),
];

/// Name below `apiserver_flowcontrol_`, value.
type DemandColumn = (&'static str, fn(&DemandSums) -> f64);

const DEMAND: [DemandColumn; 5] = [
    ("demand_seats_high_watermark", |d| d.high_watermark),
    ("demand_seats_average", |d| d.average),
    ("demand_seats_stdev", |d| d.deviation),
    ("demand_seats_smoothed", |d| d.smoothed),
    ("target_seats", |d| d.target),
];

/// What only Kubernetes' adjustment measures.
fn demand(out: &mut Text, core: &Core) {
    let gates: Vec<_> = core.shards.iter().filter_map(|(_, s)| s.gate.as_ref()).map(|g| g.demand_stats()).collect();
    for (name, value) in DEMAND {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        gates.iter().flatten().for_each(|(level, demand)| *sums.entry(level).or_default() += value(demand));
        let name = format!("apiserver_flowcontrol_{name}");
        if !sums.is_empty() {
            out.head(&name);
        }
        sums.iter().for_each(|(level, sum)| out.value(&name, &[("priority_level", level)], sum));
    }
}

fn levels(out: &mut Text, core: &Core) {
    let stats: Vec<_> = core.shards.iter().filter_map(|(_, s)| s.gate.as_ref()).map(|g| g.level_stats()).collect();
    let mut flows: BTreeMap<_, FlowStats> = BTreeMap::new();
    for flow in stats.iter().flat_map(|s| &s.flows).filter(|f| is_shown(f)) {
        let key = (flow.level.clone(), flow.flow_schema.clone());
        flows.entry(key).and_modify(|sum| add(sum, flow)).or_insert_with(|| flow.clone());
    }
    let flows: Vec<_> = flows.into_values().collect();
    if flows.is_empty() {
        return;
    }
    for (name, value) in FLOWS {
        let name = format!("apiserver_flowcontrol_{name}");
        out.head(&name);
        flows.iter().for_each(|flow| out.value(&name, &labels(flow), value(flow)));
    }
    let name = "apiserver_flowcontrol_rejected_requests_total";
    out.head(name);
    for flow in &flows {
        for (reason, count) in REASONS.iter().zip(flow.rejected).filter(|(_, count)| *count > 0) {
            let [level, schema] = labels(flow);
            out.value(name, &[level, schema, ("reason", reason)], count);
        }
    }
    waits(out, &flows);
    for (name, value) in LEVELS {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        stats.iter().flat_map(|s| &s.levels).for_each(|l| *sums.entry(&l.level).or_default() += value(l));
        let name = format!("apiserver_flowcontrol_{name}");
        out.head(&name);
        sums.iter().for_each(|(level, sum)| out.value(&name, &[("priority_level", level)], sum));
    }
}

/// What is no longer in force is shown until its last request has ended.
fn is_shown(flow: &FlowStats) -> bool {
    !flow.level.is_empty() && (flow.in_force || flow.waiting_requests + flow.executing_seats > 0)
}

fn waits(out: &mut Text, flows: &[FlowStats]) {
    let name = "apiserver_flowcontrol_request_wait_duration_seconds";
    out.head(name);
    for flow in flows {
        let mut one = |executed, counts: &[u64], sum| {
            let [level, schema] = labels(flow);
            out.histogram(name, &[level, schema, ("execute", executed)], &WAIT_BUCKETS_SECONDS, counts, sum);
        };
        one("true", &flow.wait_buckets, flow.wait_sum_ns as f64 / 1e9);
        let mut at_once = [0; WAIT_BUCKETS_SECONDS.len() + 1];
        at_once[0] = flow.rejected.iter().zip(REASONS).filter(|(_, r)| AT_ONCE.contains(r)).map(|(n, _)| n).sum();
        if at_once[0] > 0 {
            one("false", &at_once, 0.0);
        }
    }
}

/// Reasons of those that never waited.
const AT_ONCE: [&str; 3] = ["queue-full", "concurrency-limit", "deadline"];

/// What is observed in front of the gate; the divisor is that of the unit.
type Observed = (&'static str, f64, Option<&'static str>, fn(&FlowMetrics) -> &Histogram);

const OBSERVED: [Observed; 4] = [
    ("request_execution_seconds", 1e9, Some("regular"), |f| &f.execution),
    ("request_execution_seconds", 1e9, Some("watch"), |f| &f.watch_execution),
    ("work_estimated_seats", 1.0, None, |f| &f.seats),
    ("watch_count_samples", 1.0, None, |f| &f.watches),
];

fn observed(out: &mut Text, core: &Core) {
    let Some(rules) = core.fairness.as_ref().map(crate::rules::Fairness::rules) else { return };
    let mut headed = "";
    for (name, unit, kind, histogram) in OBSERVED {
        let full = format!("apiserver_flowcontrol_{name}");
        if headed != name {
            out.head(&full);
            headed = name;
        }
        for flow in rules.flows() {
            let mut labels = vec![("priority_level", &*flow.level), ("flow_schema", &*flow.flow_schema)];
            labels.extend(kind.map(|kind| ("type", kind)));
            let histogram = histogram(flow);
            let bounds: Vec<_> = histogram.bounds().iter().map(|bound| *bound as f64 / unit).collect();
            let mut counts = vec![0; bounds.len() + 1];
            let sum = histogram.add_to(&mut counts) as f64 / unit;
            out.histogram(&full, &labels, &bounds, &counts, sum);
        }
    }
}

fn labels(flow: &FlowStats) -> [(&'static str, &str); 2] {
    [("priority_level", &flow.level), ("flow_schema", &flow.flow_schema)]
}

fn add(sum: &mut FlowStats, more: &FlowStats) {
    sum.waiting_requests += more.waiting_requests;
    sum.waiting_seats += more.waiting_seats;
    sum.executing_requests += more.executing_requests;
    sum.executing_seats += more.executing_seats;
    sum.dispatched += more.dispatched;
    sum.wait_sum_ns += more.wait_sum_ns;
    sum.rejected.iter_mut().zip(more.rejected).for_each(|(s, m)| *s += m);
    sum.wait_buckets.iter_mut().zip(more.wait_buckets).for_each(|(s, m)| *s += m);
}

const PER_WORKSPACE: [Column<WorkspaceStats>; 4] = [
    ("seats_in_use", |w| w.seats_in_use),
    ("limit_seats", |w| w.limit),
    ("waiting_requests", |w| w.waiting),
    ("dispatched_requests_total", |w| w.dispatched),
];

fn workspaces(out: &mut Text, core: &Core) {
    let (mut named, mut other): (BTreeMap<String, WorkspaceStats>, _) = (BTreeMap::new(), WorkspaceStats::default());
    for gate in core.shards.iter().filter_map(|(_, s)| s.gate.as_ref()) {
        let stats = gate.workspace_stats(WORKSPACES);
        join(&mut other, &stats.other);
        for workspace in stats.busiest {
            // What has no name is the platform.
            let name = workspace.name.as_ref().map_or("_platform", |n| n.as_str());
            if named.len() < WORKSPACES || named.contains_key(name) {
                join(named.entry(name.to_owned()).or_default(), &workspace);
            } else {
                join(&mut other, &workspace);
            }
        }
    }
    if named.is_empty() {
        return;
    }
    named.insert("_other".to_owned(), other);
    for (name, value) in PER_WORKSPACE {
        let name = format!("fairgate_workspace_{name}");
        out.head(&name);
        named.iter().for_each(|(workspace, stats)| out.value(&name, &[("workspace", workspace)], value(stats)));
    }
    let name = "fairgate_workspace_rejected_requests_total";
    out.head(name);
    for (workspace, stats) in &named {
        for (reason, count) in REASONS.iter().zip(stats.rejected).filter(|(_, count)| *count > 0) {
            out.value(name, &[("workspace", workspace), ("reason", reason)], count);
        }
    }
}

fn join(sum: &mut WorkspaceStats, more: &WorkspaceStats) {
    sum.seats_in_use += more.seats_in_use;
    sum.limit += more.limit;
    sum.waiting += more.waiting;
    sum.dispatched += more.dispatched;
    sum.rejected.iter_mut().zip(more.rejected).for_each(|(s, m)| *s += m);
}
