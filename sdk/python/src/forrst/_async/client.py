"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
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
from .._core.response import Response
from .._core.retry import Retry
from .._core.settings import Settings
from .._core.steps import Steps
from .lease import AsyncAcquire, AsyncKeeper
from .transport import Transport

T = TypeVar("T")
_SETTLE = 2.0


class AsyncClient(BaseClient[AsyncAcquire]):
    """A client of a Forrst server for asyncio."""

    def _set_up(self, settings: Settings) -> None:
        self._transport = Transport(settings)
        self._keepers: set[AsyncKeeper] = set()
        self._working: set[asyncio.Task[None]] = set()
        #: Operations on locks by their full keys.
        self.locks = AsyncLocks(self)

    def _acquire(self, request: LockRequest) -> AsyncAcquire:
        return AsyncAcquire(self, request)

    async def call(
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
        return (await self.call_response(call)).result

    async def call_response(self, call: Call) -> Response:
        """Makes a call, and returns the whole answer: the result, the data of extensions, and the node."""
        return await self._run(call.run(self._core))

    async def cancel(self, cancellation: Cancellation) -> None:
        """Cancels a call, and returns when the server has accepted that."""
        await self._run(call_.cancel(self._core, cancellation))

    async def ping(self) -> None:
        """Makes sure that a Forrst server answers."""
        await self._run(self._core.ask("urn:cline:forrst:fn:ping", {}))

    async def health(self) -> dict[str, Any]:
        """The health of the server and its store."""
        health: dict[str, Any] = await self._run(self._core.ask("urn:cline:forrst:fn:health", {}))
        return health

    async def capabilities(self) -> dict[str, Any]:
        """The server's protocol versions, functions, extensions and limits."""
        found: dict[str, Any] = await self._run(self._core.ask("urn:cline:forrst:fn:capabilities", {}))
        return found

    async def settle(self, limit: Seconds = _SETTLE) -> bool:
        """Waits for background work, such as the withdrawal of an acquisition that was given up. Whether all of it is done."""
        # A finalizer may have left work to the next round of the event loop.
        await asyncio.sleep(0)
        if self._working:
            await asyncio.wait(self._working, timeout=seconds("limit", limit, zero=True))
        return not self._working

    async def aclose(self) -> None:
        """Releases the leases that are still held, waits a moment for background work, and closes all connections."""
        for keeper in list(self._keepers):
            keeper.abandon()
        try:
            await self.settle()
        finally:
            for task in self._working:
                task.cancel()
            await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.aclose()

    def _run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        return self._transport.run(steps)

    def _in_background(self, steps: Steps[None]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # Nothing can be sent any more. What is held ends by itself.
        task = loop.create_task(self._run(steps))
        self._working.add(task)
        task.add_done_callback(self._working.discard)


class AsyncLocks:
    """Operations on locks by their full keys (``lock:…``), for operators and for leases that are not held here."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def status(self, full_key: str) -> LockInfo:
        """Whether the lock is held, and by which leases."""
        return await self._client._run(locks_.status(self._client._core, full_key))

    async def waiters(self, full_key: str, limit: int | None = None) -> list[Waiter]:
        """The callers that wait for a lock, the next one first."""
        return await self._client._run(locks_.waiters(self._client._core, full_key, limit))

    async def list(self, prefix: str = "lock:", *, limit: int | None = None, cursor: str | None = None) -> Page:
        """A page of the held locks whose full key starts with `prefix`."""
        return await self._client._run(locks_.page(self._client._core, prefix, limit, cursor))

    async def list_all(self, prefix: str = "lock:") -> AsyncIterator[LockInfo]:
        """All held locks, page after page. Not a snapshot."""
        cursor: str | None = None
        while True:
            page = await self.list(prefix, limit=1000, cursor=cursor)
            for lock in page.locks:
                yield lock
            cursor = page.cursor
            if cursor is None:
                return

    async def extend(self, full_key: str, owner: str, ttl: Seconds, *, fence: str | None = None) -> Extended:
        """Extends a lease: it ends `ttl` from now, which may also be earlier."""
        return await self._client._run(locks_.extend(self._client._core, full_key, owner, ttl, fence))

    async def release(self, full_key: str, owner: str, *, fence: str | None = None) -> None:
        """Releases a lock with its owner token; with a fence, only the lease that has it."""
        await self._client._run(locks_.release(self._client._core, full_key, owner, fence))

    async def force_release(self, full_key: str, *, fence: str | None = None) -> int:
        """Ends every lease on a key, of any owner, or only that with `fence`. Returns how many it has ended."""
        return await self._client._run(locks_.force_release(self._client._core, full_key, fence))

    async def withdraw(self, full_key: str, owner: str, attempt: str) -> str:
        """Withdraws an attempt whose outcome is not known. Returns what it had: ``held``, ``waiting`` or ``unknown``."""
        return await self._client._run(locks_.withdraw(self._client._core, full_key, owner, attempt))
