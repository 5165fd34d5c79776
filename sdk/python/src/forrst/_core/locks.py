"""Operations on locks by their full keys."""

from __future__ import annotations

from typing import Any

from ..errors import AlreadyReleasedError, InvalidRequestError, NotUnderstoodError
from .core import Core, without_none
from .durations import Seconds, seconds, to_wire
from .info import Extended, LockInfo, Page, Waiter, read_waiters
from .retry import Tries
from .steps import Steps

_ATOMIC_LOCK = "urn:cline:forrst:ext:atomic-lock:fn:"
ACQUIRE = _ATOMIC_LOCK + "acquire"
EXTEND = _ATOMIC_LOCK + "extend"
RELEASE = _ATOMIC_LOCK + "release"
FORCE_RELEASE = _ATOMIC_LOCK + "force-release"
WITHDRAW = _ATOMIC_LOCK + "withdraw"
WATCH = _ATOMIC_LOCK + "watch"
WAITERS = _ATOMIC_LOCK + "waiters"
STATUS = _ATOMIC_LOCK + "status"
LIST = _ATOMIC_LOCK + "list"


def status(core: Core, full_key: str) -> Steps[LockInfo]:
    return LockInfo.read((yield from core.ask(STATUS, {"key": full_key})))


def waiters(core: Core, full_key: str, limit: int | None) -> Steps[list[Waiter]]:
    return read_waiters((yield from core.ask(WAITERS, without_none(key=full_key, limit=limit))))


def page(core: Core, prefix: str, limit: int | None, cursor: str | None) -> Steps[Page]:
    return Page.read((yield from core.ask(LIST, without_none(prefix=prefix, limit=limit, cursor=cursor))))


def extend(core: Core, full_key: str, owner: str, ttl: Seconds, fence: str | None) -> Steps[Extended]:
    arguments = lease(full_key, owner, fence, ttl=to_wire(seconds("ttl", ttl)))
    return Extended.read((yield from core.ask(EXTEND, arguments)))


def release(core: Core, full_key: str, owner: str, fence: str | None) -> Steps[None]:
    tries = Tries(core, repeat=True)
    try:
        yield from core.ask(RELEASE, lease(full_key, owner, fence), tries)
    except AlreadyReleasedError:
        # An earlier try did it.
        if not tries.has_lost_answer:
            raise


def force_release(core: Core, full_key: str, fence: str | None) -> Steps[int]:
    # Without a fence, a repeat could end the lease of the next holder.
    tries = Tries(core, repeat=fence is not None)
    result = yield from core.ask(FORCE_RELEASE, without_none(key=full_key, fence=fence), tries)
    # A server with only the bare extension has one lease on a key, and does not count.
    count = result.get("leases", 1) if isinstance(result, dict) else None
    if not isinstance(count, int):
        raise NotUnderstoodError("the answer does not say how many leases were released")
    return count


def withdraw(core: Core, full_key: str, owner: str, attempt: str, tries: Tries | None = None) -> Steps[str]:
    result = yield from core.ask(WITHDRAW, {"key": full_key, "owner": owner, "attempt": attempt}, tries)
    was = result.get("was") if isinstance(result, dict) else None
    if not isinstance(was, str):
        raise NotUnderstoodError("the answer does not say what the withdrawn attempt had")
    return was


def watch_arguments(full_key: str, owner: str | None, since: str | None, wait: float) -> dict[str, Any]:
    return without_none(key=full_key, owner=owner, since=since, wait=to_wire(wait))


def lease(full_key: str, owner: str, fence: str | None, **more: Any) -> dict[str, Any]:
    """The arguments that name one lease."""
    if not isinstance(full_key, str) or not isinstance(owner, str):
        raise InvalidRequestError("a full key and an owner are texts")
    return without_none(key=full_key, owner=owner, fence=fence, **more)
