"""A worker's judgement: claim, run one after the other, settle with the next claim, wait when idle.

`step` takes what has happened and gives what is to be done next, of which there is always exactly one thing:
run a job, exchange settlements for claims, wait, or leave. Messages to the supervisor go out before that.
The machine knows neither the database nor the pipe; `actors/worker.py` carries it out, and the simulator
runs it with both of them failing.
"""

from __future__ import annotations

from collections import deque

import msgspec

from runtime.model.exits import EXIT_OK, EXIT_RECYCLED
from runtime.model.jobs import Claim, Settlement
from runtime.model.messages import Claimed, Held, Stop, Wake
from runtime.rules import batch
from runtime.rules.lease import begin_by_s, fence_at_s

SETTLE_WITHIN_S = 0.25  # an outcome waits no longer than this for the rest of its batch
REWIND_SHARE = 0.05  # of the time, at most, goes into claims from the head of the queue
RECONNECT_FIRST_S = 0.1
RECONNECT_MAX_S = 3.0


# -- what has happened


class Begun(msgspec.Struct, frozen=True):
    """Set-up is over."""


class Told(msgspec.Struct, frozen=True):
    """The supervisor said something."""

    message: Wake | Stop


class Got(msgspec.Struct, frozen=True):
    """The exchange that was asked for went through."""

    claims: tuple[Claim, ...]
    sent_s: float  # when it was sent


class Lost(msgspec.Struct, frozen=True):
    """The database went away, in the exchange or before it. `chance` in [0, 1) spreads the retries."""

    chance: float


class Ran(msgspec.Struct, frozen=True):
    """The job that was to be run has ended."""

    settlement: Settlement | None  # None: it has settled itself
    took_s: float
    safe: bool = True  # the outcome is in the journal and would outlive this process


class Revoked(msgspec.Struct, frozen=True):
    """The job that was to be run is no longer ours, nor is the rest of the batch: they have been taken back."""


class TooLate(msgspec.Struct, frozen=True):
    """The job that was to be run may not begin any more, nor may the rest of the batch; nobody else knows that."""


class Waited(msgspec.Struct, frozen=True):
    """The wait is over without a message."""


Event = Begun | Told | Got | Lost | Ran | Revoked | TooLate | Waited


# -- what to do next


class Run(msgspec.Struct, frozen=True):
    """Run this job, unless it has been revoked. Answered by Ran, Revoked or TooLate.

    The clock is read once more when the board says that it runs, and from `begin_by_s` on it is too late: a
    process that was stopped after it took the job must not begin under a lease that has ended.
    """

    claim: Claim
    number: int  # claims of one worker are numbered from 1; a number is never used twice
    begin_by_s: float  # monotonic seconds
    lost_at_s: float  # the end of its lease, unless that is renewed


class Exchange(msgspec.Struct, frozen=True):
    """Settle these and claim up to `limit`. Answered by Got or Lost.

    `recover`: an exchange before this one may have claimed jobs that we never heard of; give them back.
    """

    settlements: tuple[Settlement, ...]
    limit: int
    rewind: bool
    recover: bool


class Wait(msgspec.Struct, frozen=True):
    """Wait for a message, at most so many seconds (None: for ever). Answered by Told or Waited."""

    seconds: float | None


class Leave(msgspec.Struct, frozen=True):
    """End the process with this exit code."""

    code: int


Action = Run | Exchange | Wait | Leave


class State(msgspec.Struct):
    """All that a worker remembers between two events."""

    lease_s: float
    recycle_jobs: int = 0  # leave for a fresh process after so many; 0: never
    pace: batch.Pace = batch.Pace()
    batch: deque[Claim] = msgspec.field(default_factory=deque[Claim])
    number: int = 0  # of the claim handed out last
    sent_s: float = 0.0  # when the batch was claimed: its leases last at least that + lease
    outcomes: list[Settlement] = msgspec.field(default_factory=list[Settlement])
    oldest_s: float = 0.0  # when the first of `outcomes` came
    settle_now: bool = False
    jobs: int = 0  # run since the last claim
    work_s: float = 0.0
    done: int = 0  # jobs run in all
    asked: int = 0  # the limit of the exchange under way
    rewind: bool = True
    rewound: bool = False  # whether the exchange under way starts at the head
    rewind_after_s: float = 0.0
    idle: bool = False
    woken: bool = False  # from idling, and no claim since
    stopping: bool = False
    recycle: bool = False  # the shell's wish: the process has grown too large
    recover: bool = False
    losses: int = 0  # of the database, in a row
    retry_at_s: float = 0.0


def step(state: State, event: Event, now_s: float) -> tuple[list[Claimed], Action]:
    """Take in one event, in place; what to tell the supervisor, then what to do next."""
    said: list[Claimed] = []
    match event:
        case Ran():
            _after_run(state, event, now_s)
        case Got():
            said = _after_exchange(state, event, now_s)
        case Told(message):
            hear(state, message)
        case Revoked():
            _drop_batch(state)
        case TooLate():
            _give_up_batch(state)
        case Lost(chance):
            state.losses += 1
            state.recover |= state.asked > 0
            state.rewind = True
            wait_s = min(RECONNECT_FIRST_S * 2.0 ** min(state.losses - 1, 16), RECONNECT_MAX_S)
            state.retry_at_s = now_s + wait_s * (0.5 + 0.5 * chance)
        case Begun() | Waited():
            pass
    return said, _next(state, now_s)


def hear(state: State, message: Wake | Stop) -> None:
    """Keep in mind what the supervisor said; what follows from it, the next `step` decides."""
    match message:
        case Stop():
            state.stopping = True
        case Wake():
            state.woken |= state.idle
            state.idle = False


def _after_run(state: State, event: Ran, now_s: float) -> None:
    if event.settlement is not None:
        if not state.outcomes:
            state.oldest_s = now_s
        state.outcomes.append(event.settlement)
    state.settle_now |= not event.safe
    state.jobs += 1
    state.done += 1
    state.work_s += event.took_s


def _after_exchange(state: State, event: Got, now_s: float) -> list[Claimed]:
    state.outcomes.clear()
    state.settle_now = state.recover = False
    state.losses = 0
    if state.asked == 0:
        return []
    state.woken = False
    state.pace = batch.after_batch(state.pace, state.jobs, state.work_s)
    state.jobs, state.work_s = 0, 0.0
    if state.rewound:
        state.rewind_after_s = now_s + (now_s - event.sent_s) / REWIND_SHARE
    full = len(event.claims) >= state.asked
    state.rewind = not full and not (state.rewound and not event.claims)
    state.idle = state.rewound and not event.claims
    if state.idle:
        state.pace = batch.after_wait(state.pace)
    if not event.claims and not state.idle:
        return []
    message = Claimed(
        first=state.number + 1,
        sent_s=event.sent_s,
        full=full,
        claims=tuple(Held(c.lease, c.kind, c.attempt, c.failures, c.crashes) for c in event.claims),
    )
    state.batch.extend(event.claims)
    state.sent_s = event.sent_s
    return [message]


def _next(state: State, now_s: float) -> Action:
    settle = state.settle_now or (
        bool(state.outcomes) and bool(state.batch) and now_s - state.oldest_s >= SETTLE_WITHIN_S
    )
    if state.batch and not settle:
        begin_by = begin_by_s(state.sent_s, state.lease_s)
        if now_s < begin_by:
            state.number += 1
            return Run(state.batch.popleft(), state.number, begin_by, fence_at_s(state.sent_s, state.lease_s))
        _give_up_batch(state)
    leaving = state.stopping or _is_spent(state)
    if leaving and not state.outcomes and not state.batch:
        return Leave(EXIT_OK if state.stopping else EXIT_RECYCLED)
    if state.losses and now_s < state.retry_at_s:
        return Wait(state.retry_at_s - now_s)
    if state.idle and not state.outcomes:
        return Wait(None)
    state.asked = 0 if state.batch or leaving or state.recover else state.pace.limit
    # What has come to an empty queue most likely is behind a known position: to rewind first would make it wait.
    state.rewound = state.rewind or (now_s >= state.rewind_after_s and not state.woken)
    return Exchange(tuple(state.outcomes), state.asked, state.rewound, state.recover)


def _drop_batch(state: State) -> None:
    state.number += len(state.batch)
    state.batch.clear()


def _give_up_batch(state: State) -> None:
    """Time was lost, here or by a job while the supervisor did not look: these leases may be another's by now."""
    _drop_batch(state)
    state.recover = True  # those that are not go back


def _is_spent(state: State) -> bool:
    return state.recycle or 0 < state.recycle_jobs <= state.done
