//! The scenarios of `tests/vectors/scheduler`: what the scheduler gives to whom, against recorded ranges.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use fairness::{
    scheduler::{Shard, Tuning},
    sim::{Report, Scenario, run},
};
use serde_json::Value;

fn directory() -> String {
    format!("{}/../tests/vectors/scheduler", env!("CARGO_MANIFEST_DIR"))
}

fn load(name: &str) -> (Scenario, Value) {
    let path = format!("{}/{name}.json", directory());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut file: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
    let scenario = serde_json::from_value(file["scenario"].take()).unwrap_or_else(|e| panic!("{path}: {e}"));
    (scenario, file["expect"].take())
}

/// The dials under which the ranges were recorded.
fn tuning() -> Tuning {
    Tuning { floor_always: false, ..Tuning::default() }
}

/// Law 1 at each step, law 6 at some.
fn check() -> impl FnMut(u64, &Shard) {
    let mut steps = 0_u64;
    move |now, shard| {
        let core = shard.core();
        let seats = core.spec(core.root()).maximum;
        assert!(core.in_use(core.root()) <= seats, "{} of {seats} seats used at {now}", core.in_use(core.root()));
        steps += 1;
        if steps.is_multiple_of(50_000) {
            core.verify().unwrap();
        }
    }
}

/// What is outside its range, one line each.
fn outside(expect: &Value, report: &Report) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |what: &str, range: &Value, value: f64| {
        let (Some(low), Some(high)) = (range[0].as_f64(), range[1].as_f64()) else { panic!("{what}: {range}") };
        // Recorded figures are rounded to a thousandth.
        if !(low - 0.0005..=high + 0.0005).contains(&value) {
            wrong.push(format!("{what} is {value:.4}, want {low}..={high}"));
        }
    };
    for (what, range) in expect.as_object().expect("an object") {
        match what.as_str() {
            "use_of_shard" => compare(what, range, report.use_of_shard),
            "jain_min_window" => compare(what, range, report.jain_min_window.unwrap_or(f64::NAN)),
            "lag_range_seat_s" => compare(what, range, report.lag_range_seat_s.unwrap_or(f64::NAN)),
            "reach_s" => compare(what, range, report.reach_s.unwrap_or(f64::NAN)),
            "level_seats" => {
                for (level, range) in range.as_object().expect("an object") {
                    compare(level, range, report.levels[level].seats);
                }
            }
            "level_p99_wait_s" => panic!("no scenario here has it"),
            "groups" => {
                for (name, ranges) in range.as_object().expect("an object") {
                    let group = &report.groups[name];
                    for (what, range) in ranges.as_object().expect("an object") {
                        let value = match what.as_str() {
                            "seats" => group.seats,
                            "p50_wait_s" => group.p50_wait_s,
                            "p99_wait_s" => group.p99_wait_s,
                            _ => panic!("unknown figure {what}"),
                        };
                        compare(&format!("{name} {what}"), range, value);
                    }
                }
            }
            _ => panic!("unknown figure {what}"),
        }
    }
    wrong
}

/// Figures that differ on purpose.
const DIFFERENT: [(&str, &str); 1] = [
    // A wide head counts as passed only when somebody was started in its stead, not at each look: it gets
    // 4.2 of its share of 4.97 seats, where the prototype gave 3.8, and the shard is no less used.
    ("f2-wide-slow", "wide seats is 4."),
];

fn play(name: &str) {
    let (scenario, expect) = load(name);
    let report = run(&scenario, tuning(), check()).unwrap();
    let mut wrong = outside(&expect, &report);
    for (_, figure) in DIFFERENT.iter().filter(|(scenario, _)| *scenario == name) {
        let before = wrong.len();
        wrong.retain(|line| !line.starts_with(figure));
        assert!(wrong.len() < before, "{name}: {figure} is in its range now");
    }
    assert!(wrong.is_empty(), "{name}:\n{}\n{report:#?}", wrong.join("\n"));
}

macro_rules! scenarios {
    ($($test:ident: $file:literal,)*) => {
        $(#[test] fn $test() { play($file); })*

        /// No file is left out in silence.
        #[test]
        fn every_file_is_played() {
            let mut there: Vec<String> = std::fs::read_dir(directory())
                .unwrap()
                .filter_map(|file| file.unwrap().file_name().to_str()?.strip_suffix(".json").map(String::from))
                .collect();
            there.sort();
            assert_eq!(there, [$($file),*]);
        }
    };
}

scenarios! {
    a1_equal_exp: "a1-equal-exp",
    a3_bimodal_60s: "a3-bimodal-60s",
    a4_many_few_seats: "a4-many-few-seats",
    b1_weights: "b1-weights",
    b2_weights_1_50: "b2-weights-1-50",
    c1_hog_60s: "c1-hog-60s",
    c3_hog_fast: "c3-hog-fast",
    c5_fast_then_slow: "c5-fast-then-slow",
    d2_oscillate: "d2-oscillate",
    e1_hog_vs_999: "e1-hog-vs-999",
    f1_wide: "f1-wide",
    f2_wide_slow: "f2-wide-slow",
    g1_sybil_flows: "g1-sybil-flows",
    h1_kcp1271_borrow_off: "h1-kcp1271-borrow-off",
    h1_kcp1271_borrow_on: "h1-kcp1271-borrow-on",
    i1_reconf_storm: "i1-reconf-storm",
    j1_est_10x: "j1-est-10x",
    k1_burst_silence: "k1-burst-silence",
    k3_only_wide: "k3-only-wide",
    k4_cancel_early: "k4-cancel-early",
    k5_timeouts: "k5-timeouts",
    k7_one_at_a_time: "k7-one-at-a-time",
    k9_mixed_hold: "k9-mixed-hold",
    m1_exempt: "m1-exempt",
    o1_reserve: "o1-reserve",
    o2_reserve_hard: "o2-reserve-hard",
    p1_two_phase_hold: "p1-two-phase-hold",
    q1_come_and_go: "q1-come-and-go",
}

/// Law 7 over a whole run.
#[test]
fn equal_runs_decide_equally() {
    let (scenario, _) = load("f1-wide");
    let once = run(&scenario, tuning(), |_, _| {}).unwrap();
    assert_eq!(once, run(&scenario, tuning(), |_, _| {}).unwrap());
    let other = Scenario { seed: scenario.seed + 1, ..scenario };
    assert_ne!(once.decisions, run(&other, tuning(), |_, _| {}).unwrap().decisions);
}
