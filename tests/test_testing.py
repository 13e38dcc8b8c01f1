"""Goal: handlers are tested without waiting: one clock that the test moves, and crashes on demand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from runtime import (
    NO_RETRY,
    Cancel,
    Context,
    Job,
    Queue,
    Retry,
    Snooze,
    TimedOut,
    every,
    exponential,
    fixed,
    job,
    testing,
)
from runtime.edges.ids import new_id
from runtime.edges.postgres import PostgresStore
from runtime.errors import QueueFull
from runtime.model.exits import Progress, Verdict
from runtime.model.jobs import Code, Ending, NewJob, State
from runtime.registry import DEFINED, Registry
from runtime.testing import LocalQueue, crash_everywhere, run_job

T = datetime(2026, 3, 1, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)


@job("t-flaky", retry=Retry(3, exponential(0.1, 60)))
class Flaky(Job):
    fails: int = 0

    def run(self, ctx: Context) -> object:
        ctx.progress(ctx.attempt, 4)
        if ctx.attempt <= self.fails:
            raise ValueError(f"attempt {ctx.attempt}, last {ctx.last}")
        return {"attempt": ctx.attempt}


@job("t-says", retry=NO_RETRY)
class Says(Job):
    what: str

    def run(self, ctx: Context) -> object:
        match self.what:
            case "snooze" if ctx.attempt == 1:
                raise Snooze(60)
            case "cancel":
                raise Cancel("enough")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(0)
        return os.getpid()


@job("t-hangs", retry=NO_RETRY, timeout=0.3)
class Hangs(Job):
    def run(self, ctx: Context) -> None:
        while True:
            with suppress(BaseException):
                time.sleep(60)


class Clerk:
    def __init__(self, name: str) -> None:
        self.name = name


@job("t-asks", retry=NO_RETRY)
class Asks(Job):
    def run(self, ctx: Context, clerk: Clerk) -> str:
        return clerk.name


@pytest.fixture(params=["memory", "postgres"])
def local(request: pytest.FixtureRequest) -> Iterator[LocalQueue]:
    if request.param == "memory":
        with LocalQueue(T) as queue:
            yield queue
        return
    url = request.getfixturevalue("schema_dsn")
    with LocalQueue(T, store=lambda clock: PostgresStore(url, clock=clock)) as queue:
        yield queue


def test_a_delayed_job_runs_when_the_clock_says_so_and_not_before(local: LocalQueue) -> None:
    local.push(Flaky(), after=3 * 86400)
    assert local.drain_at(T + timedelta(days=2)) == 0
    assert local.drain_at(T + timedelta(days=3)) == 1


def test_a_retrys_wait_is_walked_on_the_same_clock(local: LocalQueue) -> None:
    id = local.push(Flaky(fails=2))
    assert id is not None
    assert local.drain() == 1
    assert local.drain_at(T + 99 * MS) == 0
    assert local.drain_at(T + 100 * MS) == 1
    assert local.drain_at(T + 299 * MS) == 0
    assert local.drain_at(T + 300 * MS) == 1
    assert local.result(id) == {"attempt": 3}
    view = local.status(id)
    assert view is not None
    assert [one.ending for one in view.attempts] == [Ending.RETRY, Ending.RETRY, Ending.DONE]
    assert view.progress is not None
    assert view.progress.done == 3


def test_what_a_handler_says_is_done(local: LocalQueue) -> None:
    snoozed, cancelled = local.push(Says(what="snooze")), local.push(Says(what="cancel"))
    assert snoozed is not None
    assert cancelled is not None
    local.drain()
    view = local.status(snoozed)
    assert view is not None
    assert (view.state, view.failures) == (State.QUEUED, 0)
    ended = local.status(cancelled)
    assert ended is not None
    assert ended.state is State.CANCELLED
    assert local.drain_at(T + timedelta(seconds=60)) == 1


def test_values_stand_in_for_providers() -> None:
    with LocalQueue(provided={Clerk: Clerk("Ada")}) as queue:
        id = queue.push(Asks())
        assert id is not None
        queue.drain()
        assert queue.result(id) == "Ada"


def test_a_full_queue_takes_nothing_more() -> None:
    with LocalQueue(max_bytes=2000) as queue:
        with pytest.raises(QueueFull):
            [queue.push(Flaky()) for _ in range(1000)]
        before = sum(queue.counts().states.values())
        assert 0 < before < 50
        queue.drain()
        assert queue.counts().states["done"] == before


def test_an_isolated_handler_may_crash_and_the_certificate_says_how() -> None:
    with LocalQueue(isolated=True) as queue:
        ids = {what: queue.push(Says(what=what)) for what in ("live", "die", "exit")}
        assert queue.drain() == 1 + 3 + 3
        assert queue.result(str(ids["live"])) != os.getpid()
        died, exited = queue.status(str(ids["die"])), queue.status(str(ids["exit"]))
        assert died is not None
        assert exited is not None
        assert (died.state, died.crashes, exited.crashes) == (State.DEAD, 3, 3)
        assert [one.certificate.signal for one in died.attempts if one.certificate] == [9, 9, 9]
        assert [one.certificate.exit_code for one in exited.attempts if one.certificate] == [0, 0, 0]


def test_an_isolated_handler_is_bound_by_its_time_limit() -> None:
    with LocalQueue(isolated=True) as queue:
        id = queue.push(Hangs())
        assert id is not None
        queue.drain()
        view = queue.status(id)
        assert view is not None
        [attempt] = view.attempts
        assert attempt.ending is Ending.TIMED_OUT
        assert attempt.certificate is not None
        assert attempt.certificate.verdict is Verdict.TIMEOUT
        assert "in run" in str(attempt.certificate.stack)


@job("t-transfer", retry=NO_RETRY)
class Transfer(Job):
    url: str
    careful: bool

    def run(self, ctx: Context) -> None:
        with psycopg.connect(self.url, autocommit=not self.careful) as conn:
            done = conn.execute("select from moved where job = %s", (ctx.id,)).fetchone()
            if done is not None:
                return
            conn.execute("update account set amount = amount - 10 where name = 'from'")
            ctx.progress(1)
            conn.execute("update account set amount = amount + 10 where name = 'to'")
            conn.execute("insert into moved values (%s)", (ctx.id,))


@contextmanager
def accounts(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create table account (name text, amount int); create table moved (job uuid)")
        yield conn


def test_a_handler_in_one_transaction_survives_a_crash_at_every_point(dsn: str) -> None:
    with accounts(dsn) as conn:
        points = crash_everywhere(
            Transfer(url=dsn, careful=True), lambda: _check(conn), reset=lambda: _reset(conn)
        )
        assert points > 8


def test_one_without_a_transaction_is_found_out(dsn: str) -> None:
    with accounts(dsn) as conn, pytest.raises(AssertionError) as caught:
        crash_everywhere(Transfer(url=dsn, careful=False), lambda: _check(conn), reset=lambda: _reset(conn))
    assert any("after a crash at point" in note for note in caught.value.__notes__)


def _reset(conn: psycopg.Connection) -> None:
    conn.execute("truncate account, moved; insert into account values ('from', 100), ('to', 0)")


def _check(conn: psycopg.Connection) -> None:
    found = dict(conn.execute("select name, amount from account").fetchall())
    assert found == {"from": 90, "to": 10}


def test_a_taken_key_is_answered_and_replaced_as_by_a_queue() -> None:
    with LocalQueue(T) as queue:
        id = queue.push(Flaky(), unique="one", after=60) or ""
        assert queue.push(Flaky(), unique="one", or_existing=True) == id
        assert queue.push(Flaky(), unique="one", replace=True) == id
        assert queue.drain() == 1, "it is due now"
        with pytest.raises(ValueError, match="replace needs unique"):
            queue.push(Flaky(), replace=True)


def test_a_window_ends_by_the_clock_of_the_test() -> None:
    with LocalQueue(T) as queue:
        assert queue.push(Flaky(), unique="one", within=30) is not None
        assert queue.drain() == 1
        assert queue.push(Flaky(), unique="one", within=30) is None
        queue.now = T + timedelta(seconds=30)
        assert queue.push(Flaky(), unique="one", within=30) is not None


def test_jobs_are_rescheduled_deleted_and_retried_as_by_a_queue() -> None:
    with LocalQueue(T) as queue:
        id = queue.push(Says("cancel")) or ""
        assert queue.reschedule(id, after=60)
        assert queue.drain() == 0
        assert queue.delete(id)
        assert queue.status(id) is None
        dead = queue.push(Flaky(fails=9)) or ""
        for day in range(1, 5):
            queue.drain_at(T + timedelta(days=day))
        assert queue.retry_all("t-flaky") == 1
        view = queue.status(dead)
        assert view is not None
        assert view.state is State.QUEUED


def test_it_has_the_verbs_of_a_queue_but_for_those_that_wait() -> None:
    def verbs(cls: type) -> set[str]:
        return {name for name, value in vars(cls).items() if callable(value) and not name.startswith("_")}

    assert verbs(Queue) - verbs(LocalQueue) == {"ready", "wait"}
    undocumented = {
        name for cls in (Queue, LocalQueue) for name in verbs(cls) if not getattr(cls, name).__doc__
    }
    assert undocumented == set()


@job("t-spreads", retry=NO_RETRY)
class Spreads(Job):
    def run(self, ctx: Context, jobs: Queue) -> list[str]:
        return jobs.push_many([Flaky(), Flaky()])


def test_a_handler_that_asks_for_a_queue_pushes_to_this_one(local: LocalQueue) -> None:
    id = local.push(Spreads()) or ""
    assert local.drain() == 3
    pushed = local.result(id)
    assert [local.result(each) for each in pushed] == [{"attempt": 1}] * 2
    assert local.stats().states["done"] == 3


def test_a_schedule_made_at_run_time_ticks_by_the_clock_of_the_test(local: LocalQueue) -> None:
    assert local.schedule("often", Flaky(), every("10m"), overlap="queue", missed="catch_up")
    assert local.drain_at(T + timedelta(minutes=10) - MS) == 0
    assert local.drain_at(T + timedelta(minutes=10)) == 1
    assert local.pause("often")
    assert local.drain_at(T + timedelta(minutes=30)) == 0
    assert local.run_now("often") is not None
    assert local.drain() == 1
    assert local.resume("often")
    assert local.drain_at(T + timedelta(minutes=31)) == 1, "what was missed is caught up by one job"
    assert [one.name for one in local.schedules()] == ["often"]
    assert local.unschedule("often")
    assert local.drain_at(T + timedelta(days=1)) == 0


@job("t-final", retry=Retry(3, fixed(5)), final=(KeyError, TimedOut), timeout=0.3)
class Final(Job):
    how: str

    def run(self, ctx: Context) -> None:
        if self.how == "hang":
            time.sleep(60)
        raise {"final": KeyError, "other": ValueError}[self.how]("x")


def failures(local: LocalQueue) -> list[dict[str, Any]]:
    """The lines that the log has of failures while all that is due runs."""
    with capture_logs() as lines:
        local.drain()
    return [line for line in lines if line["event"] == "attempt.failed"]


def test_a_failure_is_one_line_and_a_final_one_is_dead_at_once(local: LocalQueue) -> None:
    final, other = local.push(Final(how="final")), local.push(Final(how="other"))
    told = {
        "event": "attempt.failed", "log_level": "warning", "kind": "t-final", "attempt": 1, "code": "handler_failed"
    }  # fmt: skip
    assert failures(local) == [
        {**told, "job": final, "error": "KeyError", "ending": "dead", "state": "dead", "retry_in_s": 0},
        {
            **told,
            "job": other,
            "error": "ValueError",
            "ending": "retry",
            "state": "queued",
            "retry_in_s": 5.0,
        },
    ]
    [dead] = local._store.dead()
    assert dead.id == final
    view = local.status(dead.id)
    assert view is not None
    error = view.attempts[0].error
    assert error is not None
    assert (error.class_, "KeyError: 'x'" in error.traceback) == ("KeyError", True)


def test_a_timeout_is_never_final() -> None:
    with LocalQueue(T, isolated=True) as local:
        id = local.push(Final(how="hang")) or ""
        local.run_one()
        view = local.status(id)
        assert view is not None
        assert (view.state, view.failures, view.attempts[0].ending) == (State.QUEUED, 1, Ending.TIMED_OUT)


def test_a_row_that_no_longer_decodes_is_dead_with_the_reason_and_harms_no_other(local: LocalQueue) -> None:
    odd = NewJob(id=new_id(), kind="t-flaky", payload='{"fials": 1}', due=T - MS)
    local._store.push([odd])
    good = local.push(Flaky()) or ""
    [line] = failures(local)
    assert (line["job"], line["error"], line["state"]) == (odd.id, "PayloadInvalid", "dead")
    view = local.status(odd.id)
    assert view is not None
    error = view.attempts[0].error
    assert error is not None
    assert "fials" in error.message
    assert local.result(good) == {"attempt": 1}


def test_a_kind_that_nobody_knows_waits_untouched_until_somebody_does(
    local: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = local.push(Flaky()) or ""
    with monkeypatch.context() as patch:
        patch.setattr(testing, "DEFINED", Registry())
        assert local.drain() == 0
    view = local.status(id)
    assert view is not None
    assert (view.state, view.attempt) == (State.QUEUED, 0)
    assert [one.kind for one in local.stats().unserved] == ["t-flaky"]
    assert local.drain() == 1


@job("t-hourly", retry=NO_RETRY, schedule=every("1h"), overlap="queue", missed="drop")
class Hourly(Job):
    def run(self, ctx: Context) -> None: ...


def test_declared_schedules_are_seeded_and_run_by_the_clock_of_the_test(
    local: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "DEFINED", Registry([DEFINED.get("t-hourly")]))
    local.seed()
    assert local.run_one() is None
    assert local.run_one_at(T + timedelta(hours=1) - MS) is None
    view = local.run_one_at(T + timedelta(hours=1))
    assert view is not None
    assert (view.kind, view.state, view.due) == ("t-hourly", State.DONE, T + timedelta(hours=1))
    [schedule] = local.schedules()
    assert schedule.due == every("1h").next(local.now)
    local.unschedule("t-hourly")
    local.seed_at(T + timedelta(days=1))
    [schedule] = local.schedules()
    assert schedule.due == T + timedelta(days=1, hours=1)


@job("t-kicked", retry=NO_RETRY)
class Kicked(Job):
    n: int = 7

    def run(self, ctx: Context) -> int:
        return self.n


@job("t-kicks", retry=Retry(1), kicks=("t-kicked",))
class Kicks(Job):
    then: str = "done"

    def run(self, ctx: Context) -> None:
        for _ in range(3):
            ctx.kick("t-kicked")
        match self.then:
            case "raise" if ctx.attempt == 1:
                raise ValueError("after the kick")
            case "cancel":
                raise Cancel("after the kick")
            case "snooze" if ctx.attempt == 1:
                raise Snooze(60)
            case "undeclared":
                ctx.kick("t-flaky")


@pytest.mark.parametrize("isolated", [False, True])
def test_a_handler_that_is_done_has_kicked_and_one_that_raises_has_not(isolated: bool) -> None:
    with LocalQueue(T, isolated=isolated) as queue:

        def ran() -> int:
            """Runs of what is kicked, when the clock stands still."""
            before = queue.counts().states["done"]
            queue.run_one()
            kicking = queue.counts().states["done"] - before
            return queue.drain() if kicking else 0

        queue.push(Kicks())
        assert ran() == 1
        for then in ("cancel", "snooze"):
            queue.push(Kicks(then=then))
            assert ran() == 0
            assert queue.drain() == 0
        queue.push(Kicks(then="raise"))
        assert ran() == 0
        assert queue.drain() == 2, "the retry, and what that has kicked"


def test_an_undeclared_kick_names_the_declaration_to_write() -> None:
    with LocalQueue(T) as queue:
        id = queue.push(Kicks(then="undeclared")) or ""
        queue.drain()
        view = queue.status(id)
        assert view is not None
        assert view.state is State.DEAD
        error = view.attempts[-1].error
        assert error is not None
        assert error.class_ == "DefinitionError"
        assert 'write kicks=("t-kicked", "t-flaky") in its @job' in error.message
        assert queue.counts().states["done"] == 0, "nothing was kicked"


def test_a_kick_from_the_test_is_a_run(local: LocalQueue) -> None:
    for _ in range(5):
        local.kick("t-kicked")
    run = local.run_one()
    assert run is not None
    assert (run.kind, local.result(run.id)) == ("t-kicked", 7)
    assert local.drain() == 0


@job("t-stalls", retry=Retry(3), timeout=30, stall_after=0.2)
class Stalls(Job):
    def run(self, ctx: Context) -> None:
        ctx.progress(7)
        time.sleep(30)


@job("t-greedy", retry=Retry(3), timeout=30, memory_limit="150MiB")
class Greedy(Job):
    def run(self, ctx: Context) -> None:
        held = bytearray(b"x") * 200 * 2**20
        time.sleep(30)
        assert held


@job("t-long", retry=Retry(3))
class Long(Job):
    size: int

    def run(self, ctx: Context) -> tuple[int, str]:
        return os.getpid(), "x" * self.size


def test_one_job_runs_in_a_process_of_its_own_and_answers() -> None:
    outcome = run_job(Long(size=3))
    pid, text = outcome.result
    assert isinstance(outcome.result, tuple), "the result has the type that run says"
    assert (text, outcome.done, outcome.code) == ("xxx", True, None)
    assert pid != os.getpid()
    assert run_job(Asks(), provided={Clerk: Clerk("a double")}).result == "a double"


def test_a_result_that_no_journal_holds_is_no_crash() -> None:
    assert len(run_job(Long(size=3_000_000)).result[1]) == 3_000_000


def test_one_job_that_fails_has_one_attempt_and_says_why() -> None:
    failed = run_job(Flaky(fails=1))
    assert (failed.ending, failed.code, failed.done) == (Ending.DEAD, Code.HANDLER_FAILED, False)
    assert failed.error is not None
    assert failed.error.message == "attempt 1, last True"
    crashed = run_job(Says(what="die"))
    assert (crashed.ending, crashed.code) == (Ending.CRASHED, Code.CRASHED)
    assert crashed.certificate is not None
    assert crashed.certificate.signal == 9


def test_an_isolated_handler_is_bound_by_its_stall_and_memory_limits() -> None:
    stalled = run_job(Stalls())
    assert (stalled.code, stalled.progress) == (Code.STALLED, Progress(7))
    assert run_job(Greedy()).code is Code.MEMORY
