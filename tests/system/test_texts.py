"""Goal: no word of a payload is where it does not belong. Method: a marker, and a look at all that is left of it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from runtime.model.jobs import Code, State
from tests.helpers.service import Service, Stage
from tests.helpers.waiting import wait_for

MARKER = "4711-SECRET"
TEXTS = """
select coalesce(string_agg(concat(history, texts), ' '), '') from (
    select history, texts from tenure.job union all select history, texts from tenure.finished
    union all select history, texts from tenure.dead
) as every
"""


def stored(on: Stage) -> str:
    """All that the database knows of the attempts of all jobs."""
    with psycopg.connect(on.url) as conn:
        [row] = conn.execute(TEXTS).fetchall()
    return str(row[0])


def titles(service: Service) -> str:
    return "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in service.family())


def test_a_payload_is_in_no_log_line_and_no_title_and_no_error(on: Stage) -> None:
    service = on.run(workers=1)
    hung = on.push("marked", how="hang", secret=MARKER)
    on.started(hung)
    assert hung in titles(service)
    assert MARKER not in titles(service)
    assert on.store.cancel(hung)
    on.ended(hung, State.CANCELLED)
    jobs = {
        Code.PAYLOAD_INVALID: on.push("marked", how=MARKER, secret=MARKER),
        Code.HANDLER_FAILED: on.push("marked", how="raise", secret=MARKER),
        Code.CRASHED: on.push("marked", how="die", secret=MARKER),
    }
    for code, job in jobs.items():
        assert on.ended(job, State.DEAD).code is code
        assert [attempt.code for attempt in on.ended(job, State.DEAD).attempts][-1] is code
        name = "attempt.ended" if code is Code.CRASHED else "attempt.failed"
        wait_for(lambda name=name, job=job, code=code: service.events(name, job=job, code=code.value))
    assert [job.code for job in on.store.jobs(state=State.CANCELLED)] == [Code.CANCELLED]
    assert "no luck" in stored(on), "it is there that words of a failure are"
    assert MARKER not in stored(on)
    assert service.stop() == 0
    assert MARKER not in service.log.read_text()


def test_switched_off_no_word_of_a_failure_is_stored_or_logged(on: Stage) -> None:
    service = on.run(workers=1, service="store_error_text = false")
    failed = on.ended(on.push("provided", fail=True), State.DEAD)
    hung = on.ended(on.push("hang", how="heed"), State.DEAD)
    gasped = on.ended(on.push("gasp", how="exit"), State.DEAD)
    assert (failed.code, hung.code, gasped.code) == (Code.HANDLER_FAILED, Code.TIMED_OUT, Code.CRASHED)
    for view in (failed, hung, gasped):
        for attempt in view.attempts:
            assert attempt.certificate is None or attempt.certificate.stack is None
            assert attempt.certificate is None or attempt.certificate.output_tail == ""
            assert attempt.error is None or (attempt.error.message, attempt.error.traceback) == ("", "")
    [attempt] = failed.attempts
    assert attempt.error is not None
    assert attempt.error.class_ == "ValueError"
    assert "after the row" not in stored(on)
    assert "Traceback" not in stored(on)
    assert service.stop() == 0
    assert "after the row" not in service.log.read_text()
    assert "Traceback" not in service.log.read_text()


def test_a_hook_redacts_in_the_worker_and_unredacted_output_is_not_stored(on: Stage) -> None:
    on.run(workers=1, service='redact = "tests.system.redaction:hook"')
    [attempt] = on.ended(on.push("provided", fail=True), State.DEAD).attempts
    assert attempt.error is not None
    assert attempt.error.message.endswith(" characters")
    assert attempt.error.traceback.endswith(" characters")
    for attempt in on.ended(on.push("gasp", how="exit"), State.DEAD).attempts:
        assert attempt.certificate is not None
        assert attempt.certificate.output_tail == ""


@pytest.mark.parametrize("hook", ["tests.system.redaction:no_such", "no_such_module:hook"])
def test_without_its_hook_a_worker_does_not_begin(on: Stage, hook: str) -> None:
    service = on.run(workers=1, service=f'redact = "{hook}"', ready=False)
    job = on.push("quick")
    [unready, *_] = wait_for(lambda: service.events("child.unready"), lambda events: len(events) > 1)
    assert unready["reason"].startswith("service.redact: ")
    assert not service.events("child.ready", child="worker 1")
    view = on.store.status(job)
    assert view is not None
    assert view.attempt == 0
