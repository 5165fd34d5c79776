"""Real servers for the tests."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

FORRST = os.environ.get("FORRST_BIN", "")
if not FORRST:
    sys.exit("set FORRST_BIN to the path of the program `forrst`")

#: For conditions that come true soon, on however busy a machine.
PATIENCE = 20.0


def until(condition: Callable[[], object], what: str) -> None:
    """Waits until a condition is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"it did not happen: {what}"
        time.sleep(0.01)


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    """As `until`, in an event loop."""

    async def poll() -> None:
        while not await condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), PATIENCE)


def spawn(*command: str, **options: Any) -> subprocess.Popen[str]:
    """Starts a program. A machine that is short of memory may fail to do so for a moment, with EFAULT, EAGAIN or ENOMEM."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
        except OSError as error:
            if error.errno not in (errno.EFAULT, errno.EAGAIN, errno.ENOMEM) or time.monotonic() > end:
                raise
            time.sleep(0.05)


class Process:
    """A server process, which ends with the `with` statement."""

    _process: subprocess.Popen[str] | None = None

    def _spawn(self, *command: str) -> IO[str]:
        self._process = spawn(*command, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        return self._process.stdout

    def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def stop(self) -> None:
        """Shuts it down in order."""
        if self._process is not None:
            self._process.terminate()
            self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.communicate()
        self._process = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()


class Server(Process):
    def __init__(self, store: str, *options: str) -> None:
        self._store = store
        self._options = options
        self._address = "127.0.0.1:0"
        self.url = ""
        self.start()

    def start(self) -> None:
        """Starts it, at the address that it had before."""
        command = ("serve", "--demo", "--listen", self._address, "--store", self._store, *self._options)
        lines = self._spawn(FORRST, *command)
        for line in lines:
            found = re.search(r"(https?://(127\.0\.0\.1:[0-9]+))/forrst", line)
            if found is not None:
                self.url, self._address = found[1], found[2]
                return
        self.kill()
        raise AssertionError(f"{FORRST} {' '.join(command)} did not start")

    def __enter__(self) -> Server:
        return self


class Redis(Process):
    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._spawn("redis-server", "--port", str(self.port), "--dir", str(folder), "--save", "", "--bind", "127.0.0.1")
        until(self._is_up, "Redis accepts connections")

    def _is_up(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    @property
    def store(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Redis:
        return self
