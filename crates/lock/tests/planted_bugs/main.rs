//! The contract suite finds faults: a store with a bug of choice, each of which some case has to catch.
//!
//! The store is a second spelling of the model, too slow to use and short enough to read: one list of leases, and one list of
//! claims in the order in which they came. Without a bug it has to pass, too, so the model and this one check each other.

mod naive;

use std::sync::Arc;
use std::time::Duration;

use forrst_lock::LockStore;
use forrst_lock::contract::CASES;
use forrst_lock::contract::model::{Pace, behaves_like_the_model};

use self::naive::{Bug, NaiveStore};

/// Bugs, and a case that must catch each.
const PLANTED: &[(Bug, &str)] = &[
    (Bug::ReleaseWithoutOwnerCheck, "only_the_owner_releases"),
    (
        Bug::ReleaseIgnoresTheFence,
        "a_late_release_leaves_the_successor_alone",
    ),
    (
        Bug::ReleaseTakesTheNext,
        "what_comes_for_an_expired_lease_leaves_the_next_alone",
    ),
    (Bug::FencePerProcess, "fences_grow_with_every_grant"),
    (Bug::ExtendRevives, "extend_never_revives"),
    (Bug::ExtendAdds, "extend_replaces_the_remaining_time"),
    (Bug::ExpiryOffByOne, "a_lease_ends_at_its_expiry"),
    (Bug::LostWakeUp, "waiters_are_served_in_arrival_order"),
    (Bug::EveryoneIsWoken, "a_release_wakes_one_waiter_only"),
    (
        Bug::TombstoneKeptTooLong,
        "a_release_is_forgotten_after_a_while",
    ),
    (Bug::NoTombstone, "a_second_release_says_so"),
    (
        Bug::ContenderClearsTheHolder,
        "a_refused_contender_changes_nothing",
    ),
    (Bug::Reentrant, "held_is_held_also_for_its_own_owner"),
    (
        Bug::AbandonDoesNothing,
        "whoever_gives_up_waiting_leaves_the_queue",
    ),
    (
        Bug::AbandonForgetsTheLease,
        "a_grant_that_is_given_up_goes_to_the_next",
    ),
    (
        Bug::GoneWaiterKeepsTheLock,
        "a_waiter_that_is_gone_is_passed_by",
    ),
    (Bug::QueueWithoutLimit, "a_full_queue_refuses"),
    (
        Bug::ReleasedOnlyWhileFree,
        "a_released_owner_learns_so_whoever_holds_the_lock_now",
    ),
    (
        Bug::ForgetsThatItWasForced,
        "a_forced_release_says_so_to_the_old_holder",
    ),
    (
        Bug::OnlyTheLastReleaseRemembered,
        "the_last_sixteen_releases_are_remembered",
    ),
    (
        Bug::ForceReleaseIgnoresTheFence,
        "force_release_of_a_fence_spares_the_successor",
    ),
    (
        Bug::ReaderPassesAWaitingWriter,
        "a_reader_does_not_pass_a_waiting_writer",
    ),
    (
        Bug::WriterBesideReaders,
        "readers_share_and_a_writer_waits_for_all_of_them",
    ),
    (
        Bug::NeighboursOneAtATime,
        "a_reader_does_not_pass_a_waiting_writer",
    ),
    (Bug::UpgradeInPlace, "there_is_no_upgrade"),
    (
        Bug::LimitExceededByOne,
        "a_limit_admits_so_many_and_no_more",
    ),
    (Bug::AnotherLimitFits, "kinds_do_not_mix"),
    (Bug::SharedBesideALimit, "kinds_do_not_mix"),
    (
        Bug::AmbiguousReleaseTakesTheFirst,
        "an_owner_with_several_leases_names_the_one_it_means",
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
        "a_set_that_gives_up_leaves_all_its_queues",
    ),
    (
        Bug::SetThatIsOverStillReserves,
        "a_set_whose_time_is_over_is_passed_by_at_every_key",
    ),
    (Bug::SetExpiresInPart, "a_set_ends_as_a_whole"),
    (Bug::SetExtendedInPart, "a_set_ends_as_a_whole"),
    (
        Bug::FenceOfTheFirstKey,
        "the_fence_of_a_set_is_past_those_of_all_its_keys",
    ),
    (Bug::SetListedOnce, "a_set_is_listed_under_each_of_its_keys"),
    (
        Bug::AttemptForOtherKeys,
        "an_attempt_is_for_the_same_keys_and_kinds",
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
        "a_lease_ends_when_all_calls_of_its_attempt_are_given_up",
    ),
    (
        Bug::WithdrawalForgotten,
        "a_call_that_arrives_after_its_withdrawal_comes_to_nothing",
    ),
    (
        Bug::WithdrawalKeepsTheLease,
        "a_held_attempt_is_released_by_withdrawing_it",
    ),
    (
        Bug::AskingAgainAfterTheRelease,
        "a_call_that_asks_again_after_its_attempt_was_released_comes_to_nothing",
    ),
];

/// In the model test nobody vanishes without giving up or asks again, nothing is listed, and nothing is due when a command comes.
const INVISIBLE_TO_THE_MODEL: &[Bug] = &[
    Bug::GoneWaiterKeepsTheLock,
    Bug::SetListedOnce,
    Bug::ReleaseTakesTheNext,
    Bug::ExtendRevives,
    Bug::AskingAgainAfterTheRelease,
];

/// All that is due happens before a command does: this store expires and grants everything in each step.
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
            // A bug may also make a case wait for ever; a day of paused time is over in no time.
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

/// Whether it panics.
fn quietly(check: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        // The test harness shows what a test's own thread prints; the panics of this one are wanted.
        let thread = std::thread::Builder::new().spawn_scoped(scope, check);
        thread.unwrap().join().is_err()
    })
}

fn store(bug: Bug) -> Arc<dyn LockStore> {
    Arc::new(NaiveStore::new(bug))
}
