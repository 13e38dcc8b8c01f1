"""The worker actor: claims leases, runs handlers in its main thread, and settles what came of it.

One loop: take an event to the worker's rules, do the one thing they answer. `attempt.py` makes a settlement of
what a handler does, `surroundings.py` puts right what it changed in its process.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import FrameType

import msgspec
import psycopg
import structlog
from setproctitle import setproctitle

from runtime import registry
from runtime.actors.attempt import Kicks, Redact, log_dropped, settle_attempt, writes_of
from runtime.actors.context import Context
from runtime.actors.surroundings import Output, Tidiness
from runtime.config import Config
from runtime.definition import Definition, Job
from runtime.edges import clock, log, processes, signals
from runtime.edges.apart import run_apart
from runtime.edges.board import NEVER_NS, Board
from runtime.edges.confinement import confine
from runtime.edges.fence import Sessions, Writes, attempt_connection
from runtime.edges.pipe import Pipe, Tokens
from runtime.edges.postgres import PostgresStore
from runtime.edges.processes import Ends
from runtime.edges.store import Store
from runtime.errors import BadFrame, ConfigError, SchemaOutdated, StoreUnavailable, TimedOut
from runtime.model.exits import EXIT_FAILED, Certificate, Progress, Verdict
from runtime.model.jobs import Claim, Ending, Holder, Settlement, Want
from runtime.model.messages import Limits, Ready, Stop, ToWorker, Unready, Wake
from runtime.providers import Provided, provide_each_attempt, unservable
from runtime.registry import Registry
from runtime.rules import budgets
from runtime.rules import worker as rules

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_RECYCLE_CHECK_S = 0.5
NEVER_S = NEVER_NS / 1e9


provide_each_attempt(
    psycopg.Connection,
    lambda config, lease: attempt_connection(config.database.url, lease),
    of_database=True,
)
_ANYWHERE = nullcontext()
_encode_settlement = msgspec.msgpack.Encoder().encode
_decode_settlement = msgspec.msgpack.Decoder(Settlement | None).decode


def load_handlers(config: Config) -> tuple[Registry, dict[str, str]]:
    """The kinds that a worker runs, and why it cannot run the others: by module, or by "kind KIND"."""
    sys.path[:0] = [path for path in registry.search_path(config.path) if path not in sys.path]
    handlers, broken = registry.load(config.service.handlers)
    lacking = unservable(handlers.definitions, config.service.sandbox)
    broken |= {f"kind {kind}": problem for kind, problem in lacking.items()}
    return handlers.without_kinds(lacking), broken


class Spec(msgspec.Struct, frozen=True):
    """What a worker is told when it is made."""

    config: Config
    url: str
    node: str
    number: int


class Outside(msgspec.Struct):
    """What a worker touches: its pipe, its board, its database."""

    pipe: Pipe[Wake | Stop]
    tokens: Tokens
    board: Board
    store: Store
    holder: Holder


def main(ends: Ends, spec: Spec) -> int:
    """Run jobs until told to stop. Returns the exit code."""
    name = f"worker {spec.number}"
    log.setup(ends.log.fd, spec.config.log.level, spec.config.log.format, actor=name)
    setproctitle(f"tenure: {name} starting")
    pipe: Pipe[Wake | Stop] = Pipe(ends.read.fd, ends.write.fd, ToWorker)
    output = Output(ends)
    for variable in _THREADS:
        os.environ.setdefault(variable, str(spec.config.thread_count))
    faulthandler.enable(file=ends.stacks.fd)  # also for what dies while it is imported
    handlers, broken = load_handlers(spec.config)
    try:
        redact = registry.hook("service.redact", spec.config.service.redact)
    except ConfigError as error:  # without it, nothing that a handler raises may be stored
        pipe.send_and_wait(Unready(reason=str(error)))
        return EXIT_FAILED
    store = PostgresStore(
        spec.url,
        application_name=f"tenure {name}",
        connect_timeout_s=spec.config.database.connect_timeout,
        kept=spec.config.kept,
    )
    try:
        store.check()
    except SchemaOutdated as error:
        pipe.send_and_wait(Unready(reason=str(error)))
        return EXIT_FAILED
    except StoreUnavailable:
        pass  # the first exchange waits for it
    limits = {kind: handlers.get(kind).limits(spec.config.worker.timeout) for kind in handlers.kinds}
    outside = Outside(
        pipe,
        Tokens(ends.tokens_read.fd, ends.tokens_write.fd),
        Board(ends.board.fd),
        store,
        Holder(spec.node, spec.number, os.getpid()),
    )
    database = msgspec.structs.replace(spec.config.database, url=spec.url)
    provided = Provided(msgspec.structs.replace(spec.config, database=database))
    sessions = Sessions(spec.url)
    runner = Runner(spec.number, handlers, limits, provided, sessions, outside.board, output, ends, redact)
    gc.freeze()  # what handlers import stays, too: no collection has to walk over it
    pipe.send_and_wait(Ready(kinds=limits, broken=broken, schedules=handlers.schedules))
    try:
        return _loop(spec, outside, runner)
    finally:
        provided.close()
        sessions.close()


def _loop(spec: Spec, outside: Outside, runner: Runner) -> int:
    config = spec.config
    state = rules.State(lease_s=config.lease.duration, recycle_jobs=config.worker.recycle_jobs)
    event: rules.Event = rules.Begun()
    looked_s = clock.now_s()
    setproctitle(f"tenure: worker {spec.number} idle")
    while True:
        said, action = rules.step(state, event, clock.now_s())
        for message in said:
            outside.tokens.put(message.first, len(message.claims))
            outside.pipe.send_and_wait(message)
        match action:
            case rules.Run(claim, number, begin_by_s, lost_at_s):
                event = rules.Revoked()
                if outside.tokens.take(number):
                    event = runner.run(claim, number, begin_by_s, lost_at_s)
            case rules.Exchange():
                heard = outside.pipe.receive()
                for order in heard:
                    rules.hear(state, order)
                if heard:
                    event = rules.Waited()  # with these words, is an exchange still what is to be done?
                    continue
                limit_bytes = config.worker.recycle_memory
                if limit_bytes and clock.now_s() - looked_s > _RECYCLE_CHECK_S:
                    looked_s = clock.now_s()
                    state.recycle = processes.resident_bytes(os.getpid()) > limit_bytes
                event = _exchange(spec, outside, runner, action)
            case rules.Wait(seconds):
                setproctitle(f"tenure: worker {spec.number} idle")
                ready, _, _ = select.select([outside.pipe.read_fd], [], [], seconds)
                for order in outside.pipe.receive() if ready else ():
                    rules.hear(state, order)
                event = rules.Waited()
            case rules.Leave(code):
                outside.store.close()
                return code


def _exchange(spec: Spec, outside: Outside, runner: Runner, action: rules.Exchange) -> rules.Event:
    """Settle and claim in one round trip."""
    want = None
    if action.limit:
        want = Want(
            holder=outside.holder,
            limit=action.limit,
            lease_s=spec.config.lease.duration,
            kinds=runner.kinds,
            queues=spec.config.service.queues,
            rewind=action.rewind,
        )
    sent_s = clock.now_s()
    try:
        exchanged = outside.store.exchange(action.settlements, want)
        if action.recover:
            outside.store.abandon(outside.holder)
    except StoreUnavailable as error:
        log.event("warning", "store.unavailable", reason=str(error))
        return rules.Lost(random.random())
    outside.board.clear_journal()
    outside.board.end()
    log_dropped("warning", action.settlements, exchanged.kept)
    return rules.Got(exchanged.claims, sent_s)


class Runner:
    """Runs one job after the other in the main thread."""

    def __init__(
        self,
        worker: int,
        handlers: Registry,
        limits: dict[str, Limits],
        provided: Provided,
        sessions: Sessions,
        board: Board,
        output: Output,
        ends: Ends,
        redact: Redact | None = None,
    ) -> None:
        self._worker = worker
        self._pid = os.getpid()
        self.kinds = handlers.kinds
        self._handlers = handlers
        self._limits = limits
        self._provided = provided
        self._sessions = sessions
        self._board = board
        self._output = output
        self._stacks_fd = ends.stacks.fd
        self._kept = (ends.output.fd, ends.stacks.fd, ends.log.fd)  # by a fork in which an attempt runs
        self._redact = redact
        self._log = structlog.get_logger()
        self._number = 0  # of the claim whose handler may be interrupted now
        self._cpu_ns = 0  # of this process when the job began
        self._lost_at_ns = 0  # the end of its lease when it began
        self._tidiness = Tidiness(self._on_soft_signal)
        self._listen()

    def _listen(self) -> None:
        """Heed the signals that end an attempt or ask where it is."""
        signal.signal(signals.SOFT, self._on_soft_signal)
        faulthandler.enable(file=self._stacks_fd)
        faulthandler.unregister(signals.STACKS)  # a fork knows of it, and does not have it
        faulthandler.register(signals.STACKS, file=self._stacks_fd, all_threads=True)

    def run(
        self, claim: Claim, number: int, begin_by_s: float = NEVER_S, lost_at_s: float = NEVER_S
    ) -> rules.Ran | rules.TooLate:
        """Run one claim from its first to its last line, with its outcome in the journal.

        The clock is read when the board says that it runs: a process that was stopped in between does not begin.
        Where the journal has no room for the outcome, the board keeps the claim, as one that began long after now,
        until the exchange that settles it: a death before that is still this job's.
        """
        setproctitle(f"tenure: worker {self._worker} {claim.kind} {claim.lease.id}")
        began_ns = clock.now_ns()
        self._cpu_ns = processes.cpu_ns()
        self._board.begin(number, began_ns, self._cpu_ns)
        if clock.now_s() >= begin_by_s:
            self._board.end()
            return rules.TooLate()
        self._lost_at_ns = int(lost_at_s * 1e9)
        confined = self._handlers.get(claim.kind).reach.is_confined
        settlement = (self._confined_attempt if confined else self._attempt)(claim, number)
        self._output.end(number)
        safe = settlement is None or self._board.note(settlement)
        self._sessions.reset()
        self._tidiness.restore()
        if safe:
            self._board.end()
        else:
            self._board.linger()
        return rules.Ran(settlement, (clock.now_ns() - began_ns) / 1e9, safe)

    def _attempt(
        self, claim: Claim, number: int, within: AbstractContextManager[None] = _ANYWHERE
    ) -> Settlement | None:
        definition = self._handlers.get(claim.kind)
        writes = writes_of(
            claim, definition, self._sessions, lambda ends: self._board.settle(number if ends else 0)
        )

        def call(job: Job, definition: Definition, kicks: Kicks) -> object:
            with within:
                return self._call_handler(claim, number, job, definition, kicks, writes)

        return settle_attempt(
            claim,
            definition,
            self._limits[claim.kind],
            call,
            lambda: self._overdue(number),
            self._certify,
            writes,
            self._redact,
        )

    def _confined_attempt(self, claim: Claim, number: int) -> Settlement | None:
        """The attempt in a fork, which can never have back what it gives up for the kind."""
        self._output.expect()
        work = partial(self._attempt_apart, claim, number)
        settlement = _decode_settlement(run_apart(self._board, self._kept, self._listen, work))
        if settlement is not None and settlement.lease != claim.lease:
            raise BadFrame(f"the attempt of {claim.lease.id} settled {settlement.lease.id}")
        return settlement

    def _attempt_apart(self, claim: Claim, number: int) -> bytes:
        """In the fork: the same attempt, with values of its own for what the handler asks for."""
        setproctitle(f"tenure: attempt of worker {self._worker} {claim.kind} {claim.lease.id}")
        self._pid, self._cpu_ns = os.getpid(), processes.cpu_ns()
        self._sessions = self._sessions.anew()
        return _encode_settlement(self._attempt(claim, number, self._confined(claim.kind)))

    @contextmanager
    def _confined(self, kind: str) -> Iterator[None]:
        """Be held to what a kind declares, from now on for good; what it is provided with ends with the attempt."""
        reach, url = self._handlers.get(kind).reach, self._provided.config.database.url
        self._provided = self._provided.anew(database=reach.database)
        confine(kind, reach, url)
        try:
            yield
        finally:
            self._sessions.close()
            self._provided.close()

    def _call_handler(
        self, claim: Claim, number: int, job: Job, definition: Definition, kicks: Kicks, writes: Writes
    ) -> object:
        """Run the handler; while it runs, and only then, the soft signal may interrupt it."""
        context = self._context(claim, number, self._limits[claim.kind], kicks, writes)
        try:
            if not definition.needs:
                self._number = number
                return job.run(context)
            with ExitStack() as attempt:
                arguments = self._provided.arguments(definition, claim.lease, attempt)
                self._number = number
                result = job.run(context, **arguments)
                self._number = 0
                return result
        finally:
            self._number = 0
            writes.end()
            if os.getpid() != self._pid:
                os._exit(EXIT_FAILED)  # a fork of the handler's that came out of it: there is one worker

    def _context(self, claim: Claim, number: int, limits: Limits, kicks: Kicks, writes: Writes) -> Context:
        return Context(
            id=claim.lease.id,
            kind=claim.kind,
            attempt=claim.attempt,
            due=claim.due,
            last=budgets.is_last(claim.failures, limits),
            deadline=time.monotonic() + limits.timeout_s,
            epoch=claim.lease.epoch,
            note_progress=self._note_progress,
            why_ending=lambda: self._board.why_ending(number, clock.now_ns(), self._lost_at_ns),
            kick=kicks.add,
            log=self._log,
            reach=self._handlers.get(claim.kind).reach,
            writes=writes,
        )

    def _overdue(self, number: int) -> Ending | None:
        """How the attempt has ended already, in the supervisor's eyes."""
        if self._board.is_timed_out(number):
            return Ending.TIMED_OUT
        return Ending.STALLED if self._board.is_stalled(number) else None

    def _certify(self, ending: Ending) -> Certificate:
        """The certificate of a handler that heeded the soft signal: where it was is known from the stacks."""
        stacks = processes.read_stacks(self._stacks_fd)
        processes.clear_stacks(self._stacks_fd)
        return Certificate(
            verdict=Verdict.TIMEOUT if ending is Ending.TIMED_OUT else Verdict.STALLED,
            signal=None,
            exit_code=None,
            cpu_seconds=(processes.cpu_ns() - self._cpu_ns) / 1e9,
            peak_memory_bytes=processes.peak_memory_bytes(),
            last_progress=self._board.read().progress,
            stack=stacks,
        )

    def _note_progress(self, progress: Progress) -> None:
        self._board.show(progress, clock.now_ns())

    def _on_soft_signal(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        ending = self._overdue(self._number) if self._number else None
        if ending is not None:
            self._number = 0
            what = "ran longer than its time limit" if ending is Ending.TIMED_OUT else "reported no progress"
            raise TimedOut(what)
