//! What the server counts of its requests, under the names of Kubernetes' API server (api-server.md 1.8).
//!
//! No label has a value that a client can choose: resources are those that are served, and no series names a logical
//! cluster. So there are at most some thousand series. A request costs a look-up by its labels in each of three families.

use std::{sync::Arc, time::Instant};

use apiserver_api::{RequestInfo, Verb};
use apiserver_machinery::Resource;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    core::Collector,
};

/// Upper bounds in seconds and in bytes, as upstream has them.
const DURATIONS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
const SIZES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Paths that are labels; others are none.
const PATHS: [&str; 5] = ["/healthz", "/livez", "/metrics", "/readyz", "/version"];

/// The labels of a kind of request.
const OF: [&str; 6] = ["verb", "group", "version", "resource", "subresource", "scope"];

/// The number of objects of one resource: group, plural, number.
pub(crate) type Objects = (&'static str, &'static str, u64);

/// A kind of request: the labels that it is counted under.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Labels {
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    dry_run: bool,
}

impl Labels {
    /// Those of a request; `resource` is the one it is for, if that is served.
    pub(crate) fn of(info: &RequestInfo<'_>, resource: Option<&'static Resource>, is_apply: bool) -> Self {
        let (subresource, scope) = match resource {
            Some(resource) => (known(resource.subresources, &info.subresource), scope(info)),
            None => (known(&PATHS, &info.path), ""),
        };
        Self {
            verb: verb(info.verb, is_apply),
            group: resource.map_or("", |r| r.group),
            version: resource.map_or("", |r| r.version),
            resource: resource.map_or("", |r| r.plural),
            subresource,
            scope,
            dry_run: info.query_value("dryRun").is_some_and(|value| value == "All"),
        }
    }

    /// Values for [`OF`].
    fn of_request(&self) -> [&'static str; 6] {
        [self.verb, self.group, self.version, self.resource, self.subresource, self.scope]
    }

    /// Values for [`OF`] and `dry_run`.
    fn with_dry_run(&self) -> [&'static str; 7] {
        let [verb, group, version, resource, subresource, scope] = self.of_request();
        [verb, group, version, resource, subresource, scope, if self.dry_run { "All" } else { "" }]
    }
}

fn known(all: &[&'static str], given: &str) -> &'static str {
    all.iter().copied().find(|one| *one == given).unwrap_or_default()
}

fn scope(info: &RequestInfo<'_>) -> &'static str {
    let selects = matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
    match (info.namespace.is_empty(), info.name.is_empty()) {
        _ if info.verb == Verb::Create => "resource",
        (_, false) if !selects => "resource",
        (false, _) => "namespace",
        (true, _) => "cluster",
    }
}

fn verb(verb: Verb, is_apply: bool) -> &'static str {
    match verb {
        Verb::Get | Verb::Head => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create | Verb::Post => "POST",
        Verb::Update | Verb::Put => "PUT",
        Verb::Patch if is_apply => "APPLY",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
        Verb::Proxy => "CONNECT",
        Verb::Options | Verb::Other => "other",
    }
}

/// See the module.
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    durations: HistogramVec,
    sizes: HistogramVec,
    /// Requests that run and are no watches: those that change nothing, and the others.
    in_flight: [IntGauge; 2],
    watches: IntGaugeVec,
    events: IntCounterVec,
    objects: IntGaugeVec,
    objects_by_name: IntGaugeVec,
}

/// A family that is right as it is written here.
fn family<F: Collector + Clone + 'static>(registry: &Registry, family: prometheus::Result<F>) -> F {
    let family = family.expect("the names of families and labels are valid");
    registry.register(Box::new(family.clone())).expect("no two families have one name");
    family
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            family(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            family(&registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let histogram = |name: &str, help: &str, bounds: &[f64], labels: &[&str]| {
            let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
            family(&registry, HistogramVec::new(options, labels))
        };
        let [verb, group, version, resource, subresource, scope] = OF;
        let with_dry_run = [verb, group, version, resource, subresource, scope, "dry_run"];
        let with_code = [verb, group, version, resource, subresource, scope, "dry_run", "code"];
        let in_flight =
            gauge("apiserver_current_inflight_requests", "Requests that run, watches excluded.", &["request_kind"]);
        Self {
            requests: counter(
                "apiserver_request_total",
                "Requests by what they asked for and the code they were answered with.",
                &with_code,
            ),
            durations: histogram(
                "apiserver_request_duration_seconds",
                "Seconds from the arrival of a request until its answer was handed over.",
                &DURATIONS,
                &with_dry_run,
            ),
            sizes: histogram("apiserver_response_sizes", "Bytes of answers to reads.", &SIZES, &OF),
            in_flight: ["readOnly", "mutating"].map(|kind| in_flight.with_label_values(&[kind])),
            watches: gauge("apiserver_longrunning_requests", "Watches that run.", &OF),
            events: counter(
                "apiserver_watch_events_total",
                "Events that watches were sent.",
                &["group", "version", "resource"],
            ),
            objects: gauge(
                "apiserver_resource_objects",
                "Objects that are stored, in all logical clusters.",
                &["group", "resource"],
            ),
            objects_by_name: gauge(
                "apiserver_storage_objects",
                "The same as apiserver_resource_objects, as it was called before.",
                &["resource"],
            ),
            registry,
        }
    }
}

impl Metrics {
    /// A request has come.
    pub(crate) fn begin(self: &Arc<Self>, labels: Labels) -> Observed {
        let [reads, writes] = &self.in_flight;
        let running = match labels.verb {
            "WATCH" => self.watches.with_label_values(&labels.of_request()),
            "GET" | "LIST" => reads.clone(),
            _ => writes.clone(),
        };
        running.inc();
        Observed { metrics: Arc::clone(self), running, labels, begun: Instant::now(), code: 0, bytes: 0 }
    }

    /// The number of events that watches of a resource were sent.
    pub(crate) fn events(&self, resource: &Resource) -> IntCounter {
        self.events.with_label_values(&[resource.group, resource.version, resource.plural])
    }

    /// All of it in the text format (version 0.0.4); `objects` are counted by the store.
    pub(crate) fn render(&self, objects: &[Objects]) -> Result<String, prometheus::Error> {
        for (group, resource, count) in objects {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            self.objects.with_label_values(&[group, resource]).set(count);
            let dot = if group.is_empty() { "" } else { "." };
            self.objects_by_name.with_label_values(&[&*format!("{resource}{dot}{group}")]).set(count);
        }
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// A request that runs. It is over when this is dropped: when its answer was handed over whole, or nobody wants it any more.
pub(crate) struct Observed {
    metrics: Arc<Metrics>,
    /// Where it is counted while it runs.
    running: IntGauge,
    labels: Labels,
    begun: Instant,
    code: u16,
    bytes: u64,
}

impl Observed {
    /// Its answer begins with this code.
    pub(crate) fn answered(&mut self, code: u16) {
        self.code = code;
    }

    /// So much more of the answer was handed over.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.running.dec();
        // The client went away before there was an answer.
        if self.code == 0 {
            return;
        }
        let [verb, group, version, resource, subresource, scope, dry_run] = self.labels.with_dry_run();
        let with_code = [verb, group, version, resource, subresource, scope, dry_run, &*self.code.to_string()];
        self.metrics.requests.with_label_values(&with_code).inc();
        let durations = self.metrics.durations.with_label_values(&self.labels.with_dry_run());
        durations.observe(self.begun.elapsed().as_secs_f64());
        if matches!(verb, "GET" | "LIST") {
            self.metrics.sizes.with_label_values(&self.labels.of_request()).observe(self.bytes as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use apiserver_machinery::builtin;

    use super::*;

    #[test]
    fn labels_are_upstreams_and_never_a_clients() {
        let maps = builtin::find("", "v1", "configmaps");
        for (method, path, query, resource, want) in [
            ("GET", "/api/v1/namespaces/n/configmaps/a", "", maps, ("GET", "configmaps", "", "resource", false)),
            ("GET", "/api/v1/configmaps", "", maps, ("LIST", "configmaps", "", "cluster", false)),
            (
                "GET",
                "/api/v1/namespaces/n/configmaps",
                "watch=1",
                maps,
                ("WATCH", "configmaps", "", "namespace", false),
            ),
            (
                "GET",
                "/api/v1/namespaces/n/configmaps",
                "fieldSelector=metadata.name%3Da",
                maps,
                ("LIST", "configmaps", "", "namespace", false),
            ),
            (
                "POST",
                "/api/v1/namespaces/n/configmaps",
                "dryRun=All",
                maps,
                ("POST", "configmaps", "", "resource", true),
            ),
            (
                "PUT",
                "/api/v1/namespaces/n/configmaps/a/made-up",
                "",
                maps,
                ("PUT", "configmaps", "", "resource", false),
            ),
            (
                "DELETE",
                "/api/v1/namespaces/n/configmaps",
                "",
                maps,
                ("DELETECOLLECTION", "configmaps", "", "namespace", false),
            ),
            ("GET", "/api/v1/namespaces/n/made-up", "", None, ("LIST", "", "", "", false)),
            ("GET", "/readyz", "", None, ("GET", "", "/readyz", "", false)),
            ("GET", "/made-up", "", None, ("GET", "", "", "", false)),
            ("BREW", "/made-up", "", None, ("other", "", "", "", false)),
        ] {
            let info = RequestInfo::parse(method, path, query).unwrap();
            let l = Labels::of(&info, resource, false);
            assert_eq!((l.verb, l.resource, l.subresource, l.scope, l.dry_run), want, "{method} {path}?{query}");
        }
        let patch = RequestInfo::parse("PATCH", "/api/v1/namespaces/n/configmaps/a", "").unwrap();
        assert_eq!(Labels::of(&patch, maps, true).verb, "APPLY");
    }

    #[test]
    fn what_runs_is_counted_until_it_is_over() {
        let metrics = Arc::new(Metrics::default());
        let of = |method, query| {
            let info = RequestInfo::parse(method, "/api/v1/configmaps", query).unwrap();
            Labels::of(&info, builtin::find("", "v1", "configmaps"), false)
        };
        let mut list = metrics.begin(of("GET", ""));
        let (write, watch) = (metrics.begin(of("POST", "")), metrics.begin(of("GET", "watch=1")));
        let running = || [&metrics.in_flight[0], &metrics.in_flight[1], &watch.running].map(IntGauge::get);
        assert_eq!(running(), [1, 1, 1]);
        list.answered(200);
        list.sent(5000);
        drop(list);
        drop(write);
        assert_eq!(running(), [0, 0, 1]);
        let text = metrics.render(&[]).unwrap();
        let lines = |begins: &str| text.lines().filter(|line| line.starts_with(begins)).collect::<Vec<_>>();
        let [only] = *lines("apiserver_request_total{") else { panic!("the write had no answer: {text}") };
        assert!(only.contains("code=\"200\"") && only.contains("verb=\"LIST\"") && only.ends_with(" 1"), "{only}");
        let counts: Vec<_> = lines("apiserver_response_sizes").iter().map(|l| l.rsplit(' ').next().unwrap()).collect();
        assert_eq!(counts, ["0", "1", "1", "1", "1", "1", "1", "1", "5000", "1"]);
    }
}
