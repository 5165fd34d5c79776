"""What servers answer about locks: leases, holders, waiters and pages of the list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..errors import NotUnderstoodError
from .response import LOCK, Response

LockKind = Literal["exclusive", "shared", "limit"]


@dataclass(frozen=True)
class Held:
    """A lock that was acquired, as the server's answer describes it. Nothing here renews or releases it."""

    #: The keys that were requested, normalised by the server; more than one for a lock on several.
    keys: tuple[str, ...]
    #: Their full keys. The lock can be released by any of them.
    full_keys: tuple[str, ...]
    #: The owner token, which releases and extends it.
    owner: str
    #: The fencing token: digits, padded so that it sorts as text.
    fence: str
    #: When it ends by the server's clock, which need not agree with this machine's.
    expires_at: datetime
    #: How many seconds the server had the request; ``None`` from a server with only the bare extension.
    elapsed: float | None = None
    #: How many seconds of the lease were left then; ``None`` from a server with only the bare extension.
    ttl_remaining: float | None = None

    @property
    def full_key(self) -> str:
        """The full key; the first, for a lock on several."""
        return self.full_keys[0]

    @classmethod
    def read(cls, data: object) -> Held:
        with _reading("a lock"):
            data = _object(data)
            keys, full_keys = data.get("keys"), data.get("full_keys")
            return cls(
                keys=_texts(keys if keys is not None else [data["key"]]),
                full_keys=_texts(full_keys if full_keys is not None else [data["full_key"]]),
                owner=_text(data["owner"]),
                fence=_fence(data["fence"]),
                expires_at=_time(data["expires_at"]),
                elapsed=_milliseconds(data.get("elapsed_ms")),
                ttl_remaining=_milliseconds(data.get("ttl_remaining_ms")),
            )

    @classmethod
    def from_response(cls, response: Response) -> Held | None:
        """The lock that a call ran under, from the answer to it. ``None`` if it had no lock, or did not get it."""
        return cls.read(response.extensions[LOCK]) if response.has_acquired_lock else None


@dataclass(frozen=True)
class Holder:
    """One lease on a lock."""

    #: The owner token, or a hash of it for callers that may not see it.
    owner: str
    #: Its fencing token; ``None`` from a server with only the bare extension.
    fence: str | None
    #: When it was taken and when it ends, by the server's clock.
    acquired_at: datetime
    expires_at: datetime
    #: How many seconds are left.
    ttl_remaining: float
    #: The caller that took it, where the server knows its callers.
    caller: str | None = None
    #: The note that its holder has given.
    note: str | None = None
    #: The keys of a lock on several, as far as the caller may see them.
    full_keys: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: object) -> Holder:
        data = _object(data)
        exact = _milliseconds(data.get("ttl_remaining_ms"))
        return cls(
            owner=_text(data["owner"]),
            fence=_fence(data["fence"]) if data.get("fence") is not None else None,
            acquired_at=_time(data["acquired_at"]),
            expires_at=_time(data["expires_at"]),
            ttl_remaining=float(data["ttl_remaining"]) if exact is None else exact,
            caller=data.get("caller"),
            note=data.get("note"),
            full_keys=_texts(data.get("full_keys", [])),
        )


@dataclass(frozen=True)
class LockInfo:
    """The state of a lock when the server answered."""

    full_key: str
    #: Whether at least one lease holds it.
    is_held: bool
    #: How many wait for it. A free lock with waiters is reserved for the first one, which still waits for another key.
    waiters: int = 0
    #: How it is held; ``None`` if it is free.
    kind: LockKind | None = None
    #: How many leases may hold it, and how many more may now, for a lock with a limit.
    limit: int | None = None
    available: int | None = None
    #: The leases, the smallest fence first; 100 at most.
    holders: tuple[Holder, ...] = ()
    #: How many leases there are.
    holder_count: int = 0

    @property
    def holder(self) -> Holder | None:
        """The lease with the smallest fence: the only one, unless the lock is shared."""
        return self.holders[0] if self.holders else None

    @classmethod
    def read(cls, data: object) -> LockInfo:
        with _reading("the status of a lock"):
            data = _object(data)
            key, waiters = _text(data["key"]), int(data.get("waiters", 0))
            if data["locked"] is not True:
                return cls(full_key=key, is_held=False, waiters=waiters)
            holders = tuple(Holder.read(holder) for holder in data.get("holders") or [data])
            limit = data.get("limit")
            kind: LockKind = "limit" if limit is not None else "shared" if data.get("mode") == "shared" else "exclusive"
            return cls(
                full_key=key,
                is_held=True,
                waiters=waiters,
                kind=kind,
                limit=limit,
                available=data.get("available"),
                holders=holders,
                holder_count=int(data.get("holder_count", len(holders))),
            )


@dataclass(frozen=True)
class Waiter:
    """A claim that waits for a lock."""

    #: Its position in the queue; 1 is next.
    position: int
    #: The owner token, or a hash of it.
    owner: str
    #: Since when it waits and when it gives up, by the server's clock.
    since: datetime
    until: datetime
    #: The caller that asked, where the server knows its callers.
    caller: str | None = None
    #: The note that its owner has given.
    note: str | None = None


def read_waiters(data: object) -> list[Waiter]:
    with _reading("the waiters of a lock"):
        return [
            Waiter(
                position=int(waiter["position"]),
                owner=_text(waiter["owner"]),
                since=_time(waiter["since"]),
                until=_time(waiter["until"]),
                caller=waiter.get("caller"),
                note=waiter.get("note"),
            )
            for waiter in map(_object, _object(data)["waiters"])
        ]


@dataclass(frozen=True)
class Page:
    """A page of the list of held locks."""

    locks: tuple[LockInfo, ...]
    #: Where the next page starts; ``None`` on the last one.
    cursor: str | None

    @classmethod
    def read(cls, data: object) -> Page:
        with _reading("a page of locks"):
            data = _object(data)
            return cls(tuple(LockInfo.read(lock) for lock in data["locks"]), data.get("cursor"))


@dataclass(frozen=True)
class Extended:
    """A lease that was extended."""

    #: When it ends now, by the server's clock.
    expires_at: datetime
    #: Its fencing token, which is the same as before.
    fence: str | None

    @classmethod
    def read(cls, data: object) -> Extended:
        with _reading("an extended lease"):
            data = _object(data)
            if data.get("extended") is False:
                raise ValueError("it says that it is not extended")
            fence = data.get("fence")
            return cls(_time(data["expires_at"]), _fence(fence) if fence is not None else None)


class _reading:
    """Turns what is wrong with an answer into a `NotUnderstoodError`."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, why: BaseException | None, traceback: object) -> None:
        if isinstance(why, KeyError):
            raise NotUnderstoodError(f"the answer is not {self._what}: it has no {why}") from why
        if isinstance(why, (TypeError, ValueError, AttributeError)):
            raise NotUnderstoodError(f"the answer is not {self._what}: {why}") from why


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("it is not an object")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r} is not a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(map(_text, value))


def _fence(value: object) -> str:
    """A fence is text, also where it looks like a number: it has to sort as the server has padded it."""
    text = _text(value)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a fence")
    return text


def _milliseconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ValueError(f"{value!r} is not a number of milliseconds")
    return value / 1000


def _time(value: object) -> datetime:
    """`datetime.fromisoformat` reads `Z`, and other than 3 or 6 decimals, only since Python 3.11."""
    parts = re.fullmatch(r"([0-9-]+T[0-9:]+)(?:\.([0-9]+))?(Z|[+-][0-9:]+)", _text(value))
    if parts is None:
        raise ValueError(f"{value!r} is not a timestamp")
    moment, fraction, zone = parts.groups()
    return datetime.fromisoformat(f"{moment}.{(fraction or '')[:6]:0<6}{'+00:00' if zone == 'Z' else zone}")
