//! Memory and start-up time of the embedded engine: what an object costs, and what a store with 1,000,000 objects in
//! 100,000 logical clusters costs.
//!
//! Each store is written by one process and opened by another, whose resident memory is read before and after: what is
//! told is what stays for good, allocator included. Resident memory is read from `/proc`: Linux only.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a benchmark may panic")]

use std::{path::Path, process::Command, sync::Arc, time::Instant};

use apiserver_storage::{Condition, Embedded, Store, Txn, TxnOutcome};
use futures_util::{StreamExt, stream};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Path of a store that the child is to open.
const CHILD: &str = "FAIRGATE_BENCH_MEMORY_CHILD";
/// Set: the child writes something and dies.
const DIES: &str = "FAIRGATE_BENCH_MEMORY_DIES";
/// Writes that are under way together.
const WRITES: usize = 2048;

/// An object of the kind's number `n` in a cluster.
type Object = fn(u64) -> String;

fn main() {
    if let Ok(path) = std::env::var(CHILD) {
        return open(Path::new(&path));
    }
    println!(
        "| objects | clusters | bytes of each | memory of each | memory of all | opened in | after a crash | file |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (what, object, objects, clusters) in [
        ("small configmaps", small as Object, 100_000, 10_000),
        ("configmaps of 1.5 KB, 40 % random", large, 100_000, 10_000),
        ("small configmaps", small, 1_000_000, 100_000),
    ] {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = directory.path().join("store.db");
        let bytes = fill(&path, object, objects, clusters);
        let size = path.metadata().unwrap().len();
        let (memory, seconds) = child(&path);
        Command::new(std::env::current_exe().unwrap()).env(CHILD, &path).env(DIES, "1").output().unwrap();
        let (_, after_crash) = child(&path);
        println!(
            "| {objects} {what} | {clusters} | {} | {:.0} | {:.0} MiB | {seconds:.2} s | {after_crash:.2} s | {} MiB |",
            bytes / objects,
            memory as f64 / objects as f64,
            memory as f64 / f64::from(1 << 20),
            size >> 20,
        );
    }
}

/// Writes the objects; the sum of their sizes.
fn fill(path: &Path, object: Object, objects: u64, clusters: u64) -> u64 {
    let store = Arc::new(Embedded::open(path).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let writes = stream::iter(0..objects).map(|n| {
        let key = format!("/registry/core/configmaps/{:016x}/default/object-{n}", random(n % clusters)).into();
        let (value, store) = (object(n), store.clone());
        let bytes = value.len() as u64;
        async move {
            let create = Txn { key, condition: Condition::Absent, guard: None, value: Some(value.into()), ttl: None };
            assert!(matches!(store.txn(create).await.unwrap(), TxnOutcome::Done { .. }));
            bytes
        }
    });
    runtime.block_on(writes.buffer_unordered(WRITES).fold(0, |sum, bytes| async move { sum + bytes }))
}

/// Opens the store in a fresh process: memory in bytes and time in seconds.
fn child(path: &Path) -> (u64, f64) {
    let output = Command::new(std::env::current_exe().unwrap()).env(CHILD, path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (memory, seconds) = text.trim().split_once(' ').unwrap();
    (memory.parse().unwrap(), seconds.parse().unwrap())
}

fn open(path: &Path) {
    let (before, start) = (resident(), Instant::now());
    let store = Embedded::open(path).unwrap();
    if std::env::var_os(DIES).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (key, value) = ("/registry/core/configmaps/root/default/last".into(), Some(small(0).into()));
        let create = Txn { key, condition: Condition::Absent, guard: None, value, ttl: None };
        runtime.block_on(store.txn(create)).unwrap();
        std::process::abort();
    }
    println!("{} {}", resident() - before, start.elapsed().as_secs_f64());
    drop(store);
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

fn random(n: u64) -> u64 {
    let mut state = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// As the server stores what `kubectl create configmap` makes.
fn small(n: u64) -> String {
    let (a, b) = (random(n), random(!n));
    let second = n % 60;
    let time = format!("2026-03-0{}T1{}:{:02}:{second:02}Z", 1 + a % 9, b % 10, a % 60);
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"creationTimestamp":"{time}","managedFields":[{{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{".":{{}},"f:key":{{}}}}}},"manager":"kubectl-create","operation":"Update","time":"{time}"}}],"name":"object-{n}","namespace":"default","uid":"{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}"}},"data":{{"key":"{b:016x}"}}}}"#,
        a as u32,
        a >> 48,
        b & 0xfff,
        (b >> 12) & 0xfff,
        (a ^ b) & 0xffff_ffff_ffff,
    )
}

fn large(n: u64) -> String {
    let small = small(n);
    let digits: String = (0..38).map(|i| format!("{:016x}", random(n * 64 + i))).collect();
    let fixed = "a line of some configuration file\\n".repeat(14);
    format!("{},\"random\":\"{digits}\",\"fixed\":\"{fixed}\"}}}}", &small[..small.len() - 2])
}
