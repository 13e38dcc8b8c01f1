"""For tests of handlers and of what pushes them: a queue whose clock the test moves, and crashes on demand.

`LocalQueue` keeps its jobs in memory, or in any store, and runs them when the test says so: in the test's own process,
or each in a process of its own (`isolated=True`), where a handler may also crash, hang or be killed. One clock
counts for due times, retry waits and schedules; nothing here sleeps until something is due.

`crash_everywhere` runs a handler again and again, killing it at each point where it speaks to a database or to us.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Self

import msgspec
import psycopg
import structlog

from runtime.actors import ticking
from runtime.actors.attempt import Kicks, settle_attempt, writes_of
from runtime.actors.context import Context
from runtime.actors.surroundings import Output
from runtime.actors.worker import Runner
from runtime.config import Config, DatabaseConfig
from runtime.definition import Definition, Job
from runtime.edges import clock, processes, signals
from runtime.edges.board import Board
from runtime.edges.fence import Sessions
from runtime.edges.memory import MemoryStore
from runtime.edges.postgres import PostgresStore
from runtime.edges.processes import Child, Ends, Shared
from runtime.edges.store import Store
from runtime.model.exits import EXIT_OK, Certificate, Progress, Verdict
from runtime.model.jobs import (
    Claim,
    Counts,
    Ending,
    Holder,
    JobView,
    Missed,
    Overlap,
    ScheduleView,
    Settlement,
    State,
    Stats,
    Want,
)
from runtime.model.messages import FromChild, Held, Limits
from runtime.providers import Provided
from runtime.queue import (
    Queue,
    check_due,
    check_taken,
    new_job,
    new_jobs,
    new_schedule,
    push_now,
    push_one,
    result_of,
    stats_of,
)
from runtime.registry import DEFINED, Registry
from runtime.rules import budgets
from runtime.rules.attempts import Glance, Intent, Remains, settle_dead
from runtime.rules.schedule import Schedule
from runtime.rules.windows import Windows

DEFAULT_TIMEOUT_S = 60.0  # of kinds that set none, in isolated attempts
KILL_AFTER_S = 1.0
LEASE_S = 3600.0
POINTS_MAX = 10_000  # kill points of one handler


class LocalQueue:
    """A queue for one test. Its verbs are those of `runtime.Queue`; a handler that asks for a `Queue` is given this one.

    Args:
        now: where its clock stands, an aware time; None: the time when it is made. Only the test moves it.
        max_bytes: the size of all jobs together above which a push raises `QueueFull`; None: no bound.
        isolated: run each attempt in a process of its own, with its time and memory limits enforced. A
            handler there that asks for a `Queue` needs one of a database in `provided`.
        provided: values for what handlers ask for, by type, in place of their providers.
        store: where the jobs are; None: in memory. Its clock must be this queue's `clock`.
    """

    def __init__(
        self,
        now: datetime | None = None,
        *,
        max_bytes: int | None = None,
        isolated: bool = False,
        provided: Mapping[type, object] | None = None,
        store: Callable[[Callable[[], datetime]], Store] | None = None,
    ) -> None:
        self.now = _aware(now) if now is not None else datetime.now(UTC)
        self._store: Store = (
            store(self.clock) if store is not None else MemoryStore(self.clock, max_bytes=max_bytes)
        )
        self._isolated = isolated
        url = self._store.url if isinstance(self._store, PostgresStore) else ""
        config = Config(database=DatabaseConfig(url=url))
        self._provided = Provided(config, {**({} if isolated else {Queue: self}), **(provided or {})})
        self._sessions = Sessions(url, clock=self.clock)
        self._holder = Holder("local", 1, os.getpid())
        self._windows = Windows()

    def clock(self) -> datetime:
        """Where the clock stands."""
        return self.now

    def push(
        self,
        job: Job,
        *,
        unique: str | None = None,
        or_existing: bool = False,
        replace: bool = False,
        within: float | None = None,
        **options: Any,
    ) -> str | None:
        """As `Queue.push`, but for `conn`; a window (`within`) ends by this queue's clock.

        Raises:
            QueueFull: the jobs would have more bytes than `max_bytes`.
        """
        check_taken(unique, or_existing=or_existing, replace=replace, within=within)
        new = new_job(DEFINED.definition_of(job), job, unique=unique, **options)
        key, now_s = (new.kind, unique or ""), self.now.timestamp()
        if within is not None and not self._windows.enter(key, within, now_s):
            return None
        return push_one(self._store, new, or_existing=or_existing, replace=replace)

    def push_many(self, jobs: Iterable[Job]) -> list[str]:
        """As `Queue.push_many`, but for `conn`."""
        new = new_jobs(jobs)
        self._store.push_new(new)
        return [each.id for each in new]

    def kick(self, kind: str) -> None:
        """As `Queue.kick`, but for `conn`."""
        self._store.kick([DEFINED.kick_of(kind)])

    def cancel(self, id: str) -> bool:
        """Take a queued job out, or ask for the end of a running one; False: it is neither."""
        return self._store.cancel(id) is not None

    def retry(self, id: str) -> bool:
        """Queue a dead job again from attempt 1; False: it is not dead, or its unique key is taken."""
        return self._store.retry(id)

    def retry_all(self, kind: str) -> int:
        """`retry` for every dead job of a kind; how many were queued again."""
        return self._store.retry_all(kind)

    def reschedule(self, id: str, *, after: float | None = None, at: datetime | None = None) -> bool:
        """Let a queued job be due so many seconds from now, or at an aware time; False: it is not queued."""
        check_due(after, at)
        if after is None and at is None:
            raise ValueError("give after or at: when the job is to be due")
        return self._store.reschedule(id, at, 0.0 if after is None else float(after))

    def delete(self, id: str) -> bool:
        """Take out a job that is queued or has ended; False: it is running, or unknown."""
        return self._store.delete(id)

    def status(self, id: str) -> JobView | None:
        """One job whole, with all its attempts; None: unknown."""
        return self._store.status(id)

    def schedule(
        self,
        name: str,
        job: Job,
        when: Schedule,
        *,
        overlap: Overlap,
        missed: Missed,
        priority: int | None = None,
        queue: str | None = None,
    ) -> bool:
        """Run a job by this queue's clock from now on, as `Queue.schedule`; True: there was none of that name."""
        new = new_schedule(name, job, when, overlap=overlap, missed=missed, priority=priority, queue=queue)
        return self._store.schedule(msgspec.structs.replace(new, due=when.next(self.now)))

    def unschedule(self, name: str) -> bool:
        """Take a schedule out; what it has pushed stays. False: no such schedule."""
        return self._store.unschedule(name)

    def pause(self, name: str) -> bool:
        """Let a schedule push nothing until `resume`; False: no such schedule."""
        return self._store.pause(name)

    def resume(self, name: str) -> bool:
        """End a pause: what was missed in it is dropped or caught up, as the schedule says."""
        return self._store.pause(name, False)

    def schedules(self) -> list[ScheduleView]:
        """All schedules, by name."""
        return self._store.schedules()

    def run_now(self, name: str) -> str | None:
        """Push the job of a schedule now, its ticks aside; None: no such schedule, or its last run is on."""
        return push_now(self._store, name)

    def counts(self) -> Counts:
        """How many jobs are in each state, and for each queue and kind how many are queued and running."""
        return self._store.counts()

    def stats(self) -> Stats:
        """As `Queue.stats`; there is no node, so whatever is queued counts as unserved."""
        return stats_of(self._store)

    def result(self, id: str) -> Any:
        """What the handler returned, as JSON carries it, of the type that its `run` says it returns.

        Raises:
            AssertionError: the job is not done; the text says what it is, and what it failed with.
        """
        view = self._store.status(id)
        assert view is not None, f"no job {id}"
        last = view.attempts[-1] if view.attempts else None
        assert view.state is State.DONE, f"{view.kind} is {view.state}: {last}"
        return result_of(view)

    def seed(self) -> None:
        """Make the schedules that are declared with handlers, as a service does at its start: first due after now."""
        ticking.declare(self._store, DEFINED.schedules, DEFINED.kinds)

    def seed_at(self, now: datetime) -> None:
        """Move the clock to `now`, then `seed`."""
        self.now = _aware(now)
        self.seed()

    def run_one(self) -> JobView | None:
        """Run the most urgent job that is due, to the end of one attempt; None when none is due."""
        ticking.tick(self._store)
        self._store.start_kicked()
        want = Want(holder=self._holder, limit=1, lease_s=LEASE_S, kinds=DEFINED.kinds, queues=("*",))
        claims = self._store.claim(want)
        if not claims:
            return None
        [claim] = claims
        run = self._run_isolated if self._isolated else self._run_here
        settlement = run(claim)
        if settlement is not None:
            self._store.settle([settlement])
        return self._store.status(claim.lease.id)

    def run_one_at(self, now: datetime) -> JobView | None:
        """Move the clock to `now`, then `run_one`."""
        self.now = _aware(now)
        return self.run_one()

    def drain(self) -> int:
        """Run all that is due where the clock stands, and what that makes due; how many attempts it took."""
        for attempts in count():
            if self.run_one() is None:
                return attempts
        raise AssertionError

    def drain_at(self, now: datetime) -> int:
        """Move the clock to `now`, then `drain`."""
        self.now = _aware(now)
        return self.drain()

    def close(self) -> None:
        """End what providers have made."""
        self._provided.close()
        self._sessions.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_here(self, claim: Claim) -> Settlement | None:
        limits = _limits(claim)
        definition = DEFINED.get(claim.kind)
        writes = writes_of(claim, definition, self._sessions, _ignore)

        def call(job: Job, definition: Definition, kicks: Kicks) -> object:
            context = Context(
                id=claim.lease.id,
                kind=claim.kind,
                attempt=claim.attempt,
                due=claim.due,
                last=budgets.is_last(claim.failures, limits),
                deadline=None,
                epoch=claim.lease.epoch,
                note_progress=lambda progress: self._store.progress([(claim.lease, progress)]),
                why_ending=lambda: (
                    "cancel" if claim.lease in self._store.cancels(self._holder.node) else None
                ),
                kick=kicks.add,
                log=structlog.get_logger(),
                reach=DEFINED.get(claim.kind).reach,
                writes=writes,
            )
            with ExitStack() as attempt:
                return job.run(context, **self._provided.arguments(definition, claim.lease, attempt))

        try:
            return settle_attempt(claim, definition, limits, call, _never_overdue, _no_certificate, writes)
        finally:
            writes.end()
            self._sessions.reset()

    def _run_isolated(self, claim: Claim) -> Settlement | None:
        settlement, progress = attempt_apart(claim, self._provided, self._sessions)
        if progress is not None:
            self._store.progress([(claim.lease, progress)])
        return settlement


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"now must have a zone, got {moment!r}; write datetime(…, tzinfo=UTC)")
    return moment


def _limits(claim: Claim) -> Limits:
    return DEFINED.get(claim.kind).limits(DEFAULT_TIMEOUT_S)


def _never_overdue() -> Ending | None:
    return None


def _ignore(ending: bool) -> None:
    del ending


def _no_certificate(ending: Ending) -> Certificate:
    raise AssertionError(ending)


# -- in a process of its own


class _Apart(msgspec.Struct, frozen=True):
    """What the process of one attempt is told; it is forked, so nothing here is copied."""

    claim: Claim
    provided: Any
    sessions: Any
    hook: Callable[[], None] | None = None


def attempt_apart(
    claim: Claim, provided: Provided, sessions: Sessions, hook: Callable[[], None] | None = None
) -> tuple[Settlement | None, Progress | None]:
    """Run a claim in a forked process, under its limits; what came of it (None: it is settled), its last progress."""
    shared = Shared()
    log_fd = os.dup(2)
    child = processes.start(
        "attempt", _main, _Apart(claim, provided, sessions, hook), shared, FromChild, "fork", log_fd
    )
    os.close(log_fd)
    try:
        return _watch(claim, child, shared)
    finally:
        child.close()
        shared.close()


def _main(ends: Ends, spec: _Apart) -> int:
    kind = spec.claim.kind
    output = Output(ends)
    board = Board(ends.board.fd)
    limits = {kind: _limits(spec.claim)}
    handlers = Registry([DEFINED.get(kind)])
    runner = Runner(1, handlers, limits, spec.provided, spec.sessions, board, output, ends)
    if spec.hook is not None:
        spec.hook()
    runner.run(spec.claim, 1)
    spec.sessions.close()
    sys.stdout.flush()
    return EXIT_OK


def _watch(claim: Claim, child: Child, shared: Shared) -> tuple[Settlement | None, Progress | None]:
    """Wait for the end of an attempt, and enforce its limits as a supervisor does."""
    limits = _limits(claim)
    soft_at_s = clock.now_s() + limits.timeout_s
    hard_at_s = soft_at_s + KILL_AFTER_S
    intent: Intent | None = None
    output = bytearray()
    while True:
        wait_s = max((hard_at_s if intent else soft_at_s) - clock.now_s(), 0.0)
        ready, _, _ = select.select([child.sentinel, child.output_fd], [], [], min(wait_s, 0.25))
        if child.output_fd in ready:
            output += _read(child.output_fd)
            del output[: -64 * 1024]
        if child.sentinel in ready:
            break
        now_s = clock.now_s()
        if intent is None and now_s >= soft_at_s:
            intent = Intent(Verdict.TIMEOUT, 1, hard_at_s)
            processes.signal_runner(child, shared, signals.STACKS)
            shared.board.warn(1, "timeout")
            processes.signal_runner(child, shared, signals.SOFT)
        runner = processes.runner_of(child, shared)
        over = limits.memory_bytes and processes.resident_bytes(runner) > limits.memory_bytes
        if over and intent is None:
            intent = Intent(Verdict.MEMORY, 1, now_s)
            processes.send_signal(child, signal.SIGKILL)
        elif intent is not None and now_s >= hard_at_s:
            processes.send_signal(child, signal.SIGKILL)
    exit = None
    while exit is None:
        exit = processes.reap(child)
    while data := _read(child.output_fd):
        output += data
    os.write(1, output)
    shown = shared.board.read()
    if journal := shared.board.journal():
        return journal[0], shown.progress
    if exit.code == EXIT_OK and not shown.number:
        return None, shown.progress  # it ended the job in a transaction of its own
    glance = Glance(1, shown.started_ns / 1e9, shown.progressed_ns / 1e9, shown.progress)
    remains = Remains(
        glance=glance, output_tail=output[-64 * 1024 :].decode("utf-8", "replace"), stack=shared.stacks()
    )
    held = Held(claim.lease, claim.kind, claim.attempt, claim.failures, claim.crashes)
    return settle_dead(held, limits, intent, exit, remains, chance=0.0), shown.progress


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""


# -- crashes


def crash_everywhere(
    job: Job,
    check: Callable[[], object],
    *,
    reset: Callable[[], object] | None = None,
    provided: Mapping[type, object] | None = None,
    url: str = "",
) -> int:
    """Kill a handler at each point where it speaks, run it again to its end, and check what it left.

    A point is a moment before or after a round trip to a database by psycopg (statements and commits), and each
    report of progress. Each round begins with `reset`; then the handler is killed at its next point, run again as
    attempt 2 unless it had completed its job, and `check` is called, which raises (asserts) when the effects are
    not what they should be.

    Args:
        url: of a database of the test's own with Tenure's schema, for handlers that write by `ctx.transaction()`.

    Returns:
        How many points the handler has, which is how often it was killed.

    Raises:
        AssertionError: from `check`, with the number of the point in a note; or the run after it did not succeed.
    """
    definition = DEFINED.definition_of(job)
    config = Config(database=DatabaseConfig(url=url))
    store: Store = PostgresStore(url) if url else MemoryStore(lambda: datetime.now(UTC))
    with closing(store):
        for point in range(1, POINTS_MAX):
            if reset is not None:
                reset()
            store.push([new_job(definition, job)])
            ended = _run_once(store, definition.kind, Provided(config, provided or {}), point)
            if ended is None or ended.ending is not Ending.CRASHED:
                assert _is_done(store, ended), f"without a crash the handler failed: {ended}"
                check()
                return point - 1
            try:
                if store.settle([budgets.released(ended.lease)]) == [True]:
                    ended = _run_once(store, definition.kind, Provided(config, provided or {}), None)
                    assert _is_done(store, ended), f"the run after the crash failed: {ended}"
                check()
            except AssertionError as error:
                error.add_note(f"after a crash at point {point} of {definition.kind}")
                raise
    raise AssertionError(f"{definition.kind} has more than {POINTS_MAX} points")


def _run_once(store: Store, kind: str, provided: Provided, point: int | None) -> Settlement | None:
    """Claim the one job there is and run it, killed at a point; what came of it, None: it is settled."""
    holder = Holder("local", 1, os.getpid())
    [claim] = store.claim(Want(holder=holder, limit=1, lease_s=LEASE_S, kinds=(kind,), queues=("*",)))
    sessions = Sessions(store.url if isinstance(store, PostgresStore) else "")
    return attempt_apart(claim, provided, sessions, None if point is None else partial(die_at, point))[0]


def _is_done(store: Store, ended: Settlement | None) -> bool:
    """Whether a job is done, once what came of its attempt is settled."""
    return ended is None or (ended.ending is Ending.DONE and store.settle([ended]) == [True])


def die_at(point: int) -> None:
    """In the attempt's process: let it be killed at its `point`-th point."""
    passed = count(1)

    def pass_point() -> None:
        if next(passed) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    wait, progress = psycopg.Connection.wait, Context.progress

    def counted_wait(self: Any, *words: Any, **named: Any) -> Any:
        pass_point()
        answer = wait(self, *words, **named)
        pass_point()
        return answer

    def counted_progress(self: Context, *words: Any, **named: Any) -> None:
        pass_point()
        progress(self, *words, **named)

    psycopg.Connection.wait = counted_wait  # type: ignore[method-assign]
    Context.progress = counted_progress  # type: ignore[method-assign]
