//! The engine from outside, without and with a file.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};

use super::{
    log::{Kind, Order, Raw},
    *,
};
use crate::{Condition, Event, KEY_BYTES_MAX, StoreError, VALUE_BYTES_MAX, Value, present};

fn put(key: &str, condition: Condition, value: &str) -> Txn {
    let value = Some(Value::copy_from_slice(value.as_bytes()));
    Txn { key: key.into(), condition, guard: None, value, ttl: None }
}

fn delete(key: &str, revision: u64) -> Txn {
    Txn { key: key.into(), condition: Condition::ModRevision(revision), guard: None, value: None, ttl: None }
}

/// Text that cannot be compressed.
pub(super) fn noise(bytes: usize) -> String {
    let mut state = 1_u64;
    let letters = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b' ' + (state >> 58) as u8)
    });
    letters.take(bytes).collect()
}

async fn done(store: &Embedded, txn: Txn) -> u64 {
    match store.txn(txn).await.unwrap() {
        TxnOutcome::Done { revision } => revision,
        conflict => panic!("{conflict:?}"),
    }
}

fn range(prefix: &str) -> Range {
    Range { prefix: prefix.into(), ..Range::default() }
}

/// The next events of a watch that are not progress.
async fn changes(watch: &mut WatchStream, count: usize) -> Vec<Event> {
    let events = watch.map(|e| e.unwrap()).filter(|e| std::future::ready(!matches!(e, Event::Progress(_))));
    tokio::time::timeout(Duration::from_secs(30), events.take(count).collect()).await.expect("the events come")
}

#[tokio::test]
async fn bad_writes_are_refused_with_a_reason() {
    let store = Embedded::in_memory();
    let large = Txn { value: Some(vec![0; VALUE_BYTES_MAX + 1].into()), ..put("/a", Condition::Absent, "") };
    let (bytes, limit) = (VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX);
    assert_eq!(store.txn(large).await, Err(StoreError::TooLarge { bytes, limit }));
    let largest = Txn { value: Some(vec![0; VALUE_BYTES_MAX].into()), ..put("/a", Condition::Absent, "") };
    assert!(store.txn(largest).await.is_ok());
    for key in ["", "a", "/a\0", &"/".repeat(KEY_BYTES_MAX + 1)] {
        assert!(matches!(store.txn(put(key, Condition::Absent, "")).await, Err(StoreError::Other(_))), "{key:?}");
    }
    let absent = Txn { value: None, ..put("/a", Condition::Absent, "") };
    assert!(matches!(store.txn(absent).await, Err(StoreError::Other(_))));
    store.close();
    assert_eq!(store.txn(put("/b", Condition::Absent, "")).await, Err(StoreError::Closed));
    assert!(store.get("/a").await.unwrap().is_some(), "reads go on");
}

#[tokio::test]
async fn whoever_asks_hears_how_far_the_watch_is() {
    let store = Embedded::in_memory();
    let mut watch = store.watch("/a/", 1).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(Event::Progress(1)))));
    assert!(watch.next().now_or_never().is_none(), "nothing new");
    let revision = done(&store, put("/b/x", Condition::Absent, "1")).await;
    let told = watch.next().now_or_never().expect("there is progress").unwrap().unwrap();
    assert!(matches!(told, Event::Progress(at) if at == revision), "{told:?}");
    done(&store, put("/b/y", Condition::Absent, "1")).await;
    assert!(watch.next().now_or_never().is_none(), "who asks in a loop comes to rest");
    assert!(watch.next().now_or_never().is_some(), "and is told the next time");
}

#[tokio::test]
async fn nobody_is_woken_for_progress_but_in_his_turn() {
    let store = Embedded::in_memory();
    let mut watches = Vec::new();
    for _ in 0..60 {
        watches.push(resting_watch(&store).await);
    }
    done(&store, put("/b/x", Condition::Absent, "1")).await;
    let woken = |watches: &[(WatchStream, Arc<Woken>)]| watches.iter().filter(|w| w.1.take()).count();
    assert_eq!(woken(&watches), 0, "a write of others");
    let mut turns = Vec::new();
    for _ in 0..30 {
        store.shared.present.hub().tick();
        turns.push(woken(&watches));
        watches.iter_mut().for_each(|w| w.1.clone().rest(&mut w.0));
    }
    // The engine's own ticks may come in between.
    assert_eq!(turns.iter().sum::<usize>() / 60, 1, "{turns:?}");
}

/// Notes that its watch was woken.
#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Woken {
    fn take(&self) -> bool {
        self.0.swap(false, std::sync::atomic::Ordering::SeqCst)
    }

    /// Reads all there is, so that the watch waits with this waker.
    fn rest(self: Arc<Self>, watch: &mut WatchStream) {
        let waker = self.into();
        let mut context = std::task::Context::from_waker(&waker);
        while watch.as_mut().poll_next(&mut context).is_ready() {}
    }
}

async fn resting_watch(store: &Embedded) -> (WatchStream, Arc<Woken>) {
    let (mut watch, woken) = (store.watch("/a/", 1).await.unwrap(), Arc::<Woken>::default());
    woken.clone().rest(&mut watch);
    (watch, woken)
}

#[tokio::test]
async fn only_the_slow_watcher_ends() {
    let store = Embedded::in_memory();
    let mut slow = store.watch("/a/", 1).await.unwrap();
    let mut quick = store.watch("/a/", 1).await.unwrap();
    assert!(slow.next().await.is_some() && quick.next().await.is_some(), "both are live");
    let mut revision = done(&store, put("/a/x", Condition::Absent, "")).await;
    for _ in 0..present::BUFFER_EVENTS_MAX {
        revision = done(&store, put("/a/x", Condition::ModRevision(revision), "")).await;
        assert_eq!(changes(&mut quick, 1).await.len(), 1);
    }
    let rest: Vec<_> = slow.collect().await;
    assert_eq!(rest.into_iter().map(Result::err).collect::<Vec<_>>(), [Some(StoreError::SlowConsumer)]);
    assert_eq!(store.shared.present.hub().registered(), (1, 1));
    drop(quick);
    assert_eq!(store.shared.present.hub().registered(), (0, 0));
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
        match store.txn(put(&format!("/a/{good}"), Condition::Absent, &noise(10_000))).await {
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
async fn after_a_write_that_failed_nothing_more_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let opened = disk::open(&path).unwrap();
    opened
        .writer
        .execute_batch("UPDATE meta SET trimmed = 1; UPDATE meta SET trimmed = 0; PRAGMA query_only = true")
        .unwrap();
    let store = Embedded::start(opened).unwrap();
    let refused = store.txn(put("/a", Condition::Absent, "")).await.unwrap_err();
    assert!(matches!(refused, StoreError::Poisoned(_)), "{refused}");
    assert_eq!(store.failure(), Some(refused.clone()));
    assert_eq!(store.txn(put("/b", Condition::Absent, "")).await, Err(refused.clone()));
    assert_eq!(store.compact(1).await, Err(refused));
    assert_eq!((store.get("/a").await, store.revision()), (Ok(None), 1), "reads go on, and tell only what is durable");
    drop(store);
    let log = dir.path().join("store.db-wal").metadata().unwrap().len();
    assert!(log > 0, "what a failed sync may have lost in the file is in the log");
    let store = Embedded::open(&path).unwrap();
    assert_eq!((store.failure(), done(&store, put("/a", Condition::Absent, "")).await), (None, 2));
}

#[tokio::test]
async fn files_with_other_pages_are_read_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Embedded::open(&path).unwrap();
    done(&store, put("/a", Condition::Absent, &noise(100_000))).await;
    drop(store);
    let file = Connection::open(&path).unwrap();
    file.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA page_size = 8192; VACUUM").unwrap();
    let pages = || Connection::open(&path).unwrap().pragma_query_value(None, "page_size", |row| row.get::<_, u32>(0));
    assert_eq!(pages(), Ok(8192));
    for key in ["/b", "/c"] {
        let store = Embedded::open(&path).unwrap();
        done(&store, put(key, Condition::Absent, &noise(100_000))).await;
    }
    let store = Embedded::open(&path).unwrap();
    assert_eq!((store.count(""), store.revision(), pages()), (3, 4, Ok(8192)));
}

/// Makes the rows of a file those of format 1, which held all values as they are.
fn to_format_1(path: &Path) {
    let mut file = Connection::open(path).unwrap();
    let tx = file.transaction().unwrap();
    let mut rows = Vec::new();
    log::visit(&tx, Order::OldestFirst, |row| {
        let raw = Raw::read(row)?;
        let value = raw.unpack()?;
        let kind = if raw.is_deletion() { Kind::Deletion } else { Kind::Plain };
        rows.push((raw.revision, kind as i64, Raw { kind, value: &value, ..raw }.sum(), value.to_vec()));
        Ok(())
    })
    .unwrap();
    for (revision, kind, sum, value) in rows {
        let (revision, sum) = (revision.cast_signed(), sum.cast_signed());
        let changed = tx.execute(
            "UPDATE log SET deleted = ?2, checksum = ?3, value = ?4 WHERE rev = ?1",
            rusqlite::params![revision, kind, sum, value],
        );
        assert_eq!(changed, Ok(1));
    }
    tx.pragma_update(None, "user_version", 1).unwrap();
    tx.commit().unwrap();
}

#[tokio::test]
async fn files_of_format_1_are_read_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("store.db"), dir.path().join("copy.db"));
    let object = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","data":{{"key":"{}"}}}}"#, "value ".repeat(100));
    let store = Embedded::open(&path).unwrap();
    let first = done(&store, put("/a", Condition::Absent, "short")).await;
    let second = done(&store, put("/a", Condition::ModRevision(first), &object)).await;
    let third = done(&store, put("/b", Condition::Absent, &object)).await;
    let gone = done(&store, delete("/b", third)).await;
    drop(store);
    to_format_1(&path);
    let format = |path| {
        Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap()
    };

    let report = maintenance::check(&path).unwrap();
    assert_eq!((report.revision, report.objects, report.findings), (gone, 1, Vec::new()));
    maintenance::backup(&path, &copy).unwrap();
    assert_eq!((format(&path), format(&copy)), (1, 1));

    let store = Embedded::open(&path).unwrap();
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, object);
    let old = store.range(Range { revision: Some(first), ..range("/") }).await.unwrap();
    assert_eq!(old.items.iter().map(|p| p.unpack().value).collect::<Vec<_>>(), ["short"]);
    assert_eq!(format(&path), 1);
    let fifth = done(&store, put("/a", Condition::ModRevision(second), "new")).await;
    drop(store);
    assert_eq!(format(&path), 2);
    assert_eq!(maintenance::check(&path).unwrap().findings, Vec::<String>::new());
    let store = Embedded::open(&path).unwrap();
    let events = store.watch("/", first).await.unwrap().take(4).collect::<Vec<_>>().await;
    let values = events.iter().map(|e| e.as_ref().unwrap().after().map(|kv| kv.value.clone())).collect::<Vec<_>>();
    assert_eq!(values, [Some(object.clone().into()), Some(object.into()), None, Some("new".into())]);
    assert_eq!(store.revision(), fifth);
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
    let (wal, value) = (dir.path().join("store.db-wal"), noise(VALUE_BYTES_MAX));
    let file = Connection::open(dir.path().join("store.db")).unwrap();
    let page_bytes = file.pragma_query_value(None, "page_size", |row| row.get::<_, u32>(0)).unwrap();
    drop(file);
    let (mut last, mut largest) = (Condition::Absent, 0);
    for n in 0..100 {
        last = Condition::ModRevision(done(&store, put("/a", last, &value)).await);
        largest = largest.max(wal.metadata().unwrap().len());
        let Condition::ModRevision(newest) = last else { panic!("it was written") };
        assert_eq!(newest, n + 2);
    }
    let cap = u64::from(keeper::WAL_PAGES_MAX * page_bytes) + 2 * VALUE_BYTES_MAX as u64;
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
    assert!(
        store.shared.present.hub().floor() > 10,
        "the ring holds 32 MiB, the last 16 changes with their previous values"
    );
    let mut watch = store.watch("/", 1).await.unwrap();
    let revisions: Vec<_> = changes(&mut watch, 40).await.iter().map(Event::revision).collect();
    assert_eq!(revisions, (2..=41).collect::<Vec<_>>());
    let old = store.range(Range { revision: Some(3), ..range("/") }).await.unwrap();
    assert_eq!(old.items[0].mod_revision(), 3);
}
