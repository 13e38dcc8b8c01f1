"""A process gives back the memory that it can read again, and none that only it holds."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import pytest

from runtime.edges import pages
from tests.helpers.forks import in_fork

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which pages are in files")
_PROT_READ = 1
_PAGE = mmap.PAGESIZE
_FILE = "7f00a000-7f00c000 r--p 00001000 fe:00 26723                      /usr/lib/my lib.so"


def smaps(header: str = _FILE, anonymous: str = "Anonymous:    0 kB", swap: str = "Swap:  0 kB") -> str:
    lines = (
        header,
        "Rss:        8 kB",
        anonymous,
        "AnonHugePages:  0 kB",
        swap,
        "SwapPss:  4 kB",
        "VmFlags: rd mr ",
    )
    return "".join(line + "\n" for line in lines)


def clean(maps: str) -> list[tuple[int, int]]:
    return list(pages.clean(maps.splitlines(keepends=True)))


@pytest.mark.parametrize(
    "maps",
    [
        smaps(),
        smaps("7f00a000-7f00c000 r-xp 00001000 fe:00 26723 /usr/lib/a.so"),
        smaps("7f00a000-7f00c000 r--p 00001000 00:1e 9 /usr/lib/a.so (deleted)"),
    ],
)
def test_pages_of_a_file_are_clean(maps: str) -> None:
    assert clean(maps) == [(0x7F00A000, 0x2000)]


@pytest.mark.parametrize(
    "maps",
    [
        "",
        smaps(anonymous="Anonymous:             4 kB"),
        smaps(swap="Swap:                  4 kB"),
        smaps(anonymous="LazyFree:  0 kB"),
        smaps(swap="Locked:  0 kB"),
        smaps("7f00a000-7f00c000 rw-p 00001000 fe:00 26723 /usr/lib/a.so"),
        smaps("7f00a000-7f00c000 r--s 00001000 fe:00 26723 /usr/lib/a.so"),
        smaps("7f00a000-7f00c000 ---p 00001000 fe:00 26723 /usr/lib/a.so"),
        smaps("7f00a000-7f00c000 r--p 00000000 00:00 0 "),
        smaps("7f00a000-7f00c000 r--p 00000000 00:00 0 [vvar]"),
        smaps("7f00a000-7f00c000 r-xp 00000000 00:00 0 [vdso]"),
    ],
)
def test_all_others_are_not(maps: str) -> None:
    assert not clean(maps)


def test_each_mapping_is_judged_by_its_own_lines() -> None:
    heap = smaps("560000000000-560000001000 rw-p 00000000 00:00 0                          [heap]")
    written = smaps("7f00c000-7f00d000 r--p 00003000 fe:00 26723 /usr/lib/a.so", anonymous="Anonymous:  4 kB")
    assert clean(heap + written + smaps() + written) == [(0x7F00A000, 0x2000)]


def resident_kib(field: str) -> int:
    """What the kernel counts as resident of this process: `RssFile` or `RssAnon`, see proc_pid_status(5)."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@linux
def test_what_was_read_of_a_file_is_given_back_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "library"
    file.write_bytes(bytes(range(256)) * (4 << 12))
    size = file.stat().st_size

    def body() -> list[int]:
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        assert sum(mapped[::_PAGE]) == 0
        before = resident_kib("RssFile")
        pages.drop_clean()
        after = resident_kib("RssFile")
        assert mapped[:] == file.read_bytes()
        return [before, after]

    before, after = in_fork(body)
    assert before - after >= size // 1024


@linux
def test_what_was_written_before_writing_was_forbidden_stays(tmp_path: Path) -> None:
    """As a library's relocations, which are written into a private mapping that is read-only afterwards."""
    file = tmp_path / "library"
    file.write_bytes(b"in file!" * (_PAGE // 8))

    def body() -> list[str]:
        both = mmap.PROT_READ | mmap.PROT_WRITE
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), _PAGE, flags=mmap.MAP_PRIVATE, prot=both)
        mapped[:8] = b"written!"
        first = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first), ctypes.c_size_t(_PAGE), _PROT_READ) == 0
        pages.drop_clean()
        return [ctypes.string_at(first + at, 8).decode() for at in (0, 8)]

    assert in_fork(body) == ["written!", "in file!"]


def test_a_process_that_cannot_see_its_mappings_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_SMAPS", Path("/nowhere"))
    pages.drop_clean()
