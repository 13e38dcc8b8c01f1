"""A product's worker processes, from their start to their end, and the waiting for what their jobs record."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from bench import jobs, machine
from bench.adapter import HOME, Base, Row

START_WITHIN_S = 60.0
STOPS_WITHIN_S = 5.0
LOOK_EVERY_S = 0.002
COUNT_EVERY_S = 0.02  # jobs that are done: each look takes from the machine that is measured, and times none


class Failed(Exception):  # noqa: N818 - what a measurement did
    """The measurement came to nothing; the text says why."""


class TooSlow(Failed):
    """What was waited for did not come in time."""


class Service:
    """The service of a product while the context lasts; then it is told to stop, and killed when it does not."""

    def __init__(self, product: Base, commands: list[tuple[list[str], dict[str, str]]] | None = None) -> None:
        self.product = product
        self.log = HOME / "logs" / f"{product.name}.log"
        self._commands = product.commands() if commands is None else commands
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            for words, environment in self._commands:
                self._processes.append(
                    subprocess.Popen(
                        words,
                        env=os.environ | environment,
                        cwd=HOME,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = self.pids()
        for process in self._processes:
            process.terminate()  # so that its children's CPU time is told to it, and is not taken for somebody else's
        deadline_s = time.monotonic() + STOPS_WITHIN_S
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline_s - time.monotonic(), 0.0))
        machine.kill_family(family)
        for process in self._processes:
            process.wait()

    def pids(self) -> list[int]:
        return machine.family(process.pid for process in self._processes)

    def cpu_s(self) -> float:
        return machine.cpu_s(self.pids(), reaped=True)

    def lines(self, event: str) -> list[str]:
        """The lines of its log, one event each as JSON, that are of this event."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if f'"{event}"' in line]

    def wait(
        self, reached: Callable[[], Any], within_s: float, what: str, every_s: float = LOOK_EVERY_S
    ) -> Any:
        """The first true answer.

        Raises:
            TooSlow: there is none in that time.
            Failed: all processes have ended.
        """
        deadline_s = time.monotonic() + within_s
        while not (answer := reached()):
            if time.monotonic() > deadline_s:
                raise TooSlow(f"not within {within_s:g} s: {what}; see {self.log}")
            if all(process.poll() is not None for process in self._processes):
                raise Failed(f"the service ended; see {self.log}")
            time.sleep(every_s)
        return answer

    def wait_jobs(self, n: int, within_s: float = 600.0) -> None:
        self.wait(lambda: jobs.count() >= n, within_s, f"{n:,} jobs", COUNT_EVERY_S)

    def warm(self, n: int = 4) -> None:
        """Let some jobs run, so that all is imported and connected, and fall idle."""
        before = jobs.count()
        for _ in range(n):
            self.product.push("noop")
        self.wait_jobs(before + n, START_WITHIN_S)
        self.wait(lambda: self.product.unfinished() == 0, START_WITHIN_S, "all settled")
        time.sleep(1.0)


def drained(service: Service, n: int) -> Row:
    """Rate and costs of n jobs that are waiting, from the start of the first to the end of the last."""
    product = service.product
    service.wait_jobs(1, START_WITHIN_S)
    workers_s, server_s = service.cpu_s(), server_cpu_s(product)
    service.wait_jobs(n)
    workers_s, server_s = service.cpu_s() - workers_s, server_cpu_s(product) - server_s
    first, last = span(jobs.records())
    service.wait(lambda: product.unfinished() == 0, 60.0, "all settled")
    row = {
        "jobs_per_s": n / (last - first),
        "settled_per_s": n / (time.time() - first),
        "worker_us_a_job": workers_s / n * 1e6,
    }
    return row | ({"server_us_a_job": server_s / n * 1e6} if product.uses_postgres else {})


def span(records: list[jobs.Record]) -> tuple[float, float]:
    """When the first of these jobs began and when the last ended, in seconds."""
    return min(one.start for one in records) / 1e9, max(one.end for one in records) / 1e9


def server_cpu_s(product: Base) -> float:
    """CPU seconds of the private PostgreSQL, all its processes together; 0 for products without it."""
    if not product.uses_postgres:
        return 0.0
    with product.admin() as conn:
        postmaster = machine.parent(conn.info.backend_pid)
    return machine.cpu_s(machine.family([postmaster])) + _reaped_s(postmaster)


def _reaped_s(pid: int) -> float:
    return machine.cpu_s([pid], reaped=True) - machine.cpu_s([pid])
