"""What a workload asks of a product: `Base` for a client that blocks, `AsyncBase` for one of asyncio.

To add a product: write `peers/NAME.py` with a class `Adapter`, and add a line to `peers/__init__.py`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.jobs import RECORDS

HOME = Path(os.environ.get("BENCH_HOME", "bench-home"))
PG = os.environ.get("BENCH_PG", "")  # the URL of the private server, "{}" in place of the database
REDIS = os.environ.get("BENCH_REDIS", "")
Row = dict[str, Any]


class Base:
    """One product. What it is asked to do with jobs it does by their names, see `jobs.JOBS`."""

    name = ""
    dist = ""  # the distribution whose version is reported; empty: as `name`
    settings: dict[str, str] = {"default": ""}  # by variant, in words
    chunk = 1000  # jobs in one call of the batch API
    uses_postgres = True
    rate_max = (
        5_000  # jobs/s that it will hardly exceed: how many are filled in for a drain of so many seconds
    )
    own: dict[str, Callable[[str, int], Row]] = {}  # workloads that it measures itself

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def version(self) -> str:
        return metadata.version(self.dist or self.name)

    # -- an empty queue

    @classmethod
    def url(cls) -> str:
        return PG.format("bench_" + cls.name)

    def admin(self) -> psycopg.Connection[Any]:
        return psycopg.connect(PG.format("postgres"), autocommit=True)

    def connect(self) -> psycopg.Connection[Any]:
        """A connection to the product's database, beside the product."""
        return psycopg.connect(self.url(), autocommit=True)

    def scalar(self, statement: str) -> Any:
        with self.connect() as conn:
            return conn.execute(statement).fetchone()[0]

    def fresh(self) -> None:
        """Leave an empty queue, newly installed, and no records. A checkpoint is made: none falls into the run."""
        RECORDS.write_bytes(b"")
        name = sql.Identifier("bench_" + self.name)
        with self.admin() as conn:
            conn.execute(sql.SQL("drop database if exists {} with (force)").format(name))
            conn.execute(sql.SQL("create database {} template template0").format(name))
            self.install()
            conn.execute("checkpoint")

    def install(self) -> None:
        """Make the product's schema."""

    def analyze(self, *, vacuum: bool = False) -> None:
        """Give the planner statistics; `vacuum`: leave all as autovacuum and a checkpoint leave an old backlog."""
        with self.connect() as conn:
            conn.execute("vacuum analyze" if vacuum else "analyze")
            if vacuum:
                conn.execute("checkpoint")

    # -- the application's side

    def open(self) -> None:
        """Connect; not timed."""

    def close(self) -> None: ...

    def push(self, job: str, *args: int) -> None:
        raise NotImplementedError

    def push_each(self, job: str, n: int) -> None:
        """Push one at a time, each on disk before the next."""
        for _ in range(n):
            self.push(job)

    def push_many(self, job: str, n: int) -> None:
        """Push by the batch API, `chunk` in a call."""
        self.push_each(job, n)

    def fill(self, job: str, n: int) -> None:
        """Queue n jobs in whatever way is quick; not timed."""
        self.push_many(job, n)

    def fill_finished(self, n: int) -> None:
        """Let the store hold n jobs that have ended, if the product keeps them."""

    def unfinished(self) -> int:
        """Jobs that are not finished, by the product's own account."""
        raise NotImplementedError

    # -- the service

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        """The commands, each with what it adds to the environment, that make a service of two workers."""
        raise NotImplementedError

    @staticmethod
    def bin(name: str) -> str:
        return str(Path(sys.executable).parent / name)

    def worker(self, *words: str) -> list[str]:
        """The command that runs the adapter's own module."""
        return [sys.executable, "-m", type(self).__module__, *words]

    def call(self, *words: str) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class AsyncBase(Base):
    """For a client of asyncio: a private loop runs its calls."""

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def run(self, call: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(call)

    def open(self) -> None:
        self.run(self.aopen())

    def push(self, job: str, *args: int) -> None:
        self.run(self.apush(job, *args))

    def push_each(self, job: str, n: int) -> None:
        async def each() -> None:
            for _ in range(n):
                await self.apush(job)

        self.run(each())

    def push_many(self, job: str, n: int) -> None:
        self.run(self.apush_many(job, n))

    async def aopen(self) -> None: ...

    async def apush(self, job: str, *args: int) -> None:
        raise NotImplementedError

    async def apush_many(self, job: str, n: int) -> None:
        raise NotImplementedError


def chunks(n: int, size: int) -> Iterator[int]:
    while n > 0:
        yield min(n, size)
        n -= size


def load(name: str, variant: str) -> Base:
    return importlib.import_module(f"bench.peers.{name}").Adapter(variant)
