"""Goal: what a handler prints reaches the log as its job's, and harms nobody. Method: print, in every way there is."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

from runtime.edges.output import CUT, LINES_MAX, LOGGED_MAX
from runtime.edges.processes import resident_bytes
from runtime.model.exits import OUTPUT_TAIL
from runtime.model.jobs import State
from tests.helpers.service import Service, Stage
from tests.helpers.waiting import wait_for


def printed(service: Service, job: str, ends_with: str) -> list[str]:
    """The lines logged for a job, once the last one is there."""

    def lines() -> list[str]:
        return [event["line"] for event in service.events("job.output", job=job)]

    return wait_for(lines, lambda found: found and found[-1] == ends_with)


def test_lines_of_python_and_of_c_are_logged_once_for_the_job_that_printed_them(on: Stage) -> None:
    service = on.run(workers=2)
    jobs = [on.push("print", text=f"line of {n}\nand another", times=2) for n in range(20)]
    for n, job in enumerate(jobs):
        assert printed(service, job, "from C") == [f"line of {n}", "and another"] * 2 + ["from C"]
    counts = Counter(event["line"] for event in service.events("job.output"))
    assert all(counts[f"line of {n}"] == 2 for n in range(20)), "no line twice"
    assert not [e for e in service.events("child.output") if "line of" in e["line"]]


def test_many_short_jobs_that_print_are_told_apart(on: Stage) -> None:
    service = on.run(workers=2)
    jobs = on.push_many("say", 2000)
    on.all_ended()
    wait_for(lambda: service.log.read_bytes().count(b'.output"'), lambda n: n >= len(jobs))
    lines = [(event["job"], event["line"]) for event in service.events("job.output")]
    assert sorted(lines) == sorted((job, job) for job in jobs)
    assert not service.events("child.output")


def test_a_subprocess_prints_for_its_job_too(on: Stage) -> None:
    service = on.run(workers=1)
    job = on.push("shell", command="echo out; echo err >&2")
    assert printed(service, job, "err") == ["out", "err"]


def test_the_last_word_before_a_crash_is_in_the_log_and_in_the_certificate(on: Stage) -> None:
    service = on.run(workers=1)
    for how in ("segfault", "exit", "kill"):
        job = on.push("gasp", how=how)
        view = on.ended(job, State.DEAD)
        assert printed(service, job, "x")[-1] == "x", how
        for attempt in view.attempts:
            assert attempt.certificate is not None
            assert attempt.certificate.output_tail == "x"
        assert len(service.events("job.output", job=job)) == len(view.attempts)


def test_what_a_worker_prints_while_it_starts_is_its_own(on: Stage) -> None:
    (on.place / "chatty.py").write_text("print('hello from the import')\n")
    service = on.run(workers=1, handlers=("chatty", "tests.system.jobs"))
    [hello] = wait_for(lambda: service.events("child.output"))
    assert (hello["child"], hello["line"]) == ("worker 1", "hello from the import")
    view = on.ended(on.push("die", how=str(int(signal.SIGKILL))), State.DEAD)
    certificate = view.attempts[0].certificate
    assert certificate is not None
    assert certificate.output_tail == "last words\n"


def test_a_hundred_megabytes_are_cut_and_slow_nobody_and_grow_nothing(on: Stage) -> None:
    service = on.run(workers=2)
    before = resident_bytes(service.supervisor)
    loud = on.push("loud", mebibytes=100)
    on.started(loud)
    pace: list[Any] = [on.ended(on.push("quick"), within_s=2) for _ in range(20)]
    assert all(view.attempt == 1 for view in pace)
    on.ended(loud)
    lines = printed(service, loud, CUT)
    assert sum(len(line) for line in lines) <= LOGGED_MAX + len(CUT)
    assert len(lines) <= LINES_MAX + 1
    assert lines.count(CUT) == 1
    assert resident_bytes(service.supervisor) - before < 16 * OUTPUT_TAIL + 4 * 2**20
    after = on.push("print", text="still heard")
    assert printed(service, after, "from C") == ["still heard", "from C"]
