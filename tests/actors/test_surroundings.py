"""Goal: a job finds its process as the one before it did. Method: `Tidiness` alone; the rest is in tests/system."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from runtime.actors.surroundings import Tidiness
from runtime.edges import processes
from runtime.model.exits import Exit
from tests.helpers.forks import in_fork


def test_what_cannot_be_ended_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_nothing(known: Iterable[int], **_: Any) -> Exit:
        spared.append(set(known))
        return Exit()

    def restore_twice() -> list[bool]:
        tidiness = Tidiness(lambda *_: None)
        with subprocess.Popen(["sleep", "60"]) as left:
            tidiness.restore()
            tidiness.restore()
            left.kill()
        return [left.pid in known for known in spared]

    spared: list[set[int]] = []
    monkeypatch.setattr(processes, "end_strangers", end_nothing)
    assert in_fork(restore_twice) == [False, True]
