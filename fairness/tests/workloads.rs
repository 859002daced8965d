//! The workloads of `docs/workloads`: what docs/simulate.md says of them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use std::path::{Path, PathBuf};

use fairness::{
    scheduler::Tuning,
    sim::{Figures, Report, Scenario, run},
};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/workloads")
}

fn load(name: &str) -> Scenario {
    Scenario::load(&directory().join(format!("{name}.yaml")), None).unwrap_or_else(|error| panic!("{error}"))
}

fn play(scenario: &Scenario) -> Report {
    let seats = scenario.seats;
    run(scenario, Tuning::default(), |_, shard| {
        let core = shard.core();
        assert!(core.in_use(core.root()) <= seats);
    })
    .unwrap()
}

/// Nothing is lost: what came was started, rejected, or still waits.
fn accounted(figures: &Figures, waiting: u64) {
    let rejected = figures.rejected;
    let gone = rejected.queue_full + rejected.concurrency_limit + rejected.time_out + rejected.cancelled;
    let known = figures.started + gone;
    assert!(known <= figures.arrived && figures.arrived <= known + waiting, "{figures:?}");
}

#[test]
fn no_workload_is_left_out() {
    let mut there: Vec<String> = std::fs::read_dir(directory())
        .unwrap()
        .filter_map(|file| file.unwrap().file_name().to_str()?.strip_suffix(".yaml").map(String::from))
        .collect();
    there.sort();
    let tested = [
        "hog-and-999",
        "hour-of-10000",
        "kcp-1271",
        "kcp-1271-borrowing-off",
        "reload",
        "second-by-second",
        "slow-lists",
        "weights-1-to-50",
    ];
    assert_eq!(there, tested);
    for name in tested {
        assert_eq!(load(name).name, name);
    }
}

#[test]
fn a_hog_does_not_hurt_the_quiet() {
    let report = play(&Scenario { end_s: 40.0, ..load("hog-and-999") });
    let (quiet, hog) = (report.groups["quiet"], report.groups["hog"]);
    assert!(quiet.p99_wait_s < 0.05 && quiet.rejected.time_out == 0, "{quiet:?}");
    assert!(hog.seats > 80.0, "{hog:?}");
    accounted(&quiet, 999);
    accounted(&hog, 1000);
}

#[test]
fn weights_are_kept_within_a_per_cent() {
    let scenario = load("weights-1-to-50");
    let report = play(&scenario);
    let all: f64 = report.workspaces.values().map(|w| w.seats).sum();
    for workspace in &scenario.workspaces {
        let part = f64::from(workspace.weight.unwrap()) / 1275.0;
        let error = (report.workspaces[&workspace.name].seats / all / part - 1.0).abs();
        assert!(error < 0.01, "{}: {error}", workspace.name);
    }
    assert!(report.jain.unwrap() > 0.999, "{:?}", report.jain);
}

#[test]
fn a_newcomer_is_served_while_lists_fill_the_server() {
    let report = play(&load("slow-lists"));
    let newcomer = report.groups["newcomer"];
    assert_eq!(newcomer.rejected.time_out, 0, "{newcomer:?}");
    // At once, though every list that runs takes another half a minute on average.
    assert!(report.reach_s.unwrap() < 0.1, "{:?}", report.reach_s);
    assert!(newcomer.p99_wait_s < 1.0 && newcomer.max_wait_s < 2.0, "{newcomer:?}");
    assert!(newcomer.seats > 9.0, "its half: {newcomer:?}");
}

#[test]
fn demand_may_change_every_second() {
    let report = play(&load("second-by-second"));
    let steady: Vec<f64> = (0..5).map(|i| report.workspaces[&format!("steady{i}")].seats).collect();
    // Of 100 seats: a tenth while those who have just stopped sending still wait, which takes as long as they wait at
    // the end; for the rest of a second an eighth, or a seventh.
    let [three, two] = ["even", "odd"].map(|name| report.groups[name]);
    let both = |wait: f64| (2.0 * wait * 10.0 + (1.0 - wait) * (100.0 / 8.0 + 100.0 / 7.0)) / 2.0;
    let due = both((three.p50_wait_s + two.p50_wait_s) / 2.0);
    assert!((12.9..13.4).contains(&due), "{due}");
    assert!(steady.iter().all(|seats| (seats / due - 1.0).abs() < 0.02), "{steady:?}, not {due}");
    assert!(report.jain_min_window.unwrap() > 0.999, "{:?}", report.jain_min_window);
}

#[test]
fn each_workspace_of_kcp_1271_has_its_limits() {
    for (name, low, high) in [("kcp-1271", 50.19, 20.81), ("kcp-1271-borrowing-off", 41.0, 17.0)] {
        let report = play(&Scenario { end_s: 30.0, ..load(name) });
        for workspace in 1..=8 {
            let level = |level| report.levels[&format!("w{workspace}/{level}")].seats;
            let (got_low, got_high) = (level("workload-low"), level("workload-high"));
            // Within a seat of the table of kcp issue 1271.
            assert!((got_low - low).abs() < 1.0 && (got_high - high).abs() < 1.0, "{name}: {got_low} and {got_high}");
        }
    }
}

#[test]
fn a_reload_takes_effect_at_once_and_loses_nothing() {
    let report = play(&load("reload"));
    assert!(report.reach_s.unwrap() < 1.0, "{:?}", report.reach_s);
    for figures in report.groups.values() {
        assert_eq!(figures.rejected, Default::default());
        accounted(figures, 80);
    }
}

#[test]
fn ten_thousand_tenants() {
    let report = play(&Scenario { end_s: 90.0, ..load("hour-of-10000") });
    let tenants = report.groups["tenant"];
    assert!(tenants.p99_wait_s < 1.0 && tenants.rejected.time_out == 0, "{tenants:?}");
    assert!(report.use_of_shard > 0.9, "{}", report.use_of_shard);
}
