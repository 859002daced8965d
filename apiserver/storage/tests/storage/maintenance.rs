//! What operators do with the file of a store.

use std::{path::Path, sync::Arc};

use apiserver_storage::{
    Condition, Embedded, OpenError, Range, Store, StoreError,
    embedded::maintenance::{backup, check, compact, restore},
};

use crate::common::{delete, done, put, range, unpacked};

/// 100 objects; the first ten were changed, of them five deleted.
async fn fill(store: &Embedded) {
    for n in 0..100 {
        let at = done(store, put(&format!("/a/{n:03}"), Condition::Absent, &format!("value-{n:03}"))).await;
        if n < 10 {
            let at = done(store, put(&format!("/a/{n:03}"), Condition::ModRevision(at), "changed")).await;
            if n < 5 {
                done(store, delete(&format!("/a/{n:03}"), at)).await;
            }
        }
    }
}

fn sql(path: &Path, statement: &str) {
    assert_eq!(rusqlite::Connection::open(path).unwrap().execute(statement, []).unwrap(), 1);
}

#[tokio::test]
async fn check_tells_what_is_there_while_it_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Embedded::open(&path).unwrap();
    fill(&store).await;
    let report = check(&path).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
    assert_eq!((report.revision, report.compacted, report.objects), (116, 0, 95));
    assert_eq!(report.old_versions, 20, "ten first versions, five second ones, five deletions");
    store.compact(116).await.unwrap();
    done(&store, put("/b", Condition::Absent, "")).await;
    let report = check(&path).unwrap();
    assert_eq!((report.findings.as_slice(), report.compacted, report.objects), (&[][..], 116, 96));
    drop(store);
    assert_eq!(check(&path).unwrap().findings, Vec::<String>::new());
}

#[tokio::test]
async fn check_tells_what_is_wrong_and_where() {
    let damage = [
        ("DELETE FROM log WHERE rev = 50", "revision 50: is missing"),
        ("UPDATE log SET value = x'00' WHERE rev = 50", "the checksum of revision 50 does not match"),
        ("UPDATE meta SET trimmed = 7", "meta: trimmed to 7 but compacted to 0"),
    ];
    for (statement, finding) in damage {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        fill(&Embedded::open(&path).unwrap()).await;
        sql(&path, statement);
        assert_eq!(check(&path).unwrap().findings, [finding]);
        let copy = dir.path().join("copy.db");
        assert!(matches!(backup(&path, &copy), Err(OpenError::Damaged { .. })));
        assert!(matches!(compact(&path), Err(OpenError::Damaged { .. })));
        assert!(!copy.exists());
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    for nothing in [check(&path).err(), compact(&path).err(), backup(&path, &dir.path().join("copy.db")).err()] {
        assert!(matches!(&nothing, Some(OpenError::Missing { path: missing }) if *missing == path), "{nothing:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is made");
    std::fs::write(&path, "text ".repeat(1000)).unwrap();
    assert!(matches!(check(&path), Err(OpenError::Foreign { .. })));
    assert!(matches!(check(dir.path()), Err(OpenError::Path { .. })));
    // An empty file is what a server begins with, but not what one leaves.
    std::fs::write(&path, "").unwrap();
    assert!(matches!(check(&path), Err(OpenError::Foreign { .. })));
    assert!(matches!(compact(&path), Err(OpenError::Foreign { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[tokio::test]
async fn damaged_pages_are_told_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    fill(&Embedded::open(&path).unwrap()).await;
    let mut bytes = std::fs::read(&path).unwrap();
    let page = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    bytes[2 * page..3 * page].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let findings = check(&path).unwrap().findings;
    assert!(findings[0].starts_with("pages: ") && findings[0].contains("page 3"), "{findings:?}");
    assert!(findings.iter().all(|line| !line.contains("***")), "{findings:?}");
    // Of a backup, other advice.
    let to = dir.path().join("some/where/store.db");
    let error = restore(&path, &to).unwrap_err();
    assert!(matches!(&error, OpenError::BadBackup { path: bad, .. } if *bad == path), "{error}");
    assert!(!dir.path().join("some").exists());
}

#[tokio::test]
async fn all_that_is_in_the_way_of_a_restore_is_named_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (path, new) = (dir.path().join("store.db"), dir.path().join("new.db"));
    fill(&Embedded::open(&path).unwrap()).await;
    std::fs::write(dir.path().join("new.db-wal"), "").unwrap();
    std::fs::write(dir.path().join("new.db-shm"), "").unwrap();
    let error = restore(&path, &new).unwrap_err().to_string();
    assert!(error.contains("new.db-wal and ") && error.contains("new.db-shm;"), "{error}");
}

/// What was made for a copy that cannot be made goes again.
#[cfg(unix)]
#[tokio::test]
async fn a_target_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    fill(&Embedded::open(&path).unwrap()).await;
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for to in [file.join("copy.db"), file.join("below/copy.db")] {
        for error in [backup(&path, &to).unwrap_err(), restore(&path, &to).unwrap_err()] {
            let OpenError::Path { path: named, reason } = &error else { panic!("{error}") };
            assert!(named.starts_with(&file) && !reason.contains("writable"), "{error}");
        }
    }
}

#[tokio::test]
async fn compaction_gives_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Embedded::open(&path).unwrap();
    fill(&store).await;
    let mut last = Condition::Absent;
    for n in 0..100_u32 {
        // Such as cannot be compressed.
        let digits = (0..5_000).map(|i| format!("{:08x}", (n * 5_000 + i).wrapping_mul(2_654_435_761)));
        last = Condition::ModRevision(done(&store, put("/large", last, &digits.collect::<String>())).await);
    }
    assert!(matches!(compact(&path), Err(OpenError::InUse { .. })));
    let revision = store.revision();
    drop(store);
    let (before, after) = compact(&path).unwrap();
    assert!(after < before / 10, "{before} -> {after}");
    let store = Embedded::open(&path).unwrap();
    assert_eq!((store.revision(), store.count("/")), (revision, 96));
    let gone = store.watch("/", revision - 1).await.err();
    assert_eq!(gone, Some(StoreError::Compacted { requested: revision - 1, oldest: revision }));
    assert_eq!(done(&store, put("/b", Condition::Absent, "")).await, revision + 1);
    drop(store);
    assert_eq!(check(&path).unwrap().findings, Vec::<String>::new());
    assert!(compact(&dir.path().join("none.db")).is_err());
    assert!(!dir.path().join("none.db").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_of_one_moment_while_others_write() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("store.db"), dir.path().join("copy.db"));
    let store = Arc::new(Embedded::open(&path).unwrap());
    fill(&store).await;
    // Pairs of keys that are written one after the other: a copy has never the second without the first.
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for n in 0..2000 {
                done(&*store, put(&format!("/p/{n}/first"), Condition::Absent, "")).await;
                done(&*store, put(&format!("/p/{n}/second"), Condition::Absent, "")).await;
            }
        }
    });
    while store.revision() < 1000 {
        tokio::task::yield_now().await;
    }
    let (from, to) = (path.clone(), copy.clone());
    let revision = tokio::task::spawn_blocking(move || backup(&from, &to)).await.unwrap().unwrap();
    assert!(revision >= 1000);
    assert!(matches!(backup(&path, &copy), Err(OpenError::Exists { .. })));
    writer.await.unwrap();

    let new = dir.path().join("new/store.db");
    let restored_at = restore(&copy, &new).unwrap();
    assert_eq!(restored_at, revision + 1_000_000);
    assert!(matches!(restore(&copy, &new), Err(OpenError::Exists { .. })));
    let restored = Embedded::open(&new).unwrap();
    assert_eq!(restored.revision(), restored_at);
    let then = store.range(Range { revision: Some(revision), ..range("/") }).await.unwrap();
    let now = restored.range(range("/")).await.unwrap();
    assert_eq!(unpacked(&now), unpacked(&then), "what the store held at that revision");
    let refused = restored.watch("/", revision).await.err();
    assert_eq!(refused, Some(StoreError::Compacted { requested: revision, oldest: restored_at }));
    assert_eq!(done(&restored, put("/new", Condition::Absent, "")).await, restored_at + 1);
    drop(restored);
    assert_eq!(check(&new).unwrap().findings, Vec::<String>::new());
    let left = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(left.into_iter().all(|name| !name.contains("unfinished")));
}
