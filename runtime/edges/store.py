"""The contract of a job store. `memory.py` is its executable definition, `postgres.py` the real one.

Every write about a running job carries its `Lease`, `(id, epoch)`, and changes nothing when that is no
longer current. Every answer is by value; a store hands out nothing that is still connected to it.

All times are of the store's own clock: the database's `now()`, or the `clock` that a store was made with
(tests, the simulator and `drain_at` move it). No method takes a time from a caller's process except the
moment a job is to be due.

Errors: `StoreUnavailable` from any method when the database is away; whether a write was committed is then
unknown, and making the same call again is always safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from runtime.model.exits import Progress
from runtime.model.jobs import (
    Claim,
    Counts,
    Exchanged,
    Holder,
    JobView,
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
    Want,
)


class Store(Protocol):
    # -- schema

    def install(self) -> None:
        """Make or migrate the schema; does nothing when it is current. One migrator at a time."""

    def check(self) -> None:
        """Raise `SchemaOutdated`, saying what to run, unless the schema is the one this program needs."""

    # -- for applications and people

    def push(self, jobs: Sequence[NewJob]) -> list[str | None]:
        """Queue jobs; their ids in order, None where the kind's unique key is taken.

        A job whose id is known (live, finished and still kept, or dead) adds nothing and is answered
        with its id: pushing again after a lost reply is harmless. An id that is given twice counts the
        first time. All or nothing.

        Raises:
            ValueError: a job breaks a rule of the table: a length, a range, a payload that jsonb cannot
                hold, a naive due time.
        """
        ...

    def push_new(self, jobs: Sequence[NewJob]) -> None:
        """`push`, made for one and for many at once, of jobs whose ids were made just now and that have no unique key.

        Nothing of them can be known already, so nothing has to be looked for. Errors as of `push`.
        """
        ...

    def push_unique(self, job: NewJob, *, replace: bool = False) -> str | None:
        """Queue a job, or answer with the live job of its kind that has its unique key.

        Without `replace` that is the holder's id. With it a holder that is still queued is given the due time,
        queue, priority and payload of this one, and its id is the answer; None when it is running.
        A known id is answered with itself and changes nothing. Errors as of `push`.
        """
        ...

    def kick(self, kicks: Sequence[Kick]) -> None:
        """Ask for one run of each of these kinds; `start_kicked` makes it once this has committed.

        It waits for nobody, however many transactions kick the same kinds.

        Raises:
            ValueError: a kick breaks a rule of the table: as of `push`; its kind has at most 55 bytes.
        """
        ...

    def reschedule(self, id: str, due: datetime | None = None, delay_s: float = 0.0) -> bool:
        """Let a queued job be due at `due`, or without it `delay_s` from now; False: it is not queued.

        Raises:
            ValueError: the time is naive, or outside of what can be stored.
        """
        ...

    def delete(self, id: str) -> bool:
        """Take out a job that is queued or has ended, and all that is known of it; False: running, or unknown."""
        ...

    def cancel(self, id: str) -> State | None:
        """CANCELLED when a queued job was taken out, RUNNING when a running one was asked; else None."""
        ...

    def retry(self, id: str) -> bool:
        """Queue a dead job again from attempt 1, all budgets whole, its history kept; False: none such.

        Its unique key comes with it; when another live job of the kind holds that key, False.
        """
        ...

    def retry_all(self, kind: str) -> int:
        """`retry` for all jobs of a kind that are dead now, in batches, each its own transaction; how many it queued.

        One that dies again meanwhile is left, and so is one whose unique key is taken.
        """
        ...

    def status(self, id: str, *, payload: bool = True) -> JobView | None:
        """One job whole, live or ended; None when it is unknown or pruned. Without `payload` that is left out."""
        ...

    def jobs(
        self,
        state: State | None = None,
        kind: str | None = None,
        queue: str | None = None,
        limit: int = 50,
    ) -> list[JobView]:
        """At most `limit` jobs, newest first by id, without payload, result and attempts."""
        ...

    def dead(self, kind: str | None = None, limit: int = 50) -> list[JobView]:
        """Dead jobs, latest death first, without payload, with the last of their attempts only."""
        ...

    def counts(self) -> Counts: ...

    def waiting(self, limit: int = 100) -> list[QueueCount]:
        """Queues and kinds with due jobs, as far as the first `limit` due jobs of each lane show them.

        Much cheaper than `counts` when many jobs wait: what nobody claims is soon the first of its lane.
        """
        ...

    def nodes(self) -> list[NodeView]: ...

    def schedule(self, schedule: NewSchedule) -> bool:
        """Make a schedule; True when it is new.

        Called again it changes what is given and keeps the state: paused or not, and the next due time,
        unless the rule is another and its first tick comes sooner.

        Raises:
            ValueError: the schedule breaks a rule of the table.
        """
        ...

    def unschedule(self, name: str) -> bool: ...

    def pause(self, name: str, paused: bool = True) -> bool:
        """Let a schedule make no jobs, or make them again; False: no such schedule."""
        ...

    def schedules(self) -> list[ScheduleView]: ...

    def now(self) -> datetime:
        """The store's time, by which all of its own are to be judged."""
        ...

    # -- for workers

    def exchange(self, settlements: Sequence[Settlement], want: Want | None) -> Exchanged:
        """Settle these, and claim up to `want.limit` due jobs: one transaction, one round trip.

        Settling keeps the rules of `Settlement`: a job that goes back without a delay keeps its due time, and so
        its place in its lane. Only the current epoch of a running job, each once. When
        the database refuses a settlement for what it contains, that one is settled with a fixed text
        in place of result, error and certificate (state dead when it was done). Claims come most
        urgent first; the order within a lane (queue, priority) is (due, id). A claim raises epoch
        and attempt by one and holds until now + `want.lease_s`. Jobs of other kinds than
        `want.kinds` stay untouched.

        A rewinding claim finds the lanes that have something due and starts at the head of each; another
        one goes on in these lanes behind the last job that was claimed, and so sees neither new lanes nor
        jobs that came in behind. After a rewind that finds nothing it goes on in the lanes found before. Queues of one priority take turns in being first.

        Raises:
            ValueError: a settlement is no outcome: its state is running, or done with another ending.
        """
        ...

    def claim(self, want: Want) -> list[Claim]:
        """`exchange` with nothing to settle."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """`exchange` without a claim: for each whether its lease was current."""
        ...

    def finish(self, claim: Claim, error: str | None = None) -> bool:
        """End a claim the plain way; False when it is no longer current.

        Done without `error`; with one, queued again after 1 s, then 2 s, and dead at the third failure.
        """
        ...

    # -- for schedulers

    def renew(self, leases: Sequence[Lease], lease_s: float) -> Renewed:
        """Let each lease that is current end at now + `lease_s`."""
        ...

    def give_back(self, leases: Sequence[Lease]) -> int:
        """Queue claims again that were never started: the attempt is taken back, nothing charged.

        The due time stays, and with it the place in the lane. One whose cancel was asked for becomes
        cancelled. Returns how many leases were current.
        """
        ...

    def abandon(self, holder: Holder) -> int:
        """`give_back` for all that a dead worker still holds: claims whose reply it never saw."""
        ...

    def reclaim(self, limit: int = 100) -> list[Lease]:
        """Take back up to `limit` leases that have run out, from the job rows alone.

        Each goes back to its place in the queue, as an interruption with the ending `lease_lost`
        (or to cancelled, when that was asked). The database sessions of these attempts are ended.
        """
        ...

    def end_sessions(self, leases: Sequence[Lease]) -> int:
        """End the database sessions in which these attempts still write; how many there were."""
        ...

    def overdue(self, limit: int = 100) -> list[ScheduleView]:
        """Schedules that are due and not paused, the longest overdue first."""
        ...

    def advance(self, name: str, due: datetime, following: datetime, job: NewJob | None) -> bool:
        """Let a schedule that is due at `due` be due at `following` next, and push its job, in one transaction.

        False when it was no longer due at `due`: another scheduler was quicker, and nothing was pushed.
        """
        ...

    def start_kicked(self, limit: int = 10_000) -> int:
        """Make the runs that were kicked; how many kicks were taken out, at most about `limit` a kind.

        The run of a kind has the unique key of the schedule of that name. Where none is live one is queued, by the
        latest kick; one that is queued is due now at the latest; while one is running, one kick stays and waits for
        its end, which is notified. So a kick that is taken out is followed by a run that began after it had
        committed, and of one kind at most one run is live and one more is to come.
        """
        ...

    def outlook(self, queues: Sequence[str]) -> Outlook:
        """When the next job of these queues (`["*"]`: all) and the next tick are due, and the next lease ends.

        The tick of a schedule whose run is live is not counted: it waits for the end of the run.
        A running job whose budgets are spent counts too: its lease must be reclaimed all the same.
        """
        ...

    def pending(self, kinds: Sequence[str], queues: Sequence[str]) -> bool:
        """Whether any job of these kinds and queues is queued (for whenever), running or kicked."""
        ...

    def progress(self, entries: Sequence[tuple[Lease, Progress]]) -> None:
        """Record how far attempts have come; an entry whose lease is not current changes nothing."""
        ...

    def cancels(self, node: str) -> list[Lease]:
        """The running jobs of one node whose cancel was asked for."""
        ...

    def report(self, node: NodeView) -> None:
        """Record what a node looks like now, and when; `forget` takes it out."""
        ...

    def forget(self, node: str) -> None: ...

    def prune(self, finished_s: float, nodes_s: float) -> bool:
        """Drop what ended longer ago than `finished_s`, and nodes not seen for `nodes_s`.

        Ended jobs go by whole days (UTC): those of a day go when all of it is that long ago. Also makes
        room ahead for what will end. Dead jobs are never pruned. True: there is more; each call takes little time.
        """
        ...

    def close(self) -> None: ...
