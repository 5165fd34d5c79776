//! The journal as a SQLite database, which an operator can open and read while the server runs.
//!
//! Each commit is one transaction. All rows are read when the store is opened; a row that is invalid is damage.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forrst_lock::model::{Key, KeySnapshot};
use forrst_lock::{Fence, Fences, LockName, Secret, Timestamp};
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Row, TransactionBehavior, params,
};

use super::clock::{Clocks, DurableClock, Moment};
use super::folder::Folder;
use super::row::{
    READ_LEASES, READ_WITHDRAWALS, WRITE_LEASE, fence_number, millis, read_lease, read_withdrawal,
    timestamp, write_lease,
};
use super::{Durability, EmbeddedError, EmbeddedOptions};
use crate::journal::{Changes, Journal, Start};
use crate::table::{Remembered, Table};

/// The format of the file. A change that an older version would misread needs the next number.
pub(super) const FORMAT: i64 = 5;
/// How long another program may keep the database locked.
const MAX_BUSY: Duration = Duration::from_secs(1);
/// A new store starts with fences of a time this far ahead. Fences follow the clock, and the clock of an earlier store that was
/// lost may have been ahead of the machine's by this much.
const FENCE_MARGIN: Duration = Duration::from_secs(60);
/// "forr": distinguishes our files from other databases.
const APPLICATION: i64 = 0x666f_7272;

const SCHEMA: &str = "
    -- One row for each lease, under the first of its keys. Times are milliseconds since 1970.
    CREATE TABLE leases (
        name        TEXT NOT NULL,
        fence       INTEGER NOT NULL,
        owner       TEXT NOT NULL,
        caller      TEXT,
        note        TEXT,
        attempt     TEXT,
        acquired_at INTEGER NOT NULL,
        expires_at  INTEGER NOT NULL,
        locks       TEXT,        -- JSON: each key with its kind; NULL for one key, exclusively
        PRIMARY KEY (name, fence)
    ) WITHOUT ROWID;

    -- Withdrawn attempts: a call of one that arrives later is refused.
    CREATE TABLE withdrawals (
        name    TEXT NOT NULL,
        owner   TEXT NOT NULL,
        attempt TEXT NOT NULL,
        until   INTEGER NOT NULL,
        PRIMARY KEY (name, owner, attempt)
    ) WITHOUT ROWID;
    CREATE INDEX withdrawals_by_end ON withdrawals (until);

    -- One row: the largest fence that was granted, and the clock at the last commit.
    CREATE TABLE state (
        id         INTEGER PRIMARY KEY CHECK (id = 1),
        last_fence INTEGER NOT NULL,
        now        INTEGER,
        since_boot INTEGER,
        boot       TEXT
    );
    INSERT INTO state VALUES (1, 0, NULL, NULL, NULL);

    -- The key of the hashes of lock keys and owners.
    CREATE TABLE secret (value BLOB NOT NULL);

    -- For operators: SELECT * FROM held; a lease of several keys has a row for each of them.
    CREATE VIEW held AS
        SELECT ifnull(kind.key, name) AS name, ifnull(kind.value, 'exclusive') AS kind, owner, caller, note,
               printf('%015d', fence) AS fence,
               strftime('%Y-%m-%dT%H:%M:%fZ', acquired_at / 1000.0, 'unixepoch') AS acquired_at,
               strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000.0, 'unixepoch') AS expires_at
        FROM leases LEFT JOIN json_each(leases.locks) AS kind
        WHERE leases.name LIKE 'lock:%'
        ORDER BY leases.expires_at;
";

pub(super) struct SqliteJournal {
    connection: Connection,
    clock: DurableClock,
    folder: PathBuf,
    /// An unlinked file beside the database, for [`probe`](Journal::probe).
    scratch: File,
}

impl SqliteJournal {
    /// Opens the file, or creates it, and reads all of it.
    pub(super) fn load(
        folder: &Folder,
        options: &EmbeddedOptions,
        clocks: Box<dyn Clocks>,
        max: Remembered,
    ) -> Result<(Self, Start), EmbeddedError> {
        let path = folder.database(make)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        // An operator may write with `sqlite3` for a moment. Callers still have to be answered before their timeout.
        connection.busy_timeout(MAX_BUSY.min(options.timeout / 4))?;
        check(&connection, folder).map_err(|error| match error {
            EmbeddedError::Journal(error) if is_damage(&error) => folder.damaged(error.to_string()),
            other => other,
        })?;
        configure(&connection, options.durability)?;
        let mut table = Table::new(max, options.release_memory, Fences::default());
        let written = Written::read(&connection, &mut table, folder)?;
        let clock = DurableClock::resume(clocks, written.clock.as_ref(), |now| {
            written.last_end.is_none_or(|end| end <= now)
        });
        let uncertain = written.last_fence.filter(|_| clock.is_slow());
        if uncertain.is_some() && table.held() > 0 {
            tracing::warn!(
                keys = table.held(),
                "the machine was rebooted, and its clock is behind the last commit: \
                 leases from before the reboot expire and cannot be extended"
            );
        }
        let is_new = written.clock.is_none();
        let lost = Fences::default().peek(clock.now() + FENCE_MARGIN);
        let start = Start {
            table,
            last_fence: written.last_fence.or(lost.filter(|_| is_new)),
            written_at: written.clock.map_or_else(|| clock.now(), |last| last.now),
            uncertain,
        };
        let journal = Self {
            connection,
            folder: folder.path().to_owned(),
            scratch: scratch(folder.path())?,
            clock,
        };
        Ok((journal, start))
    }

    /// The secret of the store, created at its first use.
    pub(super) fn secret(&self) -> Result<Secret, EmbeddedError> {
        let read = |row: &Row<'_>| row.get::<_, [u8; 32]>(0);
        let kept = self
            .connection
            .query_row("SELECT value FROM secret", [], read);
        if let Some(kept) = kept.optional()? {
            return Ok(Secret::from_bytes(kept));
        }
        let made = Secret::random();
        self.connection
            .execute("INSERT INTO secret VALUES (?1)", [made.as_bytes()])?;
        Ok(made)
    }

    /// For tests: simulates a disk that is full when the database has so many pages.
    #[cfg(test)]
    pub(super) fn limit_pages(&self, pages: u32) -> rusqlite::Result<()> {
        self.connection
            .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
    }
}

fn make(path: &Path) -> Result<(), EmbeddedError> {
    let connection = Connection::open(path)?;
    // Must be set before the first table is created. It lets `tidy` give unused space back to the disk.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.execute_batch(SCHEMA)?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", FORMAT)?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(())
}

/// An unlinked file on the same disk.
fn scratch(folder: &Path) -> Result<File, EmbeddedError> {
    let path = folder.join("probe.tmp");
    let make = || {
        let file = File::create(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    };
    make().map_err(|source| EmbeddedError::File {
        path: path.clone(),
        source,
    })
}

/// A disk that is full or fails does not mean that the database is damaged.
fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

fn check(connection: &Connection, folder: &Folder) -> Result<(), EmbeddedError> {
    let read = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get(0));
    let application: i64 = read("application_id")?;
    if application != APPLICATION {
        return Err(folder.damaged("locks.db is not a database of forrst"));
    }
    let found: i64 = read("user_version")?;
    let folder_path = folder.path().to_owned();
    match found.cmp(&FORMAT) {
        Ordering::Equal => {}
        Ordering::Greater => {
            return Err(EmbeddedError::NewerFormat {
                folder: folder_path,
                found,
                known: FORMAT,
            });
        }
        Ordering::Less => {
            return Err(EmbeddedError::OlderFormat {
                folder: folder_path,
                found,
                known: FORMAT,
            });
        }
    }
    let result: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if result == "ok" {
        Ok(())
    } else {
        Err(folder.damaged(result))
    }
}

fn configure(connection: &Connection, durability: Durability) -> Result<(), EmbeddedError> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let message =
            format!("the file system does not support a write-ahead log (journal mode `{mode}`)");
        return Err(EmbeddedError::File {
            path: connection.path().unwrap_or_default().into(),
            source: std::io::Error::other(message),
        });
    }
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Process => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
    connection.set_prepared_statement_cache_capacity(16);
    Ok(())
}

impl Journal for SqliteJournal {
    type Error = EmbeddedError;

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn commit(&mut self, changes: &Changes<'_>) -> Result<Timestamp, EmbeddedError> {
        let Moment {
            now,
            since_boot,
            boot,
        } = self.clock.moment();
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let end = "DELETE FROM leases WHERE name = ? AND fence = ?";
            let mut end = transaction.prepare_cached(end)?;
            let mut write = transaction.prepare_cached(WRITE_LEASE)?;
            for ((name, fence), holder) in &changes.leases {
                match holder {
                    Some(holder) => write_lease(&mut write, holder)?,
                    None => drop(end.execute(params![name.as_str(), fence_number(*fence)])?),
                }
            }
            for (name, withdrawal) in changes.withdrawals {
                let write = "INSERT OR REPLACE INTO withdrawals VALUES (?, ?, ?, ?)";
                transaction.prepare_cached(write)?.execute(params![
                    name.as_str(),
                    withdrawal.owner.as_str(),
                    withdrawal.attempt.as_str(),
                    millis(withdrawal.until)
                ])?;
            }
            let state = "UPDATE state SET last_fence = ?, now = ?, since_boot = ?, boot = ?";
            transaction.prepare_cached(state)?.execute(params![
                changes.last_fence.map_or(0, fence_number),
                millis(now),
                i64::try_from(since_boot.as_millis()).unwrap_or(i64::MAX),
                boot
            ])?;
        }
        transaction.commit()?;
        Ok(now)
    }

    /// Fails if another program has locked the database, or if the disk is full or read-only. Nothing is written to the database:
    /// its log must never contain what was not synced.
    fn probe(&mut self) -> Result<(), EmbeddedError> {
        self.connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?
            .rollback()?;
        let write = || {
            self.scratch.write_all_at(&[0; 4096], 0)?;
            self.scratch.set_len(0)
        };
        write().map_err(|source| EmbeddedError::File {
            path: self.folder.clone(),
            source,
        })
    }

    fn tidy(&mut self) {
        let now = millis(self.clock.now());
        let tidy = || -> rusqlite::Result<()> {
            self.connection
                .prepare_cached("DELETE FROM withdrawals WHERE until <= ?")?
                .execute([now])?;
            let free: i64 = self
                .connection
                .pragma_query_value(None, "freelist_count", |row| row.get(0))?;
            if free > 256 {
                let mut statement = self
                    .connection
                    .prepare_cached("PRAGMA incremental_vacuum(1024)")?;
                let mut rows = statement.query([])?;
                while rows.next()?.is_some() {}
            }
            Ok(())
        };
        if let Err(error) = tidy() {
            tracing::warn!(%error, "expired withdrawals could not be deleted, or unused space not freed");
        }
    }
}

/// The committed state, besides the keys.
struct Written {
    /// The largest fence that was granted.
    last_fence: Option<Fence>,
    /// The clock at the last commit; `None` in a new store.
    clock: Option<Moment>,
    /// When the last lease expires.
    last_end: Option<Timestamp>,
}

impl Written {
    /// Reads the whole database, the keys into `table`.
    fn read(
        connection: &Connection,
        table: &mut Table,
        folder: &Folder,
    ) -> Result<Self, EmbeddedError> {
        // Frees the space of the log, which may be needed on a full disk. It may fail.
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let _ = connection.query_row(checkpoint, [], |_| Ok(()));
        let (last_fence, clock) = connection.query_row(
            "SELECT last_fence, now, since_boot, boot FROM state WHERE id = 1",
            [],
            |row| Ok((row.get::<_, i64>(0)?, read_clock(row)?)),
        )?;
        let mut this = Self {
            last_fence: match u64::try_from(last_fence) {
                Ok(0) => None,
                Ok(number) if Fence::new(number).is_some() => Fence::new(number),
                _ => return Err(folder.damaged(format!("{last_fence} is not a fence"))),
            },
            clock,
            last_end: None,
        };
        for key in this.read_keys(connection, folder)? {
            table.put(key, Timestamp::from_millis(0));
        }
        Ok(this)
    }

    fn read_keys(
        &mut self,
        connection: &Connection,
        folder: &Folder,
    ) -> Result<Vec<Key>, EmbeddedError> {
        let damaged = |what| folder.damaged(what);
        let mut keys: HashMap<LockName, KeySnapshot> = HashMap::new();
        let mut statement = connection.prepare(READ_LEASES)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let holder = read_lease(row).map_err(damaged)?;
            self.last_fence = self.last_fence.max(Some(holder.lease.fence));
            self.last_end = self.last_end.max(Some(holder.lease.expires_at));
            for name in holder.lease.locks.names() {
                let kept = keys.entry(name.clone()).or_default();
                kept.holders.push(holder.clone());
            }
        }
        let mut statement = connection.prepare(READ_WITHDRAWALS)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (name, withdrawal) = read_withdrawal(row).map_err(damaged)?;
            keys.entry(name).or_default().withdrawals.push(withdrawal);
        }
        let restored = keys.into_iter().map(|(name, kept)| {
            let what = || format!("the leases of `{name}` exclude each other");
            Key::restored(name.clone(), kept).ok_or_else(|| folder.damaged(what()))
        });
        restored.collect()
    }
}

fn read_clock(row: &Row<'_>) -> rusqlite::Result<Option<Moment>> {
    let now: Option<i64> = row.get(1)?;
    let since_boot: Option<i64> = row.get(2)?;
    let boot: Option<String> = row.get(3)?;
    Ok(match (now.and_then(timestamp), since_boot, boot) {
        (Some(now), Some(since_boot), Some(boot)) => Some(Moment {
            now,
            since_boot: Duration::from_millis(u64::try_from(since_boot).unwrap_or_default()),
            boot,
        }),
        _ => None,
    })
}
