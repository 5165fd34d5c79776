"""HTTP/1.1 without I/O: the bytes of a request, and a parser of responses.

One kind of request goes to one URL, so this is all that is needed of an HTTP client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from .steps import HttpAnswer

_VERSION = "0.1.0"
#: Servers close connections that were idle for a minute.
IDLE_SECONDS = 25.0
_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024


class NotHttp(Exception):
    """The answer is not HTTP, or too large."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    is_encrypted: bool
    path: str
    #: The head of each request, up to its length.
    head: bytes

    @classmethod
    def parse(cls, url: str, api_key: str | None) -> Endpoint:
        """The base URL of a server, or the URL of its route ``/forrst``."""
        if not isinstance(url, str):
            raise ConfigurationError(f"the URL of a server must be a text, not {url!r}")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as why:
            raise ConfigurationError(f"`{url}` is not the URL of a server: {why}") from None
        if parts.username is not None or parts.password is not None:
            # Not repeated, because it may be a secret.
            raise ConfigurationError("a URL must not have a user or a password: use `api_key`")

        def invalid(why: str) -> ConfigurationError:
            return ConfigurationError(f"`{url}` is not the URL of a server: {why}")

        if parts.scheme not in ("http", "https"):
            raise invalid("it must start with http:// or https://")
        if not parts.hostname:
            raise invalid("it has no host")
        if parts.query or parts.fragment:
            raise invalid("it must not have a query or a fragment")
        if re.search(r"[\x00-\x20\x7f]", url):
            raise invalid("it must not have spaces or control characters")
        path = parts.path.rstrip("/")
        if path.rsplit("/", 1)[-1] != "forrst":
            path += "/forrst"
        is_encrypted = parts.scheme == "https"
        try:
            host = parts.hostname.encode("idna").decode() if not parts.hostname.isascii() else parts.hostname
            named = f"[{host}]" if ":" in host else host
            named += f":{port}" if port is not None else ""
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {named}\r\nContent-Type: application/json\r\nAccept: application/json\r\n"
                f"User-Agent: forrst-python/{_VERSION}\r\n{_authorization(api_key)}"
            ).encode("ascii")
        except UnicodeError:
            raise invalid("percent-encode what is not ASCII") from None
        return cls(host, port or (443 if is_encrypted else 80), is_encrypted, path, head)

    def request(self, body: bytes) -> bytes:
        return b"%bContent-Length: %d\r\n\r\n%b" % (self.head, len(body), body)

    def __repr__(self) -> str:
        return f"Endpoint({self.host!r}, {self.port})"


def _authorization(api_key: str | None) -> str:
    if api_key is None:
        return ""
    if not isinstance(api_key, str) or not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise ConfigurationError("an API key is a text of visible ASCII characters")
    return f"Authorization: Bearer {api_key}\r\n"


class Parser:
    """Reads one response from the bytes of a connection."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._status = 0
        self._headers: dict[str, str] | None = None
        self._body = bytearray()
        #: How many bytes of the body, or of the chunk, are missing; `None` if the end of the connection ends it.
        self._missing: int | None = None
        self._is_chunked = False
        self._is_after_chunk = False
        self._is_http_1_0 = False
        #: Whether the connection can be used for another request.
        self.can_be_reused = False

    @property
    def has_begun(self) -> bool:
        return self._headers is not None or bool(self._data)

    def feed(self, data: bytes) -> HttpAnswer | None:
        """The answer, once it is complete. `data` is empty at the end of the connection."""
        self._data += data
        if self._headers is None and not self._read_head():
            return self._at_end(data)
        is_complete = self._read_chunks() if self._is_chunked else self._read_body()
        if is_complete:
            return self._answer(can_be_reused=not self._data)
        return self._at_end(data)

    def _at_end(self, data: bytes) -> HttpAnswer | None:
        if data:
            return None
        if self._headers is not None and self._missing is None and not self._is_chunked:
            return self._answer(can_be_reused=False)
        raise ConnectionError("the connection was closed before the answer was complete")

    def _answer(self, *, can_be_reused: bool) -> HttpAnswer:
        assert self._headers is not None
        options = self._headers.get("connection", "").lower()
        is_kept = "keep-alive" in options if self._is_http_1_0 else "close" not in options
        self.can_be_reused = can_be_reused and is_kept
        return HttpAnswer(self._status, self._headers, bytes(self._body))

    def _read_head(self) -> bool:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > _MAX_HEAD:
                raise NotHttp("the head of the answer is too large")
            if self._data and not b"HTTP/1.".startswith(self._data[:7]) and not self._data.startswith(b"HTTP/1."):
                raise NotHttp("the answer is not HTTP/1.1")
            return False
        lines = self._data[:end].decode("latin-1").split("\r\n")
        del self._data[: end + 4]
        status = re.fullmatch(r"HTTP/1\.([01]) ([0-9]{3})(?: .*)?", lines[0])
        if status is None:
            raise NotHttp("the answer is not HTTP/1.1")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise NotHttp("a header of the answer has no colon")
            name, value = name.strip().lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self._status = int(status[2])
        if 100 <= self._status < 200:
            if self._status == 101:
                raise NotHttp("the server changed the protocol")
            return self._read_head()
        self._is_http_1_0 = status[1] == "0"
        self._headers = headers
        self._begin_body(headers)
        return True

    def _begin_body(self, headers: dict[str, str]) -> None:
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if self._status in (204, 304):
            self._missing = 0
        elif coding is not None:
            if coding.lower() != "chunked":
                raise NotHttp(f"the answer has the transfer coding {coding!r}")
            self._is_chunked, self._missing = True, 0
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                raise NotHttp(f"the answer has the length {length!r}")
            self._missing = self._checked(int(length))

    def _read_body(self) -> bool:
        if self._missing is None:
            self._body += self._data
            self._data.clear()
            self._checked(0)
            return False
        self._take()
        return self._missing == 0

    def _take(self) -> None:
        assert self._missing is not None
        part = self._data[: self._missing]
        del self._data[: self._missing]
        self._body += part
        self._missing -= len(part)

    def _read_chunks(self) -> bool:
        """Reads chunks as far as they have arrived; whether the last one is among them."""
        while True:
            if self._missing:
                self._take()
                if self._missing:
                    return False
                self._is_after_chunk = True
            if self._is_after_chunk:
                if len(self._data) < 2:
                    return False
                if self._data[:2] != b"\r\n":
                    raise NotHttp("a chunk of the answer has no end")
                del self._data[:2]
                self._is_after_chunk = False
            line = self._data.find(b"\r\n")
            if line < 0:
                self._checked_line()
                return False
            size = bytes(self._data[:line]).split(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", size):
                raise NotHttp("a chunk of the answer has no size")
            if int(size, 16) == 0:
                return self._read_trailers(line)
            del self._data[: line + 2]
            self._missing = self._checked(int(size, 16))

    def _read_trailers(self, line: int) -> bool:
        """Whether all of the trailers after the last chunk, whose size ends at `line`, are there. They are ignored."""
        if self._data[line + 2 : line + 4] == b"\r\n":
            del self._data[: line + 4]
            return True
        end = self._data.find(b"\r\n\r\n", line)
        if end < 0:
            self._checked_line()
            return False
        del self._data[: end + 4]
        return True

    def _checked_line(self) -> None:
        if len(self._data) > _MAX_HEAD:
            raise NotHttp("a line of the answer is too long")

    def _checked(self, more: int) -> int:
        if len(self._body) + more > _MAX_BODY:
            raise NotHttp(f"the answer is larger than {_MAX_BODY} bytes")
        return more
