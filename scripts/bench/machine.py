"""What Linux says of processes: their families, CPU time and memory, and what the others use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty: there is no such process."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _all() -> dict[int, list[str]]:
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid: stat for pid in pids if (stat := _stat(pid))}


def family(roots: Iterable[int]) -> list[int]:
    """The living ones of these processes and all their descendants, parents first."""
    stats = {pid: stat for pid, stat in _all().items() if stat[0] != "Z"}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(int(stat[1]), []).append(pid)
    found = [pid for pid in roots if pid in stats]
    for pid in found:  # grows meanwhile
        found += children.get(pid, [])
    return found


def kill_family(roots: Iterable[int]) -> None:
    """Kill these processes and their descendants, the parents first, so that nothing is started anew."""
    for pid in family(roots):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def cpu_s(pids: Iterable[int], *, reaped: bool = False) -> float:
    """CPU seconds of these processes, with those of children that they have waited for when `reaped`."""
    fields = slice(11, 15 if reaped else 13)
    return sum(sum(map(int, _stat(pid)[fields])) for pid in pids) / TICKS_PER_S


def pss_mib(pid: int) -> float:
    """The proportional share of memory; 0: the process is gone."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def foreign(own: int) -> dict[int, tuple[int, int]]:
    """Parent and CPU ticks of every process that is neither of the family of `own` nor the kernel's."""
    ours = {*family([own]), 1, 2}
    return {
        pid: (int(stat[1]), sum(map(int, stat[11:15])))
        for pid, stat in _all().items()
        if pid not in ours and stat[1] != "2"
    }


def foreign_cpu_s(before: dict[int, tuple[int, int]], own: int) -> float:
    """CPU seconds that the others used since; not of families that ended as a whole meanwhile.

    A process that was waited for has its ticks counted by whoever waited: its nearest ancestor that still lives.
    """
    now = foreign(own)
    inherited: dict[int, int] = {}
    for pid, (above, ticks) in before.items():
        if pid not in now:
            heir = above
            while heir in before and heir not in now:
                heir = before[heir][0]
            inherited[heir] = inherited.get(heir, 0) + ticks
    used = (ticks - before.get(pid, (0, 0))[1] - inherited.get(pid, 0) for pid, (_, ticks) in now.items())
    return sum(max(0, ticks) for ticks in used) / TICKS_PER_S
