"""Goal: a stop loses nothing and doubles nothing. Method: signal real services, in every way they are."""

from __future__ import annotations

import os
import pty
import signal
import time

import pytest

from runtime.model.jobs import Ending, State
from tests.helpers.service import Stage, is_alive
from tests.helpers.waiting import wait_for


def test_a_draining_node_finishes_its_job_under_its_lease_while_another_idles(on: Stage) -> None:
    first = on.run()
    job = on.push("nap", seconds=6)
    on.started(job)
    on.run()
    assert first.stop() == 0
    view = on.ended(job, within_s=1)
    assert (view.attempt, view.interruptions) == (1, 0)
    assert len(on.effects(job, "start")) == 1


def test_a_drain_gives_back_at_once_what_was_claimed_and_not_begun(on: Stage) -> None:
    first = on.run(workers=1)
    for job in on.push_many("quick", 200):  # so that it claims many at once
        on.ended(job)
    slow = on.push_many("nap", 5, seconds=4)
    on.started(slow[0])
    first.process.send_signal(signal.SIGTERM)
    on.run(workers=4)
    for job in slow[1:]:
        on.started(job, within_s=3)
    assert first.process.wait(20) == 0
    for job in slow:
        view = on.ended(job)
        assert (view.attempt, view.interruptions, len(view.attempts)) == (1, 0, 1)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_kills_and_releases_at_once(on: Stage, second: int) -> None:
    service = on.run()
    job = on.push("nap", seconds=60)
    pid = on.started(job).pid
    service.process.send_signal(signal.SIGTERM)
    wait_for(lambda: service.events("service.drains"))
    time.sleep(0.3)  # two signals closer together are one
    asked_s = time.monotonic()
    assert service.stop(second) == 130
    assert time.monotonic() - asked_s < 2.0
    assert not is_alive(pid)
    view = on.store.status(job)
    assert view is not None
    assert view.state is State.QUEUED, "claimable now, not only when the lease has ended"
    assert [one.ending for one in view.attempts] == [Ending.RELEASED]
    assert (view.failures, view.crashes, view.interruptions) == (0, 0, 1)
    on.run()
    on.started(job, attempt=2)


def test_ten_signals_at_once_are_one_stop(on: Stage) -> None:
    service = on.run()
    job = on.push("nap", seconds=2)
    on.started(job)
    for _ in range(10):
        service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(20) == 0
    assert on.ended(job, within_s=1).attempt == 1


def test_a_job_that_outlasts_the_grace_is_released(on: Stage) -> None:
    service = on.run(service='shutdown_grace = "500ms"')
    job = on.push("nap", seconds=60)
    on.started(job)
    assert service.stop() == 1
    view = on.store.status(job)
    assert view is not None
    assert (view.state, view.interruptions) == (State.QUEUED, 1)


def test_ctrl_c_lets_the_running_job_end(on: Stage) -> None:
    leader, follower = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(follower), os.O_RDWR))  # the first one opened becomes the controlling one

    service = on.run(stdin=follower, start_new_session=False, preexec_fn=own_terminal)
    job = on.push("nap", seconds=2)
    on.started(job)
    os.write(leader, b"\x03")
    assert service.process.wait(20) == 0
    assert on.ended(job, within_s=1).attempt == 1
    os.close(leader)
    os.close(follower)


@pytest.mark.parametrize("whom", ["group", "everybody"])
def test_a_signal_to_every_process_is_a_signal_to_the_supervisor(on: Stage, whom: str) -> None:
    service = on.run()
    job = on.push("nap", seconds=2)
    on.started(job)
    if whom == "group":
        os.killpg(service.pid, signal.SIGTERM)
    else:
        for pid in service.family():
            os.kill(pid, signal.SIGTERM)
    assert service.process.wait(20) == 0
    view = on.ended(job, within_s=1)
    assert (view.attempt, view.interruptions) == (1, 0)


def test_a_reload_replaces_every_child_and_loses_nothing(on: Stage) -> None:
    service = on.run(worker="recycle_jobs = 0")
    before = {pid for pid in service.family() if pid not in (service.pid, service.supervisor)}
    running = on.push("nap", seconds=2)
    on.started(running)
    others = on.push_many("count", 50)
    service.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(service.events("child.ready")), lambda n: n >= 6, within_s=20)
    for job in [running, *others]:
        view = on.ended(job)
        assert (view.attempt, view.interruptions) == (1, 0)
    after = service.family() - {service.pid, service.supervisor}
    assert len(after) == 3
    assert not before & after


def test_a_service_until_idle_ends_when_nothing_is_left(on: Stage) -> None:
    later = on.push("quick", _delay_s=1.0)
    jobs = on.push_many("count", 20)
    service = on.run("--until-idle", ready=False)
    assert service.process.wait(30) == 0
    for job in [later, *jobs]:
        on.ended(job, within_s=0.1)


def test_cancel_is_told_then_enforced(on: Stage) -> None:
    on.run()
    queued = on.push("quick", _delay_s=60)
    assert on.store.cancel(queued) is State.CANCELLED
    patient = on.push("patient")
    on.started(patient)
    assert on.store.cancel(patient) is State.RUNNING
    view = on.ended(patient, State.CANCELLED, within_s=3)
    assert len(on.effects(patient, "cancelled")) == 1
    stubborn = on.push("stubborn")
    pid = on.started(stubborn).pid
    on.store.cancel(stubborn)
    view = on.ended(stubborn, State.CANCELLED, within_s=3)
    assert not is_alive(pid)
    certificate = view.attempts[0].certificate
    assert certificate is not None
    assert certificate.verdict == "cancelled"
    on.ended(on.push("quick"))


def test_a_cancel_is_heeded_while_the_node_drains(on: Stage) -> None:
    service = on.run()
    job = on.push("stubborn")
    on.started(job)
    service.process.send_signal(signal.SIGTERM)
    wait_for(lambda: service.events("service.drains"))
    on.store.cancel(job)
    assert service.process.wait(5) == 0
    on.ended(job, State.CANCELLED, within_s=1)
