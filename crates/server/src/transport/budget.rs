//! How many bytes of requests and answers the server keeps at once.
//!
//! A request takes its length from three pools before its body is read: that of its connection, that of its caller and that of
//! the process. It gives them back when the client has taken the answer. The last quarter of each pool is for small requests, so
//! that a release gets through whatever large calls are waiting. A frame takes
//! bytes from pools of a quarter of that size while it arrives, and those of a request when it is whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// All frames that have arrived in part.
    frames: Arc<Pool>,
    /// What a pool has at least: two requests of the largest size.
    smallest: usize,
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
    pools: HashMap<Arc<str>, CallerPools>,
    /// How many there may be before those that nothing is taken from are dropped.
    most: usize,
}

#[derive(Debug, Clone)]
struct CallerPools {
    requests: Arc<Pool>,
    frames: Arc<Pool>,
}

impl CallerPools {
    fn are_used(&self) -> bool {
        let pools = [&self.requests, &self.frames];
        pools.iter().any(|pool| Arc::strong_count(pool) > 1)
    }
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
            frames: Arc::new(Pool::new((process / 4).max(smallest))),
            smallest,
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
        let caller = caller.map_or_else(
            || self.anonymous.clone(),
            |caller| self.caller(caller).requests,
        );
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

    /// Takes the bytes of a frame that has arrived in part; `None` when there are too few left.
    ///
    /// Frames have pools of their own: they wait for room, and must not wait for calls that wait for locks.
    pub(super) fn take_for_frame(&self, caller: &str, bytes: usize) -> Option<TakenBytes> {
        let mut taken = TakenBytes {
            pools: Vec::with_capacity(2),
            bytes,
        };
        for pool in [self.caller(caller).frames, self.frames.clone()] {
            if !pool.take(bytes) {
                return None;
            }
            taken.pools.push(pool);
        }
        Some(taken)
    }

    fn caller(&self, caller: &str) -> CallerPools {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pools) = callers.pools.get(caller) {
            return pools.clone();
        }
        if callers.pools.len() >= callers.most {
            callers.pools.retain(|_, pools| pools.are_used());
            callers.most = 64 + 2 * callers.pools.len();
        }
        let pools = CallerPools {
            requests: Arc::new(Pool::new(self.per_caller)),
            frames: Arc::new(Pool::new((self.per_caller / 4).max(self.smallest))),
        };
        callers.pools.insert(caller.into(), pools.clone());
        pools
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
        let most = match bytes {
            0..=SMALL => self.size,
            _ => self.size - self.size / 4,
        };
        let take = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken.fetch_update(set, fetch, take).is_ok()
    }
}

impl TakenBytes {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.bytes
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
    fn frames_of_a_caller_and_all_frames_are_limited_beside_requests() {
        let budgets = budgets();
        let _requests = budgets.take(None, Some("a"), 6 * MIB).unwrap();
        // Three quarters of two and of four mebibytes.
        let mut taken = Vec::new();
        for (caller, fit) in [("a", 1), ("b", 1), ("c", 1), ("d", 0)] {
            let before = taken.len();
            while let Some(frame) = budgets.take_for_frame(caller, MIB) {
                taken.push(frame);
            }
            assert_eq!(taken.len() - before, fit, "{caller}");
        }
        drop(taken);
        assert!(is_unused(&budgets.frames));
        assert!(budgets.take_for_frame("d", MIB).is_some());
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
