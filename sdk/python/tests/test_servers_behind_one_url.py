"""Several servers that share a Redis, behind one URL that leads each connection to another one."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

import forrst

from .in_threads import client
from .servers import PATIENCE, Redis, Server, eventually


class Balancer:
    """Leads each connection to the next server."""

    def __init__(self, *servers: Server) -> None:
        self._next = itertools.cycle(servers)
        self._serving: set[asyncio.Task[None] | None] = set()

    async def __aenter__(self) -> str:
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *error: object) -> None:
        self._listener.close()
        serving = [task for task in self._serving if task is not None]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving.add(task)
        host, port = next(self._next).url.removeprefix("http://").split(":")
        try:
            back, forth = await asyncio.open_connection(host, int(port))
            try:
                await asyncio.gather(self._copy(reader, forth), self._copy(back, writer))
            finally:
                forth.transport.abort()
        except OSError:
            pass  # This server is away.
        finally:
            writer.transport.abort()
            self._serving.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_locks_are_the_same_on_all_servers(flavour: str, redis: Redis, key: str) -> None:
    async def scenario(client: Any, first: Server) -> None:
        fences: list[str] = []

        async def work() -> None:
            for _ in range(5):
                async with client.lock(key, wait=PATIENCE) as lease:
                    fences.append(lease.fence)

        await asyncio.gather(*(work() for _ in range(6)))
        assert len(fences) == 30 and fences == sorted(set(fences))
        lease = await client.lock(key, ttl=3600, watch=True).acquire()
        waiting = asyncio.create_task(client.lock(key, wait=2 * PATIENCE).acquire())
        await eventually(lambda: client.locks.waiters(lease.full_key))
        # One of the two servers is away for the rest.
        first.kill()
        await client.locks.force_release(lease.full_key, fence=lease.fence)
        assert await asyncio.wait_for(lease.wait_lost(), PATIENCE)
        later = await waiting
        assert later.fence > lease.fence
        await later.release()

    async def run() -> None:
        with Server(redis.store) as first, Server(redis.store) as second:
            async with Balancer(first, second) as url:
                async with client(flavour, url, retry=forrst.Retry(attempts=20)) as one:
                    await asyncio.wait_for(scenario(one, first), 4 * PATIENCE)

    asyncio.run(run())
