"""Goal: rows of a table are claimed by one attempt at a time, come back by themselves, and are written by version."""

# ruff: noqa: PT012 - the block is the transaction that must not commit

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from runtime import WorkTable, exponential
from runtime.edges import worktables
from runtime.edges.fence import Sessions, Writes
from runtime.edges.postgres import PostgresStore
from runtime.edges.worktables import Lack, Row
from runtime.errors import LeaseLost, RowChanged
from tests.edges.conftest import Clock
from tests.helpers.jobs import new, want
from tests.helpers.waiting import wait_for

OUTBOX = WorkTable("outbox", max_attempts=3)
ODD = WorkTable('odd.o"ut', due='d"ue', attempts="select", version="from", key="user", max_attempts=3)
DAY = 86_400.0


@pytest.fixture
def look(postgres: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A bystander's connection, with empty work tables: what `check` prints makes them."""
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        conn.execute("drop table if exists outbox; drop schema if exists odd cascade; create schema odd")
        for table in (OUTBOX, ODD):
            for lack in worktables.lacks(conn, table):
                conn.execute(lack.ddl.encode())
        conn.execute("alter table outbox add column address text, add column sent_at timestamptz")
        yield conn


@pytest.fixture
def attempt(postgres: PostgresStore, look: psycopg.Connection[Any]) -> Iterator[Callable[..., Writes]]:
    """Makes an attempt of a job of its own, with a connection of its own."""
    made: list[Sessions] = []

    def make(period_s: float | None = None, clock: Clock | None = None) -> Writes:
        postgres.push([new()])
        [claim] = postgres.claim(want(lease_s=300 * DAY))
        made.append(Sessions(postgres.url, clock=clock))
        return Writes(claim.lease, made[-1], str, lambda: period_s, lambda ending: None)

    yield make
    for sessions in made:
        sessions.close()


def insert(look: psycopg.Connection[Any], *addresses: str, due: datetime | None = None) -> None:
    for address in addresses:
        look.execute("insert into outbox (address) values (%s)", [address])
    if due is not None:
        look.execute("update outbox set due = %s", [due])


def at_work(look: psycopg.Connection[Any], attempt: Callable[..., Writes]) -> tuple[Writes, Row]:
    """An attempt, and the one row of the outbox, which it has claimed."""
    insert(look, "a")
    mine = attempt()
    [row] = mine.claim(OUTBOX, 1, None)
    return mine, row


def rows(look: psycopg.Connection[Any]) -> list[Any]:
    return look.execute("select address, attempts, version, due is null from outbox order by id").fetchall()


def test_a_claim_counts_a_try_and_moves_the_due_time_ahead(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    insert(look, "a", "b", "c")
    mine = attempt()
    first, second = mine.claim(OUTBOX, 2, None)
    assert [first["address"], second["address"]] == ["a", "b"], "the longest due first"
    assert (first.key, first.version, first.attempts, first.ref, first.is_last) == (
        1,
        2,
        1,
        "outbox/1",
        False,
    )
    assert rows(look) == [("a", 1, 2, False), ("b", 1, 2, False), ("c", 0, 1, False)]
    [third] = attempt().claim(OUTBOX, 10, None)
    assert third["address"] == "c"
    assert attempt().claim(OUTBOX, 10, None) == []
    [wait] = look.execute(
        "select extract(epoch from due - now())::float8 from outbox where id = 1"
    ).fetchall()
    assert 55 < wait[0] <= 60


@pytest.mark.parametrize(
    ("table", "period_s", "waits_s"),
    [
        (WorkTable("t", max_attempts=4), None, [60, 120, 240, 480]),
        (WorkTable("t", max_attempts=3), 300.0, [300, 600, 1200]),
        (WorkTable("t", max_attempts=3), 20 * DAY, [20 * DAY, 30 * DAY, 30 * DAY]),
        (WorkTable("t", max_attempts=3, backoff=exponential(1, 3)), 300.0, [1, 2, 3]),
        (WorkTable("t", max_attempts=1000, backoff=exponential(1, 1e9, 1000)), None, None),
    ],
    ids=["no schedule", "its period", "the cap", "its own", "far"],
)
def test_the_wait_doubles_from_the_period_up_to_30_days(
    table: WorkTable, period_s: float | None, waits_s: list[float] | None
) -> None:
    found = table.delays_s(period_s)
    assert len(found) == table.max_attempts
    assert found == waits_s or (waits_s is None and max(found) == 30 * DAY)


def test_each_claim_waits_longer_until_the_row_is_stuck_and_is_requeued(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes], clock: Clock
) -> None:
    insert(look, "a", due=clock.now)
    mine = attempt(period_s=100.0, clock=clock)
    for wait_s in (100, 200, 400):
        [row] = mine.claim(OUTBOX, 10, None)
        assert mine.claim(OUTBOX, 10, None) == []
        clock.move(wait_s - 1)
        assert mine.claim(OUTBOX, 10, None) == []
        clock.move(1)
    assert row.is_last
    with mine.transaction() as tx:
        row.requeue(tx)
    assert look.execute("select due from outbox").fetchone() == (clock.now,), "by the clock of the test"
    look.execute("update outbox set attempts = 3, version = 4")
    assert mine.claim(OUTBOX, 10, None) == [], "it has been claimed as often as it may be"
    [stuck] = worktables.stuck(look, OUTBOX, 10)
    assert (stuck.key, stuck.attempts, stuck.version) == ("1", 3, 4)
    assert worktables.requeue(look, OUTBOX, "1")
    assert not worktables.requeue(look, OUTBOX, "2")
    with pytest.raises(ValueError, match="no key of outbox"):
        worktables.requeue(look, OUTBOX, "one")
    assert worktables.stuck(look, OUTBOX, 10) == []
    look.execute("update outbox set attempts = 3, due = now()")
    assert worktables.requeue_stuck(look, OUTBOX) == 1
    assert rows(look) == [("a", 0, 6, False)]


def test_a_row_that_its_last_claim_works_on_is_not_stuck(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    insert(look, "a")
    look.execute("update outbox set attempts = 2")
    attempt().claim(OUTBOX, 1, None)
    assert worktables.stuck(look, OUTBOX, 10) == []


def test_a_row_is_done_removed_or_requeued(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    insert(look, "a", "b", "c", "d", "e")
    look.execute("update outbox set attempts = 1 where address in ('c', 'e')")
    mine = attempt()
    done, removed, requeued, later, released = mine.claim(OUTBOX, 10, None)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with mine.transaction() as tx:
        done.done(tx, sent_at=at, address="A")
        removed.remove(tx)
        requeued.requeue(tx)
        later.requeue(tx, at, address="D")
        released.release(tx, at)
    assert rows(look) == [("A", 1, 3, True), ("c", 0, 3, False), ("D", 0, 3, False), ("e", 1, 3, False)]
    assert look.execute("select sent_at from outbox where address = 'A'").fetchone() == (at,)
    assert look.execute("select due from outbox where address = 'D'").fetchone() == (at,)
    assert [row["address"] for row in mine.claim(OUTBOX, 10, None)] == ["c"]
    assert look.execute("select due from outbox where address = 'e'").fetchone() == (at,)


def test_each_step_of_a_row_expects_the_version_of_the_step_before(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    mine, row = at_work(look, attempt)
    with mine.transaction() as tx:
        row.update(tx, address="sending")
        row.update(tx, address="still sending")
    assert row.version == 4
    with pytest.raises(ZeroDivisionError), mine.transaction() as tx:
        row.done(tx)
        raise ZeroDivisionError
    assert row.version == 4, "what was rolled back did not change it"
    with mine.transaction() as tx:
        row.done(tx)
    assert rows(look) == [("still sending", 1, 5, True)]


def test_what_a_savepoint_rolls_back_leaves_the_row_as_it_is_expected(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    mine, row = at_work(look, attempt)
    with mine.transaction() as tx:
        with tx.conn.transaction():
            row.update(tx, address="kept")
        with tx.conn.transaction():
            row.done(tx, address="rolled back")
            raise psycopg.Rollback
        row.update(tx)
    assert (rows(look), row.version) == ([("kept", 1, 4, False)], 4)
    with mine.transaction() as tx, tx.conn.transaction():
        row.update(tx, address="released")
    with mine.transaction() as tx:
        row.done(tx)
    assert rows(look) == [("released", 1, 6, True)]


def test_a_row_that_was_changed_since_a_savepoint_was_rolled_back_is_left_alone(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    mine, row = at_work(look, attempt)
    with pytest.raises(RowChanged), mine.transaction() as tx:
        with tx.conn.transaction():
            row.done(tx)
            raise psycopg.Rollback
        look.execute("update outbox set address = 'theirs', version = version + 1")
        row.done(tx)
    assert rows(look) == [("theirs", 1, 3, False)], "with the same version as what was rolled back"


def test_a_percent_sign_in_a_name_is_part_of_it(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    table = WorkTable("100%", due="%s", key="%(key)s")
    look.execute('drop table if exists "100%"')
    for lack in worktables.lacks(look, table):
        look.execute(lack.ddl.encode())
    look.execute('alter table "100%" add column "rate%" int; insert into "100%" ("rate%") values (1)')
    mine = attempt()
    [row] = mine.claim(table, 1, {"rate%": 1})
    with mine.transaction() as tx:
        row.done(tx, **{"rate%": 2})
    assert look.execute('select "rate%", "%s" from "100%"').fetchall() == [(2, None)]


@pytest.mark.parametrize("tries", [None, -3], ids=["null", "negative"])
def test_a_count_that_is_none_is_one_of_no_tries(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes], tries: int | None
) -> None:
    look.execute("alter table outbox alter attempts drop not null, alter version drop not null")
    insert(look, "a")
    look.execute("update outbox set attempts = %s, version = null", [tries])
    mine = attempt()
    [row] = mine.claim(OUTBOX, 1, None)
    assert row.attempts == 1
    assert row["due"] is not None, "null would say that it is done"
    with mine.transaction() as tx:
        row.done(tx)
    assert rows(look) == [("a", 1, 2, True)]


@pytest.mark.parametrize("act", ["update", "done", "remove", "requeue", "release"])
def test_a_row_that_somebody_has_changed_is_left_alone(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes], act: str
) -> None:
    mine, row = at_work(look, attempt)
    look.execute("update outbox set address = 'theirs', version = version + 1")
    with pytest.raises(RowChanged, match="outbox/1 is not at version 2"), mine.transaction() as tx:
        tx.execute("insert into outbox (address) values ('mine')")
        getattr(row, act)(tx)
    assert rows(look) == [("theirs", 1, 3, False)]


def test_a_replaced_attempt_claims_and_writes_nothing(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes], postgres: PostgresStore, clock: Clock
) -> None:
    insert(look, "a", "b")
    mine = attempt()
    [row] = mine.claim(OUTBOX, 1, None)
    clock.move(301 * DAY)
    assert postgres.reclaim() != []
    with pytest.raises(LeaseLost):
        mine.claim(OUTBOX, 1, None)
    with pytest.raises(LeaseLost), mine.transaction() as tx:
        row.done(tx)
    assert rows(look) == [("a", 1, 2, False), ("b", 0, 1, False)]


def test_two_attempts_never_claim_one_row(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    """The second one claims while the first one's claim has not committed."""
    insert(look, *"abcdef")
    mine, other = attempt(), attempt()
    with mine.transaction() as tx:
        held = worktables.claim(
            tx.conn, OUTBOX, limit=3, where=None, delays_s=[60], clock=None, is_open=lambda tx: True
        )
        rest = other.claim(OUTBOX, 10, None)
    assert [row["address"] for row in held] == ["a", "b", "c"]
    assert [row["address"] for row in rest] == ["d", "e", "f"]


def test_where_names_columns_or_a_composed_condition(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    insert(look, "a", "100%", "c'; drop table outbox; --")
    look.execute("insert into outbox (address) values (null)")
    mine = attempt()

    def found(where: worktables.Where) -> list[str]:
        return [row["address"] for row in mine.claim(OUTBOX, 10, where)]

    assert found({"address": "nobody"}) == []
    assert found({"address": "c'; drop table outbox; --"}) == ["c'; drop table outbox; --"]
    assert found({"address": None}) == [None]
    assert found(sql.SQL("address like {} or false").format(sql.Literal("100%"))) == ["100%"]
    assert found({"address": "a", "id": 1}) == ["a"]
    with pytest.raises(TypeError, match="where takes columns"):
        found("address = 'a'")  # type: ignore[arg-type]
    with pytest.raises(psycopg.errors.UndefinedColumn):
        found({'address" is null or "address': "a"})


def test_names_that_need_quoting_are_quoted(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    look.execute('insert into odd."o""ut" default values')
    assert worktables.lacks(look, ODD) == []
    mine = attempt()
    [row] = mine.claim(ODD, 1, {"user": 1})
    with mine.transaction() as tx:
        row.requeue(tx)
        row.done(tx)
    assert look.execute('select "d""ue", "select", "from" from odd."o""ut"').fetchall() == [(None, 0, 4)]


def test_a_claim_needs_a_running_attempt_outside_of_its_transactions(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    insert(look, "a")
    mine = attempt()
    with mine.transaction(), pytest.raises(RuntimeError, match=r"before ctx.transaction\(\)"):
        mine.claim(OUTBOX, 1, None)
    for limit in (0, 501, 1.5, True):
        with pytest.raises(ValueError, match="limit must be"):
            mine.claim(OUTBOX, limit, None)  # type: ignore[arg-type]
    [row] = mine.claim(OUTBOX, 500, None)
    with mine.transaction() as old:
        pass
    with pytest.raises(ValueError, match="under way"):
        row.done(old)
    with mine.transaction() as tx, pytest.raises(ValueError, match="'due' of outbox"):
        row.done(tx, due=None)
    mine.end()
    for use in (lambda: mine.claim(OUTBOX, 1, None), lambda: mine.fence(look)):
        with pytest.raises(RuntimeError, match="attempt is over"):
            use()
    with pytest.raises(RuntimeError, match="attempt is over"), mine.transaction():
        pass


def test_a_crash_leaves_the_row_as_the_claim_left_it(
    look: psycopg.Connection[Any], attempt: Callable[..., Writes]
) -> None:
    insert(look, "a")
    mine = attempt()
    pid = os.fork()
    if pid == 0:
        [row] = mine.claim(OUTBOX, 1, None)
        with mine.transaction() as tx:
            row.done(tx, address="half done")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    wait_for(
        lambda: look.execute(
            "select count(*) from pg_stat_activity where application_name like 'tenure%%' and datname = current_database() and state <> 'idle'"
        ).fetchone(),
        lambda row: row == (0,),
    )
    assert rows(look) == [("a", 1, 2, False)]


# -- what a table must have


def test_what_is_missing_is_told_and_its_statement_mends_it(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "create table work (id int, due timestamp not null, attempts text, name text, version smallint);"
            "insert into work values (1, now(), '0', 'kept', 1)"
        )
        table = WorkTable("work")
        problems = [lack.problem for lack in worktables.lacks(conn, table)]
        assert problems == [
            "id may be null, and names the row",
            "due is timestamp without time zone, which names no moment",
            "due cannot be null, so no row could be done",
            "due has the default null, so a new row would not be due",
            "attempts is text; it counts, so it must be smallint or integer or bigint",
            "attempts has no default",
            "attempts may be null",
            "version is smallint; it counts, so it must be integer or bigint",
            "version has no default",
            "version may be null",
            "id alone is not unique",
            "no index begins with due",
        ]
        for lack in worktables.lacks(conn, table):
            conn.execute(lack.ddl.encode())
        assert worktables.lacks(conn, table) == []
        assert conn.execute("select id, attempts, version, name from work").fetchall() == [(1, 0, 1, "kept")]


def test_each_column_that_is_missing_is_told(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table work (name text)")
        lacking: list[Lack] = worktables.lacks(conn, WorkTable("work"))
        assert [lack.problem for lack in lacking] == [
            "there is no column id",
            "there is no column due",
            "there is no column attempts",
            "there is no column version",
            "no index begins with due",
        ]
        for lack in lacking:
            conn.execute(lack.ddl.encode())
        assert worktables.lacks(conn, WorkTable("work")) == []
        assert conn.execute("insert into work default values returning due <= now()").fetchone() == (True,)


def test_a_period_is_the_time_between_two_ticks() -> None:
    from runtime import NO_RETRY, Context, Job, cron, job
    from runtime.registry import DEFINED

    @job(
        "w-hourly",
        retry=NO_RETRY,
        schedule=cron("0 */6 * * *", zone="Europe/Berlin"),
        overlap="skip",
        missed="drop",
    )
    class Hourly(Job):
        def run(self, ctx: Context) -> None: ...

    definition = DEFINED.definition_of(Hourly)
    moment = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    assert definition.period_s(moment) == timedelta(hours=6).total_seconds()
