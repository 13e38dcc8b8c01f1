"""The delay before a retry: by table, and its bounds and order on random limits (F14)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.messages import Limits
from runtime.rules.backoff import retry_delay_s


def limits(first: float, factor: float, cap: float, jitter: float = 0.0) -> Limits:
    return Limits(timeout_s=1.0, delay_first_s=first, delay_factor=factor, delay_cap_s=cap, jitter=jitter)


@pytest.mark.parametrize(
    ("failures", "of", "chance", "delay_s"),
    [
        (1, limits(0.0, 1.0, 0.0), 0.5, 0.0),  # back to back
        (9, limits(0.0, 2.0, 60.0, jitter=1.0), 0.5, 0.0),
        (2000, limits(0.0, 2.0, 60.0, jitter=1.0), 0.5, 0.0),
        (1, limits(5.0, 1.0, 5.0), 0.5, 5.0),  # fixed
        (2000, limits(5.0, 1.0, 5.0), 0.5, 5.0),
        (1, limits(1.0, 2.0, 3600.0), 0.5, 1.0),  # exponential
        (2, limits(1.0, 2.0, 3600.0), 0.5, 2.0),
        (12, limits(1.0, 2.0, 3600.0), 0.5, 2048.0),
        (13, limits(1.0, 2.0, 3600.0), 0.5, 3600.0),
        (2000, limits(1.0, 2.0, 3600.0), 0.5, 3600.0),
        (2000, limits(1.0, 5.0, 3600.0), 0.5, 3600.0),
        (2000, limits(1, 5, 3600), 0.5, 3600.0),  # whole numbers grow without end, and slowly
        (13, limits(1.0, 2.0, 3600.0, jitter=0.5), 0.5, 4500.0),  # jitter goes beyond the cap
        (1, limits(2.0, 2.0, 3600.0, jitter=0.5), 0.0, 2.0),
    ],
)
def test_the_delay_of_a_failure(failures: int, of: Limits, chance: float, delay_s: float) -> None:
    assert retry_delay_s(failures, of, chance) == delay_s


@settings(deadline=None)
@given(
    first=st.floats(0.0, 1e6),
    factor=st.floats(1.0, 1e3),
    more=st.floats(1.0, 1e3),
    jitter=st.floats(0.0, 1.0),
    chance=st.floats(0.0, 1.0, exclude_max=True),
    failures=st.integers(1, 2000),
)
def test_it_never_falls_and_stays_below_cap_and_jitter(
    first: float, factor: float, more: float, jitter: float, chance: float, failures: int
) -> None:
    of = limits(first, factor, first * more, jitter)
    delay_s, next_s = (retry_delay_s(failures + each, of, chance) for each in (0, 1))
    assert math.isfinite(delay_s)
    assert first <= delay_s <= next_s <= first * more * (1 + jitter)
    assert retry_delay_s(failures, of, 0.0) <= delay_s, "jitter only adds"
