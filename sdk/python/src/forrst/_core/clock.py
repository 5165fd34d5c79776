"""The clock that leases are counted by: monotonic, and it does not stop while the machine sleeps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Clock = Callable[[], float]


def _monotonic_with_sleep() -> Clock:
    if sys.platform == "linux":
        return lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        # On macOS, this one counts sleep, and `time.monotonic` does not.
        return lambda: time.clock_gettime(time.CLOCK_MONOTONIC)
    if sys.platform == "win32":
        # `time.monotonic` has a resolution of 16 ms before Python 3.13. Both count sleep.
        return time.perf_counter
    return time.monotonic


now: Clock = _monotonic_with_sleep()
