"""The memory of a process that has loaded more than it needs: what can be read again from its file is given back.

What importing has touched of libraries stays mapped, and counts as this process's memory for as long as nobody else
maps it: the kernel does not hand such pages on to a fork, which maps those that it needs itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_LINUX = sys.platform == "linux"
_SMAPS = Path("/proc/self/smaps")
_DONT_NEED = 4  # MADV_DONTNEED
_OWN = {"Anonymous:", "Swap:"}


def drop_clean() -> None:
    """Unmap the pages of this process that are as they are in a file. One that is needed again is read again.

    Nothing is lost by it, and nothing happens where the kernel does not say which they are (other than Linux, no /proc).
    """
    if not _LINUX:
        return
    madvise = ctypes.CDLL(None).madvise
    with contextlib.suppress(OSError), _SMAPS.open(encoding="utf-8", errors="replace") as maps:
        for start, length in clean(maps):  # refused for locked memory, which stays
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _DONT_NEED)


def clean(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Address and length, in bytes, of each mapping in `/proc/*/smaps` that holds nothing but what is in its file.

    A private mapping can have pages of its own though it is not writable now: relocations, that the loader writes before
    it forbids it. They count as `Anonymous`, those that are swapped out as `Swap`; dropping them would undo the writes.

    Args:
        maps: its lines; see proc_pid_smaps(5). They are taken one by one, for all together are 300 KiB.
    """
    first, end, is_of_a_file, has_none = "", "", False, set[str]()
    for line in maps:
        words = line.split(maxsplit=5)  # first: addresses, permissions, offset, device, inode, path or name
        if not words[0].endswith(":"):
            first, _, end = words[0].partition("-")
            is_of_a_file = re.match("r-.p", words[1]) is not None and words[-1].startswith("/")
            has_none = set()
        elif is_of_a_file and words[0] in _OWN and words[1] == "0":
            has_none.add(words[0])
            if has_none == _OWN:
                yield int(first, 16), int(end, 16) - int(first, 16)
