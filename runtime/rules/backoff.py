"""How long a job waits after a failure before its next attempt. Pure: chance is an argument."""

from __future__ import annotations

import math

from runtime.model.messages import Limits


def retry_delay_s(failures: int, limits: Limits, chance: float) -> float:
    """Seconds to wait after the `failures`-th failure (1 or more).

    Never falls as failures rise, and is `delay_cap_s` from some failure on. Jitter comes after the cap, so that
    jobs that failed together spread out there too: at most `delay_cap_s * (1 + jitter)`.

    Args:
        chance: drawn evenly from 0 up to, not including, 1; decides the jitter.
    """
    if limits.delay_first_s <= 0:
        return 0.0
    try:
        uncapped_s = limits.delay_first_s * float(limits.delay_factor) ** (failures - 1)
    except OverflowError:  # a float holds no more than 2**1024, which is some hundred failures away
        uncapped_s = math.inf
    return min(uncapped_s, limits.delay_cap_s) * (1 + limits.jitter * chance)
