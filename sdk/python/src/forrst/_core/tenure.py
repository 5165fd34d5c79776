"""The state of one lease: until when it is held here, and whether it was lost or given back."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime

from ..errors import LostError
from .clock import Clock


@dataclass(frozen=True)
class Term:
    """For how long a lease is certainly held."""

    #: Just before the request was sent whose answer proves it.
    proven: float
    until: float
    #: The end by the server's clock.
    expires_at: datetime

    @classmethod
    def of(cls, proven: float, span: float, expires_at: datetime) -> Term:
        """The term of a lease that lasts for `span` on the server, counted from just before the request.

        It ends a margin earlier here: the clocks of two machines run at different rates, and stores count whole milliseconds.
        """
        return cls(proven, proven + max(0.0, span - span / 100 - 0.002), expires_at)


class Tenure:
    """A lease from its grant to its end. It ends once: a lost lease stays lost.

    Safe to use from several threads.
    """

    def __init__(self, clock: Clock, term: Term) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._term = term
        self._loss: str | None = None
        #: Released, or kept by its caller.
        self._is_over = False
        self._last_error: str | None = None

    @property
    def term(self) -> Term:
        return self._term

    def remaining(self) -> float:
        """For how many seconds it is certainly held; 0 when it is over or lost."""
        with self._lock:
            self._see_the_clock()
            is_held = self._loss is None and not self._is_over
            return max(0.0, self._term.until - self._clock()) if is_held else 0.0

    def loss(self) -> str | None:
        """Why it is lost, if it is."""
        with self._lock:
            self._see_the_clock()
            return self._loss

    def is_held(self) -> bool:
        return self.remaining() > 0

    def check(self) -> None:
        """Raises `LostError` if it is lost."""
        loss = self.loss()
        if loss is not None:
            raise LostError(f"the lease is lost: {loss}")

    def set_first_term(self, term: Term) -> None:
        """Replaces the term of a lease that was not handed to its caller yet, even if it has ended."""
        with self._lock:
            self._term, self._loss = term, None

    def extend(self, term: Term) -> None:
        """Moves the end, unless it has passed: a late answer changes nothing."""
        with self._lock:
            self._see_the_clock()
            if self._loss is None and not self._is_over:
                self._term, self._last_error = term, None

    def note_error(self, error: Exception) -> None:
        """Keeps the error of a failed renewal, to be reported if the lease expires."""
        self._last_error = str(error)

    def lose(self, why: str) -> None:
        """Marks it as lost before its time is over."""
        with self._lock:
            self._see_the_clock()
            if self._loss is None and not self._is_over:
                self._loss = why

    def end(self) -> None:
        """Marks it as released or kept, unless it is lost already."""
        with self._lock:
            self._see_the_clock()
            self._is_over = True

    def _see_the_clock(self) -> None:
        if self._loss is None and not self._is_over and self._clock() >= self._term.until:
            why = f": {self._last_error}" if self._last_error else ""
            self._loss = f"it could not be renewed in time{why}"
