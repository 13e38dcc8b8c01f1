"""Cron expressions against two oracles: cronsim, and a walk through every minute of real time.

cronsim has the same rule for wall times (of expressions whose minute and hour do not start with `*`), and for
elapsed time where offsets change by whole hours; it is compared there. Where they change by half an hour (Lord
Howe, Pyongyang) it goes by hours from the half one and misses matches, so the walk decides about elapsed time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.rules.schedule import cron

ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # jumps over midnight
    "America/Havana",  # back over midnight
    "Australia/Lord_Howe",  # by half an hour
    "Africa/Casablanca",  # four times a year
    "Antarctica/Troll",  # by two hours
    "Pacific/Apia",  # a day that did not exist
    "Asia/Pyongyang",  # half an hour, for good
    "Asia/Tehran",
]
FIXED = ["30 2 * * *", "0 0 * * *", "0,30 1 * * *", "15,45 0-3 * * *", "59 23 * * *", "30 0-23 * * *"]
ELAPSED = ["* * * * *", "*/7 * * * *", "0 * * * *", "*/30 2 * * *", "0 */2 * * *", "10 */3 */2 * *"]
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@cache
def changes(name: str) -> list[datetime]:
    """Every moment from 1976 to 2026 at which the offset of a zone changes."""
    zone, found = ZoneInfo(name), []
    low = datetime(1976, 1, 1, tzinfo=UTC)
    while low < datetime(2027, 1, 1, tzinfo=UTC):
        high = low + DAY
        if low.astimezone(zone).utcoffset() != high.astimezone(zone).utcoffset():
            first, last = low, high
            while last - first > MINUTE:
                middle = first + (last - first) // MINUTE // 2 * MINUTE
                same = middle.astimezone(zone).utcoffset() == low.astimezone(zone).utcoffset()
                first, last = (middle, last) if same else (first, middle)
            found.append(last)
        low = high
    return found


def ours(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    schedule, found = cron(expression, zone), []
    while (after := schedule.next(after)) <= until:
        found.append(after)
    return found


def cronsim(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    found, walk = [], CronSim(expression, after.astimezone(ZoneInfo(zone)))
    while (tick := next(walk).astimezone(UTC)) <= until:
        found.append(tick)
    return found


def walked(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    """Every minute of real time at which the clock of the zone shows a match."""
    texts, found = expression.split(), []
    values = [set(range(0, 60, step)) for step in map(_step, texts)]
    while (after := after + MINUTE) <= until:
        local = after.astimezone(ZoneInfo(zone))
        shown = (local.minute, local.hour, local.day - 1)
        if all(one in (values[n] if "*" in texts[n] else _listed(texts[n])) for n, one in enumerate(shown)):
            found.append(after)
    return found


def _step(text: str) -> int:
    return int(text.partition("/")[2] or 1)


def _listed(text: str) -> set[int]:
    return {int(one) for one in text.split(",")}


def test_the_zones_do_change() -> None:
    assert sum(len(changes(name)) for name in ZONES) > 600


@pytest.mark.parametrize("zone", ZONES)
def test_wall_times_are_those_of_cronsim(zone: str) -> None:
    for number, change in enumerate(changes(zone)):
        for expression in (FIXED[number % 6], FIXED[(number + 2) % 6]):
            after, until = change - 26 * HOUR, change + 26 * HOUR
            assert ours(expression, zone, after, until) == cronsim(expression, zone, after, until), (
                expression,
                change,
            )


@pytest.mark.parametrize("zone", ZONES)
def test_a_wall_time_runs_exactly_once_for_each_day(zone: str) -> None:
    """At its first occurrence, or at the change that jumps over it, which may show the next day."""
    clock = ZoneInfo(zone)

    def due(wall: datetime, change: datetime) -> datetime:
        moment = wall.replace(tzinfo=clock, fold=0).astimezone(UTC)
        return moment if moment.astimezone(clock).replace(tzinfo=None, fold=0) == wall else change

    for change in changes(zone):
        for before in (HOUR, 30 * MINUTE, MINUTE, -30 * MINUTE):
            wall = (change - MINUTE).astimezone(clock).replace(tzinfo=None, fold=0) + MINUTE - before
            days = {due(wall + n * DAY, change) for n in range(-2, 4)}
            found = ours(f"{wall.minute} {wall.hour} * * *", zone, min(days) - MINUTE, max(days))
            assert found == sorted(days), (wall, change)


@pytest.mark.parametrize("zone", ZONES)
def test_elapsed_time_is_followed_minute_by_minute(zone: str) -> None:
    for number, change in enumerate(changes(zone)):
        expression = ELAPSED[number % 6]
        span = HOUR if expression.startswith("* ") else 3 * HOUR
        after, until = change - span - MINUTE, change + span
        assert ours(expression, zone, after, until) == walked(expression, zone, after, until), (
            expression,
            change,
        )


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Tehran"])
def test_elapsed_time_is_that_of_cronsim_where_whole_hours_change(zone: str) -> None:
    for number, change in enumerate(changes(zone)):
        expression = ("*/20 * * * *", "0 * * * *", "30 * * * *")[number % 3]
        after, until = change - 3 * HOUR, change + 3 * HOUR
        assert ours(expression, zone, after, until) == cronsim(expression, zone, after, until), (
            expression,
            change,
        )


@pytest.mark.parametrize("zone", ZONES)
def test_from_any_moment_on_the_same_ticks_follow(zone: str) -> None:
    for number, change in enumerate(changes(zone)[::4]):
        expression = ("*/30 * * * *", "15,45 0-3 * * *")[number % 2]
        ticks = ours(expression, zone, change - 4 * HOUR, change + DAY)
        moment = change - 3 * HOUR
        while moment < change + 3 * HOUR:
            assert cron(expression, zone).next(moment) == next(one for one in ticks if one > moment), moment
            moment += timedelta(minutes=23, seconds=31)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    steps = st.integers(1, max((high - low) // 2, 1)).map(lambda step: f"*/{step}")
    return st.one_of(
        st.just("*"),
        steps,
        st.lists(st.one_of(number.map(str), ranges), min_size=1, max_size=3).map(",".join),
    )


MOMENTS = st.timedeltas(-50 * 365 * DAY, 50 * 365 * DAY).map(datetime(2026, 1, 1, tzinfo=UTC).__add__)
EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 7)).map(" ".join)


@settings(deadline=None, max_examples=150)
@given(EXPRESSIONS, MOMENTS)
def test_expressions_mean_what_they_mean_to_cronsim(expression: str, after: datetime) -> None:
    walk, tick = CronSim(expression, after), after
    for _ in range(3):
        tick = cron(expression).next(tick)
        assert tick == next(walk)
