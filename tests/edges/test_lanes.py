"""Which lanes a claim walks, and from where."""

from __future__ import annotations

from datetime import UTC, datetime

from runtime.edges.lanes import KEPT, Lanes

DUE = datetime(2026, 1, 1, tzinfo=UTC)


def test_positions_outlive_a_look_that_finds_other_lanes() -> None:
    lanes = Lanes()
    lanes.rewind([(0, "a")])
    lanes.pass_by((0, "a"), (DUE, "1"))
    lanes.rewind([(0, "b")])
    assert lanes.walk(["*"]) == [((0, "b"), None)]
    lanes.rewind([])
    assert sorted(lanes.walk(["*"])) == [((0, "a"), (DUE, "1")), ((0, "b"), None)]
    lanes.rewind([(0, "a")])
    assert lanes.walk(["*"]) == [((0, "a"), None)]


def test_of_the_lanes_found_before_only_the_latest_are_remembered() -> None:
    lanes = Lanes()
    for number in range(100):
        lanes.rewind([(0, str(number))])
    lanes.rewind([])
    assert sorted(int(queue) for (_, queue), _ in lanes.walk(["*"])) == list(range(99 - KEPT, 100))
