"""Oban for Python: PostgreSQL by psycopg, jobs run on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oban import Oban, job
from psycopg_pool import AsyncConnectionPool

from bench import jobs
from bench.adapter import AsyncBase, chunks


@job()
def noop() -> None:
    jobs.noop()


@job()
def lat(sent: int) -> None:
    jobs.lat(sent)


@job()
def burn() -> None:
    jobs.burn()


@job()
def nap(ms: int) -> None:
    jobs.nap(ms)


@job()
def crash(number: int) -> None:
    jobs.crash(number)


KINDS: dict[str, Callable[..., Any]] = {"noop": noop, "lat": lat, "burn": burn, "nap": nap, "crash": crash}


class Adapter(AsyncBase):
    name = "oban"
    rate_max = 10_000
    settings = {
        "default": "2 x `oban start --queues default:10` (INFO log)",
        "tuned": "2 x `oban start --queues default:50 --log-level WARNING`",
        "cpu": "2 x `oban start --queues default:1 --log-level WARNING`",
    }

    def install(self) -> None:
        self.call(self.bin("oban"), "install", "--dsn", self.url())

    async def aopen(self) -> None:
        self.pool = AsyncConnectionPool(self.url(), min_size=1, max_size=4, open=False)
        await self.pool.open()
        self.oban = Oban(pool=self.pool)
        await self.oban.start()

    def close(self) -> None:
        self.run(self.oban.stop())
        self.run(self.pool.close())

    async def apush(self, job: str, *args: int) -> None:
        await self.oban.enqueue(KINDS[job].new(*args))

    async def apush_many(self, job: str, n: int) -> None:
        for part in chunks(n, self.chunk):
            await self.oban.enqueue_many([KINDS[job].new() for _ in range(part)])

    def fill(self, job: str, n: int) -> None:
        with self.connect() as conn:
            insert = "insert into oban_jobs (worker) select %s from generate_series(1, %s)"
            conn.execute(insert, (f"{__name__}.{job}", n))

    def unfinished(self) -> int:
        return self.scalar("select count(*) from oban_jobs where state in ('available', 'executing')")

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        limit = {"default": 10, "cpu": 1}.get(self.variant, 50)
        words = f"start --dsn {self.url()} --cron-modules {__name__} --queues default:{limit}".split()
        more = [] if self.variant == "default" else ["--log-level", "WARNING"]
        return [([self.bin("oban"), *words, *more], {})] * 2
