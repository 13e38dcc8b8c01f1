"""Owns where a claim looks: which lanes, in which order, and from which position in each.

A lane is all queued jobs of one queue and priority, in (due, id) order. Jobs that have left a lane remain in
its index until the next vacuum, and a claim from the lane's head walks over all of them. So a claim goes on
from where the last one stopped, and only a rewinding one starts at the head, which also finds jobs that
came in behind the position and lanes that are new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

Lane = tuple[int, str]  # priority, queue
Position = tuple[datetime, str]  # due, id

KEPT = 16  # lanes remembered besides those that had something due at the last look


class Lanes:
    """The lanes that one store object knows, and how far its claims have come in each."""

    def __init__(self) -> None:
        self._positions: dict[Lane, Position | None] = {}  # those found last come first
        self._walked: list[Lane] = []
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._positions)

    def rewind(self, found: Iterable[Lane]) -> None:
        """Walk just these lanes from now on, each from its head; if there are none, all that were found lately.

        The next job most likely comes to a lane that had some before. While there is work, these are not walked:
        what others have claimed behind an old position may still be in the index.
        """
        heads: dict[Lane, Position | None] = dict.fromkeys(found)
        if heads:
            older = [one for one in self._positions.items() if one[0] not in heads]
            self._positions = heads | dict(older[:KEPT])
        self._walked = sorted(heads or self._positions)

    def walk(self, queues: Sequence[str]) -> list[tuple[Lane, Position | None]]:
        """The lanes of these queues (`["*"]`: all), most urgent first; None as position: the head.

        Queues of one priority come in rotation: each walk lets the next one go first.
        """
        everything = "*" in queues
        served: dict[int, list[Lane]] = {}
        for lane in self._walked:
            if everything or lane[1] in queues:
                served.setdefault(lane[0], []).append(lane)
        self._turn += 1
        rotated: list[Lane] = []
        for lanes in served.values():
            first = self._turn % len(lanes)
            rotated += lanes[first:] + lanes[:first]
        return [(lane, self._positions[lane]) for lane in rotated]

    def pass_by(self, lane: Lane, position: Position) -> None:
        """A claim has taken the job at this position; the next one goes on behind it."""
        last = self._positions[lane]
        if last is None or position > last:
            self._positions[lane] = position
