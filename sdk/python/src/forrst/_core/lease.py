"""What keeps a lease, watches it and ends it."""

from __future__ import annotations

import logging
import random

from ..errors import AlreadyReleasedError, ForrstError, LostError, MismatchError, NotHeldError, RejectedError
from .core import Core
from .durations import to_wire
from .info import Extended, Held, LockInfo
from .locks import EXTEND, RELEASE, WATCH, lease, watch_arguments
from .retry import Tries, in_background
from .steps import Sleep, Steps
from .tenure import Tenure, Term

logger = logging.getLogger("forrst")

#: The answers that prove that a lease has ended.
LOSS = (NotHeldError, MismatchError, AlreadyReleasedError)

#: How late the end of a lease may be noticed after the machine has slept: timers do not count that time.
_CHECK_INTERVAL = 1.0
#: The longest pause before a failed renewal is repeated.
_LONGEST_PAUSE = 1.0
#: How long one request watches a lock.
_WATCH = 30.0
#: How long a release in the background is repeated at least.
_MIN_RELEASE_TIME = 2.0


class Keeping:
    """One lease, and the operations that it takes part in."""

    def __init__(self, core: Core, held: Held, ttl: float, first: float, sent: float) -> None:
        """`first` is just before the first try that may have been granted, `sent` before the one that was answered."""
        self.core = core
        self.held = held
        self.ttl = ttl
        if held.elapsed is not None and held.ttl_remaining is not None:
            term = Term.of(sent, held.elapsed + held.ttl_remaining, held.expires_at)
        else:
            term = Term.of(first, ttl, held.expires_at)
        self.tenure = Tenure(core.clock, term)

    def ensure_fresh(self) -> Steps[None]:
        """Extends the lease unless more than half of it is left: it may have been granted to an earlier try."""
        tries = Tries(self.core, repeat=True)
        while self.tenure.remaining() <= self.ttl / 2:
            try:
                self.tenure.set_first_term((yield from self._extend(self.ttl)))
                return
            except LOSS as why:
                self.tenure.lose(str(why))
                raise LostError(f"the lease is lost: {why}") from why
            except ForrstError as why:
                error = why
            try:
                yield from tries.after(error)
            except ForrstError as why:
                if self.tenure.is_held():
                    # What is left may be enough: the renewal goes on trying.
                    return
                self.abandon()
                raise LostError(f"the lease is lost: it could not be extended: {why}") from why

    def renew(self) -> Steps[None]:
        """Renews the lease until it is lost, or ended here."""
        while self.tenure.is_held():
            due = self.tenure.term.proven + self.ttl / 3
            left = min(due - self.core.clock(), self.tenure.remaining())
            if left > 0:
                yield Sleep(min(left, _CHECK_INTERVAL))
                continue
            try:
                # Short enough that several tries are left after one that is never answered.
                term = yield from self._extend(max(0.001, min(self.ttl / 6, self.tenure.remaining())))
                self.tenure.extend(term)
                continue
            except LOSS as why:
                self.tenure.lose(str(why))
                return
            except ForrstError as why:
                self.tenure.note_error(why)
                logger.debug("a lease was not renewed, trying again: %s", why)
            pause = min(self.ttl / 24, _LONGEST_PAUSE)
            yield Sleep(min(random.uniform(pause / 2, pause), self.tenure.remaining()))

    def watch(self) -> Steps[None]:
        """Notices at once if the lease is ended by another, until it is lost or ended here."""
        since: str | None = None
        failed = 0
        while self.tenure.is_held():
            arguments = watch_arguments(self.held.full_key, self.held.owner, since, _WATCH)
            try:
                answer = yield from self.core.ask_once(WATCH, arguments, self.core.timeout + _WATCH)
                info = LockInfo.read(answer)
            except RejectedError as why:
                logger.warning("a lease cannot be watched: %s", why)
                return
            except ForrstError as why:
                failed += 1
                yield Sleep(max(self.core.retry.backoff(failed), why.retry_after or 0.0))
                continue
            failed = 0
            fences = [holder.fence for holder in info.holders]
            is_listed = self.held.fence in fences
            # Of very many leases, a server lists only some; a server with only the bare extension shows no fences.
            are_all_listed = info.holder_count <= len(fences) and None not in fences
            if not info.is_held or (are_all_listed and not is_listed):
                self.tenure.lose("it was released by force, or has expired")
                return
            since = answer.get("revision")
            if not isinstance(since, str):
                logger.warning("a lease cannot be watched: the answer has no revision")
                return
            if not is_listed:
                yield Sleep(_CHECK_INTERVAL)

    def _extend(self, timeout: float) -> Steps[Term]:
        ttl = to_wire(self.ttl)
        arguments = lease(self.held.full_key, self.held.owner, self.held.fence, ttl=ttl)
        sent = self.core.clock()
        answer = yield from self.core.ask_once(EXTEND, arguments, min(timeout, self.core.timeout))
        return Term.of(sent, ttl["value"] / 1000, Extended.read(answer).expires_at)

    def release(self) -> Steps[None]:
        """Releases the lease; if that fails, goes on trying in the background until it has expired."""
        self.tenure.check()
        tries = Tries(self.core, repeat=True, until=self.tenure.term.until)
        try:
            yield from self._release(tries)
        except LOSS as why:
            # A lease that cannot have expired yet was ended by an earlier try, whose answer was lost.
            is_done = isinstance(why, AlreadyReleasedError) or self.tenure.is_held()
            if not (tries.has_lost_answer and is_done):
                self.tenure.lose(str(why))
                raise LostError(f"the lease is lost: {why}") from why
        except BaseException:
            self.abandon()
            raise
        self.tenure.end()

    def abandon(self) -> None:
        """Releases the lease in the background."""
        self.core.in_background(self.release_in_background())

    def release_in_background(self) -> Steps[None]:
        """The same for a lease that its caller no longer has."""
        # One that has ended here may last a little longer on the server, so there is at least one try.
        time = max(self.tenure.remaining(), _MIN_RELEASE_TIME)
        self.tenure.end()
        tries = Tries(self.core, repeat=True, retry=in_background(time), until=self.core.clock() + time)
        try:
            yield from self._release(tries)
        except ForrstError as why:
            logger.debug("a lease could not be released in the background: %s", why)

    def _release(self, tries: Tries) -> Steps[None]:
        arguments = lease(self.held.full_key, self.held.owner, self.held.fence)
        yield from self.core.ask(RELEASE, arguments, tries)
