"""Goal: a job outlives its process, and the reason of the death is on record. Method: kill real processes."""

from __future__ import annotations

import os
import signal

import pytest

from runtime.model.exits import Verdict
from runtime.model.jobs import Ending, State
from tests.helpers.service import Stage, is_alive
from tests.helpers.waiting import wait_for


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_the_job_of_a_killed_worker_runs_again_within_a_second(on: Stage, signum: int) -> None:
    on.run()
    job = on.push("nap", seconds=1.0)
    first = on.started(job)

    os.kill(first.pid, signum)
    second = on.started(job, attempt=2)

    view = on.ended(job)
    certificate = view.attempts[0].certificate
    assert certificate is not None
    assert (certificate.verdict, certificate.signal) == (Verdict.SIGNAL, signum)
    assert certificate.peak_memory_bytes > 1_000_000
    assert certificate.cpu_seconds > 0
    assert [one.ending for one in view.attempts] == [Ending.CRASHED, Ending.DONE]
    assert (view.attempt, view.crashes, view.failures, view.interruptions) == (2, 1, 0, 0)
    ended = view.attempts[0].ended
    assert ended is not None
    assert (second.at - ended).total_seconds() < 1.0
    assert len(on.effects(job, "start")) == 2


def test_a_handler_over_its_memory_limit_is_killed_and_the_verdict_is_memory(on: Stage) -> None:
    on.run()
    job = on.push("hog")
    view = on.ended(job)
    certificate = view.attempts[0].certificate
    assert certificate is not None
    assert (certificate.verdict, certificate.signal) == (Verdict.MEMORY, signal.SIGKILL)
    assert certificate.peak_memory_bytes > 200 * 2**20
    assert (view.attempt, view.crashes) == (2, 1)


@pytest.mark.parametrize(
    ("how", "signum", "code"),
    [
        ("exit0", None, 0),
        ("exit3", None, 3),
        ("segfault", signal.SIGSEGV, None),
        ("abort", signal.SIGABRT, None),
        ("descriptors", None, 1),
        ("recursion", signal.SIGSEGV, None),
        ("15", None, None),
    ],
)
def test_a_handler_that_ends_its_process_is_never_done(
    on: Stage, how: str, signum: int | None, code: int | None
) -> None:
    on.run()
    job = on.push("die", how=how)
    if how == "15":
        on.ended(job)  # a worker heeds no SIGTERM: only its supervisor decides
        return
    view = on.ended(job, State.DEAD)
    assert len(on.effects(job, "start")) == 3, "the crash budget"
    assert [one.ending for one in view.attempts] == [Ending.CRASHED] * 3
    for attempt in view.attempts:
        certificate = attempt.certificate
        assert certificate is not None
        assert (certificate.signal, certificate.exit_code) == (signum, code)
        assert certificate.last_progress is not None
        assert certificate.last_progress.note == "about to die"
        assert "last words" in certificate.output_tail


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("exit", "SystemExit"),
        ("exit text", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator", "GeneratorExit"),
        ("recursion", "RecursionError"),
        ("memory", "MemoryError"),
        ("surrogate", "ValueError"),
        ("huge", "ValueError"),
    ],
)
def test_whatever_a_handler_raises_is_a_failure_with_a_name(on: Stage, what: str, name: str) -> None:
    service = on.run(workers=1)
    job = on.push("raise", what=what)
    view = on.ended(job, State.DEAD)
    error = view.attempts[0].error
    assert error is not None
    assert error.class_ == name
    assert (view.failures, view.crashes) == (1, 0)
    on.ended(on.push("quick"))
    assert not service.events("child.exited"), "the worker lives on"


def test_a_job_that_closes_its_output_harms_no_other(on: Stage) -> None:
    service = on.run(workers=1)
    on.ended(on.push("die", how="stdout"))
    printing = on.push("print", text="after it")
    on.ended(printing)
    wait_for(lambda: service.events("job.output", job=printing, line="after it"))
    assert not service.events("child.exited")


@pytest.mark.parametrize(("how", "name"), [("snooze", "TypeError"), ("str", "UnspeakableError")])
def test_what_cannot_be_made_sense_of_is_a_failure(on: Stage, how: str, name: str) -> None:
    service = on.run(workers=1)
    error = on.ended(on.push("die", how=how), State.DEAD).attempts[0].error
    assert error is not None
    assert error.class_ == name
    assert not service.events("child.exited")


def test_results_that_are_larger_than_the_journal_are_settled_one_by_one(on: Stage) -> None:
    on.run(workers=1)
    jobs = [on.push("big"), *on.push_many("count", 5), on.push("big", size=300_000), on.push("quick")]
    for job in jobs:
        view = on.ended(job)
        assert (view.attempt, view.crashes) == (1, 0)
    big = on.ended(jobs[0]).result
    assert big is not None
    assert len(bytes(big)) == 2_000_002


def test_a_fork_that_comes_out_of_its_handler_is_no_second_worker(on: Stage) -> None:
    service = on.run(workers=1)
    view = on.ended(on.push("die", how="fork"))
    assert (view.result is not None and bytes(view.result), view.attempt) == (b"1", 1)
    on.ended(on.push("quick"))
    assert not service.events("child.exited")
    assert not service.events("attempt.failed")


def test_two_poison_jobs_among_good_ones_end_dead_after_three_executions(on: Stage) -> None:
    service = on.run(workers=4)
    good = on.push_many("count", 100)
    bad = [on.push("die", how="9"), on.push("die", how="segfault")]
    good += on.push_many("count", 100)

    states = on.all_ended(within_s=60)

    assert (states["done"], states["dead"]) == (200, 2), states
    for job in bad:
        view = on.ended(job, State.DEAD)
        assert len(on.effects(job, "start")) == 3
        assert view.crashes == 3
    assert len(service.events("child.exited")) == 6
    starts = on.effects(what="start")
    assert len(starts) == 200 + 6, "a crash beside it never runs a good job again"
    wait_for(lambda: service.events("child.ready"), lambda ready: len(ready) == 5 + 6)


def test_a_killed_supervisor_takes_all_its_processes_with_it_and_the_job_runs_again(on: Stage) -> None:
    service = on.run()
    job = on.push("family", seconds=60)
    grandchild = int(wait_for(lambda: on.effects(job, "grandchild"))[0].value)
    family = service.family() | {grandchild}
    assert len(family) >= 5

    os.kill(service.supervisor, signal.SIGKILL)
    wait_for(lambda: [pid for pid in family if is_alive(pid)], lambda living: not living, within_s=1.0)
    assert service.process.wait(5) == 1

    on.run()
    again = on.started(job, attempt=2)
    assert again.pid not in family
    view = on.store.status(job)
    assert view is not None
    assert view.attempts[0].ending is Ending.LEASE_LOST
    assert (view.interruptions, view.crashes, view.failures) == (1, 0, 0)


def test_a_killed_guardian_takes_all_processes_with_it_too(on: Stage) -> None:
    service = on.run()
    job = on.push("family", seconds=60)
    grandchild = int(wait_for(lambda: on.effects(job, "grandchild"))[0].value)
    family = service.family() | {grandchild}
    os.kill(service.pid, signal.SIGKILL)
    wait_for(lambda: [pid for pid in family if is_alive(pid)], lambda living: not living, within_s=1.0)


def test_what_a_worker_started_dies_with_it(on: Stage) -> None:
    on.run()
    job = on.push("family", seconds=60)
    grandchild = int(wait_for(lambda: on.effects(job, "grandchild"))[0].value)
    assert is_alive(grandchild)
    os.kill(on.started(job).pid, signal.SIGKILL)
    wait_for(lambda: is_alive(grandchild), lambda alive: not alive, within_s=1.0)


@pytest.mark.timeout(180)
def test_descriptors_zombies_and_memory_files_stay_constant_over_200_deaths(on: Stage) -> None:
    service = on.run(worker='memory_limit = "1GiB"')

    def census() -> tuple[int, int]:
        descriptors = len(os.listdir(f"/proc/{service.supervisor}/fd"))
        return descriptors, len(service.family())

    for _ in range(2):
        on.ended(on.push("die", how="9"), State.DEAD)
    wait_for(lambda: len(service.events("child.ready")), lambda n: n == 3 + 6)

    def memory_files() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if not name.startswith(("PostgreSQL", "tenure-"))}

    before, shared = census(), memory_files()
    dead = [on.push("die", how="9" if n % 2 else "exit3") for n in range(67)]
    for job in dead:
        on.ended(job, State.DEAD, within_s=90)
    wait_for(lambda: len(service.events("child.ready")), lambda n: n == 3 + 6 + 201, within_s=90)
    wait_for(census, lambda after: after == before)
    assert memory_files() == shared


def test_a_handler_may_have_a_process_pool_and_leaves_nothing_behind(on: Stage) -> None:
    on.run(workers=1)
    view = on.ended(on.push("pool"))
    assert view.result is not None
    assert bytes(view.result) == b"6"


def test_a_process_that_a_handler_forks_heeds_the_handlers_signals(on: Stage) -> None:
    on.run(workers=1)
    view = on.ended(on.push("terminate"))
    assert view.result is not None
    assert bytes(view.result) == b"-15"


def test_a_job_finds_its_process_as_the_one_before_found_it(on: Stage) -> None:
    on.run(workers=1)
    before = on.ended(on.push("look")).result
    on.ended(on.push("untidy"))
    after = on.ended(on.push("look")).result
    assert before is not None
    assert after is not None
    assert bytes(before) == bytes(after)
