"""Which kinds kick which: the edges may form no cycle, since its kinds would run one another for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def cycle_through(kind: str, kicks: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """The shortest way along the kicks from a kind back to itself, with it at both ends; None: there is none."""
    came_from = {kind: kind}
    ways = [kind]
    for each in ways:  # which grows
        for target in kicks.get(each, ()):
            if target == kind:
                way = [each]
                while way[-1] != kind:
                    way.append(came_from[way[-1]])
                return (*reversed(way), kind)
            if target not in came_from:
                came_from[target] = each
                ways.append(target)
    return None
