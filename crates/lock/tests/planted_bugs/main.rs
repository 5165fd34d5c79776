//! The contract suite finds bugs: a store with one planted bug at a time, each of which a case has to catch.
//!
//! The store is a naive second implementation of the model: one list of leases, and one list of claims in order of arrival.
//! Without a bug it has to pass, so the model and this implementation check each other.

mod naive;

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_lock::contract::CASES;
use forrst_lock::contract::model::{Pace, behaves_like_the_model};

use self::naive::{Bug, NaiveStore};

/// The bugs, each with a case that must catch it.
const PLANTED: &[(Bug, &str)] = &[
    (Bug::ReleaseWithoutOwnerCheck, "only_the_owner_releases"),
    (
        Bug::ReleaseIgnoresTheFence,
        "a_late_release_does_not_end_the_next_lease",
    ),
    (
        Bug::ReleaseEndsTheNextLease,
        "a_command_on_an_expired_lease_does_not_affect_the_next_lease",
    ),
    (Bug::FencePerProcess, "fences_grow_with_every_grant"),
    (
        Bug::ExtendRevives,
        "extend_does_not_revive_an_expired_lease",
    ),
    (Bug::ExtendAdds, "extend_replaces_the_remaining_time"),
    (Bug::ExpiryOffByOne, "a_lease_ends_at_its_expiry"),
    (Bug::LostWakeUp, "waiters_are_served_in_arrival_order"),
    (Bug::EveryoneIsWoken, "a_release_wakes_one_waiter_only"),
    (
        Bug::TombstoneKeptTooLong,
        "a_release_is_forgotten_after_a_while",
    ),
    (Bug::NoTombstone, "a_second_release_is_recognised"),
    (
        Bug::CallForgottenLikeALock,
        "the_end_of_a_call_is_remembered_for_longer",
    ),
    (
        Bug::ContenderClearsTheHolder,
        "a_refused_contender_changes_nothing",
    ),
    (Bug::Reentrant, "a_lock_is_not_reentrant"),
    (
        Bug::AbandonDoesNothing,
        "an_abandoned_call_leaves_the_queue",
    ),
    (
        Bug::AbandonForgetsTheLease,
        "an_abandoned_grant_goes_to_the_next_waiter",
    ),
    (
        Bug::GoneWaiterKeepsTheLock,
        "a_waiter_that_is_gone_is_skipped",
    ),
    (Bug::QueueWithoutLimit, "a_full_queue_refuses"),
    (
        Bug::ReleasedOnlyWhileFree,
        "a_second_release_is_recognised_while_another_owner_holds_the_lock",
    ),
    (
        Bug::ForgetsThatItWasForced,
        "the_holder_learns_that_its_lease_was_force_released",
    ),
    (
        Bug::OnlyTheLastReleaseRemembered,
        "the_last_sixteen_releases_are_remembered",
    ),
    (
        Bug::ForceReleaseIgnoresTheFence,
        "force_release_of_a_fence_does_not_end_the_next_lease",
    ),
    (
        Bug::ReaderPassesAWaitingWriter,
        "a_reader_does_not_overtake_a_waiting_writer",
    ),
    (
        Bug::WriterBesideReaders,
        "readers_share_and_a_writer_waits_for_all_of_them",
    ),
    (
        Bug::NeighboursOneAtATime,
        "a_reader_does_not_overtake_a_waiting_writer",
    ),
    (Bug::UpgradeInPlace, "there_is_no_upgrade"),
    (Bug::LimitExceededByOne, "a_limit_admits_exactly_that_many"),
    (Bug::AnotherLimitFits, "kinds_do_not_mix"),
    (Bug::SharedBesideALimit, "kinds_do_not_mix"),
    (
        Bug::AmbiguousReleaseTakesTheFirst,
        "an_owner_with_several_leases_has_to_name_the_fence",
    ),
    (
        Bug::ForceReleaseEndsOne,
        "force_release_ends_every_lease_or_the_named_one",
    ),
    (Bug::SetGrantedInPart, "a_set_is_all_or_nothing"),
    (Bug::SetReleasedInPart, "a_set_is_all_or_nothing"),
    (Bug::RefusalNamesEveryKey, "a_set_is_all_or_nothing"),
    (
        Bug::SetWaitsForItsLastKeyOnly,
        "a_waiting_set_reserves_its_free_keys",
    ),
    (
        Bug::SetTakesKeysWhileItWaits,
        "sets_in_any_order_never_deadlock",
    ),
    (
        Bug::AbandonedSetLeftInOneQueue,
        "an_abandoned_set_leaves_all_its_queues",
    ),
    (
        Bug::TimedOutSetStillReserves,
        "a_set_that_has_timed_out_is_skipped_at_every_key",
    ),
    (Bug::SetExpiresInPart, "a_set_ends_as_a_whole"),
    (Bug::SetExtendedInPart, "a_set_ends_as_a_whole"),
    (
        Bug::FenceOfTheFirstKey,
        "the_fence_of_a_set_is_larger_than_those_of_all_its_keys",
    ),
    (Bug::SetListedOnce, "a_set_is_listed_under_each_of_its_keys"),
    (
        Bug::AttemptForOtherKeys,
        "a_repeated_attempt_must_have_the_same_keys_and_kinds",
    ),
    (
        Bug::RepeatedWaitSupersedes,
        "a_repeated_waiting_attempt_shares_its_position",
    ),
    (
        Bug::PositionLeavesWithAnyCall,
        "a_repeated_attempt_that_leaves_keeps_the_position_for_the_others",
    ),
    (
        Bug::AnyCallRollsTheLeaseBack,
        "a_lease_ends_when_all_calls_of_its_attempt_are_abandoned",
    ),
    (
        Bug::WithdrawalForgotten,
        "a_call_that_arrives_after_its_withdrawal_is_refused",
    ),
    (
        Bug::WithdrawalKeepsTheLease,
        "withdrawing_an_attempt_releases_its_lease",
    ),
    (
        Bug::RejoinAfterTheRelease,
        "a_call_that_rejoins_after_its_attempt_was_released_is_refused",
    ),
];

/// In the model test no call vanishes without being abandoned, none rejoins, nothing is listed, nothing is due when a command
/// arrives, and all keys are those of locks.
const INVISIBLE_TO_THE_MODEL: &[Bug] = &[
    Bug::GoneWaiterKeepsTheLock,
    Bug::SetListedOnce,
    Bug::ReleaseEndsTheNextLease,
    Bug::ExtendRevives,
    Bug::RejoinAfterTheRelease,
    Bug::CallForgottenLikeALock,
];

/// Keys are settled before each command, because this store settles all keys in each step.
const PACE: Pace = Pace {
    histories: 2_000,
    is_settled: true,
    is_seeded: true,
    ..Pace::PAUSED
};

#[test]
fn without_a_bug_every_case_passes() {
    assert_eq!(failing_cases(Bug::None), [""; 0]);
    behaves_like_the_model(async |_| (store(Bug::None), ()), PACE);
}

#[test]
fn the_suite_catches_every_planted_bug() {
    for (bug, case) in PLANTED {
        let failing = failing_cases(*bug);
        assert!(failing.contains(case), "{bug:?} is caught by {failing:?}");
    }
}

#[test]
fn the_model_test_catches_planted_bugs() {
    for (bug, _) in PLANTED {
        let caught = quietly(|| behaves_like_the_model(async |_| (store(*bug), ()), PACE));
        let expected = !INVISIBLE_TO_THE_MODEL.contains(bug);
        assert_eq!(caught, expected, "{bug:?}");
    }
}

fn failing_cases(bug: Bug) -> Vec<&'static str> {
    let fails = |case: forrst_lock::contract::Case| {
        quietly(|| {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().start_paused(true).build().unwrap();
            // A bug may make a case wait for ever, and a day of paused time takes no time.
            let day = Duration::from_secs(86_400);
            let in_time =
                runtime.block_on(async { tokio::time::timeout(day, case(store(bug))).await });
            in_time.expect("a case must end");
        })
    };
    CASES
        .iter()
        .filter(|(_, case)| fails(*case))
        .map(|(name, _)| *name)
        .collect()
}

/// Runs a check without printing its panic. Returns whether it panicked.
fn quietly(check: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        // The test harness prints panics of the test's own thread, and these are expected.
        let thread = std::thread::Builder::new().spawn_scoped(scope, check);
        thread.unwrap().join().is_err()
    })
}

fn store(bug: Bug) -> Arc<dyn LockStore> {
    Arc::new(NaiveStore::new(bug))
}
