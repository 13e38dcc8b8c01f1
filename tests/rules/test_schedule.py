"""What schedules mean, by table (F35, F36, F40), what is refused, and what becomes of missed ticks (F39)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo, reset_tzpath

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import ScheduleInvalid
from runtime.rules.schedule import Cron, Every, Missed, Schedule, _walker, after_tick, cron, describe, every

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    """A moment of UTC, of 2026 when no year is given."""
    return datetime.fromisoformat(text if len(text) > 11 else f"2026-{text}").replace(tzinfo=UTC)


def ticks(schedule: Schedule, count: int, after: datetime = NEW_YEAR) -> list[datetime]:
    return [one.astimezone(UTC) for one in describe(schedule, count, after=after)]


# -- which days and times


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 13 * 5", ["01-02", "01-09", "01-13", "01-16"]),  # both restricted: either
        ("0 0 13 * FRI", ["01-02", "01-09", "01-13", "01-16"]),
        ("0 0 */2 * 1", ["01-05", "01-19", "02-09", "02-23"]),  # a star with a step is unrestricted: both
        ("0 0 13 * */5", ["02-13", "03-13", "09-13", "11-13"]),  # 0 and 5: Sundays and Fridays
        ("0 0 */1 * 1", ["01-05", "01-12", "01-19", "01-26"]),
        ("0 0 1-31 * 1", ["01-02", "01-03", "01-04", "01-05"]),  # restricted, to all there are
        ("0 0 13 * 0-7", ["01-02", "01-03", "01-04", "01-05"]),
        ("0 0 1,* * 1", ["01-02", "01-03", "01-04", "01-05"]),  # does not start with a star
        ("0 0 *,1 * 1", ["01-05", "01-12", "01-19", "01-26"]),
        ("0 0 * * 1-7/2", ["01-02", "01-04", "01-05", "01-07", "01-09"]),
        ("0 0 * * 1/2", ["01-02", "01-04", "01-05", "01-07", "01-09"]),
        ("0 0 * * 5-7", ["01-02", "01-03", "01-04", "01-09"]),
        ("0 0 * * FRI-SUN", ["01-02", "01-03", "01-04", "01-09"]),
        ("0 0 * * Sun-tue", ["01-04", "01-05", "01-06", "01-11"]),
        ("0 0 * * sun-sun", ["01-04", "01-11"]),
        ("0 0 * * 7", ["01-04", "01-11"]),
        ("0 0 * * 0", ["01-04", "01-11"]),
        ("0 0 * * */7", ["01-04", "01-11"]),
        ("0 0 5-5 * *", ["01-05", "02-05"]),
        ("0 0 31 * *", ["01-31", "03-31", "05-31", "07-31"]),
        ("0 0 30,31 2,4 *", ["04-30"]),
        ("0 0 31 2 1", ["02-02", "02-09", "02-16", "02-23"]),  # the Mondays of February
        ("0 0 1 JAN,jul *", ["07-01", "2027-01-01"]),
        ("0 0 1 FEB-apr/2 *", ["02-01", "04-01"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29"]),
        ("0 0 29 2 */7", ["2032-02-29", "2060-02-29", "2088-02-29", "2128-02-29"]),
    ],
)
def test_days(expression: str, days: list[str]) -> None:
    expected = [at(f"{day}T00:00" if len(day) > 5 else f"2026-{day}T00:00") for day in days]
    assert ticks(cron(expression), len(days)) == expected


@pytest.mark.parametrize(
    ("expression", "times"),
    [
        ("1/15 * * * *", ["00:01", "00:16", "00:31", "00:46", "01:01"]),
        ("*/20 * * * *", ["00:20", "00:40", "01:00"]),
        ("*/59 * * * *", ["00:59", "01:00", "01:59"]),
        ("10-30/10,5 * * * *", ["00:05", "00:10", "00:20", "00:30", "01:05"]),
        ("05 07 * * *", ["07:05"]),
        ("0 20/2 * * *", ["20:00", "22:00"]),
        ("  0\t 3 * * *  ", ["03:00"]),
        ("59 23 * * *", ["23:59"]),
    ],
)
def test_times_of_day(expression: str, times: list[str]) -> None:
    assert ticks(cron(expression), len(times)) == [at(f"2026-01-01T{time}") for time in times]


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("", "expression"),
        ("   ", "expression"),
        ("* * * *", "expression"),
        ("* * * * * *", "expression"),
        ("0 0 3 * * *", "expression"),
        ("* * * * * * *", "expression"),
        ("@reboot", "expression"),
        ("@daily", "expression"),
        ("@every 5m", "expression"),
        ("* * * * @", "day of week"),
        ("0 3 * * *\u00a0", "day of week"),
        ("0\u00a03 * * *", "expression"),
        ("0 3 * * *\n", "day of week"),
        ("60 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("1- * * * *", "minute"),
        ("22-2 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("*/60 * * * *", "minute"),
        ("*/90 * * * *", "minute"),
        ("10-20/15 * * * *", "minute"),
        ("59/15 * * * *", "minute"),
        ("*/ * * * *", "minute"),
        ("*/5/5 * * * *", "minute"),
        ("*5 * * * *", "minute"),
        ("*-5 * * * *", "minute"),
        ("1, * * * *", "minute"),
        (",1 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("1.5 * * * *", "minute"),
        ("\u0663 * * * *", "minute"),  # a digit, but not of ASCII
        ("jan * * * *", "minute"),
        ("99999999999 * * * *", "minute"),
        ("H * * * *", "minute"),
        ("H/5 * * * *", "minute"),
        ("R * * * *", "minute"),
        ("R(0-5) * * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 22-2 * * *", "hour"),
        ("0 */24 * * *", "hour"),
        ("0 ? * * *", "hour"),
        ("0 0 0 * *", "day of month"),
        ("0 0 32 * *", "day of month"),
        ("0 0 L * *", "day of month"),
        ("0 0 15W * *", "day of month"),
        ("0 0 ? * *", "day of month"),
        ("0 0 31 2 *", "day of month"),
        ("0 0 30,31 2 *", "day of month"),
        ("0 0 30 2 */2", "day of month"),
        ("0 0 31 2,4,6,9,11 *", "day of month"),
        ("0 0 1 0 *", "month"),
        ("0 0 1 13 *", "month"),
        ("0 0 1 january *", "month"),
        ("0 0 1 mon *", "month"),
        ("0 0 1 NOV-FEB *", "month"),
        ("0 0 * * 8", "day of week"),
        ("0 0 * * 5-8", "day of week"),
        ("0 0 * * 5-1", "day of week"),
        ("0 0 * * 5-0", "day of week"),
        ("0 0 * * FRI-MON", "day of week"),
        ("0 0 * * L5", "day of week"),
        ("0 0 * * 5L", "day of week"),
        ("0 0 * * 5#2", "day of week"),
        (",".join(["0"] * 600) + " * * * *", "expression"),
        (None, "expression"),
    ],
)
def test_what_means_nothing_is_refused_and_named(expression: str, field: str) -> None:
    with pytest.raises(ScheduleInvalid) as refused:
        cron(expression)
    assert refused.value.field == field, refused.value
    with pytest.raises((ScheduleInvalid, TypeError)):
        Cron(expression)


def test_the_refusal_says_what_to_write() -> None:
    with pytest.raises(
        ScheduleInvalid, match=r"^schedule, hour: '25' is out of range; it goes from 0 to 23$"
    ):
        cron("0 25 * * *")
    with pytest.raises(ScheduleInvalid, match="write 22-23,0-2"):
        cron("0 22-2 * * *")


# -- zones


@pytest.mark.parametrize(
    "zone",
    [
        "", " ", "Mars/Olympus", "Europe", "Europe/Berlin ", "../../etc/passwd", "/etc/localtime", "localtime",
        "right/UTC", "posix/Europe/Berlin", "a\0b", "+02:00", "\udc80", None, 7, UTC,
    ],
)  # fmt: skip
def test_an_unknown_zone_is_refused_and_named(zone: str) -> None:
    with pytest.raises(ScheduleInvalid) as refused:
        cron("0 9 * * *", zone)
    assert refused.value.field == "zone"
    assert repr(zone) in str(refused.value)


@pytest.fixture
def no_zones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without a zone database, neither the system's nor the package `tzdata`."""
    for package in ("tzdata.zoneinfo", "tzdata.zoneinfo.Asia"):
        monkeypatch.setitem(sys.modules, package, None)
    reset_tzpath([str(tmp_path)])
    ZoneInfo.clear_cache()
    yield
    reset_tzpath()
    ZoneInfo.clear_cache()


def test_without_a_zone_database_zones_are_refused_and_utc_works(no_zones: None) -> None:
    with pytest.raises(ScheduleInvalid, match="'Asia/Kolkata' is not in the zone database"):
        cron("0 9 * * *", "Asia/Kolkata")
    assert cron("0 9 * * *").next(NEW_YEAR) == at("01-01T09:00")


def test_a_zone_has_effect() -> None:
    kolkata = cron("0 9 * * *", "Asia/Kolkata")
    assert kolkata.next(NEW_YEAR) == at("01-01T03:30")
    assert cron("0 9 * * *").next(NEW_YEAR) == at("01-01T09:00"), "UTC unless said"
    [shown] = describe(kolkata, 1, after=NEW_YEAR)
    assert shown.isoformat() == "2026-01-01T09:00:00+05:30", "shown on the clock of the schedule"


@pytest.mark.parametrize("schedule", [cron("0 9 * * *", BERLIN), every("1h")])
def test_times_are_aware_and_of_any_zone(schedule: Schedule) -> None:
    same = [
        NEW_YEAR,
        NEW_YEAR.astimezone(ZoneInfo("America/New_York")),
        NEW_YEAR.astimezone(timezone(-11 * HOUR)),
    ]
    assert len({schedule.next(one) for one in same}) == 1
    assert schedule.next(same[1]).tzinfo is UTC
    naive = NEW_YEAR.replace(tzinfo=None)
    with pytest.raises(ValueError, match=r"^after is a time without zone"):
        schedule.next(naive)
    with pytest.raises(ValueError, match=r"^last is a time without zone"):
        schedule.next(NEW_YEAR, last=naive)
    with pytest.raises(ValueError, match=r"^now is a time without zone"):
        after_tick(schedule, NEW_YEAR, naive, "drop")


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # the clock jumps from 02:00 to 03:00 at 01:00 UTC
        ("30 2 * * *", BERLIN, "03-28T12:00", ["03-29T01:00", "03-30T00:30"]),
        ("0,30 2 * * *", BERLIN, "03-28T12:00", ["03-29T01:00", "03-30T00:00"]),
        ("0 2,3 * * *", BERLIN, "03-28T12:00", ["03-29T01:00", "03-30T00:00", "03-30T01:00"]),
        ("0 * * * *", BERLIN, "03-28T23:30", ["03-29T00:00", "03-29T01:00", "03-29T02:00"]),
        ("*/30 2 * * *", BERLIN, "03-28T12:00", ["03-30T00:00"]),
        ("0 */2 * * *", BERLIN, "03-28T22:30", ["03-28T23:00", "03-29T02:00"]),
        # and back from 03:00 to 02:00 at 01:00 UTC
        ("30 2 * * *", BERLIN, "10-24T12:00", ["10-25T00:30", "10-26T01:30"]),
        ("30 2 * * *", BERLIN, "10-25T01:10", ["10-26T01:30"]),
        ("30 2,3 * * *", BERLIN, "10-25T01:10", ["10-25T02:30", "10-26T01:30"]),
        ("0 3 * * *", BERLIN, "10-25T00:59", ["10-25T02:00"]),
        ("0 * * * *", BERLIN, "10-24T23:30", ["10-25T00:00", "10-25T01:00", "10-25T02:00"]),
        ("*/30 2 * * *", BERLIN, "10-24T12:00", ["10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30"]),
        ("0 1,* * * *", BERLIN, "10-24T23:30", ["10-25T00:00", "10-25T02:00"]),  # does not start with a star
        ("0 */2 * * *", BERLIN, "10-24T22:30", ["10-25T00:00", "10-25T01:00", "10-25T03:00"]),
        # Lord Howe goes by half an hour, from 02:00 back to 01:30 at 15:00 UTC
        ("45 1 * * *", "Australia/Lord_Howe", "04-04T12:00", ["04-04T14:45", "04-05T15:15"]),
        ("*/15 * * * *", "Australia/Lord_Howe", "04-04T14:40", ["04-04T14:45", "04-04T15:00", "04-04T15:15"]),
        # Samoa had no 30 December in 2011: the day's wall times run at its end
        ("0 3 * * *", "Pacific/Apia", "2011-12-29T12:00", ["2011-12-29T13:00", "2011-12-30T10:00", "2011-12-30T13:00"]),
        ("0 0 * * *", "Pacific/Apia", "2011-12-29T00:00", ["2011-12-29T10:00", "2011-12-30T10:00", "2011-12-31T10:00"]),
    ],
)  # fmt: skip
def test_changes_of_the_clock(expression: str, zone: str, after: str, expected: list[str]) -> None:
    found, tick = [], at(after)
    for _ in expected:
        tick = cron(expression, zone).next(tick)
        found.append(tick)
    assert found == [at(one) for one in expected]


@pytest.mark.parametrize("expression", ["0 3 * * *", "*/5 * * * *", "0 0 13 * 5"])
def test_a_question_changes_nothing_that_threads_share(expression: str) -> None:
    schedule = cron(expression)
    schedule.next(NEW_YEAR)
    before = dict(vars(_walker(expression)))
    schedule.next(NEW_YEAR + 400 * DAY)
    assert vars(_walker(expression)) == before


def test_a_cron_tick_is_after_the_last_one_whatever_the_clock_says() -> None:
    assert cron("0 3 * * *").next(NEW_YEAR - DAY, last=at("01-01T03:00")) == at("01-02T03:00")


# -- intervals


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [("10m", 600), ("1h30m", 5400), ("250ms", 0.25), (90, 90), (0.5, 0.5), ("365d", 365 * 86400)],
)
def test_an_interval(interval: str | float, seconds: float) -> None:
    assert every(interval).next(NEW_YEAR) == NEW_YEAR + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "interval",
    [
        0,
        -1,
        "0s",
        "",
        "10",
        "10 m",
        "ten",
        "367d",
        1e-9,
        float("nan"),
        float("inf"),
        1e300,
        10**400,
        "9" * 400 + "s",
        None,
    ],
)
def test_a_wrong_interval_is_refused(interval: str | float) -> None:
    with pytest.raises(ScheduleInvalid) as refused:
        every(interval)
    assert refused.value.field == "interval"


def test_an_interval_counts_from_the_last_due_time() -> None:
    ten = every("10m")
    late = NEW_YEAR + timedelta(minutes=3)
    assert ten.next(late, last=NEW_YEAR) == at("01-01T00:10"), "lateness does not add up"
    assert ten.next(at("01-01T00:10"), last=NEW_YEAR) == at("01-01T00:20"), "strictly after"
    assert ten.next(at("01-01T12:01"), last=NEW_YEAR) == at("01-01T12:10"), "whole intervals away"
    assert ten.next(NEW_YEAR - DAY, last=NEW_YEAR) == at("01-01T00:10"), "never back"


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 366 * 86400 * 10**6), st.integers(0, 10**16))
def test_intervals_do_not_drift(interval_us: int, later_us: int) -> None:
    schedule = every(interval_us / 10**6)
    assert isinstance(schedule, Every)
    interval, now = timedelta(seconds=interval_us / 10**6), NEW_YEAR + timedelta(microseconds=later_us)
    due = schedule.next(now, last=NEW_YEAR)
    assert now < due <= now + interval
    assert (due - NEW_YEAR) % interval == timedelta(0)


# -- data


@pytest.mark.parametrize(
    "schedule", [cron("0 3 * * MON", BERLIN), cron("*/5 * * * *"), every(0.1), every("10m")]
)
def test_a_schedule_is_data_of_one_line(schedule: Schedule) -> None:
    text = msgspec.json.encode(schedule)
    assert b"\n" not in text
    assert msgspec.json.decode(text, type=Schedule) == schedule


def test_data_is_checked_when_it_is_read() -> None:
    for text in (
        b'{"type": "cron", "expression": "0 25 * * *"}',
        b'{"type": "cron", "expression": "0 3 * * *", "zone": "Mars/Olympus"}',
        b'{"type": "every", "every_s": 0}',
    ):
        with pytest.raises(ScheduleInvalid):
            msgspec.json.decode(text, type=Schedule)


# -- late and missed ticks


@pytest.mark.parametrize("schedule", [cron("*/5 * * * *"), every("5m")])
@pytest.mark.parametrize(
    ("now", "missed", "run", "due", "skipped"),
    [
        ("01-01T00:04", "drop", None, "01-01T00:05", 0),  # not due
        ("01-01T00:05", "drop", "01-01T00:05", "01-01T00:10", 0),
        ("01-01T00:09", "drop", "01-01T00:05", "01-01T00:10", 0),  # merely late
        ("01-01T00:10", "drop", "01-01T00:05", "01-01T00:15", 1),  # as late as its successor
        ("01-01T00:11", "drop", None, "01-01T00:15", 2),  # later than that
        ("01-01T12:02", "drop", None, "01-01T12:05", 144),  # twelve hours of downtime
        ("2027-01-01T00:02", "drop", None, "2027-01-01T00:05", 105120),  # the clock jumps by a year
        ("2025-01-01T00:00", "drop", None, "01-01T00:05", 0),  # and back
        ("01-01T00:04", "catch_up", None, "01-01T00:05", 0),
        ("01-01T00:09", "catch_up", "01-01T00:05", "01-01T00:10", 0),
        ("01-01T00:10", "catch_up", "01-01T00:05", "01-01T00:15", 1),
        ("01-01T00:11", "catch_up", "01-01T00:05", "01-01T00:15", 1),
        ("01-01T12:02", "catch_up", "01-01T00:05", "01-01T12:05", 143),
        ("2027-01-01T00:02", "catch_up", "01-01T00:05", "2027-01-01T00:05", 105119),
        ("2025-01-01T00:00", "catch_up", None, "01-01T00:05", 0),
    ],
)
def test_what_becomes_of_a_tick(
    schedule: Schedule, now: str, missed: Missed, run: str | None, due: str, skipped: int
) -> None:
    tick = after_tick(schedule, at("01-01T00:05"), at(now), missed)
    assert (tick.run, tick.due, tick.skipped) == (run and at(run), at(due), skipped)


EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * 1-5",
    "0 0 13 * 6-7",
    "15 4 1 */2 *",
]
SCHEDULES = st.one_of(
    st.builds(cron, st.sampled_from(EXPRESSIONS), st.sampled_from(["UTC", BERLIN, "America/New_York"])),
    st.builds(every, st.floats(1e-3, 1e6)),
)
MOMENTS = st.timedeltas(timedelta(0), 700 * DAY).map(NEW_YEAR.__add__)
JUMPS = st.one_of(
    st.timedeltas(timedelta(0), HOUR), st.timedeltas(-400 * DAY, 400 * DAY), st.timedeltas(-2 * DAY, 2 * DAY)
)


@settings(deadline=None, max_examples=150)
@given(SCHEDULES, MOMENTS, st.lists(JUMPS, max_size=20), st.sampled_from(["drop", "catch_up"]))
def test_whatever_the_clock_does_each_nominal_time_runs_at_most_once(
    schedule: Schedule, now: datetime, jumps: list[timedelta], missed: Missed
) -> None:
    due, runs = schedule.next(now), []
    for jump in jumps:
        now += jump
        tick = after_tick(schedule, due, now, missed)
        assert tick.due >= due, "never back"
        assert tick.due > now
        assert (tick.due == due) == (now < due)
        assert tick.skipped >= 0
        if tick.run is not None:
            assert tick.run == due <= now
            runs.append(tick.run)
        if missed == "catch_up" and now >= due:
            assert tick.run is not None, "what was missed runs once"
        due = tick.due
    assert all(earlier < later for earlier, later in pairwise([*runs, due]))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(EXPRESSIONS), MOMENTS, st.timedeltas(timedelta(0), 10 * DAY))
def test_skipped_ticks_are_counted_as_if_walked_through(
    expression: str, first: datetime, more: timedelta
) -> None:
    schedule, until, walked = cron(expression), first + more, 0
    tick = schedule.next(first)
    while tick <= until and walked < 200:
        tick, walked = schedule.next(tick), walked + 1
    until = min(until, tick - timedelta(microseconds=1))
    assert schedule.count(first, until) == walked


@settings(deadline=None, max_examples=200)
@given(SCHEDULES, MOMENTS, st.timedeltas(timedelta(0), 3 * DAY))
def test_the_next_tick_is_the_next_of_all_moments_before_it(
    schedule: Schedule, after: datetime, more: timedelta
) -> None:
    tick = schedule.next(after, last=after)
    assert tick > after
    between = min(after + more, tick - timedelta(microseconds=1))
    assert schedule.next(between, last=after) == tick
    assert schedule.next(tick, last=tick) > tick
