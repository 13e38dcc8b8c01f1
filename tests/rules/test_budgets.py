"""Three budgets: what each ending spends, and when a job is dead of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.exits import Certificate, Verdict
from runtime.model.jobs import CHARGES, Budget, Ending, Failure, Lease, State
from runtime.model.messages import Limits
from runtime.rules import budgets

LEASE = Lease("a", 1)
ERROR = Failure("ValueError", "no")
CERTIFICATE = Certificate(
    verdict=Verdict.SIGNAL, signal=11, exit_code=None, cpu_seconds=0.0, peak_memory_bytes=0
)


def test_every_ending_has_its_budget() -> None:
    assert set(CHARGES) == set(Ending)
    free = {ending for ending, budget in CHARGES.items() if budget is None}
    assert free == {Ending.DONE, Ending.SNOOZED, Ending.CANCELLED}


@given(retries=st.integers(0, 20), chance=st.floats(0.0, 1.0, exclude_max=True))
def test_a_job_that_always_fails_fails_once_more_than_it_may_retry(retries: int, chance: float) -> None:
    limits = Limits(timeout_s=1.0, retries=retries, delay_first_s=1.0, delay_factor=2.0, delay_cap_s=8.0)
    failures, states = 0, []
    while State.DEAD not in states:
        assert budgets.is_last(failures, limits) == (failures == retries)
        settled = budgets.failed(LEASE, failures, limits, chance, error=ERROR)
        assert CHARGES[settled.ending] is Budget.FAILURES
        assert settled.ending is (Ending.DEAD if settled.state is State.DEAD else Ending.RETRY)
        failures += 1
        states.append(settled.state)
    assert failures == retries + 1


@given(most=st.integers(1, 10))
def test_a_job_that_always_crashes_dies_at_the_cap(most: int) -> None:
    limits = Limits(timeout_s=1.0, retries=99, max_crashes=most)
    states = [budgets.crashed(LEASE, crashes, limits, CERTIFICATE).state for crashes in range(most)]
    assert states == [State.QUEUED] * (most - 1) + [State.DEAD]


def test_a_kind_that_must_not_run_again_after_a_crash_is_dead_at_the_first() -> None:
    limits = Limits(timeout_s=1.0, retries=9, crash_retries=False)
    assert budgets.crashed(LEASE, 0, limits, CERTIFICATE).state is State.DEAD


@pytest.mark.parametrize("ending", [Ending.TIMED_OUT, Ending.STALLED])
def test_an_overrun_keeps_its_name_when_it_is_the_last(ending: Ending) -> None:
    settled = budgets.failed(LEASE, 0, Limits(timeout_s=1.0), 0.0, error=ERROR, ending=ending)
    assert (settled.ending, settled.state) == (ending, State.DEAD)


def test_a_final_failure_is_the_last_whatever_retry_says() -> None:
    settled = budgets.failed(LEASE, 0, Limits(timeout_s=1.0, retries=9), 0.0, error=ERROR, final=True)
    assert (settled.ending, settled.state, settled.delay_s) == (Ending.DEAD, State.DEAD, 0.0)


def test_an_interruption_comes_back_at_once_and_spends_nothing() -> None:
    settled = budgets.released(LEASE)
    assert (settled.state, settled.delay_s, CHARGES[settled.ending]) == (
        State.QUEUED,
        0.0,
        Budget.INTERRUPTIONS,
    )
