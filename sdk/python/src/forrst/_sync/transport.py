"""Sends requests over pooled blocking connections, and carries out steps."""

from __future__ import annotations

import collections
import os
import queue
import socket
import time
from typing import TypeVar

from .._core.http import IDLE_SECONDS, NotHttp, Parser
from .._core.settings import Settings
from .._core.steps import HttpAnswer, Send, Sleep, Step, Steps
from ..errors import LostAnswerError, NotUnderstoodError, UnreachableError

T = TypeVar("T")


class Connection:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._process = os.getpid()
        self.idle_since = 0.0

    def exchange(self, request: bytes, until: float) -> tuple[HttpAnswer, bool]:
        """The answer, and whether the connection can be used again."""
        self._socket.settimeout(_left(until))
        self._socket.sendall(request)
        parser = Parser()
        while True:
            self._socket.settimeout(_left(until))
            answer = parser.feed(self._socket.recv(65536))
            if answer is not None:
                return answer, parser.can_be_reused

    def is_usable(self) -> bool:
        """Whether it was not idle for too long, the server has not closed it, and it was opened by this process."""
        if self._process != os.getpid() or time.monotonic() - self.idle_since > IDLE_SECONDS:
            return False
        try:
            self._socket.setblocking(False)
            # Not that of a TLS socket, which would read a record.
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def abort(self) -> None:
        """Ends an exchange in another thread."""
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # It is closed already.

    def close(self) -> None:
        self._socket.close()


class Transport:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # Used by several threads without a lock: its operations are atomic.
        self._idle: collections.deque[Connection] = collections.deque()
        self._is_closed = False

    def take(self, until: float) -> Connection:
        """An idle connection, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._open(until)
            if connection.is_usable():
                return connection
            connection.close()

    def put_back(self, connection: Connection) -> None:
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._is_closed:
            self.close_idle()

    def close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        self._is_closed = True
        self.close_idle()

    def request(self, body: bytes) -> bytes:
        return self._settings.endpoint.request(body)

    def _open(self, until: float) -> Connection:
        until = min(until, time.monotonic() + self._settings.connect_timeout)
        endpoint = self._settings.endpoint
        try:
            addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as why:
            raise _unreachable(self._settings, why) from why
        last: OSError | None = None
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            sock = socket.socket(family, kind, protocol)
            try:
                # An address that does not answer leaves time for the others.
                sock.settimeout(_left(until) / (len(addresses) - number))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(_left(until))
                if self._settings.tls is not None:
                    sock = self._settings.tls.wrap_socket(sock, server_hostname=endpoint.host)
                return Connection(sock)
            except OSError as why:
                sock.close()
                last = why
            except BaseException:
                sock.close()
                raise
        raise _unreachable(self._settings, last) from last


def _unreachable(settings: Settings, why: object) -> UnreachableError:
    return UnreachableError(f"the server cannot be reached at {settings.url}: {why}")


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


class Stopped(BaseException):
    """Steps were stopped by another thread."""


class Runner:
    """Carries out steps in the thread that calls `run`, until another thread calls `stop`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # Its methods can be called by finalizers, whatever they interrupt.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._connection: Connection | None = None
        self._is_stopped = False

    def run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = self._carry_out(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    def stop_soon(self) -> None:
        """Stops before the next step. Finalizers may call this."""
        self._is_stopped = True
        self._stops.put(None)

    def stop(self) -> None:
        """Also ends the exchange that is under way."""
        self.stop_soon()
        connection = self._connection
        if connection is not None:
            connection.abort()

    def _carry_out(self, step: Step) -> HttpAnswer | None:
        if self._is_stopped:
            raise Stopped
        if isinstance(step, Sleep):
            try:
                self._stops.get(timeout=step.seconds)
            except queue.Empty:
                return None
            raise Stopped
        return self._send(step)

    def _send(self, step: Send) -> HttpAnswer:
        until = time.monotonic() + step.timeout
        connection = self._transport.take(until)
        self._connection = connection
        try:
            if self._is_stopped:
                raise Stopped
            answer, can_be_reused = connection.exchange(self._transport.request(step.body), until)
        except BaseException as why:
            connection.close()
            if self._is_stopped:
                raise Stopped from None
            if isinstance(why, NotHttp):
                raise NotUnderstoodError(f"the answer cannot be understood: {why}") from why
            if isinstance(why, TimeoutError):
                self._transport.close_idle()
                raise LostAnswerError(f"no answer came within {step.timeout:.3g} s") from why
            if isinstance(why, (OSError, ValueError)):
                # The other connections may be broken, too.
                self._transport.close_idle()
                raise LostAnswerError(f"no answer came, and the request may have been carried out: {why}") from why
            raise
        finally:
            self._connection = None
        if can_be_reused:
            self._transport.put_back(connection)
        else:
            connection.close()
        return answer
