"""What a worker's handlers print, C code included: to whom it belongs, and how much of it is kept.

A worker's descriptors 1 and 2 are one pipe to its supervisor. When a job that printed ends, the worker writes
a marker with the number of its claim into the same stream, before its board says that the job has ended. So
what precedes a marker is that job's; what follows the last one belongs to whoever is on the board, if
the board has not changed while the pipe was emptied, and else waits. The tail of the job that runs is kept for a
certificate; of each job no more than `LOGGED_MAX` bytes and `LINES_MAX` lines are logged.
"""

from __future__ import annotations

import re

from runtime.model.exits import OUTPUT_TAIL

PIPE_BYTES = 64 * 1024  # what the pipe holds: one read of so much empties it
LINE_MAX = 8 * 1024  # bytes of a line; a longer one is logged in pieces
LOGGED_MAX = 64 * 1024  # bytes of one job's output that go to the log
LINES_MAX = 1000  # and lines: an empty one costs the supervisor as much time as a full one
HELD_MAX = 128 * 1024  # bytes of unclear belonging that are held back
CUT = "… more output is not logged …"

Lines = list[tuple[int, str]]  # each with the number of its claim; 0: no job's

_NUMBER = rb"(\d{1,20})\x1e\n"
_NUMBER_BEGUN = re.compile(rb"\d{0,20}\x1e?")


def marker(secret: str, number: int) -> bytes:
    """The end of the output of claim `number`. The secret is the incarnation's: handlers print anything."""
    return _prefix(secret) + f"{number}\x1e\n".encode()


def _prefix(secret: str) -> bytes:
    return f"\x1e{secret} ".encode()


class Capture:
    """The output stream of one worker incarnation."""

    def __init__(self, secret: str) -> None:
        self._prefix = _prefix(secret)
        self._marker = re.compile(re.escape(self._prefix) + _NUMBER)
        self._longest = len(marker(secret, 2**64))
        self._pending = bytearray()  # not yet a whole line, or not yet anybody's
        self._forget(0)

    def _forget(self, owner: int) -> None:
        """Nothing is known of this owner's output."""
        self._owner = owner
        self._tail = bytearray()
        self._logged = 0  # bytes
        self._lines = 0
        self._cut = False

    def feed(self, data: bytes, before: int, after: int, *, begun: bool = True) -> Lines:
        """Take in all that was in the pipe; the lines that are complete and whose owner is certain.

        Args:
            before: the number on the board before the data was read.
            after: the number on the board after that.
            begun: whether any job had begun by then.
        """
        lines: Lines = []
        self._pending += data
        while found := self._marker.search(self._pending):
            number = int(found[1])
            self._take(bytes(self._pending[: found.start()]), number, lines)
            self._forget(0)
            del self._pending[: found.end()]
        # A number comes once only, but 0 may stand on both sides of a whole job.
        certain = before == after and (before != 0 or not begun)
        if certain or len(self._pending) > HELD_MAX:
            end = self._complete(self._unmarked())
            if end:
                self._take(bytes(self._pending[:end]), after or before, lines)
                del self._pending[:end]
        return lines

    def end(self, number: int) -> Lines:
        """The process has ended with `number` on its board: what is left, also a line without an end."""
        lines: Lines = []
        self._take(bytes(self._pending[: self._unmarked()]), number, lines)
        self._pending.clear()
        return lines

    def last_words(self) -> str:
        """The tail of the job that was running when the process ended."""
        words = bytes(self._tail + self._pending[: self._unmarked()])[-OUTPUT_TAIL:]
        return words.decode("utf-8", "replace").replace("\x00", "\\0")

    def _unmarked(self) -> int:
        """How many pending bytes are no part of a marker whose end is still to come."""
        at = self._pending.find(b"\x1e", max(len(self._pending) - self._longest, 0))
        while at >= 0:
            rest = bytes(self._pending[at:])
            if self._prefix.startswith(rest):
                return at
            if rest.startswith(self._prefix) and _NUMBER_BEGUN.fullmatch(rest, len(self._prefix)):
                return at
            at = self._pending.find(b"\x1e", at + 1)
        return len(self._pending)

    def _complete(self, unmarked: int) -> int:
        """How many of the first `unmarked` pending bytes are whole lines, or whole pieces of a long one."""
        at = self._pending.rfind(b"\n", 0, unmarked) + 1
        while unmarked - at > LINE_MAX:
            at = _piece_end(self._pending, at)
        return at

    def _take(self, data: bytes, owner: int, lines: Lines) -> None:
        if owner != self._owner:
            self._forget(owner)
        if owner:
            self._tail += data
            del self._tail[:-OUTPUT_TAIL]
        if not data or self._cut:
            return
        for line in data.removesuffix(b"\n").split(b"\n"):
            at = 0
            while at == 0 or at < len(line):
                end = _piece_end(line, at) if len(line) - at > LINE_MAX else len(line)
                self._logged += end - at
                self._lines += 1
                if self._logged > LOGGED_MAX or self._lines > LINES_MAX:
                    self._cut = True
                    lines.append((owner, CUT))
                    return
                lines.append((owner, line[at:end].decode("utf-8", "replace")))
                at = max(end, 1)


def _piece_end(data: bytes | bytearray, start: int) -> int:
    """Where the piece of a long line that begins at `start` ends: between two characters."""
    end = start + LINE_MAX
    for cut in range(end, end - 4, -1):
        if data[cut] & 0xC0 != 0x80:  # the first byte of a character
            return cut
    return end
