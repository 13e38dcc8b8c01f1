"""Virtual time and chance: the one heap of what will happen, and the processes that it happens to.

A process does one thing at a time: each of its steps is an event that comes after a random while, so that
everything else may come between any two steps. A step has a name, at which an ambush may wait for a process.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Step = Callable[..., object]
EVENTS_MAX = 50_000  # a schedule has some thousand; more than this is somebody who spins


class World:
    """Time in seconds from 0, one source of chance, and what is yet to happen."""

    def __init__(self, seed: int, *, traced: bool) -> None:
        self.now_s = 0.0
        self.chance = random.Random(seed)
        self.random = self.chance.random  # asked for with every event
        self.events = 0
        self.faults: Counter[str] = Counter()
        self.trace: list[str] | None = [] if traced else None
        self.ambushes: dict[
            tuple[type[Process], str], Callable[[Process], None]
        ] = {}  # faults that wait at a step
        self._heap: list[tuple[float, int, Step, tuple[Any, ...]]] = []
        self._counter = itertools.count()
        self._pids = 1000

    def at(self, moment_s: float, step: Step, *args: object) -> None:
        heapq.heappush(self._heap, (moment_s, next(self._counter), step, args))

    def within(self, most_s: float, step: Step, *args: object) -> None:
        """Do it at a random moment of the next `most_s` seconds."""
        moment_s = self.now_s + most_s * self.random()
        heapq.heappush(self._heap, (moment_s, next(self._counter), step, args))

    def run(self, until_s: float, is_over: Callable[[], bool]) -> bool:
        """Let things happen until it is over, or until `until_s` or `EVENTS_MAX`; whether it is over."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_s and self.events < EVENTS_MAX:
            self.now_s, _, step, args = pop(heap)
            self.events += 1
            step(*args)
            if not self.events & 31 and is_over():
                return True
        return is_over()

    def new_pid(self) -> int:
        self._pids += 1
        return self._pids

    def say(self, who: str, what: str, about: object = "") -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_s:10.6f}  {who:<16} {what} {about}")


@dataclass(eq=False)
class Process:
    """Something that can die, be stopped and be continued in the middle of what it does."""

    world: World
    name: str
    alive: bool = True
    stopped: bool = False
    parked: list[tuple[str, Step, tuple[Any, ...]]] = field(default_factory=list)

    def after(self, most_s: float, name: str, step: Step, *args: object) -> None:
        """Take a step at a random moment of the next `most_s` seconds."""
        self.world.within(most_s, self._take, name, step, args)

    def _take(self, name: str, step: Step, args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.stopped:
            self.parked.append((name, step, args))
            return
        ambushes = self.world.ambushes
        if ambushes and (type(self), name) in ambushes:
            ambushes.pop((type(self), name))(self)
            self._take(name, step, args)
            return
        step(*args)

    def stop(self) -> None:
        if self.alive and not self.stopped:
            self.stopped = True
            self.world.say(self.name, "stopped")

    def go_on(self) -> None:
        """Continue; what was due meanwhile comes at once, deaths first and the rest in its order."""
        if self.alive and self.stopped:
            self.stopped = False
            self.world.say(self.name, "continued")
            parked, self.parked = self.parked, []
            late_s = self.world.now_s + 0.002 * self.world.chance.random()
            for name, step, args in sorted(parked, key=lambda one: one[0] != "reaped"):
                self.world.at(late_s, self._take, name, step, args)
