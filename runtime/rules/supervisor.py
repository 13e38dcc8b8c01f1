"""The supervisor's judgement: who is started, watched, asked, killed and blamed, and when to stop.

`step` takes one event and gives the effects, in order. It never waits: time comes in with each event, and
`next_at` says when the next one must come at the latest. What a worker is running is read from its board
with the effect Look, answered by Looked at once; so a short job costs the supervisor nothing.

A death is judged once, in `_after_worker`: what the journal holds has ended; the job on the board is charged
by proof (`rules/budgets.py`); whatever else the dead worker held was never started and goes back.
"""

from __future__ import annotations

from runtime.model.exits import EXIT_OK, EXIT_RECYCLED, Verdict
from runtime.model.jobs import Holder, Lease, NodeView, Settlement, WorkerView
from runtime.model.messages import (
    AnythingLeft,
    CancelAsked,
    Claimed,
    Declare,
    FromChild,
    Nothing,
    Progressed,
    Ready,
    Record,
    Recorded,
    Renew,
    Renewals,
    Report,
    Unready,
    Wake,
    Woken,
)
from runtime.rules import restart
from runtime.rules.attempts import (
    GENTLE,
    HOARD_S,
    Glance,
    Intent,
    batch_of,
    ends_now,
    hoards_at_s,
    next_look_at_s,
    settle_dead,
    verdict,
)
from runtime.rules.fleet import (
    POSTGRES,
    SCHEDULER,
    Asked,
    Begun,
    DumpStacks,
    Effect,
    Event,
    Exited,
    Garbled,
    Heard,
    Hold,
    Log,
    Look,
    Looked,
    Revoke,
    Say,
    Slot,
    Spawn,
    Spawned,
    SpawnFailed,
    State,
    Taken,
    Tick,
    Warn,
    kill,
    role_of,
)
from runtime.rules.lease import needs_renewal
from runtime.rules.stopping import advance_reload, advance_stop, ask_stop, finish, stop_worker

ROUND_S = 1.0  # progress and the node's report are gathered once a round
REPORT_EVERY_S = 10.0  # also when nothing has changed: a node not seen for longer is lost
RECORD_TRIES = 3  # schedulers that may die over one record
LEFT_EVERY_S = 0.5  # how often the scheduler is asked whether anything is left


def step(state: State, event: Event, now_s: float) -> tuple[State, list[Effect]]:
    """Take in one event; the state is changed in place. Effects are to be carried out in order."""
    out: list[Effect] = []
    match event:
        case Begun() | Tick():
            pass
        case Spawned(name, pid):
            _after_spawn(state, state.slots[name], pid, now_s)
        case SpawnFailed(name, reason, chance):
            out.append(Log("error", "child.unstartable", {"child": name, "reason": reason}))
            _blame_environment(state, state.slots[name], 0.0, now_s, chance, out)
        case Heard(name, message):
            if state.slots[name].alive:
                _hear(state, state.slots[name], message, now_s, out)
        case Garbled(name, reason):
            out.append(Log("error", "child.garbled", {"child": name, "reason": reason}))
            state.slots[name].intent = Intent(Verdict.ENVIRONMENT, 0, now_s)
            kill(state.slots[name], out)
        case Looked(name, glance):
            _judge(state, state.slots[name], glance, now_s, out)
            if name in state.looking:
                state.looking.discard(name)
                if not state.looking:
                    _end_round(state, now_s, out)
        case Taken(name, numbers):
            slot = state.slots[name]
            _take_back(state, slot, slot.taken | set(numbers), out)  # some may still wait for their batch
            if not numbers:
                _break_promises(state, now_s)
        case Exited():
            _after_exit(state, state.slots[event.name], event, now_s, out)
        case Asked("stop"):
            ask_stop(state, now_s, out)
        case Asked("reload"):
            for slot in state.slots.values():
                slot.stale = slot.alive and slot.name != POSTGRES
            out.append(Log("info", "reload.asked", {}))
    _advance(state, now_s, out, heard_all=isinstance(event, Tick))
    return state, out


def next_at(state: State) -> float:
    """The moment (monotonic seconds) of the next Tick, unless something happens before."""
    moments = [state.stop_by_s, state.warn_at_s, *(slot.check_at_s for slot in state.slots.values())]
    for slot in state.slots.values():
        health = state.health[role_of(slot.name)]
        if slot.phase == "waiting" and _is_wanted(state, slot) and not _is_gated(state, slot):
            moments.append(health.not_before_s)
        elif slot.phase == "starting" and not slot.killed:
            moments.append(slot.since_s + state.settings.ready_within_s)
        elif slot.phase == "up" and health.deaths and slot.since_s >= health.not_before_s:
            wait_s = state.settings.restart.healthy_after_s if health.proven else restart.PROBE_S
            moments.append(slot.since_s + wait_s)
    if state.scheduler.phase == "up":
        moments.append(min(state.renew_at_s, state.round_at_s))
        if state.settings.until_idle and state.phase == "running" and _all_idle(state):
            moments.append(state.left_asked_s + LEFT_EVERY_S)
    return min(moments)


# -- children come up


def _after_spawn(state: State, slot: Slot, pid: int, now_s: float) -> None:
    state.slots[slot.name] = Slot(slot.name, phase="starting", pid=pid, since_s=now_s)
    if slot.name == POSTGRES:
        state.slots[slot.name].phase = "up"


def _start_children(state: State, now_s: float, out: list[Effect]) -> None:
    for slot in state.slots.values():
        if slot.phase == "waiting" and _is_wanted(state, slot) and not _is_gated(state, slot):
            if now_s >= state.health[role_of(slot.name)].not_before_s:
                slot.phase = "starting"  # from now on: the next slot's gate must see it
                slot.since_s = now_s
                out.append(Spawn(slot.name))


def _is_wanted(state: State, slot: Slot) -> bool:
    return state.phase == "running" or (not slot.is_worker and state.phase in ("draining", "forced"))


def _is_gated(state: State, slot: Slot) -> bool:
    """Whether this slot waits for a probe of its role: one that starts, or has yet to prove itself."""
    role = role_of(slot.name)
    health = state.health[role]
    if health.proven:
        return False
    return any(
        role_of(other.name) == role
        and (
            other.phase == "starting"
            or (other.phase == "up" and health.deaths > 0 and other.since_s >= health.not_before_s)
        )
        for other in state.slots.values()
    )


def _watch_starts(state: State, now_s: float, out: list[Effect]) -> None:
    policy = state.settings.restart
    for slot in state.slots.values():
        if slot.phase == "starting" and not slot.killed:
            if now_s >= slot.since_s + state.settings.ready_within_s:
                out.append(
                    Log("error", "child.not_ready", {"child": slot.name, "after_s": now_s - slot.since_s})
                )
                slot.intent = Intent(Verdict.ENVIRONMENT, 0, now_s)  # it may yet begin a job before it dies
                kill(slot, out)
        elif slot.phase == "up":
            role = role_of(slot.name)
            health = state.health[role]
            if (health.deaths or not health.proven) and slot.since_s >= health.not_before_s:
                state.health[role] = restart.after_ready(health, slot.since_s, now_s, policy)
    unhealthy = bool(state.broken)
    for health in state.health.values():
        unhealthy = unhealthy or restart.is_unhealthy(health, policy)
    if unhealthy != state.unhealthy:
        state.unhealthy = unhealthy
        if unhealthy:
            deaths = {role: health.deaths for role, health in state.health.items() if health.deaths}
            out.append(Log("error", "service.unhealthy", {"deaths": deaths, "broken": sorted(state.broken)}))
        else:
            out.append(Log("info", "service.healthy", {}))


# -- children speak


def _hear(state: State, slot: Slot, message: FromChild, now_s: float, out: list[Effect]) -> None:
    match message:
        case Ready():
            _after_ready(state, slot, message, now_s, out)
        case Unready(reason=reason):
            out.append(Log("error", "child.unready", {"child": slot.name, "reason": reason}))
        case Claimed():
            _after_claim(state, slot, message, now_s, out)
        case Woken():
            _wake_one(state, out)
        case Renewals():
            _after_renewal(state, message, out)
        case CancelAsked(leases=leases):
            _note_cancels(state, leases, out)
        case Recorded(number=number):
            while state.records and state.records[0].number <= number:
                state.records.popleft()
        case Nothing():
            if state.phase == "running" and _all_idle(state):
                out.append(Log("info", "service.idle", {}))
                ask_stop(state, now_s, out)


def _after_ready(state: State, slot: Slot, message: Ready, now_s: float, out: list[Effect]) -> None:
    slot.kinds = message.kinds
    if slot.killed:  # too late
        return
    slot.phase = "up"
    slot.since_s = now_s
    state.round_at_s = min(state.round_at_s, now_s + ROUND_S)
    out.append(Log("info", "child.ready", {"child": slot.name, "pid": slot.pid}))
    if slot.name == state.replacing:
        state.replacing = None
    if slot.name == SCHEDULER:
        state.renew_at_s = state.round_at_s = now_s
        state.renewing.clear()
        state.reported_s = float("-inf")
        out += [Say(SCHEDULER, record) for record in state.records]
        if state.declared is not None:
            out.append(Say(SCHEDULER, state.declared))
        return
    declared = Declare(schedules=message.schedules, kinds=tuple(sorted(message.kinds)))
    if declared != state.declared:
        state.declared = declared
        if state.scheduler.phase == "up":
            out.append(Say(SCHEDULER, declared))
    for module, reason in message.broken.items():
        if state.broken.get(module) != reason:
            out.append(Log("error", "handlers.broken", {"module": module, "reason": reason}))
    state.broken = message.broken
    if state.phase != "running":
        stop_worker(slot, out)


def _after_claim(state: State, slot: Slot, message: Claimed, now_s: float, out: list[Effect]) -> None:
    slot.glance = Glance()
    if not slot.killed:  # else the intent explains the death that is to come
        slot.intent = None
    slot.taken = {number for number in slot.taken if number >= message.first}
    if not message.claims:
        slot.batch, slot.idle, slot.promised, slot.check_at_s = None, True, False, float("inf")
        if state.wake_pending:
            _wake_one(state, out)
        _seek_hoards(state, now_s)
        return
    slot.idle = False
    slot.batch = batch_of(message, now_s)
    slot.check_at_s = next_look_at_s(
        slot.batch, slot.glance, None, slot.kinds, state.settings.bounds, now_s, idle=_is_any_wanting(state)
    )
    if now_s >= message.sent_s + HOARD_S:
        slot.check_at_s = now_s  # heard of late: some of its limits may have passed
    state.round_at_s = min(state.round_at_s, now_s + ROUND_S)
    if message.full:
        _wake_one(state, out, remember=False)
    if slot.taken:
        _take_back(state, slot, slot.taken, out)
    if slot.phase == "stopping":
        out.append(Revoke(slot.name))


def _wake_one(state: State, out: list[Effect], *, remember: bool = True) -> None:
    """Wake one idle worker; it reports what it got, and a full batch wakes the next."""
    idle = [slot for slot in state.workers if _can_take(slot)]
    if not idle:
        state.wake_pending |= remember
        return
    slot = max(idle, key=lambda slot: slot.promised)  # the first of them
    slot.idle = False
    state.wake_pending = False
    out.append(Say(slot.name, Wake()))


def _can_take(slot: Slot) -> bool:
    return slot.idle and slot.phase == "up" and not slot.killed


def _is_any_wanting(state: State) -> bool:
    return any(_can_take(slot) and not slot.promised for slot in state.workers)


def _promise_to_one(state: State) -> None:
    """What has been taken back will do for one idle worker; it comes with a Wake."""
    for slot in state.workers:
        if _can_take(slot) and not slot.promised:
            slot.promised = True
            return


def _break_promises(state: State, now_s: float) -> None:
    """There was nothing to take back where we looked: look at the others."""
    for slot in state.workers:
        slot.promised = False
    _seek_hoards(state, now_s)


def _seek_hoards(state: State, now_s: float) -> None:
    """While a worker has nothing to do: does another one hold more than it has to?"""
    for slot in state.workers if _is_any_wanting(state) else ():
        if slot.batch and len(slot.batch.claims) > 1 and not slot.batch.revoked:
            slot.check_at_s = now_s


def _all_idle(state: State) -> bool:
    return not state.records and all(slot.idle and slot.phase == "up" for slot in state.workers)


def _note_cancels(state: State, leases: tuple[Lease, ...], out: list[Effect]) -> None:
    for slot in state.workers:
        for lease in leases:
            number = slot.batch.number_of(lease) if slot.batch else None
            if slot.batch and number is not None and number not in slot.batch.cancels:
                slot.batch.cancels.add(number)
                out += [Warn(slot.name, number, "cancel"), Look(slot.name)]


# -- leases


def _renew(state: State, now_s: float, out: list[Effect]) -> None:
    if now_s < state.renew_at_s:
        return
    every_s = state.settings.renew_every_s
    state.renew_at_s = now_s + every_s
    if state.renewing and now_s - min(state.renewing) > max(2 * every_s, 1.0):
        out.append(Log("error", "scheduler.silent", {"for_s": round(now_s - min(state.renewing), 3)}))
        kill(state.scheduler, out)
        return
    leases = [
        held.lease
        for slot in state.workers
        if slot.batch and needs_renewal(slot.batch.confirmed_s, every_s, now_s)
        for held in slot.batch.claims.values()
    ]
    if leases:
        state.renewing[now_s] = frozenset(leases)
        out.append(Say(SCHEDULER, Renew(sent_s=now_s, leases=tuple(leases))))


def _after_renewal(state: State, message: Renewals, out: list[Effect]) -> None:
    asked = state.renewing.get(message.sent_s, frozenset())
    for sent_s in [sent_s for sent_s in state.renewing if sent_s <= message.sent_s]:
        del state.renewing[sent_s]
    if not message.ok:
        return
    for slot in state.workers:
        batch = slot.batch
        if batch is None or not any(held.lease in asked for held in batch.claims.values()):
            continue
        batch.confirmed_s = max(batch.confirmed_s, message.sent_s)
        out.append(Hold(slot.name, max(batch.claims), state.settings.bounds.fence_at_s(batch)))
        lost = {number for lease in message.lost if (number := batch.number_of(lease)) is not None}
        if lost:
            batch.lost |= lost
            out.append(Look(slot.name))
    _note_cancels(state, message.cancel, out)


# -- a worker at work


def _judge(state: State, slot: Slot, glance: Glance, now_s: float, out: list[Effect]) -> None:
    """What a worker's board means now: nothing, a warning, or the end of the process."""
    slot.glance = glance
    batch, slot.check_at_s = slot.batch, float("inf")
    if batch is None or slot.killed:
        return
    bounds, held = state.settings.bounds, batch.claims.get(glance.number)
    if slot.intent is not None and slot.intent.number != glance.number:
        slot.intent = None  # the job it was for has ended by itself
    why = verdict(batch, glance, slot.kinds[held.kind], bounds, now_s) if held is not None else None
    standing = slot.intent.verdict if slot.intent is not None else None
    if why is not None and why is not standing and standing in (None, Verdict.CANCELLED):
        kill_at_s = now_s + bounds.kill_after_s if why in GENTLE else now_s
        slot.intent = Intent(why, glance.number, kill_at_s)
        if why is Verdict.TIMEOUT:
            out += [DumpStacks(slot.name), Warn(slot.name, glance.number, "timeout")]
        elif why is Verdict.STALLED:
            out += [DumpStacks(slot.name), Warn(slot.name, glance.number, "stall")]
    if slot.intent is not None and ends_now(slot.intent, why, now_s):
        kill(slot, out)
        return
    waiting, idle = len(batch.claims) > 1 or held is None, _is_any_wanting(state)
    if waiting and not batch.revoked and now_s >= hoards_at_s(batch, glance, now_s, idle=idle):
        batch.revoked = True
        _promise_to_one(state)
        out.append(Revoke(slot.name))
    slot.check_at_s = next_look_at_s(batch, glance, slot.intent, slot.kinds, bounds, now_s, idle=idle)


def _take_back(state: State, slot: Slot, numbers: set[int], out: list[Effect]) -> None:
    """Give claims back that were revoked; those of a batch we have not heard of yet, when we do."""
    held = slot.batch.claims if slot.batch else {}
    found = sorted(numbers & held.keys())
    slot.taken = numbers.difference(found)
    unstarted = tuple(held.pop(number).lease for number in found)
    if unstarted:
        _record(state, out, unstarted=unstarted)


def _record(
    state: State,
    out: list[Effect],
    settlements: tuple[Settlement, ...] = (),
    unstarted: tuple[Lease, ...] = (),
    dead: Holder | None = None,
) -> None:
    state.record_number += 1
    record = Record(number=state.record_number, settlements=settlements, unstarted=unstarted, dead=dead)
    state.records.append(record)
    if state.scheduler.phase == "up":
        out.append(Say(SCHEDULER, record))


# -- children die


def _after_exit(state: State, slot: Slot, event: Exited, now_s: float, out: list[Effect]) -> None:
    lived_s = now_s - slot.since_s if slot.phase in ("up", "stopping") else 0.0
    out.append(
        Log(
            "debug" if event.exit.code in (EXIT_OK, EXIT_RECYCLED) else "warning",
            "child.exited",
            {"child": slot.name, "pid": slot.pid, "how": str(event.exit)},
        )
    )
    on_purpose = slot.phase == "stopping" or (slot.is_worker and event.exit.code == EXIT_RECYCLED)
    blamed_on_job = slot.is_worker and _after_worker(state, slot, event, out)
    asked_to_die = slot.intent is not None and slot.intent.verdict is not Verdict.ENVIRONMENT
    state.slots[slot.name] = Slot(slot.name)
    if slot.name == SCHEDULER:
        state.renewing.clear()
        if state.phase == "closing":
            finish(state, out)
            return
        if slot.phase == "up" and state.records:
            _suspect_record(state, out)
    if on_purpose or asked_to_die or (blamed_on_job and slot.intent is None):
        return
    _blame_environment(state, state.slots[slot.name], lived_s, now_s, event.chance, out)


def _suspect_record(state: State, out: list[Effect]) -> None:
    """A scheduler died with this record before it: the third time, the record goes. Its leases will run out."""
    number, died = state.tries
    first = state.records[0].number
    state.tries = (first, died + 1 if number == first else 1)
    if state.tries[1] >= RECORD_TRIES:
        state.records.popleft()
        out.append(Log("error", "record.dropped", {"number": first, "then": "its leases run out"}))


def _after_worker(state: State, slot: Slot, event: Exited, out: list[Effect]) -> bool:
    """Put on record what a dead worker leaves; whether its death was that of a job."""
    remains = event.remains
    settlements = remains.settlements
    held = slot.batch.claims.get(remains.glance.number) if slot.batch else None
    running = held is not None and held.lease not in {one.lease for one in settlements}
    if held is not None and running:
        limits = slot.kinds[held.kind]
        settled = settle_dead(held, limits, slot.intent, event.exit, remains, event.chance)
        settlements += (settled,)
        fields: dict[str, object] = {
            "job": held.lease.id,
            "kind": held.kind,
            "attempt": held.attempt,
            "code": settled.code,
            "error": _name_of(settled),
            "ending": str(settled.ending),
            "state": str(settled.state),
            "retry_in_s": round(settled.delay_s, 3),
            "how": str(event.exit),
        }
        if remains.glance.settles:
            fields["unless"] = "its handler had completed it"
        out.append(Log("warning", "attempt.ended", fields))
    if slot.pid is not None and slot.kinds:  # before it is ready it has claimed nothing
        holder = Holder(state.settings.node, _worker_number(slot.name), slot.pid)
        _record(state, out, settlements, dead=holder)
    if not slot.idle and slot.phase == "up":
        _wake_one(state, out)  # a wake that it was given may have died with it
    return running


def _name_of(settled: Settlement) -> str | None:
    """What the log calls a death: as a failure the error's class, else the verdict."""
    if settled.error is not None:
        return settled.error.class_
    return None if settled.certificate is None else str(settled.certificate.verdict)


def _worker_number(name: str) -> int:
    return int(name.partition(" ")[2])


def _blame_environment(
    state: State, slot: Slot, lived_s: float, now_s: float, chance: float, out: list[Effect]
) -> None:
    role = role_of(slot.name)
    slot.phase, slot.pid = "waiting", None
    if state.replacing == slot.name:
        state.replacing = None
        for other in state.slots.values():
            other.stale = False
        out.append(Log("error", "reload.stopped", {"child": slot.name, "others": "keep the code they have"}))
    health = restart.after_death(state.health[role], lived_s, now_s, chance, state.settings.restart)
    state.health[role] = health
    out.append(
        Log(
            "warning",
            "child.restarts",
            {
                "child": slot.name,
                "in_s": round(health.not_before_s - now_s, 3),
                "deaths_in_a_row": health.deaths,
            },
        )
    )


# -- what time brings


def _advance(state: State, now_s: float, out: list[Effect], *, heard_all: bool) -> None:
    """What time alone brings. Nobody is called silent before all is heard that waited in the pipes: we may be late."""
    if heard_all:
        _watch_starts(state, now_s, out)
    advance_stop(state, now_s, out)
    advance_reload(state, out)
    _start_children(state, now_s, out)
    for slot in state.workers:
        if now_s >= slot.check_at_s:
            slot.check_at_s = float("inf")
            _look(state, slot, out)
    if state.scheduler.phase == "up":
        if heard_all:
            _renew(state, now_s, out)
        _round(state, now_s, out)
        _ask_whether_idle(state, now_s, out)


def _look(state: State, slot: Slot, out: list[Effect]) -> None:
    bounds, held = state.settings.bounds, slot.batch.claims.values() if slot.batch else ()
    out.append(Look(slot.name, memory=any(bounds.memory_of(slot.kinds[one.kind]) for one in held)))


def _round(state: State, now_s: float, out: list[Effect]) -> None:
    """Once a second while there is work: pass on how far the jobs are and what this node looks like."""
    if now_s < state.round_at_s:
        return
    busy = [slot for slot in state.workers if slot.batch is not None]
    state.round_at_s = now_s + (ROUND_S if busy else REPORT_EVERY_S)
    state.looking = {slot.name for slot in busy}
    for slot in busy:
        _look(state, slot, out)
    if not busy:
        _end_round(state, now_s, out)


def _end_round(state: State, now_s: float, out: list[Effect]) -> None:
    """All boards have been read: say what they show."""
    if state.scheduler.phase != "up":
        return
    entries = []
    for slot in state.workers:
        held, told = slot.running(), (slot.glance.number, slot.glance.progress)
        if held is not None and slot.glance.progress is not None and told != slot.told_progress:
            slot.told_progress = told
            entries.append((held.lease, slot.glance.progress))
    if entries:
        out.append(Say(SCHEDULER, Progressed(entries=tuple(entries))))
    report = _view(state)
    if report != state.report or now_s - state.reported_s >= REPORT_EVERY_S:
        state.report, state.reported_s = report, now_s
        out.append(Say(SCHEDULER, Report(node=report)))


def _ask_whether_idle(state: State, now_s: float, out: list[Effect]) -> None:
    if not state.settings.until_idle or state.phase != "running" or not _all_idle(state):
        return
    if now_s >= state.left_asked_s + LEFT_EVERY_S:
        state.left_asked_s = now_s
        kinds = sorted({kind for slot in state.workers for kind in slot.kinds})
        out.append(Say(SCHEDULER, AnythingLeft(kinds=tuple(kinds))))


def _view(state: State) -> NodeView:
    settings = state.settings
    shown = "unhealthy" if state.unhealthy else "running" if state.phase == "running" else "draining"
    workers = []
    for slot in state.slots.values():
        held = slot.running()
        doing: str = slot.phase
        if slot.is_worker and slot.phase == "up":
            doing = "running" if held else "idle" if slot.idle else "settling"
        kind, job = (held.kind, held.lease.id) if held else (None, None)
        workers.append(WorkerView(name=slot.name, pid=slot.pid, state=doing, kind=kind, job=job))
    return NodeView(
        id=settings.node,
        host=settings.host,
        pid=settings.pid,
        version=settings.version,
        state=shown,
        workers=workers,
        kinds=sorted({kind for slot in state.workers for kind in slot.kinds}),
        queues=list(settings.queues),
    )
