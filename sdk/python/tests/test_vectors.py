"""Both flavours do what the vectors for clients say (``conformance/client``)."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import forrst

from .servers import FORRST, spawn

#: Vectors mostly wait, so many are played at once.
_AT_ONCE = 24
_FLAVOURS = ("sync", "async")

_KINDS: dict[type[forrst.ForrstError], str] = {
    forrst.ContendedError: "contended",
    forrst.TimedOutError: "timed_out",
    forrst.LostError: "lost",
    forrst.MismatchError: "mismatch",
    forrst.NotHeldError: "not_held",
    forrst.AlreadyReleasedError: "already_released",
    forrst.DeadlineExceededError: "deadline",
    forrst.UnavailableError: "unavailable",
    forrst.RateLimitedError: "rate_limited",
    forrst.UnauthorizedError: "unauthorized",
    forrst.ForbiddenError: "forbidden",
    forrst.RejectedError: "rejected",
    forrst.FunctionError: "failed",
    forrst.UnreachableError: "unreachable",
    forrst.LostAnswerError: "lost_answer",
    forrst.NotUnderstoodError: "not_understood",
}


def vectors() -> list[str]:
    with spawn(FORRST, "conformance", "stub", "--list") as listing:
        names, _ = listing.communicate()
    assert listing.returncode == 0, "this program has no `conformance stub`"
    return names.split()


@functools.cache
def start() -> dict[tuple[str, str], Future[str]]:
    """What comes of each vector, by flavour and name; they are played concurrently, also with the other tests."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    return {(flavour, name): pool.submit(play, flavour, name) for name in vectors() for flavour in _FLAVOURS}


@pytest.mark.parametrize("flavour", _FLAVOURS)
@pytest.mark.parametrize("name", vectors())
def test_vector(flavour: str, name: str) -> None:
    wrong = start()[flavour, name].result()
    if wrong.startswith("skip: "):
        pytest.skip(wrong)
    assert not wrong, wrong


def play(flavour: str, name: str) -> str:
    """Plays one vector, and returns what was wrong."""
    with spawn(FORRST, "conformance", "stub", "--vector", name, stdin=subprocess.PIPE) as stub:
        assert stub.stdin is not None and stub.stdout is not None
        try:
            instructions = json.loads(stub.stdout.readline())
            settings = instructions["client"]
            options = {"api_key": settings.get("api_key")}
            if "timeout_ms" in settings:
                options["timeout"] = settings["timeout_ms"] / 1000

            def judged(outcome: object) -> str:
                assert stub.stdin is not None and stub.stdout is not None
                stub.stdin.write(json.dumps(outcome) + "\n")
                stub.stdin.flush()
                answers = stub.stdout.read()
                return "" if '{"verdict":"passed"}' in answers.replace(" ", "") else f"{json.dumps(outcome)}\n{answers}"

            if flavour == "sync" and "abandon" in instructions["needs"]:
                judged({"skip": "a thread cannot be interrupted"})
                return "skip: a thread cannot be interrupted (see test_sync for Ctrl+C)"
            if flavour == "sync":
                with forrst.Client(instructions["url"], **options) as client:
                    player = SyncPlayer(client)
                    return judged({"outcome": [player.run(*step) for action in instructions["do"] for step in action.items()]})
            return asyncio.run(play_async(instructions, options, judged))
        finally:
            stub.kill()


async def play_async(instructions: dict[str, Any], options: dict[str, Any], judged: Any) -> str:
    async with forrst.AsyncClient(instructions["url"], **options) as client:
        player = AsyncPlayer(client)
        outcome = [await player.run(*step) for action in instructions["do"] for step in action.items()]
        return str(await asyncio.to_thread(judged, {"outcome": outcome}))


class SyncPlayer:
    def __init__(self, client: forrst.Client) -> None:
        self.client = client
        self.lease: forrst.Lease | None = None

    def run(self, step: str, options: dict[str, Any]) -> dict[str, Any]:
        try:
            outcome: dict[str, Any] = getattr(self, step)(options)
            return outcome
        except forrst.ForrstError as error:
            return failed(error)

    def acquire(self, options: dict[str, Any]) -> dict[str, Any]:
        self.lease = self.client.lock(**lock_options(options)).acquire()
        return shown(self.lease)

    def hold(self, options: dict[str, Any]) -> dict[str, Any]:
        assert self.lease is not None
        start = time.monotonic()
        lost = self.lease.wait_lost(options["for_ms"] / 1000)
        return {"lost": lost, "after_ms": int((time.monotonic() - start) * 1000), "held": self.lease.is_held}

    def sleep(self, options: dict[str, Any]) -> dict[str, Any]:
        time.sleep(options["for_ms"] / 1000)
        return {"ok": True}

    def is_held(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"held": self.lease is not None and self.lease.is_held}

    def release(self, options: dict[str, Any]) -> dict[str, Any]:
        assert self.lease is not None
        self.lease.release()
        return {"ok": True}

    def drop(self, options: dict[str, Any]) -> dict[str, Any]:
        self.lease = None
        gc.collect()
        return {"ok": True}

    def settle(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"ok": self.client.settle(20)}

    def release_by(self, options: dict[str, Any]) -> dict[str, Any]:
        self.client.locks.release(options["key"], options["owner"], fence=options.get("fence"))
        return {"ok": True}

    def call(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "result": self.client.call(**call_options(options))}

    def with_lock(self, options: dict[str, Any]) -> dict[str, Any]:
        with body(options) as (seen, end):
            with self.client.lock(**lock_options(options)) as lease:
                seen.update(fence=lease.fence, body="cancelled")
                lease.wait_lost(options["body_ms"] / 1000)
                lease.check()
                end()
        return seen


class AsyncPlayer:
    def __init__(self, client: forrst.AsyncClient) -> None:
        self.client = client
        self.lease: forrst.AsyncLease | None = None

    async def run(self, step: str, options: dict[str, Any]) -> dict[str, Any]:
        try:
            outcome: dict[str, Any] = await getattr(self, step)(options)
            return outcome
        except forrst.ForrstError as error:
            return failed(error)

    async def acquire(self, options: dict[str, Any]) -> dict[str, Any]:
        self.lease = await self.client.lock(**lock_options(options)).acquire()
        return shown(self.lease)

    async def abandon(self, options: dict[str, Any]) -> dict[str, Any]:
        acquiring = asyncio.create_task(self.client.lock(**lock_options(options)).acquire())
        await asyncio.wait({acquiring}, timeout=options["after_ms"] / 1000)
        acquiring.cancel()
        await asyncio.wait({acquiring})
        return {"abandoned": acquiring.cancelled()}

    async def hold(self, options: dict[str, Any]) -> dict[str, Any]:
        assert self.lease is not None
        start = time.monotonic()
        try:
            lost = await asyncio.wait_for(self.lease.wait_lost(), options["for_ms"] / 1000)
        except asyncio.TimeoutError:
            lost = False
        return {"lost": lost, "after_ms": int((time.monotonic() - start) * 1000), "held": self.lease.is_held}

    async def sleep(self, options: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(options["for_ms"] / 1000)
        return {"ok": True}

    async def is_held(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"held": self.lease is not None and self.lease.is_held}

    async def release(self, options: dict[str, Any]) -> dict[str, Any]:
        assert self.lease is not None
        await self.lease.release()
        return {"ok": True}

    async def drop(self, options: dict[str, Any]) -> dict[str, Any]:
        self.lease = None
        gc.collect()
        return {"ok": True}

    async def settle(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"ok": await self.client.settle(20)}

    async def release_by(self, options: dict[str, Any]) -> dict[str, Any]:
        await self.client.locks.release(options["key"], options["owner"], fence=options.get("fence"))
        return {"ok": True}

    async def call(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "result": await self.client.call(**call_options(options))}

    async def with_lock(self, options: dict[str, Any]) -> dict[str, Any]:
        with body(options) as (seen, end):
            async with self.client.lock(**lock_options(options)) as lease:
                seen.update(fence=lease.fence, body="cancelled")
                await asyncio.sleep(options["body_ms"] / 1000)
                end()
        return seen


class BodyFails(Exception):
    pass


@contextmanager
def body(options: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """What is seen of a body under a lock, and a function to call at its end."""
    seen: dict[str, Any] = {"body": "not_run"}

    def end() -> None:
        seen["body"] = "failed" if options.get("body_fails") else "completed"
        if options.get("body_fails"):
            raise BodyFails

    try:
        yield seen, end
        seen["ok"] = True
    except BodyFails:
        seen.update(ok=False, error="body")
    except forrst.ForrstError as error:
        seen.update(failed(error))


def lock_options(options: dict[str, Any]) -> dict[str, Any]:
    keys = options["keys"] if "keys" in options else [options["key"]]
    times = {name: options[f"{name}_ms"] / 1000 for name in ("ttl", "wait", "deadline") if f"{name}_ms" in options}
    names = ("owner", "note", "function", "shared", "limit", "watch")
    same = {name: options[name] for name in names if name in options}
    return {"keys": [entry if isinstance(entry, str) else forrst.Key(**entry) for entry in keys], **times, **same}


def call_options(options: dict[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {name: options[name] for name in ("function", "arguments", "idempotent") if name in options}
    if "deadline_ms" in options:
        arguments["deadline"] = options["deadline_ms"] / 1000
    if "lock" in options:
        lock = options["lock"]
        more = {name: lock[name] for name in ("keep", "renew") if name in lock}
        arguments["lock"] = forrst.Lock(**lock_options(lock), is_global=lock.get("global", False), **more)
    return arguments


def shown(lease: forrst.Lease | forrst.AsyncLease) -> dict[str, Any]:
    remaining = int(lease.remaining * 1000)
    full_keys = list(lease.full_keys)
    return {"ok": True, "fence": lease.fence, "owner": lease.owner, "full_keys": full_keys, "remaining_ms": remaining}


def failed(error: forrst.ForrstError) -> dict[str, Any]:
    code = {} if error.code is None else {"code": error.code}
    return {"ok": False, "error": _KINDS[type(error)], **code}
