"""The blocking client with the methods of the other one, so that one scenario tests both."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import forrst

# That of asyncio has so few threads that waiters could take all of them, and the holder none.
_threads = ThreadPoolExecutor(64)


async def in_thread(function: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(_threads, function)


class InThreads:
    """Calls every method in a thread, and wraps locks and leases likewise."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if name == "locks":
            return InThreads(found)
        if name == "lock":
            return lambda *arguments, **options: InThreads(found(*arguments, **options))
        if not callable(found) or name in ("check", "keep"):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            result = await in_thread(functools.partial(found, *arguments, **options))
            return InThreads(result) if isinstance(result, forrst.Lease) else result

        return call

    async def aclose(self) -> None:
        await in_thread(self._wrapped.close)

    async def __aenter__(self) -> Any:
        if isinstance(self._wrapped, forrst.Client):
            return self
        self._lease = InThreads(await in_thread(self._wrapped.acquire))
        return self._lease

    async def __aexit__(self, *error: object) -> None:
        if isinstance(self._wrapped, forrst.Client):
            await self.aclose()
        else:
            await self._lease.release()


def client(flavour: str, url: str, **options: Any) -> Any:
    """A client of this flavour, with the methods of `AsyncClient`."""
    return InThreads(forrst.Client(url, **options)) if flavour == "sync" else forrst.AsyncClient(url, **options)
