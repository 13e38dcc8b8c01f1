"""A scheduler process as the real shell is: one statement after the other, and one place to wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from runtime.actors import ticking
from runtime.model.exits import Exit
from runtime.model.messages import FromScheduler, Progressed, Ready, Record, Renew, Report, ToScheduler
from runtime.rules import scheduler
from runtime.rules.fleet import Settings
from runtime.sim.database import Database
from runtime.sim.world import Process, World

STEP_S = 0.0003
START_S = 0.05


class Scheduler(Process):
    """One incarnation of the scheduler."""

    def __init__(self, world: World, name: str, settings: Settings, database: Database) -> None:
        super().__init__(world, name)
        self.settings = settings
        self.database = database
        self.state = scheduler.State(("*",), reclaim_every_s=settings.renew_every_s)
        self.inbox: deque[ToScheduler] = deque()
        self.outbox: deque[FromScheduler] = deque()
        self.words: dict[str, None] = {}
        self.readable: Callable[[], None] = lambda: None  # set by the node
        self.exited: Callable[[Exit], None] = lambda _: None
        self.waits = 0
        self.waiting = False

    def start(self) -> None:
        self.after(START_S, "set-up", self._send, [Ready()], self._begin)

    def _begin(self) -> None:
        self._feed(scheduler.Begun())

    def die(self, how: Exit) -> None:
        if self.alive:
            self.alive = False
            self.world.say(self.name, "died", how)
            self.exited(how)

    # -- what it is told

    def tell(self, message: ToScheduler) -> None:
        self.inbox.append(message)
        self.after(STEP_S, "told", self._wake_up)

    def hear(self, word: str) -> None:
        self.words[word] = None
        self._wake_up()

    def lose_connection(self) -> None:
        """The database went away while it waits for it."""
        self.after(0.01, "cut", self._cut)

    def _cut(self) -> None:
        if self.waiting:
            self._stop_waiting(scheduler.Lost(self.world.chance.random()))

    def _wake_up(self) -> None:
        if not self.waiting:
            return
        if self.inbox:
            self._stop_waiting(scheduler.Told(self.inbox.popleft()))
        elif self.words:
            words, self.words = tuple(self.words), {}
            self._stop_waiting(scheduler.Notified(words))

    def _wait_over(self, wait: int) -> None:
        if self.waiting and wait == self.waits:
            self._stop_waiting(scheduler.Waited())

    def _stop_waiting(self, event: scheduler.Event) -> None:
        self.waiting = False
        self._feed(event)

    # -- its loop

    def _feed(self, event: scheduler.Event) -> None:
        said, action = scheduler.step(self.state, event, self.world.now_s)
        if said:
            self._send(said, lambda: self._act(action))
        else:
            self._act(action)

    def _send(self, messages: list[Any], then: Callable[[], None]) -> None:
        self.after(STEP_S, "sent", self._sent, messages, then)

    def _sent(self, messages: list[Any], then: Callable[[], None]) -> None:
        if not self.outbox:
            self.readable()
        self.outbox.extend(messages)
        then()

    def _act(self, action: scheduler.Action) -> None:
        match action:
            case scheduler.Do() | scheduler.Wait() if self.inbox:
                self._feed(scheduler.Told(self.inbox.popleft()))
            case scheduler.Wait() if self.words:
                words, self.words = tuple(self.words), {}
                self._feed(scheduler.Notified(words))
            case scheduler.Do(call):
                self._do(call)
            case scheduler.Wait(seconds):
                self.waits += 1
                self.waiting = True
                self.world.at(
                    self.world.now_s + seconds, self._take, "waited", self._wait_over, (self.waits,)
                )
            case scheduler.Leave(code):
                self.after(STEP_S, "left", self.die, Exit(code=code))

    def _do(self, call: scheduler.Call) -> None:
        self.database.send(
            self,
            lambda: self._carry_out(call),
            lambda answer: self._feed(scheduler.Answered(answer)),
            lambda: self._feed(scheduler.Lost(self.world.chance.random())),
        )

    def _carry_out(self, call: scheduler.Call) -> scheduler.Answer:
        store = self.database.store
        match call:
            case scheduler.Listen():
                self.database.listeners[self] = self.hear
            case scheduler.CatchUp():
                return True
            case Renew(leases=leases):
                return store.renew(leases, self.settings.lease_s)
            case Record():
                record(store, call)
            case scheduler.Look():
                return store.outlook(("*",))
            case scheduler.Reclaim(limit):
                return len(store.reclaim(limit))
            case scheduler.Tick():
                return ticking.tick(store)
            case scheduler.StartKicked(limit):
                return store.start_kicked(limit)
            case scheduler.Cancels():
                return store.cancels(self.settings.node)
            case scheduler.Left(kinds):
                return store.pending(kinds, ("*",))
            case Progressed(entries=entries):
                store.progress(entries)
            case Report(node=node):
                store.report(node)
            case scheduler.Forget():
                store.forget(self.settings.node)
            case scheduler.Prune():
                pass  # nothing is old enough here
        return None


def record(store: Any, facts: Record) -> None:
    """Carry out what a supervisor attests, in its order."""
    store.settle(facts.settlements)
    store.give_back(facts.unstarted)
    if facts.dead is not None:
        store.abandon(facts.dead)
