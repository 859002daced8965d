//! What a request costs before the scheduler sees it: parse of the list options, classification, price.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use apiserver_api::{ClusterName, RequestInfo, UserInfo};
use criterion::{Criterion, criterion_group, criterion_main};
use fairness::{Counts, PricingOptions, Profile, shuffle};

const FRESH: Counts = Counts::Fresh { objects: 1_000, mean_bytes: 2_000 };

fn classify_and_price(c: &mut Criterion) {
    let (profile, options) = (Profile::bootstrap(), PricingOptions::default());
    let workspace: ClusterName = "2xk7qfv0z3mpl9ba".parse().expect("a legal name");
    let user = UserInfo::new("alice", &["devs", "system:authenticated"]);
    let account = "system:serviceaccount:default:robot";
    let robot =
        UserInfo::new(account, &["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
    let pods = "/api/v1/namespaces/default/pods";
    let requests = [
        ("get", &user, RequestInfo::parse("GET", "/api/v1/namespaces/default/pods/p", "")),
        ("list", &user, RequestInfo::parse("GET", pods, "limit=500&resourceVersion=0")),
        ("create by a service account", &robot, RequestInfo::parse("POST", pods, "")),
    ];
    for (name, user, info) in requests {
        let info = info.expect("a legal path");
        c.bench_function(&format!("classify {name}"), |b| {
            b.iter(|| profile.classify(black_box(&workspace), black_box(user), black_box(&info)));
        });
        c.bench_function(&format!("price {name}"), |b| {
            b.iter(|| options.price(black_box(&info), black_box(FRESH), black_box(12), 15));
        });
    }
    c.bench_function("flow hash", |b| {
        b.iter(|| shuffle::flow_hash(black_box("global-default"), &[black_box("alice")]))
    });
    c.bench_function("hand of 6 out of 128", |b| {
        b.iter(|| shuffle::hand(black_box(17_644_606_172_554_983_095), 128, 6))
    });
}

criterion_group!(benches, classify_and_price);
criterion_main!(benches);
