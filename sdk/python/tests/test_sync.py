"""What only the blocking flavour does: threads, signals and processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import forrst

from .servers import PATIENCE, Server, spawn, until


@pytest.fixture
def client(server: Server, key: str) -> Iterator[forrst.Client]:
    with forrst.Client(server.url) as client:
        yield client
    until(lambda: not threads(key), "all threads have ended")


def threads(key: str) -> list[str]:
    """The threads of the leases of this key."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("forrst") and key in thread.name]


def test_a_released_lease_leaves_no_thread(client: forrst.Client, key: str) -> None:
    with client.lock(key, ttl=3600, watch=True):
        assert len(threads(key)) == 2
    until(lambda: not threads(key), "both threads have ended")


def test_the_loss_is_raised_by_check_and_at_the_end(client: forrst.Client, key: str) -> None:
    with pytest.raises(forrst.LostError, match="released by force"):
        with client.lock(key, ttl=3600, watch=True) as lease:
            lease.check()
            client.locks.force_release(lease.full_key)
            until(lambda: lease.is_lost, "the loss is noticed")
            with pytest.raises(forrst.LostError):
                lease.check()


def test_the_error_of_the_body_wins(client: forrst.Client, key: str) -> None:
    with pytest.raises(ZeroDivisionError):
        with client.lock(key):
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        with client.lock(key, ttl=3600, watch=True) as lease:
            client.locks.force_release(lease.full_key)
            assert lease.wait_lost(PATIENCE)
            raise ZeroDivisionError
    assert not client.locks.status(f"lock:{key}").is_held


def test_a_lease_that_is_dropped_is_released(client: forrst.Client, key: str) -> None:
    lease = client.lock(key, ttl=3600, watch=True).acquire()
    del lease
    gc.collect()
    assert client.settle(PATIENCE)
    assert not client.locks.status(f"lock:{key}").is_held


def test_closing_the_client_releases_what_is_held(server: Server, key: str) -> None:
    with forrst.Client(server.url) as client:
        lease = client.lock(key, ttl=3600, watch=True).acquire()
    assert not lease.is_held
    until(lambda: not threads(key), "all threads have ended")
    with forrst.Client(server.url) as client:
        assert not client.locks.status(lease.full_key).is_held


def test_threads_share_a_client_and_a_lock_object(client: forrst.Client, key: str) -> None:
    counter = 0
    fences: list[str] = []
    lock = client.lock(key, wait=PATIENCE)

    def work() -> None:
        nonlocal counter
        for _ in range(5):
            with lock as lease:
                before = counter
                time.sleep(0)
                counter = before + 1
                fences.append(lease.fence)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counter == 40 and len(fences) == 40 and fences == sorted(set(fences))


def test_a_program_that_is_interrupted_while_it_waits_leaves_the_queue(client: forrst.Client, server: Server, key: str) -> None:
    program = (
        "import forrst, sys\n"
        "with forrst.Client(sys.argv[1]) as client:\n"
        "    with client.lock(sys.argv[2], ttl=3600, wait=250): print('granted')\n"
    )
    with client.lock(key) as lease:
        with spawn(sys.executable, "-c", program, server.url, key, stderr=subprocess.PIPE) as waiting:
            try:
                until(lambda: client.locks.waiters(lease.full_key), "the program waits")
                waiting.send_signal(signal.SIGINT)
                out, err = waiting.communicate(timeout=PATIENCE)
            finally:
                waiting.kill()
        assert "KeyboardInterrupt" in err and "granted" not in out
        assert client.locks.waiters(lease.full_key) == []


def test_a_program_can_end_while_it_holds_a_lease(server: Server, key: str) -> None:
    program = "import forrst, sys\nclient = forrst.Client(sys.argv[1])\nlease = client.lock(sys.argv[2], ttl=2, watch=True).acquire()\n"
    with spawn(sys.executable, "-c", program, server.url, key, stderr=subprocess.PIPE) as done:
        _, err = done.communicate()
    assert done.returncode == 0 and "Traceback" not in err, err
    with forrst.Client(server.url) as client, client.lock(key, wait=PATIENCE):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_use_the_connections_of_its_parent(server: Server, key: str) -> None:
    program = (
        "import forrst, os, sys\n"
        "client = forrst.Client(sys.argv[1])\n"
        "assert client.call('demo.echo', {'who': 'parent'}) == {'who': 'parent'}\n"
        "child = os.fork()\n"
        "who = 'child' if child == 0 else 'parent'\n"
        "for number in range(200):\n"
        "    assert client.call('demo.echo', {'who': who, 'n': number}) == {'who': who, 'n': number}\n"
        "if child == 0:\n"
        "    with client.lock(sys.argv[2]) as lease: lease.check()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    with spawn(sys.executable, "-c", program, server.url, key, stderr=subprocess.PIPE) as done:
        _, err = done.communicate()
    assert done.returncode == 0, err
