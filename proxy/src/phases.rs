//! Histograms of the phases of requests, and counts of answers, under labels that are bounded.
//!
//! # Costs
//! Each worker has its own, on cache lines that no other thread writes. A scrape adds the workers up. 150 KiB of counters
//! per worker.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    exposition::Text,
    histogram::Histogram,
    trail::{OUTCOMES, Outcome, Trail, VERBS},
};

const US: u64 = 1_000;
const MS: u64 = 1000 * US;
const S: u64 = 1000 * MS;
/// Those of upstream's `apiserver_request_duration_seconds`, and three more below: a gateway is faster than its shards.
const PHASE_BOUNDS: [u64; 26] = [
    500 * US,
    MS,
    2500 * US,
    5 * MS,
    25 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    400 * MS,
    600 * MS,
    800 * MS,
    S,
    1250 * MS,
    1500 * MS,
    2 * S,
    3 * S,
    4 * S,
    5 * S,
    6 * S,
    8 * S,
    10 * S,
    15 * S,
    20 * S,
    30 * S,
    45 * S,
    60 * S,
];
/// Up to a day. Kubernetes ends watches after 30 to 60 minutes.
const STREAM_BOUNDS: [u64; 11] = {
    const MIN: u64 = 60 * S;
    [S, 10 * S, MIN, 5 * MIN, 15 * MIN, 30 * MIN, 45 * MIN, 60 * MIN, 120 * MIN, 480 * MIN, 1440 * MIN]
};
const PHASES: [&str; 3] = ["wait", "first_byte", "total"];
/// Status codes have three digits.
const CODES: usize = 900;

/// By outcome.
type Outcomes = [Histogram; OUTCOMES.len()];

fn verbs(bounds: &'static [u64]) -> Box<[Outcomes; VERBS.len()]> {
    Box::new(array::from_fn(|_| array::from_fn(|_| Histogram::new(bounds))))
}

/// The counts of one worker.
pub(crate) struct Phases {
    phases: [Box<[Outcomes; VERBS.len()]>; PHASES.len()],
    streams: Box<[Outcomes; VERBS.len()]>,
    /// By verb and code.
    answers: Box<[AtomicU64]>,
}

impl Phases {
    pub(crate) fn new() -> Self {
        Self {
            phases: array::from_fn(|_| verbs(&PHASE_BOUNDS)),
            streams: verbs(&STREAM_BOUNDS),
            answers: (0..VERBS.len() * CODES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts the answer of a request that has one, and of a stream, whose end may be hours away, what came before.
    pub(crate) fn answered(&self, trail: &Trail) {
        let Some(code) = trail.code.and_then(|code| usize::from(code.as_u16()).checked_sub(100)) else { return };
        if let Some(count) = self.answers.get(usize::from(trail.verb) * CODES + code) {
            count.fetch_add(1, Relaxed);
        }
        if trail.is_open_stream() {
            let outcome = if trail.outcome == Outcome::Cancelled { Outcome::Served } else { trail.outcome };
            self.begin(trail, outcome, trail.arrived_ns);
        }
    }

    /// Observes a request that has ended. Probes are not: there are many, and they are faster than anything else.
    pub(crate) fn ended(&self, trail: &Trail) {
        if trail.is_probe {
            return;
        }
        let now = trail.ended_ns;
        let took = now.saturating_sub(trail.arrived_ns);
        if !trail.is_open_stream() {
            self.begin(trail, trail.outcome, now);
            self.observe(2, trail, trail.outcome, took);
        } else if let Some(histogram) =
            self.streams.get(usize::from(trail.verb)).and_then(|o| o.get(trail.outcome.number()))
        {
            histogram.observe(took);
        }
    }

    /// What comes before the answer.
    fn begin(&self, trail: &Trail, outcome: Outcome, now: u64) {
        if let Some(ns) = trail.wait_ns(now) {
            self.observe(0, trail, outcome, ns);
        }
        if let Some(ns) = trail.first_byte_ns() {
            self.observe(1, trail, outcome, ns);
        }
    }

    fn observe(&self, phase: usize, trail: &Trail, outcome: Outcome, ns: u64) {
        let verbs = self.phases.get(phase).and_then(|verbs| verbs.get(usize::from(trail.verb)));
        if let Some(histogram) = verbs.and_then(|outcomes| outcomes.get(outcome.number())) {
            histogram.observe(ns);
        }
    }
}

/// Writes what all workers have counted.
pub(crate) fn render(out: &mut Text, workers: &[&Phases]) {
    out.head("apiserver_request_total");
    for (v, verb) in VERBS.iter().enumerate() {
        for code in 0..CODES {
            let count = |p: &&Phases| p.answers.get(v * CODES + code).map_or(0, |count| count.load(Relaxed));
            let count: u64 = workers.iter().map(count).sum();
            if count > 0 {
                let code = (code + 100).to_string();
                out.value("apiserver_request_total", &[("code", &code), ("verb", verb)], count);
            }
        }
    }
    let name = "fairgate_request_phase_duration_seconds";
    out.head(name);
    for (p, phase) in PHASES.iter().enumerate() {
        let all: Vec<_> = workers.iter().filter_map(|w| Some(&**w.phases.get(p)?)).collect();
        histograms(out, name, &[("phase", phase)], &PHASE_BOUNDS, &all);
    }
    let name = "fairgate_stream_duration_seconds";
    out.head(name);
    let all: Vec<_> = workers.iter().map(|w| &*w.streams).collect();
    histograms(out, name, &[], &STREAM_BOUNDS, &all);
}

/// Writes those that have observed something.
fn histograms(
    out: &mut Text,
    name: &str,
    labels: &[(&str, &str)],
    bounds: &[u64],
    workers: &[&[Outcomes; VERBS.len()]],
) {
    let bounds: Vec<_> = bounds.iter().map(|ns| seconds(*ns)).collect();
    for (v, verb) in VERBS.iter().enumerate() {
        for (o, outcome) in OUTCOMES.iter().enumerate() {
            let mut counts = vec![0; bounds.len() + 1];
            let each = workers.iter().filter_map(|w| w.get(v)?.get(o));
            let sum_ns: u64 = each.map(|histogram| histogram.add_to(&mut counts)).sum();
            if counts.iter().any(|count| *count > 0) {
                let labels = [labels, &[("verb", *verb), ("outcome", *outcome)]].concat();
                out.histogram(name, &labels, &bounds, &counts, seconds(sum_ns));
            }
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn shown(phases: &Phases) -> String {
        let mut out = Text::default();
        render(&mut out, &[phases, &Phases::new()]);
        out.into()
    }

    #[test]
    fn a_stream_is_observed_when_it_begins_and_its_length_apart() {
        let phases = Phases::new();
        let mut trail = Trail::new(0);
        trail.classify(apiserver_api::Verb::Watch, true);
        (trail.queued_ns, trail.decided_ns, trail.sent_ns, trail.head_ns) = (Some(0), Some(MS), Some(MS), Some(3 * MS));
        trail.code = Some(StatusCode::OK);
        phases.answered(&trail);
        let text = shown(&phases);
        let labels = "verb=\"WATCH\",outcome=\"served\"";
        for want in [
            "apiserver_request_total{code=\"200\",verb=\"WATCH\"} 1".to_owned(),
            format!("fairgate_request_phase_duration_seconds_bucket{{phase=\"wait\",{labels},le=\"0.001\"}} 1"),
            format!("fairgate_request_phase_duration_seconds_sum{{phase=\"first_byte\",{labels}}} 0.002"),
        ] {
            assert!(text.contains(&want), "{want}: {text}");
        }
        assert!(!text.contains("stream_duration_seconds_count"), "it has not ended");
        trail.ended_ns = 3600 * S;
        phases.ended(&trail);
        let text = shown(&phases);
        let want = "fairgate_stream_duration_seconds_sum{verb=\"WATCH\",outcome=\"cancelled\"} 3600\n";
        assert!(text.contains(want) && !text.contains("phase=\"total\""), "{text}");
    }

    #[test]
    fn a_stream_that_was_refused_is_a_request_like_others() {
        for (code, is_open) in [(429, false), (502, false), (403, false), (200, true), (101, true)] {
            let phases = Phases::new();
            let mut trail = Trail::new(0);
            trail.classify(apiserver_api::Verb::Watch, false);
            (trail.queued_ns, trail.decided_ns) = (Some(0), Some(MS));
            trail.code = Some(StatusCode::from_u16(code).unwrap());
            trail.outcome = Outcome::Served;
            phases.answered(&trail);
            phases.ended(&trail);
            let text = shown(&phases);
            assert_eq!(text.contains("fairgate_stream_duration_seconds_count{"), is_open, "{code}: {text}");
            assert_eq!(
                text.contains("_count{phase=\"total\",verb=\"WATCH\",outcome=\"served\"} 1\n"),
                !is_open,
                "{code}"
            );
            assert!(
                text.contains("_count{phase=\"wait\",verb=\"WATCH\",outcome=\"served\"} 1\n"),
                "once: {code}: {text}"
            );
        }
    }

    #[test]
    fn a_probe_is_counted_and_not_timed() {
        let phases = Phases::new();
        let mut trail = Trail::new(0);
        trail.probe();
        trail.code = Some(StatusCode::OK);
        trail.outcome = Outcome::Served;
        phases.answered(&trail);
        phases.ended(&trail);
        let text = shown(&phases);
        assert!(text.contains("apiserver_request_total{code=\"200\",verb=\"GET\"} 1\n"), "{text}");
        assert!(!text.contains("phase=\""), "{text}");
    }

    #[test]
    fn who_leaves_its_queue_has_waited_until_then() {
        let phases = Phases::new();
        let mut trail = Trail::new(MS);
        trail.queued_ns = Some(2 * MS);
        trail.ended_ns = 10 * MS;
        phases.ended(&trail);
        let text = shown(&phases);
        let labels = "verb=\"other\",outcome=\"cancelled\"";
        assert!(text.contains(&format!("_sum{{phase=\"wait\",{labels}}} 0.008\n")), "{text}");
        assert!(text.contains(&format!("_sum{{phase=\"total\",{labels}}} 0.009\n")), "{text}");
        assert!(!text.contains("phase=\"first_byte\""), "{text}");
    }
}
