"""For tests of handlers and of what pushes them: a queue whose clock the test moves, and crashes on demand.

`LocalQueue` keeps its jobs in memory, or in any store, and runs them when the test says so: in the test's own process,
or each in a process of its own (`isolated=True`), where a handler may also crash, hang or be killed. One clock
counts for due times, retry waits and schedules; nothing here sleeps until something is due.

`run_job` runs one job in a process of its own, without a queue. `crash_everywhere` runs a handler again and again,
killing it at each point where it speaks to a database or to us.
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
from typing import Any, NamedTuple, Self

import msgspec
import psycopg
import structlog

from runtime.actors import ticking
from runtime.actors.attempt import Kicks, Redact, settle_attempt, writes_of
from runtime.actors.context import Context
from runtime.actors.surroundings import Output
from runtime.actors.worker import Runner
from runtime.config import Config, DatabaseConfig, LogConfig
from runtime.definition import Definition, Job
from runtime.edges import clock, log, processes, signals
from runtime.edges.board import Board
from runtime.edges.fence import Sessions
from runtime.edges.ids import new_id
from runtime.edges.memory import MemoryStore
from runtime.edges.postgres import PostgresStore
from runtime.edges.processes import Child, Ends, Shared
from runtime.edges.store import Store
from runtime.model.exits import EXIT_OK, OUTPUT_TAIL, Certificate, Exit, Progress, Verdict
from runtime.model.jobs import (
    Claim,
    Code,
    Counts,
    Ending,
    Failure,
    Holder,
    JobView,
    Lease,
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
from runtime.rules.attempts import (
    GENTLE,
    Batch,
    Bounds,
    Glance,
    Intent,
    Remains,
    ends_now,
    next_look_at_s,
    settle_dead,
    verdict,
)
from runtime.rules.schedule import Schedule
from runtime.rules.windows import Windows
from runtime.rules.worker import Ran

DEFAULT_TIMEOUT_S = 60.0  # of kinds that set none, in isolated attempts
KILL_AFTER_S = 1.0
LOOK_EVERY_S = 0.25  # at the progress of an attempt in a process of its own
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
        return push_one(self._store, new, or_existing=or_existing, replace=replace, known=id is not None)

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

    def status(self, id: str, *, payload: bool = True) -> JobView | None:
        """One job whole, with all its attempts, or without its payload; None: unknown."""
        return self._store.status(id, payload=payload)

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
        """How many jobs are in each state, and for each queue and kind how many are queued, running and kicked."""
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


class Show(NamedTuple):
    """Who hears at once what an attempt in a process of its own says; each may be called at any time until it ends."""

    output: Callable[[bytes], object]
    progress: Callable[[Progress], object]


class _Apart(msgspec.Struct, frozen=True):
    """What the process of one attempt is told; it is forked, so nothing here is copied."""

    claim: Claim
    limits: Limits
    provided: Any
    sessions: Any
    hook: Callable[[], None] | None = None
    log: LogConfig | None = None
    redact: Redact | None = None


def attempt_apart(
    claim: Claim,
    provided: Provided,
    sessions: Sessions,
    hook: Callable[[], None] | None = None,
    *,
    limits: Limits | None = None,
    kill_after_s: float = KILL_AFTER_S,
    show: Show | None = None,
    log_as: LogConfig | None = None,
    redact: Redact | None = None,
) -> tuple[Settlement | None, Progress | None]:
    """Run a claim in a forked process, under its limits; what came of it (None: it is settled), its last progress.

    Args:
        hook: is called in the process, before the handler.
        show: hears what is printed and how far it is; None: what is printed goes to standard output at the end.
        log_as: how log lines are written, to standard error; None: as the process of the caller does.
        redact: as of `settle_attempt`.
    """
    shared = Shared()
    log_fd = os.dup(2)
    limits = limits or _limits(claim)
    child = processes.start(
        "attempt",
        _main,
        _Apart(claim, limits, provided, sessions, hook, log_as, redact),
        shared,
        FromChild,
        "fork",
        log_fd,
    )
    os.close(log_fd)
    watch = _Watch(claim, limits, child, shared, kill_after_s, show)
    try:
        return watch.to_the_end()
    finally:
        watch.kill()
        child.close()
        shared.close()


def _main(ends: Ends, spec: _Apart) -> int:
    claim = spec.claim
    if spec.log is not None:
        log.setup(ends.log.fd, spec.log.level, spec.log.format, actor="attempt")
    output = Output(ends, marked=False)
    board = Board(ends.board.fd)
    handlers = Registry([DEFINED.get(claim.kind)])
    limits = {claim.kind: spec.limits}
    runner = Runner(1, handlers, limits, spec.provided, spec.sessions, board, output, ends, spec.redact)
    if spec.hook is not None:
        spec.hook()
    ran = runner.run(claim, 1)
    spec.sessions.close()
    sys.stdout.flush()
    if isinstance(ran, Ran) and not ran.safe:  # too large for the journal: the other pipe carries it
        with open(ends.write.fd, "wb", closefd=False) as pipe:
            pipe.write(msgspec.msgpack.encode(ran.settlement))
    return EXIT_OK


class _Watch:
    """Waits for the end of an attempt, and enforces its limits as a supervisor does."""

    def __init__(
        self,
        claim: Claim,
        limits: Limits,
        child: Child,
        shared: Shared,
        kill_after_s: float,
        show: Show | None,
    ) -> None:
        self._held = Held(claim.lease, claim.kind, claim.attempt, claim.failures, claim.crashes)
        self._limits = limits
        self._child = child
        self._shared = shared
        self._show = show
        self._began_s = clock.now_s()
        self._batch = Batch({1: self._held}, self._began_s, self._began_s, self._began_s)
        self._bounds = Bounds(lease_s=0.0, kill_after_s=kill_after_s, memory_bytes=None, fencing=False)
        self._intent: Intent | None = None
        self._exit: Exit | None = None
        self._output = bytearray()  # the last of it
        self._answer = bytearray()  # an outcome that the journal had no room for
        self._shown: Progress | None = None
        self._out_of_memory = processes.out_of_memory_count()

    def to_the_end(self) -> tuple[Settlement | None, Progress | None]:
        child = self._child
        watched = {child.sentinel, child.output_fd, child.pipe.read_fd}
        while True:
            ready, _, _ = select.select(watched, [], [], self._look())
            if child.output_fd in ready and not self._take_output():
                watched.discard(child.output_fd)
            if child.pipe.read_fd in ready and not self._take_answer():
                watched.discard(child.pipe.read_fd)
            if child.sentinel in ready and self._reap():
                break
        while self._take_output() or self._take_answer():
            pass
        self._tell_progress(self._glance())
        if self._show is None:
            os.write(1, self._output)
        return self._outcome(), self._shown

    def kill(self) -> None:
        """End the process, if it lives, with all that is in its group."""
        if self._exit is None:
            processes.send_signal(self._child, signal.SIGKILL)
            select.select([self._child.sentinel], [], [], KILL_AFTER_S)
            self._reap()

    def _look(self) -> float:
        """Judge the attempt as it stands, and do what follows; seconds until the next look."""
        glance, now_s = self._glance(), clock.now_s()
        self._tell_progress(glance)
        why = verdict(self._batch, glance, self._limits, self._bounds, now_s)
        if self._intent is None:
            if why is not None:
                self._intend(why, now_s)
        elif ends_now(self._intent, why, now_s):
            processes.send_signal(self._child, signal.SIGKILL)
        kinds = {self._held.kind: self._limits}
        at_s = next_look_at_s(self._batch, glance, self._intent, kinds, self._bounds, now_s)
        return min(max(at_s - now_s, 0.0), LOOK_EVERY_S)

    def _intend(self, why: Verdict, now_s: float) -> None:
        if why not in GENTLE:
            self._intent = Intent(why, 1, now_s)
            processes.send_signal(self._child, signal.SIGKILL)
            return
        self._intent = Intent(why, 1, now_s + self._bounds.kill_after_s)
        processes.signal_runner(self._child, self._shared, signals.STACKS)
        self._shared.board.warn(1, "timeout" if why is Verdict.TIMEOUT else "stall")
        processes.signal_runner(self._child, self._shared, signals.SOFT)

    def _glance(self) -> Glance:
        shown = self._shared.board.read()
        runner = processes.runner_of(self._child, self._shared)
        return Glance(
            number=1,
            started_s=shown.started_ns / 1e9 or self._began_s,
            progress_s=shown.progressed_ns / 1e9,
            progress=shown.progress,
            memory_bytes=processes.resident_bytes(runner) if self._limits.memory_bytes else 0,
            cpu_s=shown.cpu_ns / 1e9,
        )

    def _tell_progress(self, glance: Glance) -> None:
        if glance.progress != self._shown:
            self._shown = glance.progress
            if self._show is not None and self._shown is not None:
                self._show.progress(self._shown)

    def _take_output(self) -> bool:
        data = _read(self._child.output_fd)
        self._output += data
        del self._output[:-OUTPUT_TAIL]
        if data and self._show is not None:
            self._show.output(data)
        return bool(data)

    def _take_answer(self) -> bool:
        data = _read(self._child.pipe.read_fd)
        self._answer += data
        return bool(data)

    def _reap(self) -> bool:
        self._exit = processes.reap(self._child)
        return self._exit is not None

    def _outcome(self) -> Settlement | None:
        assert self._exit is not None
        if journal := self._shared.board.journal():
            return journal[0]
        if self._answer and self._exit.code == EXIT_OK:
            return msgspec.msgpack.decode(self._answer, type=Settlement)
        if self._exit.code == EXIT_OK and not self._shared.board.read().number:
            return None  # it ended the job in a transaction of its own
        struck = processes.out_of_memory_count() > self._out_of_memory
        remains = Remains(
            glance=self._glance(),
            output_tail=self._output.decode("utf-8", "replace"),
            stack=self._shared.stacks(),
            out_of_memory=self._exit.signal == signal.SIGKILL and struck,
        )
        return settle_dead(self._held, self._limits, self._intent, self._exit, remains, chance=0.0)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""


# -- one job


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one attempt."""

    id: str
    kind: str
    ending: Ending
    code: Code | None  # why it is not done; None: it is, or it was snoozed
    result: Any = None  # of the type that `run` says it returns
    error: Failure | None = None
    certificate: Certificate | None = None  # of a process that was killed or died
    progress: Progress | None = None  # the last that it reported
    seconds: float  # that it took

    @property
    def done(self) -> bool:
        """The handler has returned, and `result` is what it returned."""
        return self.ending is Ending.DONE


def run_job(job: Job, *, provided: Mapping[type, object] | None = None) -> Outcome:
    """Run a job now, one attempt without retries, in a process of its own under the limits of its kind.

    There is no queue and no database, and nothing of it is kept: what it left is in the answer.

    Args:
        provided: values for what the handler asks for, by type, in place of their providers.

    Raises:
        PayloadInvalid: the job is none that could be pushed, or the result is not what `run` says it returns.
    """
    definition = DEFINED.definition_of(job)
    claim = claim_of(definition, job)
    limits = once(definition.limits(DEFAULT_TIMEOUT_S))
    with closing(Provided(Config(), provided or {})) as values:
        began_s = clock.now_s()
        settlement, progress = attempt_apart(claim, values, Sessions(""), limits=limits)
    assert settlement is not None, "without a database it cannot have settled itself"
    outcome = outcome_of(claim, settlement, progress, clock.now_s() - began_s)
    if outcome.result is None:
        return outcome
    return msgspec.structs.replace(outcome, result=definition.decode_result(outcome.result))


def once(limits: Limits) -> Limits:
    """The same for a single attempt, which nothing follows."""
    return msgspec.structs.replace(limits, retries=0, crash_retries=False)


def claim_of(definition: Definition, job: Job) -> Claim:
    """A claim of a job that is in no store."""
    return Claim(
        lease=Lease(new_id(), 1),
        kind=definition.kind,
        queue=definition.queue,
        priority=definition.priority,
        due=datetime.now(UTC),
        attempt=1,
        failures=0,
        crashes=0,
        payload=definition.encode(job),
    )


def outcome_of(claim: Claim, settlement: Settlement, progress: Progress | None, seconds: float) -> Outcome:
    """The answer of a run, with the result as JSON."""
    result = settlement.result
    return Outcome(
        id=claim.lease.id,
        kind=claim.kind,
        ending=settlement.ending,
        code=settlement.code,
        result=None if result is None else msgspec.Raw(result.encode()),
        error=settlement.error,
        certificate=settlement.certificate,
        progress=progress,
        seconds=round(seconds, 6),
    )


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
