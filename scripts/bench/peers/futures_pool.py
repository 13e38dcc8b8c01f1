"""Without any durability: concurrent.futures.ProcessPoolExecutor with two processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from bench.adapter import Base, Row
from bench.jobs import JOBS, RECORDS, burn_once, records
from bench.workloads import efficiency, shares, single_burns_s


class Adapter(Base):
    name = "futures_pool"
    uses_postgres = False
    settings = {"default": "ProcessPoolExecutor(2).submit a job, then result()"}

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.own = {"drain": self.drain, "cpu": self.cpu}

    def version(self) -> str:
        return "of Python"

    def drain(self, case: str, n: int) -> Row:
        del case
        return {"jobs_per_s": n / _took_s(JOBS["noop"], n)}

    def cpu(self, case: str, n: int) -> Row:
        del case
        singles_s = single_burns_s()
        RECORDS.write_bytes(b"")
        took_s = _took_s(JOBS["burn"], n)
        return efficiency(n, took_s, singles_s + single_burns_s()) | shares(records())


def _took_s(body: Callable[[], Any], n: int) -> float:
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(burn_once, [10, 10]))
        start_s = time.perf_counter()
        for future in [pool.submit(body) for _ in range(n)]:
            future.result()
        return time.perf_counter() - start_s
