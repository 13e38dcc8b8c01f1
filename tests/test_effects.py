"""Goal: an effect in the transaction that completes its job happens exactly once, whenever the process is killed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from runtime import NO_RETRY, Context, Job, job
from runtime.config import Config
from runtime.edges.fence import Sessions
from runtime.edges.postgres import PostgresStore
from runtime.errors import LeaseLost, PayloadInvalid, RightMissing
from runtime.model.jobs import Ending, State
from runtime.providers import Provided
from runtime.testing import LocalQueue, attempt_apart, crash_everywhere, die_at
from tests.helpers.jobs import new, want

ROUNDS, KILLS = 5, 100  # a round


@job("t-deposit", retry=NO_RETRY, max_crashes=1000)
class Deposit(Job):
    def run(self, ctx: Context) -> str:
        ctx.progress(1)
        with ctx.transaction() as tx:
            tx.execute("insert into deposit values (%s)", [ctx.id])
            ctx.progress(2)
            tx.complete("whole")
        ctx.progress(3)
        return "whole"


@job("t-mistaken", retry=NO_RETRY)
class Mistaken(Job):
    how: str

    def run(self, ctx: Context) -> object:
        with ctx.transaction() as tx:
            tx.execute("insert into deposit values (%s)", [ctx.id])
            tx.complete(float("nan") if self.how == "result" else 1)
        if self.how == "raise":
            raise ValueError(self.how)
        return object()  # which JSON could not hold


@job("t-confined", retry=NO_RETRY, rights=("deposit.write",), egress=())
class Confined(Deposit):
    """In a process of its own within the attempt's."""


@job("t-without-right", retry=NO_RETRY, rights=("deposit.look",))
class WithoutRight(Deposit): ...


@pytest.fixture
def look(schema_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(schema_dsn, autocommit=True) as conn:
        conn.execute("create table deposit (job uuid)")
        yield conn


def deposits(look: psycopg.Connection[Any], id: str) -> int:
    [[found]] = look.execute("select count(*) from deposit where job = %s", [id])
    return int(found)


@pytest.mark.parametrize("round", range(ROUNDS))
def test_each_effect_happens_exactly_once_under_500_kills_at_every_point(
    schema_dsn: str, look: psycopg.Connection[Any], round: int
) -> None:
    """Each attempt of a job is killed one point later than the one before; a job that is done is followed by another."""
    store, sessions, provided = PostgresStore(schema_dsn), Sessions(schema_dsn), Provided(Config())
    kills, points, ids = 0, set(), []
    point, done = 1, True
    while kills < KILLS or not done:
        if done:
            [id] = store.push([new(kind="t-deposit")])
            ids.append(str(id))
        [claim] = store.claim(want(kinds=("t-deposit",)))
        settled, _ = attempt_apart(claim, provided, sessions, partial(die_at, point))
        if settled is None:
            done, point = True, 1
        else:
            assert settled.ending is Ending.CRASHED
            kills += 1
            points.add(point)
            point += 1
            [kept] = store.settle([settled])
            done = not kept
        view = store.status(claim.lease.id)
        assert view is not None
        assert view.state is (State.DONE if done else State.QUEUED)
        assert deposits(look, claim.lease.id) == done, f"killed at point {point}"
        assert [one.ending for one in view.attempts][-1] is (Ending.DONE if done else Ending.CRASHED)
    store.close()
    assert points == set(range(1, max(points) + 1))
    assert len(points) > 15
    assert sorted(ids) == [str(id) for [id] in look.execute("select job from deposit order by job")]


def test_a_users_test_kills_such_a_handler_at_each_of_its_points(
    schema_dsn: str, look: psycopg.Connection[Any]
) -> None:
    def check() -> None:
        assert look.execute("select count(*) from deposit").fetchone() == (1,)

    points = crash_everywhere(
        Deposit(), check, reset=lambda: look.execute("truncate deposit"), url=schema_dsn
    )
    assert points > 15
    [[jobs]] = look.execute("select count(*) from tenure.finished where state = 'done'")
    assert jobs == points + 1


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
def test_what_a_handler_does_after_it_has_completed_changes_nothing(
    schema_dsn: str, look: psycopg.Connection[Any], isolated: bool
) -> None:
    with LocalQueue(isolated=isolated, store=lambda clock: PostgresStore(schema_dsn, clock=clock)) as queue:
        for how in ("raise", "return"):
            id = queue.push(Mistaken(how=how)) or ""
            assert queue.drain() == 1
            assert queue.result(id) == 1
            assert deposits(look, id) == 1
        id = queue.push(Mistaken(how="result")) or ""
        queue.drain()
        view = queue.status(id)
        assert view is not None
        assert view.state is State.DEAD
        assert view.attempts[0].error is not None
        assert view.attempts[0].error.class_ == PayloadInvalid.__name__
        assert deposits(look, id) == 0


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
def test_a_kind_writes_when_it_has_a_right_for_the_database(
    schema_dsn: str, look: psycopg.Connection[Any], isolated: bool
) -> None:
    with LocalQueue(isolated=isolated, store=lambda clock: PostgresStore(schema_dsn, clock=clock)) as queue:
        id, without = queue.push(Confined()) or "", queue.push(WithoutRight()) or ""
        assert queue.drain() == 2
        assert queue.result(id) == "whole"
        assert deposits(look, id) == 1
        view = queue.status(without)
        assert view is not None
        assert view.attempts[0].error is not None
        assert view.attempts[0].error.class_ == RightMissing.__name__


@job("e-kicked", retry=NO_RETRY)
class Kicked(Job):
    def run(self, ctx: Context) -> None: ...


@job("e-kicks", retry=NO_RETRY, kicks=("e-kicked",))
class Kicks(Job):
    def run(self, ctx: Context) -> None:
        with ctx.transaction() as tx:
            ctx.kick("e-kicked")
            tx.complete()
        with pytest.raises(RuntimeError, match="kick before"):
            ctx.kick("e-kicked")


def test_what_is_kicked_is_kicked_by_the_commit_that_completes_the_job(
    schema_dsn: str, look: psycopg.Connection[Any]
) -> None:
    with LocalQueue(store=lambda clock: PostgresStore(schema_dsn, clock=clock)) as queue:
        id = queue.push(Kicks()) or ""
        view = queue.run_one()
        assert view is not None
        assert (view.id, view.state) == (id, State.DONE)
        assert queue.drain() == 1
        assert look.execute("select kind from tenure.finished order by kind").fetchall() == [
            ("e-kicked",),
            ("e-kicks",),
        ]


@job("t-slow", retry=NO_RETRY)
class Slow(Job):
    def run(self, ctx: Context) -> None:
        raise LeaseLost(ctx.id, ctx.epoch)


def test_an_attempt_that_ends_because_its_lease_is_lost_spends_nothing() -> None:
    with LocalQueue() as queue:
        id = queue.push(Slow()) or ""
        view = queue.run_one()
        assert view is not None
        assert (view.id, view.state, view.failures, view.interruptions) == (id, State.QUEUED, 0, 1)
