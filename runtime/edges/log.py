"""The log: one line an event, a name of two words and named values, on the service's standard error.

Lines go to one descriptor that all processes of the service share; each is one write. Handlers' own output
takes another way (`edges/output.py`) and arrives here as the event `job.output`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Literal

import structlog

Level = Literal["debug", "info", "warning", "error"]
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Lines:
    """A file of whole lines: what cannot be written is dropped, a log must not end the service."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, text.encode("utf-8", "backslashreplace"))

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
