"""What a handler is given while it runs: who it is, how long it has, and whom to tell how far it has come.

It knows nothing of pipes and processes; whoever makes one says with functions where progress and kicks
go and whether a cancel was asked for. One is made for each attempt, so making one does no work.
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from runtime.errors import Cancel, LeaseLost, RightMissing, Stopping, TimedOut
from runtime.model.exits import Progress
from runtime.model.messages import Why
from runtime.model.reach import EVERYTHING, Reach, Right
from runtime.model.units import clip

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from runtime.edges.fence import Transaction, Writes  # brings in psycopg
    from runtime.edges.worktables import Row, Where
    from runtime.model.worktables import WorkTable

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
        "_kick",
        "_log",
        "_note_progress",
        "_reach",
        "_why_ending",
        "_writes",
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
        why_ending: Callable[[], Why | None],
        kick: Callable[[str], None],
        log: FilteringBoundLogger,
        writes: Writes,
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
        self._why_ending = why_ending
        self._kick = kick
        self._log = log
        self._reach = reach
        self._writes = writes
        self._bound: FilteringBoundLogger | None = None

    @property
    def log(self) -> FilteringBoundLogger:
        """A structlog logger whose lines carry this job's id, kind and attempt."""
        if self._bound is None:
            self._bound = self._log.bind(job=self.id, kind=self.kind, attempt=self.attempt)
        return self._bound

    @property
    def cancelled(self) -> bool:
        """Whether this attempt has to end, and is killed soon: see `check` for why."""
        return self._why_ending() is not None

    def check(self) -> None:
        """Return while this attempt may go on. Call it before each effect outside, and now and then in long work.

        Raises:
            Cancel: the job is to be cancelled, and will be.
            TimedOut: the time limit or the stall limit has passed, which is a failure.
            LeaseLost: another attempt may run by now; nothing is spent.
            Stopping: the grace of a service that stops ends within a second; the job goes back, nothing is spent.
        """
        match self._why_ending():
            case "cancel":
                raise Cancel("asked for while it ran")
            case "timeout":
                raise TimedOut("ran longer than its time limit")
            case "stall":
                raise TimedOut("reported no progress")
            case "lost":
                raise LeaseLost(self.id, self.epoch)
            case "stop":
                raise Stopping("the service stops")

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction that commits when its block ends, and only while this attempt has the job's lease.

            with ctx.transaction() as tx:
                tx.execute("update account set amount = amount - 10 where id = %s", [self.account])
                tx.complete()  # ends the job in the same commit; leave it out where the handler goes on

        It runs on a connection to Tenure's database that the attempts of a worker use one after the other, at read
        committed. It is no place for slow work: read, compute and call others before it.

        Raises:
            LeaseLost: at the beginning or at the end; then nothing was written.
            RightMissing: the kind declares rights, and none for the database; likewise the next two.
            RuntimeError: another one is open, or the job is completed.
        """
        return self._database.transaction()

    def claim(self, table: WorkTable, limit: int = 100, where: Where = None) -> list[Row]:
        """Claim rows of a work table that are due, the longest due first: at most `limit`, itself at most 500.

        It is a short transaction of its own, before the work: each row's tries are counted and its due time moved
        ahead, so that it comes back by itself unless it is done by then. So claim only what this run will reach.

            for row in ctx.claim(OUTBOX, limit=50):
                send(row["address"])
                with ctx.transaction() as tx:
                    row.done(tx, sent_at=datetime.now(UTC))

        Args:
            where: columns with the values they must have, or a `psycopg.sql` condition on the table's columns.

        Raises:
            LeaseLost: another attempt of the job may run by now; nothing was claimed.
            RuntimeError: it is called within `ctx.transaction()`, or after the job was completed.
        """
        return self._database.claim(table, limit, where)

    def fence(self, conn: object) -> None:
        """Let the transaction under way on `conn` commit only while this attempt has the job's lease.

        `conn` is a connection of psycopg, SQLAlchemy (or a session) or Django to Tenure's database, in the
        transaction to be fenced; call it once in each, anywhere in it but inside a savepoint, which may be rolled
        back. The commit of one whose lease is lost fails with SQLSTATE TEN01, as the library reports errors.

        Raises:
            LeaseLost: it is lost already.
            TypeError: there is no connection of psycopg 3 behind `conn`.
            ValueError: it is in no transaction, or in a savepoint.
        """
        self._database.fence(conn)

    @property
    def _database(self) -> Writes:
        """What this attempt writes by, if its kind may use the database."""
        if not self._reach.database:
            raise RightMissing(self.kind, "database.write", self._reach.rights or ())
        return self._writes

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
            RuntimeError: the job is completed, and what it kicked with it.
            UnknownKind: no handler of this program has that kind.
        """
        if self._writes.completed:
            raise RuntimeError("the job is completed; kick before that")
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
