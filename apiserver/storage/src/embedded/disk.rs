//! Opening the file: whose it is, whether it is whole, and what it holds.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, config::DbConfig};

use super::{committer::Expiry, load, log};
use crate::present::State;

/// Marks the file as ours: "fgst".
const APPLICATION_ID: i32 = 0x6667_7374;
/// The format that this version writes. It reads those before, too: format 1 held all values as they are.
const FORMAT: i32 = 2;
/// Pages are checked at each start up to this size of the file, and always after an unclean stop.
const CHEAP_CHECK_BYTES: u64 = 16 << 20;
/// How long another connection is waited for.
pub(super) const BUSY: std::time::Duration = std::time::Duration::from_secs(5);
/// The smallest that SQLite knows.
const PAGE_BYTES_MIN: u64 = 512;
/// A write-ahead log that grew beyond this, for a large commit or a long read, is cut when it starts over.
const WAL_BYTES_KEPT: u32 = 64 << 20;
/// Threads that read history.
const READERS: usize = 2;

/// Why the store cannot be opened. Each text is one line that says what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory or the file cannot be used.
    #[error("cannot use {}: {reason}", path.display())]
    Path {
        /// The file or directory.
        path: PathBuf,
        /// What the system said, and what to do.
        reason: String,
    },
    /// There is none.
    #[error("{} is not there", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another process, or another engine of this one, has it open.
    #[error("{} is in use by another process; stop that one or choose another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Not written by fairgate.
    #[error("{} is not a fairgate store ({reason}); choose another path, or move that file away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// How that was seen.
        reason: String,
    },
    /// Written by a later version.
    #[error("{} has format {found} and this version knows only {FORMAT}; use the version that wrote it", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i32,
    },
    /// It would be overwritten.
    #[error(
        "nothing is overwritten, and there already is {}; choose another path, or move away what is there",
        listed(paths)
    )]
    Exists {
        /// The file, and those that belong to it.
        paths: Vec<PathBuf>,
    },
    /// What should be restored cannot be.
    #[error("{} is no backup that could be restored ({reason}); use another one", path.display())]
    BadBackup {
        /// The backup.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What it holds contradicts itself.
    #[error(
        "{} is damaged ({reason}); restore it from a backup, or move it and its -wal file away to start empty",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
}

/// `a`, `a and b`, `a and b and c`.
fn listed(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(" and ")
}

/// A file or directory that the system refuses, with the way out where there is one.
pub(super) fn refuse(path: &Path, error: &io::Error) -> OpenError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => WRITABLE,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ROOM,
        io::ErrorKind::NotFound => "; make its directory first, or choose another place",
        _ => "",
    };
    OpenError::Path { path: path.into(), reason: format!("{error}{hint}") }
}

const WRITABLE: &str =
    "; it, the -wal and -shm files beside it, if any, and their directory must be readable and writable by this user";
const ROOM: &str = "; make room on that disk, or choose a place on another";

/// A file that was opened and read.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) lock: File,
    pub(super) writer: Connection,
    pub(super) checkpoints: Connection,
    pub(super) readers: Vec<Connection>,
    pub(super) state: State,
    pub(super) expiries: Vec<Expiry>,
    pub(super) trimmed: u64,
}

pub(super) fn open(path: &Path) -> Result<Opened, OpenError> {
    let (lock, writer) = open_exclusively(path)?;
    let fail = |error: rusqlite::Error| explain(path, error);
    let (state, expiries, trimmed) = load::load(path, &writer)?;
    let another = || {
        let connection = Connection::open(path)?;
        configure(&connection).map(|()| connection)
    };
    let checkpoints = another().map_err(fail)?;
    let readers = (0..READERS).map(|_| another()).collect::<Result<_, _>>().map_err(fail)?;
    Ok(Opened { path: path.into(), lock, writer, checkpoints, readers, state, expiries, trimmed })
}

/// Opens the file for the one who may write, and looks whether its pages are whole.
pub(super) fn open_exclusively(path: &Path) -> Result<(File, Connection), OpenError> {
    // Whoever comes by another name shall meet the same lock; SQLite follows links for its side files too.
    let path = &path.canonicalize().unwrap_or_else(|_| path.into());
    let unclean = has_log(path)?;
    let lock = take_lock(path)?;
    let fail = |error: rusqlite::Error| explain(path, error);

    let mut writer = Connection::open(path).map_err(fail)?;
    keep_log(&writer, true).map_err(fail)?;
    identify(path, &mut writer)?;
    configure(&writer).map_err(fail)?;
    let mode: String = writer.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(fail)?;
    if mode != "wal" {
        let reason = format!("no write-ahead log is possible there, only {mode:?}; a network file system?");
        return Err(OpenError::Path { path: path.into(), reason });
    }
    // Side files that may only be read let everything be read and nothing be written.
    writer.execute_batch("BEGIN IMMEDIATE; ROLLBACK").map_err(fail)?;
    sync_directory(path)?;
    if unclean || size(path) <= CHEAP_CHECK_BYTES {
        check_pages(path, &writer)?;
    } else {
        read_ahead(path);
    }
    Ok((lock, writer))
}

/// Brings a file into the system's cache from its beginning on. Rows are read from the end, which takes a disk several
/// times as long: nobody reads ahead in that direction.
fn read_ahead(path: &Path) {
    const STEP: usize = 1 << 20;
    // Whether it can be read is found out by who needs it.
    let _ = File::open(path).and_then(|file| io::copy(&mut BufReader::with_capacity(STEP, file), &mut io::sink()));
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |m| m.len())
}

/// Whether there is something in the write-ahead log, as after an unclean stop. Refuses a log whose file is lost.
pub(super) fn has_log(path: &Path) -> Result<bool, OpenError> {
    let unclean = size(&with_suffix(path, "-wal")) > 0;
    if unclean && size(path) < PAGE_BYTES_MIN {
        // The file has its tables before it has a log. SQLite would take it for new, and delete or overwrite the log.
        let reason = "it is empty or missing, and the -wal file beside it is not".into();
        return Err(OpenError::Damaged { path: path.into(), reason });
    }
    Ok(unclean)
}

/// Whether the write-ahead log stays as it is when the last connection is closed. What is refused is not changed; and a
/// sync that failed may have lost pages that were moved before: the next start takes them from the log once more.
pub(super) fn keep_log(connection: &Connection, keep: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(|_| ())
}

/// Moves the write-ahead log into the file.
pub(super) fn close(writer: Connection) -> rusqlite::Result<()> {
    writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    keep_log(&writer, false)?;
    writer.close().map_err(|(_, error)| error)
}

/// Whether a commit may have come to the disk although it failed, as when its sync did.
pub(super) fn is_uncertain(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}

/// Whether a write failed for want of room, which leaves everything as it was.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

/// A passive checkpoint: whether the whole log is in the file now.
pub(super) fn checkpoint(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        let (is_busy, pages, moved): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(!is_busy && pages == moved)
    })
}

/// Makes directory and file if they are not there, and takes the lock that keeps a second process out.
fn take_lock(path: &Path) -> Result<File, OpenError> {
    if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(|e| refuse(directory, &e))?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // The store holds secrets; SQLite gives its side files the mode of the main one.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let side = with_suffix(path, ".lock");
    let lock = options.open(&side).map_err(|e| refuse(&side, &e))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path.into() }),
        Err(TryLockError::Error(e)) => return Err(refuse(&side, &e)),
    }
    options.open(path).map_err(|e| refuse(path, &e))?;
    Ok(lock)
}

/// A new file survives a power loss only once its directory is on disk.
pub(super) fn sync_directory(path: &Path) -> Result<(), OpenError> {
    let parent = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|e| refuse(parent, &e))
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Checks that the file is ours, or makes it ours if it is empty. Writes nothing to any other.
fn identify(path: &Path, writer: &mut Connection) -> Result<(), OpenError> {
    let fail = |error: rusqlite::Error| explain(path, error);
    let tables: u32 = writer.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(fail)?;
    if tables > 0 || marks(writer).map_err(fail)? != (0, 0) {
        return is_ours(path, writer);
    }
    let tx = writer.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fail)?;
    tx.execute_batch(log::SCHEMA).map_err(fail)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(fail)?;
    set_format(&tx).map_err(fail)?;
    tx.commit().map_err(fail)
}

/// Whose file it is, and its format.
fn marks(connection: &Connection) -> rusqlite::Result<(i32, i32)> {
    let number = |what: &str| connection.pragma_query_value::<i32, _>(None, what, |row| row.get(0));
    Ok((number("application_id")?, number("user_version")?))
}

/// Whether versions before may still read the file.
pub(super) fn is_older(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(marks(connection)?.1 != FORMAT)
}

/// Says that there are rows that versions before do not know. Those that were there stay as they are.
pub(super) fn set_format(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.pragma_update(None, "user_version", FORMAT)
}

/// Checks that a file that is not empty is ours and that this version knows its format.
pub(super) fn is_ours(path: &Path, connection: &Connection) -> Result<(), OpenError> {
    match marks(connection).map_err(|error| explain(path, error))? {
        (APPLICATION_ID, 1..=FORMAT) => Ok(()),
        (APPLICATION_ID, found) if found > FORMAT => Err(OpenError::Newer { path: path.into(), found }),
        (APPLICATION_ID, found) => Err(OpenError::Damaged { path: path.into(), reason: format!("format {found}") }),
        (0, _) => Err(OpenError::Foreign { path: path.into(), reason: "it is empty, or another program's".into() }),
        (id, _) => Err(OpenError::Foreign { path: path.into(), reason: format!("its application_id is {id:#x}") }),
    }
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    connection.pragma_update(None, "cell_size_check", true)
}

fn check_pages(path: &Path, connection: &Connection) -> Result<(), OpenError> {
    let found: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|error| explain(path, error))?;
    match findings(&found).next() {
        None => Ok(()),
        Some(first) => Err(OpenError::Damaged { path: path.into(), reason: first }),
    }
}

/// The findings in a row of `integrity_check` or `quick_check`. SQLite begins the first with the name of the database.
pub(super) fn findings(row: &str) -> impl Iterator<Item = String> {
    let told: Vec<&str> = row.lines().filter(|line| !line.starts_with("*** in database ")).collect();
    let untold = told.is_empty().then(|| "SQLite finds them damaged".to_owned());
    let told: Vec<String> = told.into_iter().filter(|line| *line != "ok").map(str::to_owned).collect();
    told.into_iter().chain(untold).map(|line| format!("pages: {line}"))
}

pub(super) fn explain(path: &Path, error: rusqlite::Error) -> OpenError {
    let (path, reason) = (path.to_owned(), error.to_string().replace('\n', " "));
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::Foreign { path, reason },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::InUse { path },
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            OpenError::Path { path, reason: reason + WRITABLE }
        }
        Some(ErrorCode::DiskFull) => OpenError::Path { path, reason: reason + ROOM },
        Some(ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory) => OpenError::Path { path, reason },
        _ => OpenError::Damaged { path, reason },
    }
}

/// Why a copy of `from` could not be made at `to`: of a write that failed the reason lies there.
pub(super) fn explain_copy(from: &Path, to: &Path, error: rusqlite::Error) -> OpenError {
    // SQLITE_IOERR_READ, SQLITE_IOERR_SHORT_READ.
    let is_read = error.sqlite_error().is_some_and(|e| [266, 522].contains(&e.extended_code));
    let of_target = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::DiskFull | ErrorCode::SystemIoFailure)
    );
    explain(if of_target && !is_read { to } else { from }, error)
}
