"""One job as people read it: what it is, how far it has come, and how each of its attempts ended.

It answers "why did it die" from the certificate alone, in this order: what killed it, what that took, how far it
was, where in the code, and what it last said.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import msgspec

from runtime.cli import output
from runtime.model.exits import Certificate, Progress, Verdict
from runtime.model.jobs import Attempt, Ending, Failure, JobView
from runtime.model.units import format_duration

SAID = {  # how each ending reads after "attempt N"
    Ending.DONE: "done",
    Ending.RETRY: "failed, tried again",
    Ending.DEAD: "failed",
    Ending.SNOOZED: "snoozed",
    Ending.RELEASED: "given back to the queue",
    Ending.CRASHED: "crashed",
    Ending.TIMED_OUT: "timed out",
    Ending.STALLED: "stalled",
    Ending.CANCELLED: "cancelled",
    Ending.LEASE_LOST: "lost its lease",
}
CAUSES = {
    Verdict.EXIT: "the handler ended its own process",
    Verdict.MEMORY: "it went over its memory limit",
    Verdict.TIMEOUT: "it went over its time limit",
    Verdict.STALLED: "it made no progress for too long",
    Verdict.CANCELLED: "it was cancelled",
    Verdict.FENCED: "its lease was lost",
    Verdict.SHUTDOWN: "the service stopped and did not wait any longer",
    Verdict.ENVIRONMENT: "its process died while it was running no job",
}
LABEL_WIDTH = 9
MIB = 2**20


def show(job: JobView) -> None:
    """Print a job whole."""
    output.line(f"{job.kind} {job.id}", "bold")
    _field("state", f"{job.state}, attempt {job.attempt}" if job.attempt else job.state, job.state)
    if job.progress is not None:
        _field("progress", progress_text(job.progress))
    _field("queue", f"{job.queue}, priority {job.priority}")
    _field("spent", f"failures {job.failures}, crashes {job.crashes}, interruptions {job.interruptions}")
    _field("created", output.moment(job.created))
    _field("due", output.moment(job.due))
    if job.finished is not None:
        _field("finished", output.moment(job.finished))
    if job.unique is not None:
        _field("unique", job.unique)
    _field("payload", _json(job.payload))
    if job.result is not None:
        _field("result", _json(job.result))
    for attempt in job.attempts:
        _attempt(attempt)


def reason(job: JobView) -> str:
    """What ended the last attempt of a job, in one line: its process's death, or the class of what it raised."""
    if not job.attempts:
        return ""
    last = job.attempts[-1]
    if last.certificate is not None:
        return cause(last.certificate)
    return last.error.class_ if last.error is not None else ""


def cause(certificate: Certificate) -> str:
    """What ended an attempt's process: "killed by SIGSEGV", "it went over its time limit (SIGKILL)"."""
    how = ""
    if certificate.signal is not None:
        how = _signal_name(certificate.signal)
    elif certificate.exit_code is not None:
        how = f"exit code {certificate.exit_code}"
    if certificate.verdict is Verdict.SIGNAL:
        return f"killed by {how}" if how else "killed by a signal"
    said = CAUSES[certificate.verdict]
    return f"{said} ({how})" if how else said


def progress_text(progress: Progress) -> str:
    """Such as "40 of 100 (40%), decoding", or without a total "40"."""
    text = f"{progress.done:g}"
    if progress.total is not None:
        text += f" of {progress.total:g}"
        if progress.total > 0:
            text += f" ({progress.done / progress.total:.0%})"
    return f"{text}, {progress.note}" if progress.note else text


def _attempt(attempt: Attempt) -> None:
    output.line()
    output.line(_headline(attempt), "bold")
    if attempt.node is not None:
        _field("by", f"node {attempt.node}, worker {attempt.worker}, pid {attempt.pid}", by=2)
    if attempt.started is not None:
        _field("started", output.moment(attempt.started), by=2)
    of_attempt(attempt)


def of_attempt(attempt: Attempt) -> None:
    """Print how an attempt ended, and what it left in words."""
    if attempt.certificate is not None:
        for label, text in _certificate(attempt.certificate):
            _field(label, text, by=2)
    if attempt.error is not None:
        _field("error", _summary(attempt.error), "red", by=2)
        if attempt.error.traceback:
            output.line(output.indented(attempt.error.traceback, by=4))


def _headline(attempt: Attempt) -> str:
    said = SAID[attempt.ending] if attempt.ending is not None else "running"
    text = f"attempt {attempt.attempt} {said}"
    if attempt.started is not None and attempt.ended is not None:
        text += f" after {format_duration((attempt.ended - attempt.started).total_seconds())}"
    return f"{text}: {attempt.code}" if attempt.code is not None else text


def _certificate(certificate: Certificate) -> Iterator[tuple[str, str]]:
    yield "cause", cause(certificate)
    peak_mib = certificate.peak_memory_bytes / MIB
    yield (
        "used",
        f"{format_duration(certificate.cpu_seconds)} of CPU, {peak_mib:.0f} MiB of memory at its peak",
    )
    if certificate.last_progress is not None:
        yield "progress", progress_text(certificate.last_progress)
    if certificate.stack:
        yield "stack", "\n" + output.indented(certificate.stack, by=4)
    if certificate.output_tail:
        yield "output", "\n" + output.indented(certificate.output_tail, by=4)


def _summary(error: Failure) -> str:
    message = error.message.strip().split("\n", 1)[0]
    return f"{error.class_}: {message}" if message else error.class_


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _json(raw: msgspec.Raw | None) -> str:
    return "" if raw is None else bytes(raw).decode()


def _field(label: str, text: str, style: str = "", by: int = 0) -> None:
    gap = "" if text.startswith("\n") else " " * (LABEL_WIDTH - len(label))
    output.line(f"{' ' * by}{label}{gap}{text}", output.STYLES.get(style, style))
