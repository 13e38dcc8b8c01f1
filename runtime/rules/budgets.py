"""What becomes of a job after an attempt that did not succeed: three budgets, charged by proof.

Failures (the handler raised, timed out or stalled) are bounded by the kind's `retry`; crashes (its process
died under it) by `max_crashes`, whatever `retry` says; interruptions are never bounded.
"""

from __future__ import annotations

from runtime.model.exits import Certificate
from runtime.model.jobs import Code, Ending, Failure, Lease, Settlement, State
from runtime.model.messages import Limits
from runtime.rules.backoff import retry_delay_s


def is_last(failures: int, limits: Limits) -> bool:
    """Whether the next failure, after `failures` earlier ones, is the last that `retry` allows."""
    return failures >= limits.retries


def failed(
    lease: Lease,
    failures: int,
    limits: Limits,
    chance: float,
    *,
    error: Failure,
    ending: Ending | None = None,
    certificate: Certificate | None = None,
    final: bool = False,
    fault: Code = Code.HANDLER_FAILED,
) -> Settlement:
    """An attempt failed: retry after the kind's back-off, or dead when the budget is spent or `final`.

    Args:
        failures: earlier failures of the job, this one not included.
        ending: TIMED_OUT or STALLED; None when the handler raised.
        chance: a number in [0, 1) for the jitter.
        fault: the code, when there is no `ending`.
    """
    dead = final or is_last(failures, limits)
    return Settlement(
        lease=lease,
        ending=ending or (Ending.DEAD if dead else Ending.RETRY),
        state=State.DEAD if dead else State.QUEUED,
        delay_s=0.0 if dead else retry_delay_s(failures + 1, limits, chance),
        error=error,
        certificate=certificate,
        fault=fault,
    )


def crashed(lease: Lease, crashes: int, limits: Limits, certificate: Certificate) -> Settlement:
    """An attempt's process died under it: at once again, or dead at the cap.

    Args:
        crashes: earlier crashes of the job, this one not included.
    """
    dead = not limits.crash_retries or crashes + 1 >= limits.max_crashes
    return Settlement(
        lease=lease,
        ending=Ending.CRASHED,
        state=State.DEAD if dead else State.QUEUED,
        certificate=certificate,
    )


def released(lease: Lease, certificate: Certificate | None = None) -> Settlement:
    """An attempt was interrupted through no fault of the job: at once again, no budget spent."""
    return Settlement(lease=lease, ending=Ending.RELEASED, state=State.QUEUED, certificate=certificate)


def cancelled(lease: Lease, certificate: Certificate | None = None) -> Settlement:
    return Settlement(lease=lease, ending=Ending.CANCELLED, state=State.CANCELLED, certificate=certificate)
