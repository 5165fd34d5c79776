//! Histories with made-up times, owners and fences: which are valid, and which rule the others violate.

use super::*;
use crate::history::report::Rule::{
    FenceOrder, FenceRepeated, NeverEnded, Overlap, UnknownAfterHealing,
};

#[test]
fn an_empty_history_is_good() {
    TestHistory::default().is_good();
}

#[test]
fn leases_one_after_the_other_are_good() {
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 1, (0, 10, 100));
    history.release(first, 50, 60, Outcome::Released);
    history.exclusive("two", 2, (55, 58, 200));
    // Answered when the first has expired by its holder's clock.
    history.exclusive("three", 3, (70, 200, 300));
    history.is_good();
}

#[test]
fn two_exclusive_leases_at_once_are_bad() {
    let mut history = TestHistory::default();
    history.exclusive("one", 1, (0, 10, 100));
    history.exclusive("two", 2, (20, 30, 120));
    history.is_bad(Overlap, 1, 2);
}

#[test]
fn a_lease_may_be_answered_when_the_release_of_the_other_is_sent() {
    for (answered, is_good) in [(49, false), (50, true), (51, true)] {
        let mut history = TestHistory::default();
        let first = history.exclusive("one", 1, (0, 10, 100));
        history.release(first, 50, 90, Outcome::Released);
        history.exclusive("two", 2, (20, answered, 200));
        assert_eq!(history.broken().is_empty(), is_good, "{answered}");
    }
}

#[test]
fn a_release_ends_certainty_when_it_is_sent_whatever_its_outcome() {
    for outcome in [Outcome::Unknown, Outcome::Refused, Outcome::Released] {
        let mut history = TestHistory::default();
        let first = history.exclusive("one", 1, (0, 10, 100));
        history.release(first, 50, 90, outcome);
        history.exclusive("two", 2, (20, 60, 200));
        history.is_good();
    }
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 1, (0, 10, 100));
    let release = Action::Release { of: first };
    history.0.begin(ms(50), "", release);
    history.exclusive("two", 2, (20, 60, 200));
    history.is_good();
}

#[test]
fn a_lease_that_was_answered_too_late_or_never_is_not_held_for_certain() {
    let mut history = TestHistory::default();
    let lost = history.request("one", &["a"], Sharing::Exclusive, 0);
    history.end(lost, 50, Outcome::Unknown);
    history.exclusive("two", 1, (0, 120, 100));
    history.exclusive("three", 2, (10, 60, 200));
    history.is_good();
}

#[test]
fn shared_leases_conflict_only_with_an_exclusive_one() {
    let mut history = TestHistory::default();
    for (fence, owner) in ["one", "two", "three"].into_iter().enumerate() {
        let fence = fence as u64;
        history.lease(owner, &["a"], Sharing::Shared, fence, (0, 10, 100));
    }
    history.is_good();
    history.exclusive("writer", 9, (20, 30, 40));
    history.is_bad(Overlap, 0, 9);

    let mut history = TestHistory::default();
    history.exclusive("writer", 1, (0, 10, 100));
    history.lease("reader", &["a"], Sharing::Shared, 2, (20, 30, 40));
    history.is_bad(Overlap, 1, 2);
}

#[test]
fn a_limit_is_not_exceeded() {
    let limit = Sharing::Limit(2);
    let mut history = TestHistory::default();
    history.lease("one", &["a"], limit, 1, (0, 10, 100));
    history.lease("two", &["a"], limit, 2, (0, 20, 50));
    history.lease("three", &["a"], limit, 3, (30, 50, 100));
    history.is_good();
    history.lease("four", &["a"], limit, 4, (60, 70, 80));
    history.is_bad(Overlap, 1, 4);
}

#[test]
fn different_limits_and_kinds_conflict() {
    for (one, other) in [
        (Sharing::Limit(2), Sharing::Limit(3)),
        (Sharing::Limit(5), Sharing::Shared),
        (Sharing::Shared, Sharing::Limit(5)),
        (Sharing::Exclusive, Sharing::Limit(5)),
        (Sharing::Limit(1), Sharing::Limit(1)),
    ] {
        let mut history = TestHistory::default();
        history.lease("one", &["a"], one, 1, (0, 10, 100));
        history.lease("two", &["a"], other, 2, (20, 30, 100));
        history.is_bad(Overlap, 1, 2);
    }
}

#[test]
fn a_fence_is_larger_than_all_that_were_known_before_its_request() {
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 7, (0, 10, 100));
    history.release(first, 20, 30, Outcome::Released);
    let second = history.exclusive("two", 8, (40, 50, 100));
    history.release(second, 60, 70, Outcome::Released);
    history.exclusive("three", 6, (80, 90, 100));
    history.is_bad(FenceOrder, 8, 6);
}

#[test]
fn fences_of_requests_at_the_same_time_come_in_any_order() {
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 2, (0, 30, 100));
    history.release(first, 40, 50, Outcome::Released);
    // Requested before the other one was answered.
    history.exclusive("two", 1, (20, 60, 100));
    history.is_good();
}

#[test]
fn fences_of_leases_that_were_not_held_for_certain_are_compared() {
    let mut history = TestHistory::default();
    history.exclusive("one", 2, (0, 30, 20));
    history.exclusive("two", 1, (40, 50, 45));
    history.is_bad(FenceOrder, 2, 1);
}

#[test]
fn two_leases_of_a_key_never_have_the_same_fence() {
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 1, (0, 10, 100));
    history.release(first, 20, 30, Outcome::Released);
    history.exclusive("two", 1, (15, 40, 100));
    history.is_bad(FenceRepeated, 1, 1);

    // Two keys may have fences of their own.
    let mut history = TestHistory::default();
    history.exclusive("one", 1, (0, 10, 100));
    history.lease("two", &["b"], Sharing::Exclusive, 1, (20, 30, 100));
    history.is_good();
}

#[test]
fn two_answers_with_the_same_owner_and_fence_are_one_lease_until_its_release() {
    let mut history = TestHistory::default();
    history.exclusive("one", 1, (0, 10, 100));
    let again = history.exclusive("one", 1, (20, 30, 100));
    history.is_good();
    assert_eq!(check(&history.0).unwrap().leases, 1);
    history.release(again, 40, 50, Outcome::Released);
    history.exclusive("two", 2, (45, 48, 60));
    history.is_good();

    let mut history = TestHistory::default();
    let first = history.exclusive("one", 1, (0, 10, 100));
    history.release(first, 40, 50, Outcome::Released);
    history.exclusive("one", 1, (60, 70, 100));
    history.is_bad(FenceRepeated, 1, 1);
}

#[test]
fn an_extension_moves_the_certain_end() {
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 1, (0, 10, 100));
    history.extended(first, 50, 100, 60);
    history.exclusive("two", 2, (70, 140, 200));
    history.is_bad(Overlap, 1, 2);

    // It may have been shortened as soon as that was sent.
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 1, (0, 10, 100));
    history.extended(first, 20, 30, 80);
    history.exclusive("two", 2, (30, 55, 100));
    history.is_good();
}

#[test]
fn after_an_extension_with_an_unknown_outcome_the_earlier_end_counts() {
    // The ttl of the extension, the end that counts.
    for (ttl, end) in [(200, 100), (20, 70)] {
        for (answered, is_good) in [(end - 1, false), (end, true)] {
            let mut history = TestHistory::default();
            let first = history.exclusive("one", 1, (0, 10, 100));
            history.extend(first, 50, ttl, 60, Outcome::Unknown);
            history.exclusive("two", 2, (50, answered, 300));
            assert_eq!(history.broken().is_empty(), is_good, "{ttl} {answered}");
        }
    }
}

#[test]
fn an_extension_that_may_take_effect_after_a_later_one_lasts_from_there() {
    for (ttl, answered, is_good) in [
        // Applied late it is no shorter than the later one: 150.
        (100, 149, false),
        (100, 150, true),
        // Applied late it ends 20 after the later one was sent.
        (20, 89, false),
        (20, 90, true),
    ] {
        let mut history = TestHistory::default();
        let first = history.exclusive("one", 1, (0, 10, 100));
        history.extend(first, 50, ttl, 60, Outcome::Unknown);
        history.extended(first, 70, 80, 75);
        history.exclusive("two", 2, (50, answered, 300));
        assert_eq!(history.broken().is_empty(), is_good, "{ttl} {answered}");
    }
}

#[test]
fn an_extension_that_is_refused_means_that_the_lease_had_ended() {
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 1, (0, 10, 100));
    history.extend(first, 50, 100, 60, Outcome::Refused);
    let second = history.exclusive("two", 2, (20, 50, 55));
    history.is_good();
    // By then another holder may be certain, but not before.
    history.release(second, 52, 53, Outcome::Released);
    history.exclusive("three", 3, (20, 40, 50));
    history.is_bad(Overlap, 1, 3);
}

#[test]
fn a_forced_release_ends_certainty_when_it_is_sent() {
    for fences in [&[][..], &[1]] {
        for (answered, is_good) in [(49, false), (50, true)] {
            let mut history = TestHistory::default();
            history.exclusive("one", 1, (0, 10, 100));
            history.forced("a", fences, 50, 90);
            history.exclusive("two", 2, (95, 96, 100));
            history.exclusive("three", 3, (20, answered, 60));
            let order = (FenceOrder, vec![3, 2]);
            let found = history.broken();
            let overlaps = found.iter().any(|found| *found != order);
            assert_ne!(overlaps, is_good, "{fences:?} {answered}");
        }
    }
}

#[test]
fn a_forced_release_does_not_affect_later_leases_other_fences_and_other_keys() {
    let mut history = TestHistory::default();
    history.forced("a", &[], 0, 10);
    history.exclusive("one", 1, (20, 30, 100));
    history.forced("a", &[9], 40, 50);
    history.forced("b", &[], 40, 50);
    let refused = history.force("a", &[], 40);
    history.end(refused, 50, Outcome::Refused);
    history.exclusive("two", 2, (60, 70, 100));
    history.is_bad(Overlap, 1, 2);
}

#[test]
fn a_forced_release_that_may_still_take_effect_ends_certainty_of_what_comes_later() {
    let mut history = TestHistory::default();
    let force = history.force("a", &[], 0);
    history.end(force, 10, Outcome::Unknown);
    history.forced("a", &[], 5, 6);
    history.exclusive("one", 1, (20, 30, 100));
    history.exclusive("two", 2, (40, 50, 100));
    history.is_good();
}

#[test]
fn of_forced_releases_at_the_same_time_the_first_that_was_sent_counts() {
    let mut history = TestHistory::default();
    history.forced("a", &[], 0, 200);
    history.exclusive("one", 1, (10, 20, 100));
    history.forced("a", &[], 50, 60);
    history.exclusive("two", 2, (25, 30, 100));
    history.is_good();
}

#[test]
fn a_lease_is_compared_with_all_others_even_if_these_conflict_already() {
    let (shared, limit) = (Sharing::Shared, Sharing::Limit(2));
    let mut history = TestHistory::default();
    history.lease("one", &["a"], shared, 1, (0, 10, 100));
    history.lease("two", &["a"], limit, 2, (20, 30, 100));
    history.lease("three", &["a"], shared, 3, (40, 50, 100));
    let found = [(Overlap, vec![1, 2]), (Overlap, vec![2, 3])];
    assert_eq!(history.broken(), found);
}

#[test]
fn a_lease_of_two_keys_counts_on_each_and_ends_as_a_whole() {
    let both = ["a", "b"];
    let history = |first: &str| {
        let mut history = TestHistory::default();
        history.lease("both", &both, Sharing::Exclusive, 1, (0, 10, 100));
        history.lease("one", &[first], Sharing::Exclusive, 2, (20, 60, 100));
        history
    };
    history("a").is_bad(Overlap, 1, 2);
    history("b").is_bad(Overlap, 1, 2);
    history("c").is_good();
    // Forced by its other key.
    let mut forced = history("b");
    forced.forced("a", &[], 50, 55);
    forced.is_good();

    // Both are reported when both are wrong.
    let mut history = history("c");
    history.lease("again", &["b", "a"], Sharing::Exclusive, 0, (20, 30, 40));
    let found = history.broken();
    let rules: Vec<Rule> = found.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(rules, [FenceOrder, Overlap, FenceOrder, Overlap]);
}

#[test]
fn every_operation_ends_and_after_healing_with_an_answer() {
    let mut history = TestHistory::default();
    let early = history.request("one", &["a"], Sharing::Exclusive, 0);
    assert_eq!(history.stuck(), [NeverEnded]);
    history.end(early, 10, Outcome::Unknown);
    assert_eq!(history.stuck(), []);
    history.0.heal(ms(20));
    assert_eq!(history.stuck(), []);
    let late = history.request("one", &["a"], Sharing::Exclusive, 20);
    history.end(late, 30, Outcome::Unknown);
    assert_eq!(history.stuck(), [UnknownAfterHealing]);
    history.end(late, 30, Outcome::Refused);
    assert_eq!(history.stuck(), []);
}

#[test]
fn a_violation_shows_both_leases_and_the_operations_around_it() {
    let mut history = TestHistory::default();
    let first = history.exclusive("one", 1, (0, 10, 100));
    history.extend(first, 15, 200, 18, Outcome::Unknown);
    history.lease("other", &["b"], Sharing::Shared, 1, (16, 17, 100));
    history.exclusive("two", 2, (20, 30, 120));
    let violations = check(&history.0).unwrap_err();
    let expected = "\
1 violations, times in ms:
key `a`: two conflicting leases were held for certain
  one: exclusive, fence 1, requested at 0.000, certain from 10.000 until 100.000
  two: exclusive, fence 2, requested at 20.000, certain from 30.000 until 120.000
  operations on this key around 30.000:
         0.000 –     10.000  one: acquire exclusive: granted, fence 1, until 100.000
        15.000 –     18.000  one: extend by 200.000: unknown
        20.000 –     30.000  two: acquire exclusive: granted, fence 2, until 120.000
";
    assert_eq!(violations.to_string(), expected);
    assert_eq!(format!("{violations:?}"), expected);
}

#[test]
fn many_violations_are_counted_and_only_the_first_are_shown() {
    let mut history = TestHistory::default();
    for fence in 0..1_000 {
        history.exclusive("one", 2_000 - fence, (fence * 10, fence * 10 + 5, 20_000));
    }
    let violations = check(&history.0).unwrap_err();
    assert_eq!(violations.total(), 999 * 2);
    assert!(violations.to_string().len() < 40_000);
}
