"""Goal: a service knows a job that its own handler has ended, and ends what a dead attempt still does in the database."""

from __future__ import annotations

import os
import signal

import msgspec
import psycopg
import pytest

from runtime.model.jobs import Ending, State
from tests.helpers.service import Stage
from tests.helpers.waiting import wait_for


def sessions(on: Stage) -> list[tuple[str]]:
    with psycopg.connect(on.url) as conn:
        return conn.execute(
            "select application_name from pg_stat_activity where application_name like 'tenure job %%'"
            " and datname = current_database()"
        ).fetchall()


def test_a_job_that_its_handler_has_completed_is_over(on: Stage) -> None:
    """It is not settled again, not renewed to death while the handler goes on, and a death is not held against it."""
    service = on.run(workers=1)
    plain, stays = on.push("deposit"), on.push("deposit", stays=1.5)
    after, before = on.push("deposit", killed="after"), on.push("deposit", killed="before")
    for job in (plain, stays, after, before):
        view = on.ended(job)
        attempts = 2 if job == before else 1
        assert view.result is not None
        assert msgspec.json.decode(view.result) == {"attempt": attempts}
        assert [one.ending for one in view.attempts] == [Ending.CRASHED, Ending.DONE][-attempts:]
        assert view.crashes == attempts - 1
        assert len(on.effects(job, "deposit")) == 1
    on.ended(on.push("quick"))
    assert len(service.events("child.exited", child="worker 1")) == 2, "by its own hand, both times"
    assert [lost["job"] for lost in service.events("lease.lost")] == [after], "the death after its end"
    [ended] = service.events("attempt.ended", job=after)
    assert ended["unless"] == "its handler had completed it"


def test_a_dead_attempts_statement_is_ended_before_the_next_one_starts(on: Stage) -> None:
    on.run(workers=1)
    job = on.push("long-statement")
    started = on.started(job)
    wait_for(lambda: sessions(on), lambda found: found == [(f"tenure job {job} 1",)])
    os.kill(started.pid, signal.SIGKILL)
    view = on.ended(job)
    assert [one.ending for one in view.attempts] == [Ending.CRASHED, Ending.DONE]
    assert sessions(on) == []


@pytest.mark.parametrize(
    ("how", "told", "state"),
    [("cancel", "Cancel", State.CANCELLED), ("drain", "Stopping", State.QUEUED)],
    ids=["cancel", "drain"],
)
def test_a_handler_that_asks_is_told_why_it_has_to_end(on: Stage, how: str, told: str, state: State) -> None:
    service = on.run(workers=1, service='shutdown_grace = "1500ms"')
    job = on.push("watch")
    on.started(job)
    if how == "cancel":
        on.store.cancel(job)
    else:
        assert service.stop() == 0, "nothing had to be killed"
    [effect] = wait_for(lambda: on.effects(job, "told"))
    assert effect.value == told
    view = wait_for(lambda: on.store.status(job), lambda view: view is not None and view.state is state)
    assert view is not None
    assert (view.failures, view.crashes, view.interruptions) == (0, 0, int(how == "drain"))


def test_a_handler_whose_supervisor_stands_still_knows_when_its_lease_ends(on: Stage) -> None:
    service = on.run(workers=1)
    job = on.push("watch")
    on.started(job)
    os.kill(service.supervisor, signal.SIGSTOP)
    [effect] = wait_for(lambda: on.effects(job, "told"))
    os.kill(service.supervisor, signal.SIGCONT)
    assert effect.value == "LeaseLost"
