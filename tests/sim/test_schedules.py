"""Thousands of schedules hold every promise, and broken ones are found: the simulator can fail."""

from __future__ import annotations

import pytest

from runtime.rules import supervisor
from runtime.rules.fleet import Effect, Slot, State
from runtime.sim.__main__ import main
from runtime.sim.schedule import run

SCHEDULES = 2000
PARTS = 4  # processes of a test run share them


@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_every_schedule(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    count = SCHEDULES // PARTS
    code = main(["--seeds", str(count), "--first", str(part * count)])
    printed = capsys.readouterr().out
    assert code == 0, printed[-20_000:]
    assert f"{count} schedules" in printed
    for fault in (
        "strike worker",
        "strike supervisor",
        "stop node",
        "cut off",
        "reply lost",
        "reload",
        "garble",
        "late supervisor",
    ):
        assert fault in printed, "a fault that never comes shows nothing"


def test_a_seed_makes_the_same_schedule_every_time() -> None:
    first, again = run(7, traced=True), run(7, traced=True)
    assert first.trace == again.trace
    assert first.trace != run(8, traced=True).trace


def first_problem(saying: str, first: int = 0, **switched_off: bool) -> int | None:
    """The first seed, of so many from `first` on, that finds a problem of this kind."""
    for seed in range(first, first + SCHEDULES):
        problem = run(seed, **switched_off).problem
        if problem is not None and saying in problem:
            return seed
    return None


def test_without_the_epoch_check_the_double_settle_is_found() -> None:
    assert first_problem("but the job is at", check_epoch=False) is not None


def test_without_fencing_the_overlap_is_found() -> None:
    assert first_problem("overlap", first=230, fencing=False) is not None


def test_a_claim_that_a_late_supervisor_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_back = supervisor._take_back

    def forget(state: State, slot: Slot, numbers: set[int], out: list[Effect]) -> None:
        """As it was: what is revoked now takes the place of what was revoked before and not yet heard of."""
        take_back(state, slot, numbers if numbers is slot.taken else numbers - slot.taken, out)

    monkeypatch.setattr(supervisor, "_take_back", forget)
    assert first_problem("by who does not run them", first=500) is not None


def test_a_failure_prints_its_seed_and_its_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.sim.schedule.PATIENCE_S", 0.0)  # nothing is over that soon
    assert main(["--seeds", "1", "--first", "3"]) == 1
    printed = capsys.readouterr().out
    assert "seed 3 failed" in printed
    assert "child.ready" in printed, "the trace"
