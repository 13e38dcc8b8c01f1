"""A database that is slow, goes away, and loses the reply of what it has committed.

The store behind it is the in-memory one. What a call does happens at one moment between its sending and its
reply. A client that dies in between may still have its statement carried out, as with any real server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from runtime.edges.lanes import Lanes
from runtime.edges.memory import MemoryStore, _Job
from runtime.model.jobs import SCHEDULE_PREFIX, Claim, Exchanged, Kick, Lease, NewJob, Settlement, State, Want
from runtime.rules.scheduler import CANCEL, KICK, LATER
from runtime.sim.history import History
from runtime.sim.world import Process, World

START = datetime(2030, 1, 1, tzinfo=UTC)
QUICK_S = 0.002  # most statements are committed and answered within this, each
SLOW_S = 1.5  # and a slow one within this
NOTIFY_S = 0.003


class SimStore(MemoryStore):
    """The in-memory store, which also writes down what it did and notifies of new work."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        history: History,
        notify: Callable[[str], None],
        *,
        check_epoch: bool,
    ) -> None:
        super().__init__(clock, check_epoch=check_epoch)
        self._history = history
        self._notify = notify
        self.live = 0  # jobs that have not ended
        self._queued: dict[str, datetime] = {}  # when each came back to the queue

    def push(self, jobs: Sequence[NewJob]) -> list[str | None]:
        self.live += len(jobs)
        for job in jobs:
            self._notify(LATER if job.delay_s else job.queue)
        return super().push(jobs)

    def kick(self, kicks: Sequence[Kick]) -> None:
        super().kick(kicks)
        for kick in kicks:
            self._history.kicked.append((kick.kind, (self._clock() - START).total_seconds()))
            self._notify(KICK)

    def start_kicked(self, limit: int = 10_000) -> int:
        known = set(self._jobs)
        taken_out = super().start_kicked(limit)
        for id in sorted(self._jobs.keys() - known):
            self.live += 1
            self._history.runs[id] = self._jobs[id].kind
            self._notify(self._jobs[id].queue)
        return taken_out

    @property
    def is_over(self) -> bool:
        """Nothing is left to be run."""
        return not self.live and not self._kicks

    def cancel(self, id: str) -> State | None:
        state = super().cancel(id)
        if state is not None:
            self._history.cancel_asked(id)
        if state is State.RUNNING:
            self._notify(CANCEL)
        return state

    def due_since(self) -> dict[str, float]:
        """Jobs that could be claimed, and since when, in virtual seconds."""
        now = self._clock()
        return {
            job.id: (max(job.due, self._queued.get(job.id, job.due)) - START).total_seconds()
            for job in self._jobs.values()
            if job.state is State.QUEUED and job.due <= now
        }

    def exchange_from(self, lanes: Lanes, settlements: Sequence[Settlement], want: Want) -> Exchanged:
        """As `exchange`, for one of many clients, each with positions of its own."""
        self._lanes = lanes
        return self.exchange(settlements, want)

    def give_back(self, leases: Sequence[Lease]) -> int:
        for lease in leases:
            job = self._current(lease)
            if job is not None:
                self._history.given_back(job.lease, lease)
        return super().give_back(leases)

    def _take(self, job: _Job, want: Want, now: datetime) -> Claim:
        claim = super()._take(job, want, now)
        self._history.claimed(claim.lease, want.holder)
        return claim

    def _settle(self, settlement: Settlement) -> bool:
        job = self._current(settlement.lease)
        if job is not None:
            self._history.settled(job.lease, settlement)
        return super()._settle(settlement)

    def _end(self, job: _Job, state: State) -> None:
        super()._end(job, state)
        self.live -= 1
        self._tell_kicks(job)

    def _queue(self, job: _Job, due: datetime) -> None:
        super()._queue(job, due)
        self._queued[job.id] = self._clock()
        self._notify(LATER if due > self._clock() else job.queue)
        self._tell_kicks(job)

    def _tell_kicks(self, job: _Job) -> None:
        if job.unique is not None and job.unique.startswith(SCHEDULE_PREFIX):
            self._notify(KICK)


class Database:
    """What processes send their statements to."""

    def __init__(self, world: World, history: History, *, check_epoch: bool) -> None:
        self.world = world
        self.store = SimStore(self._now, history, self._notify, check_epoch=check_epoch)
        self.listeners: dict[Process, Callable[[str], None]] = {}
        self.calm = False  # from now on nothing goes wrong here
        self._outages: dict[str, int] = {}  # by node: how many have begun
        self._away: dict[str, float] = {}  # by node: until when

    def _now(self) -> datetime:
        return START + timedelta(seconds=self.world.now_s)

    def _notify(self, word: str) -> None:
        for client, hear in list(self.listeners.items()):
            if not client.alive:
                del self.listeners[client]
            elif self.calm or self.world.chance.random() < 0.95:
                client.after(NOTIFY_S, "notified", hear, word)

    def go_away(self, nodes: Sequence[str], for_s: float) -> list[Process]:
        """Cut these nodes off; the clients that were listening from there."""
        for node in nodes:
            self._outages[node] = self._outages.get(node, 0) + 1
            self._away[node] = max(self.world.now_s + for_s, self._away.get(node, 0.0))
        cut = [client for client in self.listeners if client.name.partition(" ")[0] in nodes]
        for client in cut:
            del self.listeners[client]
        return cut

    def send(
        self,
        client: Process,
        work: Callable[[], Any],
        answered: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> None:
        world, node = self.world, client.name.partition(" ")[0]
        if world.now_s < self._away.get(node, 0.0):
            client.after(0.02, "refused", lost)
            return
        slow = not self.calm and world.chance.random() < 0.01
        outages = self._outages.get(node, 0)
        world.within(SLOW_S if slow else QUICK_S, self._commit, client, node, outages, work, answered, lost)

    def _commit(
        self,
        client: Process,
        node: str,
        outages: int,
        work: Callable[[], Any],
        answered: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> None:
        chance = self.world.chance
        torn = self._outages.get(node, 0) != outages or not client.alive
        if torn and (self.calm or chance.random() < 0.5):
            self.world.say(client.name, "statement not carried out")
            client.after(QUICK_S, "lost", lost)
            return
        answer = work()
        if torn or (not self.calm and chance.random() < 0.01):
            self.world.say(client.name, "reply lost", answer)
            self.world.faults["reply lost"] += 1
            client.after(QUICK_S, "lost", lost)
        else:
            client.after(QUICK_S, "replied", self._reply, node, outages, answer, answered, lost)

    def _reply(
        self,
        node: str,
        outages: int,
        answer: object,
        answered: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> None:
        if self._outages.get(node, 0) != outages:
            self.world.faults["reply lost"] += 1
            lost()
        else:
            answered(answer)
