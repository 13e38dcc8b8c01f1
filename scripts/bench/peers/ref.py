"""What this machine and its PostgreSQL can do: no product, only SQL.

Two processes claim 100 jobs, run them, and finish them with the next claim, in one round trip. A push is a single
INSERT, the batch API is COPY. `payloads` is the bare script that writes and reads what the workload does. `cpu` are
the two ideal cores: two processes that do nothing but run the jobs, each the next one as soon as it is free.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from bench.adapter import Base, Row, chunks
from bench.jobs import JOBS, RECORDS
from bench.workloads import burned, single_burns_s

SCHEMA = """
create table job (
    id bigint generated always as identity primary key, state smallint not null default 0, kind text not null,
    args jsonb not null default '{}', created timestamptz not null default now(), started timestamptz,
    finished timestamptz
);
create index job_queued on job (id) where state = 0;
create table big (id int primary key, payload jsonb not null, result jsonb)
"""
CLAIM = """
with finished as (update job set state = 2, finished = now() where id = any(%s))
update job set state = 1, started = now() where id in (
    select id from job where state = 0 order by id for update skip locked limit 100
) returning id, kind
"""


class Adapter(Base):
    name = "ref"
    dist = "psycopg"
    rate_max = 60_000
    settings = {"default": "2 processes in psycopg, batches of 100, one round trip each"}

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.own = {"payloads": self.payloads, "cpu": self.cpu}

    def install(self) -> None:
        with self.connect() as conn:
            conn.execute(SCHEMA)

    def open(self) -> None:
        self.conn = psycopg.connect(self.url(), autocommit=True, prepare_threshold=0)

    def push(self, job: str, *args: int) -> None:
        assert not args
        self.conn.execute("insert into job (kind) values (%s)", (job,))

    def push_many(self, job: str, n: int) -> None:
        for part in chunks(n, self.chunk):
            with self.conn.cursor() as cursor, cursor.copy("copy job (kind) from stdin") as copy:
                for _ in range(part):
                    copy.write_row((job,))

    def fill(self, job: str, n: int) -> None:
        self.conn.execute("insert into job (kind) select %s from generate_series(1, %s)", (job, n))

    def unfinished(self) -> int:
        return self.scalar("select count(*) from job where state < 2")

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        return [(self.worker(), {})] * 2

    def cpu(self, case: str, n: int) -> Row:
        del case
        RECORDS.write_bytes(b"")
        singles_s = single_burns_s()
        waiting, fill_fd = os.pipe()
        os.write(fill_fd, bytes(n))
        os.close(fill_fd)
        at_once(burn_all, [(waiting,)] * 2)
        os.close(waiting)
        return burned(n, singles_s)

    def payloads(self, case: str, n: int) -> Row:
        del case
        text = random.Random(15).randbytes(512 * 1024).hex()
        self.fresh()
        self.open()
        start_s = time.perf_counter()
        for id in range(n):
            self.conn.execute("insert into big (id, payload) values (%s, %s)", (id, Jsonb(text)))
        pushed_s = time.perf_counter()
        at_once(echo, [(self.url(), range(part, n, 2)) for part in (0, 1)])
        ran_s = time.perf_counter()
        for id in range(n):
            [(result,)] = self.conn.execute("select result from big where id = %s", (id,)).fetchall()
            assert result == text
        read_s = time.perf_counter()
        return {
            "jobs_per_s": n / (read_s - start_s),
            "push_s": pushed_s - start_s,
            "run_s": ran_s - pushed_s,
            "read_s": read_s - ran_s,
        }


def at_once(body: Callable[..., None], calls: list[tuple[Any, ...]]) -> None:
    """Call it with each of these arguments in a process of its own, and wait for them all."""
    fork = get_context("fork")
    workers = [fork.Process(target=body, args=arguments) for arguments in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def burn_all(waiting: int) -> None:
    """Take a job, a byte of a pipe, and run it, until none is left."""
    while os.read(waiting, 1):
        JOBS["burn"]()


def echo(url: str, ids: range) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for id in ids:
            [(payload,)] = conn.execute("select payload from big where id = %s", (id,)).fetchall()
            conn.execute("update big set result = %s where id = %s", (Jsonb(payload), id))


def serve() -> None:
    with psycopg.connect(Adapter.url(), autocommit=True, prepare_threshold=0) as conn:
        done: list[int] = []
        while True:
            rows = conn.execute(CLAIM, (done,)).fetchall()
            for _, kind in rows:
                JOBS[kind]()
            done = [id for id, _ in rows]
            if not rows:
                time.sleep(0.05)


if __name__ == "__main__":
    serve()
