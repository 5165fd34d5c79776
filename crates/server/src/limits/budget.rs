//! The memory budget: how many bytes of requests and answers the server keeps at once.
//!
//! A request takes its length from three pools before its body is read: those of its connection, its caller and the process.
//! Before a call runs, it takes the recent size of its function's results, if that is more, and afterwards what its own result
//! needs. All is given back when the client has taken the answer. The last quarter of each pool is for small requests, so that
//! a release gets through, however many large calls wait. While a frame arrives, it takes bytes from separate pools of a
//! quarter of that size; when it is complete, it takes those of a request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use forrst_protocol::{ErrorCode, ErrorObject};
use serde_json::json;

use super::{Limits, Refusal};
use crate::extension::millis;
use crate::metrics::Metrics;

/// Up to this size, a request is small, and may use all of a pool.
const SMALL: usize = 16 * 1024;

/// The least that is taken for a request, so that a small answer needs no more.
pub(crate) const SMALLEST_REQUEST: usize = SMALLEST_ANSWER;

/// The least that is taken for an answer.
const SMALLEST_ANSWER: usize = 1024;

/// After how long a client that was refused may try again.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// The pools of a server.
#[derive(Debug)]
pub(crate) struct Budgets {
    process: Arc<Pool>,
    /// For all frames that have arrived in part.
    frames: Arc<Pool>,
    /// The smallest size of a pool: two requests of the largest size.
    smallest: usize,
    per_connection: usize,
    per_caller: usize,
    /// For all clients without valid credentials together.
    anonymous: Arc<Pool>,
    callers: Mutex<PoolsByCaller>,
    metrics: Arc<Metrics>,
}

/// The pools of callers, by name, or by address if a caller has none. Unused pools are evicted.
#[derive(Debug, Default)]
struct PoolsByCaller {
    pools: HashMap<Arc<str>, CallerPools, RandomState>,
    /// How many there may be before unused ones are evicted.
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

/// The pools that a request takes its bytes from: those of its connection, its caller and the process. A connection caches it,
/// because looking up the pools takes a lock that all threads share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Payer(Arc<[Arc<Pool>]>);

/// A number of bytes that can be taken and given back.
#[derive(Debug)]
pub(crate) struct Pool {
    scope: PoolScope,
    size: usize,
    taken: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PoolScope {
    Connection,
    Caller,
    Process,
}

/// Bytes that were taken from pools, and are given back on drop.
#[derive(Debug, Default)]
pub(crate) struct TakenBytes {
    payer: Payer,
    bytes: usize,
}

/// The bytes of a frame and of its answers, until all clones are dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room(Arc<Mutex<RoomState>>);

#[derive(Debug, Default)]
struct RoomState {
    taken: TakenBytes,
    /// How much of it is for answers. The bytes of the request may become those of its answer.
    answers: usize,
}

/// Room for the result of one call.
#[derive(Debug)]
pub(crate) struct ResultRoom {
    room: Room,
    expected: usize,
    size: Arc<ResultSize>,
}

/// The recent size of the results of a function.
#[derive(Debug)]
pub(crate) struct ResultSize(AtomicUsize);

impl Budgets {
    pub(crate) fn new(limits: &Limits, metrics: Arc<Metrics>) -> Self {
        // One request of the largest size must fit into the part for requests of any size.
        let smallest = limits.max_body.saturating_mul(2);
        let process = limits.max_bytes.max(smallest);
        Self {
            process: Arc::new(Pool::new(PoolScope::Process, process)),
            frames: Arc::new(Pool::new(PoolScope::Process, (process / 4).max(smallest))),
            smallest,
            anonymous: Arc::new(Pool::new(PoolScope::Caller, process / 8)),
            per_connection: limits.max_bytes_per_connection.max(smallest),
            per_caller: limits.max_bytes_per_caller.max(smallest),
            callers: Mutex::default(),
            metrics,
        }
    }

    pub(crate) fn connection(&self) -> Arc<Pool> {
        Arc::new(Pool::new(PoolScope::Connection, self.per_connection))
    }

    /// The pools of a request; `caller` is `None` without valid credentials.
    pub(crate) fn payer(&self, connection: Option<&Arc<Pool>>, caller: Option<&str>) -> Payer {
        let caller = caller.map_or_else(
            || self.anonymous.clone(),
            |caller| self.caller(caller).requests,
        );
        let pools = connection.cloned().into_iter();
        Payer(pools.chain([caller, self.process.clone()]).collect())
    }

    /// Takes the bytes of a request, for as long as it is under way.
    ///
    /// # Errors
    ///
    /// What to answer when a pool has too few left.
    pub(crate) fn take(&self, payer: &Payer, bytes: usize) -> Result<TakenBytes, ErrorObject> {
        TakenBytes::new(payer.clone(), bytes).inspect_err(|_| self.metrics.refused(Refusal::Bytes))
    }

    /// Takes the bytes of a frame that has arrived in part; `None` when there are too few left.
    ///
    /// Frames have pools of their own, because they wait for room, and must not wait for calls that wait for locks.
    pub(crate) fn take_for_frame(&self, caller: &str, bytes: usize) -> Option<TakenBytes> {
        let pools = [self.caller(caller).frames, self.frames.clone()];
        TakenBytes::new(Payer(pools.into()), bytes).ok()
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
            requests: Arc::new(Pool::new(PoolScope::Caller, self.per_caller)),
            frames: Arc::new(Pool::new(
                PoolScope::Caller,
                (self.per_caller / 4).max(self.smallest),
            )),
        };
        callers.pools.insert(caller.into(), pools.clone());
        pools
    }
}

impl Pool {
    fn new(scope: PoolScope, size: usize) -> Self {
        Self {
            scope,
            size,
            taken: AtomicUsize::new(0),
        }
    }

    /// Takes bytes, if no more than `most` are taken afterwards.
    fn take(&self, bytes: usize, most: usize) -> bool {
        let take = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken.fetch_update(set, fetch, take).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The limit for a request or a call that takes `bytes`.
    fn limit(&self, bytes: usize) -> usize {
        match bytes {
            0..=SMALL => self.size,
            _ => self.general_part(),
        }
    }

    /// The part that requests of any size may use.
    fn general_part(&self) -> usize {
        self.size - self.size / 4
    }

    /// The limit for a large result of `bytes` that is in memory already. It may exceed the rest of a pool once, so that any
    /// single result fits. The pool of a connection counts results, but does not refuse them: its client may be reading.
    fn limit_for_result(&self, bytes: usize) -> usize {
        match self.scope {
            PoolScope::Connection => usize::MAX,
            PoolScope::Caller | PoolScope::Process => self.general_part().saturating_add(bytes),
        }
    }

    fn refusal(&self) -> ErrorObject {
        let (code, message) = match self.scope {
            PoolScope::Connection => (
                ErrorCode::RateLimited,
                "Too many bytes are under way on this connection",
            ),
            PoolScope::Caller => (
                ErrorCode::RateLimited,
                "Too many bytes of this caller are under way",
            ),
            PoolScope::Process => (
                ErrorCode::Unavailable,
                "Too many bytes are under way on this server",
            ),
        };
        ErrorObject::new(code, message).with_detail("retry_after", json!(millis(RETRY_AFTER)))
    }
}

impl TakenBytes {
    fn new(payer: Payer, bytes: usize) -> Result<Self, ErrorObject> {
        let mut taken = Self { payer, bytes: 0 };
        taken.grow(bytes, |pool| pool.limit(bytes))?;
        Ok(taken)
    }

    /// How many bytes were taken.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Takes more bytes from all pools, or from none.
    fn grow(&mut self, more: usize, limit: impl Fn(&Pool) -> usize) -> Result<(), ErrorObject> {
        let pools = &*self.payer.0;
        for (index, pool) in pools.iter().enumerate() {
            if !pool.take(more, limit(pool)) {
                for pool in &pools[..index] {
                    pool.give_back(more);
                }
                return Err(pool.refusal());
            }
        }
        self.bytes += more;
        Ok(())
    }

    fn shrink(&mut self, less: usize) {
        for pool in &*self.payer.0 {
            pool.give_back(less);
        }
        self.bytes -= less;
    }
}

impl Drop for TakenBytes {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

impl Room {
    pub(crate) fn new(taken: TakenBytes) -> Self {
        Self(Arc::new(Mutex::new(RoomState { taken, answers: 0 })))
    }

    /// Takes the bytes of an answer of this expected size.
    ///
    /// # Errors
    ///
    /// What to answer when a pool has too few left.
    pub(crate) fn expect_answer(&self, bytes: usize) -> Result<(), ErrorObject> {
        let bytes = bytes.max(SMALLEST_ANSWER);
        let mut state = self.state();
        let more = state.missing(bytes);
        state.taken.grow(more, |pool| pool.limit(more))?;
        state.answers += bytes;
        Ok(())
    }

    /// As [`expect_answer`](Self::expect_answer), for the result of a function.
    pub(crate) fn expect_result(&self, size: &Arc<ResultSize>) -> Result<ResultRoom, ErrorObject> {
        let smallest = self
            .state()
            .taken
            .payer
            .0
            .iter()
            .map(|pool| pool.size)
            .min();
        // A call must fit into unused pools, however large its result may be.
        let most = smallest.unwrap_or(usize::MAX) / 2;
        let expected = size.0.load(Ordering::Relaxed).min(most);
        let expected = expected.max(SMALLEST_ANSWER);
        self.expect_answer(expected)?;
        Ok(ResultRoom {
            room: self.clone(),
            expected,
            size: size.clone(),
        })
    }

    /// The answers are complete, and the request was dropped: from now on, this many bytes are kept.
    pub(crate) fn answered(&self, bytes: usize) {
        let mut state = self.state();
        state.answers = bytes;
        match bytes.checked_sub(state.taken.bytes) {
            Some(more) => _ = state.taken.grow(more, |_| usize::MAX),
            None => {
                let less = state.taken.bytes - bytes;
                // All threads contend for the counters of the pools, so a small difference is left.
                if less > SMALLEST_REQUEST {
                    state.taken.shrink(less);
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, RoomState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoomState {
    /// How many bytes must be taken in addition for answers of this many more bytes.
    fn missing(&self, bytes: usize) -> usize {
        (self.answers + bytes).saturating_sub(self.taken.bytes)
    }
}

impl ResultRoom {
    /// Whether there is room for the result, which has this many bytes.
    pub(crate) fn holds(self, bytes: usize) -> bool {
        self.size.note(bytes);
        let mut state = self.room.state();
        state.answers -= self.expected;
        let more = state.missing(bytes);
        // Small results always fit.
        let limit = |pool: &Pool| match bytes {
            0..=SMALL => usize::MAX,
            _ => pool.limit_for_result(more),
        };
        let has_room = state.taken.grow(more, limit).is_ok();
        if has_room {
            state.answers += bytes;
        }
        has_room
    }
}

impl Default for ResultSize {
    fn default() -> Self {
        Self(AtomicUsize::new(SMALLEST_ANSWER))
    }
}

impl ResultSize {
    /// Grows at once and shrinks slowly, so that a burst after a few small results is not underestimated.
    fn note(&self, bytes: usize) {
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let next = |size: usize| Some(bytes.max(size - size / 8).max(SMALLEST_ANSWER));
        let _ = self.0.fetch_update(set, fetch, next);
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

    fn take(
        budgets: &Budgets,
        connection: Option<&Arc<Pool>>,
        caller: Option<&str>,
        bytes: usize,
    ) -> Result<TakenBytes, ErrorObject> {
        budgets.take(&budgets.payer(connection, caller), bytes)
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
            while let Ok(bytes) = take(&budgets, Some(connection), Some("a"), MIB) {
                taken.push(bytes);
            }
            assert!(taken.len() - before <= 3, "three quarters of a connection");
        }
        assert_eq!(taken.len(), 6, "three quarters of a caller");
        while let Ok(bytes) = take(&budgets, None, Some("b"), MIB) {
            taken.push(bytes);
        }
        assert_eq!(taken.len(), 12, "three quarters of the process");
        // A small request still gets through.
        taken.push(take(&budgets, Some(&connections[0]), Some("a"), 100).unwrap());
        taken.clear();
        assert!(is_unused(&budgets.process));
        assert!(connections.iter().all(|connection| is_unused(connection)));
    }

    #[test]
    fn a_refusal_takes_nothing() {
        let budgets = budgets();
        let connection = budgets.connection();
        let _all = take(&budgets, None, Some("a"), 6 * MIB).unwrap();
        let refused = take(&budgets, Some(&connection), Some("a"), MIB).unwrap_err();
        assert_eq!(refused.code, ErrorCode::RateLimited);
        assert!(is_unused(&connection));
    }

    #[test]
    fn an_answer_takes_the_bytes_of_its_request_and_more() {
        let budgets = budgets();
        let room = |bytes| Room::new(take(&budgets, None, Some("a"), bytes).unwrap());
        let taken = || budgets.process.taken.load(Ordering::Relaxed);
        let (large, small) = (room(MIB), room(100));
        large.expect_answer(MIB).unwrap();
        assert_eq!(taken(), MIB + 100);
        large.expect_answer(MIB).unwrap();
        assert_eq!(taken(), 2 * MIB + 100);
        let refused = small.expect_answer(5 * MIB).unwrap_err();
        assert_eq!(refused.code, ErrorCode::RateLimited);
        assert_eq!(taken(), 2 * MIB + 100);
        large.answered(10);
        assert_eq!(taken(), 110);
        small.answered(20 * MIB);
        assert!(take(&budgets, None, Some("b"), 100).is_err());
        drop((large, small));
        assert!(is_unused(&budgets.process));
    }

    #[test]
    fn results_that_are_larger_than_expected_are_bounded() {
        let budgets = budgets();
        let connection = budgets.connection();
        let size = Arc::default();
        let rooms: Vec<_> = (0..20)
            .map(|_| Room::new(take(&budgets, Some(&connection), Some("a"), 100).unwrap()))
            .collect();
        let expected: Vec<_> = rooms.iter().map(|room| room.expect_result(&size)).collect();
        let expected = expected.into_iter().map(Result::unwrap);
        let held: Vec<bool> = expected.map(|room| room.holds(MIB)).collect();
        let fit = held.iter().filter(|held| **held).count();
        assert_eq!(fit, 6, "three quarters of a caller");
        // The next call is expected to be like those.
        let next = take(&budgets, None, Some("b"), 100).unwrap();
        let next = Room::new(next);
        drop(next.expect_result(&size).unwrap());
        assert_eq!(next.state().taken.bytes, MIB);
        drop((rooms, next));
        assert!(is_unused(&budgets.process) && is_unused(&connection));
    }

    #[test]
    fn frames_of_a_caller_and_all_frames_are_limited_beside_requests() {
        let budgets = budgets();
        let _requests = take(&budgets, None, Some("a"), 6 * MIB).unwrap();
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
    fn one_caller_cannot_take_everything_with_small_requests() {
        let budgets = budgets();
        let mut taken = Vec::new();
        while let Ok(bytes) = take(&budgets, None, Some("a"), SMALL) {
            taken.push(bytes);
        }
        assert_eq!(taken.len() * SMALL, 8 * MIB, "all of a caller");
        taken.push(take(&budgets, None, Some("b"), SMALL).unwrap());
    }

    #[test]
    fn clients_without_credentials_leave_room_for_callers() {
        let budgets = budgets();
        let mut taken = Vec::new();
        while let Ok(bytes) = take(&budgets, None, None, SMALL) {
            taken.push(bytes);
        }
        assert_eq!(taken.len() * SMALL, 2 * MIB, "an eighth of the process");
        taken.push(take(&budgets, None, Some("a"), 5 * MIB).unwrap());
    }

    #[test]
    fn the_pools_of_idle_callers_are_evicted() {
        let budgets = budgets();
        for number in 0..1000 {
            take(&budgets, None, Some(&number.to_string()), MIB).unwrap();
        }
        assert!(budgets.callers.lock().unwrap().pools.len() <= 64);
    }
}
