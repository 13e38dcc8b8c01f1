"""Why an attempt failed, in one fixed word."""

from __future__ import annotations

import pytest

from runtime.model.exits import Certificate, Verdict
from runtime.model.jobs import Code, Ending, Lease, Settlement, State

LEASE = Lease("01900000-0000-7000-8000-000000000001", 1)


def settlement(ending: Ending, verdict: Verdict | None = None, **given) -> Settlement:
    certificate = verdict and Certificate(
        verdict=verdict, signal=9, exit_code=None, cpu_seconds=0.0, peak_memory_bytes=0
    )
    state = State.DONE if ending is Ending.DONE else State.QUEUED
    return Settlement(lease=LEASE, ending=ending, state=state, certificate=certificate, **given)


@pytest.mark.parametrize(
    ("ending", "verdict", "code"),
    [
        (Ending.DONE, None, None),
        (Ending.SNOOZED, None, None),
        (Ending.RETRY, None, "handler_failed"),
        (Ending.DEAD, None, "handler_failed"),
        (Ending.TIMED_OUT, Verdict.TIMEOUT, "timed_out"),
        (Ending.STALLED, Verdict.STALLED, "stalled"),
        (Ending.CRASHED, Verdict.SIGNAL, "crashed"),
        (Ending.CRASHED, Verdict.EXIT, "crashed"),
        (Ending.CRASHED, Verdict.MEMORY, "memory"),
        (Ending.RELEASED, None, "interrupted"),
        (Ending.RELEASED, Verdict.SHUTDOWN, "interrupted"),
        (Ending.RELEASED, Verdict.ENVIRONMENT, "interrupted"),
        (Ending.RELEASED, Verdict.FENCED, "lease_lost"),
        (Ending.LEASE_LOST, None, "lease_lost"),
        (Ending.CANCELLED, Verdict.CANCELLED, "cancelled"),
    ],
)
def test_an_ending_and_its_certificate_say_the_code(
    ending: Ending, verdict: Verdict | None, code: str | None
) -> None:
    assert settlement(ending, verdict).code == code


@pytest.mark.parametrize("ending", Ending)
def test_every_ending_has_a_code_or_is_no_failure(ending: Ending) -> None:
    code = settlement(ending).code
    assert (code is None) == (ending in (Ending.DONE, Ending.SNOOZED))


@pytest.mark.parametrize("fault", [Code.PAYLOAD_INVALID, Code.RESULT_INVALID, Code.UNSTORABLE])
def test_a_failure_may_be_another_fault_than_the_handlers(fault: Code) -> None:
    assert settlement(Ending.DEAD, fault=fault).code is fault
    assert settlement(Ending.TIMED_OUT, fault=fault).code is Code.TIMED_OUT
