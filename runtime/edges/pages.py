"""The memory of a process that has loaded more than it needs: what can be read again from its file is given back.

What importing has touched of libraries stays mapped, and counts as this process's memory for as long as nobody else
maps it: the kernel does not hand such pages on to a fork, which maps those that it needs itself.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_LINUX = sys.platform == "linux"
_DONT_NEED = 4  # MADV_DONTNEED
# proc_pid_maps(5): addresses, permissions, offset, device, inode, and a path or a name in brackets
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) [0-9a-f]+ \S+ [0-9]+ *(.*)\n", re.MULTILINE)
_OWN = re.compile(r"^(Anonymous|Swap): +([0-9]+) kB$", re.MULTILINE)


def drop_clean() -> None:
    """Unmap the pages of this process that are as they are in a file. One that is needed again is read again.

    Nothing is lost by it, and nothing happens where the kernel does not say which they are (other than Linux, no /proc).
    """
    if not _LINUX:
        return
    try:
        maps = Path("/proc/self/smaps").read_text("utf-8", "surrogateescape")
    except OSError:
        return
    madvise = ctypes.CDLL(None).madvise
    for start, length in clean(maps):  # refused for locked memory, which stays
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _DONT_NEED)


def clean(maps: str) -> Iterator[tuple[int, int]]:
    """Address and length, in bytes, of each mapping in `/proc/*/smaps` that holds nothing but what is in its file.

    A private mapping can have pages of its own though it is not writable now: relocations, that the loader writes before
    it forbids it. They count as `Anonymous`, those that are swapped out as `Swap`; dropping them would undo the writes.
    """
    parts = _MAPPING.split(maps)
    for first, end, permissions, path, rest in zip(*(parts[n::5] for n in range(1, 6)), strict=True):
        readable, writable, _, shared = permissions
        own = {key: int(kib) for key, kib in _OWN.findall(rest)}
        is_read_only = (readable, writable, shared) == ("r", "-", "p") and path.startswith("/")
        if is_read_only and own == {"Anonymous": 0, "Swap": 0}:
            yield int(first, 16), int(end, 16) - int(first, 16)
