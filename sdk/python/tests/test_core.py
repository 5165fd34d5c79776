"""The rules that both flavours share, with a clock that the test controls."""

from __future__ import annotations

import re

import pytest

import forrst
from forrst._core.acquire import LockRequest
from forrst._core.lease import Keeping
from forrst._core.locks import force_release
from forrst._core.retry import Wait

from .simulation import World, after, extended, failure, granted, raises, success

UNREACHABLE = raises(forrst.UnreachableError("refused"))
LOST = raises(forrst.LostAnswerError("silence"))
MARGIN = 0.032
"""1 % of 3 s, and 2 ms."""


def held(world: World, *, ttl: float = 3, wait: float | None = None, deadline: float | None = None) -> Keeping:
    return world.run(LockRequest("k", ttl=ttl, wait=wait, deadline=deadline).acquire(world.core))


def test_a_lease_ends_a_margin_before_its_ttl() -> None:
    world = World([granted()])
    tenure = held(world).tenure
    assert tenure.remaining() == pytest.approx(3 - MARGIN)
    world.now += 3 - MARGIN - 0.001
    assert tenure.is_held()
    world.now += 0.002
    assert not tenure.is_held() and tenure.loss() is not None
    with pytest.raises(forrst.LostError):
        tenure.check()


def test_a_lease_counts_from_before_its_request_was_sent() -> None:
    # The answer took a second more than the server says.
    world = World([after(1.0, granted(elapsed=0.0))])
    assert held(world).tenure.remaining() == pytest.approx(2 - MARGIN)


def test_a_wait_is_not_counted_as_part_of_the_lease() -> None:
    world = World([after(100.0, granted(elapsed=100.0))])
    assert held(world, wait=200).tenure.remaining() == pytest.approx(3 - 103 / 100 - 0.002)


def test_a_process_that_was_stopped_finds_its_lease_lost() -> None:
    world = World([granted(), extended])
    keeping = held(world)
    world.now += 100
    world.run(keeping.renew())
    assert keeping.tenure.loss() is not None and len(world.requests) == 1


def test_a_renewal_is_sent_after_a_third_of_the_ttl_and_counts_from_before_it() -> None:
    world = World([granted(), after(0.4, extended), failure("LOCK_NOT_FOUND")])
    keeping = held(world)
    world.run(keeping.renew())
    _, first, second = world.requests
    assert first.at == pytest.approx(1001) and second.at == pytest.approx(1002)
    assert first.timeout == pytest.approx(0.5)
    assert first.arguments["fence"] == "000000000000007"


def test_an_answer_that_arrives_after_the_local_end_changes_nothing() -> None:
    world = World([granted(), after(2.5, extended)])
    keeping = held(world)
    world.run(keeping.renew())
    assert not keeping.tenure.is_held()
    with pytest.raises(forrst.LostError, match="could not be renewed in time"):
        keeping.tenure.check()


def test_failed_renewals_are_repeated_until_the_local_end() -> None:
    for reply in (UNREACHABLE, LOST, failure("UNAUTHORIZED"), failure("FORBIDDEN"), failure("INVALID_REQUEST")):
        world = World([granted(), reply])
        keeping = held(world)
        world.run(keeping.renew())
        assert world.now == pytest.approx(1003 - MARGIN, abs=0.001)
        assert len(world.requests) > 10
        assert re.search("no|refused|silence", str(keeping.tenure.loss()))


@pytest.mark.parametrize("code", ["LOCK_NOT_FOUND", "LOCK_OWNERSHIP_MISMATCH", "LOCK_ALREADY_RELEASED"])
def test_a_proof_of_loss_ends_the_lease_for_good(code: str) -> None:
    world = World([granted(), failure(code), extended])
    keeping = held(world)
    world.run(keeping.renew())
    assert not keeping.tenure.is_held() and len(world.requests) == 2
    with pytest.raises(forrst.LostError):
        world.run(keeping.release())
    assert len(world.requests) == 2


def test_a_lease_that_was_given_back_is_never_lost() -> None:
    world = World([granted(), success({"released": True})])
    keeping = held(world)
    world.run(keeping.release())
    world.now += 100
    keeping.tenure.lose("late notice")
    keeping.tenure.check()
    assert not keeping.tenure.is_held()
    world.run(keeping.renew())
    assert len(world.requests) == 2


def test_a_release_without_an_answer_goes_on_in_the_background() -> None:
    world = World([granted(60), LOST, LOST, LOST, LOST, success({"released": True})])
    keeping = held(world, ttl=60)
    with pytest.raises(forrst.LostAnswerError):
        world.run(keeping.release())
    world.run_background()
    assert [request.function for request in world.requests] == ["acquire"] + ["release"] * 5


def test_a_wait_that_the_server_finds_too_long_is_several_requests_of_one_attempt() -> None:
    limits = {"limits": {"max_lock_block": {"value": 5, "unit": "minute"}}}
    too_long = failure("INVALID_ARGUMENTS", pointer="/call/arguments/block")
    timeout = after(300, failure("LOCK_TIMEOUT"))
    world = World([too_long, success(limits), timeout, timeout, after(100, failure("LOCK_TIMEOUT"))])
    with pytest.raises(forrst.TimedOutError):
        held(world, wait=700)
    tries = [request for request in world.requests if request.function == "acquire"]
    assert [request.arguments["block"]["value"] for request in tries] == [700_000, 300_000, 300_000, 100_000]
    assert len({request.arguments["attempt"] for request in tries}) == 1
    assert tries[1].timeout == 360 and not world.sleeps and not world.background


def test_no_wait_is_no_block() -> None:
    for wait in (None, 0.0):
        world = World([granted()])
        held(world, wait=wait)
        assert "block" not in world.requests[0].arguments


def test_a_wait_outlasts_a_server_that_is_away() -> None:
    world = World([*[UNREACHABLE] * 20, granted()])
    keeping = held(world, wait=60)
    assert keeping.tenure.is_held() and world.now > 1015
    left = world.requests[-1].arguments["block"]["value"] / 1000
    assert left == pytest.approx(1060 - world.now, abs=0.001)


def test_the_tries_of_a_wait_end_with_it() -> None:
    world = World([UNREACHABLE])
    with pytest.raises(forrst.UnreachableError):
        held(world, wait=60)
    assert 1055 < world.now <= 1060


def test_a_client_that_must_not_retry_does_not_even_while_it_waits() -> None:
    world = World([UNREACHABLE], retry=forrst.Retry.never())
    with pytest.raises(forrst.UnreachableError):
        held(world, wait=60)
    assert len(world.requests) == 1


def test_a_retry_waits_for_as_long_as_the_server_says() -> None:
    limited = failure("RATE_LIMITED", retry_after={"value": 1500, "unit": "millisecond"})
    world = World([limited, failure("RATE_LIMITED", headers={"retry-after": "3"}), granted()])
    held(world)
    assert world.sleeps == [1.5, 3.0]


def test_a_retry_that_would_be_too_late_is_not_waited_for() -> None:
    world = World([failure("RATE_LIMITED", retry_after={"value": 1, "unit": "minute"})])
    with pytest.raises(forrst.RateLimitedError) as limited:
        held(world)
    assert limited.value.retry_after == 60 and not world.sleeps


def test_pauses_double_with_equal_jitter() -> None:
    retry = forrst.Retry(first_pause=0.1, longest_pause=0.7)
    for failed, full in [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.7), (5, 0.7), (10**9, 0.7)]:
        pauses = [retry.backoff(failed) for _ in range(1000)]
        assert full / 2 <= min(pauses) < full * 0.55 and full * 0.95 < max(pauses) <= full


def test_an_acquisition_whose_deadline_passed_before_it_was_sent_has_nothing_to_withdraw() -> None:
    world = World([granted()])
    with pytest.raises(forrst.DeadlineExceededError) as exceeded:
        held(world, deadline=0.0005)
    assert not exceeded.value.may_have_run and not world.requests and not world.background


def test_a_deadline_covers_all_tries() -> None:
    world = World([after(0.6, UNREACHABLE)])
    with pytest.raises(forrst.ForrstError):
        held(world, deadline=2)
    assert world.now <= 1002.6
    left = [(request.option("urn:forrst:ext:deadline") or {})["value"] for request in world.requests]
    assert left[0] == 2000 and left == sorted(left, reverse=True) and all(value >= 1 for value in left)
    assert [request.timeout for request in world.requests] == pytest.approx([1002 - r.at for r in world.requests])


def test_an_acquisition_that_is_interrupted_is_withdrawn() -> None:
    world = World([raises(KeyboardInterrupt()), success({"withdrawn": True, "was": "held"})])
    with pytest.raises(KeyboardInterrupt):
        held(world)
    world.run_background()
    acquire, withdraw = world.requests
    assert withdraw.arguments == {name: acquire.arguments[name] for name in ("owner", "attempt")} | {"key": "lock:k"}


def test_a_lease_whose_first_extension_is_interrupted_is_released() -> None:
    world = World([granted(1.0), raises(KeyboardInterrupt()), success({"released": True})])
    with pytest.raises(KeyboardInterrupt):
        held(world)
    world.run_background()
    assert [request.function for request in world.requests] == ["acquire", "extend", "release"]


def test_an_idempotent_call_that_meets_its_own_first_try_says_that_it_may_have_run() -> None:
    call = forrst.Call("a.b", {}, lock="u", idempotent=True)
    world = World([LOST, failure("LOCK_ACQUISITION_FAILED")])
    with pytest.raises(forrst.ContendedError) as contended:
        world.run(call.run(world.core))
    assert contended.value.may_have_run


def test_only_what_certainly_did_not_run_is_repeated() -> None:
    for reply, tries in [
        (UNREACHABLE, 4),
        (failure("RATE_LIMITED"), 4),
        (failure("FUNCTION_MAINTENANCE"), 4),
        (failure("UNAVAILABLE"), 1),
        (LOST, 1),
        (failure("INTERNAL_ERROR"), 1),
        (failure("LOCK_ACQUISITION_FAILED"), 1),
        (failure("DEADLINE_EXCEEDED"), 1),
    ]:
        world = World([reply])
        with pytest.raises(forrst.ForrstError):
            world.run(forrst.Call("a.b", None).run(world.core))
        assert len(world.requests) == tries


def test_a_forced_release_is_repeated_only_with_a_fence() -> None:
    for fence, tries in [(None, 1), ("000000000000007", 4)]:
        world = World([LOST])
        with pytest.raises(forrst.LostAnswerError):
            world.run(force_release(world.core, "lock:k", fence))
        assert len(world.requests) == tries


def test_contention_is_repeated_only_if_the_caller_asks_for_it() -> None:
    refused = failure("LOCK_ACQUISITION_FAILED")
    world = World([refused, refused, granted()], retry=forrst.Retry(on_contention=True))
    held(world)
    assert len(world.requests) == 3


def test_a_watch_that_does_not_list_every_holder_proves_nothing() -> None:
    times = {"acquired_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T00:00:00Z", "ttl_remaining": 1}
    holder = {"owner": "o", "fence": "000000000000001", **times}
    status = {"key": "lock:k", "locked": True, "revision": "r", "holders": [holder], "holder_count": 2}
    world = World([granted(60), success(status), LOST, failure("FORBIDDEN"), success({"key": "lock:k", "locked": False})])
    keeping = held(world, ttl=60)
    world.run(keeping.watch())
    assert len(world.requests) == 5 and not keeping.tenure.is_held()
    assert world.requests[1].arguments.get("since") is None and world.requests[2].arguments["since"] == "r"
    world = World([granted(60), success({**status, "holder_count": 1})])
    keeping = held(world, ttl=60)
    world.run(keeping.watch())
    assert len(world.requests) == 2 and not keeping.tenure.is_held()


def test_a_server_that_cannot_watch_is_not_asked_again() -> None:
    world = World([granted(60), failure("FUNCTION_NOT_FOUND")])
    keeping = held(world, ttl=60)
    world.run(keeping.watch())
    assert len(world.requests) == 2 and keeping.tenure.is_held()


def test_a_wait_is_counted_from_its_first_try() -> None:
    world = World([granted()])
    wait = Wait(world.core, 5.0)
    world.now += 100
    assert wait.block() == 5.0
    world.now += 2
    assert wait.block() == pytest.approx(3.0)
    world.now += 9
    assert wait.block() == 0.001
    wait.restart()
    assert wait.block() == 5.0
