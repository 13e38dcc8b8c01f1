"""Directories for tests, which nothing outlives: no file in them, and no process that was started on them.

They are made here and not by pytest's `tmp_path`, because that is closed to the account that PostgreSQL runs as
when root runs the tests. Run as a program, this module is the keeper of one: it outlives a killed test run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.edges.embedded import _commands
from tests.helpers.waiting import wait_for

ROOT = Path(__file__).parent.parent.parent


def processes_on(directory: Path) -> dict[int, str]:
    """The processes whose command line names something in that directory."""
    return {
        pid: command
        for pid, command in _commands().items()
        if f"{directory}/" in f"{command}/" and pid != os.getpid()
    }


def end_processes_on(directory: Path) -> None:
    for pid, command in processes_on(directory).items():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT if "postgres" in command else signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)
    wait_for(lambda: processes_on(directory), lambda found: not found)


def clear(directory: Path) -> None:
    """End what runs on a directory, and remove it."""
    end_processes_on(directory)
    shutil.rmtree(directory)


def _quick_disk() -> str:
    """Memory where there is enough; a short path in any case, for the sockets in it."""
    memory = "/dev/shm"
    if Path(memory).is_dir() and shutil.disk_usage(memory).free > 2**31:
        return memory
    return "/tmp"


@contextmanager
def kept() -> Iterator[Path]:
    """A directory that everybody can reach, cleared even if this process is killed."""
    directory = Path(tempfile.mkdtemp(prefix="tenure-", dir=_quick_disk()))
    directory.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True
    ) as keeper:
        assert keeper.stdin is not None
        keeper.stdin.write(os.fsencode(directory))
        keeper.stdin.flush()
        try:
            yield directory
        finally:
            keeper.stdin.close()
            assert keeper.wait(20) == 0


if __name__ == "__main__":
    clear(Path(os.fsdecode(sys.stdin.buffer.read())))
