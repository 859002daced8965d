//! The request path, the gate included, allocates nothing (law 8 of the design).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use apiserver_api::{ClusterName, RequestInfo, UserInfo};
use fairness::{
    Admission, Clock, Counts, Gate, GateOptions, PricingOptions, Profile, Request, WatchOptions, WatchTracker, shuffle,
};

/// A microsecond passes with each look.
struct Steps(AtomicU64);

impl Clock for Steps {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1_000, Relaxed)
    }
}

#[test]
fn admission_and_settlement_allocate_nothing() {
    let (profile, options) = (Arc::new(Profile::bootstrap()), PricingOptions::default());
    let clock = Arc::new(Steps(AtomicU64::new(1_000_000_000)));
    let gate = Gate::new(GateOptions { seats: 600, profile: profile.clone(), clock: clock.clone() });
    let workspace: ClusterName = "2xk7qfv0z3mpl9ba".parse().expect("a legal name");
    let user = UserInfo::new("alice", &["devs", "system:authenticated"]);
    // The second has a tail, whose seats are not parked; the third is a list.
    let requests = [
        ("GET", "/api/v1/namespaces/default/pods/p", 0),
        ("PUT", "/api/v1/namespaces/default/pods/p", 100),
        ("GET", "/api/v1/namespaces/default/pods", 0),
    ];
    let counts = Counts::Fresh { objects: 1_000, mean_bytes: 2_000 };
    for ticks in [false, true] {
        for (method, path, watches) in requests {
            let info = RequestInfo::parse(method, path, "").expect("a legal path");
            let once = || {
                let class = profile.classify(&workspace, &user, &info);
                let cost = options.price(&info, counts, watches, 15);
                assert_eq!(cost.additional_latency.is_zero(), watches == 0);
                let received_ns = clock.now_ns();
                let workspace = Some(&workspace);
                let request = Request { workspace, profile: &profile, class, cost, received_ns, timeout: None };
                let Admission::Run(permit) = gate.admit(&request) else { panic!("there is room") };
                drop(permit);
                // Longer than a tail.
                if ticks || watches > 0 {
                    clock.0.fetch_add(Duration::from_millis(10).as_nanos() as u64, Relaxed);
                    gate.tick(clock.now_ns());
                }
            };
            // Makes nodes, and room for a tail.
            (0..50).for_each(|_| once());
            let used = allocation_counter::measure(|| (0..20).for_each(|_| once()));
            assert_eq!(used.count_total, 0, "{method} {path} allocates");
            clock.0.fetch_add(Duration::from_secs(60).as_nanos() as u64, Relaxed);
            gate.tick(clock.now_ns());
        }
    }
}

#[test]
fn classification_prices_and_watch_counts_allocate_nothing() {
    let (profile, options) = (Profile::bootstrap(), PricingOptions::default());
    let watches = WatchTracker::new(WatchOptions::default());
    let workspace: ClusterName = "2xk7qfv0z3mpl9ba".parse().expect("a legal name");
    let watch = RequestInfo::parse("GET", "/api/v1/pods", "watch=1").expect("a legal path");
    let _open = watches.register(Some(&workspace), &watch).expect("the first watch");
    let robot = "system:serviceaccount:default:robot";
    let users = [
        UserInfo::new("alice", &["devs", "system:authenticated"]),
        UserInfo::new(robot, &["system:serviceaccounts", "system:authenticated"]),
    ];
    let requests = [
        ("GET", "/api/v1/namespaces/default/pods", "limit=500&resourceVersion=0&labelSelector=app"),
        ("PUT", "/apis/apps/v1/namespaces/default/deployments/d/status", ""),
        ("DELETE", "/api/v1/namespaces/default/pods", ""),
        ("GET", "/healthz/ping", ""),
    ];
    let counts = Counts::Fresh { objects: 1_000, mean_bytes: 2_000 };
    for user in &users {
        for (method, path, query) in requests {
            let info = RequestInfo::parse(method, path, query).expect("a legal path");
            let used = allocation_counter::measure(|| {
                let class = profile.classify(&workspace, user, &info);
                let cost = options.price(&info, counts, watches.interested(&workspace, &info), 15);
                let hand = shuffle::hand(class.flow, 128, 6);
                assert!(cost.initial_seats > 0 && hand.len() == 6);
            });
            assert_eq!(used.count_total, 0, "{method} {path} allocates");
        }
    }
}
