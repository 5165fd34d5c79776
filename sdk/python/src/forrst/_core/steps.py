"""The steps that operations consist of, and what a runner has to do for each.

A runner calls ``next(steps)``, carries out the step, and sends the result into the generator, or throws the error into it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Send:
    """Send a request and return its :class:`HttpAnswer`.

    The runner raises :class:`~forrst.UnreachableError` if certainly nothing was sent, else :class:`~forrst.LostAnswerError`.
    """

    body: bytes
    #: Seconds for everything: connecting, sending and the whole answer.
    timeout: float


@dataclass(frozen=True)
class Sleep:
    """Pause for this many seconds."""

    seconds: float


@dataclass(frozen=True)
class HttpAnswer:
    """A whole HTTP response; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


Step = Send | Sleep
Steps = Generator[Step, Any, T]
