"""Numbers of several runs: medians, ranges, percentiles, and how they are written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def percentiles(values_ms: Sequence[float]) -> dict[str, float]:
    """By the nearest rank: the p99 of fewer than 100 values is the largest."""
    ranked = sorted(values_ms)

    def rank(share: float) -> float:
        return ranked[max(0, -int(-share * len(ranked) // 1) - 1)]

    return {"p50_ms": rank(0.50), "p99_ms": rank(0.99), "max_ms": ranked[-1]}


def number(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """The median, with the range when there is one."""
    median, low, high = (number(each) for each in (statistics.median(values), min(values), max(values)))
    return median if low == high else f"{median} [{low} to {high}]"
