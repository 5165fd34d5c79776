//! The journal as a SQLite database, which an operator can open and read.

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forrst_lock::state::{Holder, State, Tombstone};
use forrst_lock::{
    Attempt, Caller, Fence, Lease, LockName, Owner, Secret, Ticket, Timestamp, Waiter,
};
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Row, TransactionBehavior, params,
};

use super::clock::Reading;
use super::folder::Folder;
use super::journal::{Changes, Entry, Journal, Snapshot};
use super::{Durability, EmbeddedError};

/// The format of the file. A change that an older version would misread needs the next number.
const FORMAT: i64 = 3;
/// "forr": tells our files from other databases.
const APPLICATION: i64 = 0x666f_7272;

const SCHEMA: &str = "
    -- One row for each key that is held, or was released a short while ago. Times are milliseconds since 1970.
    CREATE TABLE locks (
        name           TEXT PRIMARY KEY,
        owner          TEXT,     -- who holds it; null when it is free
        fence          INTEGER,
        acquired_at    INTEGER,
        expires_at     INTEGER,
        attempt        TEXT,     -- repeated by a caller who did not get the answer
        ticket         BLOB,     -- the call that got it, as long as that can be undone
        caller         TEXT,     -- the API key or certificate that took it
        releases       TEXT      -- JSON, the newest last: [[owner, fence, remembered until, forced, newest of its owner]]
    ) WITHOUT ROWID;

    -- One row: the last fence that was given out, and the clock at the last commit.
    CREATE TABLE state (
        id         INTEGER PRIMARY KEY CHECK (id = 1),
        last_fence INTEGER NOT NULL,
        now        INTEGER,
        since_boot INTEGER,
        boot       TEXT
    );
    INSERT INTO state VALUES (1, 0, NULL, NULL, NULL);
";

const HELD: &str = "
    -- For people: SELECT * FROM held;
    CREATE VIEW held AS
        SELECT name, owner, caller, printf('%015d', fence) AS fence,
               strftime('%Y-%m-%dT%H:%M:%fZ', acquired_at / 1000.0, 'unixepoch') AS acquired_at,
               strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000.0, 'unixepoch') AS expires_at
        FROM locks WHERE owner IS NOT NULL ORDER BY expires_at;
";

#[derive(Debug)]
pub(super) struct SqliteJournal {
    connection: Connection,
    folder: PathBuf,
    /// A file beside the database, which has no name any more.
    scratch: File,
}

impl SqliteJournal {
    pub(super) fn open(folder: &Folder, durability: Durability) -> Result<Self, EmbeddedError> {
        let path = folder.database(make)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        // Somebody with `sqlite3` may write for a moment; we are patient for less than callers are.
        connection.busy_timeout(Duration::from_secs(1))?;
        check(&connection, folder).map_err(|error| match error {
            EmbeddedError::Journal(error) if is_damage(&error) => folder.damaged(error.to_string()),
            other => other,
        })?;
        configure(&connection, durability)?;
        bring_up_to_date(&connection)?;
        Ok(Self {
            connection,
            folder: folder.path().to_owned(),
            scratch: scratch(folder.path())?,
        })
    }

    /// The secret of the store, made at its first use. Older versions do not look at its table.
    pub(super) fn secret(&self) -> Result<Secret, EmbeddedError> {
        self.connection
            .execute_batch("CREATE TABLE IF NOT EXISTS secret (value BLOB NOT NULL)")?;
        let kept = || {
            let read = |row: &Row<'_>| row.get::<_, [u8; 32]>(0);
            let kept = self
                .connection
                .query_row("SELECT value FROM secret", [], read);
            kept.optional()
        };
        if let Some(kept) = kept()? {
            return Ok(Secret::from_bytes(kept));
        }
        let made = Secret::random();
        self.connection
            .execute("INSERT INTO secret VALUES (?1)", [made.as_bytes()])?;
        Ok(made)
    }

    fn damaged(&self, what: impl Into<String>) -> EmbeddedError {
        EmbeddedError::Damaged {
            folder: self.folder.clone(),
            what: what.into(),
        }
    }

    /// For tests: the disk is full when the database has so many pages.
    #[cfg(test)]
    pub(super) fn limit_pages(&self, pages: u32) -> rusqlite::Result<()> {
        self.connection
            .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
    }
}

fn make(path: &Path) -> Result<(), EmbeddedError> {
    let connection = Connection::open(path)?;
    // Has to be said before there is any table. Room that is no longer needed goes back to the disk.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.execute_batch(SCHEMA)?;
    connection.execute_batch(HELD)?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", FORMAT)?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(())
}

/// A file that takes room on the same disk when it is written, and has no name.
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

/// A disk that is full or fails says nothing about what is on it.
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
    if found > FORMAT {
        return Err(EmbeddedError::NewerFormat {
            folder: folder.path().to_owned(),
            found,
            known: FORMAT,
        });
    }
    let whole: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if whole == "ok" {
        Ok(())
    } else {
        Err(folder.damaged(whole))
    }
}

fn configure(connection: &Connection, durability: Durability) -> Result<(), EmbeddedError> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let message = format!("the file system allows no write-ahead log, but `{mode}`");
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

/// Format 1 did not remember who took a lock, and format 2 only the last release, which is not worth carrying over.
fn bring_up_to_date(connection: &Connection) -> Result<(), EmbeddedError> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found < FORMAT {
        let caller = match found {
            1 => "ALTER TABLE locks ADD COLUMN caller TEXT;",
            _ => "",
        };
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE;
             {caller}
             ALTER TABLE locks DROP COLUMN released_owner;
             ALTER TABLE locks DROP COLUMN released_fence;
             ALTER TABLE locks DROP COLUMN released_until;
             ALTER TABLE locks ADD COLUMN releases TEXT;
             DROP VIEW held;
             {HELD}
             PRAGMA user_version = {FORMAT};
             COMMIT;"
        ))?;
    }
    Ok(())
}

impl Journal for SqliteJournal {
    fn load(&mut self) -> Result<Snapshot, EmbeddedError> {
        // On a full disk, what the log has twice may be the room that is needed. It may fail.
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let _ = self.connection.query_row(checkpoint, [], |_| Ok(()));
        let (last_fence, clock) = self.connection.query_row(
            "SELECT last_fence, now, since_boot, boot FROM state WHERE id = 1",
            [],
            |row| Ok((row.get::<_, i64>(0)?, read_clock(row)?)),
        )?;
        let mut statement = self.connection.prepare(
            "SELECT name, owner, fence, acquired_at, expires_at, attempt, ticket, caller, releases
             FROM locks",
        )?;
        let mut rows = statement.query([])?;
        let mut keys = Vec::new();
        while let Some(row) = rows.next()? {
            keys.push(read_entry(row).map_err(|what| self.damaged(what))?);
        }
        Ok(Snapshot {
            keys,
            last_fence: match u64::try_from(last_fence) {
                Ok(0) => None,
                Ok(number) if Fence::new(number).is_some() => Fence::new(number),
                _ => return Err(self.damaged(format!("{last_fence} is no fence"))),
            },
            clock,
        })
    }

    fn commit(&mut self, changes: &Changes<'_>) -> Result<(), EmbeddedError> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut forget = transaction.prepare_cached("DELETE FROM locks WHERE name = ?")?;
            let mut write = transaction.prepare_cached(
                "INSERT OR REPLACE INTO locks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?;
            for (name, state) in &changes.keys {
                match state {
                    None => forget.execute([name.as_str()])?,
                    Some(state) => write_state(&mut write, name, state)?,
                };
            }
            let Reading {
                now,
                since_boot,
                boot,
            } = &changes.clock;
            transaction
                .prepare_cached(
                    "UPDATE state SET last_fence = ?, now = ?, since_boot = ?, boot = ?",
                )?
                .execute(params![
                    changes.last_fence.map_or(0, fence_number),
                    millis(*now),
                    i64::try_from(since_boot.as_millis()).unwrap_or(i64::MAX),
                    boot
                ])?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Another program may have the database, and the disk may be full or read-only. Nothing is written to the database: its log
    /// must never hold what was not synced.
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
        let vacuum = || -> rusqlite::Result<()> {
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
        if let Err(error) = vacuum() {
            tracing::warn!(%error, "the journal could not give room back");
        }
    }
}

fn write_state(
    write: &mut rusqlite::CachedStatement<'_>,
    name: &LockName,
    state: &State<Waiter>,
) -> rusqlite::Result<usize> {
    let holder = state.holder();
    let lease = holder.map(|holder| &holder.lease);
    write.execute(params![
        name.as_str(),
        lease.map(|lease| lease.owner.as_str()),
        lease.map(|lease| fence_number(lease.fence)),
        lease.map(|lease| millis(lease.acquired_at)),
        lease.map(|lease| millis(lease.expires_at)),
        holder
            .and_then(|holder| holder.attempt.as_ref())
            .map(Attempt::as_str),
        holder
            .and_then(|holder| holder.ticket)
            .map(|ticket| ticket.0.to_be_bytes()),
        lease
            .and_then(|lease| lease.caller.as_ref())
            .map(Caller::as_str),
        written_releases(state.releases()),
    ])
}

fn read_clock(row: &Row<'_>) -> rusqlite::Result<Option<Reading>> {
    let now: Option<i64> = row.get(1)?;
    let since_boot: Option<i64> = row.get(2)?;
    let boot: Option<String> = row.get(3)?;
    Ok(match (now.and_then(timestamp), since_boot, boot) {
        (Some(now), Some(since_boot), Some(boot)) => Some(Reading {
            now,
            since_boot: Duration::from_millis(u64::try_from(since_boot).unwrap_or_default()),
            boot,
        }),
        _ => None,
    })
}

/// A row that we would not have written is damage: somebody may hold the lock that it was about.
fn read_entry(row: &Row<'_>) -> Result<Entry, String> {
    let text = |column: usize| {
        row.get::<_, Option<String>>(column)
            .map_err(|e| e.to_string())
    };
    let number = |column: usize| row.get::<_, Option<i64>>(column).map_err(|e| e.to_string());
    let raw_name = text(0)?.unwrap_or_default();
    let wrong = |what: &str| format!("the row of `{raw_name}` has a wrong {what}");
    let name = LockName::parse(&raw_name).map_err(|_| wrong("name"))?;
    let owner = |column| match text(column)? {
        Some(owner) => Owner::parse(&owner).map(Some).map_err(|_| wrong("owner")),
        None => Ok(None),
    };
    let fence = |column| {
        let fence = number(column)?.and_then(|fence| Fence::new(u64::try_from(fence).ok()?));
        fence.ok_or_else(|| wrong("fence"))
    };
    let time = |column| {
        let time = number(column)?.and_then(timestamp);
        time.ok_or_else(|| wrong("time"))
    };
    let holder = match owner(1)? {
        None => None,
        Some(owner) => Some(Holder {
            lease: Lease {
                name: name.clone(),
                owner,
                caller: match text(7)? {
                    Some(caller) => Some(Caller::parse(&caller).map_err(|_| wrong("caller"))?),
                    None => None,
                },
                fence: fence(2)?,
                acquired_at: time(3)?,
                expires_at: time(4)?,
            },
            attempt: match text(5)? {
                Some(attempt) => Some(Attempt::parse(&attempt).map_err(|_| wrong("attempt"))?),
                None => None,
            },
            ticket: row
                .get::<_, Option<[u8; 16]>>(6)
                .map_err(|error| error.to_string())?
                .map(|bytes| Ticket(u128::from_be_bytes(bytes))),
        }),
    };
    let releases = text(8)?.map(|releases| read_releases(&releases));
    let releases = releases.map(|releases| releases.ok_or_else(|| wrong("release")));
    Ok(Entry {
        name,
        holder,
        releases: releases.transpose()?.unwrap_or_default(),
    })
}

/// One release as it is written down: owner, fence, until, forced, newest.
type WrittenRelease<'a> = (Cow<'a, str>, u64, u64, bool, bool);

fn written_releases(releases: &[Tombstone]) -> Option<String> {
    let written = releases.iter().map(|release| -> WrittenRelease<'_> {
        (
            release.owner.as_str().into(),
            release.fence.number(),
            release.until.as_millis(),
            release.forced,
            release.is_newest,
        )
    });
    let written: Vec<WrittenRelease<'_>> = written.collect();
    (!written.is_empty()).then(|| serde_json::json!(written).to_string())
}

fn read_releases(text: &str) -> Option<Vec<Tombstone>> {
    let written: Vec<WrittenRelease<'_>> = serde_json::from_str(text).ok()?;
    let releases = written
        .into_iter()
        .map(|(owner, fence, until, forced, is_newest)| {
            Some(Tombstone {
                owner: Owner::parse(&owner).ok()?,
                fence: Fence::new(fence)?,
                until: Timestamp::from_millis(until),
                forced,
                is_newest,
            })
        });
    releases.collect()
}

fn fence_number(fence: Fence) -> i64 {
    // A fence has 15 digits.
    i64::try_from(fence.number()).unwrap_or(i64::MAX)
}

fn millis(at: Timestamp) -> i64 {
    i64::try_from(at.as_millis()).unwrap_or(i64::MAX)
}

fn timestamp(millis: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(u64::try_from(millis).ok()?))
}
