//! `fairgate simulate`: a workload file on the scheduler of production, in virtual time.

use std::{
    cmp::Reverse,
    fmt::{self, Write as _},
    io::Write as _,
    path::Path,
};

use anyhow::Context;
use config::FairnessConfig;
use fairness::{
    scheduler::Tuning,
    sim::{Figures, Report, Scenario, run, run_apf},
};
use serde_json::json;

use crate::{
    Failure,
    cli::{self, Mode},
};

/// Rows of workspaces and levels in the table; JSON has all of them.
const ROWS: usize = 64;

/// Plays the workload and prints what everybody got.
pub(crate) fn simulate(args: &cli::Simulate) -> Result<(), Failure> {
    let fairness = args.config.as_deref().map(FairnessConfig::load).transpose().map_err(Failure::config)?;
    for warning in fairness.iter().flat_map(|f| &f.warnings) {
        tracing::warn!("{warning}");
    }
    let mut scenario = Scenario::load(&args.workload, fairness.as_ref()).map_err(Failure::config)?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    let (mode, report) = match args.mode {
        Mode::Fairgate => ("fairgate", run(&scenario, Tuning::default(), |_, _| {})),
        Mode::Apf => ("apf", run_apf(&scenario)),
    };
    let report = report.map_err(|e| Failure::Usage(e.into()))?;
    let json = json!({ "workload": scenario.name, "mode": mode, "seed": scenario.seed, "report": report });
    let json = format!("{json:#}\n");
    let mut out = std::io::stdout().lock();
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => out.write_all(json.as_bytes())?,
        path => {
            if let Some(path) = path {
                std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
            }
            let mut table = String::new();
            render(&scenario, mode, &report, &mut table)?;
            out.write_all(table.as_bytes())?;
        }
    }
    Ok(())
}

/// The report for people.
fn render(scenario: &Scenario, mode: &str, report: &Report, to: &mut String) -> fmt::Result {
    let Scenario { name, seats, end_s, warmup_s, seed, .. } = scenario;
    writeln!(to, "workload {name}: {seats} seats, {end_s} s of which {warmup_s} s warm-up, mode {mode}, seed {seed}")?;
    write!(to, "use of the shard {:.1} %", report.use_of_shard * 100.0)?;
    let figures = [
        ("Jain's index", report.jain),
        ("smallest in a window", report.jain_min_window),
        ("seconds until reached", report.reach_s),
    ];
    for (what, value) in figures {
        if let Some(value) = value {
            write!(to, "; {what} {value:.4}")?;
        }
    }
    writeln!(to)?;
    table("group", report.groups.iter(), to)?;
    if report.workspaces.len() > report.groups.len() || !report.groups.keys().eq(report.workspaces.keys()) {
        table("workspace", report.workspaces.iter(), to)?;
    }
    let several = report.levels.len() > report.workspaces.len();
    if several { table("workspace/level", report.levels.iter(), to) } else { Ok(()) }
}

/// One row each; those that waited longest when there are too many.
fn table<'a>(of: &str, rows: impl Iterator<Item = (&'a String, &'a Figures)>, to: &mut String) -> fmt::Result {
    let mut rows: Vec<_> = rows.filter(|(_, f)| f.arrived > 0 || f.seats > 0.0).collect();
    let left_out = rows.len().saturating_sub(ROWS);
    if left_out > 0 {
        rows.sort_by_key(|(_, f)| Reverse((f.p99_wait_s * 1e9) as u64));
        rows.truncate(ROWS);
    }
    let wide = rows.iter().map(|(name, _)| name.chars().count()).chain([of.len()]).max().unwrap_or_default();
    writeln!(
        to,
        "\n{of:<wide$} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>11} {:>8} {:>9}",
        "seats", "p50 s", "p99 s", "max s", "arrived", "started", "queue-full", "concurrency", "time-out", "cancelled"
    )?;
    for (name, f) in rows {
        let r = f.rejected;
        writeln!(
            to,
            "{name:<wide$} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9} {:>9} {:>10} {:>11} {:>8} {:>9}",
            f.seats,
            f.p50_wait_s,
            f.p99_wait_s,
            f.max_wait_s,
            f.arrived,
            f.started,
            r.queue_full,
            r.concurrency_limit,
            r.time_out,
            r.cancelled
        )?;
    }
    if left_out > 0 {
        writeln!(to, "{left_out} more, which waited less: --json has them")?;
    }
    Ok(())
}
