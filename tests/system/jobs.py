"""Handlers for the system's tests. Each writes what it does as rows of its own, over its own connection."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, ClassVar, Literal

import psycopg

from runtime import NO_RETRY, Context, Job, Queue, Retry, Snooze, fixed, job, provider


def note(ctx: Context, what: str, value: str = "") -> None:
    with psycopg.connect(os.environ["EFFECTS_URL"], autocommit=True) as conn:
        conn.execute(
            "insert into effect (job, attempt, what, pid, value) values (%s, %s, %s, %s, %s)",
            (ctx.id, ctx.attempt, what, os.getpid(), value),
        )


def hold(seconds: float) -> None:
    """One C call of `seconds` s, however fast the machine: it holds the interpreter lock and heeds no signal."""
    end = time.monotonic() + seconds
    next(filter(end.__lt__, iter(time.monotonic, None)))


class Noted(Job):
    def run(self, ctx: Context) -> object:
        note(ctx, "start")
        result = self.work(ctx)
        note(ctx, "stop")
        return result

    def work(self, ctx: Context) -> object:
        raise NotImplementedError


@job("nap", retry=Retry(3, fixed(0.1)))
class Nap(Noted):
    seconds: float = 1.0

    def work(self, ctx: Context) -> object:
        end = time.monotonic() + self.seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        return {"attempt": ctx.attempt}


@job("count", retry=NO_RETRY)
class Count(Noted):
    def work(self, ctx: Context) -> object:
        return ctx.attempt


@job("quick", retry=NO_RETRY)
class Quick(Job):
    number: int = 0

    def run(self, ctx: Context) -> object:
        return self.number


@job("big", retry=NO_RETRY)
class Big(Noted):
    """Returns more than its journal holds."""

    size: int = 2_000_000

    def work(self, ctx: Context) -> object:
        return "x" * self.size


@job("in-c", retry=NO_RETRY)
class InC(Noted):
    seconds: float

    def work(self, ctx: Context) -> object:
        hold(self.seconds)
        return None


@job("hang", retry=NO_RETRY, timeout=2)
class Hang(Noted):
    how: Literal["in-c", "swallow", "child", "heed"]

    def work(self, ctx: Context) -> object:
        if self.how == "in-c":
            hold(600)
        if self.how == "child":
            script = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
            child = subprocess.Popen([sys.executable, "-c", script])
            note(ctx, "child", str(child.pid))
            child.wait()
        while True:
            try:
                time.sleep(60)
            except BaseException:
                if self.how == "heed":
                    raise


@job("die", retry=NO_RETRY)
class Die(Noted):
    """Ends its process, one way or another."""

    how: str
    times: int = 10**6

    def work(self, ctx: Context) -> object:
        if ctx.attempt > self.times:
            return "lived"
        ctx.progress(ctx.attempt, self.times, "about to die")
        print("last words")
        match self.how:
            case "exit0":
                os._exit(0)
            case "exit3":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "descriptors":
                os.closerange(0, 64)
            case "stdout":
                os.closerange(0, 3)
                return "lived"
            case "snooze":
                raise Snooze("abc")  # type: ignore[arg-type]
            case "str":
                raise UnspeakableError
            case "fork":
                child = os.fork()
                if child == 0:
                    raise ValueError("in the fork")
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            case "recursion":
                sys.setrecursionlimit(10**9)
                _deeper(0)
            case _:
                os.kill(os.getpid(), int(self.how))
        return "lived"


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def _deeper(depth: int) -> int:
    return repr(_Nested(depth)).count("x")


class _Nested:
    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __repr__(self) -> str:
        return f"{_Nested(self.depth + 1)!r}x"


@job("raise", retry=NO_RETRY)
class Raise(Noted):
    what: str

    def work(self, ctx: Context) -> object:
        match self.what:
            case "exit":
                sys.exit(0)
            case "exit text":
                sys.exit("text")
            case "interrupt":
                raise KeyboardInterrupt
            case "generator":
                raise GeneratorExit
            case "recursion":
                return _plainly(0)
            case "memory":
                raise MemoryError
            case "surrogate":
                raise ValueError("bad \udcff and \x00 text")
            case "huge":
                raise ValueError("x" * 10_000_000)
        raise ValueError(self.what)


def _plainly(depth: int) -> int:
    return _plainly(depth + 1) + 1


@job("hog", retry=NO_RETRY, memory_limit="200MiB")
class Hog(Noted):
    times: int = 1

    def work(self, ctx: Context) -> object:
        if ctx.attempt > self.times:
            return "lived"
        kept = []
        while True:
            kept.append(b"x" * 10_000_000)
            time.sleep(0.01)


@job("family", retry=NO_RETRY)
class Family(Noted):
    """Starts a grandchild in a session of its own, whose parent then ends."""

    seconds: float = 60.0

    def work(self, ctx: Context) -> object:
        parent, child = os.pipe()
        if os.fork() == 0:
            os.setsid()
            grandchild = os.fork()
            if grandchild:
                os.write(child, str(grandchild).encode())
                os._exit(0)
            time.sleep(600)
            os._exit(0)
        os.wait()
        note(ctx, "grandchild", os.read(parent, 20).decode())
        time.sleep(self.seconds)
        return None


@job("pool", retry=NO_RETRY)
class Pool(Noted):
    def work(self, ctx: Context) -> object:
        with get_context("fork").Pool(2) as pool:
            return sum(pool.map(abs, [-1, -2, -3]))


@job("terminate", retry=NO_RETRY)
class Terminate(Noted):
    """Starts a process of its own and tells it to end."""

    def work(self, ctx: Context) -> object:
        child = get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(10)
        return child.exitcode


@job("untidy", retry=NO_RETRY)
class Untidy(Noted):
    """Leaves its process other than it found it."""

    def work(self, ctx: Context) -> object:
        os.chdir("/")
        os.umask(0o000)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        subprocess.Popen(["sleep", "600"])
        return None


@job("look", retry=NO_RETRY)
class Look(Noted):
    """Reports what it finds in its process."""

    def work(self, ctx: Context) -> object:
        umask = os.umask(0o022)
        os.umask(umask)
        print("seen")
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, check=False
        )
        return {
            "directory": os.getcwd(),
            "umask": umask,
            "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            "children": len(children.stdout.split()) - 1,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": os.environ["OMP_NUM_THREADS"],
        }


@job("print", retry=NO_RETRY)
class Print(Noted):
    text: str = "hello"
    times: int = 1

    def work(self, ctx: Context) -> object:
        for _ in range(self.times):
            print(self.text)
        ctypes.CDLL(None).write(1, b"from C\n", 7)
        return None


@job("steps", retry=NO_RETRY)
class Steps(Noted):
    count: int
    pause: float = 0.1

    def work(self, ctx: Context) -> object:
        for _ in ctx.track(range(self.count)):
            time.sleep(self.pause)
        return None


@job("quiet", retry=NO_RETRY, stall_after=1)
class Quiet(Noted):
    """Reports progress, and then no more."""

    def work(self, ctx: Context) -> object:
        ctx.progress(1, 2)
        time.sleep(60)
        return None


@job("patient", retry=NO_RETRY)
class Patient(Noted):
    """Waits to be cancelled, and says so."""

    def work(self, ctx: Context) -> object:
        while not ctx.cancelled:
            time.sleep(0.01)
        note(ctx, "cancelled")
        ctx.check()
        return None


@job("stubborn", retry=NO_RETRY)
class Stubborn(Noted):
    def work(self, ctx: Context) -> object:
        time.sleep(60)
        return None


class Tool:
    """What a provider makes."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.uses = 0


@provider(Tool)
@contextmanager
def tool() -> Iterator[Tool]:
    made = Tool()
    yield made
    with psycopg.connect(os.environ["EFFECTS_URL"], autocommit=True) as conn:
        conn.execute(
            "insert into effect (what, pid, value) values ('tool closed', %s, %s)", (made.pid, made.uses)
        )


@job("provided", retry=NO_RETRY)
class WithTools(Job):
    fail: bool = False

    def run(self, ctx: Context, tool: Tool, queue: Queue, conn: psycopg.Connection, extra: int = 3) -> object:
        tool.uses += 1
        child = queue.push(Quick(number=tool.uses))
        conn.execute("insert into effect (job, what, pid) values (%s, 'row', %s)", (ctx.id, os.getpid()))
        queue.push(Count(), conn=conn)
        if self.fail:
            raise ValueError("after the row")
        return {"pid": tool.pid, "child": child, "extra": extra}


@job("grown", retry=NO_RETRY)
class Grown(Job):
    """Was `name` once, is `names` since."""

    names: list[str]
    version: ClassVar[int] = 2

    def run(self, ctx: Context) -> object:
        return self.names

    @classmethod
    def upgrade(cls, raw: dict[str, Any], version: int) -> dict[str, Any]:
        return {"names": [raw["name"]]}


@job("shell", retry=NO_RETRY)
class Shell(Job):
    """Runs a command that prints where its handler would."""

    command: str

    def run(self, ctx: Context) -> object:
        return subprocess.run(self.command, shell=True, check=True).returncode


@job("gasp", retry=NO_RETRY)
class Gasp(Job):
    """Prints one letter, without the end of a line, and dies."""

    how: Literal["segfault", "exit", "kill"]

    def run(self, ctx: Context) -> object:
        print("x", end="")
        match self.how:
            case "segfault":
                ctypes.string_at(0)
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return None


@job("loud", retry=NO_RETRY)
class Loud(Noted):
    mebibytes: int

    def work(self, ctx: Context) -> object:
        line = "x" * 1023
        for _ in range(self.mebibytes * 1024):
            print(line)
        return None


@job("litter", retry=NO_RETRY)
class Litter(Job):
    """Leaves a short-lived orphan behind, as a daemon would start."""

    def run(self, ctx: Context) -> object:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.05)
            os._exit(0)
        os.wait()
        return None


@job("say", retry=NO_RETRY)
class Say(Job):
    """As short as a job that prints can be."""

    def run(self, ctx: Context) -> object:
        print(ctx.id)
        return None


@job("kicked", retry=NO_RETRY)
class Kicked(Noted):
    """Goes on until a row says that it may end."""

    def work(self, ctx: Context) -> None:
        with psycopg.connect(os.environ["EFFECTS_URL"], autocommit=True) as conn:
            while conn.execute("select from effect where what = 'let go'").fetchone() is None:
                time.sleep(0.01)


@job("kicks", retry=NO_RETRY, kicks=("kicked",))
class Kicks(Job):
    fails: bool = False

    def run(self, ctx: Context) -> None:
        ctx.kick("kicked")
        if self.fails:
            raise ValueError("kicks nothing")


@job("marked", retry=NO_RETRY)
class Marked(Noted):
    """Fails, with something in its payload that nobody else may see."""

    how: Literal["raise", "die", "hang"]
    secret: str

    def work(self, ctx: Context) -> object:
        match self.how:
            case "raise":
                raise RuntimeError("no luck")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(60)


@job("deposit", retry=NO_RETRY)
class Deposit(Job):
    """An effect and the end of the job in one commit; on its first attempt it may be killed, at one of three moments."""

    killed: Literal["never", "before", "after"] = "never"
    stays: float = 0.0

    def run(self, ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(
                "insert into effect (job, attempt, what) values (%s, %s, 'deposit')", [ctx.id, ctx.attempt]
            )
            tx.complete({"attempt": ctx.attempt})
            if self.killed == "before" and ctx.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if self.killed == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.stays)


@job("long-statement", retry=NO_RETRY)
class LongStatement(Noted):
    """Its process can be killed; the statement goes on in the database."""

    def work(self, ctx: Context) -> object:
        if ctx.attempt == 1:
            with ctx.transaction() as tx:
                tx.execute("select pg_sleep(600)")
        return None


@job("watch", retry=NO_RETRY)
class Watch(Noted):
    """Goes on until it has to end, and says why it had to."""

    def work(self, ctx: Context) -> object:
        while True:
            time.sleep(0.01)
            try:
                ctx.check()
            except BaseException as error:
                note(ctx, "told", type(error).__name__)
                raise
