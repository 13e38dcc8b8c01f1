"""Waiting for facts: what stands in the place of every `sleep` of the test suite."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(read: Callable[[], T], holds: Callable[[T], object] = bool, within_s: float = 10.0) -> T:
    """Read until `holds(value)`, then return the value; fail showing the last one read."""
    deadline_s = time.monotonic() + within_s
    while not holds(value := read()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {within_s:g} s; last seen: {value!r}")
        time.sleep(0.01)
    return value
