"""How many jobs are claimed at once: as many as will be finished soon, and one when they are slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.rules.batch import FIRST, GROWTH, LIMIT_MAX, TARGET_S, Pace, after_batch, after_wait


def pace_of(job_s: float, batches: int = 20) -> Pace:
    pace = Pace()
    for _ in range(batches):
        pace = after_batch(pace, pace.limit, pace.limit * job_s)
    return pace


@pytest.mark.parametrize(
    ("job_s", "limit"), [(0.0001, 250), (0.002, 125), (0.005, 50), (0.06, 4), (0.12, 2), (0.13, 1), (60.0, 1)]
)
def test_a_batch_is_about_a_quarter_of_a_second_of_work(job_s: float, limit: int) -> None:
    assert pace_of(job_s).limit == pytest.approx(limit, abs=1)


@pytest.mark.parametrize(
    ("work_s", "target_s"), [(0.1, 0.1), (0.4, 0.1), (0.8, 0.2), (1.0, 0.25), (9.0, 0.25)]
)
def test_a_batch_is_smaller_until_there_has_been_work_for_a_second(work_s: float, target_s: float) -> None:
    pace = after_wait(Pace(job_s=0.01, limit=100, work_s=60.0))
    while pace.work_s < work_s - 0.001:
        pace = after_batch(pace, 1, 0.01)
    assert pace.limit == pytest.approx(target_s / 0.01, abs=1)


def test_one_job_that_was_off_the_processor_says_little() -> None:
    quick = pace_of(0.0001)
    assert after_batch(quick, 100, 0.01 + TARGET_S).limit > LIMIT_MAX // 2


def test_slow_jobs_are_soon_claimed_one_at_a_time() -> None:
    pace = pace_of(0.0001)
    for _ in range(2):
        pace = after_batch(pace, pace.limit, pace.limit * TARGET_S * 2)
    assert pace.limit == 1


def test_nothing_run_teaches_nothing() -> None:
    pace = pace_of(0.001)
    assert after_batch(pace, 0, 0.0) == pace


@pytest.mark.parametrize("job_s", [0.0001, 60.0])
def test_after_a_wait_few_are_claimed_and_soon_as_many_as_before(job_s: float) -> None:
    pace = pace_of(job_s)
    waited = after_wait(pace)
    assert waited.limit == min(pace.limit, FIRST)
    for _ in range(4):
        waited = after_batch(waited, waited.limit, waited.limit * job_s)
    assert waited.limit == pace.limit


@given(jobs=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60))
def test_a_batch_is_bounded_and_grows_slowly(jobs: list[float]) -> None:
    pace = Pace()
    for job_s in jobs:
        before = pace
        pace = after_batch(before, before.limit, before.limit * job_s)
        assert 1 <= pace.limit <= min(LIMIT_MAX, before.limit * GROWTH)
        assert before.job_s is None or pace.limit == 1 or pace.limit * (pace.job_s or 0.0) <= TARGET_S + 1e-9
