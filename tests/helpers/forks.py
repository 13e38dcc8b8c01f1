"""A piece of a test in a fork of the test's process, which may give up what it could never get back."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from runtime.edges.board import create_file


def in_fork(body: Callable[[], Any]) -> Any:
    """What `body` returns, as JSON carries it; an exception in it is the test's failure."""
    fd = create_file("answer")
    pid = os.fork()
    if pid == 0:
        try:
            answer = {"value": body()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        os.write(fd, msgspec.json.encode(answer))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"status {status}"
    answer = msgspec.json.decode(os.pread(fd, os.fstat(fd).st_size, 0))
    os.close(fd)
    assert "error" not in answer, answer["error"]
    return answer["value"]


def refusal(act: Callable[[], Any]) -> str:
    """The class of what `act` raises, empty when it succeeds."""
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return ""
