"""What becomes of schedules that are due, on both stores and on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from structlog.testing import capture_logs

from runtime.actors import ticking
from runtime.edges.memory import MemoryStore
from runtime.edges.postgres import PostgresStore
from runtime.edges.store import Store
from runtime.model.jobs import Holder, JobView, Missed, NewSchedule, NodeView, Overlap, State, Want
from runtime.rules.schedule import Cron, Every, Schedule

T = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEN = Every(10.0)


class Clock:
    now = T

    def __call__(self) -> datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(clock)
        return
    found = PostgresStore(request.getfixturevalue("schema_dsn"), clock=clock)
    yield found
    found.close()


def given(
    name: str = "s",
    rule: Schedule = TEN,
    overlap: Overlap = "skip",
    missed: Missed = "catch_up",
    *,
    declared: bool = False,
    due: datetime | None = T,
    kind: str = "noop",
) -> NewSchedule:
    return NewSchedule(
        name=name,
        kind=kind,
        spec=msgspec.json.encode(rule).decode(),
        overlap=overlap,
        missed=missed,
        declared=declared,
        due=due,
    )


def finish_all(store: Store) -> int:
    want = Want(holder=Holder("n", 1, 1), limit=1000, lease_s=60, kinds=("noop",), queues=("*",))
    claims = store.claim(want)
    for claim in claims:
        store.finish(claim)
    return len(claims)


def dues(store: Store) -> list[float]:
    views: list[JobView] = store.jobs(limit=1000)
    return sorted((view.due - T).total_seconds() for view in views)


def test_each_tick_makes_one_job_whoever_else_is_at_it(store: Store, clock: Clock) -> None:
    store.schedule(given(overlap="queue"))
    for _ in range(60):
        seen = store.overdue()
        assert ticking.tick(store) == 1
        assert ticking.tick(store) == 0
        for schedule in seen:  # a scheduler that was paused after it had looked
            assert not store.advance(schedule.name, schedule.due, clock.now, None)
        clock.move(10)
    assert dues(store) == [10.0 * n for n in range(60)]


def test_a_tick_while_the_last_run_is_on_is_skipped_or_waits_in_line(store: Store, clock: Clock) -> None:
    store.schedule(given("skipping", overlap="skip"))
    store.schedule(given("queueing", overlap="queue"))
    for _ in range(3):
        ticking.tick(store)
        clock.move(10)
    assert dues(store) == [0.0, 0.0, 10.0, 20.0]
    finish_all(store)
    ticking.tick(store)
    assert dues(store) == [0.0, 0.0, 10.0, 20.0, 30.0, 30.0], "and goes on when that is over"


@pytest.mark.parametrize(("missed", "jobs"), [("drop", 0), ("catch_up", 1)])
def test_twelve_hours_of_downtime_make_no_storm(
    store: Store, clock: Clock, missed: Missed, jobs: int
) -> None:
    store.schedule(given(rule=Cron("*/5 * * * *"), overlap="queue", missed=missed))
    clock.move(12 * 3600 + 1)
    ticking.tick(store)
    ticking.tick(store)
    assert len(dues(store)) == jobs
    [schedule] = store.schedules()
    assert schedule.due == T + timedelta(hours=12, minutes=5)


def test_a_clock_that_goes_back_repeats_no_tick(store: Store, clock: Clock) -> None:
    store.schedule(given(overlap="queue"))
    ticking.tick(store)
    clock.move(-3600)
    assert ticking.tick(store) == 0
    clock.move(3600 + 10)
    ticking.tick(store)
    assert dues(store) == [0.0, 10.0]


def test_a_rule_that_nobody_knows_is_paused_and_harms_no_other(store: Store, clock: Clock) -> None:
    store.schedule(NewSchedule(name="bad", kind="noop", spec='{"type": "moon"}', due=T - timedelta(1)))
    store.schedule(given("good"))
    assert ticking.tick(store) == 1
    assert {one.name: one.paused for one in store.schedules()} == {"bad": True, "good": False}


def test_what_stands_in_code_is_made_and_goes_when_it_does(store: Store, clock: Clock) -> None:
    store.schedule(given("by hand", kind="gone"))
    store.report(NodeView(id="other", host="h", pid=1, version="0", state="running", kinds=["theirs"]))
    theirs = given("theirs", declared=True, kind="theirs")
    store.schedule(theirs)
    ticking.declare(store, [given("a", declared=True, due=None), given("b", declared=True)], ["noop"], "me")
    assert {one.name: (one.due - T).total_seconds() for one in store.schedules()} == {
        "a": 10, "b": 10, "by hand": 0, "theirs": 0,
    }  # fmt: skip
    with capture_logs() as lines:
        ticking.declare(store, [given("b", declared=True)], ["noop"], "me")
    assert [(line["event"], line["schedule"]) for line in lines] == [("schedule.removed", "a")]
    assert [one.name for one in store.schedules()] == ["b", "by hand", "theirs"]
    store.forget("other")
    ticking.declare(store, [given("b", declared=True)], ["noop"], "me")
    assert [one.name for one in store.schedules()] == ["b", "by hand"]


def test_a_failing_run_is_retried_by_its_own_rule_and_the_next_tick_comes_regardless(
    store: Store, clock: Clock
) -> None:
    store.schedule(given(overlap="queue"))
    ticking.tick(store)
    want = Want(holder=Holder("n", 1, 1), limit=1, lease_s=60, kinds=("noop",), queues=("*",))
    [claim] = store.claim(want)
    store.finish(claim, "it failed")
    clock.move(10)
    ticking.tick(store)
    assert store.counts().states[State.QUEUED] == 2
