"""Sends requests over pooled connections of asyncio, and carries out steps."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from .._core.http import IDLE_SECONDS, NotHttp, Parser
from .._core.settings import Settings
from .._core.steps import HttpAnswer, Send, Sleep, Step, Steps
from ..errors import LostAnswerError, NotUnderstoodError, UnreachableError

T = TypeVar("T")
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connection:
    def __init__(self, streams: _Streams) -> None:
        self._reader, self._writer = streams
        self._loop = asyncio.get_running_loop()
        self.has_expired = False
        self.idle_since = 0.0

    async def exchange(self, request: bytes) -> tuple[HttpAnswer, bool]:
        """The answer, and whether the connection can be used again."""
        self._writer.write(request)
        await self._writer.drain()
        parser = Parser()
        while True:
            answer = parser.feed(await self._reader.read(65536))
            if answer is not None:
                return answer, parser.can_be_reused

    def is_usable(self) -> bool:
        """Whether it was not idle for too long, the server has not closed it, and it belongs to this event loop."""
        if self._loop is not asyncio.get_running_loop() or time.monotonic() - self.idle_since > IDLE_SECONDS:
            return False
        return not self._reader.at_eof() and not self._writer.is_closing()

    def expire(self) -> None:
        self.has_expired = True
        self.abort()

    def abort(self) -> None:
        if not self._loop.is_closed():
            self._writer.transport.abort()


class Transport:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[Connection] = []
        self._is_closed = False

    async def run(self, steps: Steps[T]) -> T:
        """Carries out steps."""
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._carry_out(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    async def close(self) -> None:
        self._is_closed = True
        self._close_idle()
        # The event loop closes their sockets in its next round.
        await asyncio.sleep(0)

    async def _carry_out(self, step: Step) -> HttpAnswer | None:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        return await self._send(step)

    async def _send(self, step: Send) -> HttpAnswer:
        loop = asyncio.get_running_loop()
        until = loop.time() + step.timeout
        connection = await self._take(until)
        timer = loop.call_at(until, connection.expire)
        try:
            answer, can_be_reused = await connection.exchange(self._settings.endpoint.request(step.body))
        except BaseException as why:
            connection.abort()
            if isinstance(why, NotHttp):
                raise NotUnderstoodError(f"the answer cannot be understood: {why}") from why
            if isinstance(why, OSError):
                # The other connections may be broken, too.
                self._close_idle()
                if connection.has_expired:
                    raise LostAnswerError(f"no answer came within {step.timeout:.3g} s") from why
                raise LostAnswerError(f"no answer came, and the request may have been carried out: {why}") from why
            raise
        finally:
            timer.cancel()
        if can_be_reused and not self._is_closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    async def _take(self, until: float) -> Connection:
        """An idle connection, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return await self._open(until)

    async def _open(self, until: float) -> Connection:
        endpoint, loop = self._settings.endpoint, asyncio.get_running_loop()
        opening = loop.create_task(
            asyncio.open_connection(
                endpoint.host,
                endpoint.port,
                ssl=self._settings.tls,
                happy_eyeballs_delay=0.25,
            )
        )
        try:
            await asyncio.wait({opening}, timeout=min(until - loop.time(), self._settings.connect_timeout))
        finally:
            if not opening.done():
                opening.cancel()
                opening.add_done_callback(_close_late)
        if opening.done() and not opening.cancelled():
            try:
                return Connection(opening.result())
            except (OSError, UnicodeError) as why:
                raise self._unreachable(why) from why
        raise self._unreachable("it took too long")

    def _unreachable(self, why: object) -> UnreachableError:
        return UnreachableError(f"the server cannot be reached at {self._settings.url}: {why}")

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().abort()


def _close_late(opening: asyncio.Task[_Streams]) -> None:
    """Closes a connection that was opened when nobody waited for it any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()
