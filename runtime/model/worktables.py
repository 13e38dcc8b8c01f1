"""What a work table is: a table of the application's own whose rows are work, told by three of its columns.

A row waits while its due time is set; it is done when that is null. A claim counts a try and moves the due time
ahead, so a row whose handler fails or dies comes back by itself. One that has been claimed `max_attempts` times and
is due once more is stuck: it stays, is not claimed, and waits for somebody to requeue it.
"""

from __future__ import annotations

import msgspec

from runtime.errors import DefinitionError
from runtime.model.backoff import Backoff

NAME_BYTES = 63  # of an identifier of PostgreSQL
ATTEMPTS_MAX = 1_000
CLAIM_MAX = 500  # rows of one claim
PERIOD_S = 60.0  # the first delay, of a job without a schedule
DELAY_CAP_S = 30 * 86_400.0


class WorkTable(msgspec.Struct, frozen=True):
    """A table whose rows jobs claim with `ctx.claim`; `tenure worktable check` says what it lacks.

    Args:
        name: of the table, or `schema.table`.
        due: its column of the time from which a row may be claimed; null: it is done.
        attempts: its column that counts claims.
        version: its column that rises with every change; each later write names the version it expects.
        key: its primary key, of one column.
        max_attempts: claims after which a row that is not done is stuck.
        backoff: how far a claim moves the due time, by the number of claims; None: by the period of the job's
            schedule (60 s without one), doubled with each claim, at most 30 days.
    """

    name: str
    due: str = "due"
    attempts: str = "attempts"
    version: str = "version"
    key: str = "id"
    max_attempts: int = 10
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        names = {"due": self.due, "attempts": self.attempts, "version": self.version, "key": self.key}
        for option, name in {**names, "name": self.name}.items():
            for part in self.parts if option == "name" else (name,):
                if not isinstance(part, str) or "\0" in part or not 0 < len(part.encode()) <= NAME_BYTES:
                    raise self._refused(option, name, f"write names of 1 to {NAME_BYTES} bytes")
        if len(self.parts) > 2:
            raise self._refused("name", self.name, "write table or schema.table")
        if len(set(names.values())) < len(names):
            raise self._refused("due", self.due, "due, attempts, version and key are four columns")
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= ATTEMPTS_MAX:
            raise self._refused("max_attempts", self.max_attempts, f"write a number from 1 to {ATTEMPTS_MAX}")
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise self._refused("backoff", self.backoff, "write exponential(60, 3600) or fixed(60)")

    def _refused(self, option: str, value: object, remedy: str) -> DefinitionError:
        return DefinitionError(f"WorkTable({self.name!r}): {option}={value!r}: {remedy}")

    @property
    def parts(self) -> tuple[str, ...]:
        """The identifiers of its name."""
        return tuple(self.name.split(".")) if isinstance(self.name, str) else (self.name,)

    def delays_s(self, period_s: float | None) -> list[float]:
        """By how much each claim moves the due time, from the first to the last, for a job of that period."""
        backoff = self.backoff or Backoff(period_s or PERIOD_S, 2.0, DELAY_CAP_S)
        return [min(backoff.delay_s(claim), DELAY_CAP_S) for claim in range(1, self.max_attempts + 1)]
