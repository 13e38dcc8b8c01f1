"""What a worker's handlers print, C code included: to whom it belongs, and how much of it is kept.

A worker's descriptors 1 and 2 are one pipe to its supervisor. When a job that printed ends, the worker writes
a marker with the number of its claim into the same stream; what came before is that job's. The tail of the
job that runs is kept for a certificate; of each job no more than `LOGGED_MAX` bytes are logged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.model.exits import OUTPUT_TAIL

LINE_MAX = 8 * 1024  # bytes of a line; a longer one is logged in pieces
LOGGED_MAX = 64 * 1024  # bytes of one job's output that go to the log
CUT = "… more output is not logged …"


def marker(secret: str, number: int) -> bytes:
    """The end of the output of claim `number`. The secret is the incarnation's: handlers print anything."""
    return f"\x1e{secret} {number}\x1e\n".encode()


@dataclass(slots=True)
class Capture:
    """The output stream of one worker incarnation."""

    secret: str
    tail: bytearray = field(default_factory=bytearray)  # of the job that runs now
    _pending: bytearray = field(default_factory=bytearray)  # not yet a whole line
    _logged: int = 0  # bytes of this job
    _cut: bool = False

    def feed(self, data: bytes, before: int, after: int) -> list[tuple[int, str]]:
        """Take in `data`; the lines that are complete, each with the number of its claim (0: none).

        Args:
            before: the number on the board before the data was read.
            after: the number on the board after that.
        """
        lines: list[tuple[int, str]] = []
        self._pending += data
        prefix = f"\x1e{self.secret} ".encode()
        marked = False
        while (start := self._pending.find(prefix)) >= 0:
            end = self._pending.find(b"\x1e\n", start + len(prefix))
            if end < 0:
                break  # the marker itself is cut; its rest comes
            number = int(self._pending[start + len(prefix) : end])
            self._take(bytes(self._pending[:start]), number, lines)
            del self._pending[: end + 2]
            self.tail.clear()
            self._logged, self._cut = 0, False
            marked = True
        usable = self._usable(prefix)
        at = self._pending.rfind(b"\n", 0, usable) + 1
        if usable - at > LINE_MAX:
            at = usable
        if at:
            number = after if marked or before == 0 else before
            self._take(bytes(self._pending[:at]), number, lines)
            del self._pending[:at]
        return lines

    def _usable(self, prefix: bytes) -> int:
        """How many pending bytes are no part of a marker whose end is still to come."""
        start = self._pending.find(prefix)
        if start >= 0 and len(self._pending) - start < len(prefix) + 24:
            return start
        for length in range(min(len(prefix) - 1, len(self._pending)), 0, -1):
            if self._pending.endswith(prefix[:length]):
                return len(self._pending) - length
        return len(self._pending)

    def _take(self, data: bytes, number: int, lines: list[tuple[int, str]]) -> None:
        self.tail += data
        del self.tail[:-OUTPUT_TAIL]
        room = LOGGED_MAX - self._logged
        self._logged += len(data)
        for line in data[: max(room, 0)].decode("utf-8", "replace").splitlines():
            lines.extend((number, line[at : at + LINE_MAX]) for at in range(0, max(len(line), 1), LINE_MAX))
        if len(data) > room and not self._cut:
            self._cut = True
            lines.append((number, CUT))

    def last_words(self) -> str:
        """The tail of the job that was running when the process ended."""
        tail = bytes(self.tail + self._pending)[-OUTPUT_TAIL:]
        return tail.decode("utf-8", "replace").replace("\x00", "\\0")
