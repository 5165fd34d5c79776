"""Locks and calls of a Forrst server.

>>> import forrst
>>> with forrst.Client("http://127.0.0.1:7420") as client:                # doctest: +SKIP
...     with client.lock("orders", ttl=30, wait=5) as lease:
...         write(lease.fence)

>>> async with forrst.AsyncClient("http://127.0.0.1:7420") as client:     # doctest: +SKIP
...     async with client.lock("orders", ttl=30, wait=5) as lease:
...         await write(lease.fence)
"""

from ._async.client import AsyncClient, AsyncLocks
from ._async.lease import AsyncAcquire, AsyncLease
from ._core.call import Call, Cancellation, Lock
from ._core.info import Extended, Held, Holder, LockInfo, Page, Waiter
from ._core.keys import Key
from ._core.response import ErrorObject, Response
from ._core.retry import Retry
from ._sync.client import Client, Locks
from ._sync.lease import Acquire, Lease
from .errors import (
    AlreadyReleasedError,
    CallCancelledError,
    ConfigurationError,
    ContendedError,
    DeadlineExceededError,
    ForbiddenError,
    ForrstError,
    FunctionError,
    InvalidRequestError,
    LostAnswerError,
    LostError,
    MismatchError,
    NotHeldError,
    NotUnderstoodError,
    RateLimitedError,
    RejectedError,
    TimedOutError,
    UnauthorizedError,
    UnavailableError,
    UnreachableError,
)

__version__ = "0.1.0"

__all__ = [
    "Acquire",
    "AlreadyReleasedError",
    "AsyncAcquire",
    "AsyncClient",
    "AsyncLease",
    "AsyncLocks",
    "Call",
    "CallCancelledError",
    "Cancellation",
    "Client",
    "ConfigurationError",
    "ContendedError",
    "DeadlineExceededError",
    "ErrorObject",
    "Extended",
    "ForbiddenError",
    "ForrstError",
    "FunctionError",
    "Held",
    "Holder",
    "InvalidRequestError",
    "Key",
    "Lease",
    "Lock",
    "LockInfo",
    "Locks",
    "LostAnswerError",
    "LostError",
    "MismatchError",
    "NotHeldError",
    "NotUnderstoodError",
    "Page",
    "RateLimitedError",
    "RejectedError",
    "Response",
    "Retry",
    "TimedOutError",
    "UnauthorizedError",
    "UnavailableError",
    "UnreachableError",
    "Waiter",
]
