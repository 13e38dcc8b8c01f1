"""Messages between exactly two processes: length-prefixed MessagePack frames over a pair of pipes.

Neither side ever blocks inside: reading takes what is there, writing keeps what does not fit. Only progress
may be replaced by newer progress; anything else is kept, and a peer that does not read for so long
that `OUTBOX_MAX` is passed is given up. A frame that is too long or no message gives up the peer as well:
after garbage nothing that follows can be trusted, and nothing more is read.
"""

from __future__ import annotations

import os
import select
from collections import deque
from typing import Any, Generic, TypeVar

import msgspec

from runtime.errors import BadFrame, PeerGone

FRAME_MAX = 1024 * 1024  # bytes of one message; larger things go through the database
HEADER = 4  # bytes, big-endian length
READ_MAX = 256 * 1024  # bytes taken in one turn, so that one talker does not starve the others
OUTBOX_MAX = 16 * 1024 * 1024

In = TypeVar("In")


class Frames:
    """Cuts a stream of bytes into frames, however it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now, without their headers.

        Raises:
            BadFrame: a header announces more than `FRAME_MAX`; nothing more can be read from this stream.
        """
        buffer = self._buffer
        buffer += data
        frames = []
        start = 0
        while len(buffer) - start >= HEADER:
            length = int.from_bytes(buffer[start : start + HEADER], "big")
            if length > FRAME_MAX:
                raise BadFrame(f"a frame of {length} bytes is announced, {FRAME_MAX} are allowed")
            end = start + HEADER + length
            if len(buffer) < end:
                break
            frames.append(bytes(buffer[start + HEADER : end]))
            start = end
        del buffer[:start]
        return frames


class Pipe(Generic[In]):
    """One end of a connection: receives messages of the type `incoming`, sends any message.

    Both descriptors belong to the Pipe and are made non-blocking.
    """

    def __init__(self, read_fd: int, write_fd: int, incoming: Any) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._frames = Frames()
        self._outbox: deque[tuple[memoryview, str | None]] = deque()
        self._outbox_bytes = 0
        self._begun = False  # whether the first frame of the outbox is partly written
        self._given_up = False

    def receive(self) -> list[In]:
        """The messages that have arrived, without waiting.

        Raises:
            PeerGone: the other end is closed and all its complete messages have been given out; or it was
                given up before.
            BadFrame: what arrived is no message of the expected type. The peer is given up, and what came
                together with the garbage is dropped.
        """
        if self._given_up:
            raise PeerGone
        messages: list[In] = []
        taken = 0
        while taken < READ_MAX:
            try:
                data = os.read(self.read_fd, 65536)
            except BlockingIOError:
                break
            if not data:
                if messages:
                    break  # the next call says so
                raise PeerGone
            taken += len(data)
            try:
                messages += self._decoded(data)
            except BadFrame:
                self._given_up = True
                raise
            if len(data) < 65536:
                break
        return messages

    def _decoded(self, data: bytes) -> list[In]:
        try:
            return [self._decoder.decode(frame) for frame in self._frames.feed(data)]
        except (msgspec.DecodeError, RecursionError) as cause:
            raise BadFrame(str(cause)) from cause

    def send(self, message: msgspec.Struct, *, replaces: str | None = None) -> None:
        """Send now what fits, and keep the rest for `flush`.

        Args:
            replaces: a key; a kept message with the same key that has not begun to leave is replaced.

        Raises:
            PeerGone: the other end is closed.
            BadFrame: the message is longer than `FRAME_MAX` (a bug), or the peer has stopped reading.
        """
        body = self._encoder.encode(message)
        if len(body) > FRAME_MAX:
            raise BadFrame(f"a message of {len(body)} bytes is to be sent, {FRAME_MAX} are allowed")
        if replaces is not None:
            self._drop(replaces)
        if self._outbox_bytes + len(body) > OUTBOX_MAX:
            raise BadFrame(f"the peer has not read for {self._outbox_bytes} bytes")
        frame = memoryview(len(body).to_bytes(HEADER, "big") + body)
        self._outbox.append((frame, replaces))
        self._outbox_bytes += len(frame)
        self.flush()

    def _drop(self, key: str) -> None:
        kept = deque(
            (frame, replaces)
            for index, (frame, replaces) in enumerate(self._outbox)
            if replaces != key or (index == 0 and self._begun)
        )
        self._outbox = kept
        self._outbox_bytes = sum(len(frame) for frame, _ in kept)

    def flush(self) -> bool:
        """Write what fits; whether nothing is left. Raises `PeerGone`."""
        while self._outbox:
            frame, replaces = self._outbox[0]
            try:
                written = os.write(self.write_fd, frame)
            except BlockingIOError:
                return False
            except BrokenPipeError as cause:
                raise PeerGone from cause
            self._outbox_bytes -= written
            if written < len(frame):
                self._outbox[0] = (frame[written:], replaces)
                self._begun = True
                return False
            self._outbox.popleft()
            self._begun = False
        return True

    @property
    def is_flushed(self) -> bool:
        return not self._outbox

    def send_and_wait(self, message: msgspec.Struct) -> None:
        """Send, and wait until the other side's pipe has taken it: for children, which may block.

        Raises:
            PeerGone: the other end is closed.
        """
        self.send(message)
        writable = select.poll()
        writable.register(self.write_fd, select.POLLOUT)
        while not self.flush():
            writable.poll()

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)


class Tokens:
    """The right to begin each claim of a batch: its number, in a pipe from which two processes may read.

    Whoever reads a number has the claim: the worker to begin it, or the supervisor to give it back. The
    kernel hands each number out once, whatever either process is doing, inside C code included.
    """

    SIZE = 8

    def __init__(self, read_fd: int, write_fd: int | None = None) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        os.set_blocking(read_fd, False)

    def put(self, first: int, count: int) -> None:
        """Put in `count` numbers from `first` on; so few that the pipe takes them whole."""
        assert self._write_fd is not None
        assert count * self.SIZE <= select.PIPE_BUF
        os.write(
            self._write_fd, b"".join(n.to_bytes(self.SIZE, "little") for n in range(first, first + count))
        )

    def take(self, number: int) -> bool:
        """Whether the next number is ours: this one. Older ones, of a batch given up, are passed over."""
        while True:
            try:
                data = os.read(self.read_fd, self.SIZE)
            except BlockingIOError:
                return False
            if not data:
                return False
            found = int.from_bytes(data, "little")
            if found >= number:
                return found == number

    def take_all(self) -> tuple[int, ...]:
        """All numbers that are left, taken from whoever would have begun them."""
        numbers: list[int] = []
        while True:
            try:
                data = os.read(self.read_fd, 512 * self.SIZE)
            except BlockingIOError:
                break
            if not data:
                break
            numbers += [
                int.from_bytes(data[i : i + self.SIZE], "little") for i in range(0, len(data), self.SIZE)
            ]
        return tuple(numbers)

    def close(self) -> None:
        os.close(self.read_fd)
        if self._write_fd is not None:
            os.close(self._write_fd)
