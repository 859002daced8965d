//! Kills a process that writes, again and again on the same file, and looks at what is left.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use apiserver_storage::{Condition, Embedded, Store};
use common::{changes_until, done, put};

const CHILD: &str = "FAIRGATE_TEST_CRASH_CHILD";
const WRITERS: usize = 8;
const KILLS: usize = 24;

/// Runs only as the child of the test below: writes until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let store = Arc::new(Embedded::open(Path::new(&path)).unwrap());
    let started = store.revision();
    let writers = (0..WRITERS).map(|w| tokio::spawn(write_forever(store.clone(), w))).collect::<Vec<_>>();
    // A compaction is under way when the kill comes.
    store.compact(started).await.unwrap();
    for writer in writers {
        writer.await.unwrap();
    }
}

/// Counts up in keys of its own and prints each acknowledged write: `ack <revision> <key> <number>`.
async fn write_forever(store: Arc<Embedded>, writer: usize) {
    for step in 0.. {
        let key = format!("/w{writer}/{}", step % 7);
        let present = store.get(&key).await.unwrap();
        let number = present.as_ref().map_or(0, |kv| number(&kv.value) + 1);
        let condition = present.map_or(Condition::Absent, |kv| Condition::ModRevision(kv.mod_revision));
        let revision = done(&store, put(&key, condition, &format!("{number} {}", "x".repeat(step % 700)))).await;
        let mut out = std::io::stdout().lock();
        writeln!(out, "ack {revision} {key} {number}").and_then(|()| out.flush()).unwrap();
    }
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Starts the child, kills it after so many acknowledgements and returns all that it made.
fn kill_after(path: &Path, lines: usize) -> Vec<(u64, String, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let (mut acks, mut line) = (Vec::new(), String::new());
    let mut killed = false;
    loop {
        line.clear();
        if out.read_line(&mut line).unwrap() == 0 {
            break;
        }
        // The last line may be cut short; the harness prints lines of its own.
        if let (Some(text), true) = (line.split("ack ").nth(1), line.ends_with('\n')) {
            let mut words = text.split_whitespace();
            let mut next = || words.next().unwrap().to_owned();
            acks.push((next().parse().unwrap(), next(), next().parse().unwrap()));
        }
        if acks.len() >= lines && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    assert!(killed, "the child ended by itself: {:?}", child.wait());
    child.wait().unwrap();
    acks
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_and_no_revision_used_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let mut acknowledged = BTreeMap::<u64, (String, u64)>::new();
    let mut history = BTreeMap::<u64, (String, u64)>::new();
    let mut random = 12_345_u64;
    let mut seen = 1;
    for round in 0..KILLS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for (revision, key, number) in kill_after(&path, 1 + usize::try_from(random >> 33).unwrap() % 1500) {
            let twice = acknowledged.insert(revision, (key.clone(), number));
            assert_eq!(twice, None, "revision {revision} was acknowledged twice");
        }
        // In between, the next child finds what the kill left.
        if round % 3 == 1 {
            continue;
        }
        let store = Embedded::open(&path).unwrap();
        // The child compacts up to where it began: the watch resumes no earlier than that.
        let (current, oldest) = (store.revision(), oldest(&store).await);
        let after = seen.max(oldest);
        let mut watch = store.watch("", after).await.unwrap();
        let changes = changes_until(&mut watch, current).await;
        assert_eq!(changes.iter().map(|c| c.0).collect::<Vec<_>>(), (after + 1..=current).collect::<Vec<_>>());
        for (revision, key, value, _) in changes {
            history.insert(revision, (key, number(value.unwrap().as_bytes())));
        }
        for (revision, ack) in acknowledged.range(after + 1..) {
            assert_eq!(history.get(revision), Some(ack), "acknowledged revision {revision}");
        }
        check_present(&store, &acknowledged).await;
        seen = current;
    }
    assert!(acknowledged.len() > KILLS * 100);
}

/// The revision up to which the last child compacted.
async fn oldest(store: &Embedded) -> u64 {
    match store.watch("", 0).await {
        Err(apiserver_storage::StoreError::Compacted { oldest, .. }) => oldest,
        Ok(_) => 0,
        Err(other) => panic!("{other}"),
    }
}

/// Every key is at its last acknowledged write, or at most one unacknowledged write further.
async fn check_present(store: &Embedded, acknowledged: &BTreeMap<u64, (String, u64)>) {
    let last: BTreeMap<&str, (u64, u64)> = acknowledged.iter().map(|(r, (k, n))| (&**k, (*r, *n))).collect();
    for (key, (revision, acked)) in last {
        let kv = store.get(key).await.unwrap().expect("an acknowledged key is there");
        let found = number(&kv.value);
        assert!(kv.mod_revision >= revision, "{key}: revision {} after {revision}", kv.mod_revision);
        assert!((acked..=acked + 2).contains(&found), "{key}: {found} after {acked}");
    }
}
