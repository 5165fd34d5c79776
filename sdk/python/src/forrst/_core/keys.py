"""The keys that a lock is requested for, and the kind of lock on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import InvalidRequestError


@dataclass(frozen=True)
class Key:
    """One key of a lock on several, which may have a kind of its own.

    ``client.lock([Key("account:1"), Key("config", shared=True)])``
    """

    key: str
    #: Held together with other shared leases.
    shared: bool = False
    #: Held by at most this many leases at once.
    limit: int | None = None
    #: Held by this lease alone, whatever the kind of the other keys.
    exclusive: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key:
            raise InvalidRequestError(f"a key must be a text that is not empty, not {self.key!r}")
        if self.shared + self.exclusive + (self.limit is not None) > 1:
            raise InvalidRequestError("a key is one of `shared`, `exclusive` and `limit`")

    def to_wire(self) -> str | dict[str, Any]:
        kind = kind_to_wire(self.shared, self.limit, self.exclusive)
        return {"key": self.key, **kind} if kind else self.key


Keys: TypeAlias = str | Key | Sequence[str | Key]
"""One key, or 2 to 16 keys: all of them are locked or none, and no order of them can deadlock."""


def kind_to_wire(shared: bool, limit: int | None, exclusive: bool = False) -> dict[str, Any]:
    """The members `mode` or `limit`, or neither."""
    if shared and limit is not None:
        raise InvalidRequestError("a lock cannot be `shared` and have a `limit`")
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise InvalidRequestError(f"`limit` must be a whole number, not {limit!r}")
        return {"limit": limit}
    return {"mode": "shared"} if shared else {"mode": "exclusive"} if exclusive else {}


def to_wire(keys: Keys, *, shared: bool, limit: int | None) -> dict[str, Any]:
    """The members `key` or `keys`, and `mode` or `limit`."""
    every = [keys] if isinstance(keys, (str, Key)) else list(keys)
    entries = [entry if isinstance(entry, Key) else Key(entry) for entry in every]
    kind = kind_to_wire(shared, limit)
    if not entries:
        raise InvalidRequestError("a lock needs a key")
    if len(entries) > 1:
        return {"keys": [entry.to_wire() for entry in entries], **kind}
    own = kind_to_wire(entries[0].shared, entries[0].limit, entries[0].exclusive)
    return {"key": entries[0].key, **(own or kind)}


def full_key(members: dict[str, Any], function: str | None) -> str:
    """The full key of the first key, as servers derive it."""
    first = members["key"] if "key" in members else members["keys"][0]
    key = first if isinstance(first, str) else first["key"]
    return f"lock:{function}:{key}" if function else f"lock:{key}"
