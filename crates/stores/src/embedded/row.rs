//! A lease as a row: `name`, `fence`, `owner`, `caller`, `note`, `attempt`, `acquired_at`, `expires_at`, `locks`.
//!
//! A lease is one row, whatever the number of its keys, under the first of them. Releases are remembered in memory only, because
//! they would cost more than everything else (ADR 10). Waiting claims, and the calls that could roll a lease back, end with the
//! process and are not written either.

use std::fmt;

use forrst_lock::model::{Holder, Withdrawal};
use forrst_lock::{Attempt, Caller, Fence, Lease, LockName, Locks, Note, Owner, Share, Timestamp};
use rusqlite::types::FromSql;
use rusqlite::{Row, Statement, params};

/// The statement of [`write_lease`].
pub(super) const WRITE_LEASE: &str =
    "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
/// The query of [`read_lease`].
pub(super) const READ_LEASES: &str =
    "SELECT name, fence, owner, caller, note, attempt, acquired_at, expires_at, locks FROM leases";
/// The query of [`read_withdrawal`]: the newest of a key last.
pub(super) const READ_WITHDRAWALS: &str =
    "SELECT name, owner, attempt, until FROM withdrawals ORDER BY until";

pub(super) fn write_lease(statement: &mut Statement<'_>, holder: &Holder) -> rusqlite::Result<()> {
    let Holder { lease, attempt, .. } = holder;
    statement.execute(params![
        lease.name().as_str(),
        fence_number(lease.fence),
        lease.owner.as_str(),
        lease.caller.as_ref().map(Caller::as_str),
        lease.note.as_ref().map(Note::as_str),
        attempt.as_ref().map(Attempt::as_str),
        millis(lease.acquired_at),
        millis(lease.expires_at),
        written_locks(&lease.locks),
    ])?;
    Ok(())
}

/// Each key with its kind, as JSON; `None` for one exclusive key.
fn written_locks(locks: &Locks) -> Option<String> {
    if let [(_, Share::EXCLUSIVE)] = locks.as_slice() {
        return None;
    }
    // Strings and numbers, so it cannot fail.
    serde_json::to_string(locks).ok()
}

/// Reads a lease. An invalid row is damage, and not skipped: a client may hold that lock.
pub(super) fn read_lease(row: &Row<'_>) -> Result<Holder, String> {
    let name: String = column(row, 0)?;
    lease(row, &name).map_err(|what| format!("the lease of `{name}` is invalid: {what}"))
}

fn lease(row: &Row<'_>, name: &str) -> Result<Holder, String> {
    let name = LockName::restore(name).map_err(invalid("name"))?;
    let locks = match column::<Option<String>>(row, 8)? {
        None => Locks::exclusive(name.clone()),
        Some(locks) => serde_json::from_str(&locks).map_err(invalid("set of keys"))?,
    };
    if *locks.first() != name {
        return Err("it is stored under another key".to_owned());
    }
    let number: i64 = column(row, 1)?;
    let fence = u64::try_from(number).ok().and_then(Fence::new);
    let owner: String = column(row, 2)?;
    Ok(Holder {
        lease: Lease {
            locks,
            owner: Owner::parse(&owner).map_err(invalid("owner"))?,
            caller: optional(row, 3, Caller::parse)?
                .transpose()
                .map_err(invalid("caller"))?,
            note: optional(row, 4, Note::parse)?
                .transpose()
                .map_err(invalid("note"))?,
            fence: fence.ok_or_else(|| format!("{number} is not a fence"))?,
            acquired_at: time(row, 6)?,
            expires_at: time(row, 7)?,
        },
        attempt: optional(row, 5, Attempt::parse)?
            .transpose()
            .map_err(invalid("attempt"))?,
        calls: Default::default(),
        confirm_by: None,
    })
}

/// Reads a withdrawn attempt.
pub(super) fn read_withdrawal(row: &Row<'_>) -> Result<(LockName, Withdrawal), String> {
    let name: String = column(row, 0)?;
    let read = || {
        let (owner, attempt): (String, String) = (column(row, 1)?, column(row, 2)?);
        let withdrawal = Withdrawal {
            owner: Owner::parse(&owner).map_err(invalid("owner"))?,
            attempt: Attempt::parse(&attempt).map_err(invalid("attempt"))?,
            until: time(row, 3)?,
        };
        Ok((
            LockName::restore(&name).map_err(invalid("name"))?,
            withdrawal,
        ))
    };
    read().map_err(|what: String| format!("a withdrawal of `{name}` is invalid: {what}"))
}

fn column<T: FromSql>(row: &Row<'_>, index: usize) -> Result<T, String> {
    row.get(index).map_err(|error| error.to_string())
}

fn optional<T>(
    row: &Row<'_>,
    index: usize,
    parse: impl FnOnce(&str) -> T,
) -> Result<Option<T>, String> {
    let text: Option<String> = column(row, index)?;
    Ok(text.map(|text| parse(&text)))
}

fn time(row: &Row<'_>, index: usize) -> Result<Timestamp, String> {
    let number: i64 = column(row, index)?;
    timestamp(number).ok_or_else(|| format!("{number} is not a time"))
}

fn invalid<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> String {
    move |error| format!("its {what} {error}")
}

pub(super) fn fence_number(fence: Fence) -> i64 {
    // A fence has 15 digits.
    i64::try_from(fence.number()).unwrap_or(i64::MAX)
}

pub(super) fn millis(at: Timestamp) -> i64 {
    i64::try_from(at.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn timestamp(millis: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(u64::try_from(millis).ok()?))
}
