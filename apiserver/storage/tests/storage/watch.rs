//! Watches beside concurrent writers, across the step from the log to the ring to live.

use std::sync::Arc;

use apiserver_storage::{Condition, Embedded, Store};

use crate::common::{Change, changes_until, done, put};

const WRITERS: u64 = 6;
const WRITES: u64 = 300;

async fn write(store: Arc<Embedded>, writer: u64) {
    let mut last = Condition::Absent;
    for n in 0..WRITES {
        let revision = done(&*store, put(&format!("/w/{writer}/k"), last, &n.to_string())).await;
        last = Condition::ModRevision(revision);
    }
}

fn check(changes: &[Change], prefix: &str, after: u64, upto: u64) {
    let mut last = after;
    let mut values = std::collections::HashMap::<&str, &str>::new();
    for (revision, key, value, prev) in changes {
        assert!(*revision > last, "{revision} comes after {last}");
        last = *revision;
        assert!(key.starts_with(prefix));
        let value = value.as_deref().unwrap();
        if let Some(seen) = values.insert(key, value) {
            assert_eq!(prev.as_deref(), Some(seen), "nothing of {key} is left out before {revision}");
        }
    }
    if prefix == "/w/" {
        assert_eq!(changes.len() as u64, upto - after, "every revision after {after} is there once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_gap_and_no_repeat_beside_writers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Arc::new(Embedded::open(&path).unwrap());
    write(store.clone(), 99).await;
    drop(store);
    // The ring is empty after a start: watches from before begin in the log.
    let store = Arc::new(Embedded::open(&path).unwrap());
    let total = 1 + WRITES + WRITERS * WRITES;
    let writers: Vec<_> = (0..WRITERS).map(|w| tokio::spawn(write(store.clone(), w))).collect();
    let mut watchers = Vec::new();
    for n in 0..40 {
        let after = if n % 2 == 0 { store.revision() } else { store.revision() * n / 40 };
        let prefix = if n % 3 == 0 { format!("/w/{}/", n % WRITERS) } else { "/w/".to_owned() };
        let mut watch = store.watch(&prefix, after).await.unwrap();
        watchers.push(tokio::spawn(async move {
            let changes = changes_until(&mut watch, total).await;
            check(&changes, &prefix, after, total);
        }));
        tokio::task::yield_now().await;
        done_by_then(&store, n).await;
    }
    for task in writers.into_iter().chain(watchers) {
        task.await.unwrap();
    }
    assert_eq!(store.revision(), total);
}

/// Lets the writers come further before the next watch begins.
async fn done_by_then(store: &Embedded, step: u64) {
    let enough = (1 + WRITES + step * WRITERS * WRITES / 50).max(store.revision());
    while store.revision() < enough {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn thousands_of_watchers_hear_only_of_their_own() {
    let store = Embedded::in_memory();
    let mut watches = Vec::new();
    for n in 0..3000 {
        watches.push(store.watch(&format!("/w/{n}/"), 1).await.unwrap());
    }
    let mut last = 0;
    for n in 0..3000 {
        last = done(&store, put(&format!("/w/{n}/k"), Condition::Absent, "")).await;
    }
    for (n, watch) in watches.iter_mut().enumerate() {
        let keys: Vec<_> = changes_until(watch, last).await.into_iter().map(|c| c.1).collect();
        assert_eq!(keys, [format!("/w/{n}/k")]);
    }
}
