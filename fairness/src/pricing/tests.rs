use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::vectors::{self, number};

fn parse<'a>(method: &str, uri: &'a str) -> RequestInfo<'a> {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    RequestInfo::parse(method, path, query).unwrap()
}

/// The settings of one of the vectors' profiles.
fn options(profile: &Value) -> PricingOptions {
    let (config, features) = (&profile["config"], &profile["features"]);
    let seats = |field| number(config, field) as u32;
    PricingOptions {
        compat: Compat::Upstream,
        list_estimate: if features["sizeBasedListCostEstimate"] == true {
            ListEstimate::Size
        } else {
            ListEstimate::Count { objects_per_seat: config["objectsPerSeat"].as_f64().unwrap() }
        },
        watch_list: features["watchList"] == true,
        // They come from a server without a store behind its cache.
        consistent_list_from_cache: false,
        watch_events: config["mutatingEnabled"] == true,
        seats_min: seats("minimumSeats"),
        list_seats_max: seats("maximumListSeatsLimit"),
        mutating_seats_max: seats("maximumMutatingSeatsLimit"),
        watches_per_seat: config["watchesPerSeat"].as_f64().unwrap(),
        event_duration: Duration::from_nanos(number(config, "eventAdditionalDuration_ns") as u64),
        ..PricingOptions::DEFAULT
    }
}

/// What the vectors' object counts say of a resource.
fn counts(file: &Value, case: &Value) -> Counts {
    let known = file["objectCounts"].as_array().unwrap().iter().find(|c| c["groupResource"] == case["groupResource"]);
    let Some(known) = known else { return Counts::Unknown };
    let objects = number(known, "objectCount") as u64;
    let mean_bytes = number(known, "averageObjectSizeBytes") as u64;
    match number(known, "ageSeconds") {
        age if age >= number(file, "pruneAfterSeconds") => Counts::Unknown,
        age if age > number(file, "staleAfterSeconds") => Counts::Stale { objects, mean_bytes },
        _ => Counts::Fresh { objects, mean_bytes },
    }
}

fn each_case(mut check: impl FnMut(&Value, &PricingOptions, &RequestInfo<'_>, Counts, u32, u32)) -> usize {
    let file = vectors::load("work_estimator.json");
    let cases = file["cases"].as_array().unwrap();
    for case in cases {
        let profile = file["profiles"].as_array().unwrap().iter().find(|p| p["id"] == case["profile"]).unwrap();
        let info = parse(case["method"].as_str().unwrap(), case["uri"].as_str().unwrap());
        let (watches, level) = (number(case, "watchCount") as u32, number(case, "priorityLevelMaxSeats") as u32);
        check(case, &options(profile), &info, counts(&file, case), watches, level);
    }
    cases.len()
}

fn differs(case: &Value, cost: Cost) -> bool {
    i64::from(cost.initial_seats) != number(case, "initialSeats")
        || i64::from(cost.final_seats) != number(case, "finalSeats")
        || i64::from(cost.initial_seats.max(cost.final_seats)) != number(case, "maxSeats")
        || cost.additional_latency.as_nanos() as i64 != number(case, "additionalLatency_ns")
}

#[test]
fn upstream_prices_are_those_of_kubernetes() {
    let mut wrong = Vec::new();
    let cases = each_case(|case, options, info, counts, watches, level| {
        let cost = options.price(info, counts, watches, level);
        if differs(case, cost) {
            wrong.push(format!("{case}\n  {cost:?}"));
        }
    });
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(cases, 870);
}

/// What of the vectors our own rules change, and nothing else does.
#[test]
fn our_prices_differ_where_we_mean_it() {
    let mut differences = 0;
    let cases = each_case(|case, options, info, counts, watches, level| {
        let ours = PricingOptions { compat: Compat::Fairgate, ..options.clone() };
        if !differs(case, ours.price(info, counts, watches, level)) {
            return;
        }
        differences += 1;
        let query = ListOptions::parse(info.query).unwrap_or_default();
        let replays = info.verb == Verb::Watch && ours.replays(&query) && !options.replays(&query);
        let size_unknown = matches!(counts, Counts::Fresh { objects: 1.., mean_bytes: 0 });
        let reads = matches!(info.verb, Verb::List | Verb::Watch);
        let uncounted = reads && (size_unknown || !matches!(counts, Counts::Fresh { .. }));
        assert!(replays || uncounted || info.verb == Verb::DeleteCollection, "{case}");
    });
    assert!(differences > 0 && differences < cases);
}

const FRESH: Counts = Counts::Fresh { objects: 1_000, mean_bytes: 2_000 };

fn ours(method: &str, uri: &str, counts: Counts, watches: u32) -> Cost {
    PricingOptions::DEFAULT.price(&parse(method, uri), counts, watches, 0)
}

fn upstream(method: &str, uri: &str, counts: Counts, watches: u32) -> Cost {
    let options = PricingOptions { compat: Compat::Upstream, ..PricingOptions::DEFAULT };
    options.price(&parse(method, uri), counts, watches, 0)
}

#[test]
fn a_watch_that_replays_is_priced_as_a_list() {
    for uri in ["/api/v1/pods?watch=1", "/api/v1/pods?watch=1&resourceVersion=0"] {
        assert_eq!(ours("GET", uri, FRESH, 0).initial_seats, 10, "{uri}");
        assert_eq!(upstream("GET", uri, FRESH, 0).initial_seats, 1, "{uri}");
    }
    for uri in ["/api/v1/pods?watch=1&resourceVersion=7", "/api/v1/pods?watch=1&sendInitialEvents=false"] {
        assert_eq!(ours("GET", uri, FRESH, 0).initial_seats, 1, "{uri}");
    }
}

#[test]
fn a_stale_count_is_cautious_and_an_unknown_one_is_neither_free_nor_the_worst() {
    let stale = Counts::Stale { objects: 201, mean_bytes: 2_000 };
    assert_eq!(ours("GET", "/api/v1/pods", stale, 0).raw_seats, 7, "302 objects");
    assert_eq!(upstream("GET", "/api/v1/pods", stale, 0).initial_seats, 10);
    assert_eq!(ours("GET", "/api/v1/pods", Counts::Unknown, 0).initial_seats, 4);
    assert_eq!(ours("GET", "/api/v1/pods?limit=10", Counts::Unknown, 0).initial_seats, 1);
    assert_eq!(upstream("GET", "/api/v1/pods", Counts::Unknown, 0).initial_seats, 1);
    let unsized_ = Counts::Fresh { objects: 50, mean_bytes: 0 };
    assert_eq!(ours("GET", "/api/v1/pods", unsized_, 0).initial_seats, 2);
    assert_eq!(upstream("GET", "/api/v1/pods", unsized_, 0).initial_seats, 10);
}

#[test]
fn deletecollection_pays_for_its_list_and_its_events() {
    let uri = "/api/v1/namespaces/n/configmaps";
    assert_eq!(upstream("DELETE", uri, FRESH, 50), ONE_SEAT);
    let cost = ours("DELETE", uri, FRESH, 50);
    assert_eq!((cost.initial_seats, cost.final_seats, cost.raw_seats), (20, 10, 500), "2 MB; 5 seats x 100 deletes");
    assert_eq!(cost.additional_latency, Duration::from_millis(250));
    assert_eq!(ours("DELETE", uri, FRESH, 100_000).additional_latency, DELETES_TAIL_MAX);
    assert_eq!(ours("DELETE", uri, FRESH, 9).final_seats, 0, "too few watches to matter");
}

#[test]
fn ceilings_bind_and_the_raw_estimate_stays_visible() {
    let huge = Counts::Fresh { objects: u64::MAX, mean_bytes: u64::MAX };
    let by_version = "/api/v1/pods?resourceVersion=5&resourceVersionMatch=Exact";
    let cost = ours("GET", by_version, huge, 0);
    assert_eq!((cost.initial_seats, cost.raw_seats), (100, u32::MAX));
    assert_eq!(PricingOptions::for_shard(3_000).price(&parse("GET", by_version), huge, 0, 0).initial_seats, 500);
    assert_eq!(PricingOptions::for_shard(60).price(&parse("GET", by_version), huge, 0, 7).initial_seats, 7);
}

proptest! {
    #[test]
    fn ceilings_hold_and_a_narrow_tail_keeps_the_work(watches in 0u32..200_000, level in 0u32..40) {
        let put = parse("PUT", "/api/v1/namespaces/n/configmaps/c");
        let cost = PricingOptions::DEFAULT.price(&put, FRESH, watches, level);
        prop_assert_eq!(cost.initial_seats, 1);
        prop_assert!(cost.final_seats <= ceiling(10, level));
        let wide = if watches < 10 { 0 } else { watches.div_ceil(10) };
        let (work, want) = (cost.additional_latency * cost.final_seats, Duration::from_millis(5) * wide);
        // The latency is cut to whole nanoseconds.
        prop_assert!(want.abs_diff(work) <= Duration::from_nanos(10), "{work:?} instead of {want:?}");
    }

    #[test]
    fn more_objects_never_cost_less(few in 0u64..100_000, more in 0u64..100_000, bytes in 1u64..10_000) {
        let uri = "/api/v1/pods?limit=700&continue=x&labelSelector=a";
        let seats = |objects| ours("GET", uri, Counts::Fresh { objects, mean_bytes: bytes }, 0);
        prop_assert!(seats(few).raw_seats <= seats(few + more).raw_seats);
        prop_assert!((1..=100).contains(&seats(more).initial_seats));
    }
}
