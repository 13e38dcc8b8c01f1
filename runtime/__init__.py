"""Tenure: CPU-heavy Python jobs in isolated, supervised processes, durably, on PostgreSQL.

These are the public names; everything else may change. Importing this is cheap and touches no database, since
every worker does it: `Queue` and `AsyncQueue` are imported when they are first asked for.

To define a job: `job`, `Job`, `Retry`, `NO_RETRY`, `fixed`, `exponential`, and `cron` or `every`
for one that runs by the clock, `Filesystem` for one that may not open every file. In its `run`: `Context`, and to raise
`Snooze` or `Cancel`; `TimedOut` is raised in it when its time is over; `provider` makes what it asks for.
In an application: `Queue`, or `AsyncQueue` beside an event loop, and `errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime import errors
from runtime.actors.context import Context
from runtime.definition import NO_RETRY, Job, Retry, exponential, fixed
from runtime.errors import Cancel, Snooze, TimedOut
from runtime.model.reach import Filesystem, Right
from runtime.providers import provider
from runtime.registry import job
from runtime.rules.schedule import cron, every

if TYPE_CHECKING:
    from runtime.queue import Queue
    from runtime.queue_async import AsyncQueue

__version__ = "0.1.0"  # as in pyproject.toml

__all__ = [
    "NO_RETRY",
    "AsyncQueue",
    "Cancel",
    "Context",
    "Filesystem",
    "Job",
    "Queue",
    "Retry",
    "Right",
    "Snooze",
    "TimedOut",
    "cron",
    "errors",
    "every",
    "exponential",
    "fixed",
    "job",
    "provider",
]


def __getattr__(name: str) -> object:
    """`Queue` and `AsyncQueue`, which bring in psycopg."""
    if name == "Queue":
        from runtime.queue import Queue  # noqa: PLC0415 - not before it is needed

        return Queue
    if name == "AsyncQueue":
        from runtime.queue_async import AsyncQueue  # noqa: PLC0415 - not before it is needed

        return AsyncQueue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
