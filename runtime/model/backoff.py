"""How the delays between tries grow."""

from __future__ import annotations

import math

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """The delay before each retry: `first_s`, then each `factor` times the last, at most `cap_s`."""

    first_s: float
    factor: float
    cap_s: float

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after the `failures`-th failure (1 or more). Never falls as failures rise."""
        if self.first_s <= 0:
            return 0.0
        try:
            uncapped_s = self.first_s * float(self.factor) ** (failures - 1)
        except OverflowError:  # a float holds no more than 2**1024, which is some hundred failures away
            uncapped_s = math.inf
        return min(uncapped_s, self.cap_s)


NO_DELAY = Backoff(0.0, 1.0, 0.0)


def fixed(seconds: float) -> Backoff:
    """The same delay before each retry."""
    return Backoff(seconds, 1.0, seconds)


def exponential(first: float, cap: float, factor: float = 2.0) -> Backoff:
    """A delay of `first` seconds that doubles with each failure, up to `cap` seconds."""
    return Backoff(first, factor, cap)
