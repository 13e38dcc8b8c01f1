"""Goal: an attempt that was replaced commits nothing, over whichever library; an effect and its job's end are one."""

# ruff: noqa: PT012 - the block is the transaction that must not commit

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from django.db.utils import DatabaseError as DjangoError

from runtime.edges import statements
from runtime.edges.fence import LEASE_LOST, Sessions, Writes, attempt_connection
from runtime.edges.ids import new_id
from runtime.edges.postgres import PostgresStore
from runtime.errors import LeaseLost, StoreUnavailable
from runtime.model.jobs import Claim, Ending, NewJob, State
from tests.edges.conftest import Clock
from tests.helpers.jobs import settlement, want
from tests.helpers.of_django import connection_of_django
from tests.helpers.waiting import wait_for


@pytest.fixture
def sessions(postgres: PostgresStore, clock: Clock) -> Iterator[Sessions]:
    made = Sessions(postgres.url, clock=clock)
    yield made
    made.close()


@pytest.fixture
def look(postgres: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A bystander's connection, with an empty table of effects."""
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        conn.execute("create table if not exists effect (value text); truncate effect")
        yield conn


def claimed(store: PostgresStore) -> Claim:
    id = new_id()
    store.push([NewJob(id=id, kind="noop")])
    [claim] = store.claim(want(lease_s=30))
    assert claim.lease.id == id
    return claim


def writes(claim: Claim, sessions: Sessions) -> Writes:
    return Writes(claim.lease, sessions, lambda result: f'"{result}"', lambda: None, lambda ending: None)


def effects(look: psycopg.Connection[Any]) -> list[str]:
    return [value for [value] in look.execute("select value from effect order by value")]


def state(store: PostgresStore, claim: Claim) -> State:
    view = store.status(claim.lease.id)
    assert view is not None
    return view.state


def replace(store: PostgresStore, clock: Clock) -> Claim:
    """Let the lease run out, and another attempt of the job be claimed."""
    clock.move(60)
    assert store.reclaim() != []
    [again] = store.claim(want())
    return again


def without_ends(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database in which nobody may end sessions: all that is left is the fence."""
    monkeypatch.setattr(store, "_end_sessions", lambda conn, leases: 0)


def test_an_attempt_with_its_lease_commits(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any]
) -> None:
    claim = claimed(postgres)
    mine = writes(claim, sessions)
    for value in "ab":
        with mine.transaction() as tx:
            tx.execute("insert into effect values (%s)", [value])
    assert effects(look) == ["a", "b"]
    assert state(postgres, claim) is State.RUNNING
    assert look.execute("select count(*) from tenure.fenced").fetchone() == (0,)


def test_a_block_that_raises_writes_nothing(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any]
) -> None:
    mine = writes(claimed(postgres), sessions)
    with pytest.raises(ZeroDivisionError), mine.transaction() as tx:
        tx.execute("insert into effect values ('a')")
        tx.complete()
        raise ZeroDivisionError
    assert effects(look) == []
    assert not mine.completed
    with mine.transaction() as tx:
        tx.execute("insert into effect values ('b')")
    assert effects(look) == ["b"]


@pytest.mark.parametrize("completes", [False, True], ids=["writes", "completes"])
def test_a_replaced_attempt_cannot_commit(
    postgres: PostgresStore,
    sessions: Sessions,
    look: psycopg.Connection[Any],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    completes: bool,
) -> None:
    without_ends(postgres, monkeypatch)
    claim = claimed(postgres)
    mine = writes(claim, sessions)
    with pytest.raises(LeaseLost, match=f"epoch {claim.lease.epoch}"), mine.transaction() as tx:
        tx.execute("insert into effect values ('old')")
        if completes:
            tx.complete("old")
        again = replace(postgres, clock)
    assert effects(look) == []
    assert state(postgres, claim) is State.RUNNING
    with writes(again, sessions).transaction() as tx:
        tx.execute("insert into effect values ('new')")
    with pytest.raises(LeaseLost), mine.transaction():
        raise AssertionError("it is told at the beginning, too")
    assert effects(look) == ["new"]


def test_a_lease_that_was_given_back_is_lost_at_its_own_epoch(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any]
) -> None:
    claim = claimed(postgres)
    with pytest.raises(LeaseLost), writes(claim, sessions).transaction() as tx:
        tx.execute("insert into effect values ('old')")
        postgres.give_back([claim.lease])
    assert effects(look) == []


def test_an_effect_and_the_end_of_its_job_are_one_commit(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any]
) -> None:
    claim = claimed(postgres)
    noted: list[bool] = []
    mine = Writes(claim.lease, sessions, lambda result: f'"{result}"', lambda: None, noted.append)
    with mine.transaction() as tx:
        tx.execute("insert into effect values ('a')")
        tx.complete("whole")
        with pytest.raises(RuntimeError, match="once"):
            tx.complete("again")
        tx.execute("insert into effect values ('b')")
        assert noted == []
        assert state(postgres, claim) is State.RUNNING
    assert noted == [True]
    assert mine.completed
    view = postgres.status(claim.lease.id)
    assert view is not None
    assert (view.state, bytes(view.result or b"")) == (State.DONE, b'"whole"')
    assert [one.ending for one in view.attempts] == [Ending.DONE]
    assert effects(look) == ["a", "b"]
    with pytest.raises(RuntimeError, match="completed"), mine.transaction():
        pass


def test_a_transaction_that_the_block_itself_has_ended_commits_nothing_and_completes_nothing(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any]
) -> None:
    """Each of these leaves the block without an exception of the database."""
    claim = claimed(postgres)
    mine = writes(claim, sessions)
    with mine.transaction() as tx:
        tx.execute("insert into effect values ('a')")
        tx.complete()
        raise psycopg.Rollback
    for ending in ("rollback", "rollback and chain", "select 1 / 0"):
        with pytest.raises(RuntimeError, match="failed or was ended"), mine.transaction() as tx:
            tx.execute("insert into effect values ('b')")
            tx.complete()
            with suppress(psycopg.DataError):
                tx.execute(ending)
    assert not mine.completed
    assert (effects(look), state(postgres, claim)) == ([], State.RUNNING)
    with mine.transaction() as tx:
        with suppress(psycopg.DataError), tx.conn.transaction():
            tx.execute("select 1 / 0")
        tx.execute("insert into effect values ('c')")
    assert effects(look) == ["c"]


def test_a_commit_that_the_database_refuses_ends_no_job(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any]
) -> None:
    claim = claimed(postgres)
    noted: list[bool] = []
    mine = Writes(claim.lease, sessions, lambda result: f'"{result}"', lambda: None, noted.append)
    look.execute("create table once (value text, unique (value) deferrable initially deferred)")
    with pytest.raises(psycopg.errors.UniqueViolation), mine.transaction() as tx:
        tx.execute("insert into once values ('a'), ('a')")
        tx.complete()
    assert noted == [True, False]
    assert state(postgres, claim) is State.RUNNING
    with mine.transaction() as tx:
        tx.complete()
    assert state(postgres, claim) is State.DONE


def test_a_block_cannot_commit_by_halves_or_hold_another(postgres: PostgresStore, sessions: Sessions) -> None:
    mine = writes(claimed(postgres), sessions)
    with mine.transaction() as tx:
        with pytest.raises(psycopg.ProgrammingError):
            tx.conn.commit()
        with pytest.raises(RuntimeError, match="is open"), mine.transaction():
            pass


def test_a_long_transaction_holds_up_nobody(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any], clock: Clock
) -> None:
    """Each of these would wait for a lock taken at the beginning, and with it a whole node's scheduler."""
    claim, other = claimed(postgres), claimed(postgres)
    with psycopg.connect(postgres.url) as conn, writes(claim, sessions).transaction() as tx:
        tx.execute("insert into effect values ('a')")
        writes(other, sessions).fence(conn)
        postgres._transact(lambda conn: conn.execute("set lock_timeout = '1s'"))
        assert postgres.renew([claim.lease, other.lease], 30).held == {claim.lease, other.lease}
        assert postgres.cancel(claim.lease.id) is State.RUNNING
        assert postgres.settle([settlement(other)]) == [True]
        conn.rollback()
    assert effects(look) == ["a"]


def test_a_commit_that_takes_long_holds_up_no_renewal(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any]
) -> None:
    """The lease is locked by now, as while a commit waits for a standby."""
    claim = claimed(postgres)
    with writes(claim, sessions).transaction() as tx:
        tx.execute(statements.HOLD.encode())
        postgres._transact(lambda conn: conn.execute("set lock_timeout = '1s'"))
        assert postgres.renew([claim.lease], 30).held == {claim.lease}
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            postgres.settle([settlement(claim)])


@contextmanager
def plain(url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(url)) as conn, conn:
        yield conn


@contextmanager
def in_block(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as conn, conn.transaction():
        yield conn


@contextmanager
def alchemy(url: str) -> Iterator[sqlalchemy.Connection]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    try:
        with engine.begin() as conn:
            yield conn
    finally:
        engine.dispose()


@contextmanager
def orm(url: str) -> Iterator[sqlalchemy.orm.Session]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    try:
        with sqlalchemy.orm.Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@contextmanager
def django(url: str) -> Iterator[Any]:
    from django.db import transaction

    with connection_of_django(url) as conn, transaction.atomic():
        yield conn


def insert(conn: Any, value: str) -> None:
    sql = f"insert into effect values ('{value}')"
    if hasattr(conn, "ensure_connection"):
        with conn.cursor() as cursor:
            cursor.execute(sql)
        return
    conn.execute(sqlalchemy.text(sql) if type(conn).__module__.startswith("sqlalchemy") else sql)


CALLERS: list[Callable[[str], Any]] = [plain, in_block, alchemy, orm, django]


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.__name__)
def test_a_connection_of_the_applications_own_is_fenced(
    postgres: PostgresStore,
    sessions: Sessions,
    look: psycopg.Connection[Any],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caller: Callable[[str], Any],
) -> None:
    without_ends(postgres, monkeypatch)
    claim = claimed(postgres)
    with caller(postgres.url) as conn:
        writes(claim, sessions).fence(conn)
        insert(conn, "kept")
    with (
        pytest.raises((psycopg.Error, sqlalchemy.exc.DBAPIError, DjangoError)) as caught,
        caller(postgres.url) as conn,
    ):
        insert(conn, "old")
        writes(claim, sessions).fence(conn)
        insert(conn, "older")
        replace(postgres, clock)
    error = caught.value
    told = getattr(error, "orig", error.__cause__ if isinstance(error, DjangoError) else error)
    assert isinstance(told, psycopg.Error)
    assert told.sqlstate == LEASE_LOST
    assert effects(look) == ["kept"]
    with pytest.raises(LeaseLost), caller(postgres.url) as conn:
        writes(claim, sessions).fence(conn)


@pytest.mark.parametrize("level", psycopg.IsolationLevel, ids=lambda level: level.name.lower())
@pytest.mark.parametrize("replaced", [False, True], ids=["renewed", "replaced"])
def test_the_fence_holds_at_each_isolation_level(
    postgres: PostgresStore,
    sessions: Sessions,
    look: psycopg.Connection[Any],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    level: psycopg.IsolationLevel,
    replaced: bool,
) -> None:
    """The snapshot of a strict transaction shows the lease as it was; the lock in the trigger sees what became of it."""
    without_ends(postgres, monkeypatch)
    claim = claimed(postgres)
    with closing(psycopg.connect(postgres.url)) as conn:
        conn.isolation_level = level
        writes(claim, sessions).fence(conn)
        insert(conn, "a")
        assert postgres.renew([claim.lease], 60).held
        if not replaced:
            conn.commit()
            assert effects(look) == ["a"]
            return
        clock.move(60)
        postgres.reclaim()
        postgres.claim(want(lease_s=30))
        with pytest.raises(psycopg.Error) as caught:
            conn.commit()
    assert caught.value.sqlstate in (LEASE_LOST, "40001")
    assert effects(look) == []


@pytest.mark.parametrize("act", ["reclaim", "settle", "give_back"])
def test_a_lease_that_is_being_ended_is_waited_for(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any], clock: Clock, act: str
) -> None:
    """Whoever ends it has not committed yet: the fence must not read past that."""
    claim = claimed(postgres)
    with closing(psycopg.connect(postgres.url)) as conn:
        insert(conn, "old")
        writes(claim, sessions).fence(conn)
        conn.execute("set local lock_timeout = '200ms'")
        clock.move(60)
        acts: dict[str, Callable[[], object]] = {
            "reclaim": lambda: postgres._reclaim(postgres._open(), 10),
            "settle": lambda: postgres._settle(postgres._open(), [settlement(claim, State.QUEUED)]),
            "give_back": lambda: postgres.give_back([claim.lease]),
        }
        with postgres._open().transaction():
            postgres._end_sessions = lambda conn, leases: 0  # type: ignore[method-assign]
            acts[act]()
            with pytest.raises(psycopg.errors.LockNotAvailable):
                conn.commit()
    assert effects(look) == []


@contextmanager
def savepoint(conn: Any) -> Iterator[None]:
    """What the library calls a nested transaction."""
    from django.db import transaction

    begin = getattr(conn, "begin_nested", None)
    nested = (
        begin()
        if begin
        else transaction.atomic()
        if hasattr(conn, "ensure_connection")
        else conn.transaction()
    )
    with nested:
        yield


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.__name__)
def test_a_savepoint_is_not_fenced_but_its_transaction_before_and_after_it(
    postgres: PostgresStore,
    sessions: Sessions,
    look: psycopg.Connection[Any],
    caller: Callable[[str], Any],
) -> None:
    claim = claimed(postgres)
    mine = writes(claim, sessions)
    with caller(postgres.url) as conn:
        insert(conn, "a")
        with suppress(ZeroDivisionError), savepoint(conn):
            with pytest.raises(ValueError, match="savepoint"):
                mine.fence(conn)
            raise ZeroDivisionError
    with caller(postgres.url) as conn:
        insert(conn, "b")
        with savepoint(conn):
            insert(conn, "c")
        mine.fence(conn)
        with savepoint(conn):
            insert(conn, "d")
    assert effects(look) == ["a", "b", "c", "d"]


def test_what_is_no_transaction_is_not_fenced(postgres: PostgresStore, sessions: Sessions) -> None:
    mine = writes(claimed(postgres), sessions)
    with (
        psycopg.connect(postgres.url, autocommit=True) as conn,
        pytest.raises(ValueError, match="no transaction"),
    ):
        mine.fence(conn)
    with pytest.raises(TypeError):
        mine.fence("a connection")


def test_whoever_takes_a_lease_back_ends_the_sessions_that_write_under_it(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any], clock: Clock
) -> None:
    claim, other = claimed(postgres), claimed(postgres)
    with closing(psycopg.connect(postgres.url)) as spared, psycopg.connect(postgres.url) as conn:
        writes(claim, sessions).fence(conn)
        writes(other, sessions).fence(spared)
        names = look.execute(
            "select application_name from pg_stat_activity where application_name like 'tenure job%'"
        )
        assert f"tenure job {claim.lease.id} {claim.lease.epoch}" in {name for [name] in names}
        assert postgres.renew([other.lease], 120).held
        with pytest.raises(psycopg.OperationalError), writes(claim, sessions).transaction() as tx:
            clock.move(60)
            assert postgres.reclaim() == [claim.lease]
            tx.execute("insert into effect values ('old')")
        with pytest.raises(psycopg.errors.AdminShutdown):
            conn.execute("select 1")
        spared.execute("insert into effect values ('spared')")
        assert postgres.end_sessions([other.lease]) == 1
        wait_for(
            lambda: look.execute(
                "select from pg_stat_activity where application_name like 'tenure job%'"
            ).fetchall(),
            lambda rows: not rows,
        )
        with pytest.raises(psycopg.OperationalError):
            spared.commit()
    assert effects(look) == []
    again = postgres.claim(want())
    with writes(again[0], sessions).transaction() as tx:  # on a new connection
        tx.execute("insert into effect values ('new')")
    assert effects(look) == ["new"]


def test_an_attempt_finds_nothing_that_another_left_in_the_session(
    postgres: PostgresStore, sessions: Sessions
) -> None:
    first = writes(claimed(postgres), sessions)
    with first.transaction() as tx:
        tx.execute("create temp table left_over (); set work_mem = '1MB'; select pg_advisory_lock(1)")
        session = tx.conn.info.backend_pid
    sessions.reset()
    with writes(claimed(postgres), sessions).transaction() as tx:
        assert tx.conn.info.backend_pid == session, "it is the same one"
        assert tx.execute("select to_regclass('left_over')").fetchone() == (None,)
        assert tx.execute("show work_mem").fetchone() != ("1MB",)
        assert tx.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone() == (0,)


def test_a_session_that_a_restart_has_ended_is_opened_anew(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any]
) -> None:
    mine = writes(claimed(postgres), sessions)
    with mine.transaction() as tx:
        pid = tx.conn.info.backend_pid
    look.execute("select pg_terminate_backend(%s, 5000)", [pid])
    with mine.transaction() as tx:
        tx.execute("insert into effect values ('a')")
    assert effects(look) == ["a"]


class Enough(BaseException):
    """What a soft signal raises in a handler."""


@pytest.mark.parametrize("over", ["its transaction", "a connection provided"])
def test_a_statement_that_the_end_of_an_attempt_breaks_off_is_ended(
    postgres: PostgresStore, sessions: Sessions, look: psycopg.Connection[Any], over: str
) -> None:
    def raise_enough(signum: int, frame: object) -> None:
        raise Enough

    claim = claimed(postgres)
    before = signal.signal(signal.SIGALRM, raise_enough)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        if over == "its transaction":
            with pytest.raises(Enough), writes(claim, sessions).transaction() as tx:
                tx.execute("select pg_sleep(600)")
            sessions.reset()
        else:
            with pytest.raises(Enough), attempt_connection(postgres.url, claim.lease) as conn:
                conn.execute("select pg_sleep(600)")
    finally:
        signal.signal(signal.SIGALRM, before)
    wait_for(
        lambda: look.execute(
            "select from pg_stat_activity where query like '%pg_sleep(600)' and pid <> pg_backend_pid()"
        ).fetchall(),
        lambda rows: not rows,
    )


def test_without_a_database_a_handler_is_told_so() -> None:
    from runtime.model.jobs import Lease

    mine = Writes(Lease("0", 1), Sessions(""), str, lambda: None, lambda ending: None)
    with pytest.raises(RuntimeError, match="no database"), mine.transaction():
        pass
