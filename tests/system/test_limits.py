"""Goal: a limit holds whatever the handler does. Method: handlers that heed nothing."""

from __future__ import annotations

import time

import pytest

from runtime.model.exits import Verdict
from runtime.model.jobs import Ending, State
from tests.helpers.service import Stage, is_alive
from tests.helpers.waiting import wait_for


@pytest.mark.parametrize("how", ["in-c", "swallow", "child", "heed"])
def test_a_timeout_holds_and_the_slot_comes_back(on: Stage, how: str) -> None:
    on.run(workers=1)
    job = on.push("hang", how=how)
    first = on.started(job)
    view = on.ended(job, State.DEAD, within_s=6)
    [attempt] = view.attempts
    assert attempt.ending is Ending.TIMED_OUT
    assert attempt.ended is not None
    assert (attempt.ended - first.at).total_seconds() < 3.5
    assert attempt.error is not None
    assert attempt.error.class_ == "TimedOut"
    assert attempt.certificate is not None
    assert attempt.certificate.verdict is Verdict.TIMEOUT
    assert attempt.certificate.stack is not None
    assert "in work" in attempt.certificate.stack, "the stacks say where it was"
    assert (view.failures, view.crashes) == (1, 0)
    for child in on.effects(job, "child"):
        wait_for(lambda pid=int(child.value): is_alive(pid), lambda alive: not alive, within_s=1)
    on.ended(on.push("quick"), within_s=3)


def test_the_default_limit_is_the_configurations(on: Stage) -> None:
    on.run(workers=1, worker='timeout = "500ms"')
    job = on.push("stubborn")
    view = on.ended(job, State.DEAD, within_s=5)
    assert view.attempts[0].ending is Ending.TIMED_OUT


def test_a_job_without_progress_for_too_long_is_stalled(on: Stage) -> None:
    on.run(workers=1)
    view = on.ended(on.push("quiet"), State.DEAD, within_s=6)
    [attempt] = view.attempts
    assert attempt.ending is Ending.STALLED
    assert attempt.certificate is not None
    assert attempt.certificate.last_progress is not None
    assert attempt.certificate.last_progress.done == 1


def test_progress_is_seen_while_it_runs_and_kept_when_it_is_done(on: Stage) -> None:
    on.run(workers=1)
    job = on.push("steps", count=25)
    wait_for(
        lambda: on.store.status(job),
        lambda view: view is not None and view.progress is not None and 0 < view.progress.done < 25,
    )
    progress = on.ended(job).progress
    assert progress is not None
    assert progress.total == 25


def test_workers_are_recycled_between_jobs_without_a_pause(on: Stage) -> None:
    service = on.run(workers=1, worker="recycle_jobs = 1")
    jobs = on.push_many("count", 20)
    began_s = time.monotonic()
    for job in jobs:
        assert on.ended(job).attempt == 1
    took_s = time.monotonic() - began_s
    pids = {start.pid for start in on.effects(what="start")}
    assert len(pids) == 20
    assert not service.events("child.restarts"), f"no back-off in {took_s:.1f} s"


def test_a_slow_job_does_not_keep_what_its_worker_had_claimed(on: Stage) -> None:
    service = on.run(workers=2)
    for job in on.push_many("quick", 300):
        on.ended(job)
    slow = on.push("nap", seconds=5)
    quick = on.push_many("quick", 50)
    for job in quick:
        on.ended(job, within_s=3)
    assert on.ended(slow).attempt == 1
    assert not service.events("child.exited")
