//! What the server counts of its requests, under the names of Kubernetes' API server (api-server.md 1.8).
//!
//! No label has a value that a client can choose: resources are those that are served, and no series names a logical
//! cluster. So there are at most some thousand series. A request costs one look-up and a few atomic additions.

mod histogram;
mod text;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use apiserver_api::{RequestInfo, Verb};
use apiserver_machinery::Resource;
use dashmap::DashMap;

use self::histogram::Histogram;

/// Upper bounds in seconds and in bytes, as upstream has them.
const DURATIONS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
const SIZES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Paths that are labels; others are none.
const PATHS: [&str; 5] = ["/healthz", "/livez", "/metrics", "/readyz", "/version"];

/// A kind of request: the labels that it is counted under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

/// What is known of one kind of request.
struct Series {
    /// How often each status code was answered.
    codes: Mutex<BTreeMap<u16, u64>>,
    durations: Histogram,
    /// Of answers to reads.
    sizes: Histogram,
    /// Watches that run.
    running: AtomicI64,
}

impl Series {
    fn codes(&self) -> MutexGuard<'_, BTreeMap<u16, u64>> {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Metrics {
    series: DashMap<Labels, Arc<Series>>,
    /// Events sent, by group, version and resource.
    events: DashMap<[&'static str; 3], Arc<AtomicU64>>,
    /// Requests that run and are no watches: those that change nothing, and the others.
    in_flight: [AtomicI64; 2],
}

impl Metrics {
    /// A request has come.
    pub(crate) fn begin(self: &Arc<Self>, labels: Labels) -> Observed {
        let new = || {
            let (durations, sizes) = (Histogram::new(&DURATIONS), Histogram::new(&SIZES));
            Arc::new(Series { codes: Mutex::default(), durations, sizes, running: AtomicI64::new(0) })
        };
        let found = self.series.get(&labels).map(|series| Arc::clone(&series));
        let series = found.unwrap_or_else(|| Arc::clone(&self.series.entry(labels).or_insert_with(new)));
        let observed = Observed { metrics: Arc::clone(self), series, labels, begun: Instant::now(), code: 0, bytes: 0 };
        observed.running().fetch_add(1, Relaxed);
        observed
    }

    /// The number of events that watches of a resource were sent.
    pub(crate) fn events(&self, resource: &Resource) -> Arc<AtomicU64> {
        Arc::clone(&self.events.entry([resource.group, resource.version, resource.plural]).or_default())
    }
}

/// A request that runs. It is over when this is dropped: when its answer was handed over whole, or nobody wants it any more.
pub(crate) struct Observed {
    metrics: Arc<Metrics>,
    series: Arc<Series>,
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

    /// Where it is counted while it runs.
    fn running(&self) -> &AtomicI64 {
        let [reads, writes] = &self.metrics.in_flight;
        match self.labels.verb {
            "WATCH" => &self.series.running,
            "GET" | "LIST" => reads,
            _ => writes,
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.running().fetch_sub(1, Relaxed);
        // The client went away before there was an answer.
        if self.code == 0 {
            return;
        }
        *self.series.codes().entry(self.code).or_default() += 1;
        self.series.durations.observe(self.begun.elapsed().as_secs_f64());
        if matches!(self.labels.verb, "GET" | "LIST") {
            self.series.sizes.observe(self.bytes as f64);
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
        let running = || [&metrics.in_flight[0], &metrics.in_flight[1], &watch.series.running].map(|n| n.load(Relaxed));
        assert_eq!(running(), [1, 1, 1]);
        list.answered(200);
        list.sent(5000);
        let of_lists = Arc::clone(&list.series);
        drop(list);
        let of_writes = Arc::clone(&write.series);
        drop(write);
        assert_eq!(running(), [0, 0, 1]);
        assert_eq!((of_lists.codes().get(&200), of_writes.codes().len()), (Some(&1), 0));
        assert_eq!(of_lists.sizes.read(), (vec![0, 1, 0, 0, 0, 0, 0, 0], 5000.0));
    }
}
