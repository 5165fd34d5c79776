//! The suite that every store passes.
//!
//! Each case is a plain async function over a store; [`CASES`] names them all. A store's tests call them with one line:
//!
//! ```ignore
//! // `open` is an async function that gives an `Arc<dyn LockStore>` and whatever keeps it alive. Its argument says for
//! // how long that store remembers releases.
//! forrst_lock::lock_contract!(memory, open, start_paused = true);
//! ```
//!
//! With `start_paused`, time is tokio's paused clock and the cases take no time. A store with a clock of its own leaves that
//! out, and the same cases wait in earnest. Names are fresh in every case, so cases can share a store.

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
        locks_do_not_know_each_other
        names_are_told_apart_to_the_last_byte
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
        held_is_held_also_for_its_own_owner
        a_second_release_says_so
        a_released_owner_learns_so_whoever_holds_the_lock_now
        a_forced_release_says_so_to_the_old_holder
        a_named_release_is_remembered_past_a_newer_lease
        the_last_sixteen_releases_are_remembered
        a_release_is_forgotten_after_a_while
        an_expired_owner_is_not_told_that_it_released
        force_release_needs_no_owner
        force_release_of_a_fence_spares_the_successor
        a_late_release_leaves_the_successor_alone
        a_repeated_attempt_gets_the_same_lease
        a_lease_ends_when_all_calls_of_its_attempt_are_given_up;
    expiry:
        a_lease_ends_at_its_expiry
        an_expired_lease_is_not_shown
        an_expired_lease_cannot_be_released
        extend_replaces_the_remaining_time
        extend_can_shorten_a_lease
        extend_never_revives
        a_lock_is_held_until_its_extended_end
        the_sweep_finds_what_nobody_asks_for;
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
        what_comes_for_an_expired_lease_leaves_the_next_alone
        a_newcomer_does_not_overtake_the_queue
        a_waiters_ttl_counts_from_its_grant
        a_waiter_whose_time_is_over_is_passed_by
        whoever_gives_up_waiting_leaves_the_queue
        a_grant_that_is_given_up_goes_to_the_next
        a_waiter_that_is_gone_is_passed_by
        a_full_queue_refuses
        waiting_for_a_free_lock_is_no_waiting
        it_is_known_who_holds_and_who_waits
        a_repeated_waiting_attempt_shares_its_position
        a_repeated_attempt_that_leaves_keeps_the_position_for_the_others;
    races:
        of_many_at_once_one_wins
        a_guarded_counter_loses_no_update
        callers_who_come_and_go_leave_nothing_behind;
    kinds:
        readers_share_and_a_writer_waits_for_all_of_them
        a_reader_does_not_pass_a_waiting_writer
        there_is_no_upgrade
        a_limit_admits_so_many_and_no_more
        a_lease_of_a_limit_that_runs_out_makes_room_for_one
        kinds_do_not_mix
        an_owner_with_several_leases_names_the_one_it_means
        force_release_ends_every_lease_or_the_named_one
        a_set_is_all_or_nothing
        a_waiting_set_reserves_its_free_keys
        a_set_that_gives_up_leaves_all_its_queues
        a_set_whose_time_is_over_is_passed_by_at_every_key
        a_set_that_is_given_up_after_its_grant_frees_every_key
        a_set_whose_waiter_is_gone_is_passed_by
        a_set_ends_as_a_whole
        a_set_takes_each_key_in_its_own_way
        the_fence_of_a_set_is_past_those_of_all_its_keys
        a_set_is_listed_under_each_of_its_keys
        an_attempt_is_for_the_same_keys_and_kinds
        sets_in_any_order_never_deadlock;
    withdrawal:
        a_held_attempt_is_released_by_withdrawing_it
        a_waiting_attempt_leaves_by_withdrawing_it
        a_call_that_arrives_after_its_withdrawal_comes_to_nothing
        a_call_that_asks_again_after_its_attempt_was_released_comes_to_nothing;
}

tokio::task_local! {
    static TIMING: Arc<Timing>;
}

/// What time has to do with a case, and where its keys are kept.
#[derive(Default)]
struct Timing {
    /// All names of a case have it, so that a cluster keeps them on one server and sets of them can be locked.
    tag: uuid::Uuid,
    /// Whether it has asked for something that ends while it runs.
    matters: AtomicBool,
    /// How many milliseconds it has let pass.
    passed: AtomicU64,
}

fn note_that_time_matters() {
    let _ = TIMING.try_with(|timing| timing.matters.store(true, Ordering::Relaxed));
}

fn note_passed(time: Duration) {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // A task that a case has started is not the one that waits for its time.
    let _ = TIMING.try_with(|timing| timing.passed.fetch_add(millis, Ordering::Relaxed));
}

/// Runs a case on a store of its own.
///
/// With a clock that nobody can pause, a machine that stands still may let a lease run out that a case takes for live. So a case
/// that fails is run again if much more time has passed than it has let pass; a case for which time does not matter never is.
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
            "{name} took {:?} and should take {passed:?}: once more",
            started.elapsed()
        );
    }
}

/// For how long the store of a case remembers releases. One case waits for the end of that, in earnest where the store has
/// a clock of its own; for all others it is far away, however slow the machine.
pub fn release_memory(case: &str) -> ReleaseMemory {
    match case {
        "a_release_is_forgotten_after_a_while" => ReleaseMemory::MIN,
        _ => ReleaseMemory::default(),
    }
}

/// A name that no other case uses, in this run or another.
fn fresh_name(about: &str) -> LockName {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let tag = TIMING.try_with(|timing| timing.tag);
    let tag = tag.unwrap_or_else(|_| uuid::Uuid::new_v4()).simple();
    let key = format!("contract:{{{tag}}}:{count}:{about}");
    LockName::global(&LockKey::parse(&key).expect("a short key"))
}

/// All names that are made meanwhile have the same hash tag.
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

/// Long enough that no case sees its end.
fn long() -> Ttl {
    ttl(60_000)
}

/// Short enough to wait for, long enough for a few round trips.
fn short() -> Ttl {
    note_that_time_matters();
    ttl(500)
}

/// Lets time pass: to the millisecond with the paused clock, where a sleep would take one too many.
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

/// A paused clock stands still while the thread sleeps.
fn is_paused() -> bool {
    let before = tokio::time::Instant::now();
    std::thread::sleep(Duration::from_micros(100));
    before == tokio::time::Instant::now()
}

/// Who asks, with a ticket of its own.
#[derive(Debug, Clone)]
struct Ask {
    owner: Owner,
    caller: Option<Caller>,
    note: Option<Note>,
    attempt: Option<Attempt>,
    ticket: Ticket,
    ttl: Ttl,
}

impl Ask {
    /// For these keys, and perhaps waiting.
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

    /// The same attempt in another call.
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

fn ask(owner_name: &str, ttl: Ttl) -> Ask {
    Ask {
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

async fn acquire(store: &dyn LockStore, name: &LockName, ask: Ask) -> Acquired {
    acquire_all(store, &exclusive(name), ask).await
}

async fn acquire_all(store: &dyn LockStore, locks: &Locks, ask: Ask) -> Acquired {
    answer(store.acquire(ask.for_locks(locks, None)).await)
}

/// Acquires what must be free.
async fn take(store: &dyn LockStore, name: &LockName, owner_name: &str, ttl: Ttl) -> Lease {
    match acquire(store, name, ask(owner_name, ttl)).await {
        Acquired::Granted(lease) => lease,
        other => panic!("{name} should be free for {owner_name}, but: {other:?}"),
    }
}

/// Tries to acquire, and says whether that worked; what it got is left held.
async fn is_free(store: &dyn LockStore, name: &LockName) -> bool {
    matches!(
        acquire(store, name, ask("somebody else", long())).await,
        Acquired::Granted(_)
    )
}

/// Acquires keys that must be free.
async fn take_all(store: &dyn LockStore, locks: &Locks, owner_name: &str, ttl: Ttl) -> Lease {
    match acquire_all(store, locks, ask(owner_name, ttl)).await {
        Acquired::Granted(lease) => lease,
        other => panic!("{locks:?} should be free for {owner_name}, but: {other:?}"),
    }
}

/// Joins the queue of what must be held.
async fn wait(store: &dyn LockStore, name: &LockName, ask: Ask) -> WaitingCall {
    wait_for_all(store, &exclusive(name), ask).await
}

async fn wait_for_all(store: &dyn LockStore, locks: &Locks, ask: Ask) -> WaitingCall {
    let (outcome, call) = wait_at_most(store, locks, ask, long(), 100).await;
    assert!(matches!(outcome, Acquired::Queued { .. }), "{outcome:?}");
    call
}

async fn wait_at_most(
    store: &dyn LockStore,
    locks: &Locks,
    ask: Ask,
    timeout: Ttl,
    max_queue: usize,
) -> (Acquired, WaitingCall) {
    let call = WaitingCall::of(store, ask.ticket);
    let wait = Wait {
        timeout: timeout.as_duration(),
        max_queue,
        rejoin: None,
    };
    let acquired = store.acquire(ask.for_locks(locks, Some(wait))).await;
    (answer(acquired), call)
}

/// A call that waits. Dropped, it is not there any more to be told anything.
#[derive(Debug)]
pub struct WaitingCall {
    wake: oneshot::Receiver<(Wake, Reading)>,
    _node: Arc<OneCall>,
}

/// The process that made one call, as far as the store knows.
#[derive(Debug)]
struct OneCall {
    ticket: Ticket,
    wake: Mutex<Option<oneshot::Sender<(Wake, Reading)>>>,
}

impl WaitingCall {
    /// To be told what becomes of the call of this ticket.
    pub fn of(store: &dyn LockStore, ticket: Ticket) -> Self {
        let (sender, wake) = oneshot::channel();
        let node = Arc::new(OneCall {
            ticket,
            wake: Mutex::new(Some(sender)),
        });
        let weak: Weak<OneCall> = Arc::downgrade(&node);
        store.subscribe(weak);
        Self { wake, _node: node }
    }

    /// What it has been told by now.
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
    answer(store.release(held(name, owner_name, fence)).await)
}

async fn extend_as(
    store: &dyn LockStore,
    name: &LockName,
    owner_name: &str,
    fence: Option<Fence>,
    ttl: Ttl,
) -> Result<Lease, NotHeld> {
    answer(store.extend(held(name, owner_name, fence), ttl).await)
}

fn held(name: &LockName, owner_name: &str, fence: Option<Fence>) -> LeaseRef {
    LeaseRef {
        name: name.clone(),
        owner: owner(owner_name),
        fence,
    }
}

/// Ends the one lease there is.
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

/// How long a wake-up may take on its way: generous, because it only passes when one is missing.
const WAKE_UP_TIME: Duration = Duration::from_secs(20);

/// What the waiter hears, which has to be a grant.
async fn granted(call: WaitingCall) -> Lease {
    match heard(call).await {
        Some(Wake::Granted(lease)) => lease,
        other => panic!("should have been granted the lock, but heard {other:?}"),
    }
}

async fn heard(mut call: WaitingCall) -> Option<Wake> {
    let heard = tokio::time::timeout(WAKE_UP_TIME, &mut call.wake).await;
    if heard.is_err() {
        note_passed(WAKE_UP_TIME);
    }
    let (wake, reading) = heard.ok()?.ok()?;
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

/// Fails when the waiter has heard anything.
fn still_waits(call: &mut WaitingCall) {
    assert_eq!(call.try_recv(), None, "should still wait");
}
