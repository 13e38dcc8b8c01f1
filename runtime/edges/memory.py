"""The job store in plain dictionaries: the executable definition of the contract, for tests and the simulator.

It is deterministic: no clock but the one given, no chance, no threads; everything is walked in a fixed
order. All jobs sit in one dictionary whatever their state, so a move is an assignment.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from runtime.edges import values
from runtime.edges.ids import canonical, tick_id
from runtime.edges.lanes import Lane, Lanes
from runtime.errors import QueueFull
from runtime.model.exits import Progress
from runtime.model.jobs import (
    ALL_KEPT,
    CHARGES,
    HISTORY_LIMIT,
    KIND_BYTES,
    PRIORITIES,
    QUEUE_BYTES,
    SCHEDULE_PREFIX,
    UNIQUE_BYTES,
    Attempt,
    Budget,
    Claim,
    Counts,
    Ending,
    Exchanged,
    Holder,
    JobView,
    Kept,
    Kick,
    Lease,
    NewJob,
    NewSchedule,
    NodeView,
    Outlook,
    QueueCount,
    Renewed,
    ScheduleView,
    Settlement,
    State,
    Texts,
    Want,
)

LIVE = (State.QUEUED, State.RUNNING)
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # the escape, and not a backslash before "u0000"
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass
class _Job:
    """One job with all that is known of it."""

    id: str
    kind: str
    queue: str
    priority: int
    due: datetime
    payload: str
    unique: str | None
    created: datetime
    state: State = State.QUEUED
    attempt: int = 0
    epoch: int = 0
    failures: int = 0
    crashes: int = 0
    interruptions: int = 0
    holder: Holder | None = None
    started: datetime | None = None
    lease_until: datetime | None = None
    cancel: bool = False
    finished: datetime | None = None
    result: str | None = None
    progress: Progress | None = None
    history: list[Attempt] = field(default_factory=list)

    @property
    def lane(self) -> Lane:
        return (self.priority, self.queue)

    @property
    def lease(self) -> Lease:
        return Lease(self.id, self.epoch)


@dataclass
class _Schedule:
    """One schedule with its state."""

    given: NewSchedule
    due: datetime
    paused: bool = False
    last: datetime | None = None


def _bytes_of(job: _Job) -> int:
    """About how many bytes a job is: its texts, and a hundred for the rest."""
    return 100 + len(job.payload) + len(job.kind) + len(job.queue) + len(job.unique or "")


class MemoryStore:
    """A job store in memory.

    Args:
        clock: the store's now, an aware datetime.
        max_bytes: of all jobs that are not ended, about; a push above it raises QueueFull. None: no bound.
        check_epoch: False switches the fence off, so that a lease of an old epoch still settles. Only
            for the test that shows the simulator would find the double settle.
        kept: which words of an attempt are stored.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        check_epoch: bool = True,
        max_bytes: int | None = None,
        kept: Kept = ALL_KEPT,
    ) -> None:
        self._clock = clock
        self._kept = kept
        self._check_epoch = check_epoch
        self._max_bytes = max_bytes
        self._jobs: dict[str, _Job] = {}
        self._schedules: dict[str, _Schedule] = {}
        self._nodes: dict[str, NodeView] = {}
        self._kicks: dict[str, list[Kick]] = {}  # by kind, the latest last
        self._runs_kicked = 0  # so far
        self._lanes = Lanes()

    # -- schema

    def install(self) -> None:
        """Nothing to make."""

    def check(self) -> None:
        """Never outdated."""

    # -- for applications and people

    def push(self, jobs: Sequence[NewJob]) -> list[str | None]:
        new = self._new(jobs)
        answers: dict[str, str | None] = {}
        for job in new:
            if job.id not in answers:
                answers[job.id] = self._add(job)
        return [answers[job.id] for job in new]

    def push_new(self, jobs: Sequence[NewJob]) -> None:
        self.push(jobs)

    def push_unique(self, job: NewJob, *, replace: bool = False) -> str | None:
        [new] = self._new([job])
        added = self._add(new)
        holder = self._holder(new)
        if added is not None or holder is None:
            return added
        if not replace:
            return holder.id
        if holder.state is State.RUNNING:
            return None
        holder.due, holder.queue, holder.priority, holder.payload = (
            new.due,
            new.queue,
            new.priority,
            new.payload,
        )
        return holder.id

    def _new(self, jobs: Sequence[NewJob]) -> list[_Job]:
        """Jobs that keep the rules, and for which there is room."""
        now = self._clock()
        new = [_new_job(job, now) for job in jobs]
        if self._max_bytes is not None:
            size = sum(_bytes_of(job) for job in (*self._live(), *new))
            if size > self._max_bytes:
                raise QueueFull(f"{size} bytes of jobs, {self._max_bytes} are allowed")
        return new

    def _add(self, job: _Job) -> str | None:
        if job.id in self._jobs:
            return job.id
        if self._holder(job) is not None:
            return None
        self._jobs[job.id] = job
        return job.id

    def _holder(self, job: _Job) -> _Job | None:
        """The live job of the same kind that has the unique key of this one."""
        if job.unique is None:
            return None
        same = (other for other in self._live() if (other.kind, other.unique) == (job.kind, job.unique))
        return next(same, None)

    def kick(self, kicks: Sequence[Kick]) -> None:
        now = self._clock()
        for kick in kicks:
            _run_of(kick, 0, now)
        for kick in kicks:
            self._kicks.setdefault(kick.kind, []).append(kick)

    def reschedule(self, id: str, due: datetime | None = None, delay_s: float = 0.0) -> bool:
        values.check_due(due, f"job {id}")
        at = due or self._clock() + timedelta(seconds=values.delay(delay_s))
        job = self._find(id)
        if job is None or job.state is not State.QUEUED:
            return False
        if not _EARLIEST <= at < _LATEST:
            raise ValueError(f"job {id} breaks the rule of due")
        job.due = at.astimezone(UTC)
        return True

    def delete(self, id: str) -> bool:
        job = self._find(id)
        if job is None or job.state is State.RUNNING:
            return False
        del self._jobs[job.id]
        return True

    def cancel(self, id: str) -> State | None:
        job = self._find(id)
        if job is None or job.state not in LIVE:
            return None
        if job.state is State.RUNNING:
            job.cancel = True
            return State.RUNNING
        self._end(job, State.CANCELLED)
        return State.CANCELLED

    def retry(self, id: str) -> bool:
        job = self._find(id)
        if job is None or job.state is not State.DEAD:
            return False
        if self._holder(job) is not None:
            return False
        job.attempt = job.failures = job.crashes = job.interruptions = 0
        job.finished = None
        self._queue(job, self._clock())
        return True

    def retry_all(self, kind: str) -> int:
        dead = [job.id for job in self._jobs.values() if job.state is State.DEAD and job.kind == kind]
        return sum(map(self.retry, sorted(dead)))

    def status(self, id: str, *, payload: bool = True) -> JobView | None:
        job = self._find(id)
        if job is None:
            return None
        return msgspec.structs.replace(
            _view(job),
            payload=_raw(job.payload) if payload else None,
            result=_raw(job.result),
            attempts=[*job.history, *_last_attempt(job)],
        )

    def jobs(
        self,
        state: State | None = None,
        kind: str | None = None,
        queue: str | None = None,
        limit: int = 50,
    ) -> list[JobView]:
        found = [
            job
            for job in self._jobs.values()
            if state in (None, job.state) and kind in (None, job.kind) and queue in (None, job.queue)
        ]
        found.sort(key=lambda job: job.id, reverse=True)
        return [_view(job) for job in found[:limit]]

    def dead(self, kind: str | None = None, limit: int = 50) -> list[JobView]:
        found = [job for job in self._jobs.values() if job.state is State.DEAD and kind in (None, job.kind)]
        found.sort(key=lambda job: (job.finished, job.id), reverse=True)
        return [
            msgspec.structs.replace(
                _view(job), attempts=[values.with_texts(one, Texts()) for one in job.history[-1:]]
            )
            for job in found[:limit]
        ]

    def counts(self) -> Counts:
        now = self._clock()
        states = {state.value: 0 for state in State}
        queues: dict[tuple[str, str], list[_Job]] = {}
        for job in self._jobs.values():
            states[job.state] += 1
            if job.state in LIVE:
                queues.setdefault((job.queue, job.kind), []).append(job)
        kicked = Counter((kick.queue, kick.kind) for kicks in self._kicks.values() for kick in kicks)
        return Counts(
            states=states,
            queues=[
                QueueCount(
                    queue=queue,
                    kind=kind,
                    queued=sum(job.state is State.QUEUED for job in jobs),
                    running=sum(job.state is State.RUNNING for job in jobs),
                    oldest_due=min((job.due for job in jobs if _is_due(job, now)), default=None),
                    kicked=kicked[queue, kind],
                )
                for queue, kind in sorted({*queues, *kicked})
                for jobs in [queues.get((queue, kind), [])]
            ],
        )

    def waiting(self, limit: int = 100) -> list[QueueCount]:
        now = self._clock()
        lanes: dict[Lane, list[_Job]] = {}
        for job in sorted(self._jobs.values(), key=lambda job: (job.due, job.id)):
            if _is_due(job, now):
                lanes.setdefault(job.lane, []).append(job)
        found: dict[tuple[str, str], list[datetime]] = {}
        for jobs in lanes.values():
            for job in jobs[:limit]:
                found.setdefault((job.queue, job.kind), []).append(job.due)
        return [
            QueueCount(queue=queue, kind=kind, queued=len(dues), running=0, oldest_due=min(dues))
            for (queue, kind), dues in sorted(found.items())
        ]

    def nodes(self) -> list[NodeView]:
        return sorted(self._nodes.values(), key=lambda node: node.id)

    def schedule(self, schedule: NewSchedule) -> bool:
        values.check_schedule(schedule)
        job = NewJob(
            id=tick_id(schedule.name, _EARLIEST),
            kind=schedule.kind,
            payload=schedule.payload,
            queue=schedule.queue,
            priority=schedule.priority,
            due=schedule.due,
        )
        first = _new_job(job, self._clock()).due
        if not _is_json(schedule.spec):
            raise ValueError(f"schedule {schedule.name!r} has a rule that is not JSON")
        known = self._schedules.get(schedule.name)
        if known is None:
            self._schedules[schedule.name] = _Schedule(schedule, first)
            return True
        if json.loads(known.given.spec) != json.loads(schedule.spec):
            known.due = min(known.due, first)
        known.given = schedule
        return False

    def unschedule(self, name: str) -> bool:
        return self._schedules.pop(name, None) is not None

    def pause(self, name: str, paused: bool = True) -> bool:
        if name in self._schedules:
            self._schedules[name].paused = paused
        return name in self._schedules

    def schedules(self) -> list[ScheduleView]:
        return [self._shown(name) for name in sorted(self._schedules)]

    def _shown(self, name: str) -> ScheduleView:
        one = self._schedules[name]
        return ScheduleView(
            name=name,
            kind=one.given.kind,
            spec=msgspec.Raw(one.given.spec.encode()),
            payload=msgspec.Raw(one.given.payload.encode()),
            queue=one.given.queue,
            priority=one.given.priority,
            overlap=one.given.overlap,
            missed=one.given.missed,
            declared=one.given.declared,
            paused=one.paused,
            due=one.due,
            last=one.last,
            live=self._has_run(name),
        )

    def now(self) -> datetime:
        return self._clock()

    # -- for workers

    def exchange(self, settlements: Sequence[Settlement], want: Want | None) -> Exchanged:
        kept = self.settle(settlements)
        claims = self.claim(want) if want is not None else []
        return Exchanged(kept=tuple(kept), claims=tuple(claims))

    def claim(self, want: Want) -> list[Claim]:
        now = self._clock()
        if want.rewind or not self._lanes:
            self._lanes.rewind({job.lane for job in self._jobs.values() if _is_due(job, now)})
        claims: list[Claim] = []
        for lane, position in self._lanes.walk(want.queues):
            jobs = [
                job
                for job in self._jobs.values()
                if _is_due(job, now)
                and job.lane == lane
                and job.kind in want.kinds
                and (position is None or (job.due, job.id) > position)
            ]
            jobs.sort(key=lambda job: (job.due, job.id))
            for job in jobs[: max(want.limit - len(claims), 0)]:
                self._lanes.pass_by(lane, (job.due, job.id))
                claims.append(self._take(job, want, now))
        return claims

    def _take(self, job: _Job, want: Want, now: datetime) -> Claim:
        job.state = State.RUNNING
        job.attempt += 1
        job.epoch += 1
        job.holder = want.holder
        job.started = now
        job.lease_until = now + timedelta(seconds=want.lease_s)
        job.progress = None
        return Claim(
            lease=job.lease,
            kind=job.kind,
            queue=job.queue,
            priority=job.priority,
            due=job.due,
            attempt=job.attempt,
            failures=job.failures,
            crashes=job.crashes,
            payload=job.payload,
        )

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        outcomes = {one.lease: self._settle(one) for one in values.checked(settlements, self._kept)}
        return [outcomes.pop(one.lease, False) for one in settlements]

    def _settle(self, settlement: Settlement) -> bool:
        job = self._current(settlement.lease)
        if job is None:
            return False
        result = settlement.result if settlement.state in (State.DONE, State.CANCELLED) else None
        if result is not None and not _is_json(result):
            settlement, result = values.refused(settlement), None
        _charge(job, settlement.ending)
        if settlement.state is not State.DONE:
            self._remember(job, settlement)
        self.kick(settlement.kicks)
        if settlement.state is State.QUEUED and not job.cancel:
            delay_s = values.delay(settlement.delay_s)
            self._queue(job, self._clock() + timedelta(seconds=delay_s) if delay_s > 0 else job.due)
        else:
            job.result = result
            self._end(job, State.CANCELLED if settlement.state is State.QUEUED else settlement.state)
        return True

    def finish(self, claim: Claim, error: str | None = None) -> bool:
        [kept] = self.settle([values.finishing(claim, error)])
        return kept

    # -- for schedulers

    def renew(self, leases: Sequence[Lease], lease_s: float) -> Renewed:
        until = self._clock() + timedelta(seconds=lease_s)
        held = list(filter(None, map(self._current, leases)))
        for job in held:
            job.lease_until = until
        return Renewed(
            held=frozenset(job.lease for job in held),
            cancelled=frozenset(job.lease for job in held if job.cancel),
        )

    def give_back(self, leases: Sequence[Lease]) -> int:
        returned = 0
        for lease in leases:
            job = self._current(lease)
            if job is None:
                continue
            job.attempt -= 1
            if job.cancel:
                self._end(job, State.CANCELLED)
            else:
                self._queue(job, job.due)
            returned += 1
        return returned

    def abandon(self, holder: Holder) -> int:
        return self.give_back([job.lease for job in self._running() if job.holder == holder])

    def reclaim(self, limit: int = 100) -> list[Lease]:
        now = self._clock()
        lost = [
            (job.lease_until, job.id) for job in self._running() if job.lease_until and job.lease_until <= now
        ]
        reclaimed = []
        for _, id in sorted(lost)[:limit]:
            job = self._jobs[id]
            reclaimed.append(job.lease)
            self._settle(Settlement(lease=job.lease, ending=Ending.LEASE_LOST, state=State.QUEUED))
        return reclaimed

    def end_sessions(self, leases: Sequence[Lease]) -> int:
        """Nothing writes under a lease of a store in memory."""
        del leases
        return 0

    def overdue(self, limit: int = 100) -> list[ScheduleView]:
        now = self._clock()
        due = [(one.due, name) for name, one in self._schedules.items() if one.due <= now and not one.paused]
        return [self._shown(name) for _, name in sorted(due)[:limit]]

    def advance(self, name: str, due: datetime, following: datetime, job: NewJob | None) -> bool:
        one = self._schedules.get(name)
        if one is None or one.due != due or one.paused:
            return False
        one.due = following
        if job is not None:
            one.last = job.due or one.last
            self.push([job])
        return True

    def _has_run(self, name: str) -> bool:
        return any(job.unique == SCHEDULE_PREFIX + name for job in self._live())

    def start_kicked(self, limit: int = 10_000) -> int:
        now, taken_out = self._clock(), 0
        for kind, kicks in sorted(self._kicks.items()):
            self._runs_kicked += 1
            run = _run_of(kicks[-1], self._runs_kicked, now)
            live = self._holder(run)
            seen, kept = kicks[-limit:], kicks[:-limit]
            if live is None:
                self._add(run)
            elif live.state is State.QUEUED:
                live.due = min(live.due, now)
            else:
                kept.append(seen.pop())
            self._kicks[kind] = kept
            taken_out += len(seen)
        self._kicks = {kind: kicks for kind, kicks in self._kicks.items() if kicks}
        return taken_out

    def outlook(self, queues: Sequence[str]) -> Outlook:
        now = self._clock()
        dues = [
            job.due
            for job in self._jobs.values()
            if job.state is State.QUEUED and ("*" in queues or job.queue in queues)
        ]
        ticks = [one.due for one in self._schedules.values() if not one.paused]
        ends = [(job.lease_until - now).total_seconds() for job in self._running() if job.lease_until]
        return Outlook(
            due_now=any(due <= now for due in dues),
            next_due_s=min(((due - now).total_seconds() for due in dues if due > now), default=None),
            next_tick_s=min(((due - now).total_seconds() for due in ticks), default=None),
            lease_end_s=min(ends, default=None),
            kicked=bool(self._kicks),
        )

    def pending(self, kinds: Sequence[str], queues: Sequence[str]) -> bool:
        there = [(job.kind, job.queue) for job in self._live()]
        there += [(kick.kind, kick.queue) for kicks in self._kicks.values() for kick in kicks]
        return any(kind in kinds and ("*" in queues or queue in queues) for kind, queue in there)

    def progress(self, entries: Sequence[tuple[Lease, Progress]]) -> None:
        for lease, progress in entries:
            job = self._current(lease)
            stored = values.storable_progress(progress)
            if job is not None and stored is not None:
                job.progress = stored

    def cancels(self, node: str) -> list[Lease]:
        found = [
            job.lease for job in self._running() if job.cancel and job.holder and job.holder.node == node
        ]
        return sorted(found)

    def report(self, node: NodeView) -> None:
        now = self._clock()
        known = self._nodes.get(node.id)
        self._nodes[node.id] = msgspec.structs.replace(
            node, started=known.started if known else now, seen=now
        )

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    def prune(self, finished_s: float, nodes_s: float) -> bool:
        """As the contract says, by whole days (UTC), all at once."""
        now = self._clock()
        before = values.day_of(now - timedelta(seconds=finished_s))
        self._jobs = {
            id: job
            for id, job in self._jobs.items()
            if job.state not in (State.DONE, State.CANCELLED)
            or job.finished is None
            or job.finished >= before
        }
        seen_after = now - timedelta(seconds=nodes_s)
        self._nodes = {id: node for id, node in self._nodes.items() if node.seen and node.seen >= seen_after}
        return False

    def close(self) -> None:
        """Nothing to close."""

    # -- the moves

    def _find(self, id: str) -> _Job | None:
        return self._jobs.get(canonical(id) or "")

    def _live(self) -> Iterable[_Job]:
        return [job for job in self._jobs.values() if job.state in LIVE]

    def _running(self) -> Iterable[_Job]:
        return [job for job in self._jobs.values() if job.state is State.RUNNING]

    def _current(self, lease: Lease) -> _Job | None:
        """The running job that this lease holds; None: it is no longer current."""
        job = self._find(lease.id)
        if job is None or job.state is not State.RUNNING:
            return None
        return job if job.epoch == lease.epoch or not self._check_epoch else None

    def _queue(self, job: _Job, due: datetime) -> None:
        job.state = State.QUEUED
        job.due = due
        job.holder = job.started = job.lease_until = None

    def _end(self, job: _Job, state: State) -> None:
        job.state = state
        job.finished = self._clock()
        job.lease_until = None
        job.cancel = False

    def _remember(self, job: _Job, settlement: Settlement) -> None:
        if len(job.history) >= HISTORY_LIMIT:
            del job.history[1]
        attempt = _running_attempt(job)
        job.history.append(
            msgspec.structs.replace(
                attempt,
                ended=self._clock(),
                ending=settlement.ending,
                code=settlement.code,
                error=settlement.error,
                certificate=settlement.certificate,
            )
        )


def _new_job(job: NewJob, now: datetime) -> _Job:
    """What is stored of a new job.

    Raises:
        ValueError: it breaks a rule of the table; the text names which.
    """
    id = canonical(job.id)
    due = values.due(job) or now + timedelta(seconds=values.delay(job.delay_s))
    rules = {
        "id": id is not None,
        "kind": 1 <= _size(job.kind) <= KIND_BYTES,
        "queue": 1 <= _size(job.queue) <= QUEUE_BYTES and not job.queue.startswith("@"),
        "priority": 0 <= job.priority < PRIORITIES,
        "unique": job.unique is None or 1 <= _size(job.unique) <= UNIQUE_BYTES,
        "due": _EARLIEST <= due < _LATEST,
        "payload": _is_json(job.payload),
    }
    broken = [name for name, holds in rules.items() if not holds]
    if id is None or broken:
        raise ValueError(f"job {job.id} breaks the rule of {', '.join(broken)}")
    return _Job(
        id=id,
        kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        due=due.astimezone(UTC),
        payload=job.payload,
        unique=job.unique,
        created=now,
    )


def _run_of(kick: Kick, number: int, now: datetime) -> _Job:
    """The job that a kick makes; the `number` of the run gives it its id.

    Raises:
        ValueError: it breaks a rule of the table.
    """
    new = NewJob(
        id=tick_id(f"kick {number}", now),
        kind=kick.kind,
        payload=kick.payload,
        queue=kick.queue,
        priority=kick.priority,
        unique=SCHEDULE_PREFIX + kick.kind,
    )
    return _new_job(new, now)


def _size(text: str) -> int:
    """Bytes of a text in UTF-8; 0 for one that cannot be stored."""
    try:
        return 0 if "\0" in text else len(text.encode())
    except UnicodeEncodeError:
        return 0


def _is_json(text: str) -> bool:
    """Whether jsonb can hold a JSON text: neither NUL nor half a surrogate pair in its strings."""
    try:
        plain = json.dumps(json.loads(text, parse_constant=_no_constant), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return not _NUL.search(plain)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_due(job: _Job, now: datetime) -> bool:
    return job.state is State.QUEUED and job.due <= now


def _charge(job: _Job, ending: Ending) -> None:
    match CHARGES[ending]:
        case Budget.FAILURES:
            job.failures += 1
        case Budget.CRASHES:
            job.crashes += 1
        case Budget.INTERRUPTIONS:
            job.interruptions += 1


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())


def _view(job: _Job) -> JobView:
    return JobView(
        id=job.id,
        kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        state=job.state,
        code=values.code_of(job.state, job.history[-1].code if job.history else None),
        due=job.due,
        progress=job.progress,
        attempt=job.attempt,
        failures=job.failures,
        crashes=job.crashes,
        interruptions=job.interruptions,
        unique=job.unique,
        created=job.created,
        finished=job.finished,
    )


def _running_attempt(job: _Job) -> Attempt:
    holder = job.holder
    return Attempt(
        attempt=job.attempt,
        epoch=job.epoch,
        node=holder.node if holder else None,
        worker=holder.worker if holder else None,
        pid=holder.pid if holder else None,
        started=job.started,
    )


def _last_attempt(job: _Job) -> list[Attempt]:
    """The attempt that is not in the history: the running one, or the one that is done."""
    match job.state:
        case State.RUNNING:
            return [_running_attempt(job)]
        case State.DONE:
            return [msgspec.structs.replace(_running_attempt(job), ended=job.finished, ending=Ending.DONE)]
        case _:
            return []
