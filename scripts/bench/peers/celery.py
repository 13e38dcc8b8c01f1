"""Celery on Redis, with its prefork pool."""

from __future__ import annotations

import os

from celery import Celery, group

from bench.adapter import REDIS, chunks
from bench.jobs import JOBS
from bench.redis_base import RedisBase

LATE = "BENCH_CELERY_LATE"

app = Celery("bench", broker=REDIS)
app.conf.update(
    task_ignore_result=True, task_acks_late=LATE in os.environ, task_reject_on_worker_lost=LATE in os.environ
)
TASKS = {name: app.task(body, name=name) for name, body in JOBS.items()}


class Adapter(RedisBase):
    name = "celery"
    settings = {
        "default": "`celery worker -c 2` (prefork, prefetch multiplier 4)",
        "tuned": "`celery worker -c 2 --prefetch-multiplier 64 --without-gossip --without-mingle --without-heartbeat`",
        "fair": "`celery worker -c 2 -O fair --prefetch-multiplier 1`",
        "late": "`celery worker -c 2`, task_acks_late and task_reject_on_worker_lost",
    }

    def open(self) -> None:
        self.producer = app.amqp.Producer(app.connection_for_write())

    def push(self, job: str, *args: int) -> None:
        TASKS[job].apply_async(args)

    def push_many(self, job: str, n: int) -> None:
        for part in chunks(n, self.chunk):
            group(TASKS[job].s() for _ in range(part)).apply_async(producer=self.producer)

    def unfinished(self) -> int:
        return self.redis.llen("celery") + self.redis.hlen("unacked")

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        words = [self.bin("celery"), "-A", f"{__name__}:app", "worker", "-c", "2"]
        if self.variant == "tuned":
            words += [
                "--prefetch-multiplier",
                "64",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ]
        elif self.variant == "fair":
            words += ["-O", "fair", "--prefetch-multiplier", "1"]
        return [(words, {LATE: "1"} if self.variant == "late" else {})]
