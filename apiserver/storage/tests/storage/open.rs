//! Files that must be refused, each with a line that says what to do.

use std::{
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use apiserver_storage::{Condition, Embedded, OpenError, Store, embedded::maintenance};

use crate::common::{done, put};

/// A store with 200 objects of which some were changed, closed.
async fn filled(dir: &Path) -> PathBuf {
    let path = dir.join("new/store.db");
    let store = Embedded::open(&path).unwrap();
    for n in 0..200 {
        let revision = done(&store, put(&format!("/a/{n:03}"), Condition::Absent, &format!("value-{n:03}"))).await;
        if n % 10 == 0 {
            done(&store, put(&format!("/a/{n:03}"), Condition::ModRevision(revision), "changed")).await;
        }
    }
    path
}

fn refused(path: &Path) -> OpenError {
    let error = Embedded::open(path).err().expect("it is refused");
    let text = error.to_string();
    assert!(!text.contains('\n') && text.contains(&*path.file_name().unwrap().to_string_lossy()), "{text}");
    error
}

#[tokio::test]
async fn a_second_engine_is_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path()).await;
    let first = Embedded::open(&path).unwrap();
    assert!(matches!(refused(&path), OpenError::InUse { .. }));
    let link = dir.path().join("store.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(refused(&link), OpenError::InUse { .. }), "by another name");
    drop(first);
    assert_eq!(Embedded::open(&path).unwrap().count("/a/"), 200);
}

#[tokio::test]
async fn a_log_whose_file_is_gone_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let (path, lost) = (dir.path().join("store.db"), dir.path().join("lost.db"));
    let store = Embedded::open(&path).unwrap();
    done(&store, put("/a/b", Condition::Absent, "acknowledged")).await;
    let log = dir.path().join("lost.db-wal");
    std::fs::copy(dir.path().join("store.db-wal"), &log).unwrap();
    let before = std::fs::read(&log).unwrap();
    assert!(!before.is_empty());
    assert!(matches!(refused(&lost), OpenError::Damaged { .. }), "missing");
    let file = std::fs::read(dir.path().join("store.db")).unwrap();
    // Nothing, a byte, less and more than SQLite reads of it before it says no.
    for length in [0, 1, 100, 512, 4096] {
        let kept = file.get(..length).unwrap();
        std::fs::write(&lost, kept).unwrap();
        assert!(matches!(refused(&lost), OpenError::Damaged { .. }), "{length} bytes");
        let told = maintenance::check(&lost).map(|report| report.findings.len());
        assert!(matches!(told, Err(OpenError::Damaged { .. }) | Ok(1..)), "{length} bytes: {told:?}");
        let copy = maintenance::backup(&lost, &dir.path().join("copy.db"));
        assert!(matches!(copy, Err(OpenError::Damaged { .. })), "{length} bytes: {copy:?}");
        assert!(matches!(maintenance::compact(&lost), Err(OpenError::Damaged { .. })), "{length} bytes");
        assert!(std::fs::read(&lost).unwrap() == kept && std::fs::read(&log).unwrap() == before, "{length} bytes");
    }
}

#[tokio::test]
async fn closing_leaves_one_file_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path()).await;
    let moved = dir.path().join("moved.db");
    std::fs::rename(&path, &moved).unwrap();
    let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["store.db.lock"]);
    let store = Embedded::open(&moved).unwrap();
    assert_eq!((store.count("/a/"), store.revision()), (200, 221));
}

#[test]
fn files_of_others_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "dear diary, ".repeat(1000)).unwrap();
    assert!(matches!(refused(&text), OpenError::Foreign { .. }));
    assert_eq!(std::fs::read(&text).unwrap().len(), 12_000);

    let other = dir.path().join("other.db");
    let connection = rusqlite::Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE contacts (name TEXT)").unwrap();
    drop(connection);
    let before = std::fs::read(&other).unwrap();
    assert!(matches!(refused(&other), OpenError::Foreign { .. }));
    assert_eq!(std::fs::read(&other).unwrap(), before);
}

#[tokio::test]
async fn a_newer_format_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path()).await;
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 3).unwrap();
    assert!(matches!(refused(&path), OpenError::Newer { found: 3, .. }));
}

#[tokio::test]
async fn places_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(refused(dir.path()), OpenError::Path { .. }), "a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Embedded::open(file.join("store.db")).err().unwrap();
    assert!(matches!(&error, OpenError::Path { path, .. } if *path == file), "{error}");
}

#[tokio::test]
async fn damage_is_seen() {
    type Damage = fn(&Path);
    let damage: [(&str, Damage); 5] = [
        ("a missing row", |path| sql(path, "DELETE FROM log WHERE rev = 100")),
        ("a changed row", |path| sql(path, "UPDATE log SET create_rev = 3 WHERE rev = 100")),
        ("a flipped bit in a value", |path| overwrite(path, b"value-123", b"value-122")),
        ("a flipped bit in a key", |path| overwrite(path, b"/a/123", b"/a/124")),
        ("pages of zeros", |path| {
            let mut file = std::fs::File::options().write(true).open(path).unwrap();
            file.seek(SeekFrom::Start(8192)).unwrap();
            file.write_all(&[0; 8192]).unwrap();
        }),
    ];
    for (what, damage) in damage {
        let dir = tempfile::tempdir().unwrap();
        let path = filled(dir.path()).await;
        damage(&path);
        let error = refused(&path);
        assert!(matches!(error, OpenError::Damaged { .. }), "{what}: {error}");
    }
}

fn sql(path: &Path, statement: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    assert_eq!(connection.execute(statement, []).unwrap(), 1);
}

fn overwrite(path: &Path, old: &[u8], new: &[u8]) {
    let mut bytes = Vec::new();
    std::fs::File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    let at = bytes.windows(old.len()).position(|w| w == old).expect("it is in the file");
    bytes[at..at + new.len()].copy_from_slice(new);
    std::fs::write(path, bytes).unwrap();
}
