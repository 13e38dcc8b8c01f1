"""Procrastinate: PostgreSQL by psycopg, an asyncio worker that runs plain functions in a thread each."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector

from bench.adapter import PG, Base, chunks
from bench.jobs import ARGUMENT, JOBS

app = App(connector=PsycopgConnector(conninfo=PG.format("bench_procrastinate")))
TASKS = {name: app.task(name=name)(body) for name, body in JOBS.items()}


class Adapter(Base):
    name = "procrastinate"
    rate_max = 3_000
    settings = {
        "default": "2 x `procrastinate worker` (concurrency 1, INFO log, jobs kept)",
        "tuned": "2 x `procrastinate worker`, concurrency 8, WARNING log, jobs kept",
        "one": "2 x `procrastinate worker`, concurrency 1, WARNING log",
    }

    def install(self) -> None:
        self.call(self.bin("procrastinate"), f"--app={__name__}.app", "schema", "--apply")

    def open(self) -> None:
        app.open()

    def close(self) -> None:
        app.close()

    def push(self, job: str, *args: int) -> None:
        TASKS[job].defer(**({ARGUMENT[job]: args[0]} if args else {}))

    def push_many(self, job: str, n: int) -> None:
        for part in chunks(n, self.chunk):
            TASKS[job].batch_defer(*({} for _ in range(part)))

    def unfinished(self) -> int:
        return self.scalar("select count(*) from procrastinate_jobs where status in ('todo', 'doing')")

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        words = [self.bin("procrastinate"), f"--app={__name__}.app"]
        concurrency = "8" if self.variant == "tuned" else "1"
        more = [] if self.variant == "default" else ["--log-level=warning"]
        return [([*words, *more, "worker", f"--concurrency={concurrency}"], {})] * 2
