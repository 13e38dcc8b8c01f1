"""Tenure, by its public interface and with ordinary settings: `runtime.Queue`, `tenure run`, `tenure migrate`.

Only what no interface does quickly is filled in by SQL: finished jobs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from typing import Any

from bench.adapter import Base
from bench.peers.tenure_jobs import KINDS, Echo
from runtime import Queue, every

QUIET = """
create schema quiet;
create function quiet.pg_notify(text, text) returns void language plpgsql as 'begin end'
"""
FINISHED = """
insert into tenure.finished (
    id, kind, queue, priority, state, due, attempt, epoch, failures, crashes, interruptions, created, finished,
    started, node, worker, pid, payload
)
select tenure.new_id(), 'noop', 'default', 5, 'done', now(), 1, 1, 0, 0, 0, now(), now(), now(), 'bench', 1, 1, '{}'
from generate_series(1, %s)
"""


class Adapter(Base):
    name = "tenure"
    settings = {"default": "`tenure run --workers 2`, all else default"}
    rate_max = 30_000

    def install(self) -> None:
        self.call("env", f"TENURE_DATABASE_URL={self.url()}", self.tenure, "migrate")

    def install_quiet(self) -> None:
        with self.connect() as conn:
            conn.execute(QUIET)

    def open(self) -> None:
        self.queue = Queue(self.url())

    def close(self) -> None:
        self.queue.close()

    def push(self, job: str, *args: int) -> None:
        self.queue.push(KINDS[job](*args))

    def push_many(self, job: str, n: int) -> None:
        self.queue.push_many([KINDS[job]() for _ in range(n)])

    def fill(self, job: str, n: int) -> None:
        for part in range(0, n, 100_000):
            self.push_many(job, min(n - part, 100_000))

    def fill_naps(self, n: int, ms: int) -> None:
        self.queue.push_many([KINDS["nap"](ms) for _ in range(n)])

    def fill_due(self, job: str, n: int, moment: datetime) -> None:
        with self.connect() as conn:
            conn.execute(
                "select count(tenure.push(%s, due => %s)) from generate_series(1, %s)", (job, moment, n)
            )

    def schedule_each_second(self, name: str) -> None:
        self.queue.schedule(name, KINDS["noop"](), every(1.0), overlap="skip", missed="drop")

    def fill_finished(self, n: int) -> None:
        with self.connect() as conn:
            conn.execute(FINISHED, (n,))

    def pusher(self, queue: str, *, quiet: bool) -> Callable[[], Any]:
        """A call that pushes one no-op, for a process of its own."""
        mark = "&" if "?" in self.url() else "?"
        path = f"{mark}options=-c%20search_path%3Dquiet,pg_catalog,public" if quiet else ""
        client, noop = Queue(self.url() + path), KINDS["noop"]
        return lambda: client.push(noop(), queue=queue or None)

    def push_echo(self, text: str) -> str | None:
        return self.queue.push(Echo(text))

    def result(self, id: str) -> Any:
        return self.queue.result(id, timeout=10)

    def unfinished(self) -> int:
        states = self.queue.counts().states
        return states["queued"] + states["running"]

    @property
    def tenure(self) -> str:
        """Beside the running Python, else on the PATH."""
        return shutil.which(self.bin("tenure")) or "tenure"

    def commands(
        self, workers: int = 2, queues: str = "*", handlers: str = "bench.peers.tenure_jobs"
    ) -> list[tuple[list[str], dict[str, str]]]:
        environment = {
            "TENURE_DATABASE_URL": self.url(),
            "TENURE_SERVICE__HANDLERS": handlers,
            "TENURE_SERVICE__QUEUES": queues,
        }
        return [([self.tenure, "run", "--workers", str(workers)], environment)]
