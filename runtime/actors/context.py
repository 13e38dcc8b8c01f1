"""What a handler is given while it runs: who it is, how long it has, and whom to tell how far it has come.

It knows nothing of pipes and processes; whoever makes one says with functions where progress and kicks
go and whether a cancel was asked for. One is made for each attempt, so making one does no work.
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from runtime.errors import Cancel, RightMissing
from runtime.model.exits import Progress
from runtime.model.reach import EVERYTHING, Reach, Right
from runtime.model.units import clip

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

NOTE_CHARS = 200
WIRE_INT = 2**63  # messages carry no larger whole numbers

T = TypeVar("T")


class Context:
    """What a handler's `run` is given.

    Attributes:
        attempt: 1 for the first run of the job.
        due: when the job was due, an aware time.
        last: no retry follows a failure of this attempt.
        deadline: the end of the time limit, in seconds of `time.monotonic()`; None: no limit.
        epoch: rises with each claim of the job; `(id, epoch)` is a fencing token for systems outside.
    """

    __slots__ = (
        "_bound",
        "_is_cancelled",
        "_kick",
        "_log",
        "_note_progress",
        "_reach",
        "attempt",
        "deadline",
        "due",
        "epoch",
        "id",
        "kind",
        "last",
    )

    def __init__(
        self,
        *,
        id: str,
        kind: str,
        attempt: int,
        due: datetime,
        last: bool,
        deadline: float | None,
        epoch: int,
        note_progress: Callable[[Progress], None],
        is_cancelled: Callable[[], bool],
        kick: Callable[[str], None],
        log: FilteringBoundLogger,
        reach: Reach = EVERYTHING,
    ) -> None:
        """`log` is bound to the job when the handler first asks for it, not before."""
        self.id = id
        self.kind = kind
        self.attempt = attempt
        self.due = due
        self.last = last
        self.deadline = deadline
        self.epoch = epoch
        self._note_progress = note_progress
        self._is_cancelled = is_cancelled
        self._kick = kick
        self._log = log
        self._reach = reach
        self._bound: FilteringBoundLogger | None = None

    @property
    def log(self) -> FilteringBoundLogger:
        """A structlog logger whose lines carry this job's id, kind and attempt."""
        if self._bound is None:
            self._bound = self._log.bind(job=self.id, kind=self.kind, attempt=self.attempt)
        return self._bound

    @property
    def cancelled(self) -> bool:
        """Somebody asked for this job to be cancelled; its process is killed a second later."""
        return self._is_cancelled()

    def check(self) -> None:
        """Raise `Cancel`, which ends the job as cancelled, once that was asked for."""
        if self._is_cancelled():
            raise Cancel("asked for while it ran")

    def right(self, name: str) -> Right:
        """The right of that name, to be handed to whatever asks for one.

        Raises:
            RightMissing: the kind declares `rights` without it.
        """
        if not self._reach.holds(name):
            raise RightMissing(self.kind, name, self._reach.rights or ())
        return Right(name, self.kind, self.id)

    def remaining(self) -> float | None:
        """Seconds until the deadline, 0.0 when it has passed; None: no limit."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far this attempt has come, in any unit; also what a stall limit counts as being alive.

        Call it as often as you like: only the newest is kept. A note is cut at 200 characters.

        Raises:
            TypeError: `done` or `total` is not a number, or `note` not a text.
            ValueError: a number is not finite.
        """
        self._note_progress(
            Progress(
                _number("done", done),
                None if total is None else _number("total", total),
                None if note is None else _note(note),
            )
        )

    def track(self, iterable: Iterable[T], total: float | None = None) -> Iterator[T]:
        """The items of `iterable`, with progress after each; `total` is its length, when it has one."""
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self.progress(0, total)
        return self._tracked(iterable, total)

    def kick(self, kind: str) -> None:
        """Start one run of another kind, in the transaction that settles this attempt as done; else none.

        Kicks carry nothing and coalesce: however many there are, of a kind at most one run is on and one more to
        come, which begins after all of them.

        Raises:
            DefinitionError: this kind does not declare it, or that kind cannot be kicked; the text says what to write.
            UnknownKind: no handler of this program has that kind.
        """
        self._kick(kind)

    def _tracked(self, iterable: Iterable[T], total: float | None) -> Iterator[T]:
        for done, item in enumerate(iterable, start=1):
            yield item
            self.progress(done, total)


def _number(name: str, value: object) -> float | int:
    """A number as messages carry it; NumPy's are made Python's own."""
    if type(value) is int and -WIRE_INT <= value < WIRE_INT:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if isinstance(value, numbers.Integral) and -WIRE_INT <= int(value) < WIRE_INT:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def _note(note: object) -> str:
    if not isinstance(note, str):
        raise TypeError(f"note must be a text, got {type(note).__name__}")
    return clip(note[:NOTE_CHARS], NOTE_CHARS)
