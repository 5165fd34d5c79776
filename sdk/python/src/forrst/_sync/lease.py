"""Leases that this process holds, renewed by a thread each."""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

from .._core.acquire import LockRequest
from .._core.info import Held
from .._core.lease import Keeping, logger
from .._core.steps import Steps
from .._core.view import LeaseView
from ..errors import ForrstError, LostError
from .transport import Runner, Stopped

if TYPE_CHECKING:
    from .client import Client


class Lease(LeaseView):
    """A lock that is held here and renews itself, until it is released or lost.

    Only this machine's clock decides whether it is still held: a lease ends here no later than on the server. A lost lease stays
    lost. A thread cannot be interrupted, so call `check` before each step that must not happen without the lock, and give
    `fence` to the resource that the lock protects.
    """

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper.keeping)
        self._keeper = keeper
        # A lease that is dropped is released by its renewal thread.
        weakref.finalize(self, keeper.abandon_soon).atexit = False

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lease is lost or has ended, `timeout` seconds at most; whether it is lost."""
        self._keeper.over.wait(timeout)
        return self.is_lost

    def release(self) -> None:
        """Releases the lock. A second release does nothing.

        Raises :class:`~forrst.LostError` if the lease was lost before: another client may have held the lock since. If no answer
        comes, that error is raised, and the release goes on in the background until the lease has expired anyway.
        """
        self._keeper.release()

    def keep(self) -> Held:
        """Stops the renewal without releasing the lock: it ends when it expires, or is released with its owner token."""
        self._keeper.end()
        return self._held


class Keeper:
    """The threads of one lease. They do not refer to the `Lease`, so that it can be dropped."""

    def __init__(self, client: Client, keeping: Keeping, watch: bool) -> None:
        self.keeping = keeping
        #: Set when the lease is lost or has ended.
        self.over = threading.Event()
        self._client = client
        self._lock = threading.Lock()
        self._is_ended = False
        #: Its threads are about to release it.
        self.is_abandoned = False
        self._renewal = Runner(client._transport)
        self._watch = Runner(client._transport) if watch else None

    def start(self) -> None:
        self._client._remember(self)
        key = self.keeping.held.full_key
        threading.Thread(target=self._renew, name=f"forrst-renew-{key}", daemon=True).start()
        if self._watch is not None:
            watch = (self._watch, self.keeping.watch())
            threading.Thread(target=self._run, args=watch, name=f"forrst-watch-{key}", daemon=True).start()

    def _renew(self) -> None:
        try:
            self._run(self._renewal, self.keeping.renew())
            loss = self.keeping.tenure.loss()
            if loss is not None:
                logger.warning("the lease of %s is lost: %s", self.keeping.held.full_key, loss)
            elif self.is_abandoned and self.end():
                self.keeping.abandon()
        finally:
            self._stop()
            self._client._forget(self)

    def _run(self, runner: Runner, steps: Steps[None]) -> None:
        try:
            runner.run(steps)
        except Stopped:
            pass
        if self.keeping.tenure.loss() is not None:
            self._stop()

    def release(self) -> None:
        self.keeping.tenure.check()
        if self._end_once():
            try:
                self._client._run(self.keeping.release())
            finally:
                self.keeping.tenure.end()

    def end(self) -> bool:
        """Stops the renewal; whether the lease was still held here."""
        is_first = self._end_once() and self.keeping.tenure.loss() is None
        self.keeping.tenure.end()
        return is_first

    def abandon_soon(self) -> None:
        """Releases the lease in the background, in its own thread. Finalizers may call this."""
        self.is_abandoned = True
        self._renewal.stop_soon()

    def _end_once(self) -> bool:
        with self._lock:
            is_first, self._is_ended = not self._is_ended, True
        self._stop()
        return is_first

    def _stop(self) -> None:
        self._renewal.stop()
        if self._watch is not None:
            self._watch.stop()
        self.over.set()


class Acquire:
    """The acquisition of a lock: use it in a ``with`` statement, or call :meth:`acquire`."""

    def __init__(self, client: Client, request: LockRequest) -> None:
        self._client = client
        self._request = request
        self._entered: dict[int, list[Lease]] = {}

    def acquire(self) -> Lease:
        """Takes the lock and keeps it by renewing it, until the lease is released or dropped.

        Raises :class:`~forrst.ContendedError` or :class:`~forrst.TimedOutError` if another client holds it.
        """
        keeping = self._client._run(self._request.acquire(self._client._core))
        keeper = Keeper(self._client, keeping, self._request.watch)
        lease = Lease(keeper)
        keeper.start()
        return lease

    def hold(self) -> Held:
        """Takes the lock, and neither renews nor releases it: it ends when it expires, or by ``client.locks.release``."""
        return self._client._run(self._request.hold(self._client._core))

    def __enter__(self) -> Lease:
        lease = self.acquire()
        self._entered.setdefault(threading.get_ident(), []).append(lease)
        return lease

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        thread = threading.get_ident()
        leases = self._entered[thread]
        lease = leases.pop()
        if not leases:
            del self._entered[thread]
        if error is None:
            lease.release()
            return
        try:
            lease.release()
        except ForrstError as why:
            # The error of the body is more important, unless it is the loss itself.
            if not isinstance(error, LostError):
                logger.warning("a lease was not released: %s", why)
