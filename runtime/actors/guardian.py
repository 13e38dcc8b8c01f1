"""The guardian: the process that people see and signal, the parent of the supervisor. It only outlives.

When a process dies by SIGKILL the kernel kills its children for us, but not theirs: a handler's subprocess
would run on, a foster child of init. So the supervisor has a parent that adopts what it leaves behind, and
ends it; and the supervisor watches its parent, and ends everything when that dies. Neither runs user code.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

from setproctitle import setproctitle

from runtime.edges import pages, processes, signals
from runtime.edges.processes import Lifeline
from runtime.model.exits import EXIT_FAILED

_FORWARDED = {*signals.STOP, signals.RELOAD}


def guard(serve: Callable[[Lifeline], int], spared: Callable[[], set[int]]) -> int:
    """Run `serve` in a child process, pass signals on to it, and return its exit code.

    Args:
        serve: is given what tells it that the guardian has died.
        spared: pids that may outlive the child when it is killed, asked for when that has happened.
    """
    processes.adopt_orphans()
    inherited = processes.children()
    lifeline = Lifeline()
    with signals.held_back():
        pid = os.fork()
        if pid == 0:
            _become_supervisor(serve, lifeline)
    lifeline.hold()
    setproctitle("tenure: guardian")
    pages.drop_clean()  # it has loaded all that its children share, and runs next to none of it
    came = signals.Signals()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        select.select([came.fd], [], [])
        for signum in came.read():
            if signum in _FORWARDED:
                os.kill(pid, signum)
        processes.end_strangers({pid}, alive_too=False)
    came.close()
    lifeline.close()
    processes.end_strangers(inherited | spared(), alive_too=True)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else EXIT_FAILED


def _become_supervisor(serve: Callable[[Lifeline], int], lifeline: Lifeline) -> None:
    """The child's side: a session of its own, so that a terminal signals the guardian alone."""
    code = EXIT_FAILED
    try:
        os.setsid()
        lifeline.watch()
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        code = serve(lifeline)
        processes.clean_up()
    finally:
        os._exit(code)
