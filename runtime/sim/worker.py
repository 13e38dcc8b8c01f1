"""A worker process as the real shell is: tokens, a board and a journal that outlive it, and its steps.

`PLANS` is what handlers do here, drawn anew for each attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from runtime.edges.lanes import Lanes
from runtime.model.exits import EXIT_FAILED, Exit, Progress
from runtime.model.jobs import Claim, Ending, Exchanged, Failure, Holder, Kick, Lease, Settlement, State, Want
from runtime.model.messages import FromWorker, Limits, Ready, ToWorker, Why
from runtime.rules import budgets, worker
from runtime.rules.attempts import Glance, Remains
from runtime.rules.batch import Pace
from runtime.rules.fleet import Settings
from runtime.sim.database import Database
from runtime.sim.history import Execution, History
from runtime.sim.world import Process, World

STEP_S = 0.0003  # between two steps of a shell
START_S = 0.1
REACTS_S = 0.2  # a handler that obeys a soft signal does so within this
KICKED = "plain"  # the kind that others kick
KICKS = 0.1  # how often an attempt of another kind kicks it
JOURNAL = 3  # outcomes that fit at most, here

MEGABYTE = 1024 * 1024
LIMITS = {
    "plain": Limits(
        timeout_s=1.5, retries=2, delay_first_s=0.1, delay_factor=2.0, delay_cap_s=1.0, jitter=0.5
    ),
    "watched": Limits(timeout_s=4.0, stall_s=0.4, retries=1, memory_bytes=64 * MEGABYTE),
    "fragile": Limits(timeout_s=1.0, retries=0, crash_retries=False),
    "quick": Limits(timeout_s=1.0, retries=1, delay_cap_s=0.0),
    "long": Limits(timeout_s=8.0, retries=5, delay_first_s=0.05, delay_cap_s=0.05, max_crashes=5),
}

Plan = Literal["succeed", "raise", "snooze", "crash", "overrun", "stall", "outgrow"]
PLANS: dict[Plan, int] = {
    "succeed": 70,
    "raise": 8,
    "snooze": 3,
    "crash": 4,
    "overrun": 3,
    "stall": 3,
    "outgrow": 2,
}  # and how often, of their sum


@dataclass(slots=True)
class Running:
    """The handler that runs now."""

    claim: Claim
    number: int
    run: Execution
    obeys: bool  # soft signals
    called: bool = False  # whether the handler is, which alone a soft signal may interrupt


class Worker(Process):
    """One incarnation of one worker."""

    def __init__(
        self,
        world: World,
        name: str,
        holder: Holder,
        settings: Settings,
        database: Database,
        history: History,
        *,
        recycle_jobs: int,
        batch: int,
    ) -> None:
        super().__init__(world, name)
        self.holder = holder
        self.database = database
        self.history = history
        self.state = worker.State(
            lease_s=settings.lease_s,
            recycle_jobs=recycle_jobs,
            pace=Pace(limit=batch or world.chance.choice((1, 4, 8))),  # as if it had run quick jobs before
        )
        self.batch = batch
        self.lanes = Lanes()
        self.inbox: deque[ToWorker] = deque()
        self.outbox: deque[FromWorker] = deque()  # in the pipe, complete
        self.readable: Callable[[], None] = lambda: None  # set by the node
        self.exited: Callable[[Exit], None] = lambda _: None
        self.start_s: float | None = START_S  # None: it cannot
        self.condemned = False  # its supervisor has sent it SIGKILL
        self.last: Execution | None = None  # what its death has ended
        self.tokens: deque[int] = deque()
        self.board = Glance()
        self.journal: list[Settlement] = []
        self.unsafe: Execution | None = None
        self.running: Running | None = None
        self.waiting = False
        self.waits = 0  # numbers the waits, so that the end of an old one ends no other

    # -- life and death

    @property
    def is_idle(self) -> bool:
        """It waits to be woken, and could be."""
        return (
            self.alive and not self.stopped and self.waiting and self.state.idle and not self.state.stopping
        )

    def hands(self) -> Iterator[Lease]:
        """What it has claimed and has begun, or may begin, and not yet settled."""
        if self.unsafe is not None:
            yield self.unsafe.lease
        if self.running is not None:
            yield self.running.run.lease
        yield from (outcome.lease for outcome in self.state.outcomes)
        for number, claim in enumerate(self.state.batch, self.state.number + 1):
            if number in self.tokens:
                yield claim.lease

    def start(self) -> None:
        if self.start_s is None:
            self.after(START_S, "set-up", self.die, Exit(code=EXIT_FAILED))
        else:
            self.after(self.start_s, "set-up", self._send, Ready(kinds=LIMITS), self._begin)

    def _begin(self) -> None:
        self._feed(worker.Begun())

    def die(self, how: Exit) -> None:
        if not self.alive:
            return
        self.alive = False
        self.world.say(self.name, "died", how)
        run = self.unsafe
        if self.running is not None:
            run = self.running.run
            if run.end_s is None:
                run.end_s = self.world.now_s
        if run is not None and not run.safe:
            run.death = "killed" if self.condemned else "crashed"
            self.last = run
        self.exited(how)

    def condemn(self) -> None:
        """Its supervisor sends SIGKILL; that it may be dead already is not known there yet."""
        self.condemned = True
        if self.last is not None:
            self.last.death = "killed"

    def remains(self) -> Remains:
        return Remains(glance=self.board, settlements=tuple(self.journal))

    # -- what it is told

    def tell(self, message: ToWorker) -> None:
        self.inbox.append(message)
        self.after(STEP_S, "told", self._hear)

    def _hear(self) -> None:
        if self.inbox and self.waiting:
            self.waiting = False
            self._feed(worker.Told(self.inbox.popleft()))

    def _wait_over(self, wait: int) -> None:
        if self.waiting and wait == self.waits:
            self.waiting = False
            self._feed(worker.Waited())

    def warn(self, number: int, why: Why) -> None:
        self.after(REACTS_S, "warned", self._obey, number, why)

    def _obey(self, number: int, why: Why) -> None:
        running = self.running
        if running is None or not running.called or not running.obeys or running.run.end_s is not None:
            return
        claim = running.claim
        if why == "stop" and running.number <= number:
            self._end(running, budgets.released(claim.lease))
        elif running.number != number:
            return
        elif why == "cancel":
            self._end(running, budgets.cancelled(claim.lease))
        else:
            ending = Ending.TIMED_OUT if why == "timeout" else Ending.STALLED
            self._fail(running, Failure("TimedOut"), ending)

    # -- its loop

    def _feed(self, event: worker.Event) -> None:
        said, action = worker.step(self.state, event, self.world.now_s)
        if not said:
            self._act(action)
            return
        [message] = said
        self.tokens.extend(range(message.first, message.first + len(message.claims)))
        self._send(message, lambda: self._act(action))

    def _send(self, message: FromWorker, then: Callable[[], None]) -> None:
        """Write to the pipe; who dies before the step is over has torn the frame."""
        self.after(STEP_S, "sent", self._sent, message, then)

    def _sent(self, message: FromWorker, then: Callable[[], None]) -> None:
        if not self.outbox:
            self.readable()
        self.outbox.append(message)
        then()

    def _act(self, action: worker.Action) -> None:
        match action:
            case worker.Run():
                self.after(STEP_S, "token", self._take_token, action)
            case worker.Exchange() | worker.Wait() if self.inbox:
                self._feed(worker.Told(self.inbox.popleft()))
            case worker.Exchange():
                self._exchange(action)
            case worker.Wait(seconds):
                self.waits += 1
                self.waiting = True
                if seconds is not None:
                    self.world.at(
                        self.world.now_s + seconds, self._take, "waited", self._wait_over, (self.waits,)
                    )
            case worker.Leave(code):
                self.after(STEP_S, "left", self.die, Exit(code=code))

    def _exchange(self, action: worker.Exchange) -> None:
        sent_s = self.world.now_s
        want = Want(
            holder=self.holder,
            limit=action.limit,
            lease_s=self.state.lease_s,
            kinds=tuple(LIMITS),
            queues=("*",),
            rewind=action.rewind,
        )

        def work() -> Exchanged:
            if not action.recover:
                return self.database.store.exchange_from(self.lanes, action.settlements, want)
            self.database.store.settle(action.settlements)
            self.database.store.abandon(self.holder)
            return Exchanged(kept=(), claims=())

        def answered(answer: Exchanged) -> None:
            self.journal.clear()
            if self.unsafe is not None:
                self.unsafe.safe = True
                self.unsafe = None
                self.board = Glance()
            if self.batch:
                self.state.jobs = 0  # it has learnt nothing from those that it ran
            if answer.claims:
                self.world.say(self.name, "claimed", [one.lease for one in answer.claims])
            self._feed(worker.Got(answer.claims, sent_s))

        self.after(STEP_S, "exchange" if action.limit else "settle", self._ask, work, answered)

    def _ask(self, work: Callable[[], Exchanged], answered: Callable[[Exchanged], None]) -> None:
        self.database.send(self, work, answered, lambda: self._feed(worker.Lost(self.world.chance.random())))

    def _take_token(self, action: worker.Run) -> None:
        while self.tokens and self.tokens[0] < action.number:
            self.tokens.popleft()  # of a batch that was dropped
        if not self.tokens:
            self._feed(worker.Revoked())
            return
        assert self.tokens.popleft() == action.number, "tokens come in order"
        self.after(STEP_S, "board", self._write_board, action)

    def _write_board(self, action: worker.Run) -> None:
        """From here on the attempt counts as begun, unless it turns out to be too late."""
        claim, now_s = action.claim, self.world.now_s
        self.board = Glance(number=action.number, started_s=now_s)
        run = Execution(claim.lease, claim.kind, self.holder.node, now_s)
        self.history.began(run)
        self.running = Running(claim, action.number, run, obeys=self.world.chance.random() < 0.6)
        self.after(STEP_S, "clock", self._check_clock, action, self.running)

    def _check_clock(self, action: worker.Run, running: Running) -> None:
        if self.world.now_s >= action.begin_by_s:
            self.history.did_not_begin(running.run)
            self.running = None
            self.board = Glance()
            self._feed(worker.TooLate())
        else:
            self._run(running)

    # -- handlers

    def _run(self, running: Running) -> None:
        chance = self.world.chance
        running.called = True
        [plan] = chance.choices(tuple(PLANS), tuple(PLANS.values()))
        self.world.say(self.name, "runs", (running.claim.lease, plan))
        kind = running.claim.kind
        if plan == "succeed" and (kind == "quick" or chance.random() < 0.5):
            self.after(0.006 if kind == "quick" else 0.03, "handler", self._finish, running, plan)
        elif plan in ("succeed", "raise", "snooze", "crash"):
            self._work(running, plan, chance.random() * (5.0 if kind == "long" else 1.2))
        elif plan == "stall":
            self.after(0.3, "handler", self._show_progress, running)
        elif plan == "outgrow":
            self.after(0.3, "handler", self._outgrow, running)

    def _work(self, running: Running, plan: Plan, left_s: float) -> None:
        """Go on for so many seconds, with progress now and then."""
        if running.run.end_s is not None:
            return
        if left_s <= 0.3:
            self.after(0.3, "handler", self._finish, running, plan)
            return
        self._show_progress(running)
        pause_s = max(0.4, left_s / 2)
        self.after(pause_s, "handler", self._work, running, plan, left_s - pause_s)

    def _show_progress(self, running: Running) -> None:
        if running.run.end_s is None:
            self.board = msgspec.structs.replace(
                self.board, progress_s=self.world.now_s, progress=Progress(done=1)
            )

    def _outgrow(self, running: Running) -> None:
        if running.run.end_s is None:
            running.run.outgrown = True
            self.board = msgspec.structs.replace(self.board, memory_bytes=100 * MEGABYTE)

    def _finish(self, running: Running, plan: Plan) -> None:
        if running.run.end_s is not None:
            return
        lease = running.claim.lease
        match plan:
            case "succeed":
                result = f'"{lease.id}:{lease.epoch}"'
                kicks = running.claim.kind != KICKED and self.world.chance.random() < KICKS
                self._end(
                    running,
                    Settlement(
                        lease=lease,
                        ending=Ending.DONE,
                        state=State.DONE,
                        result=result,
                        kicks=(Kick(kind=KICKED),) if kicks else (),
                    ),
                )
            case "raise":
                self._fail(running, Failure("ValueError"), None)
            case "snooze":
                delay_s = self.world.chance.random()
                self._end(
                    running,
                    Settlement(lease=lease, ending=Ending.SNOOZED, state=State.QUEUED, delay_s=delay_s),
                )
            case _:
                self.die(self.world.chance.choice((Exit(signal=11), Exit(code=0), Exit(code=1))))

    def _fail(self, running: Running, error: Failure, ending: Ending | None) -> None:
        claim = running.claim
        self._end(
            running,
            budgets.failed(
                claim.lease,
                claim.failures,
                LIMITS[claim.kind],
                self.world.chance.random(),
                error=error,
                ending=ending,
            ),
        )

    def _end(self, running: Running, settlement: Settlement) -> None:
        running.run.end_s = self.world.now_s
        running.run.outcome = settlement
        self.after(STEP_S, "journal", self._write_journal, running, settlement)

    def _write_journal(self, running: Running, settlement: Settlement) -> None:
        safe = len(self.journal) < JOURNAL and self.world.chance.random() > 0.15
        if safe:
            self.journal.append(settlement)
            running.run.safe = True
            self.after(STEP_S, "cleared", self._clear_board, running, settlement)
        else:  # the board goes on saying that it runs, without its limits, until the outcome is settled
            self.unsafe, self.running = running.run, None
            self.board = Glance(running.number, started_s=float("inf"))
            self._ran(running, settlement, safe=False)

    def _clear_board(self, running: Running, settlement: Settlement) -> None:
        self.board = Glance()
        self.running = None
        self._ran(running, settlement, safe=True)

    def _ran(self, running: Running, settlement: Settlement, *, safe: bool) -> None:
        took_s = self.world.now_s - running.run.start_s
        self._feed(worker.Ran(settlement, took_s, safe))
