"""The worker actor: claims leases, runs handlers in its main thread, and settles what came of it.

One loop: take an event to the worker's rules, do the one thing they answer. Handlers run in `_attempt`, the
only place where whatever they raise becomes text. What a job changed in its process is put right
after it, so that the next job finds a clean one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import io
import os
import random
import select
import signal
import sys
import termios
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType

import msgspec
import psycopg
import structlog
from setproctitle import setproctitle

from runtime import registry
from runtime.actors.context import Context
from runtime.config import Config
from runtime.edges import clock, log, processes, signals
from runtime.edges.board import Board
from runtime.edges.output import marker
from runtime.edges.pipe import Pipe, Tokens
from runtime.edges.postgres import PostgresStore, attempt_connection
from runtime.edges.processes import Ends
from runtime.edges.store import Store
from runtime.errors import Cancel, PayloadInvalid, SchemaOutdated, Snooze, StoreUnavailable, TimedOut
from runtime.model.exits import EXIT_FAILED, Certificate, Verdict
from runtime.model.jobs import TEXT_LIMIT, Claim, Ending, Failure, Holder, Progress, Settlement, State, Want
from runtime.model.messages import Limits, Ready, Stop, ToWorker, Unready, Wake
from runtime.model.units import clip
from runtime.providers import Provided, provide_ours, unprovided
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


provide_ours(psycopg.Connection, lambda config: attempt_connection(config.database.url), each_attempt=True)


class Spec(msgspec.Struct, frozen=True):
    """What a worker is told when it is made."""

    config: Config
    url: str
    node: str
    number: int


@dataclass(slots=True)
class Outside:
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
    output = _Output(ends)
    for variable in _THREADS:
        os.environ.setdefault(variable, str(spec.config.thread_count))
    faulthandler.enable(file=ends.stacks.fd)
    faulthandler.register(signals.STACKS, file=ends.stacks.fd, all_threads=True)
    sys.path[:0] = [path for path in registry.search_path(spec.config.path) if path not in sys.path]
    handlers, broken = registry.load(spec.config.service.handlers)
    lacking = unprovided(handlers.definitions)
    handlers = handlers.without_kinds(lacking)
    broken |= {f"kind {kind}": problem for kind, problem in lacking.items()}
    store = PostgresStore(
        spec.url, application_name=f"tenure {name}", connect_timeout_s=spec.config.database.connect_timeout
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
    runner = _Runner(spec.number, handlers, limits, provided, outside.board, output, ends.stacks.fd)
    pipe.send_and_wait(Ready(kinds=limits, broken=broken))
    try:
        return _loop(spec, outside, runner)
    finally:
        provided.close()


def _loop(spec: Spec, outside: Outside, runner: _Runner) -> int:
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
            case rules.Run(claim, number):
                event = runner.run(claim, number) if outside.tokens.take(number) else rules.Revoked()
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


def _exchange(spec: Spec, outside: Outside, runner: _Runner, action: rules.Exchange) -> rules.Event:
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
    for settlement, kept in zip(action.settlements, exchanged.kept, strict=True):
        if not kept:
            lease = settlement.lease
            log.event(
                "warning", "lease.lost", job=lease.id, epoch=lease.epoch, dropped=str(settlement.ending)
            )
    return rules.Got(exchanged.claims, sent_s)


class _Runner:
    """Runs one job after the other in the main thread."""

    def __init__(
        self,
        worker: int,
        handlers: Registry,
        limits: dict[str, Limits],
        provided: Provided,
        board: Board,
        output: _Output,
        stacks_fd: int,
    ) -> None:
        self._worker = worker
        self.kinds = handlers.kinds
        self._handlers = handlers
        self._limits = limits
        self._provided = provided
        self._board = board
        self._output = output
        self._stacks_fd = stacks_fd
        self._log = structlog.get_logger()
        self._number = 0  # of the claim whose handler may be interrupted now
        self._cpu_ns = 0  # of this process when the job began
        self._tidiness = _Tidiness(self._on_soft_signal)
        signal.signal(signals.SOFT, self._on_soft_signal)

    def run(self, claim: Claim, number: int) -> rules.Ran:
        """Run one claim from its first to its last line, with its outcome in the journal."""
        setproctitle(f"tenure: worker {self._worker} {claim.kind} {claim.lease.id}")
        began_ns = clock.now_ns()
        self._cpu_ns = time.process_time_ns()
        self._board.begin(number, began_ns, self._cpu_ns)
        settlement = self._attempt(claim, number)
        self._output.end(number)
        safe = self._board.note(settlement)
        self._tidiness.restore()
        self._board.end()
        return rules.Ran(settlement, (clock.now_ns() - began_ns) / 1e9, safe)

    def _attempt(self, claim: Claim, number: int) -> Settlement:
        """What becomes of the job: the only place where what a handler raises is caught, and made text."""
        lease, limits = claim.lease, self._limits[claim.kind]
        definition = self._handlers.get(claim.kind)
        try:
            job = definition.decode(claim.payload)
            context = self._context(claim, number, limits)
            if definition.needs:
                with ExitStack() as attempt:
                    arguments = self._provided.arguments(definition, attempt)
                    self._number = number
                    result = job.run(context, **arguments)
                    self._number = 0
            else:
                self._number = number
                result = job.run(context)
                self._number = 0
            if self._overdue(number) is not None:  # the handler has swallowed what we raised in it
                raise TimedOut("went on after its time limit")  # noqa: TRY301
            done = definition.encode_result(result)
        except Snooze as snooze:
            self._number = 0
            delay_s = max(float(snooze.seconds), 0.0)
            return Settlement(lease=lease, ending=Ending.SNOOZED, state=State.QUEUED, delay_s=delay_s)
        except Cancel:
            self._number = 0
            return budgets.cancelled(lease)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like are a handler's failure too
            self._number = 0
            ending = self._overdue(number)
            final = ending is None and isinstance(error, (PayloadInvalid, *definition.final))
            return self._failed(claim, _failure(error), ending, final=final)
        return Settlement(lease=lease, ending=Ending.DONE, state=State.DONE, result=done)

    def _context(self, claim: Claim, number: int, limits: Limits) -> Context:
        return Context(
            id=claim.lease.id,
            kind=claim.kind,
            attempt=claim.attempt,
            due=claim.due,
            last=budgets.is_last(claim.failures, limits),
            deadline=time.monotonic() + limits.timeout_s,
            epoch=claim.lease.epoch,
            note_progress=self._note_progress,
            is_cancelled=lambda: self._board.is_cancelled(number),
            log=self._log,
        )

    def _overdue(self, number: int) -> Ending | None:
        """How the attempt has ended already, in the supervisor's eyes."""
        if self._board.is_timed_out(number):
            return Ending.TIMED_OUT
        return Ending.STALLED if self._board.is_stalled(number) else None

    def _failed(self, claim: Claim, error: Failure, ending: Ending | None, *, final: bool) -> Settlement:
        certificate = self._certify(ending) if ending is not None else None
        settlement = budgets.failed(
            claim.lease,
            claim.failures,
            self._limits[claim.kind],
            random.random(),
            error=error,
            ending=ending,
            certificate=certificate,
            final=final,
        )
        log.event(
            "warning",
            "attempt.failed",
            job=claim.lease.id,
            kind=claim.kind,
            attempt=claim.attempt,
            error=error.class_,
            ending=str(settlement.ending),
            state=str(settlement.state),
            retry_in_s=round(settlement.delay_s, 3),
        )
        return settlement

    def _certify(self, ending: Ending) -> Certificate:
        """The certificate of a handler that heeded the soft signal: where it was is known from the stacks."""
        stacks = processes.read_stacks(self._stacks_fd)
        processes.clear_stacks(self._stacks_fd)
        return Certificate(
            verdict=Verdict.TIMEOUT if ending is Ending.TIMED_OUT else Verdict.STALLED,
            signal=None,
            exit_code=None,
            cpu_seconds=(time.process_time_ns() - self._cpu_ns) / 1e9,
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


def _failure(error: BaseException) -> Failure:
    """A handler's exception as storable text, without our own frame."""
    try:
        message = str(error)
    except Exception as nested:  # noqa: BLE001 - it is the handler's class that cannot say what it is
        message = f"<{type(nested).__name__} while making the message>"
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    try:
        lines = "".join(traceback.format_exception(type(error), error, trace))
    except Exception as nested:  # noqa: BLE001 - likewise
        lines = f"<{type(nested).__name__} while formatting the traceback>"
    return Failure(type(error).__qualname__, clip(message, TEXT_LIMIT), clip(lines, TEXT_LIMIT))


class _Output:
    """Descriptors 1 and 2 of this process: nothing printed stays in a buffer, and each job's end is marked."""

    def __init__(self, ends: Ends) -> None:
        self._fd = ends.output.fd
        self._secret = ends.secret
        self._waiting = bytearray(4)
        self._streams = tuple(_Raw(fd) for fd in (1, 2))
        self._texts = tuple(
            io.TextIOWrapper(stream, "utf-8", "backslashreplace", write_through=True)
            for stream in self._streams
        )
        self._install()

    def _install(self) -> None:
        sys.stdout, sys.stderr = self._texts

    def end(self, number: int) -> None:
        """Mark the end of a job's output, if there was any."""
        if sys.stdout is not self._texts[0] or sys.stderr is not self._texts[1]:
            self._install()
        printed = any(stream.written for stream in self._streams)
        fcntl.ioctl(self._fd, termios.FIONREAD, self._waiting)
        if printed or any(self._waiting):
            for stream in self._streams:
                stream.written = False
            os.write(self._fd, marker(self._secret, number))


class _Raw(io.FileIO):
    """A descriptor that remembers whether it was written to."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.written = False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        self.written = True
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) or 0 :]
        return len(data)


class _Tidiness:
    """What a job may change in its process and the next one must find as it was."""

    def __init__(self, soft: Callable[[int, FrameType | None], None]) -> None:
        self._soft = soft
        self._directory = os.getcwd()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._children = processes.children()

    def restore(self) -> None:
        """Put directory, umask and signal handlers back, and end the processes that the job left behind."""
        os.umask(self._umask)
        try:
            moved = os.getcwd() != self._directory
        except OSError:
            moved = True
        if moved:
            with contextlib.suppress(OSError):
                os.chdir(self._directory)
        if signal.getsignal(signals.SOFT) != self._soft:
            signal.signal(signals.SOFT, self._soft)
        signals.restore_unheeded()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        processes.end_strangers(self._children, alive_too=True)
