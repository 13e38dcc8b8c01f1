"""Goal: a start that cannot succeed is tried seldom and said clearly, and all else goes on. Method: broken starts."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from runtime.edges.embedded import Embedded
from runtime.edges.postgres import PostgresStore
from runtime.model.exits import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Verdict
from runtime.model.jobs import Ending, State
from runtime.rules.restart import Health, RestartPolicy, after_death, is_unhealthy
from tests.helpers import databases
from tests.helpers.service import Stage, stage
from tests.helpers.waiting import wait_for

QUICKLY = '\n[restart]\nfirst_delay = "20ms"\nmax_delay = "500ms"\n'
GOOD = "tests.system.jobs"

COUNTED = """
import os
with open({starts!r}, "a") as starts:
    starts.write(f"{{os.getpid()}}\\n")
"""
BAD = {
    "raises": "raise RuntimeError('this module is broken')",
    "segfaults": "import ctypes; ctypes.string_at(0)",
    "hangs": "import time; time.sleep(600)",
    "dies when ready": """
import setproctitle, threading, time
def die():
    while not setproctitle.getproctitle().endswith("idle"):
        time.sleep(0.005)
    time.sleep(0.05)
    os._exit(3)
threading.Thread(target=die, daemon=True).start()
""",
}


class Module:
    """A module of handlers that counts how often it is imported."""

    def __init__(self, place: Path, how: str) -> None:
        self._path = place / "poison.py"
        self._starts = place / "starts"
        self._starts.touch()
        self._write(BAD[how])

    def _write(self, text: str) -> None:
        self._path.write_text(COUNTED.format(starts=str(self._starts)) + text)

    def mend(self) -> None:
        self._write("# it does nothing, and does it well\n")

    @property
    def starts(self) -> int:
        return len(self._starts.read_text().split())


def test_the_policy_starts_a_role_that_always_dies_at_most_eight_times_in_a_minute() -> None:
    health, now_s, starts = Health(), 0.0, 0
    while now_s < 60.0:
        starts += 1
        health = after_death(health, 0.0, now_s, 0.0, RestartPolicy())
        now_s = health.not_before_s
    assert starts + 1 <= 8, "and both workers may have been started before the first death"
    assert is_unhealthy(health, RestartPolicy())


def test_a_module_that_raises_at_its_import_costs_only_its_own_kinds(on: Stage) -> None:
    module = Module(on.place, "raises")
    service = on.run(handlers=("poison", GOOD))
    on.ended(on.push("quick"))
    [broken] = wait_for(lambda: service.events("handlers.broken"))
    assert broken["module"] == "poison"
    assert "this module is broken" in broken["reason"]
    assert service.events("service.unhealthy")
    assert module.starts == 2, "once a worker"
    assert not service.events("child.exited")
    assert service.stop() == EXIT_FAILED, "a supervisor of this service shall hear of it"


def test_a_module_that_ends_its_process_is_tried_seldom_until_it_is_mended(on: Stage) -> None:
    module = Module(on.place, "segfaults")
    service = on.run(handlers=("poison",), service=QUICKLY, ready=False)
    other = on.run()
    [unhealthy] = wait_for(lambda: service.events("service.unhealthy"))
    assert unhealthy["deaths"] == {"worker": 5}
    assert module.starts == 5, "one probe at a time, whatever the number of workers"
    job = on.push("quick")
    on.ended(job)
    assert other.alive
    exits = service.events("child.exited")
    assert {e["child"].split()[0] for e in exits} == {"worker"}, "the scheduler goes on"
    assert [e["child"] for e in service.events("child.ready")] == ["scheduler"]

    module.mend()
    service.ready()
    wait_for(lambda: service.events("service.healthy"))
    assert other.stop() == EXIT_OK
    assert service.stop() == EXIT_OK


def test_no_job_pays_for_a_worker_that_dies_as_soon_as_it_is_ready(on: Stage) -> None:
    module = Module(on.place, "dies when ready")
    service = on.run(handlers=("poison", GOOD), service=QUICKLY, ready=False)
    wait_for(lambda: service.events("service.unhealthy"))
    assert module.starts <= 6
    module.mend()
    wait_for(lambda: service.events("service.healthy"))
    job = on.push("quick")
    view = on.ended(job)
    assert (view.attempt, view.crashes) == (1, 0)


def test_a_module_that_hangs_at_its_import_is_killed_and_the_log_says_so(on: Stage) -> None:
    module = Module(on.place, "hangs")
    service = on.run(handlers=("poison",), service='ready_within = "700ms"', ready=False)
    wait_for(lambda: service.events("child.not_ready", child="worker 1"))
    [exited] = wait_for(lambda: service.events("child.exited", child="worker 1"))
    assert exited["how"] == "signal 9"
    [restarts] = wait_for(lambda: service.events("child.restarts"))
    assert restarts["deaths_in_a_row"] == 1
    wait_for(lambda: module.starts, lambda starts: starts == 2)
    module.mend()
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(10) == EXIT_OK


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_jobs_run_and_deaths_are_certified_whatever_the_start_method(on: Stage, method: str) -> None:
    scratch = on.place / "scratch"
    scratch.mkdir()
    service = on.run(workers=1, service=f'start_method = "{method}"', env={"TMPDIR": str(scratch)})
    view = on.ended(on.push("die", how="9", times=1))
    certificate = view.attempts[0].certificate
    assert certificate is not None
    assert (certificate.verdict, certificate.signal) == (Verdict.SIGNAL, signal.SIGKILL)
    assert certificate.output_tail == "last words\n"
    if method == "spawn":  # of a fork server's child that lives this short nobody is told
        assert certificate.peak_memory_bytes > 1_000_000
    assert [one.ending for one in view.attempts] == [Ending.CRASHED, Ending.DONE]
    last = on.push("nap", seconds=0.7)
    on.started(last)
    for pid in service.family():
        os.kill(pid, signal.SIGTERM)
    assert service.process.wait(20) == EXIT_OK
    assert on.ended(last, within_s=1).attempt == 1, "also the helpers of the method heed no such signal"
    assert not list(scratch.iterdir()), "and what they keep on disk is removed"


@pytest.mark.parametrize(
    ("service", "worker", "key"),
    [
        ("wrokers = 2", "", "service.wrokers"),
        ('shutdown_grace = "soon"', "", "service.shutdown_grace"),
        ("", 'timeout = "0s"', "worker.timeout"),
        ('\n[lease]\nduration = "1s"\n', "", "lease"),
    ],
)
def test_a_wrong_configuration_ends_before_anything_is_started(
    on: Stage, service: str, worker: str, key: str
) -> None:
    run = on.run(service=service, worker=worker, ready=False)
    assert run.process.wait(20) == EXIT_USAGE
    [line] = run.log.read_text().splitlines()
    assert line.startswith("tenure: ")
    assert key in line


@pytest.mark.skipif(sys.platform != "linux", reason="memory of pages in files is given back on Linux")
def test_the_guardian_gives_back_what_it_has_loaded_for_others(on: Stage) -> None:
    service = on.run()

    def of_files_kib(pid: int) -> int:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))

    # The supervisor's are what a fork of the same program touches by itself; without giving back it is threefold.
    assert of_files_kib(service.pid) < of_files_kib(service.supervisor)
    assert service.stop() == EXIT_OK


def test_a_database_that_is_away_at_the_start_is_waited_for(place: Path) -> None:
    server = Embedded(place / "server", bin_dir=databases.bin_dir())
    url = server.open()
    store = PostgresStore(url)
    store.install()
    store.close()
    with stage(url, place) as on:
        job = on.push("quick")
        on.store.close()
        server.close()
        service = on.run(ready=False)
        wait_for(lambda: service.events("store.unavailable", actor="scheduler"))
        wait_for(lambda: service.events("store.unavailable", actor="worker 1"))
        server.open()
        on.ended(job, within_s=15)
        assert not service.events("child.exited")
        assert service.stop() == EXIT_OK
    server.close()


def test_a_database_without_the_schema_is_named_with_what_to_run(dsn: str, place: Path) -> None:
    with stage(dsn, place) as on:
        service = on.run(service=QUICKLY, ready=False)
        unready = wait_for(lambda: service.events("child.unready"))
        assert all("tenure migrate" in event["reason"] for event in unready)
        on.store.install()
        service.ready()
        on.ended(on.push("quick"))
        assert service.stop() == EXIT_OK


def test_without_room_for_descriptors_a_worker_starts_later_and_nothing_leaks(on: Stage) -> None:
    service = on.run(workers=2, service=QUICKLY)
    held = f"/proc/{service.supervisor}/fd"
    before = sorted(os.listdir(held))
    limits = resource.prlimit(service.supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(service.supervisor, resource.RLIMIT_NOFILE, (len(before) - 3, limits[1]))

    job = on.push("nap", seconds=0.5)
    os.kill(on.started(job).pid, signal.SIGKILL)
    unstartable = wait_for(lambda: service.events("child.unstartable"), lambda found: len(found) >= 3)
    assert "Too many open files" in unstartable[0]["reason"]
    on.ended(job)  # by the worker that is left
    wait_for(lambda: service.events("service.unhealthy"))

    resource.prlimit(service.supervisor, resource.RLIMIT_NOFILE, limits)
    wait_for(lambda: service.events("service.healthy"))
    wait_for(lambda: len(os.listdir(held)), lambda count: count == len(before))
    assert on.store.counts().states.get(State.DEAD, 0) == 0
    assert service.stop() == EXIT_OK
