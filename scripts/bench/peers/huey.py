"""huey on Redis, with worker processes."""

from __future__ import annotations

from huey import RedisHuey

from bench.adapter import REDIS
from bench.jobs import JOBS
from bench.redis_base import RedisBase

app = RedisHuey("bench", url=REDIS)
TASKS = {name: app.task(name=name)(body) for name, body in JOBS.items()}


class Adapter(RedisBase):
    name = "huey"
    settings = {
        "default": "`huey_consumer -k process -w 2`",
        "tuned": "`huey_consumer -k process -w 2 -q -n` (quiet, no periodic tasks)",
    }

    def push(self, job: str, *args: int) -> None:
        TASKS[job](*args)

    def unfinished(self) -> int:
        return app.pending_count()

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        words = [self.bin("huey_consumer"), f"{__name__}.app", *["-k", "process", "-w", "2"]]
        return [(words + (["-q", "-n"] if self.variant == "tuned" else []), {})]
