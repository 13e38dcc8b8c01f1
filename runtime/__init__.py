"""Tenure: CPU-heavy Python jobs in isolated, supervised processes, durably, on PostgreSQL.

These are the public names; everything else may change. Each is imported when it is first asked for, so that
importing this costs nothing: pytest does it for its plugin, and a worker needs no `Queue`.

To define a job: `job`, `Job`, `Retry`, `NO_RETRY`, `fixed`, `exponential`, and `cron` or `every`
for one that runs by the clock, `Filesystem` for one that may not open every file. In its `run`: `Context`, and to raise
`Snooze` or `Cancel`; `TimedOut` is raised in it when its time is over; `provider` makes what it asks for;
`WorkTable` names a table of the application whose rows it claims.
In an application: `Queue`, or `AsyncQueue` beside an event loop, and `errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime import errors
    from runtime.actors.context import Context
    from runtime.definition import NO_RETRY, Job, Retry
    from runtime.errors import Cancel, Snooze, TimedOut
    from runtime.model.backoff import exponential, fixed
    from runtime.model.reach import Filesystem, Right
    from runtime.model.worktables import WorkTable
    from runtime.providers import provider
    from runtime.queue import Queue
    from runtime.queue_async import AsyncQueue
    from runtime.registry import job
    from runtime.rules.schedule import cron, every

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
    "WorkTable",
    "cron",
    "errors",
    "every",
    "exponential",
    "fixed",
    "job",
    "provider",
]

_HOMES = {
    "runtime.actors.context": ("Context",),
    "runtime.definition": ("NO_RETRY", "Job", "Retry"),
    "runtime.errors": ("Cancel", "Snooze", "TimedOut"),
    "runtime.model.backoff": ("exponential", "fixed"),
    "runtime.model.reach": ("Filesystem", "Right"),
    "runtime.model.worktables": ("WorkTable",),
    "runtime.providers": ("provider",),
    "runtime.queue": ("Queue",),
    "runtime.queue_async": ("AsyncQueue",),
    "runtime.registry": ("job",),
    "runtime.rules.schedule": ("cron", "every"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """A public name, from the module that has it."""
    if name == "errors":
        return import_module("runtime.errors")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value
