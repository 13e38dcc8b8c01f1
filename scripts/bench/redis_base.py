"""What the products on Redis have in common."""

from __future__ import annotations

import redis

from bench.adapter import REDIS, Base
from bench.jobs import RECORDS


class RedisBase(Base):
    uses_postgres = False

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.redis = redis.Redis.from_url(REDIS)

    def fresh(self) -> None:
        RECORDS.write_bytes(b"")
        self.redis.flushall()

    def analyze(self, *, vacuum: bool = False) -> None:
        """There are no statistics."""
