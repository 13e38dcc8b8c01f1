"""PgQueuer: PostgreSQL by asyncpg, handlers must be `async def`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pgqueuer
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.adapter import AsyncBase, chunks
from bench.jobs import ARGUMENT, JOBS


class Adapter(AsyncBase):
    name = "pgqueuer"
    rate_max = 25_000
    settings = {
        "default": "2 x pgqueuer.run() (batch size 10), asyncio.to_thread",
        "tuned": "2 x pgqueuer.run(batch_size=100), asyncio.to_thread",
        "inline": "2 x pgqueuer.run(batch_size=100), the body directly in `async def`",
        "cpu": "2 x pgqueuer.run(batch_size=1, max_concurrent_tasks=2), asyncio.to_thread",
    }

    def install(self) -> None:
        self.call(self.bin("pgq"), "--pg-dsn", self.url(), "install")

    async def aopen(self) -> None:
        self.conn = await asyncpg.connect(self.url())
        self.queries = Queries(AsyncpgDriver(self.conn))

    def close(self) -> None:
        self.run(self.conn.close())

    async def apush(self, job: str, *args: int) -> None:
        await self.queries.enqueue(job, str(args[0]).encode() if args else None)

    async def apush_many(self, job: str, n: int) -> None:
        for part in chunks(n, self.chunk):
            await self.queries.enqueue([job] * part, [None] * part, [0] * part)

    def unfinished(self) -> int:
        return self.scalar("select count(*) from pgqueuer")

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        return [(self.worker(self.variant), {})] * 2


def _register(app: PgQueuer, name: str, body: Callable[..., Any], *, inline: bool) -> None:
    @app.entrypoint(name)
    async def handler(job: Any) -> None:
        args = (job.payload.decode(),) if name in ARGUMENT else ()
        if inline:
            body(*args)
        else:  # as its own error message advises
            await asyncio.to_thread(body, *args)


def serve(variant: str) -> None:
    """What `pgq run` does."""

    @asynccontextmanager
    async def factory() -> AsyncIterator[PgQueuer]:
        app = PgQueuer(AsyncpgDriver(await asyncpg.connect(Adapter.url())))
        for name, body in JOBS.items():
            _register(app, name, body, inline=variant == "inline")
        yield app

    batch = {"default": 10, "cpu": 1}.get(variant, 100)
    uvloop.run(pgqueuer.run(factory, batch_size=batch, max_concurrent_tasks=2 if variant == "cpu" else None))


if __name__ == "__main__":
    serve(sys.argv[1])
