"""Where schedules meet the store: ask the rules what a due tick means, and carry it out.

Any number of schedulers may do it at once. One of them moves a schedule on and pushes the tick's job in the same
transaction, and the job's id is made of the schedule's name and the tick's time: so a tick makes one job.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from runtime.edges import log
from runtime.edges.ids import tick_id
from runtime.edges.store import Store
from runtime.errors import ScheduleInvalid
from runtime.model.jobs import SCHEDULE_PREFIX, NewJob, NewSchedule, ScheduleView
from runtime.rules.schedule import Cron, Every, after_tick

_decoder: msgspec.json.Decoder[Cron | Every] = msgspec.json.Decoder(Cron | Every)


def rule_of(spec: msgspec.Raw | str) -> Cron | Every:
    """When a schedule is due.

    Raises:
        ScheduleInvalid: the stored rule is none that this program knows.
    """
    try:
        return _decoder.decode(spec)
    except msgspec.DecodeError as error:
        raise ScheduleInvalid("spec", str(error)) from error


def tick(store: Store, limit: int = 100) -> int:
    """Push the jobs of ticks that are due; how many schedules were moved on."""
    moved = 0
    for schedule in store.overdue(limit):
        try:
            what = after_tick(rule_of(schedule.spec), schedule.due, store.now(), schedule.missed)
        except ScheduleInvalid as error:  # written by another program: it must not stop the others
            store.pause(schedule.name)
            log.event("error", "schedule.paused", schedule=schedule.name, reason=str(error))
            continue
        overlaps = schedule.overlap == "skip" and schedule.live and what.run is not None
        job = None if what.run is None or overlaps else job_of(schedule, what.run)
        if not store.advance(schedule.name, schedule.due, what.due, job):
            continue
        moved += 1
        skipped = what.skipped + overlaps
        if skipped:
            fields: dict[str, Any] = {
                "schedule": schedule.name,
                "count": skipped,
                "next": what.due.isoformat(),
            }
            reason = "the last run is not over" if overlaps else "their time had passed"
            log.event("warning", "ticks.skipped", reason=reason, **fields)
    return moved


def job_of(schedule: ScheduleView, due: datetime, id: str | None = None) -> NewJob:
    """The job of one tick, or with an `id` of its own one between the ticks."""
    return NewJob(
        id=tick_id(schedule.name, due) if id is None else id,
        kind=schedule.kind,
        payload=bytes(schedule.payload).decode(),
        queue=schedule.queue,
        priority=schedule.priority,
        due=due,
        unique=SCHEDULE_PREFIX + schedule.name if schedule.overlap == "skip" else None,
    )


def declare(store: Store, schedules: Sequence[NewSchedule], kinds: Sequence[str], node: str = "") -> None:
    """Make the schedules that stand in code, and take out those that no longer do.

    A kind that this program does not know may be another's: its schedule stays while another node knows the kind.
    """
    now = store.now()
    elsewhere = {kind for other in store.nodes() if other.id != node for kind in other.kinds}
    for schedule in schedules:
        first = rule_of(schedule.spec).next(now)
        if store.schedule(msgspec.structs.replace(schedule, due=first)):
            log.event("info", "schedule.made", schedule=schedule.name, due=first.isoformat())
    declared = {schedule.name for schedule in schedules}
    for known in store.schedules():
        ours = known.kind in kinds or known.kind not in elsewhere
        if known.declared and known.name not in declared and ours:
            store.unschedule(known.name)
            log.event("info", "schedule.removed", schedule=known.name, reason="it stands in code no longer")
