"""Both flavours against real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import forrst

from .in_threads import client
from .servers import FORRST, PATIENCE, Redis, Server, eventually, spawn

pytestmark = pytest.mark.parametrize("flavour", ["sync", "async"])

Scenario = Callable[[Any], Awaitable[None]]


@pytest.fixture(scope="module", params=["memory", "embedded", "redis"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on each store."""
    if request.param == "redis":
        redis: Redis = request.getfixturevalue("redis")
        store = redis.store
    else:
        store = "memory:" if request.param == "memory" else f"embedded:{tmp_path_factory.mktemp('data')}"
    with Server(store) as server:
        yield server.url


def play(flavour: str, url: str, scenario: Scenario, **options: Any) -> None:
    async def run() -> None:
        async with client(flavour, url, **options) as one:
            await asyncio.wait_for(scenario(one), 3 * PATIENCE)

    asyncio.run(run())


def test_a_lock_is_held_until_it_is_released(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        async with client.lock(key, ttl=30, note="nightly export") as lease:
            assert lease.is_held and not lease.is_lost and 0 < lease.remaining < 30
            assert (lease.key, lease.full_key) == (key, f"lock:{key}")
            status = await client.locks.status(lease.full_key)
            assert status.is_held and status.kind == "exclusive" and status.holder_count == 1
            assert (status.holder.fence, status.holder.owner) == (lease.fence, lease.owner)
            assert status.holder.note == "nightly export" and status.holder.expires_at == lease.expires_at
            with pytest.raises(forrst.ContendedError) as contended:
                await client.lock(key).acquire()
            assert contended.value.code == "LOCK_ACQUISITION_FAILED" and not contended.value.may_have_run
            assert contended.value.details["blocked_by"] == [lease.full_key]
            with pytest.raises(forrst.TimedOutError):
                await client.lock(key, wait=0.05).acquire()
        assert not lease.is_held and not lease.is_lost
        lease.check()
        await lease.release()
        assert not (await client.locks.status(lease.full_key)).is_held
        async with client.lock(key) as later:
            assert later.fence > lease.fence and int(later.fence) > int(lease.fence)

    play(flavour, url, scenario)


def test_waiters_are_granted_in_turn_with_growing_fences(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        fences: list[str] = []
        inside = 0

        async def work() -> None:
            nonlocal inside
            async with client.lock(key, wait=PATIENCE) as lease:
                inside += 1
                assert inside == 1
                fences.append(lease.fence)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(10)))
        assert len(fences) == 10 and fences == sorted(set(fences))

    play(flavour, url, scenario)


def test_kinds_of_locks(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        async with client.lock(key, shared=True), client.lock(key, shared=True):
            status = await client.locks.status(f"lock:{key}")
            assert (status.kind, status.holder_count, len(status.holders)) == ("shared", 2, 2)
            with pytest.raises(forrst.ContendedError):
                await client.lock(key).acquire()
        async with client.lock(key, limit=2), client.lock(key, limit=2):
            status = await client.locks.status(f"lock:{key}")
            assert (status.kind, status.limit, status.available) == ("limit", 2, 0)
            with pytest.raises(forrst.ContendedError):
                await client.lock(key, limit=2).acquire()
        several = [f"{key}{{1}}", forrst.Key(f"{key}{{2}}", shared=True)]
        async with client.lock(several) as lease:
            assert lease.full_keys == (f"lock:{key}{{1}}", f"lock:{key}{{2}}")
            status = await client.locks.status(lease.full_keys[1])
            assert status.kind == "shared" and status.holder.full_keys == lease.full_keys
        async with client.lock(key, function="payments.charge") as lease:
            assert lease.full_key == f"lock:payments.charge:{key}"

    play(flavour, url, scenario)


def test_operations_on_locks(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        held = await client.lock(key, ttl=30, owner="me").hold()
        assert held.owner == "me" and held.ttl_remaining == pytest.approx(30, abs=29)
        waiting = asyncio.create_task(client.lock(key, wait=PATIENCE, note="second").acquire())
        await eventually(lambda: client.locks.waiters(held.full_key))
        (waiter,) = await client.locks.waiters(held.full_key)
        assert waiter.position == 1 and waiter.until > waiter.since
        page = await client.locks.list(f"lock:{key}", limit=5)
        assert [lock.full_key for lock in page.locks] == [held.full_key] and page.cursor is None
        extended = await client.locks.extend(held.full_key, "me", 60, fence=held.fence)
        assert extended.fence == held.fence and extended.expires_at > held.expires_at
        with pytest.raises(forrst.MismatchError):
            await client.locks.release(held.full_key, "another")
        await client.locks.release(held.full_key, "me", fence=held.fence)
        lease = await waiting
        with pytest.raises(forrst.AlreadyReleasedError):
            await client.locks.release(held.full_key, "me", fence=held.fence)
        assert await client.locks.force_release(held.full_key, fence=lease.fence) == 1
        with pytest.raises(forrst.NotHeldError):
            await client.locks.force_release(held.full_key)
        with pytest.raises(forrst.LostError):
            await lease.release()
        with pytest.raises(forrst.LostError):
            await lease.release()
        assert await client.locks.withdraw(held.full_key, "me", "never") == "unknown"

    play(flavour, url, scenario)


def test_an_attempt_gets_the_same_lease_again(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        first = await client.lock(key, owner="job", attempt="run-7").hold()
        async with client.lock(key, owner="job", attempt="run-7") as again:
            assert again.fence == first.fence

    play(flavour, url, scenario)


def test_keep_leaves_the_lock_held(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        lease = await client.lock(key).acquire()
        held = lease.keep()
        assert not lease.is_held and not lease.is_lost
        await lease.release()
        assert (await client.locks.status(held.full_key)).holder.fence == held.fence
        await client.locks.release(held.full_key, held.owner, fence=held.fence)

    play(flavour, url, scenario)


def test_functions_run_under_locks(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        assert await client.call("demo.echo", {"a": [1, None, "ü"]}) == {"a": [1, None, "ü"]}
        lock = forrst.Lock(key, ttl=30, wait=5, keep=True, note="kept")
        response = await client.call_response(forrst.Call("demo.echo", {"a": 1}, lock=lock))
        held = forrst.Held.from_response(response)
        assert response.result == {"a": 1} and response.node and held is not None
        assert held.full_key == f"lock:demo.echo:{key}"
        with pytest.raises(forrst.ContendedError) as contended:
            await client.call("demo.echo", lock=key)
        assert not contended.value.may_have_run
        await client.locks.release(held.full_key, held.owner, fence=held.fence)
        with pytest.raises(forrst.FunctionError) as failed:
            await client.call("demo.fail", {"code": "CARD_DECLINED", "message": "no"}, lock=key)
        assert (failed.value.code, failed.value.may_have_run) == ("CARD_DECLINED", True)
        with pytest.raises(forrst.RejectedError) as rejected:
            await client.call("payments.charge", {"user_id": "u", "amount": "much"})
        assert rejected.value.pointer == "/call/arguments/amount"
        with pytest.raises(forrst.RejectedError):
            await client.call("no.such")
        with pytest.raises(forrst.DeadlineExceededError):
            await client.call("demo.sleep", {"ms": 60_000}, deadline=0.2)

    play(flavour, url, scenario)


def test_a_call_is_cancelled(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        cancellation = forrst.Cancellation()
        options = {"lock": key, "cancellation": cancellation}
        call = asyncio.create_task(client.call("demo.sleep", {"ms": 60_000}, **options))

        async def is_running() -> bool:
            return bool((await client.locks.status(f"lock:demo.sleep:{key}")).is_held)

        await eventually(is_running)
        await client.cancel(cancellation)
        with pytest.raises(forrst.CallCancelledError) as cancelled:
            await call
        assert cancelled.value.may_have_run
        with pytest.raises(forrst.CallCancelledError) as unsent:
            await client.call("demo.echo", {}, cancellation=cancellation)
        assert not unsent.value.may_have_run

    play(flavour, url, scenario)


def test_a_forced_release_is_noticed_at_once_by_a_lease_that_is_watched(flavour: str, url: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        # A renewal would find out after a third of the ttl.
        async with client.lock(key, ttl=3600):
            pass
        lease = await client.lock(key, ttl=3600, watch=True).acquire()
        await client.locks.force_release(lease.full_key, fence=lease.fence)
        assert await asyncio.wait_for(lease.wait_lost(), PATIENCE)
        assert not lease.is_held and lease.remaining == 0
        with pytest.raises(forrst.LostError):
            lease.check()

    play(flavour, url, scenario)


def test_a_lease_is_renewed_before_it_ends(flavour: str, server: Server, key: str) -> None:
    async def scenario(client: Any) -> None:
        async with client.lock(key, ttl=4) as lease:
            first = lease.expires_at

            async def is_renewed() -> bool:
                return bool((lease.expires_at - first).total_seconds() > 0)

            await eventually(is_renewed)
            lease.check()

    play(flavour, server.url, scenario)


def test_a_wait_that_is_longer_than_the_server_allows_is_several_requests(flavour: str, key: str) -> None:
    async def scenario(client: Any) -> None:
        first = await client.lock(key).acquire()
        waiting = asyncio.create_task(client.lock(key, wait=PATIENCE).acquire())
        await eventually(lambda: client.locks.waiters(first.full_key))
        await first.release()
        await (await waiting).release()
        held = await client.lock(key).hold()
        with pytest.raises(forrst.TimedOutError):
            await client.lock(key, wait=0.5).acquire()
        with pytest.raises(forrst.TimedOutError):
            await client.call("demo.echo", {}, lock=forrst.Lock(key, wait=0.5, is_global=True))
        await client.locks.release(held.full_key, held.owner)

    with Server("memory:", "--max-block", "200ms") as server:
        play(flavour, server.url, scenario)


def test_a_waiter_and_a_holder_survive_a_restart(flavour: str, durable: Server, key: str) -> None:
    async def scenario(client: Any) -> None:
        async with client.lock(key, ttl=30) as lease:
            waiting = asyncio.create_task(client.lock(key, wait=2 * PATIENCE).acquire())
            await eventually(lambda: client.locks.waiters(lease.full_key))
            durable.kill()
            durable.start()
            await eventually(lambda: client.locks.waiters(lease.full_key))
            durable.stop()
            durable.start()
            await eventually(lambda: client.locks.waiters(lease.full_key))
            assert lease.is_held and not waiting.done()
        later = await waiting
        assert later.fence > lease.fence
        await later.release()

    play(flavour, durable.url, scenario)


def test_an_unreachable_server_is_an_error_of_its_own(flavour: str) -> None:
    async def scenario(client: Any) -> None:
        with pytest.raises(forrst.UnreachableError) as unreachable:
            await client.ping()
        assert not unreachable.value.may_have_run

    # Nothing listens on port 1, and the others are not names of hosts.
    for url in ("http://127.0.0.1:1", "http://no-such-host.invalid", f"http://{'x' * 64}.invalid"):
        play(flavour, url, scenario, retry=forrst.Retry.never())


def test_tls_and_api_keys(flavour: str, tmp_path: Path, key: str) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for part in certificate.cert_chain_pems:
        part.write_to_path(str(tmp_path / "cert.pem"), append=True)
    api_key, entry = new_key()
    (tmp_path / "keys.toml").write_text(entry)
    tls = ("--tls-cert", f"{tmp_path}/cert.pem", "--tls-key", f"{tmp_path}/key.pem")
    ca_file = tmp_path / "ca.pem"

    async def works(client: Any) -> None:
        async with client.lock(key) as lease:
            assert (await client.locks.status(lease.full_key)).holder.caller

    async def is_refused(client: Any) -> None:
        with pytest.raises(forrst.UnauthorizedError):
            await client.lock(key).acquire()

    async def is_not_trusted(client: Any) -> None:
        with pytest.raises(forrst.UnreachableError, match=r"(?i)certificate"):
            await client.ping()

    with Server("memory:", *tls, "--auth-file", f"{tmp_path}/keys.toml") as server:
        play(flavour, server.url, works, ca_file=ca_file, api_key=api_key)
        play(flavour, server.url.replace("127.0.0.1", "localhost"), works, ca_file=ca_file, api_key=api_key)
        play(flavour, server.url, is_refused, ca_file=ca_file, api_key="forrst_wrong")
        play(flavour, server.url, is_refused, ca_file=ca_file)
        play(flavour, server.url, is_not_trusted, api_key=api_key, retry=forrst.Retry.never())


def test_client_certificates(flavour: str, tmp_path: Path, key: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("127.0.0.1", "ops"):
        certificate = authority.issue_cert(name, common_name=name)
        certificate.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        certificate.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
    ca_file = tmp_path / "ca.pem"
    tls = ("--tls-cert", f"{tmp_path}/127.0.0.1.pem", "--tls-key", f"{tmp_path}/127.0.0.1.key")

    async def works(client: Any) -> None:
        async with client.lock(key) as lease:
            assert lease.is_held

    async def fails(client: Any) -> None:
        with pytest.raises((forrst.UnreachableError, forrst.LostAnswerError)):
            await client.ping()

    with Server("memory:", *tls, "--tls-client-ca", str(ca_file)) as server:
        pair = (tmp_path / "ops.pem", tmp_path / "ops.key")
        play(flavour, server.url, works, ca_file=ca_file, client_certificate=pair)
        play(flavour, server.url, fails, ca_file=ca_file, retry=forrst.Retry.never())


def new_key() -> tuple[str, str]:
    """An API key of an admin, and its entry in the file of keys."""
    command = [FORRST, "key", "new", "--json", "--name", "ops"]
    for role in ("call", "observe", "admin"):
        command += ["--role", role]
    with spawn(*command) as making:
        made = json.loads(making.communicate()[0])
    return made["key"], made["toml"]
