"""One piece of work in a fork of this process: done there, answered here, and a death there is a death here.

The fork may thus give up what it could never get back. It shares the worker's board and output, its answer is a file
in memory, and nothing has to be sent while it runs. How it dies, this process dies too: so its supervisor sees
a crash of a worker, as of any other handler, and needs to know nothing of forks.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn

from runtime.edges import processes, signals
from runtime.edges.board import Board, create_file
from runtime.model.exits import EXIT_FAILED, EXIT_OK


def run_apart(
    board: Board, keep: Iterable[int], listen: Callable[[], None], work: Callable[[], bytes]
) -> bytes:
    """What `work` returns in a fork of this process. Ends this process as the fork ends, if that does not answer.

    Args:
        board: says to the supervisor which process it is that works.
        keep: the descriptors that the fork keeps besides 0, 1 and 2.
        listen: installs the fork's handlers of signals.
    """
    answer_fd = create_file("tenure-answer")
    parent = os.getpid()
    with signals.held_back():
        pid = os.fork()
        if pid == 0:
            _be_apart(parent, {0, 1, 2, answer_fd, *keep}, listen, work, answer_fd)
        board.runner = pid
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    board.runner = 0  # before the wait: until then the number is its own
    _, status, _ = os.wait4(pid, 0)
    size = os.fstat(answer_fd).st_size
    if status != 0 or size == 0:
        _die_as(os.waitstatus_to_exitcode(status))
    answer = os.pread(answer_fd, size, 0)
    os.close(answer_fd)
    return answer


def _be_apart(
    parent: int, keep: set[int], listen: Callable[[], None], work: Callable[[], bytes], answer_fd: int
) -> NoReturn:
    """The fork, whatever happens in it. Every signal is held back when it begins."""
    code = EXIT_FAILED
    try:
        processes.die_with_parent(parent)
        processes.close_all_but(keep)
        signals.restore_unheeded()
        listen()
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        rest = memoryview(work())
        while rest:
            rest = rest[os.write(answer_fd, rest) :]
        code = EXIT_OK
    except BaseException:  # noqa: BLE001 - a bug of ours: the end of this process, and of the one that waits for it
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def _die_as(code: int) -> NoReturn:
    """End like a process that ended with this code, negative: by that signal."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)  # faulthandler's too: the stacks on record are the fork's
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
    os._exit(code if code >= 0 else EXIT_FAILED)
