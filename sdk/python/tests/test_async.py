"""What only the flavour for asyncio does: bodies are cancelled, and so are acquisitions and calls."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable

import pytest

import forrst

from .servers import PATIENCE, Server, eventually

# Which of two cancellations came first is only known since Python 3.11.
counts_cancellations = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Task.uncancel")


def play(server: Server, scenario: Callable[[forrst.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with forrst.AsyncClient(server.url, watch=True) as client:
            await asyncio.wait_for(scenario(client), 3 * PATIENCE)
        leftover = asyncio.all_tasks() - {asyncio.current_task()}
        assert not leftover

    asyncio.run(run())


def test_the_body_is_cancelled_when_the_lease_is_lost(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        with pytest.raises(forrst.LostError, match="released by force") as lost:
            async with client.lock(key, ttl=3600) as lease:
                await client.locks.force_release(lease.full_key)
                await asyncio.sleep(PATIENCE)
                raise AssertionError("the body was not cancelled")
        assert isinstance(lost.value.__cause__, asyncio.CancelledError)
        # The cancellation is over.
        await asyncio.sleep(0)

    play(server, scenario)


def test_children_of_the_body_are_cancelled(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        child: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with pytest.raises(forrst.LostError):
            async with client.lock(key, ttl=3600) as lease:
                await asyncio.gather(child, client.locks.force_release(lease.full_key))
        assert child.cancelled()

    play(server, scenario)


def test_a_body_that_suppresses_its_cancellation_still_ends_with_the_loss(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        with pytest.raises(forrst.LostError):
            async with client.lock(key, ttl=3600) as lease:
                try:
                    await client.locks.force_release(lease.full_key)
                    await asyncio.sleep(PATIENCE)
                except asyncio.CancelledError:
                    pass
        await asyncio.sleep(0)

    play(server, scenario)


def test_a_body_that_ends_before_its_cancellation_arrives_leaves_none_behind(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        with pytest.raises(forrst.LostError):
            async with client.lock(key, ttl=3600) as lease:
                lease._keeper.keeping.tenure.lose("as the test wants it")
                # The cancellation is requested, and the body ends without another `await`.
                lease._keeper._notice_loss()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    play(server, scenario)


def test_the_error_of_the_body_wins(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        with pytest.raises(ZeroDivisionError):
            async with client.lock(key):
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with client.lock(key, ttl=3600) as lease:
                try:
                    await client.locks.force_release(lease.full_key)
                    await asyncio.sleep(PATIENCE)
                finally:
                    raise ZeroDivisionError
        assert not (await client.locks.status(f"lock:{key}")).is_held

    play(server, scenario)


@counts_cancellations
def test_a_cancellation_from_outside_is_not_taken_for_the_loss(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        entered = asyncio.Event()

        async def work() -> None:
            async with client.lock(key, ttl=3600):
                entered.set()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not (await client.locks.status(f"lock:{key}")).is_held

        async def both() -> None:
            async with client.lock(key, ttl=3600) as lease:
                lease._keeper.keeping.tenure.lose("as the test wants it")
                this = asyncio.current_task()
                assert this is not None
                this.cancel()
                lease._keeper._notice_loss()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(both())
        with pytest.raises(asyncio.CancelledError):
            await task

    play(server, scenario)


def test_a_task_that_is_cancelled_while_it_waits_leaves_the_queue(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        async with client.lock(key) as lease:
            waiting = asyncio.create_task(client.lock(key, wait=3600 / 12).acquire())
            await eventually(lambda: client.locks.waiters(lease.full_key))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await client.settle(PATIENCE)
            assert await client.locks.waiters(lease.full_key) == []

    play(server, scenario)


def test_a_grant_that_nobody_waits_for_is_withdrawn(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        # Cancelled at every moment of an acquisition, it never leaves the lock held.
        for rounds in range(30):
            acquiring = asyncio.create_task(client.lock(key, ttl=3600).acquire())
            for _ in range(rounds):
                await asyncio.sleep(0)
            acquiring.cancel()
            await asyncio.wait({acquiring})
            if not acquiring.cancelled():
                await acquiring.result().release()
            assert await client.settle(PATIENCE)
            assert not (await client.locks.status(f"lock:{key}")).is_held

    play(server, scenario)


def test_a_call_whose_task_is_cancelled_is_cancelled_on_the_server(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        cancellation = forrst.Cancellation()
        call = asyncio.create_task(client.call("demo.sleep", {"ms": 60_000}, lock=key, cancellation=cancellation))
        full_key = f"lock:demo.sleep:{key}"

        async def is_held() -> bool:
            return (await client.locks.status(full_key)).is_held

        async def is_free() -> bool:
            return not await is_held()

        await eventually(is_held)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(is_free)

    play(server, scenario)


def test_a_lease_that_is_dropped_is_released(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        lease = await client.lock(key, ttl=3600).acquire()
        del lease
        gc.collect()

        async def is_free() -> bool:
            return not (await client.locks.status(f"lock:{key}")).is_held

        await eventually(is_free)

    play(server, scenario)


def test_tasks_can_share_a_lock_object(server: Server, key: str) -> None:
    async def scenario(client: forrst.AsyncClient) -> None:
        lock = client.lock(key, limit=5, wait=PATIENCE)
        fences = set()

        async def work() -> None:
            async with lock as lease:
                fences.add(lease.fence)
                async with lock as inner:
                    fences.add(inner.fence)
                    lease.check()
                inner.check()
                assert not inner.is_held and lease.is_held

        # Two at a time, because each needs two of the five permits.
        for _ in range(3):
            await asyncio.gather(work(), work())
        assert len(fences) == 12

    play(server, scenario)


def test_closing_the_client_releases_what_is_held(server: Server, key: str) -> None:
    async def run() -> None:
        async with forrst.AsyncClient(server.url) as client:
            lease = await client.lock(key, ttl=3600).acquire()
        assert not lease.is_held
        async with forrst.AsyncClient(server.url) as client:
            assert not (await client.locks.status(lease.full_key)).is_held

    asyncio.run(run())


# The connections of the first event loop are closed by their finalizers.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_can_be_used_in_one_event_loop_after_another(server: Server, key: str) -> None:
    client = forrst.AsyncClient(server.url)

    async def work() -> None:
        async with client.lock(key):
            await client.ping()

    asyncio.run(work())
    asyncio.run(work())
    asyncio.run(client.aclose())
    gc.collect()
