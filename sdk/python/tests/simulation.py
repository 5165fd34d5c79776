"""Runs operations of the core with a clock and a server that the test controls."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from forrst._core.core import Core
from forrst._core.retry import Retry
from forrst._core.steps import HttpAnswer, Send, Sleep, Steps

T = TypeVar("T")


@dataclass
class Request:
    """A request that arrived."""

    at: float
    timeout: float
    body: dict[str, Any]

    @property
    def function(self) -> str:
        return str(self.body["call"]["function"]).rsplit(":", 1)[-1]

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = self.body["call"]["arguments"]
        return arguments

    def option(self, urn: str) -> dict[str, Any] | None:
        found: list[dict[str, Any]] = [e["options"] for e in self.body.get("extensions", []) if e["urn"] == urn]
        return found[0] if found else None


Reply = Callable[["World", Request], HttpAnswer]


@dataclass
class World:
    """Time, and a server that replies as its list says: the last reply is repeated."""

    replies: list[Reply]
    now: float = 1000.0
    retry: Retry = field(default_factory=Retry)
    requests: list[Request] = field(default_factory=list)
    background: list[Steps[None]] = field(default_factory=list)
    sleeps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = Core(self.retry, 60.0, self.background.append, lambda: self.now)

    def run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Sleep):
                        self.sleeps.append(step.seconds)
                        self.now += step.seconds
                        answer = None
                    else:
                        answer = self._answer(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    def run_background(self) -> None:
        while self.background:
            self.run(self.background.pop(0))

    def _answer(self, step: Send) -> HttpAnswer:
        request = Request(self.now, step.timeout, json.loads(step.body))
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply(self, request)


def after(seconds: float, reply: Reply) -> Reply:
    """A reply that takes its time."""

    def late(world: World, request: Request) -> HttpAnswer:
        world.now += seconds
        return reply(world, request)

    return late


def success(result: object = None, **more: Any) -> Reply:
    def reply(_: World, request: Request) -> HttpAnswer:
        body = {"protocol": {"name": "forrst", "version": "0.1.0"}, "id": request.body["id"], "result": result, **more}
        return HttpAnswer(200, {}, json.dumps(body).encode())

    return reply


def failure(code: str, *, pointer: str | None = None, headers: dict[str, str] | None = None, **details: Any) -> Reply:
    error: dict[str, Any] = {"code": code, "message": "no", "details": details}
    if pointer is not None:
        error["source"] = {"pointer": pointer}

    def reply(world: World, request: Request) -> HttpAnswer:
        answer = success(None, errors=[error])(world, request)
        return HttpAnswer(400, headers or {}, answer.body)

    return reply


def raises(error: BaseException) -> Reply:
    def reply(*_: object) -> HttpAnswer:
        raise error

    return reply


def granted(ttl: float = 3.0, *, elapsed: float = 0.0, fence: str = "000000000000007") -> Reply:
    def reply(world: World, request: Request) -> HttpAnswer:
        data = {
            "key": request.arguments["key"],
            "full_key": f"lock:{request.arguments['key']}",
            "acquired": True,
            "owner": request.arguments["owner"],
            "fence": fence,
            "expires_at": "2026-01-01T00:00:00.000Z",
            "ttl_remaining_ms": round(ttl * 1000),
            "elapsed_ms": round(elapsed * 1000),
        }
        return success(data)(world, request)

    return reply


def extended(world: World, request: Request) -> HttpAnswer:
    data = {"key": "lock:k", "extended": True, "expires_at": "2026-01-01T00:00:00Z", "fence": request.arguments["fence"]}
    return success(data)(world, request)
