"""What is written down of a run, and what must hold of it.

Two things are written down apart from each other: what the store granted and took (claims, settlements,
claims given back) and what really happened (executions of handlers, in virtual time). The checks compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from runtime.model.exits import Verdict
from runtime.model.jobs import Ending, Holder, JobView, Lease, Settlement, State
from runtime.model.messages import Limits

REACTION_S = 0.008  # what a continued node may take to see that its leases have ended, and to kill


class Violation(Exception):  # noqa: N818 - it says what it is
    """A run broke a promise; the text says which."""


@dataclass(slots=True)
class Execution:
    """One run of a handler."""

    lease: Lease
    kind: str
    node: str
    start_s: float
    end_s: float | None = None
    outcome: Settlement | None = None  # what the handler made of it
    safe: bool = False  # the outcome is in the journal
    death: Literal["crashed", "killed"] | None = None  # of its process, before the outcome was safe
    known_s: float = 0.0  # when its supervisor learnt of that: till then it looks as if it ran
    outgrown: bool = False  # it went over its memory limit


@dataclass(slots=True)
class History:
    """All that is known of one run."""

    limits: dict[str, Limits]
    executions: dict[Lease, Execution] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)  # the newest claim of each job
    held: dict[Lease, Holder] = field(default_factory=dict)  # claims that have not ended
    ended: dict[Lease, Settlement | None] = field(default_factory=dict)  # None: given back
    cancels: set[str] = field(default_factory=set)
    unclocked: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict
    )  # node: stopped, or orphaned
    kicked: list[tuple[str, float]] = field(default_factory=list)  # kind, and when it was committed
    runs: dict[str, str] = field(default_factory=dict)  # that kicks have made: the kind of each
    broken: list[str] = field(default_factory=list)

    # -- what the store did

    def claimed(self, lease: Lease, holder: Holder) -> None:
        before = self.epochs.get(lease.id, 0)
        if lease.epoch != before + 1:
            self.broken.append(f"claim of {lease} after epoch {before}")
        if before and Lease(lease.id, before) not in self.ended:
            self.broken.append(f"{lease} was claimed while epoch {before} had not ended")
        self.epochs[lease.id] = lease.epoch
        self.held[lease] = holder

    def settled(self, current: Lease, settlement: Settlement) -> None:
        lease = settlement.lease
        if lease != current:
            self.broken.append(f"{lease} settled {settlement.ending}, but the job is at {current}")
        if lease in self.ended:
            self.broken.append(f"{lease} settled twice: {settlement.ending}")
        self.ended[current] = settlement
        self.held.pop(current, None)
        problem = self._misjudged(settlement)
        if problem:
            self.broken.append(f"{lease} settled {settlement.ending}: {problem}")

    def given_back(self, current: Lease, lease: Lease) -> None:
        if lease != current:
            self.broken.append(f"{lease} given back, but the job is at {current}")
        if lease in self.ended:
            self.broken.append(f"{lease} given back after it had ended")
        if lease in self.executions:
            self.broken.append(f"{lease} given back as never started, but it was")
        self.ended[current] = None
        self.held.pop(current, None)

    def cancel_asked(self, id: str) -> None:
        self.cancels.add(id)

    def _misjudged(self, settlement: Settlement) -> str | None:
        """Why a settlement does not fit what has really happened; None: it fits."""
        ending, run = settlement.ending, self.executions.get(settlement.lease)
        if ending is Ending.LEASE_LOST:
            return None
        if run is None:  # but it may be cancelled when it is given up before it began, or abandoned
            cancelled = ending is Ending.CANCELLED and settlement.lease.id in self.cancels
            return None if cancelled else "it never ran"
        if settlement == run.outcome:
            return None
        certificate = settlement.certificate
        if certificate is None:
            return f"the handler said {run.outcome}"
        if run.death is None:
            return "its process has not died under it"
        long_s = run.known_s - run.start_s
        limits = self.limits[run.kind]
        match ending:
            case Ending.CRASHED:
                outgrown = certificate.verdict is Verdict.MEMORY and run.outgrown
                return "we killed it ourselves" if run.death == "killed" and not outgrown else None
            case Ending.TIMED_OUT:
                return None if long_s >= limits.timeout_s else f"it ran only {long_s} s"
            case Ending.STALLED:
                return None if limits.stall_s and long_s >= limits.stall_s else f"it ran only {long_s} s"
            case Ending.CANCELLED:
                return None if settlement.lease.id in self.cancels else "nobody asked for it"
            case Ending.RELEASED:
                return None if run.death == "killed" else f"its process was {run.death}"
            case _:
                return f"a death cannot end as {ending}"

    # -- what really happened

    def began(self, run: Execution) -> None:
        if run.lease in self.executions:
            self.broken.append(f"{run.lease} begun twice")
        if run.lease in self.ended and self.ended[run.lease] is None:
            self.broken.append(f"{run.lease} begun after it was given back")
        self.executions[run.lease] = run

    def did_not_begin(self, run: Execution) -> None:
        """It came too late, and saw it before the handler was called."""
        del self.executions[run.lease]

    def without_clock(self, node: str, start_s: float, end_s: float) -> None:
        """What a node does in this time, nobody can prevent."""
        known = self.unclocked.setdefault(node, [])
        while known and start_s <= known[-1][1] + REACTION_S:
            earlier_s, later_s = known.pop()
            start_s, end_s = min(start_s, earlier_s), max(end_s, later_s)
        known.append((start_s, end_s))

    # -- the judgement

    def check(self, jobs: Sequence[JobView], end_s: float) -> None:
        """Raise `Violation` unless everything holds that must hold when all has settled."""
        problems = list(self.broken)
        runs: dict[str, list[Execution]] = {}
        for run in self.executions.values():
            runs.setdefault(run.lease.id, []).append(run)
        for job in jobs:
            mine = runs.get(job.id, [])
            problems += self._check_end(job)
            problems += self._check_budgets(job, mine)
            problems += self._check_attempts(job)
            problems += self._check_overlap(mine, end_s)
        problems += self._check_kicks(end_s)
        if problems:
            raise Violation("\n".join(problems))

    def _check_kicks(self, end_s: float) -> list[str]:
        problems = []
        for kind in sorted({kind for kind, _ in self.kicked}):
            runs = [run for run in self.executions.values() if self.runs.get(run.lease.id) == kind]
            problems += self._check_overlap(runs, end_s)
            last_s = max(kicked_s for each, kicked_s in self.kicked if each == kind)
            if all(run.start_s < last_s for run in runs):
                problems.append(f"no run of {kind} began after it was kicked at {last_s}")
        return problems

    def _check_end(self, job: JobView) -> list[str]:
        if job.state not in (State.DONE, State.DEAD, State.CANCELLED):
            return [f"{job.id} is still {job.state}"]
        problems = []
        if job.state is State.CANCELLED and job.id not in self.cancels:
            problems.append(f"{job.id} was cancelled, but nobody asked for it")
        done = [
            one for one in self.ended.values() if one and one.lease.id == job.id and one.state is State.DONE
        ]
        if (job.state is State.DONE) != (len(done) == 1):
            problems.append(f"{job.id} is {job.state}, and was settled done {len(done)} times")
        elif done and (job.result is None or bytes(job.result).decode() != done[0].result):
            problems.append(f"{job.id} has result {job.result!r}, not that of {done[0].lease}")
        elif done and done[0].result != f'"{done[0].lease.id}:{done[0].lease.epoch}"':
            problems.append(f"{job.id} kept the result {done[0].result} of another attempt")
        return problems

    def _check_budgets(self, job: JobView, runs: list[Execution]) -> list[str]:
        problems = []
        endings = [one.ending for one in self.ended.values() if one and one.lease.id == job.id]
        spent = {
            "failures": sum(
                endings.count(e) for e in (Ending.RETRY, Ending.DEAD, Ending.TIMED_OUT, Ending.STALLED)
            ),
            "crashes": endings.count(Ending.CRASHED),
            "interruptions": endings.count(Ending.RELEASED) + endings.count(Ending.LEASE_LOST),
        }
        for budget, count in spent.items():
            if getattr(job, budget) != count:
                problems.append(f"{job.id} has {getattr(job, budget)} {budget}, its endings say {count}")
        limits = self.limits[job.kind]
        if job.failures > limits.retries + 1:
            problems.append(f"{job.id} failed {job.failures} times, {limits.retries} retries are allowed")
        if job.crashes > (limits.max_crashes if limits.crash_retries else 1):
            problems.append(f"{job.id} crashed {job.crashes} times")
        if job.state is State.DEAD and not (
            job.failures == limits.retries + 1
            or job.crashes == limits.max_crashes
            or not limits.crash_retries
        ):
            problems.append(f"{job.id} is dead with {job.failures} failures and {job.crashes} crashes")
        most = 1 + sum(spent.values()) + endings.count(Ending.SNOOZED)
        if len(runs) > most:
            problems.append(f"{job.id} ran {len(runs)} times, {most} are accounted for")
        return problems

    def _check_attempts(self, job: JobView) -> list[str]:
        numbers = [attempt.attempt for attempt in job.attempts]
        if len(numbers) < 20 and numbers != list(range(1, job.attempt + 1)):
            return [f"{job.id} is at attempt {job.attempt}, its history has {numbers}"]
        return []

    def _check_overlap(self, runs: list[Execution], end_s: float) -> list[str]:
        problems = []
        runs = sorted(runs, key=lambda run: run.start_s)
        for at, one in enumerate(runs):
            one_end_s = end_s if one.end_s is None else one.end_s
            for other in runs[at + 1 :]:
                if other.start_s >= one_end_s:
                    break
                overlap = (other.start_s, min(one_end_s, end_s if other.end_s is None else other.end_s))
                if not self._is_excused(one.node, overlap) and not self._is_excused(other.node, overlap):
                    problems.append(
                        f"{one.lease} and {other.lease} overlap from {overlap[0]} to {overlap[1]}"
                    )
        return problems

    def _is_excused(self, node: str, overlap: tuple[float, float]) -> bool:
        return any(
            start_s <= overlap[0] and overlap[1] <= end_s + REACTION_S
            for start_s, end_s in self.unclocked.get(node, ())
        )
