"""How long a job waits after a failure before its next attempt. Pure: chance is an argument."""

from __future__ import annotations

from runtime.model.backoff import Backoff
from runtime.model.messages import Limits


def retry_delay_s(failures: int, limits: Limits, chance: float) -> float:
    """Seconds to wait after the `failures`-th failure (1 or more).

    Never falls as failures rise, and is `delay_cap_s` from some failure on. Jitter comes after the cap, so that
    jobs that failed together spread out there too: at most `delay_cap_s * (1 + jitter)`.

    Args:
        chance: drawn evenly from 0 up to, not including, 1; decides the jitter.
    """
    backoff = Backoff(limits.delay_first_s, limits.delay_factor, limits.delay_cap_s)
    return backoff.delay_s(failures) * (1 + limits.jitter * chance)
