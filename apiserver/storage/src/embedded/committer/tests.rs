//! What the thread begins by itself, under a clock of the test.

use super::*;
use crate::embedded::tests::noise;

fn write(key: &str, value: &str) -> (Op, oneshot::Receiver<Result<TxnOutcome, StoreError>>) {
    let value = Some(Bytes::copy_from_slice(value.as_bytes()));
    let txn = Txn { key: key.into(), condition: Condition::Absent, guard: None, value, ttl: None };
    let (reply, answer) = oneshot::channel();
    let budget = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
    (Op::Write { txn, packed: None, reply, _budget: budget }, answer)
}

#[test]
fn a_full_disk_is_tried_once_a_second_and_told_of_once() {
    let dir = tempfile::tempdir().unwrap();
    let opened = disk::open(&dir.path().join("store.db")).unwrap();
    opened.writer.pragma_update(None, "max_page_count", 20).unwrap();
    let shared = Arc::new(Shared::new(opened.state, None));
    let (mut committer, _publisher) = Committer::new(shared.clone(), Some((opened.writer, opened.trimmed)), Vec::new());
    let start = Instant::now();
    // Large values first, then small ones into what room is left.
    for size in [10_000, 1] {
        let refused = (0..).find_map(|n| {
            let (op, mut answer) = write(&format!("/{size}/{n}"), &noise(size));
            committer.commit(vec![op], start);
            answer.try_recv().unwrap().err()
        });
        assert_eq!(refused, Some(StoreError::Full));
    }
    // A key that is due, and history that can go.
    let due = shared.present.state().tree.get("/1/0").unwrap().mod_revision();
    committer.expiries.insert((0, due, "/1/0".into()));
    committer.commit(vec![Op::Compact { revision: due, reply: None }], start);
    let (mut now, mut attempts) = (start + FULL_PAUSE, 0);
    while now < start + 11 * FULL_PAUSE {
        committer.commit(Vec::new(), now);
        attempts += 1;
        now = committer.alarm(now).unwrap();
    }
    assert_eq!(attempts, 10, "in ten seconds");
    assert!(committer.full_until.is_some(), "it was told, and not that it is over");
    // A caller does not wait for the next attempt.
    let writer = committer.writer.as_ref().unwrap();
    writer.pragma_update(None, "max_page_count", 1000).unwrap();
    let (op, mut answer) = write("/b", "x");
    committer.commit(vec![op], now - FULL_PAUSE / 2);
    assert!(matches!(answer.try_recv().unwrap(), Ok(TxnOutcome::Done { .. })));
    assert!(shared.present.state().tree.get("/1/0").is_some() && committer.full_until.is_some());
    committer.commit(Vec::new(), now);
    assert!(shared.present.state().tree.get("/1/0").is_none() && committer.full_until.is_none());
    assert_eq!(committer.trimmed, due);
    assert_eq!(committer.alarm(now), None, "nothing is left to do");
}
