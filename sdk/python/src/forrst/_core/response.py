"""Answers of the server: how they are read, and which error each failure is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .. import errors
from ..errors import ForbiddenError, ForrstError, LostAnswerError, NotUnderstoodError, UnauthorizedError
from .durations import from_wire
from .steps import HttpAnswer

LOCK = "urn:forrst:ext:atomicLock"
DEADLINE = "urn:forrst:ext:deadline"
CANCELLATION = "urn:forrst:ext:cancellation"

#: The codes that mean that the same request may succeed later.
RETRYABLE = frozenset(
    (
        "LOCK_ACQUISITION_FAILED",
        "LOCK_TIMEOUT",
        "DEADLINE_EXCEEDED",
        "RATE_LIMITED",
        "INTERNAL_ERROR",
        "UNAVAILABLE",
        "FUNCTION_DISABLED",
        "FUNCTION_MAINTENANCE",
        "SERVER_MAINTENANCE",
        "DEPENDENCY_ERROR",
        "IDEMPOTENCY_PROCESSING",
        "BATCH_TIMEOUT",
    )
)

_ERRORS: dict[str, tuple[type[ForrstError], str]] = {
    "LOCK_ACQUISITION_FAILED": (errors.ContendedError, "the lock is held"),
    "LOCK_TIMEOUT": (errors.TimedOutError, "the lock was not free in time"),
    "LOCK_OWNERSHIP_MISMATCH": (errors.MismatchError, "the lock is held by another owner or lease"),
    "LOCK_NOT_FOUND": (errors.NotHeldError, "the lock is not held"),
    "LOCK_ALREADY_RELEASED": (errors.AlreadyReleasedError, "the lock was already released"),
    "DEADLINE_EXCEEDED": (errors.DeadlineExceededError, "the deadline has passed"),
    "CANCELLED": (errors.CallCancelledError, "the call was cancelled"),
    "RATE_LIMITED": (errors.RateLimitedError, "too many requests"),
    "UNAUTHORIZED": (UnauthorizedError, "the server does not accept the API key"),
    "FORBIDDEN": (ForbiddenError, "not allowed"),
    **dict.fromkeys(
        ("UNAVAILABLE", "SERVER_MAINTENANCE", "FUNCTION_MAINTENANCE", "FUNCTION_DISABLED"),
        (errors.UnavailableError, "the server is unavailable"),
    ),
    **dict.fromkeys(
        (
            "PARSE_ERROR",
            "INVALID_REQUEST",
            "INVALID_PROTOCOL_VERSION",
            "INVALID_ARGUMENTS",
            "EXTENSION_NOT_SUPPORTED",
            "EXTENSION_NOT_APPLICABLE",
            "FUNCTION_NOT_FOUND",
            "VERSION_NOT_FOUND",
            "SCHEMA_VALIDATION_FAILED",
        ),
        (errors.RejectedError, "the request was rejected"),
    ),
}


@dataclass(frozen=True)
class ErrorObject:
    """One error that the server reported."""

    #: What went wrong, for programs.
    code: str
    #: What went wrong, for people.
    message: str
    #: Which part of the request is wrong, such as ``/call/arguments/amount``.
    pointer: str | None = None
    #: Further members, such as the key of a lock.
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        at = f" at {self.pointer}" if self.pointer else ""
        return f"{self.message} ({self.code}){at}"


@dataclass(frozen=True)
class Response:
    """The whole answer to a request."""

    #: The id of the request; ``None`` if the server refused it before it was read.
    id: str | None
    #: The result of the function; ``None`` if the request failed.
    result: Any
    #: What went wrong; empty if the request succeeded.
    errors: tuple[ErrorObject, ...] = ()
    #: The data of the extensions, by URN.
    extensions: dict[str, Any] = field(default_factory=dict)
    #: Further members, such as the name of the node that answered.
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The name of the server process that answered."""
        node = self.meta.get("node")
        return node if isinstance(node, str) else None

    @property
    def has_acquired_lock(self) -> bool | None:
        """Whether the lock of the call was acquired; ``None`` for a call without one."""
        data = self.extensions.get(LOCK)
        acquired = data.get("acquired") if isinstance(data, dict) else None
        return acquired if isinstance(acquired, bool) else None


def read(answer: HttpAnswer, request_id: str) -> Response:
    """The answer to this request if it succeeded; raises the error of it otherwise."""
    try:
        response = _parse(answer.body)
    except (ValueError, RecursionError) as why:
        raise _not_forrst(answer, why) from None
    if response.id is None and not response.errors:
        raise NotUnderstoodError("the answer has no id, and no errors either")
    if response.id not in (None, request_id):
        raise NotUnderstoodError(f"the answer is for another request, `{response.id}`")
    if response.errors:
        raise _failure(response, answer)
    return response


def _parse(body: bytes) -> Response:
    document = json.loads(body)
    if not isinstance(document, dict) or "id" not in document:
        raise ValueError("it is not a Forrst response")
    request_id, reported = document["id"], document.get("errors") or []
    if not (request_id is None or isinstance(request_id, str)) or not isinstance(reported, list):
        raise ValueError("it is not a Forrst response")
    if not reported and "result" not in document:
        raise ValueError("it has neither a result nor errors")
    extensions = document.get("extensions")
    meta = document.get("meta")
    return Response(
        id=request_id,
        result=document.get("result"),
        errors=tuple(_error_object(error) for error in reported),
        extensions={
            entry["urn"]: entry["data"]
            for entry in (extensions if isinstance(extensions, list) else [])
            if isinstance(entry, dict) and isinstance(entry.get("urn"), str) and "data" in entry
        },
        meta=meta if isinstance(meta, dict) else {},
    )


def _error_object(error: object) -> ErrorObject:
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        raise ValueError("it has an error without a code")
    source, details = error.get("source"), error.get("details")
    pointer = source.get("pointer") if isinstance(source, dict) else None
    return ErrorObject(
        code=error["code"],
        message=str(error.get("message", "")),
        pointer=pointer if isinstance(pointer, str) else None,
        details=details if isinstance(details, dict) else {},
    )


def _failure(response: Response, answer: HttpAnswer) -> ForrstError:
    """By the first of its errors: servers report several only when the request itself is invalid."""
    code = response.errors[0].code
    kind, text = _ERRORS.get(code, (errors.FunctionError, "the function failed"))
    reported = "; ".join(str(error) for error in response.errors)
    error = kind(f"{text}: {reported}", response=response)
    if kind in (errors.ContendedError, errors.TimedOutError, errors.RateLimitedError):
        error.may_have_run = response.has_acquired_lock is True
    elif code == "UNAVAILABLE":
        # This is also the answer when a server that shuts down ends the function.
        error.may_have_run = response.has_acquired_lock is not False and response.id is not None
    elif code == "CANCELLED":
        error.may_have_run = True
    named = [from_wire(error.details.get("retry_after")) for error in response.errors]
    error.retry_after = max((time for time in named if time is not None), default=_header(answer))
    return error


def _header(answer: HttpAnswer) -> float | None:
    """The header ``Retry-After``, if it is a number of seconds."""
    text = answer.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _not_forrst(answer: HttpAnswer, why: Exception) -> ForrstError:
    """The error for an HTTP answer without a Forrst answer in it, which a proxy may have sent."""
    message = f"HTTP status {answer.status} without a Forrst answer: {why}"
    if answer.status == 401:
        return UnauthorizedError(message)
    if answer.status == 403:
        return ForbiddenError(message)
    if answer.status in (429, 502, 503, 504):
        lost = LostAnswerError(message)
        lost.retry_after = _header(answer)
        return lost
    return NotUnderstoodError(message)
