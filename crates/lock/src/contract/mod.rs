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
mod lifecycle;
pub mod model;
mod ownership;
mod races;
mod waiting;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::state::{Acquire, Acquired, Claim, Extend, ForceRelease, Release, Wait, Wake};
use crate::store::{Answer, LockStore};
use crate::{Fence, Lease, LockKey, LockName, NotHeld, Owner, ReleaseMemory, Ticket, Ttl, Waiter};

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
        a_lease_whose_attempt_was_repeated_is_not_given_up;
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
        a_repeated_waiting_attempt_keeps_its_place
        a_full_queue_refuses
        waiting_for_a_free_lock_is_no_waiting
        it_is_known_who_holds_and_who_waits;
    races:
        of_many_at_once_one_wins
        a_guarded_counter_loses_no_update
        callers_who_come_and_go_leave_nothing_behind;
}

tokio::task_local! {
    /// How many milliseconds a case has let pass, if it has.
    static PASSED: Arc<AtomicU64>;
}

fn note_passed(time: Duration) {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // A task that a case has started is not the one that waits for its time.
    let _ = PASSED.try_with(|passed| passed.fetch_add(millis, Ordering::Relaxed));
}

/// Runs a case on a store of its own.
///
/// With a clock that nobody can pause, a machine that stands still may let a lease run out that a case takes for live. So a case
/// that fails is run again if much more time has passed than it has let pass; a case that lets none pass never is.
pub async fn run<K>(name: &str, open: impl AsyncFn(ReleaseMemory) -> (Arc<dyn LockStore>, K)) {
    let case = CASES.iter().find(|(found, _)| *found == name);
    let (_, case) = case.expect("a case of the suite");
    for tries_left in (0..5).rev() {
        let (store, _keep) = open(release_memory(name)).await;
        let passed = Arc::new(AtomicU64::new(0));
        let started = Instant::now();
        let running = tokio::spawn(PASSED.scope(passed.clone(), case(store)));
        let Err(failed) = running.await else { return };
        let passed = Duration::from_millis(passed.load(Ordering::Relaxed));
        let is_late = !passed.is_zero() && started.elapsed() > passed + short().as_duration() / 2;
        if !is_late || tries_left == 0 {
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
    let unique = uuid::Uuid::new_v4().simple();
    let key = format!("contract:{unique}:{count}:{about}");
    LockName::global(&LockKey::parse(&key).expect("a short key"))
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
    ttl(500)
}

/// Lets time pass: to the millisecond with the paused clock, where a sleep would take one too many.
async fn pass(time: Ttl) {
    pass_exactly(time.as_duration()).await;
}

async fn pass_exactly(time: Duration) {
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
fn claim(owner_name: &str, ttl: Ttl) -> Claim {
    Claim {
        owner: owner(owner_name),
        caller: None,
        attempt: None,
        ticket: Ticket::random(),
        ttl,
    }
}

async fn acquire(store: &dyn LockStore, name: &LockName, claim: Claim) -> Acquired {
    let command = Acquire { claim, wait: None };
    answer(store.acquire(name, command).await)
}

/// Acquires what must be free.
async fn take(store: &dyn LockStore, name: &LockName, owner_name: &str, ttl: Ttl) -> Lease {
    match acquire(store, name, claim(owner_name, ttl)).await {
        Acquired::Granted(lease) => lease,
        other => panic!("{name} should be free for {owner_name}, but: {other:?}"),
    }
}

/// Tries to acquire, and says whether that worked; what it got is left held.
async fn is_free(store: &dyn LockStore, name: &LockName) -> bool {
    matches!(
        acquire(store, name, claim("somebody else", long())).await,
        Acquired::Granted(_)
    )
}

/// Joins the queue of what must be held.
async fn wait(store: &dyn LockStore, name: &LockName, claim: Claim) -> oneshot::Receiver<Wake> {
    let (outcome, wake) = wait_at_most(store, name, claim, long(), 100).await;
    assert!(matches!(outcome, Acquired::Queued { .. }), "{outcome:?}");
    wake
}

async fn wait_at_most(
    store: &dyn LockStore,
    name: &LockName,
    claim: Claim,
    timeout: Ttl,
    max_ahead: usize,
) -> (Acquired, oneshot::Receiver<Wake>) {
    let (waiter, wake) = Waiter::channel();
    let wait = Wait {
        timeout: timeout.as_duration(),
        max_ahead,
        waiter,
    };
    let command = Acquire {
        claim,
        wait: Some(wait),
    };
    (answer(store.acquire(name, command).await), wake)
}

async fn release(store: &dyn LockStore, lease: &Lease) -> Result<Lease, NotHeld> {
    release_as(store, &lease.name, lease.owner.as_str(), Some(lease.fence)).await
}

async fn release_as(
    store: &dyn LockStore,
    name: &LockName,
    owner_name: &str,
    fence: Option<Fence>,
) -> Result<Lease, NotHeld> {
    let owner = owner(owner_name);
    answer(store.release(name, Release { owner, fence }).await)
}

async fn extend_as(
    store: &dyn LockStore,
    name: &LockName,
    owner_name: &str,
    fence: Option<Fence>,
    ttl: Ttl,
) -> Result<Lease, NotHeld> {
    let owner = owner(owner_name);
    answer(store.extend(name, Extend { owner, fence, ttl }).await)
}

async fn force_release(
    store: &dyn LockStore,
    name: &LockName,
    fence: Option<Fence>,
) -> Result<Lease, NotHeld> {
    answer(store.force_release(name, ForceRelease { fence }).await)
}

async fn held_by(store: &dyn LockStore, name: &LockName) -> Option<Lease> {
    answer(store.inspect(name).await).map(|status| status.lease)
}

fn answer<T>(answer: Result<Answer<T>, crate::StoreError>) -> T {
    answer.expect("the store works").outcome
}

/// How long a wake-up may take on its way: generous, because it only passes when one is missing.
const WAKE_UP_TIME: Duration = Duration::from_secs(20);

/// What the waiter hears, which has to be a grant.
async fn granted(wake: oneshot::Receiver<Wake>) -> Lease {
    match heard(wake).await {
        Some(Wake::Granted(lease)) => lease,
        other => panic!("should have been granted the lock, but heard {other:?}"),
    }
}

async fn heard(wake: oneshot::Receiver<Wake>) -> Option<Wake> {
    let heard = tokio::time::timeout(WAKE_UP_TIME, wake).await;
    if heard.is_err() {
        note_passed(WAKE_UP_TIME);
    }
    heard.ok()?.ok()
}

/// Fails when the waiter has heard anything.
fn still_waits(wake: &mut oneshot::Receiver<Wake>) {
    assert_eq!(
        wake.try_recv(),
        Err(oneshot::error::TryRecvError::Empty),
        "should still wait"
    );
}
