"""Signals as bytes on a pipe for the supervisor, and as nothing at all for its children.

A terminal or an init system may signal every process of the service. Only the supervisor decides: children
catch what is sent to all and do nothing. They catch it instead of ignoring it, since an ignored signal stays
ignored across `exec`, and a handler's subprocess would be deaf to it.
"""

from __future__ import annotations

import os
import signal
from _signal import getsignal  # signal.getsignal looks for its answer in an enum, at ten times the cost
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP = (signal.SIGTERM, signal.SIGINT)
RELOAD = signal.SIGHUP
CHILD = signal.SIGCHLD
SOFT = signal.SIGUSR1  # to a worker: raise TimedOut in the handler, if the board says so
STACKS = signal.SIGUSR2  # to a worker: write all Python stacks
UNHEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _nothing(signum: int, frame: FrameType | None) -> None:
    del signum, frame


class Signals:
    """The supervisor's signals: `fd` becomes readable, `read` says which came since."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for signum in (*STOP, RELOAD, CHILD):
            signal.signal(signum, _nothing)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def read(self) -> set[int]:
        """The signals that have come, each once however often it came."""
        found: set[int] = set()
        while True:
            try:
                data = os.read(self.fd, 4096)
            except BlockingIOError:
                return found
            found.update(data)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write_fd)


@contextmanager
def held_back(which: Iterable[int] | None = None) -> Iterator[None]:
    """Deliver no signal (or none of these) inside: around a fork, so that none meets a child with its
    parent's handlers. A program that is started inside begins with them held back.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, which or signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold_back() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, UNHEEDED)


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, UNHEEDED)


def _heed_again() -> None:
    """In a process that a handler forks: it ends when the handler tells it to, as any other would."""
    for signum in (*UNHEEDED, SOFT, STACKS):
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    _let_in()


def settle_child() -> None:
    """A child's first act: none of its parent's handlers are left, and signals are delivered again."""
    signal.set_wakeup_fd(-1)
    for signum in (CHILD, SOFT, STACKS):
        signal.signal(signum, signal.SIG_DFL)
    restore_unheeded()
    os.register_at_fork(before=_hold_back, after_in_parent=_let_in, after_in_child=_heed_again)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def restore_unheeded() -> None:
    """Heed no signal that is sent to all, also after a handler has changed that."""
    for signum in UNHEEDED:
        if getsignal(signum) is not _nothing:
            signal.signal(signum, _nothing)
            signal.siginterrupt(signum, False)


def restore_soft(handler: Callable[[int, FrameType | None], None]) -> None:
    """Let the soft signal come to this handler, also after another one was put in its place."""
    if getsignal(SOFT) != handler:
        signal.signal(SOFT, handler)
