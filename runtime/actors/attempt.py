"""One attempt: a claim's payload decoded, its handler called, and what came of it as a settlement.

The only place where what a handler raises is caught and becomes text. A worker calls it in its own process; so
do tests of handlers, which bring their own way of calling.
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from runtime.definition import Definition, Job, name_of
from runtime.edges import log
from runtime.edges.fence import Sessions, Writes
from runtime.errors import Cancel, DefinitionError, LeaseLost, PayloadInvalid, Snooze, Stopping, TimedOut
from runtime.model.exits import Certificate
from runtime.model.jobs import TEXT_LIMIT, Claim, Code, Ending, Failure, Kick, Lease, Settlement, State
from runtime.model.messages import Limits
from runtime.model.units import clip
from runtime.registry import DEFINED
from runtime.rules import budgets

Redact = Callable[[str], str]

UNREDACTED = "not kept: the redaction hook failed"
_OURS = str(Path(__file__).parent)


class Kicks:
    """What one attempt has kicked so far."""

    __slots__ = ("_definition", "_kicks")

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._kicks: dict[str, Kick] = {}

    def add(self, kind: str) -> None:
        """As `Context.kick`."""
        self._kicks[kind] = declared_kick(self._definition, kind)

    def told(self) -> tuple[Kick, ...]:
        return tuple(self._kicks.values())


def declared_kick(definition: Definition, kind: str) -> Kick:
    """What asks for a run of a kind, on behalf of a handler of another; errors as of `Context.kick`."""
    if kind not in definition.kicks:
        declared = ", ".join(map(json.dumps, (*definition.kicks, kind)))
        raise DefinitionError(
            f"{name_of(definition.cls)}: does not declare that it kicks {kind!r}; write "
            f"kicks=({declared}{'' if definition.kicks else ','}) in its @job"
        )
    return DEFINED.kick_of(kind)


def settle_attempt(
    claim: Claim,
    definition: Definition,
    limits: Limits,
    call: Callable[[Job, Definition, Kicks], object],
    overdue: Callable[[], Ending | None],
    certify: Callable[[Ending], Certificate],
    writes: Writes,
    redact: Redact | None = None,
) -> Settlement | None:
    """What becomes of the job of a claim; None: its handler has completed it, and nothing is to be settled.

    Args:
        call: calls the handler's `run`, whose kicks it adds, and returns what that returns.
        overdue: how the attempt has ended already in its supervisor's eyes, whatever the handler does.
        certify: the certificate of such an ending.
        writes: by which the handler may have ended the job in a transaction of its own, whatever it does then.
        redact: is given the message and the traceback, each by itself, and returns what may be kept of it.
    """
    lease = claim.lease
    kicks = Kicks(definition)
    writes.kicks = kicks.told
    fault = Code.PAYLOAD_INVALID
    try:
        job = definition.decode(claim.payload)
        fault = Code.HANDLER_FAILED
        result = call(job, definition, kicks)
        if writes.completed:
            return None
        if overdue() is not None:  # the handler has swallowed what was raised in it
            raise TimedOut("went on after its time limit")  # noqa: TRY301
        fault = Code.RESULT_INVALID
        done = definition.encode_result(result)
    except (Snooze, Cancel, LeaseLost, Stopping) as said:
        return None if writes.completed else _as_said(lease, said)
    except BaseException as error:  # noqa: BLE001 - SystemExit and the like are a handler's failure too
        if writes.completed:
            log.event(
                "warning",
                "attempt.failed",
                job=lease.id,
                kind=claim.kind,
                attempt=claim.attempt,
                code=Code.HANDLER_FAILED,
                error=type(error).__qualname__,
                state=str(State.DONE),
            )
            return None
        ending = overdue()
        ours = isinstance(error, PayloadInvalid)
        if not ours:
            fault = Code.HANDLER_FAILED  # `upgrade` raised, or a hook of the result's types
        settlement = budgets.failed(
            lease,
            claim.failures,
            limits,
            random.random(),
            error=failure_of(error, redact, traced=fault is Code.HANDLER_FAILED),
            ending=ending,
            certificate=certify(ending) if ending is not None else None,
            final=ending is None and (ours or isinstance(error, definition.final)),
            fault=fault,
        )
        _log(claim, settlement)
        return settlement
    return Settlement(lease=lease, ending=Ending.DONE, state=State.DONE, result=done, kicks=kicks.told())


def writes_of(
    claim: Claim, definition: Definition, sessions: Sessions, note_end: Callable[[bool], None]
) -> Writes:
    """What the attempt of a claim may write; `note_end` as of `Writes`."""
    return Writes(
        claim.lease,
        sessions,
        definition.encode_result,
        lambda: definition.period_s(datetime.now(UTC)),
        note_end,
    )


def _as_said(lease: Lease, said: Snooze | Cancel | LeaseLost | Stopping) -> Settlement:
    match said:
        case Snooze():
            return Settlement(lease=lease, ending=Ending.SNOOZED, state=State.QUEUED, delay_s=said.seconds)
        case Cancel():
            return budgets.cancelled(lease)
        case _:
            return budgets.released(lease)


def log_dropped(level: log.Level, settlements: Sequence[Settlement], kept: Sequence[bool]) -> None:
    """One line for each settlement that changed nothing, because its lease was no longer current."""
    for settlement, is_kept in zip(settlements, kept, strict=True):
        if not is_kept:
            log.event(
                level,
                "lease.lost",
                job=settlement.lease.id,
                epoch=settlement.lease.epoch,
                code=Code.LEASE_LOST,
                dropped=str(settlement.ending),
            )


def _log(claim: Claim, settlement: Settlement) -> None:
    log.event(
        "warning",
        "attempt.failed",
        job=claim.lease.id,
        kind=claim.kind,
        attempt=claim.attempt,
        code=settlement.code,
        error=settlement.error.class_ if settlement.error else None,
        ending=str(settlement.ending),
        state=str(settlement.state),
        retry_in_s=round(settlement.delay_s, 3),
    )


def failure_of(error: BaseException, redact: Redact | None = None, *, traced: bool = True) -> Failure:
    """A handler's exception as storable text, without our own frame.

    Args:
        traced: False leaves out the traceback: it would quote a payload, and no line of it is the handler's.
    """
    try:
        message = str(error)
    except BaseException as nested:  # noqa: BLE001 - it is the handler's class that cannot say what it is
        message = f"<{type(nested).__name__} while making the message>"
    name = type(error).__qualname__
    if not traced:
        return Failure(name, _redacted(clip(message, TEXT_LIMIT), redact))
    trace = error.__traceback__
    while (
        trace is not None
        and trace.tb_next is not None
        and trace.tb_frame.f_code.co_filename.startswith(_OURS)
    ):
        trace = trace.tb_next
    try:
        lines = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as nested:  # noqa: BLE001 - likewise
        lines = f"<{type(nested).__name__} while formatting the traceback>"
    return Failure(name, *(_redacted(clip(text, TEXT_LIMIT), redact) for text in (message, lines)))


def _redacted(text: str, redact: Redact | None) -> str:
    """What the hook leaves of a text; nothing of it when the hook fails."""
    if redact is None or not text:
        return text
    try:
        left: object = redact(text)
    except BaseException:  # noqa: BLE001 - user code: whatever it raises, the text must not be kept
        return UNREDACTED
    return clip(left, TEXT_LIMIT) if isinstance(left, str) else UNREDACTED
