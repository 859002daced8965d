//! What every engine does: each test runs in memory, on a file and on etcd.

use std::{sync::Arc, time::Duration};

use apiserver_storage::{
    Condition, Event, Packed, Range, Store, StoreError, Txn, TxnOutcome, VALUE_BYTES_MAX, WatchStream, labels::Wanted,
};
use futures_util::StreamExt;

use crate::common::{Place, changes_until, delete, done, etcd::Cluster, put, range, unpacked};

/// Runs each of these functions as a test of each engine.
macro_rules! with_every_engine {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Place::Memory).await;
            })*
        }
        mod file {
            $(#[tokio::test]
            async fn $test() {
                let directory = tempfile::tempdir().unwrap();
                super::$test(super::Place::File(directory.path().join("store.db"))).await;
            })*
        }
        mod etcd {
            $(#[tokio::test]
            async fn $test() {
                let cluster = std::sync::Arc::new(super::Cluster::single());
                super::$test(super::Place::Etcd { cluster, prefix: "/fairgate".into() }).await;
            })*
        }
    };
}

with_every_engine!(
    compare_and_set,
    a_guard_must_be_as_it_was_read,
    bad_writes_are_refused,
    pages_are_of_one_revision,
    labels_that_are_wanted,
    a_watch_tells_history_then_the_present,
    closing_ends_watches_and_writes,
    directories_are_counted,
    an_expiring_key_is_deleted_as_an_ordinary_change,
    compaction_refuses_what_it_forgets,
    concurrent_writers_each_win_once,
);

/// The next changes of a watch.
async fn changes(watch: &mut WatchStream, count: usize) -> Vec<Event> {
    let events = watch.map(|e| e.unwrap()).filter(|e| std::future::ready(!matches!(e, Event::Progress(_))));
    tokio::time::timeout(Duration::from_secs(60), events.take(count).collect()).await.expect("the events come")
}

async fn compare_and_set(place: Place) {
    let store = place.open().await;
    let start = store.revision();
    assert_eq!(start, 1, "of an empty store");
    let first = done(&*store, put("/a/x", Condition::Absent, "1")).await;
    assert_eq!(first, 2);
    let present = store.get("/a/x").await.unwrap().unwrap();
    assert_eq!((present.create_revision, present.mod_revision, &present.value[..]), (first, first, &b"1"[..]));
    let refused = store.txn(put("/a/x", Condition::Absent, "2")).await.unwrap();
    assert_eq!(refused, TxnOutcome::Conflict(Some(present)));
    assert_eq!(store.txn(delete("/a/x", 7)).await.unwrap(), refused);
    assert_eq!(store.txn(put("/a/x", Condition::ModRevision(0), "2")).await.unwrap(), refused);
    for never in [0, 7] {
        assert_eq!(store.txn(delete("/a/none", never)).await.unwrap(), TxnOutcome::Conflict(None));
        let update = put("/a/none", Condition::ModRevision(never), "1");
        assert_eq!(store.txn(update).await.unwrap(), TxnOutcome::Conflict(None));
    }
    let second = done(&*store, put("/a/x", Condition::ModRevision(first), "2")).await;
    assert!(second > first);
    assert_eq!(store.get("/a/x").await.unwrap().unwrap().create_revision, first);
    let gone = done(&*store, delete("/a/x", second)).await;
    assert!(gone > second);
    assert_eq!(store.get("/a/x").await.unwrap(), None);
    assert_eq!((store.revision(), store.count("/a/")), (gone, 0));
}

async fn a_guard_must_be_as_it_was_read(place: Place) {
    let store = place.open().await;
    let guarded = |key: &str, at| Txn { guard: Some(("/ns".into(), at)), ..put(key, Condition::Absent, "") };
    for never in [0, 2] {
        assert_eq!(store.txn(guarded("/a", never)).await.unwrap(), TxnOutcome::Unguarded, "it is not there");
    }
    let at = done(&*store, put("/ns", Condition::Absent, "1")).await;
    done(&*store, guarded("/a", at)).await;
    assert!(matches!(store.txn(guarded("/a", at)).await.unwrap(), TxnOutcome::Conflict(Some(_))));
    let later = done(&*store, put("/ns", Condition::ModRevision(at), "2")).await;
    assert_eq!(store.txn(guarded("/b", at)).await.unwrap(), TxnOutcome::Unguarded);
    done(&*store, guarded("/b", later)).await;
    done(&*store, delete("/ns", later)).await;
    assert_eq!(store.txn(guarded("/c", later)).await.unwrap(), TxnOutcome::Unguarded);
    assert_eq!(store.get("/c").await.unwrap(), None);
}

async fn bad_writes_are_refused(place: Place) {
    let store = place.open().await;
    let of = |bytes: usize| Txn { value: Some(vec![b'x'; bytes].into()), ..put("/a", Condition::Absent, "") };
    let refused = StoreError::TooLarge { bytes: VALUE_BYTES_MAX + 1, limit: VALUE_BYTES_MAX };
    assert_eq!(store.txn(of(VALUE_BYTES_MAX + 1)).await, Err(refused));
    // etcd counts key and all with it.
    done(&*store, of(VALUE_BYTES_MAX - 4096)).await;
    let read = store.get("/a").await.unwrap().unwrap();
    assert_eq!(read.value.len(), VALUE_BYTES_MAX - 4096);
    for key in ["", "a", "/a\0", &"/".repeat(3000)] {
        let refused = store.txn(put(key, Condition::Absent, "")).await;
        assert!(matches!(refused, Err(StoreError::Other(_))), "{key:?}: {refused:?}");
    }
    let absent = Txn { value: None, ..put("/b", Condition::Absent, "") };
    assert!(matches!(store.txn(absent).await, Err(StoreError::Other(_))));
}

async fn pages_are_of_one_revision(place: Place) {
    let store = place.open().await;
    let mut written = Vec::new();
    for n in 0..10 {
        written.push(done(&*store, put(&format!("/a/{n}"), Condition::Absent, "old")).await);
    }
    let first = store.range(Range { limit: 4, ..range("/a/") }).await.unwrap();
    assert_eq!((first.items.len(), first.remaining), (4, 6));
    assert!(first.revision >= written[9]);
    done(&*store, put("/a/5", Condition::ModRevision(written[5]), "new")).await;
    done(&*store, delete("/a/7", written[7])).await;
    let last = done(&*store, put("/a/71", Condition::Absent, "new")).await;
    let after = Some(first.items[3].key().to_owned());
    let rest = store.range(Range { after, revision: Some(first.revision), ..range("/a/") }).await.unwrap();
    let keys: Vec<_> = rest.items.iter().map(|kv| kv.key()).collect();
    assert_eq!(keys, ["/a/4", "/a/5", "/a/6", "/a/7", "/a/8", "/a/9"]);
    assert!(unpacked(&rest).iter().all(|kv| &kv.value[..] == b"old"));
    assert_eq!((rest.remaining, rest.revision), (0, first.revision));
    let future = store.range(Range { revision: Some(last + 1000), ..range("") }).await.unwrap_err();
    assert!(matches!(future, StoreError::Future { requested, current } if requested == last + 1000 && current >= last));
}

/// Ten objects of two colours: one colour is read and watched alone, by pages, at an old revision and after a restart.
async fn labels_that_are_wanted(place: Place) {
    let store = place.open().await;
    let object = |n: usize, colour: &str| {
        let padding = "x".repeat(100); // so that it is packed
        format!(r#"{{"metadata":{{"labels":{{"colour":"{colour}","n":"{n}"}},"name":"{padding}"}}}}"#)
    };
    let mut written = Vec::new();
    for n in 0..10 {
        let value = object(n, ["red", "blue"][n % 2]);
        written.push(done(&*store, put(&format!("/a/{n}"), Condition::Absent, &value)).await);
    }
    let red = || Wanted::default().and("colour", ["red"]);
    let names = |items: &[Packed]| items.iter().map(|kv| kv.key()[3..].to_owned()).collect::<String>();
    let page = store.range(Range { limit: 2, wanted: red(), ..range("/a/") }).await.unwrap();
    assert_eq!((names(&page.items), page.remaining), ("02".into(), 7), "what is behind is not looked at");
    let mut watch = store.watch_wanted("/a/", written[9], red()).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(Event::Progress(_)))), "it is live");
    // One that was red, one that becomes red, one that neither was nor is.
    let left = done(&*store, put("/a/4", Condition::ModRevision(written[4]), &object(4, "blue"))).await;
    let came = done(&*store, put("/a/5", Condition::ModRevision(written[5]), &object(5, "red"))).await;
    let last = done(&*store, put("/a/7", Condition::ModRevision(written[7]), &object(7, "green"))).await;
    let told = changes_until(&mut watch, last).await;
    assert_eq!(told.iter().map(|change| change.0).collect::<Vec<_>>(), [left, came]);
    let now = |store: Arc<dyn Store>| async move {
        store.range(Range { wanted: Wanted::default().and("colour", ["red"]), ..range("/a/") }).await.unwrap()
    };
    let before = now(store.clone()).await;
    assert_eq!((names(&before.items), before.remaining), ("02568".into(), 0));
    assert_eq!(unpacked(&now(reopened(&place, store).await).await), unpacked(&before));
}

/// The store after a restart; one in memory as it is.
async fn reopened(place: &Place, store: Arc<dyn Store>) -> Arc<dyn Store> {
    if matches!(place, Place::Memory) {
        return store;
    }
    store.close();
    place.open().await
}

async fn a_watch_tells_history_then_the_present(place: Place) {
    let store = place.open().await;
    let start = store.revision();
    let first = done(&*store, put("/a/x", Condition::Absent, "1")).await;
    done(&*store, put("/b/y", Condition::Absent, "1")).await;
    let mut all = store.watch("/a/", start).await.unwrap();
    let mut late = store.watch("/a/x", first).await.unwrap();
    assert_eq!(changes(&mut all, 1).await[0].revision(), first);
    let second = done(&*store, put("/a/x", Condition::ModRevision(first), "2")).await;
    let gone = done(&*store, delete("/a/x", second)).await;
    for watch in [&mut all, &mut late] {
        let events = changes(watch, 2).await;
        let Event::Put { kv, prev: Some(prev) } = &events[0] else { panic!("{events:?}") };
        assert_eq!((kv.mod_revision, prev.mod_revision), (second, first));
        let Event::Delete { prev, revision } = &events[1] else { panic!("{events:?}") };
        assert_eq!((&prev.value[..], *revision), (&b"2"[..], gone));
    }
}

async fn closing_ends_watches_and_writes(place: Place) {
    let store = place.open().await;
    let watch = store.watch("/a/", store.revision()).await.unwrap();
    store.close();
    store.close();
    let end: Vec<_> = watch.filter(|e| std::future::ready(e.is_err())).collect().await;
    assert_eq!(end.into_iter().map(Result::unwrap_err).collect::<Vec<_>>(), [StoreError::Closed]);
    assert_eq!(store.txn(put("/b", Condition::Absent, "")).await, Err(StoreError::Closed));
}

async fn directories_are_counted(place: Place) {
    let store = place.open().await;
    for key in ["/r/cm/c1/ns/a", "/r/cm/c1/ns/b", "/r/cm/c2/ns/a", "/r/ns/c1/a"] {
        done(&*store, put(key, Condition::Absent, "123")).await;
    }
    let (revision, counts) = store.counts("/r/cm/");
    let counts: Vec<_> = counts.iter().map(|d| (&*d.directory, d.keys, d.bytes)).collect();
    assert_eq!(counts, [("/r/cm/c1/ns/", 2, 6), ("/r/cm/c2/ns/", 1, 3)]);
    assert_eq!(revision, store.revision());
    assert_eq!(["/r/", "/r/cm/c1/", "/x/"].map(|prefix| store.count(prefix)), [4, 2, 0]);
}

async fn an_expiring_key_is_deleted_as_an_ordinary_change(place: Place) {
    let store = place.open().await;
    let short = Some(Duration::from_millis(20));
    let mut watch = store.watch("/e/", store.revision()).await.unwrap();
    done(&*store, Txn { ttl: short, ..put("/e/gone", Condition::Absent, "") }).await;
    done(&*store, Txn { ttl: short, ..put("/e/too", Condition::Absent, "") }).await;
    let kept =
        done(&*store, Txn { ttl: Some(Duration::from_secs(600)), ..put("/e/kept", Condition::Absent, "") }).await;
    done(&*store, put("/e/kept", Condition::ModRevision(kept), "again")).await;
    let deleted = changes(&mut watch, 6).await;
    let gone: Vec<_> = deleted
        .iter()
        .filter_map(|e| if let Event::Delete { prev, .. } = e { Some(&*prev.key) } else { None })
        .collect();
    assert!(gone.contains(&"/e/gone") && gone.contains(&"/e/too"), "{deleted:?}");
    assert!(deleted.windows(2).all(|two| two[0].revision() < two[1].revision()), "{deleted:?}");
    assert_eq!(store.count("/e/"), 1);
}

async fn compaction_refuses_what_it_forgets(place: Place) {
    let store = place.open().await;
    let (mut last, mut revisions) = (Condition::Absent, Vec::new());
    for n in 0..5 {
        let revision = done(&*store, put("/a", last, &n.to_string())).await;
        last = Condition::ModRevision(revision);
        revisions.push(revision);
    }
    store.compact(revisions[2]).await.unwrap();
    store.compact(revisions[0]).await.unwrap();
    let (requested, oldest) = (revisions[1], revisions[2]);
    let old = store.range(Range { revision: Some(requested), ..range("") }).await.unwrap_err();
    assert_eq!(old, StoreError::Compacted { requested, oldest });
    assert_eq!(store.watch("", requested).await.err(), Some(old));
    let kept = store.range(Range { revision: Some(oldest), ..range("") }).await.unwrap();
    assert_eq!(&unpacked(&kept)[0].value[..], b"2");
    let future = revisions[4] + 1000;
    let refused = |e: StoreError| matches!(e, StoreError::Future { requested, .. } if requested == future);
    assert!(refused(store.compact(future).await.unwrap_err()));
    assert!(refused(store.watch("", future).await.err().unwrap()));
}

/// Each of many writers adds one to a counter as often as it must try; a watch sees every step.
async fn concurrent_writers_each_win_once(place: Place) {
    const WRITERS: u64 = 8;
    const STEPS: u64 = 20;
    let store = place.open().await;
    let start = done(&*store, put("/n", Condition::Absent, "0")).await;
    let add = |store: Arc<dyn Store>| async move {
        for _ in 0..STEPS {
            loop {
                let kv = store.get("/n").await.unwrap().unwrap();
                let n: u64 = std::str::from_utf8(&kv.value).unwrap().parse().unwrap();
                let txn = put("/n", Condition::ModRevision(kv.mod_revision), &(n + 1).to_string());
                if let TxnOutcome::Done { .. } = store.txn(txn).await.unwrap() {
                    break;
                }
            }
        }
    };
    futures_util::future::join_all((0..WRITERS).map(|_| add(store.clone()))).await;
    let last = store.get("/n").await.unwrap().unwrap();
    let mut watch = store.watch("/", start).await.unwrap();
    let seen = changes_until(&mut watch, last.mod_revision).await;
    let values: Vec<u64> = seen.into_iter().map(|c| c.2.unwrap().parse().unwrap()).collect();
    assert_eq!(values, (1..=WRITERS * STEPS).collect::<Vec<_>>());
}
