"""The verdict on a running attempt, and what is put on record of one that died."""

from __future__ import annotations

import pytest

from runtime.model.exits import Exit, Verdict
from runtime.model.jobs import Ending, Lease, State
from runtime.model.messages import Held, Limits
from runtime.rules.attempts import (
    HOARD_S,
    PROOF_S,
    SHARE_S,
    Batch,
    Bounds,
    Glance,
    Intent,
    Remains,
    hoards_at_s,
    next_look_at_s,
    settle_dead,
    verdict,
)

NOW_S = 100.0
LEASE = Lease("a", 1)
HELD = Held(LEASE, "nap", 1, 0, 0)
LIMITS = Limits(timeout_s=10.0, stall_s=3.0, retries=2, max_crashes=3, memory_bytes=1000)
BOUNDS = Bounds(lease_s=30.0, kill_after_s=1.0, memory_bytes=None)


def batch(**changes: object) -> Batch:
    given: dict[str, object] = {
        "claims": {1: HELD},
        "claimed_s": NOW_S,
        "confirmed_s": NOW_S,
        "heard_s": NOW_S,
    }
    return Batch(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "glance", "bounds", "expected"),
    [
        (batch(), Glance(1, NOW_S), BOUNDS, None),
        (batch(lost={1}), Glance(1, NOW_S), BOUNDS, Verdict.FENCED),
        (batch(lost={2}), Glance(1, NOW_S), BOUNDS, None),
        (batch(confirmed_s=NOW_S - 28.5), Glance(1, NOW_S), BOUNDS, Verdict.FENCED),
        (batch(confirmed_s=NOW_S - 28.4), Glance(1, NOW_S), BOUNDS, None),
        (batch(confirmed_s=NOW_S - 99.0), Glance(1, NOW_S), Bounds(30.0, 1.0, None, fencing=False), None),
        (batch(), Glance(1, NOW_S, memory_bytes=1001), BOUNDS, Verdict.MEMORY),
        (batch(), Glance(1, NOW_S, memory_bytes=1000), BOUNDS, None),
        (batch(), Glance(1, NOW_S - 10.0, progress_s=NOW_S), BOUNDS, Verdict.TIMEOUT),
        (batch(), Glance(1, NOW_S - 9.9, progress_s=NOW_S), BOUNDS, None),
        (batch(), Glance(1, NOW_S - 3.0), BOUNDS, Verdict.STALLED),
        (batch(), Glance(1, NOW_S - 5.0, progress_s=NOW_S - 2.9), BOUNDS, None),
        (batch(), Glance(1, NOW_S - 5.0, progress_s=NOW_S - 3.0), BOUNDS, Verdict.STALLED),
        (batch(cancels={1}), Glance(1, NOW_S), BOUNDS, Verdict.CANCELLED),
        (batch(cancels={2}), Glance(1, NOW_S), BOUNDS, None),
        (batch(cancels={1}), Glance(1, NOW_S - 10.0), BOUNDS, Verdict.TIMEOUT),  # the stronger reason
        (batch(cancels={1}, lost={1}), Glance(1, NOW_S - 10.0), BOUNDS, Verdict.FENCED),
        (
            batch(),
            Glance(1, float("inf")),
            BOUNDS,
            None,
        ),  # ended, with an outcome that the journal has no room for
    ],
)
def test_the_verdict(of: Batch, glance: Glance, bounds: Bounds, expected: Verdict | None) -> None:
    assert verdict(of, glance, LIMITS, bounds, NOW_S) is expected


STRUCK, LEFT = Exit(signal=9), Exit(code=0)


@pytest.mark.parametrize(
    ("intent", "how", "out_of_memory", "ending", "why"),
    [
        (None, Exit(signal=11), False, Ending.CRASHED, Verdict.SIGNAL),
        (None, STRUCK, True, Ending.CRASHED, Verdict.MEMORY),
        (None, LEFT, False, Ending.CRASHED, Verdict.EXIT),  # os._exit(0) is no success
        (Verdict.TIMEOUT, STRUCK, False, Ending.TIMED_OUT, Verdict.TIMEOUT),
        (Verdict.STALLED, STRUCK, False, Ending.STALLED, Verdict.STALLED),
        (Verdict.CANCELLED, STRUCK, False, Ending.CANCELLED, Verdict.CANCELLED),
        (Verdict.MEMORY, STRUCK, False, Ending.CRASHED, Verdict.MEMORY),
        (Verdict.FENCED, STRUCK, False, Ending.RELEASED, Verdict.FENCED),
        (Verdict.SHUTDOWN, STRUCK, False, Ending.RELEASED, Verdict.SHUTDOWN),
        (Verdict.ENVIRONMENT, STRUCK, False, Ending.RELEASED, Verdict.ENVIRONMENT),
    ],
)
def test_what_a_death_is_called(
    intent: Verdict | None, how: Exit, out_of_memory: bool, ending: Ending, why: Verdict
) -> None:
    remains = Remains(glance=Glance(1, NOW_S), output_tail="last words", out_of_memory=out_of_memory)
    meant = Intent(intent, 1, NOW_S) if intent else None
    settled = settle_dead(HELD, LIMITS, meant, how, remains, 0.5)
    assert settled.ending is ending
    assert settled.certificate is not None
    assert settled.certificate.verdict is why
    assert (settled.certificate.signal, settled.certificate.exit_code) == (how.signal, how.code)
    assert settled.certificate.output_tail == "last words"
    assert settled.state is (State.CANCELLED if ending is Ending.CANCELLED else State.QUEUED)


@pytest.mark.parametrize(
    ("number", "ending"), [(1, Ending.TIMED_OUT), (0, Ending.TIMED_OUT), (7, Ending.RELEASED)]
)
def test_a_kill_that_was_meant_for_another_job_interrupts(number: int, ending: Ending) -> None:
    intent = Intent(Verdict.TIMEOUT, number, NOW_S)
    assert settle_dead(HELD, LIMITS, intent, STRUCK, Remains(glance=Glance(1, NOW_S)), 0.5).ending is ending


def test_the_next_look_is_never_in_the_past_and_never_too_late() -> None:
    kinds = {"nap": LIMITS}
    running = Glance(1, NOW_S - 9.0, progress_s=NOW_S - 1.0)
    assert next_look_at_s(batch(), running, None, kinds, BOUNDS, NOW_S) == NOW_S + 0.25, (
        "its memory is limited"
    )
    free = {"nap": Limits(timeout_s=10.0, stall_s=3.0)}
    assert next_look_at_s(batch(), running, None, free, BOUNDS, NOW_S) == NOW_S + 1.0, "its timeout"
    assert next_look_at_s(batch(), Glance(), None, free, BOUNDS, NOW_S) == NOW_S + 3.0, "if it began now"
    two = batch(claims={1: HELD, 2: HELD})
    begun = Glance(1, NOW_S - 0.04)
    assert next_look_at_s(two, begun, None, free, BOUNDS, NOW_S) == pytest.approx(NOW_S + HOARD_S - 0.04), (
        "does it hoard?"
    )
    assert next_look_at_s(two, Glance(), None, free, BOUNDS, NOW_S) == NOW_S + HOARD_S, "if it began now"
    assert next_look_at_s(two, begun, None, free, BOUNDS, NOW_S, idle=True) == NOW_S + SHARE_S, (
        "another could begin the second one"
    )
    ended = batch(claims={}, confirmed_s=NOW_S - 100.0)
    assert next_look_at_s(ended, Glance(), None, free, BOUNDS, NOW_S) == float("inf")


@pytest.mark.parametrize(
    ("claims", "number", "idle", "after_s"),
    [
        (12, 1, False, HOARD_S),
        (12, 1, True, PROOF_S),  # however little the pace says yet
        (2, 1, True, SHARE_S),  # as long again
        (250, 100, True, SHARE_S * 100 / 150),
        (250, 240, True, HOARD_S),  # it will have ended by then
        (12, 12, True, HOARD_S),  # nothing is left
        (12, 0, False, HOARD_S),
        (12, 0, True, PROOF_S),  # between two jobs: how many have begun is not known
    ],
)
def test_less_is_a_hoard_while_another_worker_is_idle(
    claims: int, number: int, idle: bool, after_s: float
) -> None:
    held = batch(claims=dict.fromkeys(range(1, claims + 1), HELD))
    assert hoards_at_s(held, Glance(number, NOW_S), NOW_S, idle=idle) == pytest.approx(NOW_S + after_s)
