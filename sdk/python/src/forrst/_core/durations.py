"""Durations: seconds or a timedelta in Python, whole milliseconds on the wire."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, TypeAlias

from ..errors import InvalidRequestError

Seconds: TypeAlias = float | timedelta
"""A number of seconds, or a ``timedelta``."""

_MILLISECONDS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
}


def seconds(name: str, value: Seconds, *, zero: bool = False) -> float:
    """The seconds of an argument, which has to be positive (or zero, if that is allowed) and finite."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequestError(f"`{name}` must be a number of seconds or a timedelta, not {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "not be negative" if zero else "be greater than 0"
        raise InvalidRequestError(f"`{name}` must {least} and finite: {value!r}")
    return float(value)


def to_wire(value: float) -> dict[str, Any]:
    """A duration of the protocol: whole milliseconds, at least one."""
    return {"value": max(1, round(value * 1000)), "unit": "millisecond"}


def from_wire(value: object) -> float | None:
    """The seconds of a duration of the protocol; ``None`` if it is not one."""
    if not isinstance(value, dict):
        return None
    number, factor = value.get("value"), _MILLISECONDS.get(str(value.get("unit")))
    if factor is None or isinstance(number, bool) or not isinstance(number, int) or number <= 0:
        return None
    return number * factor / 1000
