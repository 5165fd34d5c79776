"""Calls of functions, which run on the server, perhaps under a lock."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CallCancelledError, ForrstError, InvalidRequestError
from . import keys as keys_
from .core import Core, Extension, wire_or_none, without_none
from .durations import Seconds, seconds, to_wire
from .keys import Keys
from .response import CANCELLATION, LOCK, Response
from .retry import Retry, Tries, Wait, is_contended
from .steps import Sleep, Steps

_CANCEL = "urn:cline:forrst:ext:cancellation:fn:cancel"
#: For how long a call that was just sent may be unknown to the server, in seconds.
_UNKNOWN_FOR = 2.0
_PAUSE = 0.02


@dataclass(frozen=True)
class Lock:
    """The lock that a function runs under. Without the lock, the function does not run.

    ``client.call("payments.charge", {…}, lock=Lock("user:123", ttl=30, wait=5))``
    """

    #: One key, or 2 to 16: all of them or none.
    keys: Keys
    #: How many seconds the lock is held at most, unless it is renewed.
    ttl: Seconds = 30.0
    #: How long to wait in the queue when another client holds the lock. By default, it does not wait.
    wait: Seconds | None = None
    #: Hold it together with other shared leases.
    shared: bool = False
    #: Let at most this many leases hold it at once.
    limit: int | None = None
    #: Share the lock with the callers of all functions, and with ``client.lock``.
    is_global: bool = False
    #: The token that the lock is released with; made by the server if it is missing.
    owner: str | None = None
    #: Who or what holds the lock, for people who inspect it. Not secret.
    note: str | None = None
    #: Keep the lock after the function has ended, until its owner releases it or it expires.
    keep: bool = False
    #: Let the server extend the lock while the function runs.
    renew: bool = False

    def to_wire(self, block: float | None) -> Extension:
        options = without_none(
            **keys_.to_wire(self.keys, shared=self.shared, limit=self.limit),
            ttl=to_wire(seconds("ttl", self.ttl)),
            block=wire_or_none(block),
            scope="global" if self.is_global else "function",
            owner=self.owner,
            note=self.note,
            auto_release=not self.keep,
            renew=self.renew,
        )
        return {"urn": LOCK, "options": options}


class Cancellation:
    """Ends one call from elsewhere: give it to ``client.call(…, cancellation=…)``, and later to ``client.cancel(…)``.

    A call that waits for its lock leaves the queue; a function that runs is notified, and its lock is released when it has.
    Either way the call ends with :class:`~forrst.CallCancelledError`.
    """

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex
        self._tries = 0
        #: Whether the call was cancelled: it is not sent again.
        self.is_cancelled = False

    def _next(self) -> Extension:
        """The extension for the next try: an earlier one may still be under way on the server."""
        if self.is_cancelled:
            raise CallCancelledError("the call was cancelled before it was sent")
        self._tries += 1
        return {"urn": CANCELLATION, "options": {"token": self._token(self._tries)}}

    def _token(self, number: int) -> str:
        return f"{self._name}.{number}"

    def _cancel(self, core: Core) -> Steps[None]:
        self.is_cancelled = True
        last = self._tries
        for earlier in range(1, last):
            try:
                yield from core.ask(_CANCEL, {"token": self._token(earlier)})
            except ForrstError:
                pass  # Its answer was lost, so nothing else knows how it ends.
        started = core.clock()
        while last:
            try:
                yield from core.ask(_CANCEL, {"token": self._token(last)})
                return
            except ForrstError as error:
                # The cancellation may have overtaken the call.
                is_unknown = error.code == "CANCELLATION_TOKEN_UNKNOWN"
                if not is_unknown or core.clock() - started > _UNKNOWN_FOR:
                    raise
            yield Sleep(_PAUSE)


def cancel(core: Core, cancellation: Cancellation) -> Steps[None]:
    """Cancels a call, and returns when the server has accepted that."""
    return cancellation._cancel(core)


def _cancel_quietly(core: Core, cancellation: Cancellation) -> Steps[None]:
    try:
        yield from cancellation._cancel(core)
    except ForrstError:
        pass  # The call has ended.


@dataclass(frozen=True)
class Call:
    """A call of a function: what ``client.call`` makes of its arguments."""

    function: str
    arguments: Mapping[str, Any] | None = None
    lock: Lock | str | None = None
    version: str | None = None
    context: Mapping[str, Any] | None = None
    deadline: Seconds | None = None
    idempotent: bool = False
    retry: Retry | None = None
    cancellation: Cancellation | None = None
    extensions: Sequence[Extension] = ()

    def run(self, core: Core) -> Steps[Response]:
        if self.arguments is not None and not isinstance(self.arguments, Mapping):
            raise InvalidRequestError("`arguments` must be a mapping: functions take named arguments")
        lock = Lock(self.lock) if isinstance(self.lock, str) else self.lock
        deadline = None if self.deadline is None else core.clock() + seconds("deadline", self.deadline)
        whole = None if lock is None or lock.wait is None else seconds("wait", lock.wait, zero=True)
        wait = Wait(core, whole)
        tries = Tries(core, repeat=self.idempotent, retry=self.retry, until=deadline, wait=wait)
        try:
            while True:
                try:
                    return (yield from self._try(core, lock, wait, deadline))
                except ForrstError as why:
                    error = why
                # An earlier try that got no answer may have run, whatever became of this one.
                error.may_have_run |= tries.has_lost_answer
                if (yield from wait.goes_on_after(error)):
                    continue
                yield from tries.after(error)
                if is_contended(error):
                    wait.restart()
        except ForrstError:
            raise
        except BaseException:
            # The caller gives up.
            if self.cancellation is not None:
                core.in_background(_cancel_quietly(core, self.cancellation))
            raise

    def _try(self, core: Core, lock: Lock | None, wait: Wait, deadline: float | None) -> Steps[Response]:
        block = wait.block()
        extensions = list(self.extensions)
        if lock is not None:
            extensions.append(lock.to_wire(block))
        if self.cancellation is not None:
            extensions.append(self.cancellation._next())
        return (
            yield from core.send(
                self.function,
                dict(self.arguments or {}),
                timeout=core.timeout + (block or 0.0),
                deadline=deadline,
                version=self.version,
                context=self.context,
                extensions=extensions,
            )
        )
