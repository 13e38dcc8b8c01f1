"""The jobs as Tenure's kinds."""

from __future__ import annotations

import time
from typing import Any

from bench import jobs
from runtime import NO_RETRY, Context, Job, job


@job("noop", retry=NO_RETRY)
class Noop(Job):
    def run(self, ctx: Context) -> None:
        jobs.noop()


@job("lat", retry=NO_RETRY)
class Lat(Job):
    sent: int

    def run(self, ctx: Context) -> None:
        jobs.lat(self.sent)


@job("burn", retry=NO_RETRY)
class Burn(Job):
    def run(self, ctx: Context) -> None:
        jobs.burn()


@job("nap", retry=NO_RETRY)
class Nap(Job):
    ms: int

    def run(self, ctx: Context) -> None:
        jobs.nap(self.ms)


@job("crash", retry=NO_RETRY)
class Crash(Job):
    number: int

    def run(self, ctx: Context) -> None:
        jobs.crash(self.number)


@job("echo", retry=NO_RETRY)
class Echo(Job):
    text: str

    def run(self, ctx: Context) -> str:
        start = time.time_ns()
        jobs.record(start, time.time_ns())
        return self.text


KINDS: dict[str, Any] = {"noop": Noop, "lat": Lat, "burn": Burn, "nap": Nap, "crash": Crash}
