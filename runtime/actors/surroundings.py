"""What a job finds around it in its worker's process, and finds the same whatever the job before it did.

Its output, where nothing stays in a buffer; and the directory, umask, signal handlers and processes, which are put
right after each job.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys
import termios
from collections.abc import Callable
from types import FrameType

from runtime.edges import processes, signals
from runtime.edges.output import marker
from runtime.edges.processes import Ends

_EMPTY = bytes(4)  # FIONREAD's answer when nothing waits in the pipe


class Output:
    """Descriptors 1 and 2 of this process: nothing printed stays in a buffer, and each job's end is marked.

    `marked` is False in a process for one job, whose end is that of its output.
    """

    def __init__(self, ends: Ends, *, marked: bool = True) -> None:
        self._marked = marked
        self._fd = ends.output.fd
        self._secret = ends.secret
        self._waiting = bytearray(4)
        self._streams = tuple(_Raw(fd) for fd in (1, 2))
        self._texts = tuple(
            io.TextIOWrapper(stream, "utf-8", "backslashreplace", write_through=True)
            for stream in self._streams
        )
        self._install()

    def _install(self) -> None:
        sys.stdout, sys.stderr = self._texts

    def expect(self) -> None:
        """The job may print by descriptors that are not watched here: a fork's."""
        for stream in self._streams:
            stream.written = True

    def end(self, number: int) -> None:
        """Mark the end of a job's output, if there was any, and put descriptors back that it closed or changed."""
        for fd in (1, 2):
            os.dup2(self._fd, fd)  # quicker than to look whether it still is the same
        if sys.stdout is not self._texts[0] or sys.stderr is not self._texts[1]:
            self._install()
        fcntl.ioctl(self._fd, termios.FIONREAD, self._waiting)
        printed = self._streams[0].written or self._streams[1].written or self._waiting != _EMPTY
        if self._marked and printed:
            for stream in self._streams:
                stream.written = False
            os.write(self._fd, marker(self._secret, number))


class _Raw(io.FileIO):
    """A descriptor that remembers whether it was written to."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.written = False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        self.written = True
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) or 0 :]
        return len(data)


class Tidiness:
    """What a job may change in its process and the next one must find as it was."""

    def __init__(self, soft: Callable[[int, FrameType | None], None]) -> None:
        self._soft = soft
        self._directory = os.getcwd()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._children = processes.children()

    def restore(self) -> None:
        """Put directory, umask and signal handlers back, and end the processes that the job left behind."""
        os.umask(self._umask)
        try:
            moved = os.getcwd() != self._directory
        except OSError:
            moved = True
        if moved:
            with contextlib.suppress(OSError):
                os.chdir(self._directory)
        signals.restore_soft(self._soft)
        signals.restore_unheeded()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        left = processes.children() - self._children
        processes.end_strangers(self._children, alive_too=True)
        self._children |= left & processes.children()  # what cannot be ended is not waited for again
