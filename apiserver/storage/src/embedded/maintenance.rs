//! What operators do with the file of a store: look whether it is whole, make it small, copy it, put a copy in place.
//!
//! [`check`] and [`backup`] read one consistent state, also while a server writes to the file. [`compact`] needs the
//! file for itself. Nothing is ever overwritten, and what is not finished is not there: results get their names last.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags};

use super::{
    OpenError, disk,
    log::{self, LogError, Meta, Order, Record},
};

/// Findings that are told; more are only counted.
const FINDINGS_MAX: usize = 50;
/// How far revisions jump with a restore, so that none of those that were given out after the backup is used twice
/// (etcd's `--bump-revision` with the same purpose).
const RESTORE_JUMP: u64 = 1_000_000;
/// Changes whose predecessors are deleted in one transaction.
const TRIM_STEP: u32 = 10_000;

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The last revision.
    pub revision: u64,
    /// The oldest revision that can be read.
    pub compacted: u64,
    /// Present objects.
    pub objects: u64,
    /// Sum of the sizes of their keys and values, in bytes.
    pub object_bytes: u64,
    /// Versions that are kept besides the present ones, with deletions.
    pub old_versions: u64,
    /// Size of the file and its write-ahead log, in bytes.
    pub file_bytes: u64,
    /// What is wrong and where, one line each; empty if nothing is.
    pub findings: Vec<String>,
    /// Further findings that are not listed.
    pub more_findings: u64,
}

/// Reads the whole file and tells what it holds and what is wrong with it.
///
/// # Errors
/// The file cannot be read, is no store or one of a later version. Damage is no error but a finding.
pub fn check(path: &Path) -> Result<Report, OpenError> {
    let mut connection = reader(path)?;
    let size = |path: PathBuf| path.metadata().map_or(0, |m| m.len());
    let file_bytes = size(path.into()) + size(disk::with_suffix(path, "-wal"));
    let mut report = Report { file_bytes, ..Report::default() };
    let read = connection.transaction().map_err(LogError::from).and_then(|tx| {
        pages(&tx, &mut report)?;
        rows(&tx, &mut report)
    });
    match read {
        Ok(()) => {}
        Err(LogError::Damaged(reason)) => report.find(reason),
        Err(LogError::Sqlite(error)) => match disk::explain(path, error) {
            OpenError::Damaged { reason, .. } => report.find(reason),
            other => return Err(other),
        },
    }
    Ok(report)
}

/// Deletes all old versions and gives the space back to the file system. Watches and pages of lists that began before
/// cannot be resumed (410, as after every compaction). Returns the sizes of the file before and after, in bytes.
///
/// # Errors
/// See [`OpenError`]; a store that is in use is refused, since its server compacts it by itself.
pub fn compact(path: &Path) -> Result<(u64, u64), OpenError> {
    // Whatever is no store stays as it is; an empty file would become one.
    drop(reader(path)?);
    let size = || path.metadata().map_or(0, |m| m.len());
    let (_lock, mut writer) = disk::open_exclusively(path)?;
    whole(path, path)?;
    let fail = |error: rusqlite::Error| disk::explain(path, error);
    let before = size();
    let Meta { revision, mut trimmed, .. } = log::meta(&writer).map_err(fail)?;
    let revision = log::last(&writer).map_err(fail)?.max(revision);
    while trimmed < revision {
        let tx = writer.transaction().map_err(fail)?;
        trimmed = log::trim(&tx, trimmed, revision, TRIM_STEP).map_err(fail)?;
        log::set_meta(&tx, &Meta { revision, compacted: revision, trimmed }).map_err(fail)?;
        tx.commit().map_err(fail)?;
    }
    writer.execute_batch("VACUUM").map_err(fail)?;
    disk::close(writer).map_err(fail)?;
    Ok((before, size()))
}

/// Copies the store as it is at one moment into a new file. Returns the revision of that moment.
///
/// # Errors
/// See [`OpenError`]; `to` exists.
pub fn backup(path: &Path, to: &Path) -> Result<u64, OpenError> {
    absent(&[to.into()])?;
    let connection = reader(path)?;
    let unfinished = Unfinished::new(to)?;
    copy(&connection, path, to, &unfinished)?;
    let report = whole(&unfinished.0, path)?;
    unfinished.name(to)?;
    Ok(report.revision)
}

/// Puts a backup in place of a store that is not there. Its revisions go on 1,000,000 later, and everything before is
/// compacted: no revision that was given out after the backup is used twice, and clients read anew what they knew.
/// Returns the revision.
///
/// # Errors
/// See [`OpenError`]; `path` exists, or the backup is damaged.
pub fn restore(backup: &Path, path: &Path) -> Result<u64, OpenError> {
    absent(&["", "-wal", "-shm"].map(|suffix| disk::with_suffix(path, suffix)))?;
    whole(backup, backup).map_err(of_backup)?;
    let directory = path.parent().filter(|d| !d.as_os_str().is_empty());
    let made = directory.map(Made::new).transpose()?;
    let unfinished = Unfinished::new(path)?;
    // Also of a store that was copied together with its write-ahead log.
    copy(&reader(backup)?, backup, path, &unfinished)?;
    let fail = |error: rusqlite::Error| disk::explain(path, error);
    let mut writer = Connection::open(&unfinished.0).map_err(fail)?;
    let tx = writer.transaction().map_err(fail)?;
    let meta = log::meta(&tx).map_err(fail)?;
    let revision = log::last(&tx).map_err(fail)?.max(meta.revision) + RESTORE_JUMP;
    log::set_meta(&tx, &Meta { revision, compacted: revision, trimmed: meta.trimmed }).map_err(fail)?;
    tx.commit().map_err(fail)?;
    writer.close().map_err(|(_, error)| fail(error))?;
    unfinished.name(path)?;
    made.into_iter().for_each(Made::keep);
    Ok(revision)
}

/// All of an open store in one file, as it is at one moment.
fn copy(connection: &Connection, from: &Path, to: &Path, unfinished: &Unfinished) -> Result<(), OpenError> {
    let no_text = || OpenError::Path { path: to.into(), reason: "the name is no text".into() };
    let name = unfinished.0.to_str().ok_or_else(no_text)?;
    connection.execute("VACUUM INTO ?1", [name]).map(drop).map_err(|error| disk::explain_copy(from, to, error))
}

/// What is wrong with a backup is mended by no other backup of it.
fn of_backup(error: OpenError) -> OpenError {
    match error {
        OpenError::Damaged { path, reason } | OpenError::Foreign { path, reason } => {
            OpenError::BadBackup { path, reason }
        }
        other => other,
    }
}

impl Report {
    fn find(&mut self, what: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what.replace('\n', " "));
        } else {
            self.more_findings += 1;
        }
    }
}

/// What SQLite itself knows of its pages.
fn pages(connection: &Connection, report: &mut Report) -> Result<(), LogError> {
    let mut check = connection.prepare("PRAGMA integrity_check(100)")?;
    let mut lines = check.query([])?;
    while let Some(line) = lines.next()? {
        let line: String = line.get(0)?;
        disk::findings(&line).for_each(|finding| report.find(finding));
    }
    Ok(())
}

/// Whether every change is there, is what was written, and fits to the one before.
fn rows(connection: &Connection, report: &mut Report) -> Result<(), LogError> {
    let meta = log::meta(connection)?;
    (report.revision, report.compacted) = (meta.revision, meta.compacted);
    if meta.trimmed > meta.compacted {
        report.find(format!("meta: trimmed to {} but compacted to {}", meta.trimmed, meta.compacted));
    }
    let mut present = HashMap::<crate::Key, Version>::new();
    let mut next = meta.compacted.max(1) + 1;
    log::visit(connection, Order::OldestFirst, |row| {
        let revision = row.get::<_, i64>(0)?.cast_unsigned();
        if revision > meta.compacted.max(1) {
            match revision - next {
                0 => {}
                1 => report.find(format!("revision {next}: is missing")),
                n => report.find(format!("revisions {next} to {}: {n} changes are missing", revision - 1)),
            }
            next = revision + 1;
        }
        report.revision = report.revision.max(revision);
        match Record::read(row) {
            Ok(record) => follow(&record, &meta, &mut present, report),
            Err(LogError::Damaged(reason)) => report.find(reason),
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    if next <= report.revision && meta.compacted < report.revision {
        report.find(format!("revisions {next} to {}: are missing at the end", report.revision));
    }
    let live = present.iter().filter(|(_, v)| !v.deleted);
    for (key, version) in live {
        report.objects += 1;
        report.object_bytes += (key.len() + version.bytes) as u64;
    }
    Ok(())
}

/// The last change of a key so far.
struct Version {
    revision: u64,
    create_revision: u64,
    deleted: bool,
    bytes: usize,
}

fn follow(record: &Record, meta: &Meta, present: &mut HashMap<crate::Key, Version>, report: &mut Report) {
    let (revision, key, bytes) = (record.revision, record.key.clone(), record.value.len());
    let this = Version { revision, create_revision: record.create_revision, deleted: record.deleted, bytes };
    let before = present.insert(key.clone(), this);
    let before = before.filter(|v| !v.deleted);
    report.old_versions += u64::from(before.is_some()) + u64::from(record.deleted);
    // A predecessor that was compacted is gone.
    let expected = before.as_ref().map_or(0, |v| v.revision);
    let trimmed = expected == 0 && record.previous != 0 && revision <= meta.compacted;
    if record.previous != expected && !trimmed {
        report.find(format!("revision {revision} of {key}: follows {}, but {expected} is there", record.previous));
    } else if before.is_some_and(|v| v.create_revision != record.create_revision) {
        report.find(format!("revision {revision} of {key}: created at {}, unlike before", record.create_revision));
    } else if record.deleted && record.previous == 0 {
        report.find(format!("revision {revision} of {key}: deletes what was not there"));
    }
}

/// A copy must be good before it is given a name, and a store before old versions are deleted.
fn whole(copy: &Path, of: &Path) -> Result<Report, OpenError> {
    let report = check(copy)?;
    match report.findings.first() {
        None => Ok(report),
        Some(first) => Err(OpenError::Damaged { path: of.into(), reason: first.clone() }),
    }
}

/// Opens a store to read it, whoever else has it open.
fn reader(path: &Path) -> Result<Connection, OpenError> {
    existing(path)?;
    disk::has_log(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let fail = |error: rusqlite::Error| disk::explain(path, error);
    let connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    connection.busy_timeout(disk::BUSY).map_err(fail)?;
    disk::keep_log(&connection, true).map_err(fail)?;
    disk::is_ours(path, &connection)?;
    Ok(connection)
}

fn existing(path: &Path) -> Result<(), OpenError> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Err(disk::refuse(path, &io::ErrorKind::IsADirectory.into())),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(OpenError::Missing { path: path.into() }),
        Err(error) => Err(disk::refuse(path, &error)),
    }
}

/// That none of these is there; all that are are told at once.
fn absent(paths: &[PathBuf]) -> Result<(), OpenError> {
    let paths: Vec<PathBuf> = paths.iter().filter(|path| path.symlink_metadata().is_ok()).cloned().collect();
    if paths.is_empty() { Ok(()) } else { Err(OpenError::Exists { paths }) }
}

/// Directories that were made for a result; removed when dropped, unless it is there.
struct Made(Vec<PathBuf>);

impl Made {
    fn new(directory: &Path) -> Result<Self, OpenError> {
        let missing = directory.ancestors().take_while(|d| !d.as_os_str().is_empty() && !d.exists());
        let made = Self(missing.map(Path::to_path_buf).collect());
        fs::create_dir_all(directory).map_err(|e| disk::refuse(directory, &e))?;
        Ok(made)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The innermost first. What is not empty is somebody else's by now, and stays.
        for directory in &self.0 {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// A file in the making beside where it will be; removed when dropped.
struct Unfinished(PathBuf);

impl Unfinished {
    fn new(target: &Path) -> Result<Self, OpenError> {
        let path = disk::with_suffix(target, ".unfinished");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // The store holds secrets.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path).map_err(|e| disk::refuse(target, &e))?;
        Ok(Self(path))
    }

    /// Gives it its name once all of it is on disk.
    fn name(self, target: &Path) -> Result<(), OpenError> {
        File::open(&self.0).and_then(|file| file.sync_all()).map_err(|e| disk::refuse(&self.0, &e))?;
        absent(&[target.into()])?;
        fs::rename(&self.0, target).map_err(|e| disk::refuse(target, &e))?;
        disk::sync_directory(target)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            // Gone already once it has its name.
            let _ = fs::remove_file(disk::with_suffix(&self.0, suffix));
        }
    }
}
