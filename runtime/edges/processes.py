"""Child processes: how they are made, what they inherit, how their death is learnt and what is left of them.

A child gets its two pipe ends and nothing else of its parent: all other descriptors are closed first of all,
since a sibling's pipe end that lives on in it would hide that sibling's death. It is the leader of its own
session and the adopter of its orphans (Linux), so that nothing that it started outlives it. A child whose
parent dies is killed by the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import secrets
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import multiprocess
from multiprocess import forkserver, reduction, resource_tracker, util
from multiprocess import process as multiprocess_process

from runtime.edges import clock, signals
from runtime.edges.board import Board, create_file
from runtime.edges.output import PIPE_BYTES, Capture
from runtime.edges.pipe import Pipe, Tokens
from runtime.errors import PeerGone
from runtime.model.exits import EXIT_FAILED, EXIT_ORPHANED, STACK_TEXT, Exit

Method = Literal["fork", "spawn", "forkserver"]

_LINUX = sys.platform == "linux"
_OUR_FRAME = " in _call_handler"  # what calls a handler, as faulthandler writes it
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PIPES = 4  # that a child shares with us
_WATCHED_MAX = 64  # dying processes, of which one is waited for

DEATH_S = 5.0  # that a killed process may take to be gone, on a machine that has much else to do


class Handed:
    """A descriptor that may be handed to a child, whatever way the child is made."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], Handed], tuple[Any]]:
        return _received, (reduction.DupFd(self.fd),)


def _received(duplicate: Any) -> Handed:
    return Handed(duplicate.detach())


@dataclass(frozen=True)
class Ends:
    """A child's side of all that connects it with the service."""

    read: Handed
    write: Handed
    tokens_read: Handed
    tokens_write: Handed
    output: Handed
    board: Handed
    stacks: Handed
    log: Handed
    secret: str  # of this incarnation's output markers

    def handed(self) -> list[Handed]:
        return [value for value in vars(self).values() if isinstance(value, Handed)]


Main = Callable[[Ends, Any], int]


class Shared:
    """What the successive children of one slot share: their board, and the file their stacks go to."""

    def __init__(self) -> None:
        self.board = Board(create_file("tenure-board"))
        self.stacks_fd = create_file("tenure-stacks")

    def wipe(self) -> None:
        self.board.wipe()
        self.clear_stacks()

    def clear_stacks(self) -> None:
        clear_stacks(self.stacks_fd)

    def stacks(self) -> str | None:
        return read_stacks(self.stacks_fd)

    def close(self) -> None:
        self.board.close()
        os.close(self.stacks_fd)


def clear_stacks(fd: int) -> None:
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)


def read_stacks(fd: int) -> str | None:
    """The Python stacks that a worker wrote last, without the frames below the handler's; None: none."""
    text = os.pread(fd, STACK_TEXT, 0).decode("utf-8", "replace").replace("\x00", "")
    kept: list[str] = []
    ours = False
    for line in text.splitlines():
        if not line.startswith("  File "):
            ours = False
        ours = ours or line.endswith(_OUR_FRAME)
        if not ours:
            kept.append(line)
    return "\n".join(kept).strip() or None


@dataclass
class Child:
    """The supervisor's side of one child process."""

    pid: int
    sentinel: int  # becomes readable when the process has ended: a pidfd on Linux
    pipe: Pipe[Any]
    tokens: Tokens
    output_fd: int
    capture: Capture
    process: Any
    used: tuple[float, int] = (0.0, 0)  # CPU seconds and peak memory, as last seen while it lived

    def close(self) -> None:
        self.pipe.close()
        self.tokens.close()
        os.close(self.output_fd)
        if _LINUX:
            os.close(self.sentinel)
        self.process._popen.close()  # noqa: SLF001 - `close` asks for an exit status, which we have taken


class Lifeline:
    """A pipe on which nothing is ever said: the watching side reads its end when the holding side has died."""

    def __init__(self) -> None:
        self.fd, self._held_fd = os.pipe2(os.O_CLOEXEC)

    def hold(self) -> None:
        os.close(self.fd)

    def watch(self) -> None:
        os.close(self._held_fd)

    def close(self) -> None:
        os.close(self._held_fd)


def adopt_orphans() -> None:
    """Let descendants whose parent has died become children of this process (Linux)."""
    if _LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    name: str, main: Main, spec: Any, shared: Shared, incoming: Any, method: Method, log_fd: int
) -> Child:
    """Start a child that runs `main(ends, spec)` and ends with the exit code that this returns.

    Args:
        incoming: the type of the messages that the child sends.
        spec: data for the child; picklable, when `method` is not "fork".

    Raises:
        OSError: there is no room for another process or its descriptors; nothing is left of the attempt.
    """
    _start_helpers(method, main.__module__)
    before = _descriptors()
    to_child, to_parent, tokens, output = _pipes()
    theirs = (to_child[0], to_parent[1], tokens[1], output[1])
    secret = secrets.token_hex(8)
    shared.wipe()
    ends = Ends(
        read=Handed(to_child[0]),
        write=Handed(to_parent[1]),
        tokens_read=Handed(tokens[0]),
        tokens_write=Handed(tokens[1]),
        output=Handed(output[1]),
        board=Handed(shared.board.fd),
        stacks=Handed(shared.stacks_fd),
        log=Handed(log_fd),
        secret=secret,
    )
    process = multiprocess.get_context(method).Process(
        target=_enter, args=(ends, main, spec, None if method == "forkserver" else os.getpid()), name=name
    )
    try:
        with signals.held_back():
            process.start()
        # multiprocess waits for all children it knows whenever it starts one, and would take their exit
        # status and resource usage from us.
        multiprocess_process._children.discard(process)  # noqa: SLF001
        sentinel = os.pidfd_open(process.pid) if _LINUX else process.sentinel
    except OSError:
        if process._popen is not None:  # noqa: SLF001 - it lives, and cannot be watched
            process.kill()
            process.join(1.0)
            process._popen.close()  # noqa: SLF001
        _close_all(theirs)  # first: to look takes a descriptor
        _close_all(_descriptors() - before)  # ours, and what multiprocess leaves when it cannot fork
        raise
    _close_all(theirs)
    os.set_blocking(output[0], False)
    return Child(
        pid=process.pid,
        sentinel=sentinel,
        pipe=Pipe(to_parent[0], to_child[1], incoming),
        tokens=Tokens(tokens[0]),
        output_fd=output[0],
        capture=Capture(secret),
        process=process,
    )


def _pipes() -> list[tuple[int, int]]:
    """The pipes of a child, all or none."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(_PIPES):
            pipes.append(os.pipe2(os.O_CLOEXEC))  # noqa: PERF401 - what was made must be closed
    except OSError:
        _close_all(fd for pipe in pipes for fd in pipe)
        raise
    if _LINUX:
        fcntl.fcntl(pipes[-1][1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return pipes


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _descriptors() -> set[int]:
    """The open descriptors of this process, and one that is not: that of the listing itself."""
    return {int(name) for name in os.listdir("/proc/self/fd" if _LINUX else "/dev/fd")}  # noqa: PTH208


def _start_helpers(method: Method, module: str) -> None:
    """Start what multiprocess needs for that method: deaf to what is sent to all, and to nothing else.

    A fork server that is started with every signal held back never hears of its children's deaths. It has
    imported `module` beforehand, which is most of the time that a child needs to start.
    """
    forkserver.set_forkserver_preload([module])
    helpers = {
        "fork": (),
        "spawn": (resource_tracker.ensure_running,),
        "forkserver": (resource_tracker.ensure_running, forkserver.ensure_running),
    }
    for ensure_running in helpers[method]:
        with signals.held_back(signals.UNHEEDED):  # each time: the tracker lifts this
            ensure_running()


def _enter(ends: Ends, main: Main, spec: Any, parent: int | None) -> None:
    """The first lines of every child, and its last: whatever happens in between, it ends here."""
    code = EXIT_FAILED
    try:
        _settle(ends, parent)
        code = main(ends, spec)
    except PeerGone:
        code = EXIT_ORPHANED
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))  # whatever sys.stderr is now
        raise
    finally:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # whatever a handler has made of them
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # a thread that a handler left would keep the process


def _settle(ends: Ends, parent: int | None) -> None:
    """Leave the parent's session, descriptors and signal handlers behind, and die when it does."""
    os.setsid()
    die_with_parent(parent)
    close_all_but({0, 1, 2, *(handed.fd for handed in ends.handed())})
    adopt_orphans()
    for handed in ends.handed():
        _lower(handed)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - multiprocess's is of a number closed above
    os.dup2(ends.output.fd, 1)
    os.dup2(ends.output.fd, 2)
    resource_tracker._resource_tracker._fd = None  # noqa: SLF001 - closed above, if there was one
    signals.settle_child()


def die_with_parent(parent: int | None) -> None:
    """Be killed when the parent dies, also when it already has; `parent` is its pid, None: not known."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(EXIT_ORPHANED)  # it died before the line above


def close_all_but(keep: set[int]) -> None:
    """Close every other descriptor of this process."""
    _close_all(_descriptors() - keep)


def _lower(handed: Handed) -> None:
    """Give it the lowest free number, which `select` can wait for; and let no handler's subprocess have it."""
    before, handed.fd = handed.fd, os.dup(handed.fd)
    os.close(before)


def send_signal(child: Child, signum: int) -> None:
    """Signal exactly this process; nothing happens when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        if _LINUX:
            signal.pidfd_send_signal(child.sentinel, signum)
        else:
            os.kill(child.pid, signum)


def runner_of(child: Child, shared: Shared) -> int:
    """The pid of the process in which the attempt runs: the child, or the fork it has made for it."""
    return shared.board.runner or child.pid


def signal_runner(child: Child, shared: Shared, signum: int) -> None:
    """Signal the process in which the attempt runs; nothing happens when it has ended."""
    pid = shared.board.runner
    if not pid:
        send_signal(child, signum)
        return
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid) if _LINUX else -1
        try:
            if shared.board.runner != pid:
                return  # it has ended, and the number may be another's
            if _LINUX:
                signal.pidfd_send_signal(fd, signum)
            else:
                os.kill(pid, signum)
        finally:
            if _LINUX:
                os.close(fd)


def reap(child: Child) -> Exit | None:
    """How the child ended, after its whole process group has been killed; None while it lives."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # before the wait: the number is still its own
    try:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    except ChildProcessError:  # a child of the fork server: multiprocess has its status
        code = child.process.exitcode
        if code is None:
            return None
        cpu_seconds, peak = child.used
        return Exit(
            signal=-code if code < 0 else None,
            code=code if code >= 0 else None,
            cpu_seconds=cpu_seconds,
            peak_memory_bytes=peak,
        )
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return Exit(
        signal=-code if code < 0 else None,
        code=code if code >= 0 else None,
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 6),
        peak_memory_bytes=usage.ru_maxrss * (1024 if _LINUX else 1),
    )


def resident_bytes(pid: int) -> int:
    """Resident memory of a process now; 0 when it cannot be read."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_ns() -> int:
    """CPU time of this process and the children it has waited for, in nanoseconds: as `Exit` counts it."""
    waited_for = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((waited_for.ru_utime + waited_for.ru_stime) * 1e9)


def peak_memory_bytes() -> int:
    """The largest resident set that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if _LINUX else 1)


def note_usage(child: Child) -> None:
    """Remember CPU time and peak memory while the process lives: no wait will tell, in a fork server's child."""
    try:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{child.pid}/status").read_text()
    except OSError:
        return
    ticks = sum(map(int, fields[11:15]))  # of its own, and of the children it has waited for
    peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
    child.used = (ticks / os.sysconf("SC_CLK_TCK"), max(peak * 1024, child.used[1]))


def children() -> set[int]:
    """The pids of this process's children, its own and adopted ones (Linux; else none)."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children") if _LINUX else ():
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in task.read_text().split())
    return found


def end_strangers(known: Iterable[int], *, alive_too: bool, wait_s: float = DEATH_S) -> Exit:
    """Wait for adopted children that have ended; with `alive_too`, kill the others. What they used together.

    Each child adopts its own orphans. What comes to the supervisor was left by a child that has just
    died, and dies with it.

    Args:
        wait_s: how long to wait in all for the deaths of those that are killed. What is not gone by then
            (stuck in the kernel, or the machine is that busy) dies later.
    """
    spared = set(known) | _helpers()
    until_s = clock.now_s() + wait_s
    cpu_seconds, peak = 0.0, 0
    while strangers := children() - spared:  # each death may hand us another generation
        if alive_too:
            _kill(strangers)
        alive = set()
        for pid in strangers:
            with contextlib.suppress(ChildProcessError):
                ended, _, usage = os.wait4(pid, os.WNOHANG)
                if not ended:
                    alive.add(pid)
                    continue
                cpu_seconds += usage.ru_utime + usage.ru_stime
                peak = max(peak, usage.ru_maxrss * 1024)
        if not alive_too or (alive and not _one_ends(alive, until_s - clock.now_s())):
            break
    return Exit(cpu_seconds=round(cpu_seconds, 6), peak_memory_bytes=peak)


def _kill(pids: Iterable[int]) -> None:
    """Kill children of this process, each with what is in its group."""
    for pid in pids:
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)


def _one_ends(pids: Iterable[int], wait_s: float) -> bool:
    """Wait until one of these children, none of which has been waited for, has ended.

    False: none did, or there is no descriptor left to wait by.
    """
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        poll = select.poll()
        for pid in islice(pids, _WATCHED_MAX):
            fd = os.pidfd_open(pid)
            stack.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
        return bool(poll.poll(max(wait_s, 0.0) * 1000))
    return False


def clean_up() -> None:
    """Remove what multiprocess keeps on disk for this process; for one that will end by `os._exit`."""
    util._run_finalizers()  # noqa: SLF001 - what it would do itself at an ordinary end


def _helpers() -> set[int]:
    """Processes that multiprocess, or the standard library's twin of it, keeps for itself."""
    found = set()
    for package in ("multiprocess", "multiprocessing"):
        server = sys.modules.get(f"{package}.forkserver")
        tracker = sys.modules.get(f"{package}.resource_tracker")
        if server is not None:
            found.add(server._forkserver._forkserver_pid)  # noqa: SLF001
        if tracker is not None:
            found.add(tracker._resource_tracker._pid)  # noqa: SLF001
    return found - {None}


def out_of_memory_count() -> int:
    """How often the kernel's memory killer has struck here: in our control group, else on the machine."""
    count = 0
    with contextlib.suppress(OSError):
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        for line in Path(f"/sys/fs/cgroup{group}/memory.events").read_text().splitlines():
            if line.startswith("oom_kill "):
                count += int(line.split()[1])
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                count += int(line.split()[1])
    return count
