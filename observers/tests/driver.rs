//! The driver under virtual time: snapshots, failures, ageing, the feed.

mod common;

use std::time::Duration;

use common::{Rig, change, cluster};
use fairness::Counts;
use observers::{CountEvent, Options};

const SECOND: Duration = Duration::from_secs(1);

fn fresh(objects: u64) -> Counts {
    Counts::Fresh { objects, mean_bytes: if objects == 0 { 0 } else { 100 } }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_known_before_the_first_snapshot_is_complete() {
    let mut rig = Rig::new(Options::default());
    rig.appear("a").await;
    rig.connect().await;
    rig.change("a", 3).await;
    rig.pass(SECOND).await;
    assert_eq!((rig.counts("a"), rig.observers.status().age), (Counts::Unknown, None));
    rig.item(Ok(CountEvent::Synced)).await;
    rig.pass(SECOND).await;
    assert_eq!(rig.counts("a"), fresh(3));
    assert_eq!(rig.counts("stranger"), Counts::Unknown);
    assert_eq!(rig.observers.counts(&cluster("a"), "apps", "deployments", ""), fresh(0));
}

#[tokio::test(start_paused = true)]
async fn creation_may_come_before_or_after_the_announcement() {
    let mut rig = Rig::new(Options::default());
    rig.snapshot(&[("early", 2)]).await;
    rig.appear("late").await;
    rig.pass(SECOND).await;
    assert_eq!((rig.counts("early"), rig.counts("late")), (Counts::Unknown, fresh(0)));
    rig.appear("early").await;
    rig.change("late", 1).await;
    rig.pass(SECOND).await;
    assert_eq!((rig.counts("early"), rig.counts("late")), (fresh(2), fresh(1)));
    assert_eq!(rig.observers.total("", "configmaps"), fresh(3));
}

#[tokio::test(start_paused = true)]
async fn a_failing_source_holds_counts_then_they_age_then_recover_at_once() {
    let mut rig = Rig::new(Options::default());
    rig.appear("a").await;
    rig.snapshot(&[("a", 1000)]).await;
    rig.pass(SECOND).await;
    rig.item(Err("connection reset".into())).await;
    rig.pass(120 * SECOND).await;
    assert_eq!(rig.counts("a"), fresh(1000));
    rig.pass(120 * SECOND).await;
    assert_eq!(rig.counts("a"), Counts::Stale { objects: 1000, mean_bytes: 100 });
    assert!(rig.observers.status().stale && rig.observers.status().age > Some(200 * SECOND));
    rig.snapshot(&[("a", 900)]).await;
    rig.pass(SECOND).await;
    assert_eq!(rig.counts("a"), fresh(900));
    assert!(rig.observers.status().age < Some(5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn after_an_hour_a_count_is_worth_nothing() {
    let mut rig = Rig::new(Options::default());
    rig.appear("a").await;
    rig.snapshot(&[("a", 1)]).await;
    rig.pass(3602 * SECOND).await;
    assert_eq!(rig.counts("a"), Counts::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_new_snapshot_replaces_the_old_one_without_passing_through_zero() {
    let mut rig = Rig::new(Options::default());
    rig.appear("a").await;
    rig.snapshot(&[("a", 50)]).await;
    rig.item(Err("410".into())).await;
    rig.pass(2 * SECOND).await;
    rig.connect().await;
    for page in 0..10 {
        rig.change("a", 7).await;
        rig.pass(SECOND).await;
        assert_eq!(rig.counts("a"), fresh(50), "during page {page}");
    }
    rig.appear("b").await;
    rig.item(Ok(CountEvent::Synced)).await;
    rig.pass(SECOND).await;
    assert_eq!((rig.counts("a"), rig.counts("b")), (fresh(70), fresh(0)));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_says_nothing_is_opened_anew() {
    let mut rig = Rig::new(Options { resync_interval: Duration::MAX, ..Options::default() });
    rig.appear("a").await;
    rig.snapshot(&[("a", 1)]).await;
    for _ in 0..10 {
        rig.pass(100 * SECOND).await;
        rig.item(Ok(CountEvent::Heartbeat)).await;
    }
    assert_eq!(rig.observers.status().failures, 0);
    rig.pass(182 * SECOND).await;
    assert_eq!(rig.observers.status().failures, 1);
    rig.snapshot(&[("a", 2)]).await;
    rig.pass(2 * SECOND).await;
    assert_eq!(rig.counts("a"), fresh(2));
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_taken_at_intervals_but_never_two_within_a_second() {
    let mut rig = Rig::new(Options { resync_interval: Duration::ZERO, ..Options::default() });
    let start = tokio::time::Instant::now();
    for _ in 0..10 {
        rig.snapshot(&[]).await;
    }
    assert!(start.elapsed() >= 8 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn clusters_that_do_not_fit_aside_are_counted_when_they_appear() {
    let mut rig = Rig::new(Options { unclaimed_max: 1, ..Options::default() });
    rig.snapshot(&[("first", 1), ("second", 2)]).await;
    rig.pass(SECOND).await;
    rig.appear("first").await;
    rig.appear("second").await;
    rig.pass(SECOND).await;
    assert_eq!((rig.counts("first"), rig.counts("second")), (fresh(1), Counts::Unknown));
    rig.snapshot(&[("first", 1), ("second", 2)]).await;
    rig.pass(SECOND).await;
    assert_eq!((rig.counts("first"), rig.counts("second")), (fresh(1), fresh(2)));
}

#[tokio::test(start_paused = true)]
async fn workspaces_that_disappear_are_gone_entirely() {
    let mut rig = Rig::new(Options::default());
    let names: Vec<String> = (0..1000).map(|i| format!("ws{i}")).collect();
    rig.snapshot(&[]).await;
    for name in &names {
        rig.appear(name).await;
        rig.change(name, 5).await;
    }
    rig.pass(SECOND).await;
    assert_eq!((rig.observers.len(), rig.observers.total("", "configmaps")), (1000, fresh(5000)));
    for name in &names[..500] {
        rig.disappear(name).await; // half of it before its objects, half after
        rig.change(name, -5).await;
    }
    rig.pass(SECOND).await;
    let status = rig.observers.status();
    assert_eq!((status.workspaces, status.unclaimed), (500, 0));
    assert_eq!(rig.observers.total("", "configmaps"), fresh(2500));
    assert_eq!((rig.counts("ws0"), rig.counts("ws999")), (Counts::Unknown, fresh(5)));
}

#[tokio::test(start_paused = true)]
async fn passive_changes_hold_until_the_next_snapshot() {
    let mut rig = Rig::new(Options { resync_interval: 60 * SECOND, ..Options::default() });
    rig.appear("a").await;
    rig.snapshot(&[]).await;
    rig.pass(SECOND).await;
    for _ in 0..1900 {
        rig.observers.apply(&change("a", "default", 1, 100));
    }
    assert_eq!(rig.counts("a"), fresh(1900));
    rig.snapshot(&[("a", 2000)]).await;
    rig.pass(70 * SECOND).await;
    assert_eq!(rig.counts("a"), fresh(2000));
}

#[tokio::test(start_paused = true)]
async fn after_shutdown_nothing_is_vouched_for() {
    let mut rig = Rig::new(Options::default());
    rig.appear("a").await;
    rig.snapshot(&[("a", 1)]).await;
    rig.pass(SECOND).await;
    rig.shutdown.cancel();
    rig.pass(SECOND).await;
    assert_eq!(rig.counts("a"), Counts::Unknown);
}
