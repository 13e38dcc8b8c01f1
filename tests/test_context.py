"""What a handler is given: progress that can be carried, time left, cancelling, and a logger made late."""

from __future__ import annotations

import math
import time
import timeit
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from runtime import Cancel, Context, TimedOut
from runtime.errors import LeaseLost, Stopping
from runtime.model.exits import Progress


class Log:
    """Stands in for a structlog logger: counts how often it is bound."""

    def __init__(self) -> None:
        self.bound: list[dict[str, Any]] = []

    def bind(self, **values: Any) -> Log:
        self.bound.append(values)
        return self


def context(noted: list[Progress] | None = None, **changes: Any) -> Context:
    values: dict[str, Any] = {
        "id": "0192",
        "kind": "thumbnail",
        "attempt": 2,
        "due": datetime(2026, 1, 1, tzinfo=UTC),
        "last": False,
        "deadline": None,
        "epoch": 3,
        "note_progress": ([] if noted is None else noted).append,
        "why_ending": lambda: None,
        "kick": [].append,
        "log": Log(),
        "writes": None,
    }
    return Context(**(values | changes))


@pytest.mark.parametrize(
    ("said", "carried"),
    [
        ((1,), Progress(1)),
        ((0.5, 2), Progress(0.5, 2)),
        ((1, None, "half"), Progress(1, None, "half")),
        ((Fraction(1, 2),), Progress(0.5)),
        ((2**70,), Progress(float(2**70))),
        ((1, 2, "x" * 1000), Progress(1, 2, "x" * 200)),
        ((1, 2, "\0\ud800"), Progress(1, 2, "\\0\\ud800")),
    ],
)
def test_progress_is_carried(said: tuple[Any, ...], carried: Progress) -> None:
    noted: list[Progress] = []
    context(noted).progress(*said)
    assert noted == [carried]
    [progress] = noted
    assert type(progress.done) in (int, float)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(progress), type=Progress) == carried


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        (("1",), TypeError, "done must be a number, got str"),
        ((True,), TypeError, "done must be a number, got bool"),
        ((Decimal(1),), TypeError, "done must be a number"),
        ((1, "2"), TypeError, "total must be a number"),
        ((1, 2, 3), TypeError, "note must be a text, got int"),
        ((math.nan,), ValueError, "done must be finite"),
        ((1, math.inf), ValueError, "total must be finite"),
        ((10**400,), ValueError, "done must be finite"),
    ],
)
def test_progress_that_cannot_be_carried_is_refused(
    said: tuple[Any, ...], error: type[Exception], says: str
) -> None:
    noted: list[Progress] = []
    with pytest.raises(error, match=says):
        context(noted).progress(*said)
    assert noted == []


def test_a_tracked_iterable_reports_after_each_item() -> None:
    noted: list[Progress] = []
    seen = [(item, noted[-1]) for item in context(noted).track(["a", "b"])]
    assert seen == [("a", Progress(0, 2)), ("b", Progress(1, 2))]
    assert noted[-1] == Progress(2, 2)


def test_a_tracked_iterable_without_length_has_no_total_unless_given() -> None:
    for total in (None, 5):
        noted: list[Progress] = []
        assert list(context(noted).track(iter("ab"), total)) == ["a", "b"]
        assert noted[-1] == Progress(2, total)


@pytest.mark.parametrize(
    ("why", "error"),
    [
        ("cancel", Cancel),
        ("timeout", TimedOut),
        ("stall", TimedOut),
        ("lost", LeaseLost),
        ("stop", Stopping),
    ],
)
def test_the_end_of_an_attempt_is_seen_and_raised(why: str, error: type[BaseException]) -> None:
    said: str | None = None
    ctx = context(why_ending=lambda: said)
    assert not ctx.cancelled
    ctx.check()
    said = why
    assert ctx.cancelled
    with pytest.raises(error):
        ctx.check()


def test_the_time_left_ends_at_zero() -> None:
    assert context().remaining() is None
    assert context(deadline=time.monotonic() - 1).remaining() == 0.0
    left = context(deadline=time.monotonic() + 100).remaining()
    assert left is not None
    assert 99 < left <= 100


def test_the_logger_is_bound_once_and_not_before_it_is_asked_for() -> None:
    log = Log()
    ctx = context(log=log)
    assert log.bound == []
    assert ctx.log is ctx.log
    assert log.bound == [{"job": "0192", "kind": "thumbnail", "attempt": 2}]


def test_making_one_costs_microseconds() -> None:
    assert not hasattr(context(), "__dict__")
    made = min(timeit.repeat(context, number=2000, repeat=5)) / 2000
    assert made < 20e-6, "tens of times what it takes"
