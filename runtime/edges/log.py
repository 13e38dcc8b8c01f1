"""The log: one line an event, a name of two words and named values, on the service's standard error.

Lines go to one descriptor that all processes of the service share; a short one is one write. Nobody waits for
long for who reads it, a stopped terminal for instance: lines that find no room are dropped and counted. Handlers' own
output takes another way (`edges/output.py`) and arrives here as the event `job.output`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
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
        self._waited_s = float("-inf")
        self._dropped = 0

    def write(self, text: str) -> None:
        if self._dropped and self._has_room():
            dropped, self._dropped = self._dropped, 0
            event("warning", "log.dropped", lines=dropped)
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            # Where there is room, a pipe takes PIPE_BUF bytes without making its writer wait.
            if not self._has_room():
                self._dropped += 1
                return
            try:
                data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]
            except OSError:
                return

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


def setup(fd: int, level: str, form: str, **bound: object) -> None:
    """Log to `fd` from `level` up, as "console" or "json" ("auto": by whether `fd` is a terminal).

    Args:
        bound: values on every line of this process, such as `actor`.
    """
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
        logger_factory=structlog.WriteLoggerFactory(file=_Lines(fd)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(pid=os.getpid(), **bound)


def event(level: Level, name: str, /, **fields: object) -> None:
    """Log that something happened. `name` is two words, like `lease.lost`, never a sentence."""
    structlog.get_logger().log(_LEVELS[level], name, **fields)
