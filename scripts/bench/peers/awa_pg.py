"""awa: PostgreSQL from Rust, handlers must be `async def`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import awa

from bench.adapter import Base, chunks
from bench.jobs import ARGUMENT, JOBS


@dataclass
class Noop: ...


@dataclass
class Lat:
    sent: int


@dataclass
class Burn: ...


@dataclass
class Nap:
    ms: int


@dataclass
class Crash:
    number: int


KINDS: dict[str, type] = {"noop": Noop, "lat": Lat, "burn": Burn, "nap": Nap, "crash": Crash}


class Adapter(Base):
    name = "awa_pg"
    dist = "awa-pg"
    rate_max = 8_000
    settings = {
        "default": "2 x AsyncClient.start([('default', 10)]), asyncio.to_thread",
        "inline": "2 x AsyncClient.start, max_workers 200, the body directly in `async def`",
        "cpu": "2 x AsyncClient.start, max_workers 1, asyncio.to_thread",
    }

    def install(self) -> None:
        self.call(*self.worker("install"))

    def open(self) -> None:
        self.client = awa.Client(self.url())

    def close(self) -> None:
        self.client.close()

    def push(self, job: str, *args: int) -> None:
        self.client.insert(KINDS[job](*args), queue="default")

    def push_many(self, job: str, n: int) -> None:
        for part in chunks(n, self.chunk):
            self.client.enqueue_many_copy([KINDS[job]() for _ in range(part)], queue="default")

    def unfinished(self) -> int:
        return self.scalar(  # its own figures lag by seconds
            "select (select count(*) from awa.ready_entries) - (select count(*) from awa.done_entries)"
            " - (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)"
        )

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        return [(self.worker(self.variant), {})] * 2


def _register(client: Any, name: str, body: Callable[..., Any], *, inline: bool) -> None:
    @client.task(KINDS[name], queue="default")
    async def handler(job: Any) -> None:
        args = (getattr(job.args, ARGUMENT[name]),) if name in ARGUMENT else ()
        if inline:
            body(*args)
        else:
            await asyncio.to_thread(body, *args)


async def serve(variant: str) -> None:
    client = awa.AsyncClient(Adapter.url())
    for name, body in JOBS.items():
        _register(client, name, body, inline=variant == "inline")
    limit = {"default": 10, "cpu": 1}.get(variant, 200)
    await client.start([{"name": "default", "max_workers": limit}])
    await asyncio.Event().wait()


async def install() -> None:
    """Migrate, and start once: until then its older engine is in use."""
    client = awa.AsyncClient(Adapter.url())
    await client.migrate()
    _register(client, "noop", JOBS["noop"], inline=True)
    await client.start([("default", 1)])
    for _ in range(200):
        if '"active_engine": "queue_storage"' in await client.storage_status():
            break
        await asyncio.sleep(0.05)
    await client.shutdown()


if __name__ == "__main__":
    asyncio.run(install() if sys.argv[1] == "install" else serve(sys.argv[1]))
