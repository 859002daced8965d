//! Durable creates per second of the embedded engine beside SQLite alone, on one machine in one run.
//!
//! Both are asked by as many threads as there are clients, each with one write under way: an object of 1.5 KB. SQLite
//! alone is its best use that is durable: a write-ahead log with a sync for each commit, one thread that puts what
//! waits (at most 512) into one transaction, keyed by a growing number. It checks nothing and can read nothing else.
//! Rounds alternate, so that what else the machine does meets both; the median of each is told.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a benchmark may panic")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use apiserver_storage::{Condition, Embedded, Store, Txn, TxnOutcome};
use rusqlite::Connection;

const CLIENTS: [usize; 3] = [1, 8, 64];
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);
const BATCH_MAX: usize = 512;

fn main() {
    println!("| clients | fairgate: creates/s | SQLite alone: inserts/s | share |\n|---|---|---|---|");
    for clients in CLIENTS {
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            rates[0].push(fairgate(&directory.path().join("store.db"), clients));
            rates[1].push(sqlite(&directory.path().join("raw.db"), clients));
        }
        let [ours, raw] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!("| {clients} | {ours:.0} | {raw:.0} | {:.0} % |", 100.0 * ours / raw);
    }
}

/// 1.5 KB of JSON, about 40 % of it random hex digits.
fn object(n: u64) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut digits = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        format!("{state:016x}")
    };
    let random: String = (0..38).map(|_| digits()).collect();
    let fixed = "\"kubernetes.io/some-annotation\":\"some value\",".repeat(20);
    format!("{{\"metadata\":{{{fixed}\"name\":\"object-{n}\"}},\"data\":\"{random}\"}}").into_bytes()
}

/// Writes from so many threads until the time is over; writes per second.
fn rate<C: FnMut(u64)>(clients: usize, client: impl Fn() -> C + Sync) -> f64 {
    let (over, next) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut write = client();
                while !over.load(Ordering::Relaxed) {
                    write(next.fetch_add(1, Ordering::Relaxed));
                }
            });
        }
        std::thread::sleep(ROUND);
        over.store(true, Ordering::Relaxed);
    });
    next.into_inner() as f64 / start.elapsed().as_secs_f64()
}

fn fairgate(path: &Path, clients: usize) -> f64 {
    let store = Arc::new(Embedded::open(path).unwrap());
    rate(clients, || {
        let store = store.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        move |n| {
            let key = format!("/registry/core/configmaps/2x8k7f/default/object-{n}").into();
            let value = Some(object(n).into());
            let create = Txn { key, condition: Condition::Absent, guard: None, value, ttl: None };
            let outcome = runtime.block_on(store.txn(create)).unwrap();
            assert!(matches!(outcome, TxnOutcome::Done { .. }));
        }
    })
}

type Write = (u64, Vec<u8>, mpsc::SyncSender<()>);

fn sqlite(path: &Path, clients: usize) -> f64 {
    let connection = Connection::open(path).unwrap();
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    connection.pragma_update(None, "synchronous", "FULL").unwrap();
    connection
        .execute_batch("CREATE TABLE log (rev INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB NOT NULL)")
        .unwrap();
    let (writes, waiting) = mpsc::sync_channel::<Write>(BATCH_MAX);
    let committer = std::thread::spawn(move || commit(connection, &waiting));
    let rate = rate(clients, || {
        let writes = writes.clone();
        move |n| {
            let (done, acknowledged) = mpsc::sync_channel(1);
            writes.send((n, object(n), done)).unwrap();
            acknowledged.recv().unwrap();
        }
    });
    drop(writes);
    committer.join().unwrap();
    rate
}

fn commit(mut connection: Connection, waiting: &mpsc::Receiver<Write>) {
    while let Ok(first) = waiting.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(waiting.try_iter().take(BATCH_MAX - 1)).collect();
        let tx = connection.transaction().unwrap();
        {
            let mut insert = tx.prepare_cached("INSERT INTO log VALUES (?1, ?2, ?3)").unwrap();
            for (n, value, _) in &batch {
                let key = format!("/registry/core/configmaps/2x8k7f/default/object-{n}");
                insert.execute(rusqlite::params![n.cast_signed(), key, value]).unwrap();
            }
        }
        tx.commit().unwrap();
        batch.into_iter().for_each(|(.., done)| done.send(()).unwrap());
    }
}
