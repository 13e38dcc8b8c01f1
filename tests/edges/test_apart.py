"""Goal: work in a fork is answered whole, and what becomes of the fork becomes of its maker. Method: real forks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from runtime.edges.apart import run_apart
from runtime.edges.board import Board, create_file
from tests.helpers.service import is_alive
from tests.helpers.waiting import wait_for


def start(work: Callable[[], bytes]) -> tuple[int, Board]:
    """A process that runs `work` apart and ends with code 0 when it is answered with b"yes"; its pid and board."""
    board = Board(create_file("board"))
    pid = os.fork()
    if pid == 0:
        answer = run_apart(board, (board.fd,), lambda: None, work)
        os._exit(0 if answer == b"yes" else 9)
    return pid, board


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda: b"yes", 0),
        (lambda: b"", 0),
        (lambda: os._exit(0), 0),
        (lambda: os._exit(7), 7),
        (os.abort, -signal.SIGABRT),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
        (lambda: os.kill(os.getpid(), signal.SIGUSR1), -signal.SIGUSR1),
    ],
    ids=["answer", "empty", "exit 0", "exit 7", "abort", "kill", "signal"],
)
def test_the_maker_ends_as_its_fork_does(work: Callable[[], bytes], code: int) -> None:
    pid, board = start(work)
    assert end_of(pid) == code
    assert board.runner == 0


def test_a_fork_dies_with_its_maker() -> None:
    pid, board = start(lambda: time.sleep(60))  # type: ignore[arg-type,return-value]
    runner = wait_for(lambda: board.runner)
    os.kill(pid, signal.SIGKILL)
    assert end_of(pid) == -signal.SIGKILL
    wait_for(lambda: is_alive(runner), lambda alive: not alive, within_s=1)
