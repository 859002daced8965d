//! The request path up to the scheduler allocates nothing (law 8 of the design).

use apiserver_api::{ClusterName, RequestInfo, UserInfo};
use fairness::{Counts, PricingOptions, Profile, WatchOptions, WatchTracker, shuffle};

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
