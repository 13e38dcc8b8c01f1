"""Every exception this package raises on purpose. Imports nothing of this package, so anyone may import it.

The fields are the exception's `args`: they survive copying, and the text is made from them. The text
says what to do. Bugs are not here: a `ValueError` or `AssertionError` of ours is not caught anywhere,
the process ends and is replaced.
"""

from __future__ import annotations

import errno
from typing import Any


class Error(Exception):
    """Base of this package's errors. Catch it at an entry point, never in the middle."""


class ConfigError(Error):
    """A setting is missing or wrong; `field` is its dotted path in the file."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


class DefinitionError(Error):
    """A job class or the set of handler modules is wrong; the text names job, field and remedy."""


class ScheduleInvalid(Error):
    """A schedule is wrong; `field` is the field of the cron expression, `expression`, `zone` or `interval`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"schedule, {self.field}: {self.problem}"


class UnknownKind(Error):
    """No handler of this program has that name."""

    def __init__(self, kind: str, known: tuple[str, ...]) -> None:
        super().__init__(kind, known)
        self.kind = kind
        self.known = known

    def __str__(self) -> str:
        known = ", ".join(self.known[:20]) or "none; is [service] handlers set?"
        return f"no handler for kind {self.kind!r} (known: {known})"


class PayloadInvalid(Error):
    """A payload does not fit its kind; `problem` names the field."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(kind, problem)
        self.kind = kind
        self.problem = problem

    def __str__(self) -> str:
        return f"payload of {self.kind!r}: {self.problem}"


class RightMissing(Error):
    """A handler asked for a right that its kind does not declare."""

    def __init__(self, kind: str, right: str, held: tuple[str, ...]) -> None:
        super().__init__(kind, right, held)
        self.kind = kind
        self.right = right
        self.held = held

    def __str__(self) -> str:
        rights = ", ".join(f'"{each}"' for each in (*self.held, self.right))
        comma = "" if self.held else ","
        return f'kind {self.kind!r} has no right {self.right!r}; write @job("{self.kind}", rights=({rights}{comma}))'


class EgressRefused(Error, PermissionError):
    """A handler was about to connect to, or to look up, what its kind does not declare."""

    def __init__(self, kind: str, origin: str) -> None:
        super().__init__(errno.EACCES, origin)
        self.kind = kind
        self.origin = origin

    def __str__(self) -> str:
        return f"kind {self.kind!r} may not connect to {self.origin}; add its origin to egress=(…) of @job"


class QueueFull(Error):
    """A queue in memory holds as many bytes as it may; nothing was pushed."""


class StoreUnavailable(Error):
    """The database cannot be reached or went away in the middle; the same call may be made again.

    Whether a write that was under way has been committed is unknown. All writes of a lease are fenced
    by `(id, epoch)` and a push is keyed by its id, so repeating one does no harm.
    """


class LeaseLost(Error):
    """Another attempt of the job may run by now: what this one wrote was not committed, and it must end."""

    def __init__(self, id: str, epoch: int) -> None:
        super().__init__(id, epoch)
        self.id = id
        self.epoch = epoch

    def __str__(self) -> str:
        return f"the lease of job {self.id} at epoch {self.epoch} is lost; nothing was written"


class RowChanged(Error):
    """A row of a work table is no longer at the version that was expected: nothing was written to it."""

    def __init__(self, ref: str, version: int) -> None:
        super().__init__(ref, version)
        self.ref = ref
        self.version = version

    def __str__(self) -> str:
        return f"{self.ref} is not at version {self.version}: somebody has changed it or taken it out since"


class Stopping(Error):
    """Raised by `ctx.check()` shortly before a service that stops kills the attempt; the job goes back to its queue."""


class SchemaOutdated(Error):
    """The database's schema is not the one this program needs; the text says what to run."""


class PeerGone(Error):
    """The process at the other end of a pipe has closed it, which here means: it died."""


class BadFrame(Error):
    """What came down a pipe is not a message of ours: too long, not MessagePack, or of no known kind."""


class EmbeddedError(Error):
    """The private PostgreSQL could not be made or started; the text holds the end of its own log."""


class TimedOut(BaseException):
    """Raised in a handler when its time limit has passed; the process is killed one second later.

    It derives from `BaseException`, so that `except Exception` in a handler does not swallow it.
    """


class Snooze(Exception):
    """Raised by a handler to be run again after `seconds`, spending nothing of any budget.

    Raises:
        TypeError, ValueError: `seconds` is not a finite number of at least 0: the handler's mistake, and its failure.
    """

    def __init__(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"Snooze takes a number of seconds, got {seconds!r}")
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"Snooze takes a finite number of seconds from 0 on, got {seconds!r}")
        super().__init__(seconds)
        self.seconds = float(min(seconds, 10**12))  # the store cuts it further


class Cancel(Exception):
    """Raised by a handler to end its job as `cancelled`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class JobFailed(Error):
    """A job that was waited for ended without a result, dead or cancelled; `job` is all that is known of it."""

    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self.job = job  # runtime.model.jobs.JobView

    def __str__(self) -> str:
        last = self.job.attempts[-1] if self.job.attempts else None
        reason = ""
        if last is not None and last.error is not None:
            reason = f": {last.error.class_}: {last.error.message}"
        elif last is not None and last.certificate is not None:
            reason = f": {last.certificate.verdict}"
        return f"job {self.job.id} ({self.job.kind}) is {self.job.state}{reason}"
