"""What a job is: its states, what may happen to it, its leases and how an attempt ends.

`MOVES` is the whole life of a job. The stores carry it out; `tests/edges` tries every act in every state
against both of them.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Literal

import msgspec

from runtime.model.exits import Certificate, Progress, Verdict

Overlap = Literal["skip", "queue"]  # a tick while the last run is not over: does not happen, or waits in line
Missed = Literal["drop", "catch_up"]  # ticks whose time has passed: none of them runs, or one for all

KIND_BYTES = 64
QUEUE_BYTES = 48  # a notification's text is a queue's name
UNIQUE_BYTES = 64
SCHEDULE_PREFIX = (
    "schedule:"  # with its name: the unique key of a run that no other run of the schedule may overlap
)
SCHEDULE_BYTES = UNIQUE_BYTES - len(SCHEDULE_PREFIX)  # of a schedule's name, and of a kind that is kicked
PRIORITIES = 10  # 0, the most urgent, to 9
DEFAULT_PRIORITY = 5
DEFAULT_QUEUE = "default"
TEXT_LIMIT = 64 * 1024  # characters kept of each stored text
TIMEOUT_MAX_S = 86_400.0  # a day; longer work is split into jobs
HISTORY_LIMIT = 20  # attempts kept of one job: the first, and the latest ones


class State(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Ending(enum.StrEnum):
    """How an attempt ended."""

    DONE = "done"
    RETRY = "retry"  # the handler raised, and `retry` allows another attempt
    DEAD = "dead"  # the handler raised, for the last time
    SNOOZED = "snoozed"
    RELEASED = "released"  # given back: drain, reload, a lost database, a neighbour's crash
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease_lost"  # the lease ran out and was taken back


class Code(enum.StrEnum):
    """Why an attempt ended other than done or snoozed: one fixed word, for programs, lists and the log."""

    HANDLER_FAILED = "handler_failed"  # it raised
    PAYLOAD_INVALID = "payload_invalid"  # the payload does not fit the kind: the handler was not called
    RESULT_INVALID = "result_invalid"  # JSON cannot hold what the handler returned
    UNSTORABLE = "unstorable"  # the database refused what the attempt left
    TIMED_OUT = "timed_out"
    STALLED = "stalled"
    CRASHED = "crashed"  # its process died under it
    MEMORY = "memory"  # its process was killed for the memory it took
    LEASE_LOST = "lease_lost"  # the lease ran out, or could not be renewed in time
    INTERRUPTED = "interrupted"  # given back: drain, reload, a neighbour's death
    CANCELLED = "cancelled"


class Budget(enum.StrEnum):
    """What an ending is charged to, by proof."""

    FAILURES = "failures"
    CRASHES = "crashes"
    INTERRUPTIONS = "interruptions"


CHARGES: dict[Ending, Budget | None] = {
    Ending.DONE: None,
    Ending.RETRY: Budget.FAILURES,
    Ending.DEAD: Budget.FAILURES,
    Ending.SNOOZED: None,
    Ending.RELEASED: Budget.INTERRUPTIONS,
    Ending.CRASHED: Budget.CRASHES,
    Ending.TIMED_OUT: Budget.FAILURES,
    Ending.STALLED: Budget.FAILURES,
    Ending.CANCELLED: None,
    Ending.LEASE_LOST: Budget.INTERRUPTIONS,
}

# (state, act): the state after it. What is not here changes nothing and is answered with "no".
MOVES: dict[tuple[State, str], State] = {
    (State.QUEUED, "claim"): State.RUNNING,
    (State.QUEUED, "cancel"): State.CANCELLED,
    (State.QUEUED, "reschedule"): State.QUEUED,
    (State.RUNNING, "renew"): State.RUNNING,
    (State.RUNNING, "cancel"): State.RUNNING,  # asked; the attempt's end makes it so
    (State.RUNNING, "settle done"): State.DONE,
    (State.RUNNING, "settle queued"): State.QUEUED,
    (State.RUNNING, "settle dead"): State.DEAD,
    (State.RUNNING, "settle cancelled"): State.CANCELLED,
    (State.RUNNING, "return"): State.QUEUED,
    (State.RUNNING, "abandon"): State.QUEUED,
    (State.RUNNING, "expire"): State.QUEUED,
    (State.DEAD, "retry"): State.QUEUED,
}


class Lease(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The right to run and settle one job at one epoch: the fencing token of every later write."""

    id: str
    epoch: int


class Holder(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Who holds a lease: one incarnation of one worker. No two processes ever have the same one."""

    node: str
    worker: int
    pid: int


class Texts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an attempt left in words, which is stored apart from all that lists show."""

    message: str = ""
    traceback: str = ""
    output_tail: str = ""
    stack: str | None = None


class Kept(msgspec.Struct, frozen=True):
    """Which words of an attempt are stored at all; its class, code and numbers always are."""

    errors: bool = True  # messages, tracebacks and stacks
    output: bool = True  # the last that a killed process has printed


ALL_KEPT = Kept()


class Failure(msgspec.Struct, frozen=True):
    """What a handler raised, as text; each field at most `TEXT_LIMIT` characters and storable."""

    class_: str = msgspec.field(name="class")
    message: str = ""
    traceback: str = ""


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be pushed. `payload` is JSON text; `due` in the past or None means at once."""

    id: str
    kind: str
    payload: str = "{}"
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    due: datetime | None = None
    delay_s: float = 0.0  # added to the database's now when `due` is None
    unique: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a worker gets it, with the lease it may now run under."""

    lease: Lease
    kind: str
    queue: str
    priority: int
    due: datetime
    attempt: int  # 1 for the first run
    failures: int
    crashes: int
    payload: str  # JSON text, not yet decoded: one bad row must not harm its neighbours


class Kick(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for one run of a kind, soon. `payload` is JSON text: all fields at their defaults."""

    kind: str
    payload: str = "{}"
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one attempt: how it ended and what becomes of the job.

    `state` is done, queued, dead or cancelled. A job whose cancel was asked for meanwhile becomes
    cancelled where this says queued. The budget charged is `CHARGES[ending]`. `fault` is the code of an
    attempt that failed without being overdue.
    """

    lease: Lease
    ending: Ending
    state: State
    delay_s: float = 0.0  # before the next attempt, when queued
    result: str | None = None  # JSON text
    error: Failure | None = None
    certificate: Certificate | None = None
    kicks: tuple[Kick, ...] = ()  # made in the transaction that settles; only of what is done
    fault: Code = Code.HANDLER_FAILED

    @property
    def code(self) -> Code | None:
        """Why the attempt did not end as done or snoozed; None: it did."""
        verdict = self.certificate.verdict if self.certificate else None
        match self.ending:
            case Ending.DONE | Ending.SNOOZED:
                return None
            case Ending.RETRY | Ending.DEAD:
                return self.fault
            case Ending.RELEASED:
                return Code.LEASE_LOST if verdict is Verdict.FENCED else Code.INTERRUPTED
            case Ending.CRASHED:
                return Code.MEMORY if verdict is Verdict.MEMORY else Code.CRASHED
            case _:
                return Code(self.ending.value)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job, as it is shown."""

    attempt: int
    epoch: int
    node: str | None = None
    worker: int | None = None
    pid: int | None = None
    started: datetime | None = None
    ended: datetime | None = None
    ending: Ending | None = None  # None: it is running
    code: Code | None = None  # why it did not end as done
    error: Failure | None = None
    certificate: Certificate | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job whole, as `tenure status ID` shows it; `attempts` is left empty in lists.

    `code` says why its last attempt that has ended was not done, or that it was cancelled; None: no attempt has
    ended so, or the job is done.
    """

    id: str
    kind: str
    queue: str
    priority: int
    state: State
    code: Code | None = None
    due: datetime
    payload: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    progress: Progress | None = None
    attempt: int
    failures: int
    crashes: int
    interruptions: int
    unique: str | None
    created: datetime
    finished: datetime | None
    attempts: list[Attempt] = []


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One child of a node, as `tenure nodes` shows it."""

    name: str  # "scheduler", "worker 1", …
    pid: int | None
    state: str  # starting, idle, running, settling, stopping, waiting
    kind: str | None = None
    job: str | None = None


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node: a supervisor incarnation with its children."""

    id: str
    host: str
    pid: int
    version: str
    state: str  # running, draining, unhealthy
    started: datetime | None = None  # set by the store
    seen: datetime | None = None  # set by the store at each report
    workers: list[WorkerView] = []
    kinds: list[str] = []  # that its workers have handlers for
    queues: list[str] = []  # that they serve; ["*"]: all


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for when it claims."""

    holder: Holder
    limit: int  # at most so many jobs
    lease_s: float
    kinds: tuple[str, ...]
    queues: tuple[str, ...]  # ("*",): all
    rewind: bool = True  # start at the head of each lane; False: resume where the last claim stopped


class QueueCount(msgspec.Struct, frozen=True, kw_only=True):
    """The live jobs of one kind in one queue, and its kicks."""

    queue: str
    kind: str
    queued: int
    running: int
    oldest_due: datetime | None  # of the queued ones that are due
    kicked: int = 0  # kicks whose run is not made yet


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are in each state, and how many wait in each queue."""

    states: dict[str, int]
    queues: list[QueueCount]


class Unserved(msgspec.Struct, frozen=True, kw_only=True):
    """Queued jobs of one kind in one queue that no living node serves, some of which are due."""

    kind: str
    queue: str
    queued: int
    oldest_due: datetime


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand at `now`, the database's; the age of what waits is `now` less its `oldest_due`."""

    now: datetime
    states: dict[str, int]
    queues: list[QueueCount]
    oldest_s: float | None  # how long the job has waited that has been due longest
    unserved: list[Unserved]
    nodes: int  # living ones
    ready: bool  # one of them has a worker that a new job could run in


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler must wake up for."""

    due_now: bool  # a job of these queues could be claimed now
    next_due_s: float | None = None  # seconds until the next job that is not due yet
    next_tick_s: float | None = None  # seconds until the next tick of a schedule; negative: it is due
    lease_end_s: float | None = None  # seconds until the first lease ends; negative: it has ended
    kicked: bool = False  # a kick waits, perhaps for the end of a run


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a renewal: what is still held, and which of these were asked to be cancelled."""

    held: frozenset[Lease]
    cancelled: frozenset[Lease]


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "settle these and claim the next"."""

    kept: tuple[bool, ...]  # one a settlement, in order; False: the lease was no longer current
    claims: tuple[Claim, ...]


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job as it is asked for. `spec` is JSON, what `rules/schedule.py` makes of cron and interval."""

    name: str
    kind: str
    spec: str
    payload: str = "{}"
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    overlap: Overlap = "skip"
    missed: Missed = "catch_up"
    declared: bool = False  # in code, with a handler; it goes when the code does
    due: datetime | None = None  # of the first tick; None: now


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job as it stands."""

    name: str
    kind: str
    spec: msgspec.Raw
    payload: msgspec.Raw
    queue: str
    priority: int
    overlap: Overlap
    missed: Missed
    declared: bool
    paused: bool
    due: datetime  # the next tick
    last: datetime | None = None  # the last tick that made a job
    live: bool = False  # a run of it is queued or running, where overlap is "skip"
