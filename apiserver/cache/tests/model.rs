//! The law of isolation: whatever is written where, each read sees the objects of its place, all of them and no other.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::collections::BTreeSet;

use proptest::prelude::*;
use support::{EXPORTS, Events, admin, at, export};

/// Names of which some begin like others, and shards that are called like clusters.
const SHARDS: [&str; 3] = ["a", "ab", "a-b"];
const CLUSTERS: [&str; 3] = ["a", "ab", "system:a"];
const NAMES: [&str; 3] = ["a", "ab", "a.b"];

type Place = (&'static str, &'static str, &'static str);

fn operations() -> impl Strategy<Value = Vec<(bool, Place)>> {
    let place = (prop::sample::select(&SHARDS), prop::sample::select(&CLUSTERS), prop::sample::select(&NAMES));
    prop::collection::vec((any::<bool>(), place), 1..40)
}

fn with_star(names: [&'static str; 3]) -> impl Iterator<Item = &'static str> {
    names.into_iter().chain(["*"])
}

fn text((shard, cluster, name): &Place) -> String {
    format!("{shard}|{cluster}/{name}")
}

async fn check(operations: Vec<(bool, Place)>) {
    let client = admin();
    let mut model: BTreeSet<Place> = BTreeSet::new();
    let mut told: Vec<(&str, Place)> = Vec::new();
    for (create, place) in operations {
        let (shard, cluster, name) = place;
        let (method, path, body, kind) = match create {
            true => ("POST", EXPORTS.to_owned(), Some(export(name, 1)), "ADDED"),
            false => ("DELETE", format!("{EXPORTS}/{name}"), None, "DELETED"),
        };
        let done = if create { model.insert(place) } else { model.remove(&place) };
        let (code, value) = client.send(method, &at(shard, cluster, &path), body.as_ref()).await;
        let want = match (create, done) {
            (true, true) => 201,
            (false, true) => 200,
            (true, false) => 409,
            (false, false) => 404,
        };
        assert_eq!(code, want, "{value}");
        told.extend(done.then_some((kind, place)));
    }
    for shard in with_star(SHARDS) {
        for cluster in with_star(CLUSTERS) {
            let here = |p: &&Place| [p.0, "*"].contains(&shard) && [p.1, "*"].contains(&cluster);
            let path = at(shard, cluster, EXPORTS);
            let want: BTreeSet<String> = model.iter().filter(here).map(text).collect();
            let list = client.list(&path).await;
            assert_eq!(list.len(), want.len(), "{path}");
            assert_eq!(BTreeSet::from_iter(list), want, "{path}");
            let mut events = Events::open(&client, &format!("{path}?watch=true&resourceVersion=1")).await;
            for (kind, place) in told.iter().filter(|(_, place)| here(&place)) {
                assert_eq!(events.told().await, format!("{kind} {}", text(place)), "{path}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_place_is_its_own(operations in operations()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(operations));
    }
}
