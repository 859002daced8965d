//! Durable creates per second of the embedded engine beside SQLite alone, on one machine in one run.
//!
//! Both are asked by as many tasks as there are clients, each with one write under way: an object of 1.5 KB. SQLite
//! alone is its best use that is durable: a write-ahead log with a sync for each commit, one thread that puts what
//! waits (at most 512) into one transaction, keyed by a growing number. It checks nothing and can read nothing else.
//! Rounds alternate, so that what else the machine does meets both, each in a process of its own, so that none finds
//! the memory or the threads of another; the median of each is told.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a benchmark may panic")]

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use apiserver_storage::{Condition, Embedded, Store, Txn, TxnOutcome};
use rusqlite::Connection;
use tokio::sync::oneshot;

/// As in the program, for both.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CLIENTS: [usize; 3] = [1, 8, 64];
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(3);
const BATCH_MAX: usize = 512;
/// Set for a process that does one round: which engine, how many clients.
const CHILD: &str = "FAIRGATE_BENCH_ROUND";

fn main() {
    if let Ok(round) = std::env::var(CHILD) {
        let (engine, clients) = round.split_once(' ').unwrap();
        let (run, clients) = (if engine == "fairgate" { fairgate } else { sqlite }, clients.parse().unwrap());
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        println!("{}", run(&directory.path().join("store.db"), clients));
        return;
    }
    println!("| clients | fairgate: creates/s | SQLite alone: inserts/s | share |\n|---|---|---|---|");
    for clients in CLIENTS {
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (engine, rates) in ["fairgate", "SQLite"].iter().zip(&mut rates) {
                rates.push(round(engine, clients));
            }
        }
        let [ours, raw] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!("| {clients} | {ours:.0} | {raw:.0} | {:.0} % |", 100.0 * ours / raw);
    }
}

/// One round in a process of its own.
fn round(engine: &str, clients: usize) -> f64 {
    let child = Command::new(std::env::current_exe().unwrap()).env(CHILD, format!("{engine} {clients}")).output();
    let child = child.unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    String::from_utf8(child.stdout).unwrap().trim().parse().unwrap()
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

/// Writes of so many tasks, on as many threads as there are processors, until the time is over; writes per second.
fn rate<F: Future<Output = ()> + Send>(clients: usize, write: impl Fn(u64) -> F + Send + Sync + 'static) -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let shared = Arc::new((write, AtomicBool::new(false), AtomicU64::new(0)));
    let start = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let shared = shared.clone();
            runtime.spawn(async move {
                let (write, over, next) = &*shared;
                while !over.load(Ordering::Relaxed) {
                    write(next.fetch_add(1, Ordering::Relaxed)).await;
                }
            })
        })
        .collect();
    std::thread::sleep(ROUND);
    shared.1.store(true, Ordering::Relaxed);
    tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
    shared.2.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

fn fairgate(path: &Path, clients: usize) -> f64 {
    let store = Arc::new(Embedded::open(path).unwrap());
    rate(clients, move |n| {
        let store = store.clone();
        async move {
            let key = format!("/registry/core/configmaps/2x8k7f/default/object-{n}").into();
            let value = Some(object(n).into());
            let create = Txn { key, condition: Condition::Absent, guard: None, value, ttl: None };
            let outcome = store.txn(create).await.unwrap();
            assert!(matches!(outcome, TxnOutcome::Done { .. }));
        }
    })
}

type Write = (u64, Vec<u8>, oneshot::Sender<()>);

fn sqlite(path: &Path, clients: usize) -> f64 {
    let connection = Connection::open(path).unwrap();
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    connection.pragma_update(None, "synchronous", "FULL").unwrap();
    connection
        .execute_batch("CREATE TABLE log (rev INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB NOT NULL)")
        .unwrap();
    let (writes, waiting) = mpsc::channel::<Write>();
    let committer = std::thread::spawn(move || commit(connection, &waiting));
    let rate = rate(clients, move |n| {
        let (done, acknowledged) = oneshot::channel();
        writes.send((n, object(n), done)).unwrap();
        async move { acknowledged.await.unwrap() }
    });
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
