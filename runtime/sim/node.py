"""A node: the supervisor process as the real shell is, its children, and the service that starts it again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from runtime.model.exits import Exit
from runtime.model.jobs import Holder
from runtime.model.messages import Stop, ToChild, Wake
from runtime.rules import fleet, supervisor
from runtime.rules.attempts import Remains
from runtime.sim.database import Database
from runtime.sim.history import History, Violation
from runtime.sim.scheduler import Scheduler
from runtime.sim.worker import Worker
from runtime.sim.world import Process, World

READ_S = 0.001  # until the supervisor reads what has come
BUSY_S = 0.03  # the same, now and then
REAP_S = 0.002  # until it hears of a death
KILL_S = 0.004  # until a signal has ended a process
LATE_S = 0.002  # by how much a timer may be late
CATCH_UP_S = 0.05  # a supervisor that was late has done within this what it missed
ORPHANED_S = 1.0  # until the children of a dead supervisor are gone
TICKS_MAX = 2000  # of one supervisor in one virtual second


@dataclass(frozen=True, slots=True)
class Setup:
    """What the nodes of one run have in common."""

    workers: int
    lease_s: float
    renew_every_s: float
    fencing: bool
    recycle_jobs: int
    until_idle: bool
    batch: int  # workers claim always so many at once; 0: as their pace allows


class Supervisor(Process):
    """One incarnation of a node's supervisor, and the children that live and die with it."""

    def __init__(
        self,
        world: World,
        name: str,
        setup: Setup,
        database: Database,
        history: History,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(world, f"{name} supervisor")
        self.node = name
        self.setup = setup
        self.database = database
        self.history = history
        self.ended = ended
        self.children: dict[str, Worker | Scheduler] = {}
        self.bad_starts: list[float | None] = []  # how long the next workers take to start; None: they cannot
        self.settings = fleet.Settings(
            node=name,
            host=name,
            pid=world.new_pid(),
            version="0",
            workers=setup.workers,
            lease_s=setup.lease_s,
            renew_every_s=setup.renew_every_s,
            kill_after_s=0.3,
            ready_within_s=2.0,
            grace_s=3.0,
            until_idle=setup.until_idle,
            fencing=setup.fencing,
        )
        self.state = fleet.initial(self.settings)
        self.tick_at_s = float("inf")
        self.ticks: Counter[int] = Counter()
        self.late_since_s: float | None = None
        self.prompt_from_s = 0.0  # it was late before that; infinite while it is

    def start(self) -> None:
        self.after(0.01, "begun", self.feed, fleet.Begun())

    @property
    def workers(self) -> list[Worker]:
        return [child for child in self.children.values() if isinstance(child, Worker)]

    @property
    def scheduler(self) -> Scheduler | None:
        child = self.children.get(fleet.SCHEDULER)
        return child if isinstance(child, Scheduler) else None

    def processes(self) -> list[Process]:
        return [self, *self.children.values()]

    # -- how it is late

    def be_late(self) -> None:
        """Do nothing until `go_on`, while its children and the database go on."""
        if self.alive and not self.stopped:
            self.stop()
            self.late_since_s, self.prompt_from_s = self.world.now_s, float("inf")

    def go_on(self) -> None:
        """Continue; a late one with what it has missed: each child's messages in their order, all else in any."""
        if not self.alive or self.late_since_s is None:
            super().go_on()
            return
        self.prompt_from_s = self.world.now_s + CATCH_UP_S
        self.history.without_clock(self.node, self.late_since_s, self.prompt_from_s)
        self.late_since_s, self.stopped = None, False
        self.world.say(self.name, "is late")
        parked, self.parked = self.parked, []
        for name, step, args in parked:
            self.after(CATCH_UP_S, name, step, *args)

    # -- its loop

    def feed(self, event: fleet.Event) -> None:
        events = deque([event])
        while events and self.alive:
            self.state, effects = supervisor.step(self.state, events.popleft(), self.world.now_s)
            for effect in effects:
                answer = self._carry_out(effect)
                if answer is not None:
                    events.append(answer)
        if self.alive:
            self._set_timer()

    def _set_timer(self) -> None:
        due_s = max(supervisor.next_at(self.state), self.world.now_s)
        if due_s < self.tick_at_s:
            self.tick_at_s = due_s
            late_s = due_s + LATE_S * self.world.chance.random()
            if late_s < float("inf"):
                self.world.at(late_s, self._take, "tick", self._tick, (due_s,))

    def _tick(self, due_s: float) -> None:
        if due_s != self.tick_at_s:
            return  # an earlier one was set meanwhile
        self.tick_at_s = float("inf")
        second = int(self.world.now_s)
        self.ticks[second] += 1
        if self.ticks[second] > TICKS_MAX:
            raise Violation(f"{self.name} ticks without end at {self.world.now_s}")
        self.feed(fleet.Tick())

    def _carry_out(self, effect: fleet.Effect) -> fleet.Event | None:
        match effect:
            case fleet.Spawn(name):
                return self._spawn(name)
            case fleet.Say(name, message):
                self._say(name, message)
            case fleet.Kill(name):
                self._kill(name)
            case fleet.Look(name):
                child = self.children.get(name)
                return fleet.Looked(name, child.board) if isinstance(child, Worker) else None
            case fleet.Revoke(name):
                child = self.children.get(name)
                if isinstance(child, Worker):
                    numbers = tuple(child.tokens)
                    child.tokens.clear()
                    self.world.say(self.name, "revoked", (name, numbers))
                    return fleet.Taken(name, numbers)
            case fleet.Warn(name, number, why):
                child = self.children.get(name)
                if isinstance(child, Worker):
                    child.warn(number, why)
            case fleet.DumpStacks() | fleet.Hold():
                pass
            case fleet.Log(_, what, fields):
                self.world.say(self.name, what, fields)
            case fleet.Finish(code):
                self.world.say(self.name, "finished", code)
                self.die()
        return None

    def _say(self, name: str, message: ToChild) -> None:
        child = self.children.get(name)
        if isinstance(child, Worker):
            assert isinstance(message, Wake | Stop)
            child.tell(message)
        elif child is not None:
            assert not isinstance(message, Wake)
            child.tell(message)

    # -- children

    def _spawn(self, name: str) -> fleet.Event:
        assert name not in self.children, f"{name} is started beside itself"
        if self.world.chance.random() < 0.01 and not self.database.calm:
            self.world.faults["fork failed"] += 1
            return fleet.SpawnFailed(name, "no memory", self.world.chance.random())
        child: Worker | Scheduler
        if name == fleet.SCHEDULER:
            child = Scheduler(self.world, f"{self.node} {name}", self.settings, self.database)
            pid = self.world.new_pid()
        else:
            pid = self.world.new_pid()
            holder = Holder(self.node, int(name.partition(" ")[2]), pid)
            child = Worker(
                self.world,
                f"{self.node} {name}",
                holder,
                self.settings,
                self.database,
                self.history,
                recycle_jobs=self.setup.recycle_jobs,
                batch=self.setup.batch,
            )
            if self.bad_starts:
                child.start_s = self.bad_starts.pop()
        child.readable = lambda: self._read_soon(name, child)
        child.exited = lambda how: self.after(REAP_S, "reaped", self._reap, name, child, how)
        self.children[name] = child
        child.start()
        return fleet.Spawned(name, pid)

    def _read_soon(self, name: str, child: Worker | Scheduler) -> None:
        busy = self.world.chance.random() < 0.05
        self.after(BUSY_S if busy else READ_S, "read", self._read, name, child)

    def _read(self, name: str, child: Worker | Scheduler) -> None:
        """Hear what a child has said: all of it, or while catching up one message, then maybe another child."""
        while self.alive and child.outbox and self.children.get(name) is child:
            self.feed(fleet.Heard(name, child.outbox.popleft()))
            if child.outbox and self.world.now_s < self.prompt_from_s:
                self.after(
                    min(BUSY_S, self.prompt_from_s - self.world.now_s), "read", self._read, name, child
                )
                return

    def _reap(self, name: str, child: Worker | Scheduler, how: Exit) -> None:
        while self.alive and child.outbox:
            self.feed(fleet.Heard(name, child.outbox.popleft()))
        remains = child.remains() if isinstance(child, Worker) else Remains()
        if self.alive:
            if isinstance(child, Worker) and child.last is not None:
                child.last.known_s = self.world.now_s
            del self.children[name]
            self.feed(fleet.Exited(name, how, remains, self.world.chance.random()))

    def _kill(self, name: str) -> None:
        child = self.children.get(name)
        if isinstance(child, Worker):
            child.condemn()
            self.world.within(KILL_S, child.die, Exit(signal=9))
        elif child is not None:
            self.world.within(KILL_S, child.die, Exit(signal=9))

    def die(self) -> None:
        """Its process ends; its children follow within a second."""
        if not self.alive:
            return
        self.alive = False
        self.world.say(self.name, "died")
        last_s = self.world.now_s
        for child in self.children.values():
            gone_s = self.world.now_s + ORPHANED_S * self.world.chance.random()
            last_s = max(last_s, gone_s)
            self.world.at(gone_s, child.die, Exit(signal=9))
        self.history.without_clock(self.node, self.world.now_s, last_s)
        self.world.at(last_s, self.ended)


class Node:
    """A machine that runs the service and starts it again whenever it has ended."""

    def __init__(self, world: World, name: str, setup: Setup, database: Database, history: History) -> None:
        self.world = world
        self.name = name
        self.setup = setup
        self.database = database
        self.history = history
        self.lives = 0
        self.stopped_s: float | None = None
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.supervisor = Supervisor(
            self.world, f"{self.name}.{self.lives}", self.setup, self.database, self.history, self._ended
        )
        self.supervisor.start()

    def _ended(self) -> None:
        self.world.within(1.0, self._start_again)

    def _start_again(self) -> None:
        if self.stopped_s is None:
            self.start()
        else:
            self._ended()

    def stop(self) -> None:
        """Stop the whole machine, whose clocks go on."""
        if self.stopped_s is None:
            self.stopped_s = self.world.now_s
            for process in self.supervisor.processes():
                process.stop()

    def go_on(self) -> None:
        if self.stopped_s is not None:
            self.history.without_clock(self.supervisor.node, self.stopped_s, self.world.now_s)
            self.stopped_s = None
            for process in self.supervisor.processes():
                process.go_on()

    def ask(self, what: Literal["stop", "reload"]) -> None:
        """A signal to the service."""
        self.supervisor.after(READ_S, "signal", self.supervisor.feed, fleet.Asked(what))
