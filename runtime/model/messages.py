"""The whole protocol between the supervisor and its children.

Every message is one-way: nobody waits for an answer on a pipe, so no two processes can deadlock on one. A
message is checked once, when it is decoded, and trusted after that. What a worker is running at this very
moment is not a message but a word on its board (`edges/board.py`): a short job costs no write to a pipe.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from runtime.model.exits import Progress
from runtime.model.jobs import Holder, Lease, NewSchedule, NodeView, Settlement

Why = Literal["timeout", "stall", "cancel", "stop", "lost"]  # an attempt has to end


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base: immutable, named fields only, tagged on the wire with the class name."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a kind: all that others than its worker need to know of a handler.

    `retry_*` describe the back-off as numbers, see `rules/backoff.py`.
    """

    timeout_s: float
    stall_s: float | None = None
    retries: int = 0
    delay_first_s: float = 0.0
    delay_factor: float = 1.0
    delay_cap_s: float = 0.0
    jitter: float = 0.0
    max_crashes: int = 3
    crash_retries: bool = True  # False: dead at the first crash
    memory_bytes: int | None = None


class Held(msgspec.Struct, frozen=True, array_like=True):
    """One claim, as its worker reports it."""

    lease: Lease
    kind: str
    attempt: int
    failures: int
    crashes: int


# -- child to supervisor


class Ready(Message, frozen=True, kw_only=True):
    """Once: set-up is over and work has begun."""

    kinds: dict[str, Limits] = {}  # a worker's handlers
    broken: dict[str, str] = {}  # handler modules that could not be imported, and why
    schedules: tuple[NewSchedule, ...] = ()  # declared with handlers


class Unready(Message, frozen=True, kw_only=True):
    """Once, in place of Ready, before the process ends: why it cannot work."""

    reason: str


class Claimed(Message, frozen=True, kw_only=True):
    """Worker: the batch that it works through now, in order; everything before it is settled.

    An empty one says: nothing was due, I wait for Wake.
    """

    first: int  # the number of the first of them; each worker numbers its claims from 1
    sent_s: float  # monotonic seconds when the claim was sent: the leases last at least that + lease
    claims: tuple[Held, ...]
    full: bool = False  # as many as were asked for: there may be more


class Woken(Message, frozen=True, kw_only=True):
    """Scheduler: there may be something to claim."""


class Renewals(Message, frozen=True, kw_only=True):
    """Scheduler, in answer to Renew: which leases are lost, and which jobs to cancel."""

    sent_s: float  # of the Renew this answers
    ok: bool  # False: the database was away, nothing was renewed
    lost: tuple[Lease, ...] = ()
    cancel: tuple[Lease, ...] = ()


class CancelAsked(Message, frozen=True, kw_only=True):
    """Scheduler: these running jobs are to be cancelled."""

    leases: tuple[Lease, ...]


class Recorded(Message, frozen=True, kw_only=True):
    """Scheduler: the database has everything up to and including the Record of this number."""

    number: int


class Nothing(Message, frozen=True, kw_only=True):
    """Scheduler, in answer to AnythingLeft: no job is queued or running."""


# -- supervisor to child


class Wake(Message, frozen=True, kw_only=True):
    """To an idle worker: claim, from the head of the queue."""


class Stop(Message, frozen=True, kw_only=True):
    """At most once: take no new work, end what runs, and leave."""


class Renew(Message, frozen=True, kw_only=True):
    """To the scheduler, every `renew_every`: these leases are held by live workers."""

    sent_s: float  # monotonic seconds
    leases: tuple[Lease, ...]


class Record(Message, frozen=True, kw_only=True):
    """To the scheduler: facts about workers that the supervisor attests. Answered by Recorded.

    Applied in this order: settle, give back, abandon.
    """

    number: int
    settlements: tuple[Settlement, ...] = ()
    unstarted: tuple[Lease, ...] = ()
    dead: Holder | None = None

    @property
    def tells(self) -> bool:
        """Whether it is known to change a job. Of claims that only its worker may have heard of it knows nothing."""
        return bool(self.settlements or self.unstarted)


class Progressed(Message, frozen=True, kw_only=True):
    """To the scheduler, at most once a second: how far running attempts have come."""

    entries: tuple[tuple[Lease, Progress], ...]


class Report(Message, frozen=True, kw_only=True):
    """To the scheduler: what this node looks like."""

    node: NodeView


class Declare(Message, frozen=True, kw_only=True):
    """To the scheduler: the schedules that stand in code, of all these kinds."""

    schedules: tuple[NewSchedule, ...]
    kinds: tuple[str, ...]


class AnythingLeft(Message, frozen=True, kw_only=True):
    """To the scheduler, when every worker is idle and the service is to stop then."""

    kinds: tuple[str, ...]


FromWorker = Ready | Unready | Claimed
FromScheduler = Ready | Unready | Woken | Renewals | CancelAsked | Recorded | Nothing
FromChild = Ready | Unready | Claimed | Woken | Renewals | CancelAsked | Recorded | Nothing
ToWorker = Wake | Stop
ToScheduler = Stop | Renew | Record | Progressed | Report | Declare | AnythingLeft
ToChild = Wake | Stop | Renew | Record | Progressed | Report | Declare | AnythingLeft
