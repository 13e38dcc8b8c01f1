"""Compress and fingerprint files: real work that burns a core inside C, and may run any number of times.

Nothing is written: the compressed bytes are counted and dropped, so an attempt that was killed half-way leaves
nothing to clean up. A file that cannot be read is part of the answer, not a failure of its batch.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from runtime import Context, Job, Retry, fixed, job

CHUNK_BYTES = 256 * 1024  # between two reports of progress
DICTIONARY_BYTES_MAX = 4 * 2**20  # LZMA takes about twelve times as much memory
PRESET = 9 | lzma.PRESET_EXTREME
BINARY: dict[str, Any] = {}  # the preset's own: bytes at positions that repeat by four
TEXT = {"lc": 4, "lp": 0, "pb": 0}  # what a byte is follows from the one before it, wherever it stands


class File(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one file; `problem` says why it was left out."""

    path: str
    bytes_in: int = 0
    bytes_out: int = 0
    sha256: str = ""
    problem: str | None = None


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a batch: its files in order, and the CPU seconds that they took."""

    files: list[File]
    cpu_seconds: float


@job("compress", retry=Retry(2, fixed(1)), timeout=24 * 3600, stall_after=300)
class Compress(Job):
    """Compress `files`, paths below the directory `root`, each by itself."""

    root: str
    files: list[str]

    def run(self, ctx: Context) -> Compressed:
        began_s = time.process_time()
        total = sum(_size(Path(self.root, path)) for path in self.files)
        done = 0

        def report(path: str, count: int) -> None:
            nonlocal done
            done += count
            ctx.progress(done, total, note=path)
            ctx.check()

        found = [_compress(self.root, path, report) for path in self.files]
        return Compressed(files=found, cpu_seconds=time.process_time() - began_s)


def _compress(root: str, path: str, report: Callable[[str, int], None]) -> File:
    """Compress one file by both chains, of which the smaller result counts."""
    report(path, 0)
    digest = hashlib.sha256()
    bytes_in = 0
    try:
        with _open(Path(root, path)) as file:
            chains = [_compressor(os.fstat(file.fileno()).st_size, chain) for chain in (BINARY, TEXT)]
            sizes = [0] * len(chains)
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                bytes_in += len(chunk)
                sizes = [size + len(each.compress(chunk)) for size, each in zip(sizes, chains, strict=True)]
                report(path, len(chunk))
    except OSError as error:
        return File(path=path, problem=error.strerror or str(error))
    bytes_out = min(size + len(each.flush()) for size, each in zip(sizes, chains, strict=True))
    return File(path=path, bytes_in=bytes_in, bytes_out=bytes_out, sha256=digest.hexdigest())


def _compressor(size: int, chain: dict[str, Any]) -> lzma.LZMACompressor:
    """A compressor whose dictionary is as large as a file of `size` bytes needs, within bounds."""
    dictionary = min(max(size, 4096), DICTIONARY_BYTES_MAX)
    return lzma.LZMACompressor(
        filters=[{"id": lzma.FILTER_LZMA2, "preset": PRESET, "dict_size": dictionary, **chain}]
    )


def _open(path: Path) -> Any:
    """Open a regular file for reading, unbuffered; never wait for the other end of a pipe, never follow a link.

    Raises:
        OSError: it cannot be read, or is something else; `strerror` says which.
    """
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(0, _what(mode))
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    return open(os.open(path, flags), "rb", buffering=0)  # noqa: PTH123 - of a descriptor


def _size(path: Path) -> int:
    """Bytes of a regular file, 0 of anything else."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _what(mode: int) -> str:
    for is_a, name in (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a named pipe"),
    ):
        if is_a(mode):
            return f"is {name}, not a file"
    return "is a device, not a file"
