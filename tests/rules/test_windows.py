"""A key is let through once a window, and no more than so many are remembered."""

from __future__ import annotations

import pytest

from runtime.rules import windows
from runtime.rules.windows import Windows

A, B, C = ("kind", "a"), ("kind", "b"), ("kind", "c")


def test_a_key_is_let_through_again_when_its_window_is_over() -> None:
    seen = Windows()
    assert [seen.enter(A, 10.0, now_s) for now_s in (0.0, 9.0, 10.0, 19.0, 20.0)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert seen.enter(("other", "a"), 10.0, 20.0)


def test_a_window_that_is_left_is_closed() -> None:
    seen = Windows()
    seen.enter(A, 10.0, 0.0)
    seen.leave(A)
    seen.leave(B)
    assert seen.enter(A, 10.0, 1.0)


def test_they_are_bounded_and_those_that_are_over_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "KEYS_MAX", 2)
    seen = Windows()
    seen.enter(A, 100.0, 0.0)
    seen.enter(B, 1.0, 0.0)
    assert seen.enter(C, 100.0, 5.0)
    assert not seen.enter(A, 100.0, 5.0), "B was over"
    assert seen.enter(B, 100.0, 6.0)
    assert len(seen) == 2
    assert seen.enter(A, 100.0, 6.0), "it was opened first"
