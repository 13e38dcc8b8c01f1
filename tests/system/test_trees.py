"""Goal: no process is left over, whoever made it, and the service may be PID 1. Method: a PID namespace, and orphans."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path

import pytest

from runtime.model.exits import EXIT_OK
from runtime.model.jobs import State
from tests.helpers.service import Service, Stage, children, is_alive
from tests.helpers.waiting import wait_for

AS_PID_1 = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@cache
def namespaces() -> bool:
    """Whether this user may make PID namespaces here."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*AS_PID_1, "true"], capture_output=True, check=False).returncode == 0


def zombies(service: Service) -> set[int]:
    return {pid for pid in service.family() if not is_alive(pid)}


def test_orphans_of_jobs_leave_no_zombie(on: Stage) -> None:
    service = on.run()
    before = service.family()
    on.push_many("litter", 50)
    on.all_ended()
    wait_for(lambda: zombies(service), lambda found: not found, within_s=2.0)
    wait_for(service.family, lambda family: family == before)
    assert not service.events("child.exited")


def test_the_service_as_pid_1_adopts_drains_and_starts_again_after_a_kill(on: Stage) -> None:
    if not namespaces():
        pytest.skip("no PID namespace can be made here")
    service = on.run(wrap=AS_PID_1)
    [first] = children(service.pid)
    on.push_many("litter", 50)
    running = on.push("nap", seconds=1.5)
    on.started(running)
    for _ in range(5):  # as "docker exec" would: an orphan that nobody but PID 1 adopts
        visit = ["nsenter", f"--target={first}", "--pid", "sh", "-c", "sleep 0.1 &"]
        subprocess.run(visit, check=True)
    on.all_ended()
    expected = 6  # unshare, guardian, supervisor, scheduler and two workers
    wait_for(service.family, lambda family: len(family) == expected, within_s=2.0)
    assert not zombies(service)
    assert not service.events("child.exited"), "no exit status of ours was taken for a stranger's"

    last = on.push("nap", seconds=1.0)
    on.started(last)
    os.kill(first, signal.SIGTERM)
    assert service.process.wait(20) == EXIT_OK
    assert on.ended(last, within_s=1).attempt == 1

    killed = on.run(wrap=AS_PID_1)
    cut_short = on.push("nap", seconds=60)
    on.started(cut_short)
    family = killed.family()
    [first] = children(killed.pid)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: [pid for pid in family if is_alive(pid)], lambda living: not living, within_s=1.0)
    assert killed.process.wait(10) != EXIT_OK
    on.run(wrap=AS_PID_1)
    on.started(cut_short, attempt=2)


def test_a_death_is_noticed_at_once_though_a_subprocess_holds_the_output_open(on: Stage) -> None:
    service = on.run()
    job = on.push("shell", command="echo began; sleep 60")
    wait_for(lambda: service.events("job.output", job=job))
    view = on.ended(job, State.RUNNING)
    pid = view.attempts[0].pid
    assert pid is not None
    grandchildren = {one for child in children(pid) for one in (child, *children(child))}
    assert grandchildren
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: service.events("child.exited", pid=pid), within_s=0.5)
    wait_for(lambda: [one for one in grandchildren if is_alive(one)], lambda left: not left, within_s=1.0)


def test_nobody_who_forks_has_a_second_thread_and_workers_hold_one_connection(on: Stage) -> None:
    service = on.run()
    on.ended(on.push("quick"))
    for pid in (service.pid, service.supervisor):
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
        kinds = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [kind for kind in kinds if kind.startswith("socket:")], "no connection meets a fork"
    for pid in children(service.supervisor):
        held = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        assert len([one for one in held if one.startswith("socket:")]) == 1
        assert len([one for one in held if one.startswith("pipe:")]) == 7, (
            "its ends, 1 and 2, and no sibling's"
        )
