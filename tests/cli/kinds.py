"""Handlers that the tests of the command line push jobs of; nothing runs them."""

from __future__ import annotations

from typing import Any

from runtime import NO_RETRY, Context, Filesystem, Job, Retry, WorkTable, fixed, job

OUTBOX = WorkTable("outbox", max_attempts=2)


@job("cli.scale", retry=Retry(2, fixed(1)), timeout=90, queue="images", priority=3)
class Scale(Job):
    path: str
    width: int = 256
    more: Any = None

    def run(self, ctx: Context) -> None: ...


@job("cli.plain", retry=NO_RETRY, kicks=("cli.tidy",))
class Plain(Job):
    def run(self, ctx: Context) -> None: ...


@job(
    "cli.held",
    retry=NO_RETRY,
    rights=(),
    egress=("https://a.example",),
    filesystem=Filesystem(read=("/srv/in",)),
)
class Held(Job):
    def run(self, ctx: Context) -> None: ...


@job("cli.tidy", retry=NO_RETRY, queue="upkeep")
class Tidy(Job):
    def run(self, ctx: Context) -> None: ...
