"""A worker's board: a page of shared memory that says what it runs, and that outlives it.

The worker writes, its supervisor reads, each word has one writer. A short job thus costs no message: the
number of its claim and the time it began are two words. Behind the page lies the journal: the outcomes that
are not yet settled in the database. When the process dies, nothing on the board or in the journal is lost.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import zlib
from typing import NamedTuple

import msgspec

from runtime.model.exits import Progress
from runtime.model.jobs import Settlement
from runtime.model.messages import Why

NEVER_NS = 2**62  # a start that no clock will reach

PAGE = 4096
JOURNAL_BYTES = 256 * 1024
PROGRESS_AT = 1024  # offset in the page
PROGRESS_MAX = 1024  # bytes
_ENTRY = struct.Struct(">II")  # before an outcome in the journal: its length and its CRC-32
ENTRY_HEAD = _ENTRY.size

# Words of 8 bytes. The last six belong to the supervisor, the others to the worker.
_NUMBER, _STARTED, _CPU, _PROGRESSED, _SEQUENCE, _LENGTH, _JOURNAL, _RUNNER, _SETTLES = range(9)
_TIMEOUT, _STALL, _CANCEL, _STOP, _HELD_TO, _HELD_UNTIL = range(9, 15)
_WORDS = 15

_WORD_OF: dict[Why, int] = {"timeout": _TIMEOUT, "stall": _STALL, "cancel": _CANCEL, "stop": _STOP}

_encode_settlement = msgspec.msgpack.Encoder().encode
_decode_settlement = msgspec.msgpack.Decoder(Settlement).decode
_encode_progress = msgspec.msgpack.Encoder().encode
_decode_progress = msgspec.msgpack.Decoder(Progress).decode


def create_file(name: str) -> int:
    """The descriptor of an anonymous file in memory, private to those who are handed it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Shown(NamedTuple):
    """What a board says. Times are nanoseconds of the machine's monotonic clock."""

    number: int  # of the claim that is being run; 0: none
    started_ns: int
    cpu_ns: int  # CPU time that the process had used when it began
    progressed_ns: int  # when it last reported progress; 0: not yet
    progress: Progress | None
    settles: bool  # its handler may have settled it already


class Board:
    """The board behind a descriptor. It is made once a slot, and handed from one worker to the next."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        if os.fstat(fd).st_size == 0:
            os.ftruncate(fd, PAGE + JOURNAL_BYTES)
        self._map = mmap.mmap(fd, PAGE + JOURNAL_BYTES)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: 8 * _WORDS].cast("Q")

    # -- the worker's side

    def begin(self, number: int, now_ns: int, cpu_ns: int) -> None:
        """Claim `number` begins, after `cpu_ns` of CPU time. The number comes last: who sees it sees the rest."""
        words = self._words
        words[_STARTED] = now_ns
        words[_CPU] = cpu_ns
        words[_PROGRESSED] = 0
        words[_LENGTH] = 0
        words[_SEQUENCE] = (words[_SEQUENCE] | 1) + 1  # even, also when a report before was broken off
        words[_SETTLES] = 0
        words[_NUMBER] = number

    def end(self) -> None:
        self._words[_NUMBER] = 0

    def linger(self) -> None:
        """What is on the board has ended and is not settled: it is still there, and no limit runs for it."""
        self._words[_STARTED] = NEVER_NS

    def settle(self, number: int) -> None:
        """Claim `number` may be settled by its own handler from here on; 0: it is not after all."""
        self._words[_SETTLES] = number

    def show(self, progress: Progress, now_ns: int) -> None:
        """Report progress: the newest replaces the one before.

        It may be broken off at any line, by a signal that raises in the handler: so the sequence is never
        just counted up, but made odd, then even.
        """
        data = _encode_progress(progress)
        if len(data) > PROGRESS_MAX:
            return  # a note in an alphabet of four bytes a letter; the last one stays
        words = self._words
        sequence = words[_SEQUENCE] | 1
        words[_SEQUENCE] = sequence  # odd: in the middle
        self._bytes[PROGRESS_AT : PROGRESS_AT + len(data)] = data
        words[_LENGTH] = len(data)
        words[_PROGRESSED] = now_ns
        words[_SEQUENCE] = sequence + 1

    def note(self, settlement: Settlement) -> bool:
        """Keep an outcome in the journal; False when it has no room, and must be settled at once."""
        data = _encode_settlement(settlement)
        start = PAGE + self._words[_JOURNAL]
        end = start + ENTRY_HEAD + len(data)
        if end > PAGE + JOURNAL_BYTES:
            return False
        _ENTRY.pack_into(self._map, start, len(data), zlib.crc32(data))
        self._bytes[start + ENTRY_HEAD : end] = data
        self._words[_JOURNAL] = end - PAGE  # last: a death before this line leaves no half outcome
        return True

    def clear_journal(self) -> None:
        self._words[_JOURNAL] = 0

    @property
    def runner(self) -> int:
        """The pid of the fork in which the attempt runs; 0: it runs in the worker."""
        return self._words[_RUNNER]

    @runner.setter
    def runner(self, pid: int) -> None:
        self._words[_RUNNER] = pid

    def is_timed_out(self, number: int) -> bool:
        return self._words[_TIMEOUT] == number

    def is_stalled(self, number: int) -> bool:
        return self._words[_STALL] == number

    def why_ending(self, number: int, now_ns: int, until_ns: int) -> Why | None:
        """Why claim `number` may not go on; None: it may.

        `until_ns` is when its lease ends, unless the supervisor has had it renewed since.
        """
        words = self._words
        if words[_HELD_TO] >= number:  # read before the moment, which is written before it
            until_ns = max(until_ns, words[_HELD_UNTIL])
        if now_ns >= until_ns:
            return "lost"
        for why, word in _WORD_OF.items():
            if words[word] == number or (why == "stop" and words[word] > number):
                return why
        return None

    # -- the supervisor's side

    @property
    def number(self) -> int:
        """Of the claim that is being run; 0: none."""
        return self._words[_NUMBER]

    @property
    def begun(self) -> bool:
        """Whether any claim has begun since the board was wiped."""
        return self._words[_STARTED] != 0

    def read(self) -> Shown:
        """All that the board says, of one moment."""
        words = self._words
        for _ in range(100):
            number = words[_NUMBER]
            shown = Shown(
                number,
                words[_STARTED],
                words[_CPU],
                words[_PROGRESSED],
                self._read_progress(),
                0 < number == words[_SETTLES],
            )
            if words[_NUMBER] == number:
                return shown
        return Shown(words[_NUMBER], words[_STARTED], words[_CPU], 0, None, settles=False)

    def _read_progress(self) -> Progress | None:
        for _ in range(100):
            sequence, length = self._words[_SEQUENCE], self._words[_LENGTH]
            data = bytes(self._bytes[PROGRESS_AT : PROGRESS_AT + min(length, PROGRESS_MAX)])
            if sequence % 2 == 0 and self._words[_SEQUENCE] == sequence:
                break
        else:
            return None  # it died in the middle of a report
        try:
            return _decode_progress(data) if data else None
        except (msgspec.DecodeError, RecursionError):
            return None

    def journal(self) -> tuple[Settlement, ...]:
        """The outcomes that were not settled. One that a dying process has scribbled over ends the list."""
        settlements = []
        at, end = PAGE, PAGE + min(self._words[_JOURNAL], JOURNAL_BYTES)
        while at + ENTRY_HEAD <= end:
            length, crc = _ENTRY.unpack_from(self._map, at)
            at += ENTRY_HEAD
            data = bytes(self._bytes[at : at + length])
            if zlib.crc32(data) != crc:
                break
            try:
                settlements.append(_decode_settlement(data))
            except (msgspec.DecodeError, RecursionError):
                break
            at += length
        return tuple(settlements)

    def warn(self, number: int, why: Why) -> None:
        """Tell the worker why claim `number` is to end; a stop is meant for all up to it."""
        self._words[_WORD_OF[why]] = number

    def hold(self, number: int, until_ns: int) -> None:
        """Tell the worker how long the leases of its claims up to `number` last."""
        self._words[_HELD_UNTIL] = until_ns
        self._words[_HELD_TO] = number

    def wipe(self) -> None:
        """Ready for the next worker of the slot."""
        for word in range(_WORDS):
            self._words[word] = 0

    def close(self) -> None:
        self._words.release()
        self._bytes.release()
        self._map.close()
        os.close(self.fd)
