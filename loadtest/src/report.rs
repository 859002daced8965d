//! The result: a table for people, JSON for programs, a verdict for scripts.

use std::fmt::Write;

use serde::Serialize;

use crate::{reload::Reloads, stats::Summary};

/// Share of a victim's requests that may be dropped before the run counts as failed.
const DROPPED_MAX: f64 = 0.001;

/// The whole result.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    /// What was done, in one line.
    pub(crate) setting: String,
    pub(crate) runs: Vec<Run>,
    pub(crate) ratio_limit: Option<f64>,
    /// Whether each request must have an answer, and that be 2xx or 429.
    pub(crate) assert_answers: bool,
    /// What stands against success; empty when all is well.
    pub(crate) failures: Vec<String>,
    /// Workspaces that could not be removed.
    pub(crate) residue: Vec<String>,
}

/// Both phases against one server.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Run {
    /// Such as `fairness on`.
    pub(crate) title: String,
    /// The victims alone.
    pub(crate) baseline: Vec<Summary>,
    /// The victims while the flood lasts, and the flood behind them.
    pub(crate) flooded: Vec<Summary>,
    /// The same as `flooded` by level: all victims, then the flood.
    pub(crate) levels: Vec<Summary>,
    /// What became of the rewritten configurations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reloads: Option<Reloads>,
    /// p99 with the flood over p99 alone, one per victim.
    pub(crate) ratios: Vec<f64>,
    /// Resident memory of a server that was started for the run, in bytes.
    pub(crate) memory_before: Option<u64>,
    pub(crate) memory_after: Option<u64>,
}

/// p99 with the flood over p99 alone, for each victim of the baseline. Infinite when nothing was served any more.
pub(crate) fn ratios(baseline: &[Summary], flooded: &[Summary]) -> Vec<f64> {
    let ratio = |(alone, with): (&Summary, &Summary)| match (alone.ok, with.ok) {
        (0, _) | (_, 0) => f64::INFINITY,
        _ => with.response.p99_us as f64 / alone.response.p99_us as f64,
    };
    baseline.iter().zip(flooded).map(ratio).collect()
}

impl Report {
    /// Fills in what stands against success. Only the first run is judged: the other is there for comparison.
    pub(crate) fn judge(&mut self) {
        let mut failures = Vec::new();
        let Some(run) = self.runs.first() else { return };
        let phases = [("alone", &run.baseline), ("with the flood", &run.flooded)];
        for (phase, summary) in phases.iter().flat_map(|(phase, of)| of.iter().map(move |s| (*phase, s))) {
            if summary.dropped as f64 > DROPPED_MAX * summary.offered as f64 {
                failures.push(format!(
                    "{} {phase}: {} of {} requests were dropped: the schedule could not be kept with so few \
                     connections, or the server did not answer",
                    summary.tenant, summary.dropped, summary.offered
                ));
            }
            if self.assert_answers && (summary.other > 0 || summary.dropped > 0) {
                failures.push(format!(
                    "{} {phase}: of {} requests {} had another answer than 2xx or 429, and {} had none",
                    summary.tenant, summary.offered, summary.other, summary.dropped
                ));
            }
        }
        failures.extend(run.reloads.as_ref().and_then(Reloads::failure));
        let limit = self.ratio_limit.unwrap_or(f64::INFINITY);
        for (summary, ratio) in run.baseline.iter().zip(&run.ratios) {
            if self.ratio_limit.is_some() && (*ratio > limit || !ratio.is_finite()) {
                failures.push(format!("{}: p99 grew {ratio:.2} times, the limit is {limit}", summary.tenant));
            }
        }
        failures.extend(self.residue.iter().map(|name| format!("workspace {name} could not be removed")));
        self.failures = failures;
    }

    /// The table and the verdict.
    pub(crate) fn table(&self) -> String {
        let mut out = format!("{}\n\n", self.setting);
        let width = self.width();
        line(&mut out, width, "", self.runs.iter().map(|run| format!("  {:<51}", run.title)).collect());
        let header = format!("{:>8}{:>8}{:>7}{:>6}{:>8}{:>8}{:>8}", "sent", "ok", "429", "other", "p50", "p99", "max");
        line(&mut out, width, "tenant", self.runs.iter().map(|_| header.clone()).collect());
        self.section(&mut out, "victims alone", |run| &run.baseline);
        self.section(&mut out, "with the flood", |run| &run.flooded);
        if self.runs.iter().any(|run| !run.levels.is_empty()) {
            self.section(&mut out, "with the flood, by level", |run| &run.levels);
        }
        out.push_str("p99 with the flood / p99 alone\n");
        for (n, summary) in self.runs.iter().take(1).flat_map(|run| run.baseline.iter().enumerate()) {
            let cell = |run: &Run| format!("{:>45}{:>8}", times(run.ratios.get(n).copied()), "");
            line(&mut out, width, &format!("  {}", summary.tenant), self.runs.iter().map(cell).collect());
        }
        out.push_str("\nVictims: open loop, latency counts from the time a request was due. Flood: closed loop.\n");
        self.notes(&mut out);
        self.verdict(&mut out);
        out
    }

    /// Of the first column.
    fn width(&self) -> usize {
        let levels = self.runs.iter().flat_map(|run| &run.levels);
        levels.map(|s| s.tenant.len() + 3).chain([10]).max().unwrap_or_default()
    }

    /// One phase, a line per tenant.
    fn section(&self, out: &mut String, title: &str, of: fn(&Run) -> &[Summary]) {
        let _ = writeln!(out, "{title}");
        for (n, summary) in self.runs.iter().take(1).flat_map(|run| of(run).iter().enumerate()) {
            let cells = self.runs.iter().map(|run| of(run).get(n).map(cells).unwrap_or_default());
            line(out, self.width(), &format!("  {}", summary.tenant), cells.collect());
        }
    }

    fn notes(&self, out: &mut String) {
        for run in &self.runs {
            if let (Some(before), Some(after)) = (run.memory_before, run.memory_after) {
                let _ =
                    writeln!(out, "{}: {} MiB of memory before, {} MiB after", run.title, before >> 20, after >> 20);
            }
            if let Some(reloads) = &run.reloads {
                let _ = writeln!(out, "{}: {reloads}", run.title);
            }
            for (summary, phase) in
                run.baseline.iter().map(|s| (s, "alone")).chain(run.flooded.iter().map(|s| (s, "with the flood")))
            {
                let name = format!("{}, {} {phase}", run.title, summary.tenant);
                if summary.late > 0 {
                    let _ = writeln!(out, "note: {name}: {} requests were sent late", summary.late);
                }
                if summary.dropped > 0 {
                    let _ = writeln!(out, "note: {name}: {} requests were dropped", summary.dropped);
                }
                if let Some(example) = &summary.example {
                    let _ = writeln!(out, "note: {name}: first of the others: {example}");
                }
            }
        }
    }

    fn verdict(&self, out: &mut String) {
        for run in &self.runs {
            let worst = run.ratios.iter().copied().reduce(f64::max);
            let _ = writeln!(out, "{}: the victims' p99 grew up to {} times.", run.title, times(worst));
        }
        for failure in &self.failures {
            let _ = writeln!(out, "FAILED: {failure}");
        }
        if self.failures.is_empty() {
            let limit = self.ratio_limit.map(|limit| format!(" (limit {limit})")).unwrap_or_default();
            let _ = writeln!(out, "PASSED{limit}");
        }
    }
}

/// A line of the table: the first column, then one cell per run.
fn line(out: &mut String, width: usize, first: &str, cells: Vec<String>) {
    let _ = writeln!(out, "{}", format!("{first:<width$}{}", cells.join(" |")).trim_end());
}

fn times(ratio: Option<f64>) -> String {
    match ratio {
        None => String::new(),
        Some(ratio) if ratio < 100.0 => format!("{ratio:.2}"),
        Some(ratio) => format!("{ratio:.1}"),
    }
}

/// One tenant's cells of one run, 53 characters.
fn cells(s: &Summary) -> String {
    let [p50, p99, max] = [s.response.p50_us, s.response.p99_us, s.response.max_us].map(time);
    format!("{:>8}{:>8}{:>7}{:>6}{p50:>8}{p99:>8}{max:>8}", s.sent, s.ok, s.rejections, s.other)
}

/// Microseconds with three digits.
fn time(us: u64) -> String {
    match us {
        0 => "-".into(),
        1..10_000 => format!("{:.2}ms", us as f64 / 1e3),
        10_000..100_000 => format!("{:.1}ms", us as f64 / 1e3),
        100_000..1_000_000 => format!("{:.0}ms", us as f64 / 1e3),
        _ => format!("{:.2}s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::Stats;

    fn summary(tenant: &str, offered: u64, ok: u64, ms: u64) -> Summary {
        let mut stats = Stats::default();
        (stats.offered, stats.sent) = (offered, offered);
        (0..ok).for_each(|_| stats.succeeded(Duration::from_millis(ms), Duration::from_millis(ms)));
        stats.summary(tenant)
    }

    fn run(title: &str, alone_ms: u64, flooded_ms: u64) -> Run {
        let baseline = vec![summary("victim-1", 100, 100, alone_ms)];
        let flooded = vec![summary("victim-1", 100, 100, flooded_ms), summary("flood", 9000, 9000, 80)];
        let ratios = ratios(&baseline, &flooded);
        let (levels, reloads) = (Vec::new(), None);
        Run { title: title.into(), baseline, flooded, levels, reloads, ratios, memory_before: None, memory_after: None }
    }

    fn report(runs: Vec<Run>, ratio_limit: Option<f64>) -> Report {
        let mut report = Report {
            scenario: "noisy-neighbour",
            setting: "a setting".into(),
            runs,
            ratio_limit,
            assert_answers: false,
            failures: Vec::new(),
            residue: Vec::new(),
        };
        report.judge();
        report
    }

    #[test]
    fn only_the_run_with_fairness_is_judged() {
        let runs = || vec![run("fairness on", 2, 5), run("fairness off", 2, 300)];
        assert!(report(runs(), None).failures.is_empty());
        assert!(report(runs(), Some(2.51)).failures.is_empty());
        let failed = report(runs(), Some(2.4));
        assert_eq!(failed.failures.len(), 1, "{:?}", failed.failures);
        assert!(
            failed.table().contains("FAILED: victim-1: p99 grew 2.50 times, the limit is 2.4"),
            "{}",
            failed.table()
        );
    }

    #[test]
    fn a_victim_that_is_not_served_at_all_fails_any_limit() {
        let mut run = run("fairness on", 2, 5);
        run.flooded[0] = summary("victim-1", 100, 0, 1);
        run.ratios = ratios(&run.baseline, &run.flooded);
        assert!(run.ratios[0].is_infinite());
        assert_eq!(report(vec![run], Some(1000.0)).failures.len(), 2, "the ratio and the dropped requests");
    }

    #[test]
    fn dropped_requests_fail_the_run_above_a_thousandth() {
        let with = |dropped: u64| {
            let mut run = run("fairness on", 2, 2);
            run.baseline[0] = summary("victim-1", 10_000, 10_000 - dropped, 2);
            report(vec![run], None).failures.len()
        };
        assert_eq!((with(10), with(11)), (0, 1));
    }

    #[test]
    fn each_missing_answer_counts_when_answers_are_asserted() {
        let with = |ok: u64, assert_answers: bool| {
            let mut run = run("fairness on", 2, 2);
            run.flooded[1] = summary("flood", 10_000, ok, 2);
            let mut report = Report { assert_answers, ..report(vec![run], None) };
            report.judge();
            report.failures.len()
        };
        assert_eq!((with(10_000, true), with(9_999, true), with(9_999, false)), (0, 1, 0));
    }

    #[test]
    fn reloads_that_are_not_as_the_contents_are_fail_the_run() {
        let with = |in_force, refused| {
            let reloads = Some(Reloads { written: 10, faulty: 2, in_force, refused });
            report(vec![Run { reloads, ..run("fairness on", 2, 2) }], None).failures.len()
        };
        assert_eq!((with(8, 2), with(7, 1), with(0, 2), with(9, 2), with(8, 3)), (0, 0, 1, 1, 1));
    }

    #[test]
    fn the_table_has_the_runs_side_by_side() {
        let table = report(vec![run("fairness on", 2, 5), run("fairness off", 2, 1300)], Some(3.0)).table();
        for wanted in ["fairness on", "fairness off", "victims alone", "with the flood", "PASSED (limit 3)", "650.2"] {
            assert!(table.contains(wanted), "{wanted}\n{table}");
        }
        let row = table.lines().filter(|line| line.starts_with("  victim-1")).nth(1).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "victim-1", "100", "100", "0", "0", "5.00ms", "5.00ms", "5.00ms", "|", "100", "100", "0", "0", "1.30s",
                "1.30s", "1.30s"
            ]
        );
        assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    }

    #[test]
    fn json_has_what_the_table_has() {
        let json = serde_json::to_value(report(vec![run("fairness on", 2, 5)], Some(3.0))).unwrap();
        assert_eq!(json["runs"][0]["flooded"][1]["tenant"], "flood");
        assert_eq!(json["runs"][0]["baseline"][0]["ok"], 100);
        assert_eq!(json["runs"][0]["ratios"][0].as_f64().map(|ratio| (ratio * 10.0).round()), Some(25.0));
    }
}
