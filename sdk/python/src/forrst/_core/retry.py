"""Whether and when a request is sent again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import (
    ContendedError,
    ForrstError,
    FunctionError,
    LostAnswerError,
    RateLimitedError,
    RejectedError,
    TimedOutError,
    UnavailableError,
    UnreachableError,
)
from .durations import from_wire
from .response import RETRYABLE
from .steps import Sleep, Steps

if TYPE_CHECKING:
    from .core import Core


@dataclass(frozen=True)
class Retry:
    """How often and for how long a request is tried, with exponential backoff and jitter.

    A request is retried only if it was certainly not carried out, or may safely be carried out twice.
    """

    #: The maximum number of tries, including the first.
    attempts: int = 4
    #: The longest pause before the second try, in seconds. Pauses double, and half of each is random.
    first_pause: float = 0.1
    #: The longest pause before any try, unless the server names a longer one.
    longest_pause: float = 2.0
    #: How long after the first try another one may begin. A request that waits for a lock is tried until its ``wait`` is over.
    within: float = 15.0
    #: Also retry when another client holds the lock. Waiting with ``wait`` is fair and faster.
    on_contention: bool = False

    @classmethod
    def never(cls) -> Retry:
        """A single try."""
        return cls(attempts=1)

    def backoff(self, failed: int) -> float:
        """The pause after this many failed tries."""
        full: float = min(self.first_pause * 2 ** min(failed - 1, 32), self.longest_pause)
        return full / 2 + random.uniform(0, full / 2)


def in_background(time: float) -> Retry:
    """For background work, which is pointless after ``time``."""
    return Retry(attempts=2**31, first_pause=0.05, longest_pause=1.0, within=time)


def is_contended(error: ForrstError) -> bool:
    return isinstance(error, (ContendedError, TimedOutError))


class Wait:
    """How long a request waits for its lock, over several tries: each has only what is left."""

    def __init__(self, core: Core, whole: float | None) -> None:
        self._core = core
        # Zero is not waiting.
        self._whole = whole or None
        self._since: float | None = None
        #: The longest wait that the server allows in one request, once that is known to be too short.
        self._longest: float | None = None

    @property
    def until(self) -> float | None:
        """When the wait is over; ``None`` without one."""
        if self._whole is None or self._since is None:
            return None
        return self._since + self._whole

    def block(self) -> float | None:
        """The ``block`` of the next try."""
        if self._whole is None:
            return None
        if self._since is None:
            self._since = self._core.clock()
        # A repeat without `block` would be refused while an earlier try waits, so it is never 0.
        left = max(0.001, self._since + self._whole - self._core.clock())
        return left if self._longest is None else min(left, self._longest)

    def restart(self) -> None:
        """For a retry after the lock was refused: it waits for the whole time again."""
        self._since = None

    def goes_on_after(self, error: ForrstError) -> Steps[bool]:
        """Whether the wait is to be continued with another request, because the server allows only shorter ones."""
        if self._longest is not None:
            until = self.until
            return isinstance(error, TimedOutError) and until is not None and until > self._core.clock()
        is_too_long = isinstance(error, RejectedError) and (error.pointer or "").endswith("/block")
        if not is_too_long or self._whole is None:
            return False
        limits = (yield from self._core.ask("urn:cline:forrst:fn:capabilities", {})).get("limits")
        longest = from_wire(limits.get("max_lock_block")) if isinstance(limits, dict) else None
        if longest is None or longest >= self._whole:
            return False
        self._longest = longest
        return True


class Tries:
    """The tries of one request."""

    def __init__(
        self,
        core: Core,
        *,
        repeat: bool,
        retry: Retry | None = None,
        until: float | None = None,
        wait: Wait | None = None,
    ) -> None:
        self._core = core
        self._retry = retry or core.retry
        #: Whether the request may be carried out twice.
        self._repeat = repeat
        #: There is no further try from this moment on.
        self.until = until
        self._wait = wait
        self._started = core.clock()
        self._failed = 0
        #: Whether an earlier try may have been carried out without an answer.
        self.has_lost_answer = False

    def after(self, error: ForrstError) -> Steps[None]:
        """Sleeps until the next try, or raises the error if there is none."""
        self._failed += 1
        pause = self._pause(error)
        if pause is None:
            raise error
        self.has_lost_answer |= error.may_have_run
        yield Sleep(pause)

    def _pause(self, error: ForrstError) -> float | None:
        if self._retry.attempts <= 1 or not self._may_repeat(error):
            return None
        pause = max(self._retry.backoff(self._failed), error.retry_after or 0.0)
        begins = self._core.clock() + pause
        if self.until is not None and begins >= self.until:
            return None
        # A server that restarts must not end a wait.
        waits_until = self._wait.until if self._wait is not None else None
        is_waiting = waits_until is not None and begins < waits_until and not is_contended(error)
        is_within = self._failed < self._retry.attempts and begins - self._started <= self._retry.within
        return pause if is_waiting or is_within else None

    def _may_repeat(self, error: ForrstError) -> bool:
        if is_contended(error):
            is_worth_it = self._retry.on_contention
        elif isinstance(error, FunctionError):
            is_worth_it = all(reported.code in RETRYABLE for reported in error.errors)
        else:
            kinds = (UnreachableError, LostAnswerError, UnavailableError, RateLimitedError)
            is_worth_it = isinstance(error, kinds)
        return is_worth_it and (self._repeat or not error.may_have_run)
