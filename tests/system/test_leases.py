"""Goal: a running job is never started twice. Method: hold the interpreter, stop whole nodes, cut leases."""

from __future__ import annotations

import os
import signal

import msgspec
import psycopg

from runtime.model.jobs import Ending, State
from tests.helpers.cut import Cut
from tests.helpers.service import Stage
from tests.helpers.waiting import wait_for


def test_a_job_inside_one_c_call_keeps_its_lease_while_another_node_idles(on: Stage) -> None:
    on.run(workers=1)
    job = on.push("in-c", seconds=6.5)
    on.started(job)
    on.run(workers=1)
    view = on.ended(job, within_s=50)
    starts, [stop] = on.effects(job, "start"), on.effects(job, "stop")
    assert len(starts) == 1
    assert view.attempt == 1
    assert (stop.at - starts[0].at).total_seconds() > 5, "longer than two leases, or it shows nothing"


def test_a_stopped_node_wakes_to_find_its_job_anothers_and_changes_nothing(on: Stage) -> None:
    first = on.run(workers=1)
    job = on.push("nap", seconds=3)
    on.started(job)
    family = first.family()
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    on.run(workers=1)
    second = on.started(job, attempt=2)
    for pid in family:
        os.kill(pid, signal.SIGCONT)

    view = on.ended(job)

    assert view.result is not None
    assert msgspec.json.decode(view.result) == {"attempt": 2}
    assert [one.ending for one in view.attempts] == [Ending.LEASE_LOST, Ending.DONE]
    assert view.interruptions == 1
    stops = on.effects(job, "stop")
    assert [stop.attempt for stop in stops] == [2], "the first was killed when its node woke"
    assert second.pid not in family
    wait_for(lambda: first.events("child.exited"))
    on.ended(on.push("quick"))


def test_a_job_whose_lease_is_taken_by_hand_is_killed(on: Stage) -> None:
    service = on.run(workers=1)
    job = on.push("nap", seconds=30)
    on.started(job)
    with psycopg.connect(on.url, autocommit=True) as conn:
        conn.execute("update tenure.job set epoch = epoch + 1 where id = %s", (job,))
    exited = wait_for(lambda: service.events("child.exited", child="worker 1"), within_s=3)
    assert exited[0]["how"] == "signal 9"
    wait_for(lambda: on.effects(job, "start"), lambda starts: len(starts) == 2, within_s=5)


def test_a_node_cut_off_from_the_database_kills_before_its_lease_ends(on: Stage, cut: Cut) -> None:
    service = on.run(workers=1, url=cut.url)
    job = on.push("nap", seconds=30)
    first = on.started(job)
    cut.stop()
    [exited] = wait_for(lambda: service.events("child.exited", child="worker 1"), within_s=5)
    assert exited["how"] == "signal 9"
    on.run(workers=1)
    again = on.started(job, attempt=2)
    assert again.pid != first.pid
    view = on.store.status(job)
    assert view is not None
    taken = view.attempts[0].ended
    assert taken is not None
    assert exited["at"] < taken.isoformat(), "it was dead before anybody could start it again"


def test_the_rows_of_a_dead_worker_are_known_from_the_job_alone(on: Stage) -> None:
    first = on.run(workers=1)
    job = on.push("nap", seconds=30)
    on.started(job)
    for pid in first.family():
        os.kill(pid, signal.SIGKILL)
    with psycopg.connect(on.url, autocommit=True) as conn:
        conn.execute("delete from tenure.node")
    on.run(workers=1)
    on.started(job, attempt=2)
    assert on.store.cancel(job) is State.RUNNING
    on.ended(job, State.CANCELLED)
