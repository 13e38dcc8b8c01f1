"""When a recurring job is due: what a cron expression or an interval means, and what becomes of missed ticks.

A schedule is data, `Cron` or `Every`, checked when it is made or decoded. croniter walks the calendar; which
expressions are accepted and what happens at changes of the clock is decided here, as users of Vixie cron know it:

* An expression whose minute and hour both start without `*` names wall times. Each of them runs exactly once
  for each day: at the moment of the change when the clock jumps over it (two that are jumped over run once,
  together), the first time when the clock shows it twice. A whole day that is jumped over (Samoa, 2011) counts
  as wall times jumped over.
* One whose minute or hour starts with `*` follows elapsed time: it runs at every minute of real time at which
  the clock of its zone shows a matching time, so what the clock shows twice runs twice, what it never shows
  does not run. `0 * * * *` and `*/5 * * * *` neither skip nor double.
* When day of month and day of week are both restricted, either may match (`0 0 13 * 5`: each 13th and each
  Friday). A field that starts with `*` is unrestricted for this rule, also with a step: then both must match
  (`0 0 */2 * 1`: Mondays with an odd day of the month).
"""

from __future__ import annotations

import calendar
import copy
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from runtime.errors import ScheduleInvalid
from runtime.model.units import parse_duration

Missed = Literal["drop", "catch_up"]

EXPRESSION_LIMIT = 1000  # characters; every value of all five fields, written out, is less than half of it
INTERVAL_MAX_S = 366 * 86400.0
_SECOND = timedelta(seconds=1)
_MACHINES_OWN = (
    "localtime",
    "posixrules",
    "posix/",
    "right/",
)  # differ from node to node, or count leap seconds


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """Due by the calendar and the clock of a zone. See `cron`."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _fields(self.expression)
        _zone(self.zone)

    def next(self, after: datetime, last: datetime | None = None) -> datetime:
        """The first tick after `after`, and after `last` when that is later; in UTC.

        Raises:
            ValueError: one of them is naive.
        """
        moment = _utc(after, "after")
        if last is not None:
            moment = max(moment, _utc(last, "last"))
        following = _next_fixed if _fields(self.expression).fixed else _next_elapsed
        return following(self.expression, moment, _zone(self.zone))

    def count(self, after: datetime, until: datetime) -> int:
        """How many ticks lie behind `after` and not behind `until`, by the calendar.

        Where the clock changes in between, the hours of the change are counted as the calendar has them.
        """
        zone = _zone(self.zone)
        first, last = (_wall(_utc(one, "time"), zone) for one in (after, until))
        return _fields(self.expression).count(first, last)

    def __str__(self) -> str:
        return f"{self.expression} ({self.zone})"


class Every(msgspec.Struct, frozen=True, tag="every"):
    """Due again and again after the same elapsed time. See `every`."""

    every_s: float

    def __post_init__(self) -> None:
        if not 0 < self.every_s <= INTERVAL_MAX_S or not self._interval:
            raise ScheduleInvalid("interval", f"{self.every_s} s is not between a microsecond and a year")

    @property
    def _interval(self) -> timedelta:
        return timedelta(seconds=self.every_s)

    def next(self, after: datetime, last: datetime | None = None) -> datetime:
        """The first tick after both `after` and `last`, the tick before; in UTC.

        Ticks are whole intervals away from `last`, so lateness does not add up. Without `last` the first
        one is an interval after `after`.

        Raises:
            ValueError: one of them is naive.
        """
        moment = _utc(after, "after")
        anchor = moment if last is None else _utc(last, "last")
        return anchor + (max(self.count(anchor, moment), 0) + 1) * self._interval

    def count(self, after: datetime, until: datetime) -> int:
        """How many ticks lie behind `after`, itself a tick, and not behind `until`."""
        return (until - after) // self._interval

    def __str__(self) -> str:
        return f"every {self.every_s:g} s"


Schedule = Cron | Every


def cron(expression: str, zone: str = "UTC") -> Schedule:
    """Due by five fields, `minute hour day-of-month month day-of-week`, of the clock of `zone`.

    A field is a list, by commas, of `*`, `5`, `5-10`, each also with a step (`*/5`, `0-30/10`; `5/10` means from
    5 to the field's end). Months and weekdays may be named (`JAN`, `MON`), Sunday is 0 or 7.

    Args:
        zone: a name of the IANA database, such as `Europe/Berlin`.

    Raises:
        ScheduleInvalid: the expression means nothing, or can never match; or there is no such zone.
    """
    if not isinstance(expression, str):
        raise ScheduleInvalid("expression", f"{expression!r} is no text")
    return Cron(" ".join(_split(expression)), zone)


def every(interval: str | float) -> Schedule:
    """Due again and again after `interval`: seconds, or text with a unit such as `"10m"`; at most a year.

    Raises:
        ScheduleInvalid: no duration, not above zero, or above a year.
    """
    try:
        return Every(parse_duration(interval) if isinstance(interval, str) else float(interval))
    except (ValueError, TypeError, OverflowError) as error:
        raise ScheduleInvalid("interval", str(error)) from None


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a schedule at a moment."""

    run: datetime | None  # push a job for this nominal time; None: for none
    due: datetime  # the next nominal time, after `run` and after now
    skipped: int = 0  # nominal times up to now for which there will never be a job, for the log


def after_tick(schedule: Schedule, due: datetime, now: datetime, missed: Missed) -> Tick:
    """What becomes of the tick that is due at `due`, and when the next one is.

    A tick that is late, but not later than its own successor, runs. When it is later, "drop" runs nothing, and
    "catch_up" runs once, for the first tick missed. Either way the rest is skipped and the next tick is the first
    one after now. The next due time never goes back, and each nominal time is handed out at most once,
    whatever the clock does.
    """
    due, now = _utc(due, "due"), _utc(now, "now")
    if now < due:
        return Tick(run=None, due=due)
    successor = schedule.next(due, last=due)
    if now < successor:
        return Tick(run=due, due=successor)
    later = max(schedule.count(due, now), 1)
    runs = missed == "catch_up" or now == successor
    return Tick(
        run=due if runs else None,
        due=schedule.next(now, last=due),
        skipped=later if runs else later + 1,
    )


def describe(schedule: Schedule, count: int = 5, *, after: datetime) -> list[datetime]:
    """The next `count` ticks after `after`, the last one before them, on the clock of the schedule's zone."""
    zone = _zone(schedule.zone) if isinstance(schedule, Cron) else UTC
    ticks = []
    moment = after
    for _ in range(count):
        moment = schedule.next(moment, last=moment)
        ticks.append(moment.astimezone(zone))
    return ticks


# -- what an expression means


class _Field(msgspec.Struct, frozen=True):
    name: str
    low: int
    high: int
    names: Mapping[str, int] = {}

    def values(self, text: str) -> frozenset[int]:
        """All values that a field's text names.

        Raises:
            ScheduleInvalid: it is not of Vixie cron's grammar, out of range, backwards or without effect.
        """
        return frozenset(value for element in text.split(",") for value in self._element(element))

    def _element(self, element: str) -> range:
        match = _ELEMENT.fullmatch(element.lower())
        if match is None:
            raise self._refused(element, "means nothing; write *, 5, 5-10, */5 or a list of these")
        first, last, step_text = match.groups()
        low = self.low if first is None else self._number(element, first)
        high = low
        if last is not None:
            high = 7 if last == "sun" and low > 0 else self._number(element, last)
        elif first is None or step_text is not None:
            high = self.high
        if high < low:
            raise self._refused(element, f"runs backwards; write {low}-{self.high},{self.low}-{high}")
        step = 1 if step_text is None else int(step_text)
        if step == 0 or step > max(high - low, 1):
            raise self._refused(element, f"has a step that never matches; it goes from {low} to {high}")
        return range(low, high + 1, step)

    def _number(self, element: str, text: str) -> int:
        number = self.names.get(text)
        if number is not None:
            return number
        if not text.isdigit():
            raise self._refused(element, f"has an unknown name, {text!r}")
        if not self.low <= int(text) <= self.high:
            raise self._refused(element, f"is out of range; it goes from {self.low} to {self.high}")
        return int(text)

    def _refused(self, element: str, problem: str) -> ScheduleInvalid:
        return ScheduleInvalid(
            self.name, f"{element!r} {problem}" if element else "has an empty place in its list"
        )


_ELEMENT = re.compile(r"(?:\*|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?", re.ASCII)
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY = _Field("day of month", 1, 31)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)})
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WEEKDAY = _Field("day of week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)})
_LEAP_YEAR = 2000


class _Fields(msgspec.Struct, frozen=True):
    """A checked expression, as sets of values."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 to 6 from Sunday
    either_day: bool  # day of month or day of week suffices; False: both must match
    fixed: bool  # names wall times; False: follows elapsed time

    def count(self, first: datetime, last: datetime) -> int:
        """How many wall times match that are later than `first` and not later than `last`."""
        days = (date.fromordinal(day) for day in range(first.toordinal(), last.toordinal() + 1))
        whole = sum(map(self._on, days)) * len(self.hours) * len(self.minutes)
        return (
            whole - self._until(first) - (self._until(last.replace(hour=23, minute=59)) - self._until(last))
        )

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either_day else of_month and of_week

    def _until(self, wall: datetime) -> int:
        """How many times of its day match that are not later than `wall`."""
        if not self._on(wall.date()):
            return 0
        earlier = sum(hour < wall.hour for hour in self.hours) * len(self.minutes)
        return earlier + (wall.hour in self.hours) * sum(minute <= wall.minute for minute in self.minutes)


def _split(expression: str) -> list[str]:
    return [field for field in re.split(r"[ \t]+", expression) if field]


@lru_cache(maxsize=1024)
def _fields(expression: str) -> _Fields:
    """What an expression means.

    Raises:
        ScheduleInvalid: there is no such expression, or it never fires.
    """
    texts = _split(expression)
    if len(expression) > EXPRESSION_LIMIT:
        raise ScheduleInvalid("expression", f"is longer than {EXPRESSION_LIMIT} characters")
    if expression.lstrip().startswith("@"):
        raise ScheduleInvalid(
            "expression", f"{expression!r} is not known; write five fields, or every('10m')"
        )
    if len(texts) != 5:
        raise ScheduleInvalid(
            "expression",
            f"{expression!r} has {len(texts)} fields, not five: minute hour day-of-month month day-of-week",
        )
    minute, hour, day, month, weekday = texts
    fields = _Fields(
        minutes=_MINUTE.values(minute),
        hours=_HOUR.values(hour),
        days=_DAY.values(day),
        months=_MONTH.values(month),
        weekdays=frozenset(value % 7 for value in _WEEKDAY.values(weekday)),
        either_day=not day.startswith("*") and not weekday.startswith("*"),
        fixed=not minute.startswith("*") and not hour.startswith("*"),
    )
    longest = max(calendar.monthrange(_LEAP_YEAR, month)[1] for month in fields.months)
    if not fields.either_day and min(fields.days) > longest:
        raise ScheduleInvalid(
            "day of month", f"{day!r} never fires; the months of {month!r} have {longest} days"
        )
    return fields


@lru_cache(maxsize=1024)
def _walker(expression: str) -> Any:
    """croniter, set to an expression. It gets plain lists only, and so decides nothing of the grammar."""
    from croniter import croniter  # type: ignore[import-untyped]  # noqa: PLC0415 - costs 50 ms, defining needs none

    fields = _fields(expression)
    days, weekdays = _listed(fields.days, 31), _listed(fields.weekdays, 7)
    if fields.either_day and "*" in (days, weekdays):
        days = weekdays = "*"
    lists = (
        _listed(fields.minutes, 60),
        _listed(fields.hours, 24),
        days,
        _listed(fields.months, 12),
        weekdays,
    )
    return croniter(" ".join(lists), datetime(2000, 1, 1), day_or=fields.either_day)  # noqa: DTZ001 - a wall time


def _listed(values: frozenset[int], all_of: int) -> str:
    return "*" if len(values) == all_of else ",".join(map(str, sorted(values)))


def _match_after(expression: str, wall: datetime) -> datetime:
    """The first matching wall time after `wall`; both naive."""
    walker = copy.copy(_walker(expression))  # it keeps its place in itself, and threads share the cached one
    found = walker.get_next(datetime, start_time=wall.replace(microsecond=0))
    assert isinstance(found, datetime)
    return found


# -- what a wall time is


def _zone(name: str) -> tzinfo:
    """The zone of that name; never UTC in its place.

    Raises:
        ScheduleInvalid: there is no such zone, or no zone database.
    """
    if name == "UTC":
        return UTC
    if not isinstance(name, str) or name.startswith(_MACHINES_OWN):
        raise ScheduleInvalid("zone", f"{name!r} is no zone's name; write one such as 'Europe/Berlin'")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # also a directory's name, or one with `..` in it
        raise ScheduleInvalid(
            "zone", f"{name!r} is not in the zone database of this machine; write one such as 'Europe/Berlin'"
        ) from None


def _utc(moment: datetime, argument: str) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{argument} is a time without zone: {moment}")
    return moment.astimezone(UTC)


def _wall(moment: datetime, zone: tzinfo) -> datetime:
    """What the clock of the zone shows then; naive."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _moments(wall: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """The moments of a wall time by the offset before and after the change around it; equal if there is none."""
    before, after = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return before, after


def _change(wall: datetime, zone: tzinfo) -> datetime | None:
    """The change of the clock that shows `wall` twice or never; None when it is shown once."""
    low, high = sorted(_moments(wall, zone))
    if low == high:
        return None
    offset = high.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return high


def _next_fixed(expression: str, after: datetime, zone: tzinfo) -> datetime:
    """The next of the wall times that each run once."""
    wall = _wall(after, zone)
    change = _change(wall, zone)
    if change is not None and change <= after:  # shown for the second time: go on where the first one ended
        wall += change - _moments(wall, zone)[0] - _SECOND
    tick = _match_after(expression, wall)
    change = _change(tick, zone)
    first = _moments(tick, zone)[0]
    return first if change is None else min(first, change)


def _next_elapsed(expression: str, after: datetime, zone: tzinfo) -> datetime:
    """The next minute of real time at which the clock of the zone shows a match."""
    wall = _wall(after, zone)
    tick = _match_after(expression, wall)
    change = _change(wall, zone)
    if change is not None and after < change <= _moments(tick, zone)[0]:  # the clock goes back before that
        tick = _match_after(expression, _wall(change, zone) - _SECOND)
    while (change := _change(tick, zone)) is not None:
        first, second = _moments(tick, zone)
        if first < second:  # shown twice
            return first if first > after else second
        tick = _match_after(expression, _wall(change, zone) - _SECOND)
    return _moments(tick, zone)[0]
