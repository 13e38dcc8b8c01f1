"""A process that uses the embedded PostgreSQL of a directory until its standard input ends.

Run as a program: `DATA_DIR BIN_DIR UID FORK`. With FORK it forks a child that closes what it has to and stays.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.edges.embedded import Embedded
from tests.helpers.places import ROOT


class User:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.facts: dict[str, Any] = {}

    def is_in(self) -> User:
        """Return when it has opened; its `url`, `pid`, `started_here` and `child` are known then."""
        assert self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline())
        return self

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def user(data_dir: Path, bin_dir: Path | None = None, uid: int = 0, *, fork: bool = False) -> Iterator[User]:
    words = [sys.executable, "-m", __name__, data_dir, bin_dir or "", str(uid), "fork" if fork else ""]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield User(process)
        finally:
            process.kill()


def forked(embedded: Embedded) -> int:
    closed, done = os.pipe()
    child = os.fork()
    if child == 0:
        for descriptor in [*embedded.descriptors(), sys.stdout.fileno()]:
            os.close(descriptor)
        os.write(done, b"!")
        signal.pause()
    os.read(closed, 1)
    return child


def main(data_dir: str, bin_dir: str, uid: str, fork: str) -> None:
    if int(uid):  # after the imports: that account may be unable to reach Python
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    embedded = Embedded(Path(data_dir), bin_dir=Path(bin_dir) if bin_dir else None)
    url = embedded.open()
    child = forked(embedded) if fork else -1
    facts = {"url": url, "pid": embedded.pid, "started_here": embedded.started_here, "child": child}
    print(json.dumps(facts), flush=True)
    sys.stdin.read()
    embedded.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
