//! Kills a process that writes, again and again on the same file, and looks at what is left.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Instant,
};

use apiserver_storage::{Condition, Embedded, Store, StoreError, TxnOutcome, embedded::maintenance};

use crate::common::{
    changes_until,
    etcd::{Cluster, PATIENCE},
    put, range, unpacked,
};

/// Path of a file, or address of an etcd, for the child.
const CHILD: &str = "FAIRGATE_TEST_CRASH_CHILD";
const PREFIX: &str = "/fairgate";
const WRITERS: usize = 16;

/// How often is killed: a few times in an ordinary run, more often with `FAIRGATE_TEST_KILLS=200`.
fn kills(ordinarily: usize) -> usize {
    std::env::var("FAIRGATE_TEST_KILLS").map_or(ordinarily, |n| n.parse().expect("FAIRGATE_TEST_KILLS is a number"))
}

/// The next of a fixed row of random numbers.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).unwrap()
}

/// Runs only as the child of the tests below: writes until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let store: Arc<dyn Store> = if place.starts_with("http") {
        let options = apiserver_storage::etcd::Options {
            servers: vec![place],
            prefix: PREFIX.into(),
            ca_file: None,
            identity: None,
            credentials: None,
        };
        let mut attempts = 10; // etcd may be away just now
        loop {
            attempts -= 1;
            match apiserver_storage::Etcd::connect(&options).await {
                Ok(store) => break Arc::new(store),
                Err(error) => assert!(attempts > 0, "{error}"),
            }
        }
    } else {
        Arc::new(Embedded::open(place).unwrap())
    };
    let started = store.revision();
    let writers = (0..WRITERS).map(|w| tokio::spawn(write_forever(store.clone(), w))).collect::<Vec<_>>();
    // A compaction is under way when the kill comes.
    if std::env::var(CHILD).is_ok_and(|place| !place.starts_with("http")) {
        store.compact(started).await.unwrap();
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

/// Counts up in keys and prints each acknowledged write: `ack <revision> <key> <number>`.
async fn write_forever(store: Arc<dyn Store>, writer: usize) {
    for step in 0.. {
        let key = format!("/w{writer}/{}", step % 7);
        let present = match store.get(&key).await {
            Ok(present) => present,
            Err(StoreError::Unavailable(_)) => continue,
            Err(other) => panic!("{other}"),
        };
        let number = present.as_ref().map_or(0, |kv| number(&kv.value) + 1);
        let condition = present.map_or(Condition::Absent, |kv| Condition::ModRevision(kv.mod_revision));
        let revision = match store.txn(put(&key, condition, &format!("{number} {}", "x".repeat(step % 700)))).await {
            Ok(TxnOutcome::Done { revision }) => revision,
            // Another server was faster, or nobody knows: what is there will tell.
            Ok(TxnOutcome::Conflict(_)) | Err(StoreError::Unavailable(_) | StoreError::Uncertain(_)) => continue,
            other => panic!("{other:?}"),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "ack {revision} {key} {number}").and_then(|()| out.flush()).unwrap();
    }
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Revision, key and number of an acknowledged write.
type Ack = (u64, String, u64);

fn start_child(place: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture"])
        .env(CHILD, place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Calls `acknowledged` for each acknowledgement that a child prints, until it has ended.
fn read_acks(mut out: impl BufRead, acknowledged: &mut impl FnMut(Ack)) {
    let mut line = String::new();
    while out.read_line(&mut line).unwrap() > 0 {
        // The last line may be cut short; the harness prints lines of its own.
        if let (Some(text), true) = (line.split("ack ").nth(1), line.ends_with('\n')) {
            let mut words = text.split_whitespace();
            let mut next = || words.next().unwrap().to_owned();
            acknowledged((next().parse().unwrap(), next(), next().parse().unwrap()));
        }
        line.clear();
    }
}

/// Starts the child, kills it after so many acknowledgements and returns all that it made.
fn kill_after(path: &Path, lines: usize) -> Vec<Ack> {
    let mut child = start_child(path.to_str().unwrap());
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut acks = Vec::new();
    let mut killed = false;
    read_acks(out, &mut |ack| {
        acks.push(ack);
        if acks.len() >= lines && !killed {
            child.kill().unwrap();
            killed = true;
        }
    });
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
    let mut state = 12_345_u64;
    let (kills, mut seen) = (kills(24), 1);
    for round in 0..kills {
        for (revision, key, number) in kill_after(&path, 1 + random(&mut state) % 1500) {
            let twice = acknowledged.insert(revision, (key.clone(), number));
            assert_eq!(twice, None, "revision {revision} was acknowledged twice");
        }
        // In between, the next child finds what the kill left.
        if round % 3 == 1 {
            continue;
        }
        assert_eq!(maintenance::check(&path).unwrap().findings, Vec::<String>::new());
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
    assert!(acknowledged.len() > kills * 100);
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

/// An API server on etcd, and what it was acknowledged.
struct Server {
    child: Child,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(place: &str, acknowledged: &Arc<Mutex<Vec<Ack>>>) -> Self {
        let mut child = start_child(place);
        let (out, acknowledged) = (BufReader::new(child.stdout.take().unwrap()), acknowledged.clone());
        let reader = std::thread::spawn(move || read_acks(out, &mut |ack| acknowledged.lock().unwrap().push(ack)));
        Self { child, reader: Some(reader) }
    }

    fn kill(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it ended by itself");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
    }
}

/// Two servers with 16 writers each on the same keys of one etcd; in turn the one, etcd, and the other are killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_etcd_neither_its_death_nor_that_of_a_server_loses_anything() {
    let mut cluster = Cluster::single();
    let observer = cluster.open(PREFIX).await;
    let mut watch = observer.watch("/", observer.revision()).await.unwrap();
    let address = format!("http://127.0.0.1:{}", cluster.members[0].client_port);
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let mut servers = [(); 2].map(|()| Server::start(&address, &acknowledged));
    let (mut state, mut last, mut seen) = (54_321_u64, 0, Vec::new());
    for round in 0..kills(6) {
        let enough = acknowledged.lock().unwrap().len() + 1 + random(&mut state) % 1500;
        let begun = Instant::now();
        while acknowledged.lock().unwrap().len() < enough {
            assert!(begun.elapsed() < PATIENCE, "the writers do not go on");
            assert!(servers.iter_mut().all(|s| s.child.try_wait().unwrap().is_none()), "a server ended by itself");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        match round % 3 {
            1 => {
                cluster.members[0].kill();
                cluster.members[0].start();
            }
            which => {
                let server = &mut servers[which / 2];
                server.kill();
                *server = Server::start(&address, &acknowledged);
            }
        }
        // The one watch goes on all the time; what it has is taken before its bounded buffer is full.
        last = acknowledged.lock().unwrap().iter().map(|ack| ack.0).max().unwrap_or(last);
        seen.extend(changes_until(&mut watch, last).await);
    }
    servers.iter_mut().for_each(Server::kill);
    let present = observer.range(range("/")).await.unwrap().revision;
    last = acknowledged.lock().unwrap().iter().map(|ack| ack.0).fold(present, u64::max);
    seen.extend(changes_until(&mut watch, last).await);

    let mut history = BTreeMap::<u64, (String, u64)>::new();
    let mut numbers = BTreeMap::<String, u64>::new();
    for (revision, key, value, _) in seen {
        let number = number(value.unwrap().as_bytes());
        assert!(history.last_key_value().is_none_or(|(before, _)| *before < revision), "{revision} out of order");
        // A gap, a repeated event or a write on an outdated state would break the row.
        assert_eq!(numbers.insert(key.clone(), number).map_or(0, |before| before + 1), number, "{key} at {revision}");
        history.insert(revision, (key, number));
    }
    let acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    let count = acknowledged.len();
    let by_revision: BTreeMap<u64, (String, u64)> = acknowledged.into_iter().map(|(r, k, n)| (r, (k, n))).collect();
    assert_eq!(by_revision.len(), count, "each revision was acknowledged once");
    for (revision, ack) in &by_revision {
        assert_eq!(history.get(revision), Some(ack), "acknowledged revision {revision}");
    }
    // Who starts now reads the same.
    for kv in unpacked(&cluster.open(PREFIX).await.range(range("/")).await.unwrap()) {
        assert_eq!(numbers.remove(&*kv.key), Some(number(&kv.value)), "{}", kv.key);
    }
    assert!(numbers.is_empty());
}
