//! How a held lock is shown to people.

use std::time::Duration;

use forrst_client::{Fence, Holder, LockInfo, LockKind};

use crate::output::{ServerTime, Table, ago, in_time, sanitized};

/// The time of the server's clock when it answered, in whole seconds before the end. The clock of this machine may be wrong.
fn server_now(holder: &Holder) -> ServerTime {
    let left = holder.ttl_remaining.as_millis().div_ceil(1000);
    let left = Duration::from_secs(u64::try_from(left).unwrap_or(u64::MAX));
    ServerTime::from(holder.expires_at).before(left)
}

pub(super) fn acquired(holder: &Holder) -> String {
    ago(holder.acquired_at.into(), server_now(holder))
}

pub(super) fn expires(holder: &Holder) -> String {
    in_time(holder.expires_at.into(), server_now(holder))
}

/// Empty for a server with only the bare extension.
pub(super) fn fence(holder: &Holder) -> String {
    let fence = holder.fence.as_ref();
    fence.map(Fence::to_string).unwrap_or_default()
}

/// `exclusive`, `shared by 2`, `2 of 3`.
pub(super) fn kind(lock: &LockInfo) -> String {
    match lock.kind {
        LockKind::Limit { limit, .. } => format!("{} of {limit}", lock.holder_count),
        LockKind::Shared => format!("shared by {}", lock.holder_count),
        _ => "exclusive".to_owned(),
    }
}

/// A free lock that others wait for is reserved for one of them, which still waits for another key.
pub(super) fn free(waiters: usize) -> String {
    match waiters {
        0 => "free".to_owned(),
        1 => "free, and reserved for a waiter".to_owned(),
        waiters => format!("free, and reserved for the first of {waiters} waiters"),
    }
}

/// Describes a lock in one line, with the owners of its first leases.
pub(super) fn summary(lock: &LockInfo) -> String {
    const SHOWN: usize = 5;
    let mut text = match lock.holders.as_slice() {
        [holder] if lock.kind == LockKind::Exclusive => {
            let caller = holder.caller.iter().map(|caller| format!(", {caller}"));
            format!(
                "held by {}{}, fence {}, expires {}",
                holder.owner,
                caller.collect::<String>(),
                fence(holder),
                expires(holder)
            )
        }
        holders => {
            let owners: Vec<&str> = holders.iter().map(|one| one.owner.as_str()).collect();
            let shown = owners[..owners.len().min(SHOWN)].join(", ");
            let more = match lock.holder_count.saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            format!("held, {}: {shown}{more}", kind(lock))
        }
    };
    if lock.waiters > 0 {
        text.push_str(&format!(", waiters {}", lock.waiters));
    }
    sanitized(&text)
}

/// How many leases there are in addition to those that the server lists.
pub(super) fn unlisted(lock: &LockInfo) -> usize {
    lock.holder_count.saturating_sub(lock.holders.len())
}

/// Describes a lock in lines, with a table of its holders if there are several.
pub(super) fn describe(lock: &LockInfo) -> String {
    let mut text = format!("{} is held\n", sanitized(&lock.full_key));
    let mut line = |name: &str, value: &str| {
        text.push_str(&format!("  {name:<8}  {}\n", sanitized(value)));
    };
    line("kind", &kind(lock));
    if let [holder] = lock.holders.as_slice() {
        line("owner", &holder.owner);
        line("fence", &fence(holder));
        let caller = holder.caller.iter().map(|caller| ("caller", caller));
        let note = holder.note.iter().map(|note| ("note", note));
        for (name, value) in caller.chain(note) {
            line(name, value);
        }
        if !holder.full_keys.is_empty() {
            line("keys", &holder.full_keys.join(", "));
        }
        line("acquired", &acquired(holder));
        line("expires", &expires(holder));
    }
    line("waiters", &lock.waiters.to_string());
    if lock.holders.len() > 1 {
        text.push('\n');
        text.push_str(&table_of(&lock.holders));
    }
    let unlisted = unlisted(lock);
    if unlisted > 0 {
        text.push_str(&format!("and {unlisted} more\n"));
    }
    text
}

fn table_of(holders: &[Holder]) -> String {
    let mut table = Table::new(&[
        "OWNER", "FENCE", "CALLER", "NOTE", "KEYS", "ACQUIRED", "EXPIRES",
    ]);
    for holder in holders {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        table.row(&[
            holder.owner.clone(),
            fence(holder),
            text(&holder.caller),
            text(&holder.note),
            holder.full_keys.join(", "),
            acquired(holder),
            expires(holder),
        ]);
    }
    table.text()
}
