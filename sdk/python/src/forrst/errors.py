"""The errors of calls and lock operations: one class for each way of handling them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core.response import ErrorObject, Response


class ForrstError(Exception):
    """Why a call or a lock operation has no result. The base of all errors of this package."""

    #: The whole answer of the server, if it answered with errors.
    response: Response | None = None
    #: Whether the function that was called may have begun. If not, any call may safely be repeated.
    may_have_run: bool = False
    #: The server asked not to try again before this many seconds have passed.
    retry_after: float | None = None

    def __init__(
        self,
        message: str = "",
        *,
        response: Response | None = None,
        may_have_run: bool | None = None,
    ) -> None:
        super().__init__(message)
        if response is not None:
            self.response = response
        if may_have_run is not None:
            self.may_have_run = may_have_run

    @property
    def errors(self) -> tuple[ErrorObject, ...]:
        """All errors that the server reported; empty if it did not answer."""
        return self.response.errors if self.response is not None else ()

    @property
    def code(self) -> str | None:
        """The code of the first error that the server reported, such as ``LOCK_TIMEOUT``."""
        return self.errors[0].code if self.errors else None

    @property
    def pointer(self) -> str | None:
        """Which part of the request is wrong, such as ``/call/arguments/amount``."""
        return self.errors[0].pointer if self.errors else None

    @property
    def details(self) -> dict[str, Any]:
        """Further members of the first error, such as the key of a lock."""
        return self.errors[0].details if self.errors else {}


class ContendedError(ForrstError):
    """The lock is held, and the request did not wait for it (``LOCK_ACQUISITION_FAILED``)."""


class TimedOutError(ForrstError):
    """The lock was held for as long as the request waited for it (``LOCK_TIMEOUT``)."""


class LostError(ForrstError):
    """The lease ended before it was released; another client may hold the lock."""

    may_have_run = True


class MismatchError(ForrstError):
    """The lock belongs to another owner, or to a newer lease (``LOCK_OWNERSHIP_MISMATCH``)."""

    may_have_run = True


class NotHeldError(ForrstError):
    """The lock is not held (``LOCK_NOT_FOUND``)."""

    may_have_run = True


class AlreadyReleasedError(ForrstError):
    """The lease was released before, by its owner or by force (``LOCK_ALREADY_RELEASED``)."""

    may_have_run = True


class DeadlineExceededError(ForrstError):
    """The deadline passed, here or on the server (``DEADLINE_EXCEEDED``). The function may have run."""

    may_have_run = True


class CallCancelledError(ForrstError):
    """The call was cancelled (``CANCELLED``). Without a response, it was cancelled before it was sent."""


class UnavailableError(ForrstError):
    """The server cannot serve now (``UNAVAILABLE``, maintenance)."""


class UnreachableError(ForrstError):
    """No connection to the server could be made. Nothing was sent."""


class LostAnswerError(ForrstError):
    """The connection broke, or no answer came in time. What was sent may have been done."""

    may_have_run = True


class RateLimitedError(ForrstError):
    """Too many requests (``RATE_LIMITED``)."""


class UnauthorizedError(ForrstError):
    """The API key is missing or wrong (``UNAUTHORIZED``)."""


class ForbiddenError(ForrstError):
    """The caller may not do this (``FORBIDDEN``)."""


class RejectedError(ForrstError):
    """The request is invalid, and nothing was done: its arguments, function or extensions are wrong."""


class FunctionError(ForrstError):
    """The function itself failed: with a code of its own, or unexpectedly (``INTERNAL_ERROR``)."""

    may_have_run = True


class NotUnderstoodError(ForrstError):
    """The answer is not one of the protocol. The request may have been carried out."""

    may_have_run = True


class InvalidRequestError(ForrstError, ValueError):
    """The request cannot be built, and nothing was sent."""


class ConfigurationError(ForrstError, ValueError):
    """The client cannot be set up: its URL, its key or its settings are invalid."""
