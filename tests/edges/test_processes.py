"""Goal: a child has only what is its own, its death is learnt whole, and nothing outlives it. Method: real processes.

Each test runs in a process of its own (`apart`), so that it may be killed, adopt orphans and run out of
descriptors. The mains of children stand at the top, where a spawned child finds them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.edges import processes, signals
from runtime.edges.pipe import Pipe
from runtime.edges.processes import Child, Ends, Lifeline, Method, Shared
from runtime.model.exits import EXIT_FAILED, EXIT_ORPHANED
from tests.helpers.service import children, is_alive
from tests.helpers.waiting import wait_for

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(scope="module", autouse=True)
def scratch(run_place: Path) -> Iterator[None]:
    """What multiprocess keeps on disk for a test's process, which ends without removing it, goes with the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(run_place))
        patch.setattr(tempfile, "tempdir", None)  # looked up again
        yield


class Word(msgspec.Struct, frozen=True, tag=True):
    text: str


# -- what children do


def connect(ends: Ends) -> Pipe[Word]:
    return Pipe(ends.read.fd, ends.write.fd, Word)


def hear(pipe: Pipe[Word]) -> str:
    while not (words := pipe.receive()):
        select.select([pipe.read_fd], [], [])
    return words[0].text


def echo(ends: Ends, spec: str) -> int:
    """Say what it was told, then burn time and memory, then end with the code that it hears."""
    pipe = connect(ends)
    pipe.send_and_wait(Word(spec))
    code = int(hear(pipe))
    kept = b"x" * 60_000_000
    while time.process_time() < 0.3:
        pass
    pipe.send_and_wait(Word(f"used {len(kept)}"))
    hear(pipe)
    return code


def wait(ends: Ends, spec: Any) -> int:
    pipe = connect(ends)
    pipe.send_and_wait(Word("here"))
    hear(pipe)
    return 0


def leave(ends: Ends, spec: int) -> int:
    return spec


def census(ends: Ends, spec: Any) -> int:
    """Report which descriptors it has, and which a subprocess gets that nobody was careful about."""
    own = {handed.fd for handed in ends.handed()}
    held = {int(name) for name in os.listdir("/proc/self/fd")}
    held = {fd for fd in held if os.path.exists(f"/proc/self/fd/{fd}")}
    strange = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in held - own - {0, 1, 2}}
    high = [fd for fd in own if fd > 15]
    listing = (
        "import os; print(*[n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, close_fds=False, check=True
    )
    leaked = set(map(int, found.stdout.split())) - {0, 1, 2}
    stdin = os.readlink(f"/proc/self/fd/{sys.stdin.fileno()}") if sys.stdin.read() == "" else "something"
    connect(ends).send_and_wait(Word(repr((strange, high, leaked, stdin))))
    return 0


def handlers(ends: Ends, spec: Any) -> int:
    """Report which signals do anything here."""
    loud = {
        signum.name
        for signum in signal.valid_signals()
        if isinstance(signum, signal.Signals)
        and signal.getsignal(signum) not in (signal.SIG_DFL, signal.SIG_IGN, None, signals._nothing)
        and signum is not signal.SIGINT
    }
    report = (loud, signal.set_wakeup_fd(-1), len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    pipe = connect(ends)
    pipe.send_and_wait(Word(repr(report)))
    hear(pipe)
    return 3


def orphans(ends: Ends, spec: Any) -> int:
    """Leave processes behind: of a session of their own, whose parent has ended, that starts more."""
    read_fd, write_fd = os.pipe()
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.write(write_fd, f"{os.getpid()} ".encode())
                    time.sleep(60)
                os.write(write_fd, f"{os.getpid()} ".encode())
                time.sleep(60)
            os._exit(0)
        os.wait()
    found = b""
    while found.count(b" ") < 6:
        found += os.read(read_fd, 100)
    pipe = connect(ends)
    pipe.send_and_wait(Word(found.decode()))
    hear(pipe)
    return 0


def fail(ends: Ends, spec: Any) -> int:
    threading.Thread(target=time.sleep, args=(60,), daemon=False).start()
    raise RuntimeError("went wrong")


def close_stdout(ends: Ends, spec: Any) -> int:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    return 4


# -- what tests do


def run_apart(body: Callable[[], object]) -> None:
    """Run it in a process of its own and fail as it fails."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        try:
            body()
        except BaseException:
            os.write(write_fd, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, encoding="utf-8", closefd=True) as report:
        os.waitpid(pid, 0)  # not until the report's end: a grandchild may hold that
        os.set_blocking(read_fd, False)
        text = report.read()
    assert not text, text


def apart(test: Callable[..., None]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        run_apart(lambda: test(*args, **kwargs))

    return wrapped


def start(
    main: processes.Main, spec: Any = None, method: Method = "fork", shared: Shared | None = None
) -> Child:
    return processes.start("child", main, spec, shared or Shared(), Word, method, 2)


def words(child: Child, within_s: float = 20.0) -> str:
    found: list[str] = []

    def read() -> list[str]:
        found.extend(word.text for word in child.pipe.receive())
        return found

    return wait_for(read, within_s=within_s)[0]


def ended(child: Child, within_s: float = 20.0) -> Any:
    assert select.select([child.sentinel], [], [], within_s)[0], "the kernel says when it has ended"
    return wait_for(lambda: processes.reap(child))


def printed(child: Child) -> str:
    with contextlib.suppress(BlockingIOError):
        return os.read(child.output_fd, 60_000).decode()
    return ""


def open_descriptors() -> set[str]:
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


# -- the life of a child


@pytest.mark.parametrize("method", METHODS)
@apart
def test_a_child_hears_and_says_and_its_end_is_told_with_what_it_used(method: Method) -> None:
    child = start(echo, "hello", method)
    assert words(child) == "hello"
    child.pipe.send(Word("7"))
    assert words(child) == "used 60000000"
    processes.note_usage(child)
    child.pipe.send(Word("go"))
    exit = ended(child)
    assert (exit.code, exit.signal) == (7, None)
    assert exit.cpu_seconds >= 0.3 - 0.02
    assert 60_000_000 < exit.peak_memory_bytes < 500_000_000
    child.close()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@apart
def test_a_signal_that_ends_a_child_is_told(method: Method) -> None:
    child = start(wait, None, method)
    words(child)
    processes.send_signal(child, signal.SIGSEGV)
    exit = ended(child)
    assert (exit.code, exit.signal) == (None, signal.SIGSEGV)
    processes.send_signal(child, signal.SIGKILL)  # nobody is there any more
    child.close()


@apart
def test_a_start_and_an_end_leave_no_descriptor_and_no_zombie() -> None:
    shared = Shared()
    before = open_descriptors()
    for _ in range(20):
        child = start(leave, 0, shared=shared)
        assert ended(child).code == 0
        child.close()
    assert open_descriptors() == before
    assert processes.children() == set()


@apart
def test_a_child_whose_main_raises_says_why_and_ends_at_once_whatever_threads_it_has() -> None:
    child = start(fail)
    assert ended(child, within_s=5).code == EXIT_FAILED
    assert "RuntimeError: went wrong" in printed(child)


@apart
def test_a_child_ends_with_its_code_also_when_its_streams_are_gone() -> None:
    assert ended(start(close_stdout)).code == 4


@apart
def test_what_the_parent_had_not_flushed_is_printed_once() -> None:
    read_fd, write_fd = os.pipe()
    sys.stdout = open(write_fd, "w")  # noqa: SIM115 - what it holds is the point
    sys.stdout.write("in a buffer\n")
    child = start(leave, 0)
    ended(child)
    sys.stdout.flush()
    assert printed(child) == ""
    assert os.read(read_fd, 1000) == b"in a buffer\n"


# -- what a child inherits


@pytest.mark.parametrize("method", METHODS)
@apart
def test_a_child_has_its_own_ends_and_nothing_else_and_its_subprocesses_have_none(method: Method) -> None:
    elder = start(wait, None, method)
    words(elder)
    for _ in range(50):
        os.set_inheritable(os.dup(2), True)
    child = start(census, None, method)
    strange, high, leaked, stdin = eval(words(child))
    assert strange == {}, "a sibling's pipe end would hide that sibling's death"
    assert high == [], "select knows no descriptor above 1023"
    assert leaked == set()
    assert stdin == os.devnull


@pytest.mark.parametrize("method", METHODS)
@apart
def test_no_handler_of_the_parent_is_left_in_a_child(method: Method) -> None:
    heard = signals.Signals()
    for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGQUIT):
        signal.signal(signum, lambda *_: os.write(2, b"the parent's handler\n"))
    child = start(handlers, None, method)
    loud, wakeup_fd, masked = eval(words(child))
    assert loud <= {"SIGALRM", "SIGQUIT"}
    assert (wakeup_fd, masked) == (-1, 0)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        processes.send_signal(child, signum)
    child.pipe.send(Word("go"))
    assert ended(child).code == 3, "it heeds none of them"
    assert heard.read() <= {signal.SIGCHLD}, "and the parent has not heard of them"


@apart
def test_a_signal_between_fork_and_first_line_meets_no_handler_of_the_parent() -> None:
    heard = signals.Signals()
    for _ in range(30):
        child = start(wait)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            processes.send_signal(child, signum)
        words(child)
        child.pipe.send(Word("go"))
        assert ended(child).code == 0
        child.close()
    assert heard.read() <= {signal.SIGCHLD}


# -- the end of a parent


def family(method: Method, then: Callable[[list[Child]], None]) -> list[int]:
    """The pids of three children whose parent ends by `then`."""
    read_fd, write_fd = os.pipe()
    if os.fork() == 0:
        os.setsid()
        made = [start(wait, None, method) for _ in range(3)]
        for child in made:
            words(child)
        os.write(write_fd, " ".join(str(child.pid) for child in made).encode())
        then(made)
    os.close(write_fd)
    with open(read_fd) as report:
        return [int(pid) for pid in os.read(report.fileno(), 1000).split()]


def kill_me(_: list[Child]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_the_youngest_and_kill_me(made: list[Child]) -> None:
    os.kill(made[-1].pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("method", "then"), [("fork", kill_me), *((method, stop_the_youngest_and_kill_me) for method in METHODS)]
)
@apart
def test_children_of_a_killed_parent_are_gone_within_a_second(
    method: Method, then: Callable[[list[Child]], None]
) -> None:
    pids = family(method, then)
    assert len(pids) == 3
    within_s = 3.0 if method == "forkserver" else 1.0  # the server must end first, in its own time
    wait_for(lambda: [pid for pid in pids if is_alive(pid)], lambda living: not living, within_s=within_s)


@apart
def test_the_end_of_file_alone_ends_a_child_whose_youngest_sibling_is_frozen() -> None:
    """Without the kernel's help: nobody else holds the other end of its pipe."""
    elder = start(wait)
    words(elder)
    youngest = start(wait)
    words(youngest)
    os.kill(youngest.pid, signal.SIGSTOP)
    elder.pipe.close()
    assert ended(elder, within_s=1).code == EXIT_ORPHANED
    os.kill(youngest.pid, signal.SIGKILL)


@apart
def test_a_parent_killed_within_milliseconds_of_a_fork_leaves_nobody() -> None:
    processes.adopt_orphans()
    for turn in range(40):
        parent = os.fork()
        if parent == 0:
            threading.Timer(turn * 0.0001, kill_me, ([],)).start()
            while True:
                start(wait)
        os.waitpid(parent, 0)
        deadline_s = time.monotonic() + 1.0
        while processes.children():
            assert time.monotonic() < deadline_s, f"turn {turn}"
            os.waitpid(-1, 0)


@apart
def test_a_child_that_finds_its_parent_dead_already_does_not_begin() -> None:
    """The signal of the parent's death does not come for a death before it was asked for."""
    shared = Shared()
    there, back, tokens, output = (os.pipe() for _ in range(4))
    handed = [processes.Handed(fd) for fd in (there[0], back[1], tokens[0], tokens[1], output[1])]
    others = [processes.Handed(fd) for fd in (shared.board.fd, shared.stacks_fd, os.dup(2))]
    pid = os.fork()
    if pid == 0:
        processes._enter(Ends(*handed, *others, secret=""), leave, 0, parent=1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == EXIT_ORPHANED


@apart
def test_a_lifeline_is_cut_when_its_holder_dies() -> None:
    line = Lifeline()
    pid = os.fork()
    if pid == 0:
        line.hold()
        signal.pause()
    line.watch()
    assert not select.select([line.fd], [], [], 0)[0]
    os.kill(pid, signal.SIGKILL)
    assert select.select([line.fd], [], [], 5)[0]
    os.waitpid(pid, 0)


# -- what a child leaves behind


@apart
def test_orphans_of_a_dead_child_are_ended_however_they_hid() -> None:
    processes.adopt_orphans()
    sibling = start(wait)
    words(sibling)
    child = start(orphans)
    left = [int(pid) for pid in words(child).split()]
    assert len(left) == 6
    assert len(children(child.pid) & set(left)) == 3, "a child adopts what was left by its own children"
    processes.send_signal(child, signal.SIGKILL)
    ended(child)
    processes.end_strangers({sibling.pid}, alive_too=True)
    assert [pid for pid in left if is_alive(pid)] == []
    assert processes.children() == {sibling.pid}
    processes.end_strangers({sibling.pid}, alive_too=True)
    assert is_alive(sibling.pid)


@apart
def test_a_death_that_takes_its_time_is_waited_for() -> None:
    processes.adopt_orphans()
    stranger = subprocess.Popen(["sleep", "60"])

    def kill_later(pid: int, signum: int) -> None:
        if not dying:
            dying.append(threading.Timer(0.5, kill, (stranger.pid, signum)))
            dying[0].start()

    kill = os.kill
    dying: list[threading.Timer] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kill", "killpg"):
            patch.setattr(processes.os, name, kill_later)
        exit = processes.end_strangers((), alive_too=True)
    assert not is_alive(stranger.pid)
    assert exit.peak_memory_bytes > 0, "it was waited for"


@apart
def test_what_cannot_be_killed_is_waited_for_as_long_as_was_said() -> None:
    processes.adopt_orphans()
    stranger = subprocess.Popen(["sleep", "60"])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kill", "killpg"):
            patch.setattr(processes.os, name, lambda *_: None)
        exit = processes.end_strangers((), alive_too=True, wait_s=0.01)
    assert (is_alive(stranger.pid), exit.peak_memory_bytes) == (True, 0)
    stranger.kill()


@apart
def test_without_descriptors_strangers_are_killed_all_the_same() -> None:
    def no_room(pid: int) -> int:
        looked.append(pid)
        raise OSError(errno.EMFILE, "no room for a descriptor")

    processes.adopt_orphans()
    stranger = subprocess.Popen(["sleep", "60"])
    killed: list[tuple[int, int]] = []
    looked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kill", "killpg"):  # nobody dies so fast that there is no need of a descriptor
            patch.setattr(processes.os, name, lambda *words: killed.append(words))
        patch.setattr(processes.os, "pidfd_open", no_room)
        processes.end_strangers((), alive_too=True)
    assert killed == [(stranger.pid, signal.SIGKILL)] * 2, "it and its group"
    assert looked == [stranger.pid]
    stranger.kill()


@apart
def test_reaping_orphans_never_takes_the_exit_status_of_a_child_of_ours() -> None:
    processes.adopt_orphans()
    ours = [start(leave, code) for code in range(20, 25)]
    known = {child.pid for child in ours}
    for _ in range(5):
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
    for child in ours:
        assert select.select([child.sentinel], [], [], 10)[0]
    wait_for(
        lambda: (processes.end_strangers(known, alive_too=False), processes.children())[1],
        lambda c: c == known,
    )
    assert [ended(child).code for child in ours] == list(range(20, 25))


@apart
def test_the_helpers_of_multiprocess_are_no_strangers() -> None:
    child = start(wait, None, "forkserver")
    words(child)
    processes.end_strangers({child.pid}, alive_too=True)
    child.pipe.send(Word("go"))
    assert ended(child).code == 0
    again = start(wait, None, "forkserver")
    words(again)


@apart
def test_a_signal_to_everybody_does_not_end_the_fork_server_under_its_children() -> None:
    child = start(wait, None, "forkserver")
    words(child)
    for pid in processes.children():
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, signum)
    child.pipe.send(Word("go"))
    assert ended(child).code == 0


# -- no room


@apart
def test_without_room_for_descriptors_a_start_fails_whole_and_later_ones_do_not() -> None:
    shared = Shared()
    before = open_descriptors()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(name) for name in before)
    while os.dup(2) < top:  # no room below it
        pass
    before = open_descriptors()
    top += 1
    failed = 0
    for room in range(1, 30):
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + room, hard))
        try:
            child = start(leave, 0, shared=shared)
        except OSError:
            failed += 1
        else:
            ended(child)
            child.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        assert open_descriptors() == before, f"with room for {room}"
        assert processes.children() == set()
    assert 5 < failed < 25
    child = start(leave, 5, shared=shared)
    assert ended(child).code == 5


@apart
def test_without_room_for_a_process_a_start_fails_whole() -> None:
    shared = Shared()
    before = open_descriptors()

    def no_fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "no room for a process")

    fork, os.fork = os.fork, no_fork
    with pytest.raises(BlockingIOError):
        start(leave, 0, shared=shared)
    os.fork = fork
    assert open_descriptors() == before


@apart
def test_a_child_that_cannot_be_watched_is_not_left_alive() -> None:
    shared = Shared()
    before = open_descriptors()

    def no_pidfd(pid: int) -> int:
        raise OSError(errno.EMFILE, "no room")

    pidfd_open, os.pidfd_open = os.pidfd_open, no_pidfd
    with pytest.raises(OSError, match="no room"):
        start(wait, shared=shared)
    os.pidfd_open = pidfd_open
    assert open_descriptors() == before
    assert processes.children() == set()


# -- a child's stacks


@apart
def test_stacks_are_shown_without_the_frames_below_the_handlers() -> None:
    shared = Shared()
    text = 'Current thread 0x1 (most recent call first):\n  File "h.py", line 1 in work\n  File "w.py", line 2 in _call_handler\n  File "w.py", line 3 in run\n'
    os.write(shared.stacks_fd, text.encode())
    assert shared.stacks() == 'Current thread 0x1 (most recent call first):\n  File "h.py", line 1 in work'
    shared.wipe()
    assert shared.stacks() is None
    shared.close()
