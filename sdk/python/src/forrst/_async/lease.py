"""Leases that this process holds, renewed by a task each."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._core.acquire import LockRequest
from .._core.info import Held
from .._core.lease import Keeping, logger
from .._core.view import LeaseView
from ..errors import ForrstError, LostError

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncLease(LeaseView):
    """A lock that is held here and renews itself, until it is released or lost.

    Only this machine's clock decides whether it is still held: a lease ends here no later than on the server. A lost lease stays
    lost. The body of ``async with`` is cancelled on loss; elsewhere, call :meth:`check` or await :meth:`wait_lost`. Give
    :attr:`fence` to the resource that the lock protects.
    """

    def __init__(self, keeper: AsyncKeeper) -> None:
        super().__init__(keeper.keeping)
        self._keeper = keeper
        # A lease that is dropped is released in the background.
        weakref.finalize(self, keeper.abandon_soon).atexit = False

    async def wait_lost(self) -> bool:
        """Waits until the lease is lost or has ended; whether it is lost."""
        await self._keeper.over.wait()
        return self.is_lost

    async def release(self) -> None:
        """Releases the lock. A second release does nothing.

        Raises :class:`~forrst.LostError` if the lease was lost before: another client may have held the lock since. If no answer
        comes, that error is raised, and the release goes on in the background until the lease has expired anyway.
        """
        await self._keeper.release()

    def keep(self) -> Held:
        """Stops the renewal without releasing the lock: it ends when it expires, or is released with its owner token."""
        self._keeper.end()
        return self._held


class AsyncKeeper:
    """The tasks of one lease. They do not refer to the `AsyncLease`, so that it can be dropped."""

    def __init__(self, client: AsyncClient, keeping: Keeping, watch: bool) -> None:
        self.keeping = keeping
        #: Set when the lease is lost or has ended.
        self.over = asyncio.Event()
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._is_ended = False
        self._bodies: list[Callable[[], object]] = []
        steps = [keeping.renew(), keeping.watch()] if watch else [keeping.renew()]
        self._tasks = [self._loop.create_task(client._transport.run(each)) for each in steps]
        for task in self._tasks:
            task.add_done_callback(self._see)
        client._keepers.add(self)

    def on_loss(self, cancel: Callable[[], object]) -> None:
        """Calls this once if the lease is lost."""
        self._bodies.append(cancel)

    def _see(self, task: asyncio.Task[None]) -> None:
        """One of its tasks has ended."""
        if not task.cancelled() and task.exception() is not None:
            logger.error("the renewal of a lease failed", exc_info=task.exception())
        self._notice_loss()

    def _notice_loss(self) -> None:
        loss = self.keeping.tenure.loss()
        if loss is None or self._is_ended:
            return
        logger.warning("the lease of %s is lost: %s", self.keeping.held.full_key, loss)
        self._end_once()
        for cancel in self._bodies:
            cancel()

    async def release(self) -> None:
        # Before anything else, so that no notice of loss fires from here on.
        is_first = self._end_once()
        self.keeping.tenure.check()
        if is_first:
            try:
                await self._client._run(self.keeping.release())
            finally:
                self.keeping.tenure.end()

    def end(self) -> bool:
        """Stops the renewal; whether the lease was still held here."""
        is_first = self._end_once() and self.keeping.tenure.loss() is None
        self.keeping.tenure.end()
        return is_first

    def abandon(self) -> None:
        """Releases the lease in the background."""
        if self.end():
            self.keeping.abandon()

    def abandon_soon(self) -> None:
        """As `abandon`. Finalizers may call this, in any thread."""
        if self._is_ended:
            return
        try:
            self._loop.call_soon_threadsafe(self.abandon)
        except RuntimeError:
            pass  # The event loop is closed. The lease ends by itself.

    def _end_once(self) -> bool:
        is_first, self._is_ended = not self._is_ended, True
        for task in self._tasks:
            task.cancel()
        self._client._keepers.discard(self)
        self.over.set()
        return is_first


class _Body:
    """The body of an ``async with``, which is cancelled when its lease is lost."""

    def __init__(self, lease: AsyncLease) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.lease = lease
        self.task: asyncio.Task[Any] = task
        self._before = self._count()
        self._is_cancelled = False
        self._has_ended = False
        lease._keeper.on_loss(self._cancel)

    def _cancel(self) -> None:
        if not self._has_ended:
            self._is_cancelled = True
            self.task.cancel()

    def _count(self) -> int:
        """How many cancellations of the task are not handled yet; Python 3.10 does not count them."""
        cancelling: Callable[[], int] | None = getattr(self.task, "cancelling", None)
        return cancelling() if cancelling is not None else 0

    async def end(self, error: BaseException | None) -> BaseException | None:
        """Returns how the body ended, without the cancellation that came from here.

        If the task was cancelled by others, too, that cancellation is returned.
        """
        self._has_ended = True
        if not self._is_cancelled:
            return error
        if not isinstance(error, asyncio.CancelledError):
            try:
                # The body has ended before the cancellation could interrupt it: it would interrupt something later.
                await asyncio.sleep(0)
            except asyncio.CancelledError as late:
                error = error or late
        if hasattr(self.task, "uncancel"):
            self.task.uncancel()
        if self._count() > self._before:
            return error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
        return None if isinstance(error, asyncio.CancelledError) else error


class AsyncAcquire:
    """The acquisition of a lock: use it in an ``async with`` statement, or await :meth:`acquire`."""

    def __init__(self, client: AsyncClient, request: LockRequest) -> None:
        self._client = client
        self._request = request
        self._entered: list[_Body] = []

    async def acquire(self) -> AsyncLease:
        """Takes the lock and keeps it by renewing it, until the lease is released or dropped.

        Raises :class:`~forrst.ContendedError` or :class:`~forrst.TimedOutError` if another client holds it.
        """
        keeping = await self._client._run(self._request.acquire(self._client._core))
        return AsyncLease(AsyncKeeper(self._client, keeping, self._request.watch))

    async def hold(self) -> Held:
        """Takes the lock, and neither renews nor releases it: it ends when it expires, or by ``client.locks.release``."""
        return await self._client._run(self._request.hold(self._client._core))

    async def __aenter__(self) -> AsyncLease:
        lease = await self.acquire()
        self._entered.append(_Body(lease))
        return lease

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Releases the lock. If the lease was lost, the cancellation of the body becomes `LostError`."""
        task = asyncio.current_task()
        body = next(body for body in reversed(self._entered) if body.task is task)
        self._entered.remove(body)
        keeper = body.lease._keeper
        if isinstance(error, GeneratorExit):
            keeper.abandon()
            return
        ended_by = await body.end(error)
        if ended_by is None:
            try:
                await keeper.release()
            except LostError as lost:
                raise lost from error
            return
        try:
            await keeper.release()
        except ForrstError as why:
            # The error of the body is more important, unless it is the loss itself.
            if not isinstance(ended_by, LostError):
                logger.warning("a lease was not released: %s", why)
        if ended_by is not error:
            raise ended_by
