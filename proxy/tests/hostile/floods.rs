//! Memory under floods.

use proxy::Gateway;
use tokio::task::JoinSet;

use crate::{Record, Row, h1, h2, limits, outcome, paths, support::*};

/// What the floods may leave behind: far more than is needed, far less than they would take if nothing were bounded.
const GROWTH_MAX_KIB: usize = 64 << 10;
const BATCHES: usize = 100;
const BATCH: usize = 100;

/// Resident memory of this process, of which the gateway is a part.
fn resident_kib() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4
}

/// A batch of connections at once, each with one of the inputs.
async fn batch(gateway: &std::sync::Arc<Gateway>, rows: &std::sync::Arc<Vec<Row>>, number: usize) {
    let mut clients = JoinSet::new();
    for i in 0..BATCH {
        let (gateway, rows) = (gateway.clone(), rows.clone());
        clients.spawn(async move { outcome(&gateway, &rows[(number * BATCH + i) % rows.len()].sent).await });
    }
    while let Some(answer) = clients.join_next().await {
        answer.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_hostile_connections_leave_no_memory_behind() {
    let record = Record::default();
    let gateway =
        Gateway::start(proxy::GatewayOptions { limits: limits(), ..options(vec![record.shard().await]) }).unwrap();
    let gateway = std::sync::Arc::new(gateway);
    // What waits for a second is left out: it would only take long.
    let is_quick = |row: &Row| {
        ["not go on", "no byte of", "over the limit"].iter().all(|slow| !row.what.contains(slow))
            && row.answer != "closed"
    };
    let (mut quick, mut floods) = (Vec::new(), Vec::new());
    for row in [paths::rows(), h1::rows(), h2::rows()].into_iter().flatten().filter(is_quick) {
        let is_flood = row.shown.contains("10,000") || row.shown.contains("1,000 references");
        if is_flood { floods.push(row) } else { quick.push(row) }
    }
    let (quick, floods) = (std::sync::Arc::new(quick), std::sync::Arc::new(floods));
    // Warm: allocators and pools keep what they once had.
    batch(&gateway, &quick, 0).await;
    let before = resident_kib();
    for number in 0..BATCHES {
        batch(&gateway, &quick, number).await;
    }
    let between = resident_kib();
    batch(&gateway, &floods, 0).await;
    let after = resident_kib();
    println!(
        "resident: {before} KiB before, {between} KiB after {} hostile connections, {after} KiB after {BATCH} floods",
        BATCHES * BATCH
    );
    let growth = after.max(between).saturating_sub(before);
    assert!(growth < GROWTH_MAX_KIB, "{growth} KiB more than before");
    let (status, _, body) = once(&gateway, get("/clusters/org:acme/api")).await;
    assert_eq!((status.as_u16(), body.as_str()), (200, "the shard's"), "it serves as before");
}
