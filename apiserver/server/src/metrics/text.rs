//! The Prometheus text format (version 0.0.4) of what was counted.

use std::fmt::Write;

use super::{Histogram, Labels, Metrics, Relaxed, Series};

/// The number of objects of one resource: group, plural, number.
pub(crate) type Objects = (&'static str, &'static str, u64);

impl Metrics {
    /// The text; `objects` are counted by the store.
    pub(crate) fn render(&self, objects: &[Objects]) -> String {
        let mut series: Vec<_> = self.series.iter().map(|entry| (*entry.key(), entry.value().clone())).collect();
        series.sort_unstable_by_key(|(labels, _)| *labels);
        let mut out = Text::default();
        out.family(
            "apiserver_request_total",
            "counter",
            "Requests by what they asked for and the code they were answered with.",
        );
        for (labels, series) in &series {
            for (code, count) in series.codes().iter() {
                out.line("", &format!("{},code=\"{code}\"", labels.with_dry_run()), count);
            }
        }
        out.histograms(
            "apiserver_request_duration_seconds",
            "Seconds from the arrival of a request until its answer was handed over.",
            series.iter().map(|(labels, series)| (labels.with_dry_run(), &series.durations)),
        );
        out.histograms(
            "apiserver_response_sizes",
            "Bytes of answers to reads.",
            series.iter().filter(|(l, _)| matches!(l.verb, "GET" | "LIST")).map(|(l, s)| (l.plain(), &s.sizes)),
        );
        out.family("apiserver_current_inflight_requests", "gauge", "Requests that run, watches excluded.");
        for (kind, number) in ["readOnly", "mutating"].into_iter().zip(&self.in_flight) {
            out.line("", &format!("request_kind=\"{kind}\""), number.load(Relaxed));
        }
        out.family("apiserver_longrunning_requests", "gauge", "Watches that run.");
        let watches = series.iter().filter(|(labels, _)| labels.verb == "WATCH");
        for (labels, Series { running, .. }) in watches.map(|(labels, series)| (labels, &**series)) {
            out.line("", &labels.plain(), running.load(Relaxed));
        }
        out.family("apiserver_watch_events_total", "counter", "Events that watches were sent.");
        let mut events: Vec<_> = self.events.iter().map(|e| (*e.key(), e.value().load(Relaxed))).collect();
        events.sort_unstable();
        for ([group, version, resource], count) in events {
            out.line("", &format!("group=\"{group}\",version=\"{version}\",resource=\"{resource}\""), count);
        }
        out.objects(objects);
        out.0
    }
}

impl Labels {
    fn plain(&self) -> String {
        let Self { verb, group, version, resource, subresource, scope, .. } = self;
        format!(
            "verb=\"{verb}\",group=\"{group}\",version=\"{version}\",resource=\"{resource}\",subresource=\"{subresource}\",\
             scope=\"{scope}\""
        )
    }

    fn with_dry_run(&self) -> String {
        format!("{},dry_run=\"{}\"", self.plain(), if self.dry_run { "All" } else { "" })
    }
}

#[derive(Default)]
struct Text(String, &'static str);

impl Text {
    /// Begins a family; the lines that follow are of it.
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.1 = name;
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn line(&mut self, suffix: &str, labels: &str, value: impl std::fmt::Display) {
        let name = self.1;
        self.push(format_args!("{name}{suffix}{{{labels}}} {value}\n"));
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("a String takes every write");
    }

    fn histograms<'a>(
        &mut self,
        name: &'static str,
        help: &str,
        series: impl Iterator<Item = (String, &'a Histogram)>,
    ) {
        self.family(name, "histogram", help);
        for (labels, histogram) in series {
            let (counts, sum) = histogram.read();
            let bounds = histogram.bounds().iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            let mut total = 0;
            for (bound, count) in bounds.zip(counts) {
                total += count;
                self.line("_bucket", &format!("{labels},le=\"{bound}\""), total);
            }
            self.line("_sum", &labels, sum);
            self.line("_count", &labels, total);
        }
    }

    /// Under the name of now, and under the one before it.
    fn objects(&mut self, objects: &[Objects]) {
        self.family("apiserver_resource_objects", "gauge", "Objects that are stored, in all logical clusters.");
        for (group, resource, count) in objects {
            self.line("", &format!("group=\"{group}\",resource=\"{resource}\""), count);
        }
        self.family(
            "apiserver_storage_objects",
            "gauge",
            "The same as apiserver_resource_objects, as it was called before.",
        );
        for (group, resource, count) in objects {
            let dot = if group.is_empty() { "" } else { "." };
            self.line("", &format!("resource=\"{resource}{dot}{group}\""), count);
        }
    }
}
