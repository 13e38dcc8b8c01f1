"""What the jobs do, the same for every product, and the records that they leave.

Each job appends one record to one file opened with O_APPEND, which the kernel makes atomic. So its size counts jobs
at no cost, and its contents give the times, for threads and processes alike; a record costs about 2 us.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RECORD = struct.Struct("<qqqq")
RECORDS = Path(os.environ.get("BENCH_RECORDS", "records"))
BURN_LOOPS = int(os.environ.get("BENCH_BURN_LOOPS", "300000"))
CRASH_S = 60.0  # how long a job that waits for its death waits
_file = -1


class Record(NamedTuple):
    pid: int
    start: int  # ns since the epoch
    end: int  # the same; 0: it has only begun
    note: int  # of `lat` when it was sent, of `crash` its number, of `burn` its CPU time in ns


def record(start: int, end: int, note: int = 0) -> None:
    global _file  # noqa: PLW0603 - one descriptor a process, opened by the first job
    if _file < 0:
        _file = os.open(RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(_file, RECORD.pack(os.getpid(), start, end, note))


def count() -> int:
    return RECORDS.stat().st_size // RECORD.size if RECORDS.exists() else 0


def records() -> list[Record]:
    return [Record(*one) for one in RECORD.iter_unpack(RECORDS.read_bytes())]


def burn_once(loops: int = BURN_LOOPS) -> int:
    """A fixed amount of pure Python that holds the GIL."""
    x = 0
    for i in range(loops):
        x = (x * 31 + i) & 0xFFFFFFFF
    return x


def noop() -> None:
    now = time.time_ns()
    record(now, now)


def lat(sent: int) -> None:
    now = time.time_ns()
    record(now, now, int(sent))


def burn() -> None:
    start, cpu = time.time_ns(), time.thread_time_ns()
    burn_once()
    cpu = time.thread_time_ns() - cpu
    record(start, time.time_ns(), cpu)


def nap(ms: int) -> None:
    start = time.time_ns()
    time.sleep(int(ms) / 1000)
    record(start, time.time_ns())


def crash(number: int) -> None:
    """Begin and wait to be killed; the second time only begin."""
    again = any(one.note == int(number) for one in records())
    record(time.time_ns(), 0, int(number))
    if not again:
        time.sleep(CRASH_S)


JOBS: dict[str, Callable[..., Any]] = {"noop": noop, "lat": lat, "burn": burn, "nap": nap, "crash": crash}
ARGUMENT = {"lat": "sent", "nap": "ms", "crash": "number"}  # of those that have one, an int
