"""The application's side: what `Queue` promises to a web application, on a real database."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import sqlalchemy.orm
from psycopg.rows import dict_row

from runtime import NO_RETRY, Context, Job, Queue, cron, job
from runtime import queue as module
from runtime.config import Config, DatabaseConfig
from runtime.edges.ids import new_id
from runtime.edges.postgres import PostgresStore
from runtime.edges.pushing import COPY_ROWS
from runtime.errors import (
    ConfigError,
    DefinitionError,
    JobFailed,
    PayloadInvalid,
    SchemaOutdated,
    StoreUnavailable,
    UnknownKind,
)
from runtime.model.jobs import Ending, Failure, Holder, NodeView, Settlement, State, Want, WorkerView
from runtime.registry import DEFINED
from tests.helpers import places
from tests.helpers.of_django import connection_of_django
from tests.helpers.waiting import wait_for


@job("queue.scale", retry=NO_RETRY, queue="images", priority=3)
class Scale(Job):
    path: str
    width: int = 256

    def run(self, ctx: Context) -> dict[str, int]:
        raise NotImplementedError


class Undefined(Job):
    """Has no kind."""


@pytest.fixture
def queue(schema_dsn: str) -> Iterator[Queue]:
    with Queue(schema_dsn) as made:
        yield made


@pytest.fixture
def store(schema_dsn: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(schema_dsn)) as opened:
        yield opened


def end(store: PostgresStore, ending: Ending, state: State, **given: Any) -> None:
    """Run and settle the one job that is queued, as a worker would."""
    want = Want(holder=Holder("n", 1, 1), limit=1, lease_s=60.0, kinds=DEFINED.kinds, queues=("*",))
    [claim] = store.claim(want)
    assert store.settle([Settlement(lease=claim.lease, ending=ending, state=state, **given)]) == [True]


def open_connections(dsn: str) -> int:
    """Of ours, by what the database says."""
    with psycopg.connect(dsn) as conn:
        row = conn.execute(
            "select count(*) from pg_stat_activity where application_name = 'tenure'"
            " and datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


# -- pushing


def test_a_pushed_job_has_the_settings_of_its_kind(queue: Queue) -> None:
    id = queue.push(Scale(path="a"))
    assert id is not None
    view = queue.status(id)
    assert view is not None
    assert (view.kind, view.queue, view.priority, view.state) == ("queue.scale", "images", 3, State.QUEUED)
    assert queue.counts().states["queued"] == 1


def test_what_push_is_told_goes_before_what_the_kind_says(queue: Queue) -> None:
    id, due = new_id(), datetime(2090, 1, 1, tzinfo=UTC)
    assert queue.push(Scale(path="a"), id=id.upper(), queue="urgent", priority=0, unique="k", at=due) == id
    view = queue.status(id)
    assert view is not None
    assert (view.queue, view.priority, view.unique, view.due) == ("urgent", 0, "k", due)


def test_after_counts_from_the_databases_now(queue: Queue) -> None:
    view = queue.status(queue.push(Scale(path="a"), after=90) or "")
    assert view is not None
    assert view.due - view.created == timedelta(seconds=90)


def test_a_taken_unique_key_is_none(queue: Queue) -> None:
    assert queue.push(Scale(path="a"), unique="one") is not None
    assert queue.push(Scale(path="b"), unique="one") is None


def test_pushing_an_id_again_adds_nothing(queue: Queue) -> None:
    id = new_id()
    assert [queue.push(Scale(path="a"), id=id, unique="k") for _ in range(2)] == [id, id]
    assert queue.counts().states["queued"] == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"at": datetime(2090, 1, 1)}, "^at .*time zone"),  # noqa: DTZ001 - that it is naive is the point
        ({"at": "2090-01-01"}, "^at "),
        ({"at": datetime(1969, 12, 31, tzinfo=UTC)}, "^at "),
        ({"at": datetime.max.replace(tzinfo=UTC)}, "^at "),
        ({"after": -1}, "^after "),
        ({"after": float("nan")}, "^after "),
        ({"after": True}, "^after "),
        ({"after": "10s"}, "^after "),
        ({"after": 1e12}, "^after "),
        ({"after": 1, "at": datetime(2090, 1, 1, tzinfo=UTC)}, "after or at"),
        ({"priority": 10}, "^priority "),
        ({"priority": -1}, "^priority "),
        ({"priority": True}, "^priority "),
        ({"queue": ""}, "^queue "),
        ({"queue": "*"}, "^queue "),
        ({"queue": "@later"}, "^queue "),
        ({"queue": "two words"}, "^queue "),
        ({"queue": "q" * 49}, "^queue "),
        ({"unique": ""}, "^unique "),
        ({"unique": "ü" * 33}, "^unique "),
        ({"unique": "a\0"}, "^unique "),
        ({"unique": "\ud800"}, "^unique "),
        ({"id": "7"}, "^id "),
        ({"or_existing": True}, "^or_existing needs unique"),
        ({"replace": True}, "^replace needs unique"),
        ({"within": 30}, "^within needs unique"),
        ({"within": 0, "unique": "k"}, "^within must be"),
        ({"within": True, "unique": "k"}, "^within must be"),
        ({"within": 30, "unique": "k", "conn": 1}, "^within cannot .* conn"),
        ({"or_existing": True, "replace": True, "unique": "k"}, "or_existing or replace"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_before_any_database_is_touched(given: dict[str, Any], named: str) -> None:
    with Queue("postgresql://127.0.0.1:1/none") as queue, pytest.raises(ValueError, match=named):
        queue.push(Scale(path="a"), **given)


def test_a_wrong_payload_is_named_before_any_database_is_touched() -> None:
    with Queue("postgresql://127.0.0.1:1/none") as queue:
        with pytest.raises(PayloadInvalid, match="path"):
            queue.push(Scale(path=1))  # type: ignore[arg-type]
        with pytest.raises(DefinitionError, match="Undefined"):
            queue.push(Undefined())
        with pytest.raises(PayloadInvalid, match="path"):
            queue.push_many([Scale(path="a"), Scale(path="a\0")])


def test_many_are_pushed_in_order(queue: Queue, schema_dsn: str) -> None:
    ids = queue.push_many(Scale(path=str(number)) for number in range(50_000))
    with psycopg.connect(schema_dsn) as conn:
        rows = conn.execute("select id::text, payload->>'path', queue, priority from tenure.job").fetchall()
    assert {(id, path): (of, priority) for id, path, of, priority in rows} == {
        (id, str(number)): ("images", 3) for number, id in enumerate(ids)
    }
    assert queue.push_many([]) == []


# -- in the caller's transaction


@pytest.mark.parametrize("commits", [True, False])
def test_a_job_commits_with_the_callers_rows_or_not(queue: Queue, schema_dsn: str, commits: bool) -> None:
    with psycopg.connect(schema_dsn, row_factory=dict_row) as conn:
        id = queue.push(Scale(path="a"), conn=conn)
        assert id is not None
        assert queue.status(id) is None, "it is not there for others before the commit"
        if not commits:
            conn.rollback()
    assert (queue.status(id) is not None) is commits


def test_the_callers_connection_stays_open_and_none_of_ours_is_used(queue: Queue, schema_dsn: str) -> None:
    with psycopg.connect(schema_dsn) as conn:
        queue.push(Scale(path="a"), conn=conn)
        assert conn.execute("select 1").fetchone() == (1,)
        assert open_connections(schema_dsn) == 0


def test_another_kind_of_connection_is_refused_by_its_name(queue: Queue) -> None:
    with pytest.raises(TypeError, match=r"conn must be a connection of psycopg 3, .*, got object"):
        queue.push(Scale(path="a"), conn=object())
    with (
        sqlalchemy.create_engine("sqlite://").connect() as conn,
        pytest.raises(TypeError, match=r"got Connection, over sqlite3\.Connection"),
    ):
        queue.push(Scale(path="a"), conn=conn)


@pytest.fixture
def of_django(schema_dsn: str) -> Iterator[Any]:
    with connection_of_django(schema_dsn) as connection:
        yield connection


@pytest.fixture
def engine(schema_dsn: str) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(schema_dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    yield made
    made.dispose()


CALLERS: dict[str, Callable[[sqlalchemy.Engine], Any]] = {
    "SQLAlchemy's connection": lambda engine: engine.connect(),
    "SQLAlchemy's session": sqlalchemy.orm.Session,
    "SQLAlchemy's scoped session": lambda engine: sqlalchemy.orm.scoped_session(
        sqlalchemy.orm.sessionmaker(engine)
    ),
}


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("of", CALLERS)
def test_a_job_commits_with_the_rows_of_other_libraries_or_not(
    queue: Queue, engine: sqlalchemy.Engine, of: str, commits: bool
) -> None:
    with closing(CALLERS[of](engine)) as conn:
        pushed = queue.push(Scale(path="a"), unique="k", conn=conn) or ""
        assert queue.push(Scale(path="b"), unique="k", conn=conn) is None
        assert queue.push(Scale(path="b"), unique="k", or_existing=True, conn=conn) == pushed
        many = queue.push_many([Scale(path="c") for _ in range(COPY_ROWS)], conn=conn)
        assert queue.status(pushed) is None, "it is not there for others before the commit"
        if commits:
            conn.commit()
    assert [queue.status(id) is not None for id in (pushed, many[-1])] == [commits, commits]
    assert queue.counts().states["queued"] == (1 + COPY_ROWS) * commits


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_job_commits_with_a_transaction_of_django_or_not(
    queue: Queue, of_django: Any, commits: bool
) -> None:
    from django.db import transaction

    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        pushed = queue.push(Scale(path="a"), unique="k", conn=of_django) or ""
        assert queue.push(Scale(path="b"), unique="k", conn=of_django) is None
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            queue.push_many([Scale(path="b") for _ in range(COPY_ROWS)], conn=of_django)
            raise ZeroDivisionError  # back to its savepoint
        many = queue.push_many([Scale(path="c") for _ in range(COPY_ROWS)], conn=of_django)
        assert queue.status(pushed) is None, "it is not there for others before the commit"
        if not commits:
            raise ZeroDivisionError
    assert [queue.status(id) is not None for id in (pushed, many[-1])] == [commits, commits]
    assert queue.counts().states["queued"] == (1 + COPY_ROWS) * commits


def test_outside_of_a_transaction_of_django_a_push_commits_by_itself(queue: Queue, of_django: Any) -> None:
    assert queue.status(queue.push(Scale(path="a"), conn=of_django) or "") is not None
    many = queue.push_many([Scale(path="c") for _ in range(COPY_ROWS)], conn=of_django)
    assert queue.status(many[-1]) is not None


def test_a_transaction_of_sqlalchemy_that_has_begun_goes_on(queue: Queue, engine: sqlalchemy.Engine) -> None:
    with engine.begin() as conn:
        conn.execute(sqlalchemy.text("create temp table t ()"))
        id = queue.push(Scale(path="a"), conn=conn) or ""
    assert queue.status(id) is not None
    with contextlib.suppress(ZeroDivisionError), sqlalchemy.orm.Session(engine) as session, session.begin():
        gone = queue.push(Scale(path="a"), conn=session) or ""
        raise ZeroDivisionError
    assert queue.status(gone) is None


# -- unique keys that are taken


def test_a_taken_key_is_answered_with_its_holder_on_request(queue: Queue) -> None:
    id = queue.push(Scale(path="a"), unique="one", or_existing=True)
    assert id is not None
    assert queue.push(Scale(path="b"), unique="one", or_existing=True) == id
    assert queue.counts().states["queued"] == 1


def test_replace_moves_a_queued_job_and_leaves_a_running_one_alone(
    queue: Queue, store: PostgresStore
) -> None:
    id = queue.push(Scale(path="a"), unique="one", after=60) or ""
    assert queue.push(Scale(path="b"), unique="one", replace=True) == id
    view = queue.status(id)
    assert view is not None
    assert view.due == queue.stats().queues[0].oldest_due, "it is due now"
    assert b'"b"' in bytes(view.payload or b"")
    want = Want(holder=Holder("n", 1, 1), limit=1, lease_s=60.0, kinds=("queue.scale",), queues=("*",))
    assert len(store.claim(want)) == 1
    assert queue.push(Scale(path="c"), unique="one", replace=True) is None


def test_a_push_that_waits_for_another_one_of_its_key_learns_who_has_it(
    queue: Queue, schema_dsn: str
) -> None:
    with ThreadPoolExecutor(1) as others, psycopg.connect(schema_dsn) as conn:
        id = queue.push(Scale(path="a"), unique="one", conn=conn)
        asked = others.submit(queue.push, Scale(path="b"), unique="one", or_existing=True)
        wait_for(lambda: is_blocked(schema_dsn))
        conn.commit()
        assert asked.result(20) == id


def is_blocked(dsn: str) -> bool:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            " and datname = current_database()"
        ).fetchone()
    return row is not None and row[0] > 0


def test_within_a_window_the_database_is_not_asked(
    queue: Queue, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    id = queue.push(Scale(path="a"), unique="one", within=30) or ""
    assert store.delete(id), "so that only the window stands in the way"
    with monkeypatch.context() as patch:
        patch.setattr(queue, "_store", None)
        assert queue.push(Scale(path="b"), unique="one", within=30) is None
        assert queue.push(Scale(path="b"), unique="one", within=30, or_existing=True) is None
    assert queue.push(Scale(path="b"), unique="two", within=30) is not None
    now_s += 30.0
    assert queue.push(Scale(path="b"), unique="one", within=30) is not None


def test_a_push_that_failed_opens_no_window(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(store: PostgresStore, jobs: object) -> None:
        raise StoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(PostgresStore, "push", away)
        with pytest.raises(StoreUnavailable):
            queue.push(Scale(path="a"), unique="one", within=30)
    assert queue.push(Scale(path="a"), unique="one", within=30) is not None


# -- what became of it


def test_cancel_and_retry_say_whether_they_did(queue: Queue, store: PostgresStore) -> None:
    id = queue.push(Scale(path="a")) or ""
    assert (queue.retry(id), queue.cancel(id), queue.cancel(id)) == (False, True, False)
    dead = queue.push(Scale(path="a")) or ""
    end(store, Ending.DEAD, State.DEAD)
    assert (queue.retry(dead), queue.retry(dead)) == (True, False)


def test_a_queued_job_is_rescheduled_or_deleted(queue: Queue, store: PostgresStore) -> None:
    id = queue.push(Scale(path="a")) or ""
    due = datetime(2090, 1, 1, tzinfo=UTC)
    assert queue.reschedule(id, at=due)
    view = queue.status(id)
    assert view is not None
    assert view.due == due
    assert queue.reschedule(id, after=0)
    for given in ({}, {"after": 1, "at": due}, {"after": -1}, {"at": datetime(2090, 1, 1)}):  # noqa: DTZ001
        with pytest.raises(ValueError, match=r"^(after|at|give) "):
            queue.reschedule(id, **given)  # type: ignore[arg-type]
    assert queue.delete(id)
    assert (queue.status(id), queue.delete(id), queue.reschedule(id, after=1)) == (None, False, False)


def test_all_dead_jobs_of_a_kind_are_retried(queue: Queue, store: PostgresStore) -> None:
    for _ in range(3):
        queue.push(Scale(path="a"))
        end(store, Ending.DEAD, State.DEAD)
    assert (queue.retry_all("other"), queue.retry_all("queue.scale"), queue.retry_all("queue.scale")) == (
        0,
        3,
        0,
    )


@job("queue.tidy", retry=NO_RETRY)
class Tidy(Job):
    deep: bool = False

    def run(self, ctx: Context) -> None: ...


def test_a_schedule_is_made_changed_paused_run_and_removed(queue: Queue) -> None:
    daily, before = cron("0 3 * * *", zone="Europe/Berlin"), datetime.now(UTC)
    assert queue.schedule("nightly", Tidy(deep=True), daily, overlap="skip", missed="drop", queue="night")
    assert not queue.schedule("nightly", Tidy(deep=True), daily, overlap="skip", missed="drop", priority=9)
    [view] = queue.schedules()
    assert (view.name, view.kind, view.priority, view.paused) == ("nightly", "queue.tidy", 9, False)
    assert view.due in (daily.next(before), daily.next(datetime.now(UTC)))
    assert (queue.pause("nightly"), queue.schedules()[0].paused) == (True, True)
    assert (queue.resume("nightly"), queue.schedules()[0].paused) == (True, False)
    id = queue.run_now("nightly") or ""
    pushed = queue.status(id)
    assert pushed is not None
    assert (pushed.kind, msgspec.json.decode(pushed.payload or b"")) == ("queue.tidy", {"deep": True})
    assert queue.run_now("nightly") is None, "its last run is not over"
    assert (queue.unschedule("nightly"), queue.unschedule("nightly")) == (True, False)
    assert (queue.pause("nightly"), queue.run_now("nightly"), queue.schedules()) == (False, None, [])
    assert queue.status(id) is not None, "what it has pushed stays"


def node(**given: Any) -> NodeView:
    workers = [WorkerView(name="worker 1", pid=11, state="idle")]
    known = {"kinds": ["queue.scale"], "queues": ["*"], "workers": workers, "state": "running"}
    return NodeView(**{"id": "n1", "host": "box", "pid": 9, "version": "1", **known, **given})


def test_ready_needs_a_database_and_a_living_worker(queue: Queue, store: PostgresStore, dsn: str) -> None:
    assert not queue.ready()
    store.report(node(workers=[]))
    assert not queue.ready()
    store.report(node())
    assert queue.ready()
    with Queue("postgresql://127.0.0.1:1/none") as nowhere, Queue(dsn) as bare:
        assert not nowhere.ready()
        assert not bare.ready()


def test_stats_say_what_waits_since_when_and_what_nobody_serves(queue: Queue, store: PostgresStore) -> None:
    store.report(node(kinds=["other"]))
    queue.push(Scale(path="a"), at=datetime.now(UTC) - timedelta(seconds=90))
    queue.push(Scale(path="a"), after=60)

    stats = queue.stats()

    assert stats.states["queued"] == 2
    assert stats.oldest_s == pytest.approx(90, abs=30)
    assert [(one.kind, one.queue, one.queued) for one in stats.unserved] == [("queue.scale", "images", 2)]
    assert (stats.nodes, stats.ready) == (1, True)
    store.report(node())
    assert queue.stats().unserved == []


class Size(msgspec.Struct):
    width: int
    made: datetime


@job("queue.measure", retry=NO_RETRY)
class Measure(Job):
    def run(self, ctx: Context) -> list[Size] | None: ...


@job("queue.anything", retry=NO_RETRY)
class Anything(Job):
    def run(self, ctx):
        del ctx


@job("queue.unknown", retry=NO_RETRY)
class UnknownType(Job):
    def run(self, ctx: Context) -> NotThere: ...  # type: ignore[name-defined] # noqa: F821


SIZES = '[{"width": 7, "made": "2026-03-01T00:00:00Z"}]'


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (Measure, [Size(7, datetime(2026, 3, 1, tzinfo=UTC))]),
        (Anything, [{"width": 7, "made": "2026-03-01T00:00:00Z"}]),
        (UnknownType, [{"width": 7, "made": "2026-03-01T00:00:00Z"}]),
    ],
)
def test_a_result_is_of_the_type_that_run_returns(
    queue: Queue, store: PostgresStore, kind: type[Job], result: object
) -> None:
    id = queue.push(kind()) or ""
    end(store, Ending.DONE, State.DONE, result=SIZES)
    assert queue.result(id, 0) == result


def test_a_result_of_another_type_than_run_returns_is_refused_by_its_field(
    queue: Queue, store: PostgresStore
) -> None:
    id = queue.push(Measure()) or ""
    end(store, Ending.DONE, State.DONE, result='[{"width": "7"}]')
    with pytest.raises(PayloadInvalid, match=r"queue\.measure.*result: .*width"):
        queue.result(id, 0)


def test_wait_returns_when_the_job_ends(queue: Queue, store: PostgresStore) -> None:
    id = queue.push(Scale(path="a")) or ""
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(queue.wait, id, 20)
        end(store, Ending.DONE, State.DONE, result='{"size": 7}')
        assert (waiting.result().state, waiting.result().payload) == (State.DONE, None)
    assert queue.result(id, 0) == {"size": 7}


def test_wait_has_a_limit_and_knows_what_it_does_not_know(queue: Queue) -> None:
    id = queue.push(Scale(path="a")) or ""
    with pytest.raises(TimeoutError, match=r"queued after 0\.05 s"):
        queue.wait(id, 0.05)
    with pytest.raises(LookupError):
        queue.wait(new_id(), 5)


def test_waiting_holds_no_connection(queue: Queue, schema_dsn: str) -> None:
    id = queue.push(Scale(path="a")) or ""
    waiting = 3 * module.CONNECTIONS
    with ThreadPoolExecutor(waiting) as others:
        asked = [others.submit(queue.wait, id, 20) for _ in range(waiting)]
        assert queue.cancel(id)
        assert {each.result().state for each in asked} == {State.CANCELLED}
    assert open_connections(schema_dsn) <= module.CONNECTIONS


def test_close_ends_a_wait(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_AFTER_S", 50.0)
    id = queue.push(Scale(path="a")) or ""
    paused = threading.Event()
    pause = queue._closed.wait

    def wait(timeout: float | None = None) -> bool:
        paused.set()
        return pause(timeout)

    monkeypatch.setattr(queue._closed, "wait", wait)
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(queue.wait, id, 50)
        assert paused.wait(20)
        queue.close()
        with pytest.raises(RuntimeError, match="is closed"):
            waiting.result(timeout=10)


def test_the_result_of_a_job_without_one_is_an_error_that_says_why(
    queue: Queue, store: PostgresStore
) -> None:
    id = queue.push(Scale(path="a")) or ""
    end(store, Ending.DEAD, State.DEAD, error=Failure("ValueError", "no such file"))
    with pytest.raises(JobFailed, match=r"is dead: ValueError: no such file") as raised:
        queue.result(id, 5)
    assert raised.value.job.id == id
    cancelled = queue.push(Scale(path="a")) or ""
    queue.cancel(cancelled)
    with pytest.raises(JobFailed, match="is cancelled"):
        queue.result(cancelled, 5)


# -- threads, processes, connections


def test_threads_share_a_bounded_number_of_connections(queue: Queue, schema_dsn: str) -> None:
    with ThreadPoolExecutor(32) as threads:
        ids = list(threads.map(lambda number: queue.push(Scale(path=str(number))), range(200)))
    assert len(set(ids)) == 200
    assert queue.counts().states["queued"] == 200
    assert 1 <= open_connections(schema_dsn) <= module.CONNECTIONS


def test_a_call_that_gets_no_connection_says_so(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTION_WITHIN_S", 0.01)
    for _ in range(module.CONNECTIONS):
        queue._slots.acquire()
    with pytest.raises(StoreUnavailable, match="in use"):
        queue.counts()
    queue._slots.release(module.CONNECTIONS)
    assert queue.counts()


def test_nothing_is_opened_before_the_first_call(schema_dsn: str) -> None:
    with Queue(schema_dsn) as queue:
        assert open_connections(schema_dsn) == 0
        queue.counts()
        assert open_connections(schema_dsn) == 1
    assert open_connections(schema_dsn) == 0


def test_a_lost_connection_is_opened_anew(queue: Queue, schema_dsn: str) -> None:
    queue.counts()
    with psycopg.connect(schema_dsn, autocommit=True) as conn:
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'tenure' and datname = current_database()"
        )
    with pytest.raises(StoreUnavailable):
        queue.counts()
    assert queue.counts()


def test_a_call_that_is_interrupted_leaves_no_connection_in_the_middle_of_something(
    queue: Queue, schema_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(store: PostgresStore, id: str, *, payload: bool) -> None:
        store.counts()
        raise KeyboardInterrupt

    monkeypatch.setattr(PostgresStore, "status", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.status("7")
    assert open_connections(schema_dsn) == 0
    assert queue.counts()


def in_child(work: Callable[[], object]) -> str:
    """What `work` raises in a forked child; empty: nothing."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside pytest-timeout's thread
        pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as said:
        return said.read().decode()


def test_a_used_queue_refuses_to_work_after_a_fork(queue: Queue) -> None:
    queue.counts()
    said = in_child(lambda: queue.push(Scale(path="a")))
    assert said.startswith("RuntimeError: this Queue was used in process")
    assert in_child(queue.close) == "", "closing it in the child leaves the parent's connections alone"
    assert queue.counts().states["queued"] == 0


def test_a_queue_that_was_not_used_works_after_a_fork(schema_dsn: str) -> None:
    with Queue(schema_dsn) as queue:
        assert in_child(lambda: (queue.push(Scale(path="a")), queue.close())) == ""
        assert queue.counts().states["queued"] == 1


def test_a_closed_queue_says_so(schema_dsn: str) -> None:
    queue = Queue(schema_dsn)
    queue.counts()
    queue.close()
    queue.close()
    with pytest.raises(RuntimeError, match="is closed"):
        queue.counts()
    assert queue._slots.acquire(blocking=False), "who waited for a connection meanwhile is let in, to be told"


# -- which database


@pytest.mark.parametrize("url", ["", "mysql://box/none"])
def test_a_wrong_url_is_refused_when_the_queue_is_made(url: str) -> None:
    with pytest.raises(ConfigError, match=r"database\.url"):
        Queue(url)


def test_without_our_schema_the_first_call_says_what_to_run(dsn: str) -> None:
    with Queue(dsn) as queue, pytest.raises(SchemaOutdated, match="tenure migrate"):
        queue.counts()
    assert open_connections(dsn) == 0


def test_a_database_that_comes_back_is_used(dsn: str) -> None:
    with Queue(dsn) as queue:
        with pytest.raises(SchemaOutdated):
            queue.counts()
        with closing(PostgresStore(dsn)) as store:
            store.install()
        assert queue.counts()


def test_an_account_without_rights_is_told_so(schema_dsn: str) -> None:
    name = f"reader_{os.getpid()}"
    with psycopg.connect(schema_dsn, autocommit=True) as conn:
        conn.execute(f"create role {name} login")  # type: ignore[call-overload]
    try:
        with (
            Queue(schema_dsn.replace("tenure@", f"{name}@")) as queue,
            pytest.raises(ConfigError, match=r"database\.url: its account lacks rights: permission denied"),
        ):
            queue.counts()
    finally:
        with psycopg.connect(schema_dsn, autocommit=True) as conn:
            conn.execute(f"drop role {name}")  # type: ignore[call-overload]


def test_without_a_url_the_configured_database_is_used(
    schema_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.toml").write_text(f'[database]\nurl = "{schema_dsn}"\n')
    monkeypatch.delenv("TENURE_DATABASE_URL", raising=False)
    monkeypatch.setenv("TENURE_CONFIG", str(tmp_path / "t.toml"))
    with Queue() as queue:
        assert queue.push(Scale(path="a")) is not None
    assert open_connections(schema_dsn) == 0
    with pytest.raises(TypeError, match="not both"):
        Queue(schema_dsn, config=Config())


def test_without_any_database_the_embedded_one_is_kept_as_long_as_the_queue() -> None:
    with places.kept() as home:
        config = Config(database=DatabaseConfig(data_dir=home / "postgres"))
        with Queue(config=config) as queue:
            id = queue.push(Scale(path="a")) or ""
            assert places.processes_on(home) != {}
        assert places.processes_on(home) == {}
        with Queue(config=config) as queue:
            assert queue.status(id) is not None


# -- kicks


@job("queue.sweep", retry=NO_RETRY, queue="upkeep", priority=8)
class Sweep(Job):
    depth: int = 3

    def run(self, ctx: Context) -> None: ...


def test_a_kick_has_the_settings_and_defaults_of_its_kind(queue: Queue, store: PostgresStore) -> None:
    queue.kick("queue.sweep")
    store.start_kicked()
    [run] = store.jobs()
    assert (run.kind, run.queue, run.priority) == ("queue.sweep", "upkeep", 8)
    view = queue.status(run.id)
    assert view is not None
    assert msgspec.json.decode(view.payload or b"") == {"depth": 3}


def test_a_kick_commits_with_the_callers_rows_or_not(
    queue: Queue, store: PostgresStore, schema_dsn: str
) -> None:
    for ends, runs in (("rollback", 0), ("commit", 1)):
        with psycopg.connect(schema_dsn, row_factory=dict_row) as conn:
            queue.kick("queue.sweep", conn=conn)
            queue.kick("queue.sweep", conn=conn)
            getattr(conn, ends)()
        store.start_kicked()
        assert len(store.jobs()) == runs


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("no.such", UnknownKind, "no handler for kind 'no.such'"),
        ("queue.scale", DefinitionError, "give each a default"),
    ],
)
def test_what_cannot_be_kicked_says_what_to_write(
    queue: Queue, kind: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        queue.kick(kind)
