"""What both flavours of the client have in common: its settings, and how a lock is requested."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from .acquire import LockRequest
from .core import Core
from .durations import Seconds
from .keys import Keys
from .retry import Retry
from .settings import FilePath, Settings
from .steps import Steps

AcquireT = TypeVar("AcquireT")


class BaseClient(ABC, Generic[AcquireT]):
    """A client of a Forrst server."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        ca_file: FilePath | None = None,
        client_certificate: tuple[FilePath, FilePath] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        retry: Retry | None = None,
        connect_timeout: Seconds = 5.0,
        timeout: Seconds = 60.0,
        watch: bool = False,
    ) -> None:
        """Opens no connection yet.

        :param url: ``http://host:7420`` or ``https://…``.
        :param api_key: Sent as ``Authorization: Bearer …``, and shown nowhere.
        :param ca_file: Trust only the CA certificates in this PEM file; by default, those of the system.
        :param client_certificate: The PEM files of a client certificate and of its key.
        :param ssl_context: Instead of these two.
        :param retry: How requests are retried, unless a request has a :class:`Retry` of its own.
        :param connect_timeout: How long connecting may take.
        :param timeout: How long an answer may take, in addition to the time that the request waits for a lock.
        :param watch: Notice a forced release at once, by a second connection for each lease.
        """
        self._settings = Settings.of(
            url,
            api_key=api_key,
            ca_file=ca_file,
            client_certificate=client_certificate,
            ssl_context=ssl_context,
            retry=retry,
            connect_timeout=connect_timeout,
            timeout=timeout,
            watch=watch,
        )
        self._core = Core(self._settings.retry, self._settings.timeout, self._in_background)
        self._set_up(self._settings)

    def lock(
        self,
        keys: Keys,
        *,
        ttl: Seconds = 30.0,
        wait: Seconds | None = None,
        shared: bool = False,
        limit: int | None = None,
        owner: str | None = None,
        note: str | None = None,
        function: str | None = None,
        attempt: str | None = None,
        deadline: Seconds | None = None,
        retry: Retry | None = None,
        watch: bool | None = None,
    ) -> AcquireT:
        """Takes a lock for work that runs here: ``with client.lock("orders", ttl=30, wait=5) as lease: …``

        With ``AsyncClient``, it is ``async with``, whose body is cancelled when the lease is lost.

        :param keys: The key, or 2 to 16 of them: all of them are locked or none.
        :param ttl: How long the lease lasts after each renewal, in seconds.
        :param wait: How long to wait in the queue when another client holds it. By default, it does not wait.
        :param shared: Hold it together with other shared leases, but never beside an exclusive one.
        :param limit: Let at most this many leases hold it at once.
        :param owner: The token that the lock is released with; random by default.
        :param note: Who or what holds the lock, for people who inspect it. Not secret.
        :param function: Take the lock that callers of this function share, instead of the global one.
        :param attempt: Names this acquisition, so that it can be repeated after a crash. Random by default.
        :param deadline: How long the acquisition may take, retries included.
        :param watch: Notice a forced release at once.
        """
        request = LockRequest(
            keys=keys,
            ttl=ttl,
            wait=wait,
            shared=shared,
            limit=limit,
            owner=owner,
            note=note,
            function=function,
            attempt=attempt,
            deadline=deadline,
            retry=retry,
            watch=self._settings.watch if watch is None else watch,
        )
        return self._acquire(request)

    @abstractmethod
    def _set_up(self, settings: Settings) -> None:
        """The part of the constructor that depends on the flavour."""

    @abstractmethod
    def _acquire(self, request: LockRequest) -> AcquireT: ...

    @abstractmethod
    def _in_background(self, steps: Steps[None]) -> None:
        """Carries out steps that nobody waits for."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.url!r})"
