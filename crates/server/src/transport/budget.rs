//! How many bytes of requests and answers the server keeps at once.
//!
//! A request takes its length from three pools before its body is read: that of its connection, that of its caller and that of
//! the process. It gives them back when the client has taken the answer. The last quarter of each pool is for small requests, so
//! that a release gets through whatever large calls are waiting. What comes in frames takes its bytes as they arrive.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use forrst_protocol::{ErrorCode, ErrorObject};
use serde_json::json;

use crate::extension::millis;
use crate::limits::{Limits, Refusal};
use crate::metrics::Metrics;

/// Up to this, a request is small: it may use all of a pool.
const SMALL: usize = 16 * 1024;

/// When a client that was refused may try again.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// The pools of a server.
#[derive(Debug)]
pub(crate) struct Budgets {
    process: Arc<Pool>,
    per_connection: usize,
    per_caller: usize,
    /// All clients without valid credentials together.
    anonymous: Arc<Pool>,
    /// By the caller's name, or by its address where it has none. Pools that nothing is taken from are dropped.
    callers: Mutex<Callers>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Callers {
    pools: HashMap<Arc<str>, Weak<Pool>>,
    /// How many there may be before those that nothing is taken from are dropped.
    most: usize,
}

/// A number of bytes that can be taken and given back.
#[derive(Debug)]
pub(super) struct Pool {
    size: usize,
    taken: AtomicUsize,
}

/// Bytes that were taken, until they are dropped.
#[derive(Debug, Default)]
pub(super) struct TakenBytes {
    pools: Vec<Arc<Pool>>,
    bytes: usize,
}

impl Budgets {
    pub(crate) fn new(limits: &Limits, metrics: Arc<Metrics>) -> Self {
        // One request of the largest size must fit into the part that is for all.
        let smallest = limits.max_body.saturating_mul(2);
        let process = limits.max_bytes.max(smallest);
        Self {
            process: Arc::new(Pool::new(process)),
            anonymous: Arc::new(Pool::new(process / 8)),
            per_connection: limits.max_bytes_per_connection.max(smallest),
            per_caller: limits.max_bytes_per_caller.max(smallest),
            callers: Mutex::default(),
            metrics,
        }
    }

    pub(super) fn connection(&self) -> Arc<Pool> {
        Arc::new(Pool::new(self.per_connection))
    }

    /// Takes the bytes of a request, for as long as it is under way. There is no caller without valid credentials.
    ///
    /// # Errors
    ///
    /// What to answer when a pool has too few left.
    pub(super) fn take(
        &self,
        connection: Option<&Arc<Pool>>,
        caller: Option<&str>,
        bytes: usize,
    ) -> Result<TakenBytes, ErrorObject> {
        let mut taken = TakenBytes {
            pools: Vec::with_capacity(3),
            bytes,
        };
        let mut pools: Vec<(Arc<Pool>, ErrorCode, &str)> = Vec::with_capacity(3);
        if let Some(connection) = connection {
            let what = "Too many bytes are under way on this connection";
            pools.push((connection.clone(), ErrorCode::RateLimited, what));
        }
        let what = "Too many bytes of this caller are under way";
        let caller = caller.map_or_else(|| self.anonymous.clone(), |caller| self.caller(caller));
        pools.push((caller, ErrorCode::RateLimited, what));
        let what = "Too many bytes are under way on this server";
        pools.push((self.process.clone(), ErrorCode::Unavailable, what));
        for (pool, code, what) in pools {
            if !pool.take(bytes) {
                self.metrics.refused(Refusal::Bytes);
                let error = ErrorObject::new(code, what);
                return Err(error.with_detail("retry_after", json!(millis(RETRY_AFTER))));
            }
            taken.pools.push(pool);
        }
        Ok(taken)
    }

    /// Takes more for a frame that arrives in parts, from the pools of its caller and the process: on a connection there is one
    /// at most. Whether there were as many left; else nothing changes.
    pub(super) fn grow(&self, taken: &mut TakenBytes, caller: &str, bytes: usize) -> bool {
        let pools = vec![self.caller(caller), self.process.clone()];
        for (index, pool) in pools.iter().enumerate() {
            if !pool.replace(taken.of(pool), bytes) {
                for pool in &pools[..index] {
                    let more = bytes - taken.of(pool);
                    pool.taken.fetch_sub(more, Ordering::Relaxed);
                }
                return false;
            }
        }
        // They have been replaced, and are not given back as well.
        taken.pools = pools;
        taken.bytes = bytes;
        true
    }

    fn caller(&self, caller: &str) -> Arc<Pool> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = callers.pools.get(caller).and_then(Weak::upgrade) {
            return pool;
        }
        if callers.pools.len() >= callers.most {
            callers.pools.retain(|_, pool| pool.strong_count() > 0);
            callers.most = 64 + 2 * callers.pools.len();
        }
        let pool = Arc::new(Pool::new(self.per_caller));
        callers.pools.insert(caller.into(), Arc::downgrade(&pool));
        pool
    }
}

impl Pool {
    fn new(size: usize) -> Self {
        Self {
            size,
            taken: AtomicUsize::new(0),
        }
    }

    fn take(&self, bytes: usize) -> bool {
        self.replace(0, bytes)
    }

    /// Takes bytes in place of those that the same request took before.
    fn replace(&self, before: usize, bytes: usize) -> bool {
        let most = match bytes {
            0..=SMALL => self.size,
            _ => self.size - self.size / 4,
        };
        let take = |taken: usize| {
            let taken = (taken - before).checked_add(bytes);
            taken.filter(|taken| *taken <= most)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken.fetch_update(set, fetch, take).is_ok()
    }
}

impl TakenBytes {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// How many of them are from this pool.
    fn of(&self, pool: &Arc<Pool>) -> usize {
        let is_from = self.pools.iter().any(|own| Arc::ptr_eq(own, pool));
        if is_from { self.bytes } else { 0 }
    }

    /// The answer may be larger than the request was. It is there already, so it is not refused, but counts.
    pub(super) fn cover(&mut self, bytes: usize) {
        let more = bytes.saturating_sub(self.bytes);
        for pool in &self.pools {
            pool.taken.fetch_add(more, Ordering::Relaxed);
        }
        self.bytes += more;
    }
}

impl Drop for TakenBytes {
    fn drop(&mut self) {
        for pool in &self.pools {
            pool.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn budgets() -> Budgets {
        let limits = Limits {
            max_body: MIB,
            max_bytes: 16 * MIB,
            max_bytes_per_caller: 8 * MIB,
            max_bytes_per_connection: 4 * MIB,
            ..Limits::default()
        };
        Budgets::new(&limits, Arc::new(Metrics::new()))
    }

    fn is_unused(pool: &Pool) -> bool {
        pool.taken.load(Ordering::Relaxed) == 0
    }

    #[test]
    fn each_pool_has_a_limit_and_gets_everything_back() {
        let budgets = budgets();
        let connections: Vec<_> = (0..6).map(|_| budgets.connection()).collect();
        let mut taken = Vec::new();
        for connection in &connections {
            let before = taken.len();
            while let Ok(bytes) = budgets.take(Some(connection), Some("a"), MIB) {
                taken.push(bytes);
            }
            assert!(taken.len() - before <= 3, "three quarters of a connection");
        }
        assert_eq!(taken.len(), 6, "three quarters of a caller");
        while let Ok(bytes) = budgets.take(None, Some("b"), MIB) {
            taken.push(bytes);
        }
        assert_eq!(taken.len(), 12, "three quarters of the process");
        // A small request still gets through.
        taken.push(budgets.take(Some(&connections[0]), Some("a"), 100).unwrap());
        taken.clear();
        assert!(is_unused(&budgets.process));
        assert!(connections.iter().all(|connection| is_unused(connection)));
    }

    #[test]
    fn a_refusal_takes_nothing() {
        let budgets = budgets();
        let connection = budgets.connection();
        let _all = budgets.take(None, Some("a"), 6 * MIB).unwrap();
        let refused = budgets.take(Some(&connection), Some("a"), MIB).unwrap_err();
        assert_eq!(refused.code, ErrorCode::RateLimited);
        assert!(is_unused(&connection));
    }

    #[test]
    fn an_answer_counts_without_being_refused() {
        let budgets = budgets();
        let mut bytes = budgets.take(None, Some("a"), 100).unwrap();
        bytes.cover(20 * MIB);
        assert!(budgets.take(None, Some("b"), 100).is_err());
        drop(bytes);
        assert!(is_unused(&budgets.process));
    }

    #[test]
    fn a_frame_grows_as_far_as_there_is_room() {
        let budgets = budgets();
        let mut frame = TakenBytes::default();
        // It becomes a large one.
        assert!(budgets.grow(&mut frame, "a", 100));
        assert!(budgets.grow(&mut frame, "a", 5 * MIB));
        assert!(!budgets.grow(&mut frame, "a", 7 * MIB), "of the caller");
        let other = budgets.take(None, Some("b"), 6 * MIB).unwrap();
        assert!(!budgets.grow(&mut frame, "a", 6 * MIB + 1), "of the caller");
        assert!(budgets.grow(&mut frame, "a", 6 * MIB));
        drop(other);
        let other = budgets.take(None, Some("b"), 4 * MIB).unwrap();
        let mut third = TakenBytes::default();
        assert!(!budgets.grow(&mut third, "c", 3 * MIB), "of the process");
        assert!(budgets.grow(&mut third, "c", 2 * MIB));
        assert!(
            !budgets.grow(&mut third, "c", 2 * MIB + 1),
            "of the process"
        );
        drop((frame, other, third));
        assert!(is_unused(&budgets.process));
        assert!(
            ["a", "b", "c"]
                .iter()
                .all(|caller| is_unused(&budgets.caller(caller)))
        );
    }

    #[test]
    fn no_caller_takes_everything_by_small_requests() {
        let budgets = budgets();
        let mut taken = Vec::new();
        while let Ok(bytes) = budgets.take(None, Some("a"), SMALL) {
            taken.push(bytes);
        }
        assert_eq!(taken.len() * SMALL, 8 * MIB, "all of a caller");
        taken.push(budgets.take(None, Some("b"), SMALL).unwrap());
    }

    #[test]
    fn clients_without_credentials_leave_room_for_callers() {
        let budgets = budgets();
        let mut taken = Vec::new();
        while let Ok(bytes) = budgets.take(None, None, SMALL) {
            taken.push(bytes);
        }
        assert_eq!(taken.len() * SMALL, 2 * MIB, "an eighth of the process");
        taken.push(budgets.take(None, Some("a"), 5 * MIB).unwrap());
    }

    #[test]
    fn callers_that_send_nothing_take_no_room() {
        let budgets = budgets();
        for number in 0..1000 {
            budgets.take(None, Some(&number.to_string()), MIB).unwrap();
        }
        assert!(budgets.callers.lock().unwrap().pools.len() <= 64);
    }
}
