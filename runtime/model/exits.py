"""How a process ended, and what is known of an attempt that ended without an answer."""

from __future__ import annotations

import enum

import msgspec

# Exit codes of our own children. Anything else is a crash.
EXIT_OK = 0  # asked to stop, and did
EXIT_FAILED = 1
EXIT_USAGE = 2  # bad configuration: a restart cannot help
EXIT_RECYCLED = 10  # a worker that has done its share and wants a fresh process
EXIT_ORPHANED = 11  # its supervisor is gone
EXIT_INTERRUPTED = 130

OUTPUT_TAIL = 64 * 1024  # bytes of a handler's output kept for the certificate
STACK_TEXT = 64 * 1024  # bytes of the last Python stacks kept


class Verdict(enum.StrEnum):
    """Why an attempt ended without an answer."""

    SIGNAL = "signal"  # a signal that we did not send: a crash in C, the kernel, an operator
    EXIT = "exit"  # the handler ended its own process
    MEMORY = "memory"  # over the hard memory limit, or the kernel's memory killer
    TIMEOUT = "timeout"  # over its time limit, killed by the supervisor
    STALLED = "stalled"  # no progress for longer than its stall limit
    CANCELLED = "cancelled"
    FENCED = "fenced"  # its lease was lost or could not be renewed in time
    SHUTDOWN = "shutdown"  # the service stopped and did not wait any longer
    ENVIRONMENT = "environment"  # the process died while it was running no job


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel said of a process that ended. One of `signal` and `code` is set."""

    signal: int | None = None
    code: int | None = None
    cpu_seconds: float = 0.0  # user and system time of the process and the children it waited for
    peak_memory_bytes: int = 0  # largest resident set

    def with_left(self, left: Exit) -> Exit:
        """The same end, with what those have used that the process left behind."""
        return msgspec.structs.replace(
            self,
            cpu_seconds=round(self.cpu_seconds + left.cpu_seconds, 6),
            peak_memory_bytes=max(self.peak_memory_bytes, left.peak_memory_bytes),
        )

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.code}"


class Progress(msgspec.Struct, frozen=True):
    """How far an attempt has come, in whatever unit the handler counts."""

    done: float | int
    total: float | int | None = None
    note: str | None = None


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What is on record of an attempt whose process was killed or died under it."""

    verdict: Verdict
    signal: int | None
    exit_code: int | None
    cpu_seconds: float
    peak_memory_bytes: int
    last_progress: Progress | None = None
    output_tail: str = ""
    stack: str | None = None
