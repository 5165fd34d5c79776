//! Mints fences. The names are partitioned and each partition has its own sequence, so that no load makes fences run ahead of
//! the time from which they are minted.

use forrst_lock::{Fence, Fences, LockName, Locks, Timestamp};

/// A fence that is larger than every earlier one of these keys; `None` if the fences are exhausted.
pub(crate) fn mint(
    partitions: &mut [Fences],
    index_of: impl Fn(&LockName) -> usize,
    locks: &Locks,
    now: Timestamp,
) -> Option<Fence> {
    let next = locks
        .names()
        .map(|name| partitions[index_of(name)].peek(now));
    let next = next.reduce(|one, other| Some(one?.max(other?))).flatten()?;
    for name in locks.names() {
        partitions[index_of(name)].advance_to(next);
    }
    Some(next)
}
