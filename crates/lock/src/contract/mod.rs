//! The suite that every store passes.
//!
//! Each case is an async function over a store, and [`CASES`] lists them all. A store's tests call them with one line:
//!
//! ```ignore
//! // `open` is an async function that returns an `Arc<dyn LockStore>`, and a value that keeps it running. Its argument is how
//! // long the store remembers releases.
//! forrst_lock::lock_contract!(memory, open, start_paused = true);
//! ```
//!
//! With `start_paused`, time is tokio's paused clock, and the cases take no time. For a store with its own clock this is left
//! out, and the cases sleep. Each case has fresh names, so cases can share a store.

#![expect(
    missing_docs,
    clippy::missing_panics_doc,
    reason = "a case's name says what it shows, and panicking is how it fails"
)]

mod expiry;
mod fences;
mod kinds;
mod lifecycle;
pub mod model;
mod ownership;
mod races;
mod waiting;
mod withdrawal;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::model::{Acquire, Acquired, Claim, LeaseRef, Transition, Wait, Wake};
use crate::store::{Answer, LockStore, LockStoreExt};
use crate::{
    Attempt, Caller, Fence, Lease, LockKey, LockName, Locks, Node, NotHeld, Note, Owner, Reading,
    ReleaseMemory, Ticket, Timestamp, Ttl,
};

/// One case of the suite.
pub type Case = fn(Arc<dyn LockStore>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

// `$d` is a dollar sign for the inner macro.
macro_rules! cases {
    ($d:tt $($group:ident: $($case:ident)*;)*) => {
        /// Every case, by name.
        pub const CASES: &[(&str, Case)] = &[
            $($((stringify!($case), |store| Box::pin($group::$case(store)))),*),*
        ];

        $(pub use $group::{$($case),*};)*

        /// Runs the whole suite on a store: one test for each case, in a module of the given name.
        #[macro_export]
        macro_rules! lock_contract {
            ($d store:ident, $d open:path $d(, $d($d runtime:tt)*)?) => {
                mod $d store {
                    use super::*;

                    $($(
                        #[tokio::test($d($d($d runtime)*)?)]
                        async fn $case() {
                            $d crate::contract::run(stringify!($case), $d open).await;
                        }
                    )*)*
                }
            };
        }
    };
}

cases! {
    $
    lifecycle:
        a_lock_is_free_then_held_then_free_again
        locks_are_independent
        names_that_differ_in_one_byte_are_different_locks
        a_listing_shows_every_held_lock_once
        a_listing_can_be_narrowed_by_prefix
        a_foreign_cursor_is_refused
        held_locks_are_counted
        the_store_is_healthy;
    ownership:
        only_the_owner_releases
        only_the_owner_extends
        a_named_fence_has_to_match
        a_refused_contender_changes_nothing
        a_lock_is_not_reentrant
        a_second_release_is_recognised
        a_second_release_is_recognised_while_another_owner_holds_the_lock
        the_holder_learns_that_its_lease_was_force_released
        a_release_with_a_fence_is_recognised_after_a_newer_lease
        the_last_sixteen_releases_are_remembered
        a_release_is_forgotten_after_a_while
        the_end_of_a_call_is_remembered_for_longer
        calls_are_not_counted_as_locks
        an_expired_lease_is_not_reported_as_released
        force_release_needs_no_owner
        force_release_of_a_fence_does_not_end_the_next_lease
        a_late_release_does_not_end_the_next_lease
        a_repeated_attempt_gets_the_same_lease
        a_lease_ends_when_all_calls_of_its_attempt_are_abandoned;
    expiry:
        a_lease_ends_at_its_expiry
        an_expired_lease_is_not_shown
        an_expired_lease_cannot_be_released
        extend_replaces_the_remaining_time
        extend_can_shorten_a_lease
        extend_does_not_revive_an_expired_lease
        a_lock_is_held_until_its_extended_expiry
        the_sweep_ends_expired_leases;
    fences:
        fences_grow_with_every_grant
        fences_grow_across_expiry
        fences_grow_across_force_release
        fences_grow_with_a_hand_over
        extend_keeps_the_fence;
    waiting:
        waiters_are_served_in_arrival_order
        a_release_wakes_one_waiter_only
        force_release_hands_over
        expiry_hands_over_when_settled
        a_command_on_an_expired_lease_does_not_affect_the_next_lease
        a_newcomer_does_not_overtake_the_queue
        a_waiters_ttl_counts_from_its_grant
        a_waiter_that_has_timed_out_is_skipped
        an_abandoned_call_leaves_the_queue
        an_abandoned_grant_goes_to_the_next_waiter
        a_waiter_that_is_gone_is_skipped
        a_full_queue_refuses
        a_free_lock_is_granted_without_waiting
        holders_and_waiters_are_shown_with_their_callers
        a_repeated_waiting_attempt_shares_its_position
        a_repeated_attempt_that_leaves_keeps_the_position_for_the_others;
    races:
        one_of_many_concurrent_calls_wins
        a_guarded_counter_loses_no_update
        dropped_calls_leave_no_lease_and_no_waiter;
    kinds:
        readers_share_and_a_writer_waits_for_all_of_them
        a_reader_does_not_overtake_a_waiting_writer
        there_is_no_upgrade
        a_limit_admits_exactly_that_many
        the_largest_fence_is_known_beyond_the_leases_that_are_shown
        the_expiry_of_one_lease_of_a_limit_admits_one_waiter
        kinds_do_not_mix
        an_owner_with_several_leases_has_to_name_the_fence
        force_release_ends_every_lease_or_the_named_one
        a_set_is_all_or_nothing
        a_waiting_set_reserves_its_free_keys
        an_abandoned_set_leaves_all_its_queues
        a_set_that_has_timed_out_is_skipped_at_every_key
        a_set_abandoned_after_its_grant_frees_every_key
        a_set_whose_waiter_is_gone_is_skipped
        a_set_ends_as_a_whole
        a_set_may_have_a_different_kind_for_each_key
        the_fence_of_a_set_is_larger_than_those_of_all_its_keys
        a_set_is_listed_under_each_of_its_keys
        a_repeated_attempt_must_have_the_same_keys_and_kinds
        sets_in_any_order_never_deadlock;
    withdrawal:
        withdrawing_an_attempt_releases_its_lease
        withdrawing_an_attempt_removes_it_from_its_queues
        a_call_that_arrives_after_its_withdrawal_is_refused
        a_call_that_rejoins_after_its_attempt_was_released_is_refused;
}

tokio::task_local! {
    static TIMING: Arc<Timing>;
}

/// The use of time by a case, and the hash tag of its names.
#[derive(Default)]
struct Timing {
    /// The hash tag of all names of a case, so that a cluster keeps them on one server and sets of them can be locked.
    tag: uuid::Uuid,
    /// Whether the case depends on time.
    matters: AtomicBool,
    /// How many milliseconds the case has slept.
    passed: AtomicU64,
}

fn note_that_time_matters() {
    let _ = TIMING.try_with(|timing| timing.matters.store(true, Ordering::Relaxed));
}

fn note_passed(time: Duration) {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // Fails in a task that a case has spawned, whose sleeps do not count.
    let _ = TIMING.try_with(|timing| timing.passed.fetch_add(millis, Ordering::Relaxed));
}

/// Runs a case on a store of its own.
///
/// Without a paused clock, a lease that a case expects to be live may expire while the machine stalls. So a case that fails is
/// repeated if it took much longer than it slept, but only if it depends on time.
pub async fn run<K>(name: &str, open: impl AsyncFn(ReleaseMemory) -> (Arc<dyn LockStore>, K)) {
    let case = CASES.iter().find(|(found, _)| *found == name);
    let (_, case) = case.expect("a case of the suite");
    for tries_left in (0..5).rev() {
        let (store, _keep) = open(release_memory(name)).await;
        let timing = Arc::new(Timing {
            tag: uuid::Uuid::new_v4(),
            ..Timing::default()
        });
        let started = Instant::now();
        let running = tokio::spawn(TIMING.scope(timing.clone(), case(store)));
        let Err(failed) = running.await else { return };
        let passed = Duration::from_millis(timing.passed.load(Ordering::Relaxed));
        let is_late = timing.matters.load(Ordering::Relaxed)
            && started.elapsed() > passed + short().as_duration() / 2;
        if !is_late || tries_left == 0 {
            eprintln!("{name} failed");
            std::panic::resume_unwind(failed.into_panic());
        }
        eprintln!(
            "{name} took {:?} instead of {passed:?}, and is repeated",
            started.elapsed()
        );
    }
}

/// How long the store of a case remembers releases. One case waits for the end of that time, so there it is short; for all
/// others it is too long to end during the case, however slow the machine.
pub fn release_memory(case: &str) -> ReleaseMemory {
    match case {
        "a_release_is_forgotten_after_a_while" | "the_end_of_a_call_is_remembered_for_longer" => {
            ReleaseMemory::MIN
        }
        _ => ReleaseMemory::default(),
    }
}

/// A name that is unique to this case and run.
fn fresh_name(about: &str) -> LockName {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let tag = TIMING.try_with(|timing| timing.tag);
    let tag = tag.unwrap_or_else(|_| uuid::Uuid::new_v4()).simple();
    let key = format!("contract:{{{tag}}}:{count}:{about}");
    LockName::global(&LockKey::parse(&key).expect("a short key"))
}

/// Gives all names that are made in the closure the same hash tag.
fn with_one_tag<T>(names: impl FnOnce() -> T) -> T {
    let timing = Timing {
        tag: uuid::Uuid::new_v4(),
        ..Timing::default()
    };
    TIMING.sync_scope(Arc::new(timing), names)
}

fn owner(name: &str) -> Owner {
    Owner::parse(name).expect("a short owner")
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(Duration::from_millis(millis)).expect("a positive ttl")
}

/// Long enough that it does not end during a case.
fn long() -> Ttl {
    ttl(60_000)
}

/// Short enough to wait for, long enough for a few round trips.
fn short() -> Ttl {
    note_that_time_matters();
    ttl(500)
}

/// Lets time pass: exactly with the paused clock, where a sleep would take a millisecond more.
async fn pass(time: Ttl) {
    pass_exactly(time.as_duration()).await;
}

async fn pass_exactly(time: Duration) {
    note_that_time_matters();
    note_passed(time);
    if is_paused() {
        tokio::time::advance(time).await;
    } else {
        tokio::time::sleep(time).await;
    }
}

/// Detects tokio's paused clock, which does not advance while the thread sleeps.
fn is_paused() -> bool {
    let before = tokio::time::Instant::now();
    std::thread::sleep(Duration::from_micros(100));
    before == tokio::time::Instant::now()
}

/// A call for a lease, without its keys.
#[derive(Debug, Clone)]
struct Request {
    owner: Owner,
    caller: Option<Caller>,
    note: Option<Note>,
    attempt: Option<Attempt>,
    ticket: Ticket,
    ttl: Ttl,
}

impl Request {
    /// The call for these keys, which may wait.
    fn for_locks(self, locks: &Locks, wait: Option<Wait>) -> Acquire {
        Acquire {
            claim: Claim {
                locks: locks.clone(),
                owner: self.owner,
                caller: self.caller,
                note: self.note,
                attempt: self.attempt,
                ttl: self.ttl,
            },
            ticket: self.ticket,
            node: None,
            wait,
        }
    }

    /// Another call of the same attempt.
    fn again(&self) -> Self {
        Self {
            ticket: Ticket::random(),
            ..self.clone()
        }
    }

    fn attempt(mut self, attempt: &str) -> Self {
        self.attempt = Some(Attempt::parse(attempt).expect("short"));
        self
    }
}

fn request(owner_name: &str, ttl: Ttl) -> Request {
    Request {
        owner: owner(owner_name),
        caller: None,
        note: None,
        attempt: None,
        ticket: Ticket::random(),
        ttl,
    }
}

fn exclusive(name: &LockName) -> Locks {
    Locks::exclusive(name.clone())
}

async fn acquire(store: &dyn LockStore, name: &LockName, request: Request) -> Acquired {
    acquire_all(store, &exclusive(name), request).await
}

async fn acquire_all(store: &dyn LockStore, locks: &Locks, request: Request) -> Acquired {
    answer(store.acquire(request.for_locks(locks, None)).await)
}

/// Acquires a lock that must be free.
async fn take(store: &dyn LockStore, name: &LockName, owner_name: &str, ttl: Ttl) -> Lease {
    match acquire(store, name, request(owner_name, ttl)).await {
        Acquired::Granted(lease) => lease,
        other => panic!("{name} should be free for {owner_name}, but: {other:?}"),
    }
}

/// Tries to acquire a lock, and returns whether that succeeded. If so, the lock stays held.
async fn is_free(store: &dyn LockStore, name: &LockName) -> bool {
    matches!(
        acquire(store, name, request("another owner", long())).await,
        Acquired::Granted(_)
    )
}

/// Acquires keys that must be free.
async fn take_all(store: &dyn LockStore, locks: &Locks, owner_name: &str, ttl: Ttl) -> Lease {
    match acquire_all(store, locks, request(owner_name, ttl)).await {
        Acquired::Granted(lease) => lease,
        other => panic!("{locks:?} should be free for {owner_name}, but: {other:?}"),
    }
}

/// Joins the queue of a lock that must be held.
async fn wait(store: &dyn LockStore, name: &LockName, request: Request) -> WaitingCall {
    wait_for_all(store, &exclusive(name), request).await
}

async fn wait_for_all(store: &dyn LockStore, locks: &Locks, request: Request) -> WaitingCall {
    let (outcome, call) = wait_at_most(store, locks, request, long(), 100).await;
    assert!(matches!(outcome, Acquired::Queued { .. }), "{outcome:?}");
    call
}

async fn wait_at_most(
    store: &dyn LockStore,
    locks: &Locks,
    request: Request,
    timeout: Ttl,
    max_queue: usize,
) -> (Acquired, WaitingCall) {
    let call = WaitingCall::subscribe(store, request.ticket);
    let wait = Wait {
        timeout: timeout.as_duration(),
        max_queue,
        rejoin: None,
    };
    let acquired = store.acquire(request.for_locks(locks, Some(wait))).await;
    (answer(acquired), call)
}

/// A call that waits. Once it is dropped, it can no longer be notified.
#[derive(Debug)]
pub struct WaitingCall {
    wake: oneshot::Receiver<(Wake, Reading)>,
    _node: Arc<OneCall>,
}

/// A node with a single call.
#[derive(Debug)]
struct OneCall {
    ticket: Ticket,
    wake: Mutex<Option<oneshot::Sender<(Wake, Reading)>>>,
}

impl WaitingCall {
    /// Subscribes to the end of the wait of this ticket.
    pub fn subscribe(store: &dyn LockStore, ticket: Ticket) -> Self {
        let (sender, wake) = oneshot::channel();
        let node = Arc::new(OneCall {
            ticket,
            wake: Mutex::new(Some(sender)),
        });
        let weak: Weak<OneCall> = Arc::downgrade(&node);
        store.subscribe(weak);
        Self { wake, _node: node }
    }

    /// The notification, if it has arrived.
    pub fn try_recv(&mut self) -> Option<Wake> {
        self.wake.try_recv().ok().map(|(wake, _)| wake)
    }
}

impl Node for OneCall {
    fn wake(&self, ticket: Ticket, wake: Wake, reading: Reading) -> bool {
        if ticket != self.ticket {
            return false;
        }
        let mut sender = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        sender
            .take()
            .is_some_and(|sender| sender.send((wake, reading)).is_ok())
    }

    fn changed(&self, _: &Transition, _: Timestamp) {}
}

async fn release(store: &dyn LockStore, lease: &Lease) -> Result<Lease, NotHeld> {
    release_as(store, lease.name(), lease.owner.as_str(), Some(lease.fence)).await
}

async fn release_as(
    store: &dyn LockStore,
    name: &LockName,
    owner_name: &str,
    fence: Option<Fence>,
) -> Result<Lease, NotHeld> {
    answer(store.release(lease_ref(name, owner_name, fence)).await)
}

async fn extend_as(
    store: &dyn LockStore,
    name: &LockName,
    owner_name: &str,
    fence: Option<Fence>,
    ttl: Ttl,
) -> Result<Lease, NotHeld> {
    answer(store.extend(lease_ref(name, owner_name, fence), ttl).await)
}

fn lease_ref(name: &LockName, owner_name: &str, fence: Option<Fence>) -> LeaseRef {
    LeaseRef {
        name: name.clone(),
        owner: owner(owner_name),
        fence,
    }
}

/// Ends exactly one lease.
async fn force_release(
    store: &dyn LockStore,
    name: &LockName,
    fence: Option<Fence>,
) -> Result<Lease, NotHeld> {
    let mut leases = force_release_all(store, name, fence).await?;
    assert_eq!(leases.len(), 1, "{leases:?}");
    Ok(leases.remove(0))
}

async fn force_release_all(
    store: &dyn LockStore,
    name: &LockName,
    fence: Option<Fence>,
) -> Result<Vec<Lease>, NotHeld> {
    answer(store.force_release(name, fence).await)
}

async fn held_by(store: &dyn LockStore, name: &LockName) -> Option<Lease> {
    answer(store.inspect(name).await).holders.into_iter().next()
}

fn answer<T>(answer: Result<Answer<T>, crate::StoreError>) -> T {
    answer.expect("the store works").outcome
}

/// How long a wake-up may be under way. This is generous, because only a missing one takes that long.
const WAKE_UP_TIME: Duration = Duration::from_secs(20);

/// The lease that ends the wait of a call.
async fn granted(call: WaitingCall) -> Lease {
    match notified(call).await {
        Some(Wake::Granted(lease)) => lease,
        other => panic!("should have been granted the lock, but received {other:?}"),
    }
}

/// The notification that ends the wait of a call; `None` if it does not arrive.
async fn notified(mut call: WaitingCall) -> Option<Wake> {
    let received = tokio::time::timeout(WAKE_UP_TIME, &mut call.wake).await;
    if received.is_err() {
        note_passed(WAKE_UP_TIME);
    }
    let (wake, reading) = received.ok()?.ok()?;
    assert!(
        reading.at <= Instant::now(),
        "the store's clock is read ahead"
    );
    if let Wake::Granted(lease) = &wake {
        let age = reading.now.remaining(lease.acquired_at);
        assert!(
            lease.acquired_at <= reading.now && age < WAKE_UP_TIME,
            "a grant at {:?} came with the reading {:?}",
            lease.acquired_at,
            reading.now
        );
    }
    Some(wake)
}

/// Fails if the call was notified.
fn still_waits(call: &mut WaitingCall) {
    assert_eq!(call.try_recv(), None, "should still wait");
}
