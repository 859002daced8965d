//! The scenarios of `tests/vectors/scheduler` on the priority and fairness of Kubernetes, against the figures
//! that a model in another language gave (scheduler.md 9.1, 9.3, 9.5; column APF-L).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use fairness::{
    scheduler::Tuning,
    sim::{Report, Scenario, run, run_apf},
};
use serde_json::Value;

fn load(name: &str) -> Scenario {
    let path = format!("{}/../tests/vectors/scheduler/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut file: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_value(file["scenario"].take()).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn play(name: &str) -> Report {
    run_apf(&load(name)).unwrap()
}

/// Random numbers differ from those of the model.
fn near(got: f64, want: f64) -> bool {
    (got - want).abs() <= 0.006
}

#[test]
fn jain_index_and_use_are_those_of_the_model() {
    // Above 1: more seats handed out than there are, since upstream rounds each level's up.
    for (name, jain, used) in
        [("a1-equal-exp", 1.0, 1.2), ("b1-weights", 0.91, 1.07), ("f1-wide", 0.893, 1.25), ("g1-sybil-flows", 1.0, 1.0)]
    {
        let report = play(name);
        let got = (report.jain_min_window.unwrap(), report.use_of_shard);
        assert!(near(got.0, jain) && near(got.1, used), "{name}: {got:?}, want {jain} and {used}");
    }
}

#[test]
fn newcomers_do_not_wait_and_a_quarter_of_the_seats_idles() {
    for (name, used) in [("c1-hog-60s", 0.754), ("c3-hog-fast", 0.769)] {
        let report = play(name);
        let newcomer = &report.groups["new"];
        assert_eq!((newcomer.p50_wait_s, newcomer.p99_wait_s), (0.0, 0.0), "{name}");
        assert!(near(report.use_of_shard, used), "{name}: {}", report.use_of_shard);
    }
}

#[test]
fn a_wide_adversary_gets_four_times_its_share_there_and_less_than_it_here() {
    let scenario = load("k3-only-wide");
    let ours = run(&scenario, Tuning::default(), |_, _| {}).unwrap();
    let theirs = run_apf(&scenario).unwrap();
    assert!(near(theirs.groups["adv"].seats, 8.0), "{:?}", theirs.groups);
    assert!(ours.groups["adv"].seats <= 2.0, "{:?}", ours.groups);
}

#[test]
fn equal_runs_decide_equally() {
    assert_eq!(play("f1-wide"), play("f1-wide"));
}
