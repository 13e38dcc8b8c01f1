"""What is to be thought of an attempt that runs, or that ended with its process.

`Batch` is what a worker holds, `Glance` what its board says. From both comes a verdict while the attempt
runs (`verdict`), the moment of the next look (`next_look_at_s`), and after a death what is put on
record (`settle_dead`).
"""

from __future__ import annotations

import msgspec

from runtime.model.exits import Certificate, Exit, Progress, Verdict
from runtime.model.jobs import Ending, Failure, Lease, Settlement
from runtime.model.messages import Claimed, Held, Limits
from runtime.rules import budgets
from runtime.rules.lease import fence_at_s

HOARD_S = 0.25  # a job that has run for so long keeps no other claims waiting behind it
BATCH_S = 1.0  # nor does a batch that is not over after so long, however short its jobs
SHARE_S = 0.05  # of work that has not begun: so much is worth another worker's while that has nothing to do
PROOF_S = 0.01  # of a batch, before its pace says anything
MEMORY_EVERY_S = 0.25  # how often the memory of a limited job is read
GENTLE = (Verdict.TIMEOUT, Verdict.STALLED, Verdict.CANCELLED)  # told first, killed later


class Glance(msgspec.Struct, frozen=True):
    """What a worker's board says."""

    number: int = 0  # of the claim being run; 0: none
    started_s: float = 0.0
    progress_s: float = 0.0  # when it last reported progress; 0: not yet
    progress: Progress | None = None
    memory_bytes: int = 0  # resident now; 0 when not asked for
    cpu_s: float = 0.0  # CPU time of the process when the job began
    settles: bool = False  # its handler may have settled it itself: then it has no lease to lose


class Remains(msgspec.Struct, frozen=True):
    """What a dead worker leaves: its board and journal, and what was captured of it."""

    glance: Glance = Glance()
    settlements: tuple[Settlement, ...] = ()
    output_tail: str = ""
    stack: str | None = None
    out_of_memory: bool = False  # the kernel's memory killer was at work


class Batch(msgspec.Struct):
    """The claims a worker works through, by number, as it reported them."""

    claims: dict[int, Held]
    claimed_s: float  # when the claim was sent
    confirmed_s: float  # when the claim, or the last confirmed renewal, was sent
    heard_s: float  # when it was reported, and the first of them began, or soon after
    revoked: bool = False
    lost: set[int] = msgspec.field(default_factory=set[int])
    cancels: set[int] = msgspec.field(default_factory=set[int])

    def number_of(self, lease: Lease) -> int | None:
        return next((number for number, held in self.claims.items() if held.lease == lease), None)


def batch_of(message: Claimed, now_s: float) -> Batch:
    return Batch(dict(enumerate(message.claims, message.first)), message.sent_s, message.sent_s, now_s)


class Intent(msgspec.Struct, frozen=True):
    """Why a worker is to be killed: for the job of this number (0: any), unless that ends before."""

    verdict: Verdict
    number: int
    kill_at_s: float


class Bounds(msgspec.Struct, frozen=True):
    """What holds for every kind of this node."""

    lease_s: float
    kill_after_s: float
    memory_bytes: int | None
    fencing: bool = True

    def fence_at_s(self, batch: Batch) -> float:
        return fence_at_s(batch.confirmed_s, self.lease_s) if self.fencing else float("inf")

    def memory_of(self, limits: Limits) -> int | None:
        return limits.memory_bytes or self.memory_bytes


def verdict(batch: Batch, glance: Glance, limits: Limits, bounds: Bounds, now_s: float) -> Verdict | None:
    """Why the running job may not go on, the strongest reason first; None: it may."""
    memory_bytes = bounds.memory_of(limits)
    lost = glance.number in batch.lost and not glance.settles
    if lost or now_s >= bounds.fence_at_s(batch):
        return Verdict.FENCED
    if memory_bytes and glance.memory_bytes > memory_bytes:
        return Verdict.MEMORY
    if now_s >= glance.started_s + limits.timeout_s:
        return Verdict.TIMEOUT
    if limits.stall_s and now_s >= _last_sign_s(glance) + limits.stall_s:
        return Verdict.STALLED
    if glance.number in batch.cancels:
        return Verdict.CANCELLED
    return None


def ends_now(intent: Intent, why: Verdict | None, now_s: float) -> bool:
    """Whether the process is killed now: the time to end in good order is over, or there is no such time.

    `why` is the verdict as things stand: a lease that ends, or memory that grows, does not wait for that time.
    """
    return now_s >= intent.kill_at_s or (why is not None and why not in GENTLE)


def _last_sign_s(glance: Glance) -> float:
    return max(glance.started_s, glance.progress_s)


def next_look_at_s(
    batch: Batch,
    glance: Glance,
    intent: Intent | None,
    kinds: dict[str, Limits],
    bounds: Bounds,
    now_s: float,
    *,
    idle: bool = False,
) -> float:
    """When the board must be read again at the latest, after `now_s`. `idle` as in `hoards_at_s`.

    A job that begins later ends its patience later than one that would begin now: so the shortest
    patience of the batch, from now, is early enough for all that have not begun.
    """
    limits = [kinds[held.kind] for held in batch.claims.values()]
    moments = [bounds.fence_at_s(batch)]
    moments += [now_s + min(one.timeout_s, one.stall_s or one.timeout_s) for one in limits]
    if len(batch.claims) > 1 and not batch.revoked:
        moments.append(hoards_at_s(batch, glance, now_s, idle=idle))
    if any(bounds.memory_of(one) for one in limits):
        moments.append(now_s + MEMORY_EVERY_S)
    if intent is not None:
        moments.append(intent.kill_at_s)
    held = batch.claims.get(glance.number)
    if held is not None:
        running = kinds[held.kind]
        moments.append(glance.started_s + running.timeout_s)
        if running.stall_s:
            moments.append(_last_sign_s(glance) + running.stall_s)
    return min(moment for moment in (*moments, float("inf")) if moment > now_s)


def hoards_at_s(batch: Batch, glance: Glance, now_s: float, *, idle: bool = False) -> float:
    """From when on claims not begun are taken from their worker, and are anybody's again.

    What counts is the job that runs, not the age of the batch: on a busy machine short jobs take long together,
    and giving the rest back would only add work. Between two jobs, the next one might begin now. While another
    worker is `idle` much less is a hoard: what will take this one `SHARE_S` more, at the pace of the batch so far.
    """
    runs = glance.number in batch.claims
    began_s = glance.started_s if runs else now_s
    at_s = min(began_s + HOARD_S, batch.claimed_s + BATCH_S)
    if not idle:
        return at_s
    begun = sum(number <= glance.number for number in batch.claims)
    left = len(batch.claims) - begun
    if not left:
        return at_s
    if not runs:
        return min(at_s, now_s + PROOF_S)
    return min(at_s, batch.heard_s + max(PROOF_S, SHARE_S * begun / left))


def settle_dead(
    held: Held, limits: Limits, intent: Intent | None, exit: Exit, remains: Remains, chance: float
) -> Settlement:
    """The settlement of the attempt that was running when its process ended.

    An intent to kill for another job than this one missed its aim: this attempt was interrupted.
    """
    cause = _verdict_of_exit(exit, remains)
    if intent is not None:
        aimed = intent.number in (0, remains.glance.number)
        cause = intent.verdict if aimed else Verdict.ENVIRONMENT
    certificate = Certificate(
        verdict=cause,
        signal=exit.signal,
        exit_code=exit.code,
        cpu_seconds=max(round(exit.cpu_seconds - remains.glance.cpu_s, 6), 0.0),
        peak_memory_bytes=exit.peak_memory_bytes,
        last_progress=remains.glance.progress,
        output_tail=remains.output_tail,
        stack=remains.stack,
    )
    match cause:
        case Verdict.TIMEOUT:
            error = Failure("TimedOut", f"ran longer than its limit of {limits.timeout_s:g} s and was killed")
            ending = Ending.TIMED_OUT
        case Verdict.STALLED:
            error = Failure("Stalled", f"reported no progress for {limits.stall_s:g} s and was killed")
            ending = Ending.STALLED
        case Verdict.CANCELLED:
            return budgets.cancelled(held.lease, certificate)
        case Verdict.FENCED | Verdict.SHUTDOWN | Verdict.ENVIRONMENT:
            return budgets.released(held.lease, certificate)
        case _:
            return budgets.crashed(held.lease, held.crashes, limits, certificate)
    return budgets.failed(
        held.lease, held.failures, limits, chance, error=error, ending=ending, certificate=certificate
    )


def _verdict_of_exit(exit: Exit, remains: Remains) -> Verdict:
    if exit.signal is None:
        return Verdict.EXIT
    return Verdict.MEMORY if remains.out_of_memory else Verdict.SIGNAL
