"""The log: one line an event, a name of two words and named values, on the service's standard error.

Lines go to one descriptor that all processes of the service share; a short one is one write. Nobody waits for
long for who reads it, a stopped terminal for instance: lines that find no room are dropped and counted. Handlers' own
output takes another way (`edges/output.py`) and arrives here as the event `job.output`.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import time
from typing import Any, Literal

import structlog

Level = Literal["debug", "info", "warning", "error"]
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_WAIT_S = 0.1  # a writer waits so long for room, at most once in
_WAIT_EVERY_S = 1.0


class _Lines:
    """A file of whole lines: what cannot be written is dropped, a log must not end the service or stop it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)
        # Where there is room, a pipe takes PIPE_BUF bytes without making its writer wait; a file takes all.
        self._step = sys.maxsize if stat.S_ISREG(os.fstat(fd).st_mode) else select.PIPE_BUF
        self._waited_s = float("-inf")
        self._dropped = 0
        self._torn = False  # whether the last line has no end

    def write(self, text: str) -> None:
        data = memoryview(("\n" * self._torn + text).encode("utf-8", "backslashreplace"))
        while data:
            if not self._has_room():
                self._dropped += 1
                return
            try:
                written = os.write(self._fd, data[: self._step])
            except OSError:
                self._dropped += 1
                return
            data = data[written:]
            self._torn = bool(data)

    def _has_room(self) -> bool:
        if self._room.poll(0):
            return True
        now_s = time.monotonic()
        if now_s < self._waited_s + _WAIT_EVERY_S:
            return False
        self._waited_s = now_s
        return bool(self._room.poll(_WAIT_S * 1000))

    def flush(self) -> None:
        pass

    def take_dropped(self) -> int:
        """How many lines were dropped, once there is room to say so."""
        if not self._dropped or not self._has_room():
            return 0
        dropped, self._dropped = self._dropped, 0
        return dropped


_lines = _Lines(2)


def setup(fd: int, level: str, form: str, **bound: object) -> None:
    """Log to `fd` from `level` up, as "console" or "json" ("auto": by whether `fd` is a terminal).

    Args:
        bound: values on every line of this process, such as `actor`.
    """
    global _lines  # noqa: PLW0603 - a process has one log
    _lines = _Lines(fd)
    if form == "auto":
        form = "console" if os.isatty(fd) else "json"
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=os.isatty(fd), pad_event_to=22)
        if form == "console"
        else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=_lines),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(pid=os.getpid(), **bound)


def event(level: Level, name: str, /, **fields: object) -> None:
    """Log that something happened. `name` is two words, like `lease.lost`, never a sentence."""
    logger = structlog.get_logger()
    if dropped := _lines.take_dropped():
        logger.warning("log.dropped", lines=dropped)
    logger.log(_LEVELS[level], name, **fields)
