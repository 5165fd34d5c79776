"""How single requests are built, sent and repeated."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import DeadlineExceededError, ForrstError, InvalidRequestError, LostAnswerError, UnreachableError
from . import clock, durations, response
from .response import Response
from .retry import Retry, Tries
from .steps import HttpAnswer, Send, Steps

Extension = Mapping[str, Any]


class Core:
    """What the operations of one client have in common."""

    def __init__(
        self,
        retry: Retry,
        timeout: float,
        in_background: Callable[[Steps[None]], None],
        clock: clock.Clock = clock.now,
    ) -> None:
        self.retry = retry
        #: Seconds for an answer, in addition to the time that the request waits for a lock.
        self.timeout = timeout
        #: Carries out steps that nobody waits for.
        self.in_background = in_background
        self.clock = clock

    def send(
        self,
        function: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        deadline: float | None = None,
        version: str | None = None,
        context: Mapping[str, Any] | None = None,
        extensions: Sequence[Extension] = (),
    ) -> Steps[Response]:
        """Sends a request once. A failure that the server reports is raised, too.

        With a deadline, that alone says how long the answer may take.
        """
        call: dict[str, Any] = {"function": function, "arguments": arguments}
        if version is not None:
            call["version"] = version
        request_id = str(uuid.uuid4())
        request: dict[str, Any] = {"protocol": {"name": "forrst", "version": "0.1.0"}, "id": request_id, "call": call}
        if context is not None:
            request["context"] = context
        if deadline is not None:
            timeout = deadline - self.clock()
            if timeout < 0.001:
                raise DeadlineExceededError("the deadline has passed before the request was sent", may_have_run=False)
            left = {"value": int(timeout * 1000), "unit": "millisecond"}
            extensions = [*extensions, {"urn": response.DEADLINE, "options": left}]
        if extensions:
            request["extensions"] = extensions
        body = _encode(request)
        try:
            answer: HttpAnswer = yield Send(body, timeout)
        except (UnreachableError, LostAnswerError) as error:
            if deadline is None or self.clock() < deadline:
                raise
            raise DeadlineExceededError("the deadline has passed", may_have_run=error.may_have_run) from error
        return response.read(answer, request_id)

    def ask_once(self, function: str, arguments: Mapping[str, Any], timeout: float) -> Steps[Any]:
        """Calls a system function once."""
        return (yield from self.send(function, arguments, timeout=timeout)).result

    def ask(self, function: str, arguments: Mapping[str, Any], tries: Tries | None = None) -> Steps[Any]:
        """Calls a system function, and repeats that as `tries` allows: by default, it may be carried out twice."""
        tries = tries or Tries(self, repeat=True)
        while True:
            left = self.timeout if tries.until is None else tries.until - self.clock()
            try:
                return (yield from self.ask_once(function, arguments, max(0.001, min(left, self.timeout))))
            except ForrstError as why:
                error = why
            yield from tries.after(error)


def fresh() -> str:
    """A new name for an owner or an attempt."""
    return str(uuid.uuid4())


def without_none(**members: Any) -> dict[str, Any]:
    """The members that have a value."""
    return {name: value for name, value in members.items() if value is not None}


def wire_or_none(value: float | None) -> dict[str, Any] | None:
    return None if value is None else durations.to_wire(value)


def _encode(request: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as why:
        raise InvalidRequestError(f"the request cannot be written as JSON: {why}") from why
