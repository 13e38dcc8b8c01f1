"""A handler that runs by the clock, apart from the others: where it is loaded it runs."""

from __future__ import annotations

from runtime import NO_RETRY, Context, Job, every, job
from tests.system.jobs import note


@job("by-clock", retry=NO_RETRY, schedule=every(0.25), overlap="queue", missed="catch_up")
class ByClock(Job):
    note: str = "tick"

    def run(self, ctx: Context) -> object:
        note(ctx, self.note, ctx.due.isoformat())
        return None
