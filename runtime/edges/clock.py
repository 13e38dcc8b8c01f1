"""The process's own clock. It never goes back and, on Linux, goes on while the machine is suspended.

A suspended machine must find its leases ended when it wakes, as the database does: so durations are measured
with CLOCK_BOOTTIME where there is one. It is the same clock in all processes of a machine.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Monotonic seconds, comparable between the processes of one machine."""
    return time.clock_gettime(_CLOCK)


def now_ns() -> int:
    """The same in nanoseconds."""
    return time.clock_gettime_ns(_CLOCK)
