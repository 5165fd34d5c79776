from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .servers import Redis, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that all tests share: they use keys of their own."""
    with Server("memory:") as server:
        yield server


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with Redis(tmp_path_factory.mktemp("redis")) as redis:
        yield redis


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key of this test alone."""
    return f"{request.node.name}-{uuid.uuid4()}"


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Server]:
    """A server of this test alone, whose locks survive a restart."""
    with Server(f"embedded:{tmp_path}/data") as server:
        yield server


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts to play the vectors, which mostly wait, before the first test."""
    if any(item.path.name == "test_vectors.py" for item in session.items) and not session.config.option.collectonly:
        from . import test_vectors

        test_vectors.start()
