//! The engine from outside, without and with a file.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};

use super::*;
use crate::{Condition, Event, StoreError, Value};

fn put(key: &str, condition: Condition, value: &str) -> Txn {
    let value = Some(Value::copy_from_slice(value.as_bytes()));
    Txn { key: key.into(), condition, guard: None, value, ttl: None }
}

fn delete(key: &str, revision: u64) -> Txn {
    Txn { key: key.into(), condition: Condition::ModRevision(revision), guard: None, value: None, ttl: None }
}

async fn done(store: &Embedded, txn: Txn) -> u64 {
    match store.txn(txn).await.unwrap() {
        TxnOutcome::Done { revision } => revision,
        conflict => panic!("{conflict:?}"),
    }
}

fn range(prefix: &str) -> Range {
    Range { prefix: prefix.into(), after: None, limit: 0, revision: None }
}

/// The next events of a watch that are not progress.
async fn changes(watch: &mut WatchStream, count: usize) -> Vec<Event> {
    let events = watch.map(|e| e.unwrap()).filter(|e| std::future::ready(!matches!(e, Event::Progress(_))));
    tokio::time::timeout(Duration::from_secs(30), events.take(count).collect()).await.expect("the events come")
}

fn revision_of(event: &Event) -> u64 {
    match event {
        Event::Put { kv, .. } => kv.mod_revision,
        Event::Delete { revision, .. } | Event::Progress(revision) => *revision,
    }
}

#[tokio::test]
async fn compare_and_set() {
    let store = Embedded::in_memory();
    assert_eq!(store.revision(), 1);
    assert_eq!(done(&store, put("/a/x", Condition::Absent, "1")).await, 2);
    let present = store.get("/a/x").now_or_never().expect("reads of the present are ready at once").unwrap().unwrap();
    assert_eq!((present.create_revision, present.mod_revision, &present.value[..]), (2, 2, &b"1"[..]));
    let refused = store.txn(put("/a/x", Condition::Absent, "2")).await.unwrap();
    assert_eq!(refused, TxnOutcome::Conflict(Some(present)));
    assert_eq!(store.txn(delete("/a/x", 7)).await.unwrap(), refused);
    assert_eq!(store.txn(delete("/a/none", 7)).await.unwrap(), TxnOutcome::Conflict(None));
    assert_eq!(done(&store, put("/a/x", Condition::ModRevision(2), "2")).await, 3);
    assert_eq!(store.get("/a/x").await.unwrap().unwrap().create_revision, 2);
    assert_eq!(done(&store, delete("/a/x", 3)).await, 4);
    assert_eq!(store.get("/a/x").await.unwrap(), None);
    assert_eq!((store.revision(), store.count("/a/")), (4, 0));
}

#[tokio::test]
async fn a_guard_must_be_as_it_was_read() {
    let store = Embedded::in_memory();
    let guarded = |key: &str, at| Txn { guard: Some(("/ns".into(), at)), ..put(key, Condition::Absent, "") };
    assert_eq!(store.txn(guarded("/a", 2)).await.unwrap(), TxnOutcome::Unguarded, "it is not there");
    let at = done(&store, put("/ns", Condition::Absent, "1")).await;
    done(&store, guarded("/a", at)).await;
    assert!(matches!(store.txn(guarded("/a", at)).await.unwrap(), TxnOutcome::Conflict(Some(_))));
    let later = done(&store, put("/ns", Condition::ModRevision(at), "2")).await;
    assert_eq!(store.txn(guarded("/b", at)).await.unwrap(), TxnOutcome::Unguarded);
    done(&store, guarded("/b", later)).await;
    done(&store, delete("/ns", later)).await;
    assert_eq!(store.txn(guarded("/c", later)).await.unwrap(), TxnOutcome::Unguarded);
    assert_eq!(store.get("/c").await.unwrap(), None);
}

#[tokio::test]
async fn bad_writes_are_refused_with_a_reason() {
    let store = Embedded::in_memory();
    let large = Txn { value: Some(vec![0; VALUE_BYTES_MAX + 1].into()), ..put("/a", Condition::Absent, "") };
    let (bytes, limit) = (VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX);
    assert_eq!(store.txn(large).await, Err(StoreError::TooLarge { bytes, limit }));
    let largest = Txn { value: Some(vec![0; VALUE_BYTES_MAX].into()), ..put("/a", Condition::Absent, "") };
    assert!(store.txn(largest).await.is_ok());
    for key in ["", "a\0", &"k".repeat(KEY_BYTES_MAX + 1)] {
        assert!(matches!(store.txn(put(key, Condition::Absent, "")).await, Err(StoreError::Other(_))), "{key:?}");
    }
    let absent = Txn { value: None, ..put("/a", Condition::Absent, "") };
    assert!(matches!(store.txn(absent).await, Err(StoreError::Other(_))));
    store.close();
    assert_eq!(store.txn(put("/b", Condition::Absent, "")).await, Err(StoreError::Closed));
    assert!(store.get("/a").await.unwrap().is_some(), "reads go on");
}

#[tokio::test]
async fn pages_are_of_one_revision() {
    let store = Embedded::in_memory();
    for n in 0..10 {
        done(&store, put(&format!("/a/{n}"), Condition::Absent, "old")).await;
    }
    let first = store.range(Range { limit: 4, ..range("/a/") }).await.unwrap();
    assert_eq!((first.items.len(), first.remaining, first.revision), (4, 6, 11));
    done(&store, put("/a/5", Condition::ModRevision(7), "new")).await;
    done(&store, delete("/a/7", 9)).await;
    done(&store, put("/a/71", Condition::Absent, "new")).await;
    let after = Some(first.items[3].key.to_string());
    let rest = Range { after, revision: Some(11), ..range("/a/") };
    let rest = store.range(rest).await.unwrap();
    assert_eq!(
        rest.items.iter().map(|kv| &*kv.key).collect::<Vec<_>>(),
        ["/a/4", "/a/5", "/a/6", "/a/7", "/a/8", "/a/9"]
    );
    assert!(rest.items.iter().all(|kv| &kv.value[..] == b"old"));
    assert_eq!((rest.remaining, rest.revision), (0, 11));
    let future = store.range(Range { revision: Some(15), ..range("") }).await;
    assert_eq!(future.unwrap_err(), StoreError::Future { requested: 15, current: 14 });
}

#[tokio::test]
async fn a_watch_tells_history_then_the_present() {
    let store = Embedded::in_memory();
    done(&store, put("/a/x", Condition::Absent, "1")).await;
    done(&store, put("/b/y", Condition::Absent, "1")).await;
    let mut all = store.watch("/a/", 1).await.unwrap();
    let mut late = store.watch("/a/x", 2).await.unwrap();
    assert_eq!(revision_of(&changes(&mut all, 1).await[0]), 2);
    done(&store, put("/a/x", Condition::ModRevision(2), "2")).await;
    done(&store, delete("/a/x", 4)).await;
    for watch in [&mut all, &mut late] {
        let events = changes(watch, 2).await;
        assert!(
            matches!(&events[0], Event::Put { kv, prev: Some(prev) } if kv.mod_revision == 4 && prev.mod_revision == 2)
        );
        assert!(matches!(&events[1], Event::Delete { prev, revision: 5 } if &prev.value[..] == b"2"));
    }
    store.close();
    let end = late.filter(|e| std::future::ready(e.is_err())).collect::<Vec<_>>().await;
    assert_eq!(end.into_iter().map(Result::unwrap_err).collect::<Vec<_>>(), [StoreError::Closed]);
}

#[tokio::test]
async fn progress_comes_for_changes_of_others_and_when_idle() {
    let store = Embedded::in_memory();
    let mut watch = store.watch("/a/", 1).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(Event::Progress(1)))));
    let revision = done(&store, put("/b/x", Condition::Absent, "1")).await;
    let told = watch.map(|e| revision_of(&e.unwrap()));
    let told = told.skip_while(|r| std::future::ready(*r < revision)).take(2).collect::<Vec<_>>();
    assert_eq!(told.await, [revision; 2], "once for the change, once more when idle");
}

#[tokio::test]
async fn a_write_wakes_only_whom_it_concerns_and_each_has_its_turn_at_progress() {
    use std::sync::Arc;
    let mut hub = super::hub::Hub::new(1);
    let buffers: Vec<_> = (0..60).map(|_| Arc::<super::watch::Buffer>::default()).collect();
    for buffer in &buffers {
        assert!(hub.catch_up(&"/a/".into(), 1, buffer).is_ok());
    }
    let waiting = || buffers.iter().filter(|b| std::future::poll_fn(|cx| b.poll(cx)).now_or_never().is_some()).count();
    assert_eq!((waiting(), waiting()), (60, 0), "who becomes live hears how far he is, once");
    let kv = crate::KeyValue { key: "/b/x".into(), value: Value::new(), create_revision: 2, mod_revision: 2 };
    hub.publish(vec![Event::Put { kv, prev: None }]);
    assert_eq!(waiting(), 0);
    let told: Vec<usize> = (0..20).map(|_| (hub.tick(), waiting()).1).collect();
    assert_eq!(told, [3; 20]);
}

#[tokio::test]
async fn only_the_slow_watcher_ends() {
    let store = Embedded::in_memory();
    let mut slow = store.watch("/a/", 1).await.unwrap();
    let mut quick = store.watch("/a/", 1).await.unwrap();
    assert!(slow.next().await.is_some() && quick.next().await.is_some(), "both are live");
    let mut revision = done(&store, put("/a/x", Condition::Absent, "")).await;
    for _ in 0..watch::BUFFER_EVENTS_MAX {
        revision = done(&store, put("/a/x", Condition::ModRevision(revision), "")).await;
        assert_eq!(changes(&mut quick, 1).await.len(), 1);
    }
    let rest: Vec<_> = slow.collect().await;
    assert_eq!(rest.into_iter().map(Result::err).collect::<Vec<_>>(), [Some(StoreError::SlowConsumer)]);
    assert_eq!(store.shared.hub().registered(), (1, 1));
    drop(quick);
    assert_eq!(store.shared.hub().registered(), (0, 0));
}

#[tokio::test]
async fn directories_are_counted() {
    let store = Embedded::in_memory();
    for key in ["/r/cm/c1/ns/a", "/r/cm/c1/ns/b", "/r/cm/c2/ns/a", "/r/ns/c1/a"] {
        done(&store, put(key, Condition::Absent, "123")).await;
    }
    let (revision, counts) = store.counts("/r/cm/");
    let counts: Vec<_> = counts.iter().map(|d| (&*d.directory, d.keys, d.bytes)).collect();
    assert_eq!((revision, counts), (5, vec![("/r/cm/c1/ns/", 2, 6), ("/r/cm/c2/ns/", 1, 3)]));
    assert_eq!([store.count("/r/"), store.count("/r/cm/c1/"), store.count("/x/")], [4, 2, 0]);
}

#[tokio::test]
async fn an_expiring_key_is_deleted_as_an_ordinary_change() {
    let store = Embedded::in_memory();
    let short = Some(Duration::from_millis(20));
    done(&store, Txn { ttl: short, ..put("/e/gone", Condition::Absent, "") }).await;
    let kept = done(&store, Txn { ttl: short, ..put("/e/kept", Condition::Absent, "") }).await;
    let mut watch = store.watch("/e/", kept).await.unwrap();
    done(&store, put("/e/kept", Condition::ModRevision(kept), "again")).await;
    let deleted = changes(&mut watch, 2).await;
    assert!(deleted.iter().any(|e| matches!(e, Event::Delete { prev, .. } if &*prev.key == "/e/gone")), "{deleted:?}");
    assert_eq!(store.count("/e/"), 1);
}

#[tokio::test]
async fn compaction_refuses_what_it_forgets() {
    let store = Embedded::in_memory();
    for revision in 1..=5 {
        let condition = if revision == 1 { Condition::Absent } else { Condition::ModRevision(revision) };
        done(&store, put("/a", condition, &revision.to_string())).await;
    }
    store.compact(4).await.unwrap();
    let old = store.range(Range { revision: Some(3), ..range("") }).await.unwrap_err();
    assert_eq!(old, StoreError::Compacted { requested: 3, oldest: 4 });
    assert_eq!(store.watch("", 3).await.err(), Some(old));
    assert_eq!(&store.range(Range { revision: Some(4), ..range("") }).await.unwrap().items[0].value[..], b"3");
    assert_eq!(store.compact(7).await, Err(StoreError::Future { requested: 7, current: 6 }));
    assert_eq!(store.watch("", 7).await.err(), Some(StoreError::Future { requested: 7, current: 6 }));
}

#[tokio::test]
async fn a_full_disk_refuses_writes_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let opened = disk::open(&path).unwrap();
    opened.writer.pragma_update(None, "max_page_count", 40).unwrap();
    let store = Embedded::start(opened).unwrap();
    let mut good = 0;
    let error = loop {
        match store.txn(put(&format!("/a/{good}"), Condition::Absent, &"x".repeat(10_000))).await {
            Ok(_) => good += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, StoreError::Full);
    assert!(good > 2);
    assert_eq!(store.failure(), None, "nothing is doubtful");
    assert_eq!(store.count("/a/"), good, "reads go on");
    drop(store);
    let store = Embedded::open(&path).unwrap();
    assert_eq!((store.count("/a/"), store.revision()), (good, good + 1));
    done(&store, put("/b", Condition::Absent, "")).await;
}

#[tokio::test]
async fn compaction_deletes_rows_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Embedded::open(&path).unwrap();
    let mut last = Condition::Absent;
    for _ in 0..3 * 300 {
        last = Condition::ModRevision(done(&store, put("/a", last, "x")).await);
    }
    let Condition::ModRevision(newest) = last else { panic!("it was written") };
    let gone = done(&store, delete("/a", newest)).await;
    store.compact(gone).await.unwrap();
    let rows =
        || {
            store.shared.readers.as_ref().unwrap().run(|c| {
                c.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, u32>(0)).map_err(|e| panic!("{e}"))
            })
        };
    let emptied = async {
        while rows().await.unwrap() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), emptied)
        .await
        .expect("no row is left, not even that of the newest revision");
    drop(store);
    let store = Embedded::open(&path).unwrap();
    let compacted = StoreError::Compacted { requested: gone - 1, oldest: gone };
    assert_eq!(store.watch("", gone - 1).await.err(), Some(compacted));
    assert_eq!((store.revision(), store.count("")), (gone, 0));
    assert_eq!(done(&store, put("/a", Condition::Absent, "")).await, gone + 1);
}

#[tokio::test]
async fn the_write_ahead_log_stays_below_its_cap() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Embedded::open(&path).unwrap();
    let (wal, value) = (dir.path().join("store.db-wal"), "x".repeat(VALUE_BYTES_MAX));
    let (mut last, mut largest) = (Condition::Absent, 0);
    for n in 0..100 {
        last = Condition::ModRevision(done(&store, put("/a", last, &value)).await);
        largest = largest.max(wal.metadata().unwrap().len());
        let Condition::ModRevision(newest) = last else { panic!("it was written") };
        assert_eq!(newest, n + 2);
    }
    let cap = u64::from(keeper::WAL_BYTES_MAX) + 4 * VALUE_BYTES_MAX as u64;
    assert!(largest < cap, "{largest} of {cap} bytes");
}

#[tokio::test]
async fn a_watch_from_before_the_ring_reads_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path().join("store.db")).unwrap();
    let value = "x".repeat(1 << 20);
    let mut last = Condition::Absent;
    for _ in 0..40 {
        last = Condition::ModRevision(done(&store, put("/a", last, &value)).await);
    }
    assert!(store.shared.hub().floor() > 10, "the ring holds 32 MiB, the last 16 changes with their previous values");
    let mut watch = store.watch("/", 1).await.unwrap();
    let revisions: Vec<_> = changes(&mut watch, 40).await.iter().map(revision_of).collect();
    assert_eq!(revisions, (2..=41).collect::<Vec<_>>());
    let old = store.range(Range { revision: Some(3), ..range("/") }).await.unwrap();
    assert_eq!(old.items[0].mod_revision, 3);
}
