"""A kind that comes back to itself along its kicks is found, with the way."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.rules.kicks import cycle_through

graphs = st.dictionaries(st.integers(0, 5).map(str), st.lists(st.integers(0, 5).map(str), max_size=3))


@pytest.mark.parametrize(
    ("kicks", "way"),
    [
        ({}, None),
        ({"a": ("b",), "b": ("c",)}, None),
        ({"a": ("b", "c"), "b": ("c",), "c": ()}, None),
        ({"a": ("a",)}, "a a"),
        ({"a": ("b",), "b": ("a",)}, "a b a"),
        ({"a": ("x", "b"), "b": ("c", "x"), "c": ("b", "a")}, "a b c a"),
        ({"a": ("b",), "b": ("c",), "c": ("b",)}, None),
    ],
    ids=repr,
)
def test_the_shortest_way_back_is_named(kicks: dict[str, tuple[str, ...]], way: str | None) -> None:
    assert cycle_through("a", kicks) == (None if way is None else tuple(way.split()))


@given(graphs)
def test_a_way_is_found_wherever_there_is_one(kicks: dict[str, list[str]]) -> None:
    reached = {(a, b) for a, targets in kicks.items() for b in targets}
    for _ in range(6):
        reached |= {(a, d) for a, b in reached for c, d in reached if b == c}
    for kind in kicks:
        way = cycle_through(kind, kicks)
        assert (way is not None) == ((kind, kind) in reached)
        if way is not None:
            assert way[0] == way[-1] == kind
            assert all(b in kicks[a] for a, b in itertools.pairwise(way))
