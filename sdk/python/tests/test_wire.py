"""What goes over the wire: durations, keys, answers, URLs and HTTP."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta, timezone

import pytest

import forrst
from forrst._core import durations, keys
from forrst._core.http import Endpoint, NotHttp, Parser
from forrst._core.info import Held, LockInfo
from forrst._core.response import read
from forrst._core.steps import HttpAnswer

from .simulation import World, success


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", None])
def test_a_duration_that_makes_no_sense_is_refused(value: object) -> None:
    client = forrst.Client("http://127.0.0.1:1")
    with pytest.raises(forrst.InvalidRequestError, match="`ttl`"):
        client.lock("k", ttl=value).acquire()  # type: ignore[arg-type]


def test_durations() -> None:
    assert durations.seconds("ttl", timedelta(minutes=1)) == 60
    assert durations.to_wire(1.5) == {"value": 1500, "unit": "millisecond"}
    assert durations.to_wire(0.0001)["value"] == 1
    assert durations.from_wire({"value": 2, "unit": "minute"}) == 120
    for wrong in (None, 5, {}, {"value": 0, "unit": "second"}, {"value": True, "unit": "second"}, {"value": 1, "unit": "s"}):
        assert durations.from_wire(wrong) is None


def test_keys() -> None:
    assert keys.to_wire("a", shared=False, limit=None) == {"key": "a"}
    assert keys.to_wire(["a"], shared=True, limit=None) == {"key": "a", "mode": "shared"}
    assert keys.to_wire(forrst.Key("a", limit=3), shared=True, limit=None) == {"key": "a", "limit": 3}
    several: list[str | forrst.Key] = ["a", forrst.Key("b", shared=True), forrst.Key("c", exclusive=True)]
    expected = {"keys": ["a", {"key": "b", "mode": "shared"}, {"key": "c", "mode": "exclusive"}], "limit": 2}
    assert keys.to_wire(several, shared=False, limit=2) == expected
    for wrong in ([], "", [""], [5]):
        with pytest.raises(forrst.InvalidRequestError):
            keys.to_wire(wrong, shared=False, limit=None)  # type: ignore[arg-type]
    with pytest.raises(forrst.InvalidRequestError):
        keys.to_wire("a", shared=True, limit=2)


def test_arguments_that_are_not_json_are_refused_before_anything_is_sent() -> None:
    client = forrst.Client("http://127.0.0.1:1")
    for wrong in ({"a": object()}, {"a": float("nan")}, {"a": "\ud800"}, [1]):
        with pytest.raises(forrst.InvalidRequestError):
            client.call("demo.echo", wrong)  # type: ignore[arg-type]


def test_an_answer_that_is_not_one_of_the_protocol() -> None:
    for status, body, kind in [
        (200, b"", forrst.NotUnderstoodError),
        (200, b"[]", forrst.NotUnderstoodError),
        (200, b"[" * 100_000, forrst.NotUnderstoodError),
        (200, b'{"id": "x"}', forrst.NotUnderstoodError),
        (200, b'{"id": "y", "result": 1}', forrst.NotUnderstoodError),
        (200, b'{"id": null, "result": 1}', forrst.NotUnderstoodError),
        (200, b'{"id": "x", "errors": [{}]}', forrst.NotUnderstoodError),
        (302, b"", forrst.NotUnderstoodError),
        (401, b"", forrst.UnauthorizedError),
        (403, b"<html>", forrst.ForbiddenError),
        (503, b"<html>", forrst.LostAnswerError),
    ]:
        with pytest.raises(kind):
            read(HttpAnswer(status, {}, body), "x")


def test_unknown_members_are_ignored() -> None:
    answer = {"id": "x", "result": 1, "new": {}, "extensions": [{"urn": "u", "data": 1}, 5], "meta": {"node": "n"}}
    response = read(HttpAnswer(200, {}, json.dumps(answer).encode()), "x")
    assert (response.result, response.extensions, response.node) == (1, {"u": 1}, "n")


def test_a_fence_is_text() -> None:
    data: dict[str, object] = {"key": "k", "full_key": "lock:k", "owner": "o", "fence": 7}
    data |= {"expires_at": "2026-01-15T10:30:00.123Z"}
    with pytest.raises(forrst.NotUnderstoodError):
        Held.read(data)
    data["fence"] = "000000000000007"
    held = Held.read(data)
    assert held.fence == "000000000000007" and held.elapsed is None
    assert held.expires_at == datetime(2026, 1, 15, 10, 30, 0, 123_000, timezone.utc)
    for missing in ("owner", "fence", "expires_at", "full_key"):
        with pytest.raises(forrst.NotUnderstoodError, match=missing):
            Held.read({name: value for name, value in data.items() if name != missing})


def test_the_status_of_a_server_with_only_the_bare_extension() -> None:
    times = {"acquired_at": "2026-01-15T10:30:00Z", "expires_at": "2026-01-15T10:30:30.123456789Z"}
    info = LockInfo.read({"key": "lock:k", "locked": True, "owner": "me", "ttl_remaining": 25, **times})
    assert info.holder is not None and info.holder.fence is None and info.holder.ttl_remaining == 25
    assert (info.kind, info.holder_count, info.waiters) == ("exclusive", 1, 0)
    assert LockInfo.read({"key": "lock:k", "locked": False, "waiters": 2}).waiters == 2
    with pytest.raises(forrst.NotUnderstoodError):
        LockInfo.read({"key": "lock:k", "locked": True})


def test_errors_can_be_pickled_and_say_what_is_wrong() -> None:
    error: dict[str, object] = {"code": "INVALID_ARGUMENTS", "message": "`ttl` is wrong", "source": {"pointer": "/a/ttl"}}
    with pytest.raises(forrst.RejectedError) as rejected:
        World([success(None, errors=[error])]).run(World([]).core.send("a.b", {}, timeout=1))
    copy = pickle.loads(pickle.dumps(rejected.value))
    assert str(copy) == "the request was rejected: `ttl` is wrong (INVALID_ARGUMENTS) at /a/ttl"
    assert (copy.code, copy.pointer, copy.may_have_run) == ("INVALID_ARGUMENTS", "/a/ttl", False)


@pytest.mark.parametrize(
    ("url", "path", "host"),
    [
        ("http://localhost:7420", "/forrst", b"localhost:7420"),
        ("http://localhost:7420/", "/forrst", b"localhost:7420"),
        ("https://a.example/locks/", "/locks/forrst", b"a.example"),
        ("https://a.example/forrst", "/forrst", b"a.example"),
        ("http://[::1]:7420", "/forrst", b"[::1]:7420"),
    ],
)
def test_urls(url: str, path: str, host: bytes) -> None:
    endpoint = Endpoint.parse(url, "secret")
    request = endpoint.request(b"{}")
    assert request.startswith(b"POST %b HTTP/1.1\r\nHost: %b\r\n" % (path.encode(), host))
    assert b"Authorization: Bearer secret\r\n" in request and request.endswith(b"Content-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    "url",
    ["", "localhost:7420", "ftp://a", "http://", "http://a?x", "http://a#x", "http://a:b", "http://a/\r\nX: y", "http://a b", 5],
)
def test_texts_that_are_not_the_url_of_a_server(url: str) -> None:
    with pytest.raises(forrst.ConfigurationError):
        forrst.Client(url)


def test_secrets_are_shown_nowhere() -> None:
    with pytest.raises(forrst.ConfigurationError) as wrong:
        forrst.Client("http://me:s3cret@a.example")
    assert "s3cret" not in str(wrong.value)
    with pytest.raises(forrst.ConfigurationError) as wrong:
        forrst.Client("http://a.example", api_key="s3cret\r\nX: y")
    assert "s3cret" not in str(wrong.value)
    for client in (forrst.Client("http://a", api_key="s3cret"), forrst.AsyncClient("http://a", api_key="s3cret")):
        assert "s3cret" not in repr(client) + repr(client._settings) + repr(client._settings.endpoint)


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        _HEAD + b"Content-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + _HEAD + b"content-length:5\r\n\r\nhello",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        _HEAD + b"Transfer-Encoding: Chunked\r\n\r\n05\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
    ],
)
def test_http_answers_are_read_byte_by_byte(answer: bytes) -> None:
    parser = Parser()
    for byte in answer[:-1]:
        assert parser.feed(bytes([byte])) is None
    read = parser.feed(answer[-1:])
    assert read is not None and (read.status, read.body, parser.can_be_reused) == (200, b"hello", True)
    whole = Parser()
    assert whole.feed(answer) == read
    for end in range(len(answer)):
        cut = Parser()
        if answer[:end]:
            cut.feed(answer[:end])
        with pytest.raises(ConnectionError):
            cut.feed(b"")


def test_an_answer_that_ends_with_the_connection() -> None:
    parser = Parser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nhel") is None
    assert parser.feed(b"lo") is None
    read = parser.feed(b"")
    assert read is not None and read.body == b"hello" and not parser.can_be_reused


@pytest.mark.parametrize(
    "answer",
    [
        _HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n",
        _HEAD + b"Content-Length: 0\r\n\r\nmore",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_connections_that_cannot_be_used_again(answer: bytes) -> None:
    parser = Parser()
    assert parser.feed(answer) is not None and not parser.can_be_reused


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        _HEAD + b"Content-Length: -1\r\n\r\n",
        _HEAD + b"Content-Length: 999999999999\r\n\r\n",
        _HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        _HEAD + b"no colon\r\n\r\n",
        _HEAD + b"X: " + b"y" * 70_000,
    ],
)
def test_answers_that_are_not_http(answer: bytes) -> None:
    with pytest.raises(NotHttp):
        Parser().feed(answer)
