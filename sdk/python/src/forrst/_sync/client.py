"""The blocking client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from .._core import call as call_
from .._core import locks as locks_
from .._core.acquire import LockRequest
from .._core.call import Call, Cancellation, Lock
from .._core.client import BaseClient
from .._core.core import Extension
from .._core.durations import Seconds, seconds
from .._core.info import Extended, LockInfo, Page, Waiter
from .._core.lease import logger
from .._core.response import Response
from .._core.retry import Retry
from .._core.settings import Settings
from .._core.steps import Steps
from .lease import Acquire, Keeper
from .transport import Runner, Stopped, Transport

T = TypeVar("T")
_SETTLE = 2.0


class Client(BaseClient[Acquire]):
    """A client of a Forrst server that blocks. Threads may share it."""

    def _set_up(self, settings: Settings) -> None:
        self._transport = Transport(settings)
        self._keepers: set[Keeper] = set()
        self._idle = threading.Condition()
        self._working: set[Runner] = set()
        #: Operations on locks by their full keys.
        self.locks = Locks(self)

    def _acquire(self, request: LockRequest) -> Acquire:
        return Acquire(self, request)

    def call(
        self,
        function: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        lock: Lock | str | None = None,
        version: str | None = None,
        context: Mapping[str, Any] | None = None,
        deadline: Seconds | None = None,
        idempotent: bool = False,
        retry: Retry | None = None,
        cancellation: Cancellation | None = None,
        extensions: Sequence[Extension] = (),
    ) -> Any:
        """Calls a function, which runs on the server, and returns its result.

        :param lock: Run it under this lock.
        :param deadline: How long the call may take, retries included. The server ends it then.
        :param idempotent: The function may safely run twice, so the call is also repeated after a lost answer.
        :param cancellation: Lets ``client.cancel`` end the call.
        """
        call = Call(
            function,
            arguments,
            lock=lock,
            version=version,
            context=context,
            deadline=deadline,
            idempotent=idempotent,
            retry=retry,
            cancellation=cancellation,
            extensions=extensions,
        )
        return self.call_response(call).result

    def call_response(self, call: Call) -> Response:
        """Makes a call, and returns the whole answer: the result, the data of extensions, and the node."""
        return self._run(call.run(self._core))

    def cancel(self, cancellation: Cancellation) -> None:
        """Cancels a call, and returns when the server has accepted that."""
        self._run(call_.cancel(self._core, cancellation))

    def ping(self) -> None:
        """Makes sure that a Forrst server answers."""
        self._run(self._core.ask("urn:cline:forrst:fn:ping", {}))

    def health(self) -> dict[str, Any]:
        """The health of the server and its store."""
        health: dict[str, Any] = self._run(self._core.ask("urn:cline:forrst:fn:health", {}))
        return health

    def capabilities(self) -> dict[str, Any]:
        """The server's protocol versions, functions, extensions and limits."""
        found: dict[str, Any] = self._run(self._core.ask("urn:cline:forrst:fn:capabilities", {}))
        return found

    def settle(self, limit: Seconds = _SETTLE) -> bool:
        """Waits for background work, such as the withdrawal of an acquisition that was given up. Whether all of it is done."""
        until = time.monotonic() + seconds("limit", limit, zero=True)
        with self._idle:
            return self._idle.wait_for(self._is_idle, max(0.0, until - time.monotonic()))

    def _is_idle(self) -> bool:
        return not self._working and not any(keeper.is_abandoned for keeper in self._keepers)

    def close(self) -> None:
        """Releases the leases that are still held, waits a moment for background work, and closes all connections."""
        with self._idle:
            keepers = list(self._keepers)
        for keeper in keepers:
            if keeper.end():
                keeper.keeping.abandon()
        self.settle()
        with self._idle:
            for runner in self._working:
                runner.stop()
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        return Runner(self._transport).run(steps)

    def _in_background(self, steps: Steps[None]) -> None:
        runner = Runner(self._transport)
        with self._idle:
            self._working.add(runner)
        try:
            threading.Thread(target=self._work, args=(runner, steps), name="forrst-background", daemon=True).start()
        except RuntimeError:
            # The interpreter ends. What is held ends by itself.
            self._done(runner)

    def _work(self, runner: Runner, steps: Steps[None]) -> None:
        try:
            runner.run(steps)
        except Stopped:
            logger.debug("background work was stopped")
        finally:
            self._done(runner)

    def _remember(self, keeper: Keeper) -> None:
        with self._idle:
            self._keepers.add(keeper)

    def _forget(self, keeper: Keeper) -> None:
        with self._idle:
            self._keepers.discard(keeper)
            self._idle.notify_all()

    def _done(self, runner: Runner) -> None:
        with self._idle:
            self._working.discard(runner)
            self._idle.notify_all()


class Locks:
    """Operations on locks by their full keys (``lock:…``), for operators and for leases that are not held here."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def status(self, full_key: str) -> LockInfo:
        """Whether the lock is held, and by which leases."""
        return self._client._run(locks_.status(self._client._core, full_key))

    def waiters(self, full_key: str, limit: int | None = None) -> list[Waiter]:
        """The callers that wait for a lock, the next one first."""
        return self._client._run(locks_.waiters(self._client._core, full_key, limit))

    def list(self, prefix: str = "lock:", *, limit: int | None = None, cursor: str | None = None) -> Page:
        """A page of the held locks whose full key starts with `prefix`."""
        return self._client._run(locks_.page(self._client._core, prefix, limit, cursor))

    def list_all(self, prefix: str = "lock:") -> Iterator[LockInfo]:
        """All held locks, page after page. Not a snapshot."""
        cursor: str | None = None
        while True:
            page = self.list(prefix, limit=1000, cursor=cursor)
            yield from page.locks
            cursor = page.cursor
            if cursor is None:
                return

    def extend(self, full_key: str, owner: str, ttl: Seconds, *, fence: str | None = None) -> Extended:
        """Extends a lease: it ends `ttl` from now, which may also be earlier."""
        return self._client._run(locks_.extend(self._client._core, full_key, owner, ttl, fence))

    def release(self, full_key: str, owner: str, *, fence: str | None = None) -> None:
        """Releases a lock with its owner token; with a fence, only the lease that has it."""
        self._client._run(locks_.release(self._client._core, full_key, owner, fence))

    def force_release(self, full_key: str, *, fence: str | None = None) -> int:
        """Ends every lease on a key, of any owner, or only that with `fence`. Returns how many it has ended."""
        return self._client._run(locks_.force_release(self._client._core, full_key, fence))

    def withdraw(self, full_key: str, owner: str, attempt: str) -> str:
        """Withdraws an attempt whose outcome is not known. Returns what it had: ``held``, ``waiting`` or ``unknown``."""
        return self._client._run(locks_.withdraw(self._client._core, full_key, owner, attempt))
