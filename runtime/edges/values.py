"""Owns what both stores do to values on their way in: bounds, storable text, and the plain way to finish.

Nothing here touches a database; it stands apart so that the two stores cannot differ in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from runtime.model.exits import Certificate, Progress
from runtime.model.jobs import (
    SCHEDULE_BYTES,
    TEXT_LIMIT,
    Attempt,
    Claim,
    Code,
    Ending,
    Failure,
    Kept,
    NewJob,
    NewSchedule,
    Settlement,
    State,
    Texts,
)
from runtime.model.units import clip

DELAY_LIMIT_S = 100 * 365 * 86_400.0  # longest delay before an attempt; a longer one is cut to it

REFUSED = Failure(
    "Unstorable", "the database refused what this attempt left: its result, error or certificate"
)

FINISH_DELAYS_S = (1.0, 2.0)  # `Store.finish`: the waits after the first and the second failure


def delay(seconds: float) -> float:
    """Seconds within 0 and `DELAY_LIMIT_S`; not a number is 0."""
    return min(seconds, DELAY_LIMIT_S) if seconds > 0 else 0.0


def due(job: NewJob) -> datetime | None:
    """The moment a job is to be due, None for "after its delay".

    Raises:
        ValueError: the time is naive: which moment it means would depend on the machine.
    """
    check_due(job.due, f"job {job.id}")
    return job.due


def check_due(due: datetime | None, of: str) -> None:
    """Raises:
    ValueError: the time is naive: which moment it means would depend on the machine.
    """
    if due is not None and due.tzinfo is None:
        raise ValueError(f"due of {of} must have a time zone, got {due!r}")


def checked(settlements: Sequence[Settlement], kept: Kept) -> list[Settlement]:
    """The first settlement of each lease, with storable texts, and of these only what is to be kept.

    Raises:
        ValueError: a caller's bug: running is no outcome, done is an outcome and an ending or neither, and only what
            is done kicks.
    """
    first: dict[object, Settlement] = {}
    for one in settlements:
        if one.state is State.RUNNING or (one.state is State.DONE) != (one.ending is Ending.DONE):
            raise ValueError(f"no outcome: {one.ending} with state {one.state}")
        if one.kicks and one.state is not State.DONE:
            raise ValueError(f"an attempt that ends {one.ending} kicks nothing")
        first.setdefault(one.lease, one)
    return [
        one if one.error is None and one.certificate is None else _storable(one, kept)
        for one in first.values()
    ]


def refused(settlement: Settlement) -> Settlement:
    """What is settled in place of a settlement whose contents the database will not hold."""
    return Settlement(
        lease=settlement.lease,
        ending=Ending.DEAD if settlement.state is State.DONE else settlement.ending,
        state=State.DEAD if settlement.state is State.DONE else settlement.state,
        delay_s=settlement.delay_s,
        error=REFUSED,
        fault=Code.UNSTORABLE,
    )


def finishing(claim: Claim, error: str | None) -> Settlement:
    """How `Store.finish` settles a claim."""
    if error is None:
        return Settlement(lease=claim.lease, ending=Ending.DONE, state=State.DONE)
    failure = Failure("Error", error)
    if claim.failures >= len(FINISH_DELAYS_S):
        return Settlement(lease=claim.lease, ending=Ending.DEAD, state=State.DEAD, error=failure)
    return Settlement(
        lease=claim.lease,
        ending=Ending.RETRY,
        state=State.QUEUED,
        delay_s=FINISH_DELAYS_S[claim.failures],
        error=failure,
    )


def storable_progress(progress: Progress) -> Progress | None:
    """Progress with storable text; None when its numbers are not finite."""
    if not math.isfinite(progress.done) or not math.isfinite(progress.total or 0):
        return None
    if progress.note is None:
        return progress
    return msgspec.structs.replace(progress, note=clip(progress.note, TEXT_LIMIT))


def code_of(state: State, last: Code | None) -> Code | None:
    """The code of a job, of whose attempts the `last` that was not done ended with that code."""
    match state:
        case State.DONE:
            return None
        case State.CANCELLED:
            return Code.CANCELLED
        case _:
            return last


def texts_of(error: Failure | None, certificate: Certificate | None) -> Texts:
    """What an attempt left in words."""
    return Texts(
        message=error.message if error else "",
        traceback=error.traceback if error else "",
        output_tail=certificate.output_tail if certificate else "",
        stack=certificate.stack if certificate else None,
    )


def with_texts(attempt: Attempt, texts: Texts) -> Attempt:
    """An attempt with these words and no others."""
    error, certificate = attempt.error, attempt.certificate
    if error is not None:
        error = Failure(error.class_, texts.message, texts.traceback)
    if certificate is not None:
        certificate = msgspec.structs.replace(certificate, output_tail=texts.output_tail, stack=texts.stack)
    return msgspec.structs.replace(attempt, error=error, certificate=certificate)


def _storable(settlement: Settlement, kept: Kept) -> Settlement:
    error, certificate = settlement.error, settlement.certificate
    if error is not None:
        words = (error.message, error.traceback) if kept.errors else ()
        error = Failure(*(clip(text, TEXT_LIMIT) for text in (error.class_, *words)))
    if certificate is not None:
        certificate = _storable_certificate(certificate, kept)
    return msgspec.structs.replace(settlement, error=error, certificate=certificate)


def _storable_certificate(certificate: Certificate, kept: Kept) -> Certificate:
    stack = certificate.stack if kept.errors else None
    return msgspec.structs.replace(
        certificate,
        output_tail=clip(certificate.output_tail, TEXT_LIMIT) if kept.output else "",
        stack=None if stack is None else clip(stack, TEXT_LIMIT),
        last_progress=certificate.last_progress and storable_progress(certificate.last_progress),
    )


def check_schedule(schedule: NewSchedule) -> None:
    """Raises:
    ValueError: the name is empty or its unique key too long, or the time is naive.
    """
    if not 1 <= len(schedule.name.encode()) <= SCHEDULE_BYTES:
        raise ValueError(f"the name of schedule {schedule.name!r} must be 1 to {SCHEDULE_BYTES} bytes")
    check_due(schedule.due, f"schedule {schedule.name!r}")


def day_of(moment: datetime) -> datetime:
    """The start of the day (UTC) that a moment is in: what ended is pruned by whole days."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
