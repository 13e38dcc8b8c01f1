"""A scheduler's judgement: which statement comes next, when to look again, and when to wake the workers.

One statement at a time, the most urgent first: renewals before everything, then what the supervisor attests,
then what time brings. Nothing polls: it sleeps until the next due time or lease end that it knows of, and a
look every `POLL_S` seconds is the net under a lost notification. Pushes beside one that notifies may be silent: so
a notification is followed by a look once those can be seen, too. While the database is away everything
that must not be lost waits here, and a renewal is answered with "not ok" at once.
"""

from __future__ import annotations

from collections import deque

import msgspec

from runtime.model.exits import EXIT_OK, Progress
from runtime.model.jobs import Lease, NodeView, Outlook, Renewed
from runtime.model.messages import (
    AnythingLeft,
    CancelAsked,
    Declare,
    Message,
    Nothing,
    Progressed,
    Record,
    Recorded,
    Renew,
    Renewals,
    Report,
    Stop,
    Woken,
)

POLL_S = 5.0
CATCH_UP_S = 0.02  # after a notification, ask whether pushes that were silent beside it can be seen
CATCH_UP_LOOK_S = 0.25  # and look anyway when that takes so long
LEFT_EVERY_S = 0.25  # how often to ask whether anything is left, when the service is to stop then
PRUNE_EVERY_S = 3600.0
TICK_AGAIN_S = 1.0  # when a schedule is due and its last run is not over
WOKEN_EVERY_S = 0.01  # notifications within this time are one
KICKED_EVERY_S = 0.02  # and those of kicks within this
DUE_MARGIN_S = 0.0005  # the database's clock must have passed the due time when a worker asks
RECONNECT_FIRST_S = 0.1
RECONNECT_MAX_S = 3.0
RECLAIM_LIMIT = 100
KICK_LIMIT = 10_000
UNSERVED_AFTER_S = 10.0  # so long every look has seen jobs due: a program that just starts gets its time
UNSERVED_EVERY_S = 60.0
LATER = "@later"  # notification: a job for later was pushed
CANCEL = "@cancel"  # notification: a running job is to be cancelled
KICK = "@kick"  # notification: a kind was kicked, or the end that a kick may have waited for has come


# -- statements, to be carried out by the shell, each answered by Answered or Lost


class Listen(msgspec.Struct, frozen=True):
    """Connect, check the schema, and hear of new work from here on."""


class CatchUp(msgspec.Struct, frozen=True):
    """Can all that was pushed in silence be seen? Answered with a bool."""


class Look(msgspec.Struct, frozen=True):
    """When is the next job due, when does the next lease end? Answered with an Outlook."""


class Reclaim(msgspec.Struct, frozen=True):
    """Take expired leases back. Answered with how many."""

    limit: int


class Tick(msgspec.Struct, frozen=True):
    """Let schedules that are due make their jobs. Answered with how many were moved on."""


class StartKicked(msgspec.Struct, frozen=True):
    """Make the runs that were kicked. Answered with how many kicks that took out."""

    limit: int


class Cancels(msgspec.Struct, frozen=True):
    """Which running jobs of this node are to be cancelled? Answered with leases."""


class Left(msgspec.Struct, frozen=True):
    """Is any job of these kinds queued or running? Answered with a bool."""

    kinds: tuple[str, ...]


class Unserved(msgspec.Struct, frozen=True):
    """Say which due jobs no node serves."""


class Prune(msgspec.Struct, frozen=True):
    """Drop some of what is past its retention. Answered with whether there is more."""


class Forget(msgspec.Struct, frozen=True):
    """Take this node out of the list: it is stopping."""


Call = (
    Listen
    | Renew
    | Record
    | Declare
    | CatchUp
    | Look
    | Reclaim
    | Tick
    | StartKicked
    | Cancels
    | Left
    | Progressed
    | Report
    | Unserved
    | Prune
    | Forget
)
Answer = None | bool | int | Outlook | Renewed | list[Lease]


# -- what has happened


class Begun(msgspec.Struct, frozen=True):
    """Set-up is over."""


class Told(msgspec.Struct, frozen=True):
    """The supervisor said something."""

    message: Stop | Renew | Record | Progressed | Report | Declare | AnythingLeft


class Notified(msgspec.Struct, frozen=True):
    """The database notified us: names of queues, LATER, CANCEL or KICK."""

    payloads: tuple[str, ...]


class Answered(msgspec.Struct, frozen=True):
    """The call that was asked for went through."""

    answer: Answer


class Lost(msgspec.Struct, frozen=True):
    """The database went away in the call. `chance` in [0, 1) spreads the retries."""

    chance: float


class Waited(msgspec.Struct, frozen=True):
    """The wait is over and nothing came."""


Event = Begun | Told | Notified | Answered | Lost | Waited


# -- what to do next


class Do(msgspec.Struct, frozen=True):
    call: Call


class Wait(msgspec.Struct, frozen=True):
    """For a message or a notification, at most so many seconds."""

    seconds: float


class Leave(msgspec.Struct, frozen=True):
    code: int


Action = Do | Wait | Leave


class State(msgspec.Struct):
    """All that a scheduler remembers between two events."""

    queues: tuple[str, ...]
    reclaim_every_s: float
    call: Call | None = None  # under way
    called_s: float = 0.0  # since then
    listening: bool = False
    catch_up_at_s: float | None = None
    records: deque[Record] = msgspec.field(default_factory=deque[Record])
    renew: Renew | None = None
    report: NodeView | None = None
    progress: dict[Lease, Progress] = msgspec.field(default_factory=dict[Lease, Progress])
    declare: Declare | None = None
    declared: Declare | None = None  # the last one: others may have left what only they kept
    cancels: bool = False
    left: tuple[str, ...] | None = None
    left_at_s: float = 0.0
    look_at_s: float = 0.0
    due_at_s: float | None = None
    tick_at_s: float = float("inf")
    no_tick_before_s: float = 0.0
    kicked_at_s: float | None = None  # when to make the runs that were kicked
    kicked_s: float = float("-inf")  # when that was last done
    overdue: bool = False  # the last look saw a lease that has ended
    due_since_s: float | None = None  # every look since then has seen a job due
    unserved_at_s: float = 0.0
    reclaim_at_s: float = 0.0
    prune_at_s: float = 0.0
    woken_s: float = float("-inf")
    wake_at_s: float | None = None
    stopping: bool = False
    forgotten: bool = False
    losses: int = 0
    retry_at_s: float = 0.0


def step(state: State, event: Event, now_s: float) -> tuple[list[Message], Action]:
    """Take in one event, in place; what to tell the supervisor, then what to do next."""
    said: list[Message] = []
    match event:
        case Told(message):
            hear(state, message, now_s)
        case Notified(payloads):
            _notice(state, payloads, now_s)
        case Answered(answer):
            said = _after(state, answer, now_s)
        case Lost(chance):
            said = _after_loss(state, chance, now_s)
        case Begun() | Waited():
            pass
    if state.renew is not None and now_s < state.retry_at_s:
        said.append(Renewals(sent_s=state.renew.sent_s, ok=False))
        state.renew = None
    if state.due_at_s is not None and now_s >= state.due_at_s:
        state.due_at_s = None
        state.look_at_s = now_s
        state.wake_at_s = now_s
    if state.wake_at_s is not None and now_s >= state.wake_at_s:
        state.wake_at_s = None
        state.woken_s = now_s
        said.append(Woken())
    return said, _next(state, now_s)


def hear(state: State, message: Message, now_s: float) -> None:
    """Keep in mind what the supervisor said; what follows from it, the next `step` decides."""
    match message:
        case Stop():
            state.stopping = True
        case Renew():
            state.renew = message  # a newer one has all that matters of an older one
        case Record():
            state.records.append(message)
        case Progressed():
            state.progress.update(message.entries)
        case Report(node=node):
            state.report = node
        case Declare():
            state.declare = state.declared = message
        case AnythingLeft(kinds=kinds):
            state.left = kinds
            state.left_at_s = now_s


def _notice(state: State, payloads: tuple[str, ...], now_s: float) -> None:
    if any(payload not in (CANCEL, KICK) for payload in payloads):
        _catch_up(state, now_s)
    for payload in payloads:
        if payload == LATER:
            state.look_at_s = min(state.look_at_s, now_s)
        elif payload == CANCEL:
            state.cancels = True
        elif payload == KICK:
            _make_runs(state, now_s)
        elif "*" in state.queues or payload in state.queues:
            if state.wake_at_s is None:
                state.wake_at_s = max(now_s, state.woken_s + WOKEN_EVERY_S)


def _catch_up(state: State, now_s: float) -> None:
    if state.catch_up_at_s is None:
        state.catch_up_at_s = now_s + CATCH_UP_S


def _make_runs(state: State, now_s: float) -> None:
    """Let the runs that were kicked be made soon, if that is not to be done anyway."""
    if state.kicked_at_s is None:
        state.kicked_at_s = max(now_s, state.kicked_s + KICKED_EVERY_S)


def _after(state: State, answer: Answer, now_s: float) -> list[Message]:
    call, state.call = state.call, None
    state.losses = 0
    match call, answer:
        case Listen(), _:
            state.listening = True
            state.look_at_s = state.catch_up_at_s = now_s  # what was notified meanwhile was missed
            state.cancels = True
        case CatchUp(), True:
            state.look_at_s = now_s
        case CatchUp(), _:
            _catch_up(state, now_s)
            state.look_at_s = min(state.look_at_s, now_s + CATCH_UP_LOOK_S)
        case Renew(sent_s=sent_s, leases=leases), Renewed(held=held, cancelled=cancelled):
            lost = tuple(lease for lease in leases if lease not in held)
            return [Renewals(sent_s=sent_s, ok=True, lost=lost, cancel=tuple(sorted(cancelled)))]
        case Record(number=number), _:
            state.records.popleft()
            return [Recorded(number=number)]
        case Look(), Outlook():
            return _after_look(state, answer, now_s)
        case Reclaim(limit=limit), int():
            state.overdue = answer >= limit
            state.reclaim_at_s = now_s if state.overdue else now_s + state.reclaim_every_s
            if answer:
                state.wake_at_s = now_s
                state.look_at_s = now_s
        case Tick(), int():
            if not answer:  # a run of the schedule that is due is still live
                state.no_tick_before_s = now_s + TICK_AGAIN_S
            state.look_at_s = now_s
            state.tick_at_s = float("inf")
        case StartKicked(limit=limit), int():
            if answer >= limit:
                _make_runs(state, now_s)
            if answer:
                state.wake_at_s = now_s
        case Cancels(), list():
            return [CancelAsked(leases=tuple(answer))] if answer else []
        case Left(), False:
            state.left = None
            return [Nothing()]
        case Left(), _:
            state.left_at_s = now_s + LEFT_EVERY_S
        case Prune(), True:
            state.prune_at_s = now_s
        case Prune(), _:
            state.prune_at_s = now_s + PRUNE_EVERY_S
            state.declare = state.declare or state.declared
        case Forget(), _:
            state.forgotten = True
        case _:
            pass
    return []


def _after_look(state: State, outlook: Outlook, now_s: float) -> list[Message]:
    state.look_at_s = now_s + POLL_S
    if not outlook.due_now:
        state.due_since_s = None
    elif state.due_since_s is None:
        state.due_since_s = now_s
    if outlook.kicked:
        _make_runs(state, now_s)
    # Counted from when we asked: the database says so of the moment when its transaction began, and the answer has taken
    # some milliseconds since. What comes too early finds nothing due, and the look that goes with it says when.
    state.due_at_s = (
        None if outlook.next_due_s is None else state.called_s + outlook.next_due_s + DUE_MARGIN_S
    )
    if outlook.next_tick_s is not None:
        state.tick_at_s = max(now_s + outlook.next_tick_s, state.no_tick_before_s)
    else:
        state.tick_at_s = float("inf")
    if outlook.lease_end_s is not None:
        state.overdue = outlook.lease_end_s <= 0
        state.look_at_s = min(
            state.look_at_s, now_s + max(outlook.lease_end_s + DUE_MARGIN_S, state.reclaim_every_s)
        )
    else:
        state.overdue = False
    return [Woken()] if outlook.due_now else []


def _after_loss(state: State, chance: float, now_s: float) -> list[Message]:
    call, state.call = state.call, None
    state.listening = False
    state.losses += 1
    wait_s = min(RECONNECT_FIRST_S * 2.0 ** min(state.losses - 1, 16), RECONNECT_MAX_S)
    state.retry_at_s = now_s + wait_s * (0.5 + 0.5 * chance)
    match call:
        case Renew(sent_s=sent_s):
            return [Renewals(sent_s=sent_s, ok=False)]
        case Progressed(entries=entries):
            state.progress = dict(entries) | state.progress
        case Report(node=node):
            state.report = state.report or node
        case Cancels():
            state.cancels = True
        case StartKicked():
            _make_runs(state, now_s)
        case Declare():
            state.declare = state.declare or call
        case Forget():
            state.forgotten = True  # others drop it by age
        case _:
            pass
    return []


def _next(state: State, now_s: float) -> Action:
    if state.call is not None:
        return Do(state.call)  # told something before the statement was sent: it is still the next
    if state.stopping and (state.forgotten or now_s < state.retry_at_s):
        if not any(record.tells for record in state.records):
            return Leave(EXIT_OK)
    call = _next_call(state, now_s) if now_s >= state.retry_at_s else None
    if call is not None:
        state.call, state.called_s = call, now_s
        return Do(call)
    return Wait(max(_wake_up_at(state, now_s) - now_s, 0.0))


def _next_call(state: State, now_s: float) -> Call | None:
    if not state.listening:
        return Listen()
    if state.renew is not None:
        renew, state.renew = state.renew, None
        return renew
    if state.records:
        return state.records[0]
    if state.stopping:
        return Forget()
    if state.cancels:
        state.cancels = False
        return Cancels()
    if state.declare is not None:
        declare, state.declare = state.declare, None
        state.look_at_s = now_s
        return declare
    if state.overdue and now_s >= state.reclaim_at_s:
        return Reclaim(RECLAIM_LIMIT)
    if now_s >= state.tick_at_s:
        return Tick()
    if state.kicked_at_s is not None and now_s >= state.kicked_at_s:
        state.kicked_at_s = None
        state.kicked_s = now_s
        return StartKicked(KICK_LIMIT)
    if state.catch_up_at_s is not None and now_s >= state.catch_up_at_s:
        state.catch_up_at_s = None
        return CatchUp()
    if now_s >= state.look_at_s:
        return Look()
    if state.left is not None and now_s >= state.left_at_s:
        return Left(state.left)
    if state.progress:
        entries = tuple(state.progress.items())
        state.progress.clear()
        return Progressed(entries=entries)
    if state.report is not None:
        node, state.report = state.report, None
        return Report(node=node)
    if _asks_who_serves(state, now_s):
        state.unserved_at_s = now_s + UNSERVED_EVERY_S
        return Unserved()
    if now_s >= state.prune_at_s:
        return Prune()
    return None


def _asks_who_serves(state: State, now_s: float) -> bool:
    """At most once a minute; it need not be on time, so the next look is soon enough."""
    if state.due_since_s is None:
        return False
    return now_s >= max(state.due_since_s + UNSERVED_AFTER_S, state.unserved_at_s)


def _wake_up_at(state: State, now_s: float) -> float:
    if now_s < state.retry_at_s:
        return state.retry_at_s
    moments = [state.look_at_s, state.tick_at_s, state.prune_at_s]
    if state.due_at_s is not None:
        moments.append(state.due_at_s)
    if state.wake_at_s is not None:
        moments.append(state.wake_at_s)
    if state.kicked_at_s is not None:
        moments.append(state.kicked_at_s)
    if state.catch_up_at_s is not None:
        moments.append(state.catch_up_at_s)
    if state.overdue:
        moments.append(state.reclaim_at_s)
    if state.left is not None:
        moments.append(state.left_at_s)
    return min(moments)
