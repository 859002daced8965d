//! The statements on the log: one row for each change, keyed by its revision.
//!
//! A row names the revision of the change before on the same key, so history is a chain that needs no
//! index: the state at a revision is the present one with later rows taken back, and what a row supersedes
//! is found by primary key when it is compacted. An index on keys would cost a random page for each write,
//! and all keys are in memory anyway.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, Transaction, named_params, params};

use crate::{
    Event, Key, KeyValue, StoreError,
    tree::{Packed, Tree, unpack_stored},
};

/// Bounds of one step of [`changes`].
const STEP_ROWS_MAX: u32 = 2000;
const STEP_EVENTS_MAX: usize = 500;
const STEP_BYTES_MAX: usize = 4 << 20;

pub(super) const SCHEMA: &str = "
CREATE TABLE log (
    rev        INTEGER PRIMARY KEY,
    create_rev INTEGER NOT NULL,
    prev_rev   INTEGER NOT NULL,
    deleted    INTEGER NOT NULL,
    expires    INTEGER,
    checksum   INTEGER NOT NULL,
    key        TEXT NOT NULL,
    value      BLOB NOT NULL
) STRICT;
CREATE TABLE meta (
    only      INTEGER PRIMARY KEY CHECK (only = 1),
    revision  INTEGER NOT NULL,
    compacted INTEGER NOT NULL,
    trimmed   INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (1, 1, 0, 0);
";

/// What a row is, in the column `deleted`, which in format 1 was a yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A value as it is: written by format 1 only.
    Plain = 0,
    Deletion = 1,
    /// A value as [`Packed::stored`] has it.
    Packed = 2,
}

/// One change that is to be written.
pub(super) struct Change {
    pub(super) event: Event,
    /// The object after it.
    pub(super) packed: Option<Packed>,
    /// When (milliseconds since 1970) the object goes by itself.
    pub(super) expires: Option<u64>,
}

/// One change as it is in the log.
pub(super) struct Record {
    pub(super) revision: u64,
    pub(super) create_revision: u64,
    /// The key's change before; 0 if it did not exist.
    pub(super) previous: u64,
    pub(super) deleted: bool,
    pub(super) key: Key,
    pub(super) value: Bytes,
}

/// What SQLite said, or that a row is not what was written.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("{0}")]
    Damaged(String),
}

/// Numbers that outlive rows.
pub(super) struct Meta {
    pub(super) revision: u64,
    pub(super) compacted: u64,
    /// Rows up to here are gone if they were superseded at or before it.
    pub(super) trimmed: u64,
}

const COLUMNS: &str = "rev, create_rev, prev_rev, deleted, expires, checksum, key, value";

/// The same where SQLite has it, before anybody has looked whether it is what was written.
#[derive(Clone, Copy)]
pub(super) struct Raw<'a> {
    pub(super) revision: u64,
    pub(super) create_revision: u64,
    pub(super) previous: u64,
    pub(super) kind: Kind,
    pub(super) expires: Option<u64>,
    pub(super) checksum: u64,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Raw<'a> {
    pub(super) fn read(row: &'a Row<'_>) -> Result<Self, LogError> {
        let number = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let bytes = |at: usize| row.get_ref(at)?.as_bytes().map_err(|e| LogError::Damaged(e.to_string()));
        Ok(Self {
            revision: number(0)?,
            create_revision: number(1)?,
            previous: number(2)?,
            kind: match number(3)? {
                0 => Kind::Plain,
                1 => Kind::Deletion,
                2 => Kind::Packed,
                other => return Err(LogError::Damaged(format!("revision {} is of the kind {other}", number(0)?))),
            },
            expires: row.get::<_, Option<i64>>(4)?.map(i64::cast_unsigned),
            checksum: number(5)?,
            key: bytes(6)?,
            value: bytes(7)?,
        })
    }

    /// Of a change that is to be written.
    fn of(Change { event, packed, expires }: &'a Change) -> Option<Self> {
        let (kv, previous) = match event {
            Event::Put { kv, prev } => (kv, prev.as_ref().map_or(0, |p| p.mod_revision)),
            Event::Delete { prev, .. } => (prev, prev.mod_revision),
            Event::Progress(_) => return None,
        };
        let (kind, value) = packed.as_ref().map_or((Kind::Deletion, &[][..]), |p| (Kind::Packed, p.stored()));
        let mut raw = Self {
            revision: event.revision(),
            create_revision: kv.create_revision,
            previous,
            kind,
            expires: *expires,
            checksum: 0,
            key: kv.key.as_bytes(),
            value,
        };
        raw.checksum = raw.sum();
        Some(raw)
    }

    pub(super) fn key(&self) -> Result<&'a str, LogError> {
        std::str::from_utf8(self.key).map_err(|e| LogError::Damaged(e.to_string()))
    }

    pub(super) fn is_deletion(&self) -> bool {
        self.kind == Kind::Deletion
    }

    /// The object, of a row that is no deletion.
    pub(super) fn pack(&self) -> Result<Packed, LogError> {
        let (key, created, changed) = (self.key()?, self.create_revision, self.revision);
        match self.kind {
            Kind::Packed => Packed::from_stored(key, self.value, created, changed).ok_or_else(|| self.not_packed()),
            Kind::Plain | Kind::Deletion => Ok(Packed::made(key, self.value, created, changed)),
        }
    }

    pub(super) fn unpack(&self) -> Result<Bytes, LogError> {
        match self.kind {
            Kind::Packed => unpack_stored(self.value).ok_or_else(|| self.not_packed()),
            Kind::Plain | Kind::Deletion => Ok(Bytes::copy_from_slice(self.value)),
        }
    }

    fn not_packed(&self) -> LogError {
        LogError::Damaged(format!("the value of revision {} cannot be unpacked", self.revision))
    }

    pub(super) fn check(&self) -> Result<(), LogError> {
        match self.sum() == self.checksum {
            true => Ok(()),
            false => Err(LogError::Damaged(format!("the checksum of revision {} does not match", self.revision))),
        }
    }

    /// SQLite's pages carry no checksums: a bit that flips in a value would go unnoticed.
    pub(super) fn sum(&self) -> u64 {
        let numbers = [self.revision, self.create_revision, self.previous, self.kind as u64];
        let mut sum = crc32fast::Hasher::new();
        numbers.iter().chain(&self.expires).for_each(|n| sum.update(&n.to_le_bytes()));
        sum.update(self.key);
        sum.update(self.value);
        sum.finalize().into()
    }
}

impl Record {
    pub(super) fn read(row: &Row<'_>) -> Result<Self, LogError> {
        let raw = Raw::read(row)?;
        raw.check()?;
        let (key, value, deleted) = (raw.key()?.into(), raw.unpack()?, raw.is_deletion());
        let Raw { revision, create_revision, previous, .. } = raw;
        Ok(Self { revision, create_revision, previous, deleted, key, value })
    }

    pub(super) fn into_entry(self) -> KeyValue {
        let Self { key, value, create_revision, revision: mod_revision, .. } = self;
        KeyValue { key, value, create_revision, mod_revision }
    }
}

/// The statement for [`append`].
pub(super) fn appender<'a>(tx: &'a Transaction<'_>) -> rusqlite::Result<CachedStatement<'a>> {
    tx.prepare_cached(
        "INSERT INTO log (rev, create_rev, prev_rev, deleted, expires, checksum, key, value)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )
}

/// Appends a change.
pub(super) fn append(appender: &mut CachedStatement<'_>, change: &Change) -> rusqlite::Result<()> {
    let Some(row) = Raw::of(change) else { return Ok(()) };
    let Raw { revision, create_revision, previous, kind, expires, checksum, value, .. } = row;
    let signed = u64::cast_signed;
    appender.execute(params![
        signed(revision),
        signed(create_revision),
        signed(previous),
        kind as i64,
        expires.map(signed),
        signed(checksum),
        change.event.key(),
        value,
    ])?;
    Ok(())
}

pub(super) fn meta(connection: &Connection) -> rusqlite::Result<Meta> {
    connection.prepare_cached("SELECT revision, compacted, trimmed FROM meta WHERE only = 1")?.query_row([], |row| {
        let number = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok(Meta { revision: number(0)?, compacted: number(1)?, trimmed: number(2)? })
    })
}

pub(super) fn set_meta(tx: &Transaction<'_>, meta: &Meta) -> rusqlite::Result<()> {
    let mut update =
        tx.prepare_cached("UPDATE meta SET revision = :revision, compacted = :compacted, trimmed = :trimmed")?;
    update.execute(named_params! {
        ":revision": meta.revision.cast_signed(),
        ":compacted": meta.compacted.cast_signed(),
        ":trimmed": meta.trimmed.cast_signed(),
    })?;
    Ok(())
}

/// Which rows come first.
#[derive(Clone, Copy)]
pub(super) enum Order {
    OldestFirst,
    NewestFirst,
}

/// Calls `visit` for all rows.
pub(super) fn visit(
    connection: &Connection,
    order: Order,
    mut visit: impl FnMut(&Row<'_>) -> Result<(), LogError>,
) -> Result<(), LogError> {
    let order = match order {
        Order::OldestFirst => "ASC",
        Order::NewestFirst => "DESC",
    };
    let mut select = connection.prepare(&format!("SELECT {COLUMNS} FROM log ORDER BY rev {order}"))?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        visit(row)?;
    }
    Ok(())
}

/// The revision of the last row; 0 without any.
pub(super) fn last(connection: &Connection) -> rusqlite::Result<u64> {
    let last = connection.query_row("SELECT coalesce(max(rev), 0) FROM log", [], |row| row.get::<_, i64>(0))?;
    Ok(last.cast_unsigned())
}

/// Deletes what the changes after `trimmed` up to `compacted` have superseded, for at most `limit` changes.
/// Returns up to where it is done.
pub(super) fn trim(tx: &Transaction<'_>, trimmed: u64, compacted: u64, limit: u32) -> rusqlite::Result<u64> {
    let mut select =
        tx.prepare_cached("SELECT rev, prev_rev, deleted FROM log WHERE rev > ?1 AND rev <= ?2 ORDER BY rev LIMIT ?3")?;
    let bounds = params![trimmed.cast_signed(), compacted.cast_signed(), limit];
    let step: Vec<(i64, i64, i64)> =
        select.query_map(bounds, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect::<Result<_, _>>()?;
    let mut delete = tx.prepare_cached("DELETE FROM log WHERE rev = ?1")?;
    for (revision, previous, kind) in &step {
        if *previous != 0 {
            delete.execute([previous])?;
        }
        if *kind == Kind::Deletion as i64 {
            delete.execute([revision])?;
        }
    }
    let more = step.len() == limit as usize;
    Ok(step.last().filter(|_| more).map_or(compacted, |(revision, ..)| revision.cast_unsigned()))
}

/// The next changes after `after` below `prefix`, and the revision up to which they are complete, which is
/// never more than `end`: the log may hold commits that are not published yet.
pub(super) fn changes(
    connection: &mut Connection,
    prefix: &str,
    after: u64,
    end: u64,
) -> Result<(VecDeque<Event>, u64), StoreError> {
    let tx = connection.transaction().map_err(failed)?;
    refuse_compacted(&tx, after)?;
    let sql = format!("SELECT {COLUMNS} FROM log WHERE rev > ?1 AND rev <= ?2 ORDER BY rev LIMIT ?3");
    let mut select = tx.prepare_cached(&sql).map_err(failed)?;
    let mut one = one(&tx)?;
    let mut rows = select.query(params![after.cast_signed(), end.cast_signed(), STEP_ROWS_MAX]).map_err(failed)?;
    let (mut events, mut upto, mut bytes) = (VecDeque::new(), after, 0);
    while events.len() < STEP_EVENTS_MAX
        && bytes < STEP_BYTES_MAX
        && let Some(row) = rows.next().map_err(failed)?
    {
        upto = row.get::<_, i64>(0).map_err(failed)?.cast_unsigned();
        if row.get_ref(6).map_err(failed)?.as_str().is_ok_and(|key| !key.starts_with(prefix)) {
            continue;
        }
        let record = Record::read(row).map_err(failed)?;
        let prev = if record.previous == 0 { None } else { Some(entry(&mut one, record.previous)?) };
        let event = match (record.deleted, prev) {
            (false, prev) => Event::Put { kv: record.into_entry(), prev },
            (true, Some(prev)) => Event::Delete { prev, revision: record.revision },
            (true, None) => return Err(failed(format!("revision {upto} deletes what was not there"))),
        };
        bytes += event.bytes();
        events.push_back(event);
    }
    // Revision 1 is the empty store and the only one without a row.
    let upto = upto.max(1);
    if upto == after { Err(failed(format!("revision {} is missing", after + 1))) } else { Ok((events, upto)) }
}

/// Takes the changes after `to` up to `from` back out of `tree`, which is the state at `from`.
pub(super) fn rewind(connection: &mut Connection, mut tree: Tree, from: u64, to: u64) -> Result<Tree, StoreError> {
    let tx = connection.transaction().map_err(failed)?;
    refuse_compacted(&tx, to)?;
    let mut before = HashMap::<String, u64>::new();
    {
        // From the newest on, so that the oldest change of a key has the last word.
        let sql = "SELECT key, prev_rev FROM log WHERE rev > ?1 AND rev <= ?2 ORDER BY rev DESC";
        let mut select = tx.prepare_cached(sql).map_err(failed)?;
        let mut rows = select.query([to.cast_signed(), from.cast_signed()]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let previous: i64 = row.get(1).map_err(failed)?;
            before.insert(row.get(0).map_err(failed)?, previous.cast_unsigned());
        }
    }
    let mut one = one(&tx)?;
    for (key, revision) in before {
        match revision {
            0 => drop(tree.remove(&key)),
            revision => drop(tree.insert(Packed::of(&entry(&mut one, revision)?))),
        }
    }
    Ok(tree)
}

fn refuse_compacted(tx: &Transaction<'_>, requested: u64) -> Result<(), StoreError> {
    let oldest = meta(tx).map_err(failed)?.compacted;
    if requested < oldest { Err(StoreError::Compacted { requested, oldest }) } else { Ok(()) }
}

fn one<'a>(tx: &'a Transaction<'_>) -> Result<CachedStatement<'a>, StoreError> {
    tx.prepare_cached(&format!("SELECT {COLUMNS} FROM log WHERE rev = ?1")).map_err(failed)
}

fn entry(one: &mut CachedStatement<'_>, revision: u64) -> Result<KeyValue, StoreError> {
    let read = one.query_row([revision.cast_signed()], |row| Ok(Record::read(row))).optional().map_err(failed)?;
    let record = read.ok_or_else(|| failed(format!("revision {revision} is missing")))?;
    Ok(record.map_err(failed)?.into_entry())
}

fn failed(error: impl std::fmt::Display) -> StoreError {
    StoreError::Other(format!("the log cannot be read: {error}").into())
}
