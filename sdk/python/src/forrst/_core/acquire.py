"""Acquires locks for work that runs in this process.

An acquisition may take several requests, some of whose answers get lost. The server recognises them by owner and attempt, so
that together they result in one lease. An acquisition that is given up is withdrawn.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..errors import (
    DeadlineExceededError,
    ForrstError,
    LostAnswerError,
    NotUnderstoodError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)
from . import keys as keys_
from . import locks
from .core import Core, fresh, wire_or_none, without_none
from .durations import Seconds, seconds, to_wire
from .info import Held
from .keys import Keys
from .lease import Keeping
from .retry import Retry, Tries, Wait, in_background, is_contended
from .steps import Steps

logger = logging.getLogger("forrst")

#: The ttl of an acquisition that is repeated only to be released.
_BRIEF = 2.0


@dataclass(frozen=True)
class LockRequest:
    """What is to be acquired, and how."""

    keys: Keys
    ttl: Seconds = 30.0
    wait: Seconds | None = None
    shared: bool = False
    limit: int | None = None
    owner: str | None = None
    note: str | None = None
    function: str | None = None
    attempt: str | None = None
    deadline: Seconds | None = None
    retry: Retry | None = None
    watch: bool = False

    def acquire(self, core: Core) -> Steps[Keeping]:
        """Takes the lock, with at least half of its ttl left."""
        keeping = yield from Acquisition(core, self).run()
        try:
            yield from keeping.ensure_fresh()
        except ForrstError:
            raise
        except BaseException:
            keeping.abandon()
            raise
        return keeping

    def hold(self, core: Core) -> Steps[Held]:
        """Takes the lock, and neither renews nor releases it."""
        return (yield from Acquisition(core, self).run()).held


class Acquisition:
    """An acquisition under way."""

    def __init__(self, core: Core, request: LockRequest) -> None:
        self._core = core
        self._ttl = seconds("ttl", request.ttl)
        wait = None if request.wait is None else seconds("wait", request.wait, zero=True)
        self._arguments = without_none(
            **keys_.to_wire(request.keys, shared=request.shared, limit=request.limit),
            function=request.function,
            owner=request.owner if request.owner is not None else fresh(),
            note=request.note,
            attempt=request.attempt if request.attempt is not None else fresh(),
            ttl=to_wire(self._ttl),
        )
        self._full_key = keys_.full_key(self._arguments, request.function)
        self._is_owner_unique = request.owner is None
        self._deadline = None
        if request.deadline is not None:
            self._deadline = core.clock() + seconds("deadline", request.deadline)
        self._wait = Wait(core, wait)
        self._tries = Tries(core, repeat=True, retry=request.retry, until=self._deadline, wait=self._wait)
        #: Just before the first request was sent that may have been granted.
        self._first: float | None = None
        #: Whether the lock may be held or waited for without a caller that knows.
        self._may_be_granted = False

    def run(self) -> Steps[Keeping]:
        try:
            while True:
                try:
                    return (yield from self._try())
                except ForrstError as why:
                    error = why
                if (yield from self._wait.goes_on_after(error)):
                    continue
                yield from self._tries.after(error)
                if is_contended(error):
                    self._wait.restart()
        except BaseException:
            if self._may_be_granted:
                self._core.in_background(self._withdraw())
            raise

    def _try(self) -> Steps[Keeping]:
        block = self._wait.block()
        arguments = without_none(**self._arguments, block=wire_or_none(block))
        was_granted = self._may_be_granted
        # If the caller stops waiting from here on, the answer does not arrive.
        self._may_be_granted = True
        sent = self._core.clock()
        try:
            answer = yield from self._core.send(
                locks.ACQUIRE, arguments, timeout=self._core.timeout + (block or 0.0), deadline=self._deadline
            )
            held = Held.read(answer.result)
        except ForrstError as error:
            self._note(error, sent, was_granted)
            raise
        self._may_be_granted = False
        return Keeping(self._core, held, self._ttl, first=sent if self._first is None else self._first, sent=sent)

    def _note(self, error: ForrstError, sent: float, was_granted: bool) -> None:
        """What is known about the tries so far, after one more has failed."""
        if is_contended(error):
            # If an earlier try had been granted, this one would have got its lease.
            self._may_be_granted, self._first = False, None
            return
        is_unanswered = isinstance(error, (LostAnswerError, NotUnderstoodError)) or (
            isinstance(error, DeadlineExceededError) and error.response is None and error.may_have_run
        )
        self._may_be_granted = was_granted or is_unanswered
        # A try that did not reach the store says nothing about the earlier ones. After other failures, the server rolls the grant
        # back itself, but perhaps not before the next try.
        is_unsent = isinstance(error, (UnreachableError, RateLimitedError)) or not (is_unanswered or error.response)
        if self._first is None and not is_unsent:
            self._first = sent

    def _withdraw(self) -> Steps[None]:
        # After that, the lease has expired anyway.
        until = self._core.clock() + self._ttl
        tries = Tries(self._core, repeat=True, retry=in_background(self._ttl), until=until)
        owner, attempt = self._arguments["owner"], self._arguments["attempt"]
        try:
            try:
                yield from locks.withdraw(self._core, self._full_key, owner, attempt, tries)
            except RejectedError:
                yield from self._repeat_and_release(until)
        except ForrstError as why:
            logger.debug("an acquisition could not be withdrawn: %s", why)

    def _repeat_and_release(self, until: float) -> Steps[None]:
        """For a server that cannot withdraw: takes over the position of the first request, and releases what it gets."""
        arguments = {**self._arguments, "block": to_wire(0.001), "ttl": to_wire(min(self._ttl, _BRIEF))}
        tries = Tries(self._core, repeat=True, until=until)
        held = Held.read((yield from self._core.ask(locks.ACQUIRE, arguments, tries)))
        release = Tries(self._core, repeat=True, retry=in_background(self._ttl), until=until)
        named = locks.lease(held.full_key, held.owner, held.fence)
        yield from self._core.ask(locks.RELEASE, named, release)
