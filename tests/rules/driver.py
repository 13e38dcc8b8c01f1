"""Drives the supervisor's machine by hand: events in, effects kept, time moved from one Tick to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from runtime.model.exits import Exit
from runtime.model.jobs import Lease, Settlement
from runtime.model.messages import Claimed, FromChild, Held, Limits, Ready, Renew, Renewals
from runtime.rules import fleet, supervisor
from runtime.rules.attempts import Glance, Remains
from runtime.rules.fleet import SCHEDULER, Effect, Event, State

T = TypeVar("T")
KIND = "nap"
LIMITS = Limits(timeout_s=60.0, retries=2, max_crashes=3)


def settings(**changes: object) -> fleet.Settings:
    given: dict[str, object] = {
        "node": "n1",
        "host": "h",
        "pid": 1,
        "version": "0",
        "workers": 2,
        "lease_s": 30.0,
        "renew_every_s": 10.0,
    }
    return fleet.Settings(**(given | changes))  # type: ignore[arg-type]


class Service:
    """A supervisor with its children, as far as the machine knows them."""

    def __init__(self, limits: Limits = LIMITS, now_s: float = 1000.0, **changes: object) -> None:
        self.now_s = now_s
        self.kinds = {KIND: limits}
        self.state: State = fleet.initial(settings(**changes))
        self.effects: list[Effect] = []
        self.starts: list[tuple[float, str]] = []
        self.boards: dict[str, Glance] = {}
        self.tokens: dict[str, tuple[int, ...]] = {}
        self.pids = 100
        self.renews = True  # the scheduler renews all that it is asked to

    # -- events

    def feed(self, event: Event) -> list[Effect]:
        """One event, and the answers to what it led to; the effects of all of them."""
        _, effects = supervisor.step(self.state, event, self.now_s)
        self.effects += effects
        for effect in tuple(effects):
            match effect:
                case fleet.Spawn(name):
                    self.pids += 1
                    self.starts.append((self.now_s, name))
                    effects += self.feed(fleet.Spawned(name, self.pids))
                case fleet.Look(name):
                    effects += self.feed(fleet.Looked(name, self.boards.get(name, Glance())))
                case fleet.Revoke(name):
                    effects += self.feed(fleet.Taken(name, self.tokens.pop(name, ())))
                case fleet.Say(message=Renew(sent_s=sent_s)) if self.renews:
                    effects += self.hear(SCHEDULER, Renewals(sent_s=sent_s, ok=True))
                case _:
                    pass
        return effects

    def begin(self) -> Service:
        """All children up."""
        self.feed(fleet.Begun())
        while waiting := [name for name, slot in self.state.slots.items() if slot.phase == "starting"]:
            for name in waiting:
                self.ready(name)
        return self

    def ready(self, name: str) -> list[Effect]:
        return self.hear(name, Ready(kinds={} if name == SCHEDULER else self.kinds))

    def hear(self, name: str, message: FromChild) -> list[Effect]:
        return self.feed(fleet.Heard(name, message))

    def claim(self, name: str, first: int, count: int = 1, *, begins: bool = True) -> list[Held]:
        """A worker claims jobs, and begins the first of them."""
        held = [
            Held(Lease(f"job-{name}-{number}", 1), KIND, 1, 0, 0) for number in range(first, first + count)
        ]
        self.tokens[name] = tuple(range(first + begins, first + count))
        self.boards[name] = Glance(first, self.now_s) if begins else Glance()
        self.hear(name, Claimed(first=first, sent_s=self.now_s, claims=tuple(held), full=False))
        return held

    def idle(self, name: str) -> None:
        self.boards[name] = Glance()
        self.hear(name, Claimed(first=1, sent_s=self.now_s, claims=()))

    def end(self, name: str, how: Exit | None = None, settlements: Sequence[Settlement] = ()) -> list[Effect]:
        """A child has ended, by SIGKILL unless `how` says otherwise."""
        remains = Remains(glance=self.boards.pop(name, Glance()), settlements=tuple(settlements))
        return self.feed(fleet.Exited(name, how or Exit(signal=9), remains, 0.5))

    def ask_stop(self) -> list[Effect]:
        return self.feed(fleet.Asked("stop"))

    # -- time

    def tick_until(self, moment_s: float) -> list[Effect]:
        """Let time pass, with a Tick whenever one is due."""
        effects: list[Effect] = []
        ticks = 0
        while (due_s := supervisor.next_at(self.state)) <= moment_s:
            ticks = ticks + 1 if due_s <= self.now_s else 0
            assert ticks < 10, f"due again and again at {due_s}"
            self.now_s = max(due_s, self.now_s)
            effects += self.feed(fleet.Tick())
        self.now_s = moment_s
        return effects + self.feed(fleet.Tick())

    # -- what came of it

    def said(self, effects: Sequence[Effect], name: str, kind: type[T]) -> list[T]:
        return [
            effect.message
            for effect in effects
            if isinstance(effect, fleet.Say) and effect.name == name and isinstance(effect.message, kind)
        ]

    def killed(self, effects: Sequence[Effect]) -> list[str]:
        return [effect.name for effect in effects if isinstance(effect, fleet.Kill)]

    def started(self, effects: Sequence[Effect]) -> list[str]:
        return [effect.name for effect in effects if isinstance(effect, fleet.Spawn)]

    def logged(self, effects: Sequence[Effect]) -> list[str]:
        return [effect.event for effect in effects if isinstance(effect, fleet.Log)]

    def codes(self, effects: Sequence[Effect]) -> list[int]:
        return [effect.code for effect in effects if isinstance(effect, fleet.Finish)]
