"""What both flavours show of a lease."""

from __future__ import annotations

from datetime import datetime

from .lease import Keeping


class LeaseView:
    """What is known about a lease, without asking the server."""

    def __init__(self, keeping: Keeping) -> None:
        self._tenure = keeping.tenure
        self._held = keeping.held

    @property
    def key(self) -> str:
        """The key; the first, for a lock on several."""
        return self._held.keys[0]

    @property
    def full_key(self) -> str:
        """The full key, ``lock:…``; the first, for a lock on several."""
        return self._held.full_key

    @property
    def full_keys(self) -> tuple[str, ...]:
        """The full keys, in the order in which they were requested."""
        return self._held.full_keys

    @property
    def owner(self) -> str:
        """The owner token, which releases and extends it."""
        return self._held.owner

    @property
    def fence(self) -> str:
        """The fencing token: digits, padded so that it sorts as text. Renewals do not change it."""
        return self._held.fence

    @property
    def expires_at(self) -> datetime:
        """When it ends by the server's clock, as of the last renewal."""
        return self._tenure.term.expires_at

    @property
    def remaining(self) -> float:
        """For how many seconds it is certainly held, unless it is renewed before."""
        return self._tenure.remaining()

    @property
    def is_held(self) -> bool:
        """Whether it is held."""
        return self._tenure.is_held()

    @property
    def is_lost(self) -> bool:
        """Whether it was lost before it was released."""
        return self._tenure.loss() is not None

    def check(self) -> None:
        """Raises :class:`~forrst.LostError` if the lease is lost."""
        self._tenure.check()

    def __repr__(self) -> str:
        state = "held" if self.is_held else "lost" if self.is_lost else "released"
        return f"<{type(self).__name__} {self.full_key!r} fence={self.fence} {state}>"
