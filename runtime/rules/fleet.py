"""What a supervisor knows and says: its settings, its children, what happens to it, and what it may do.

The words of `rules/supervisor.py`, apart from it because its shell, the simulator and `rules/stopping.py`
speak them too.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Literal

import msgspec

from runtime.model.exits import EXIT_OK, Exit, Progress
from runtime.model.jobs import Lease, NodeView
from runtime.model.messages import Declare, FromChild, Held, Limits, Record, ToChild, Why
from runtime.rules.attempts import Batch, Bounds, Glance, Intent, Remains
from runtime.rules.restart import Health, RestartPolicy

SCHEDULER = "scheduler"
POSTGRES = "postgres"


class Settings(msgspec.Struct, frozen=True):
    node: str
    host: str
    pid: int
    version: str
    workers: int
    lease_s: float
    renew_every_s: float
    kill_after_s: float = 1.0
    ready_within_s: float = 30.0
    grace_s: float = 30.0
    memory_bytes: int | None = None
    queues: tuple[str, ...] = ("*",)
    until_idle: bool = False
    postgres: bool = False
    fencing: bool = True  # off only in the simulator's own test
    restart: RestartPolicy = RestartPolicy()

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.lease_s, self.kill_after_s, self.memory_bytes, self.fencing)


# -- what has happened


class Begun(msgspec.Struct, frozen=True):
    """The service starts; the embedded database, if there is one, is up."""


class Spawned(msgspec.Struct, frozen=True):
    name: str
    pid: int


class SpawnFailed(msgspec.Struct, frozen=True):
    name: str
    reason: str
    chance: float


class Heard(msgspec.Struct, frozen=True):
    name: str
    message: FromChild


class Garbled(msgspec.Struct, frozen=True):
    """What a child sent is no message, or it does not read what it is sent."""

    name: str
    reason: str


class Looked(msgspec.Struct, frozen=True):
    name: str
    glance: Glance


class Taken(msgspec.Struct, frozen=True):
    """The claims of these numbers were not begun, and now never will be."""

    name: str
    numbers: tuple[int, ...]


class Exited(msgspec.Struct, frozen=True):
    name: str
    exit: Exit
    remains: Remains
    chance: float  # in [0, 1), for jitter


class Asked(msgspec.Struct, frozen=True):
    what: Literal["stop", "reload"]


class Tick(msgspec.Struct, frozen=True):
    """Time has passed, and what the children have said up to now has been heard."""


Event = Begun | Spawned | SpawnFailed | Heard | Garbled | Looked | Taken | Exited | Asked | Tick


# -- what to do


class Spawn(msgspec.Struct, frozen=True):
    """Start this child. Answered by Spawned or SpawnFailed."""

    name: str


class Say(msgspec.Struct, frozen=True):
    name: str
    message: ToChild


class Kill(msgspec.Struct, frozen=True):
    """SIGKILL. Answered, in time, by Exited."""

    name: str


class Look(msgspec.Struct, frozen=True):
    """Read a worker's board. Answered by Looked at once."""

    name: str
    memory: bool = False


class Revoke(msgspec.Struct, frozen=True):
    """Take back what a worker has claimed and not begun. Answered by Taken at once."""

    name: str


class Warn(msgspec.Struct, frozen=True):
    """Tell a handler on its board, and by a soft signal when its time is up, why it has to end.

    A stop is meant for all claims up to `number`.
    """

    name: str
    number: int
    why: Why


class Hold(msgspec.Struct, frozen=True):
    """Tell a worker, on its board, how long the leases of its claims up to `number` last."""

    name: str
    number: int
    until_s: float


class DumpStacks(msgspec.Struct, frozen=True):
    """Have a worker write all its Python stacks, even from inside C."""

    name: str


class Log(msgspec.Struct, frozen=True):
    level: Literal["debug", "info", "warning", "error"]
    event: str
    fields: dict[str, object]


class Finish(msgspec.Struct, frozen=True):
    code: int


Effect = Spawn | Say | Kill | Look | Revoke | Warn | Hold | DumpStacks | Log | Finish


# -- what is remembered


class Slot(msgspec.Struct):
    """One place for a child, whoever fills it."""

    name: str
    phase: Literal["waiting", "starting", "up", "stopping"] = "waiting"
    pid: int | None = None
    since_s: float = 0.0  # of the phase
    kinds: dict[str, Limits] = msgspec.field(default_factory=dict[str, Limits])
    batch: Batch | None = None
    idle: bool = False
    promised: bool = False  # while idle: what another one had not begun was taken back for it
    glance: Glance = Glance()
    taken: set[int] = msgspec.field(default_factory=set[int])  # revoked before we heard of their claim
    intent: Intent | None = None
    killed: bool = False
    check_at_s: float = float("inf")
    stale: bool = False  # runs code from before a reload
    told_progress: tuple[int, Progress | None] = (0, None)

    @property
    def is_worker(self) -> bool:
        return self.name not in (SCHEDULER, POSTGRES)

    @property
    def alive(self) -> bool:
        return self.phase != "waiting"

    def running(self) -> Held | None:
        return self.batch.claims.get(self.glance.number) if self.batch else None


class State(msgspec.Struct):
    settings: Settings
    slots: dict[str, Slot]
    worker_names: tuple[str, ...]
    health: dict[str, Health]  # by role
    phase: Literal["running", "draining", "forced", "closing", "finished"] = "running"
    code: int = EXIT_OK
    stop_asked_s: float = 0.0
    stop_by_s: float = float("inf")
    warn_at_s: float = float("inf")  # when running jobs are told that the grace of a stop ends
    records: deque[Record] = msgspec.field(default_factory=deque[Record])  # not yet confirmed, in order
    tries: tuple[int, int] = (0, 0)  # the first of them, and how many schedulers died with it before them
    record_number: int = 0
    renew_at_s: float = 0.0
    renewing: dict[float, frozenset[Lease]] = msgspec.field(default_factory=dict[float, frozenset[Lease]])
    wake_pending: bool = False
    round_at_s: float = 0.0
    looking: set[str] = msgspec.field(default_factory=set[str])  # whose boards this round has yet to read
    report: NodeView | None = None
    reported_s: float = float("-inf")
    broken: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    declared: Declare | None = None  # what the workers' code says of schedules
    unhealthy: bool = False
    replacing: str | None = None
    left_asked_s: float = float("-inf")

    @property
    def workers(self) -> list[Slot]:
        return [self.slots[name] for name in self.worker_names]

    @property
    def scheduler(self) -> Slot:
        return self.slots[SCHEDULER]


def initial(settings: Settings) -> State:
    names = [POSTGRES] if settings.postgres else []
    workers = tuple(f"worker {n}" for n in range(1, settings.workers + 1))
    names += [SCHEDULER, *workers]
    slots = {name: Slot(name) for name in names}
    if settings.postgres:
        slots[POSTGRES].phase = "up"
    return State(settings, slots, workers, {role_of(name): Health() for name in names})


@cache
def role_of(name: str) -> str:
    """`worker` of `worker 3`."""
    return name.partition(" ")[0]


def kill(slot: Slot, out: list[Effect]) -> None:
    if slot.alive and not slot.killed:
        slot.killed = True
        out.append(Kill(slot.name))
