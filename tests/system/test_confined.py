"""Goal: a confined attempt is held to what its kind declares, and is in all else like any other. Method: a service."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.edges import landlock
from runtime.model.exits import Verdict
from runtime.model.jobs import Ending, JobView, State
from tests.helpers.service import Service, Stage, children, is_alive
from tests.helpers.waiting import wait_for

KINDS = """
import contextlib, ctypes, fcntl, os, socket, sys, termios, time
from pathlib import Path

import psycopg
from runtime import NO_RETRY, Context, Filesystem, Job, job, provider

PLACE = Path({place!r})
held = dict(
    rights=("mail.send",),
    egress=("tcp://127.0.0.1:{port}",),
    filesystem=Filesystem(read=(str(PLACE / "in"),), write=(str(PLACE / "out"),)),
)

@job("act", retry=NO_RETRY, timeout=20, memory_limit="200MiB", max_crashes=1, **held)
class Act(Job):
    how: str = ""

    def run(self, ctx: Context) -> object:
        ctx.progress(1, 2)
        print("last words")
        match self.how:
            case "read": return (PLACE / "secret").read_text()
            case "copy": return (PLACE / "out" / "a").write_text((PLACE / "in" / "a").read_text())
            case "connect": return socket.create_connection(("127.0.0.1", {port})).close()
            case "elsewhere": return socket.create_connection(("127.0.0.1", {port} + 1)).close()
            case "look":
                files = [os.readlink(f"/proc/self/fd/{{n}}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{{n}}")]
                return {{"pid": os.getpid(), "files": files, "environ": dict(os.environ), "initial": Path("/proc/self/environ").read_bytes().decode("latin1").replace(chr(0), " ")}}
            case "right": return ctx.right("mail.send").name
            case "half":
                print("half a line", end="")
                while fcntl.ioctl(1, termios.FIONREAD, b"1234") != bytes(4): os.sched_yield()
            case "burn":
                while time.process_time() < 0.6: pass
            case "big": return "x" * 1_000_000
            case "segfault": ctypes.string_at(0)
            case "exit": os._exit(3)
            case "kill": os.kill(os.getpid(), 9)
            case "fork":
                if os.fork() == 0: raise ValueError
                return os.wait()[1]
            case "hog":
                kept = []
                while True:
                    kept.append(b"x" * 10_000_000)
                    time.sleep(0.01)
            case "sleep": time.sleep(60)

class Tool: ...

@provider(Tool)
@contextlib.contextmanager
def tool():
    made = Tool()
    made.pid = os.getpid()
    yield made
    (PLACE / "out" / f"closed {{made.pid}}").touch()

@job("free", retry=NO_RETRY)
class Free(Job):
    def run(self, ctx: Context, tool: Tool) -> object:
        return [tool.pid, os.getpid()]

@job("bound", retry=NO_RETRY, **held)
class Bound(Free): ...

@job("slow", retry=NO_RETRY, timeout=1, **held)
class Slow(Job):
    heed: bool

    def run(self, ctx: Context) -> None:
        print("working")
        while True:
            try:
                while True: sum(range(10000))
            except BaseException:
                if self.heed: raise

@job("counted", retry=NO_RETRY, rights=("effects.write",), egress=())
class Counted(Job):
    def run(self, ctx: Context, conn: psycopg.Connection) -> None:
        conn.execute("insert into effect (job, what, pid) values (%s, 'row', 1)", (ctx.id,))
"""

needs_landlock = pytest.mark.skipif(landlock.abi() < landlock.PORTS_ABI, reason="no Landlock of ports here")


def serve(on: Stage, port: int = 1, workers: int = 1, **options: Any) -> Service:
    for name in ("in", "out"):
        (on.place / name).mkdir()
    (on.place / "in" / "a").write_text("text")
    (on.place / "secret").write_text("secret")
    (on.place / "held.py").write_text(KINDS.format(place=str(on.place), port=port))
    return on.run(workers=workers, handlers=("tests.system.jobs", "held"), **options)


def result(on: Stage, how: str) -> Any:
    view = on.ended(on.push("act", how=how))
    assert view.result is not None
    return msgspec.json.decode(view.result)


def failed(on: Stage, how: str) -> tuple[str, str]:
    [attempt] = on.ended(on.push("act", how=how), State.DEAD).attempts
    assert attempt.error is not None
    return attempt.error.class_, attempt.error.message


@needs_landlock
def test_a_confined_attempt_reaches_what_is_declared_and_nothing_else(on: Stage) -> None:
    credentials = {"TENURE_DATABASE_URL": on.url, "PGPASSWORD": "s3cret"}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        service = serve(on, port, env=credentials)
        assert failed(on, "read") == ("PermissionError", f"[Errno 13] Permission denied: '{on.place}/secret'")
        assert result(on, "copy") == 4
        assert (on.place / "out" / "a").read_text() == "text"
        assert result(on, "connect") is None
        refused = f"kind 'act' may not connect to 127.0.0.1:{port + 1}; add its origin to egress=(…) of @job"
        assert failed(on, "elsewhere") == ("EgressRefused", refused)
        assert result(on, "right") == "mail.send"
        seen = result(on, "look")
    assert not credentials.keys() & seen["environ"].keys()
    assert on.url not in str(seen)
    assert "s3cret" not in str(seen)
    assert not [file for file in seen["files"] if file.startswith("socket:")], "no connection"
    assert seen["pid"] not in service.family(), "it ended with the attempt"

    on.ended(on.push("counted"))
    assert len(on.effects(what="row")) == 1, "who has a right for the database reaches it"
    on.ended(on.push("provided"))
    assert not service.events("child.exited"), "the worker itself has given up nothing"


def crash(view: JobView) -> Any:
    [attempt] = view.attempts
    assert attempt.ending is Ending.CRASHED
    assert attempt.certificate is not None
    return attempt.certificate


def test_a_crash_of_a_confined_attempt_has_its_certificate(on: Stage) -> None:
    serve(on)
    assert result(on, "burn") is None
    for how, signum, code in (
        ("segfault", signal.SIGSEGV, None),
        ("exit", None, 3),
        ("kill", signal.SIGKILL, None),
    ):
        certificate = crash(on.ended(on.push("act", how=how), State.DEAD))
        assert (certificate.signal, certificate.exit_code) == (signum, code)
        assert certificate.verdict is (Verdict.EXIT if code else Verdict.SIGNAL)
        assert certificate.last_progress.done == 1
        assert certificate.cpu_seconds < 0.5, "the time of attempts before is not its own"
        assert certificate.output_tail == "last words\n"
        if how == "segfault":
            assert "in run" in certificate.stack
            assert "run_apart" not in certificate.stack, "the stack is the handler's"
    assert crash(on.ended(on.push("act", how="hog"), State.DEAD)).verdict is Verdict.MEMORY
    assert len(result(on, "big")) == 1_000_000
    assert result(on, "fork") == 256, "a fork of the handler's does not come out of it"


def test_limits_and_orders_reach_a_confined_attempt(on: Stage) -> None:
    service = serve(on, worker='kill_after = "500ms"')
    for heed in (True, False):
        [attempt] = on.ended(on.push("slow", heed=heed), State.DEAD).attempts
        assert attempt.ending is Ending.TIMED_OUT
        certificate = attempt.certificate
        assert certificate is not None
        assert certificate.stack is not None
        assert "in run" in certificate.stack
        assert certificate.cpu_seconds > 0.1, (
            "the fork's time counts, also when it was killed with its worker"
        )
        assert heed or certificate.signal == signal.SIGKILL
    job = on.push("act", how="sleep")
    [worker] = [child for child in wait_for(lambda: runners(service)) if child]
    assert on.store.cancel(job) is not None
    assert on.ended(job, State.CANCELLED).state is State.CANCELLED
    wait_for(lambda: is_alive(worker), lambda alive: not alive)


def test_a_confined_attempt_dies_with_its_worker_and_its_output_is_its_own(on: Stage) -> None:
    service = serve(on)
    half = on.push("act", how="half")
    on.ended(half)
    on.ended(on.push("quick"))
    job = on.push("act", how="sleep")
    [runner] = wait_for(lambda: runners(service))
    os.kill(int(Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert crash(on.ended(job, State.DEAD)).signal == signal.SIGKILL
    wait_for(lambda: is_alive(runner), lambda alive: not alive, within_s=1)
    wait_for(lambda: service.events("job.output", job=half, line="half a line"))


def test_a_confined_attempt_is_provided_with_values_of_its_own(on: Stage) -> None:
    serve(on)
    pids = {}
    for kind in ("free", "bound"):
        view = on.ended(on.push(kind))
        assert view.result is not None
        made, ran = pids[kind] = msgspec.json.decode(view.result)
        assert made == ran
    assert (on.place / "out" / f"closed {pids['bound'][0]}").exists(), "closed with the attempt"
    assert not (on.place / "out" / f"closed {pids['free'][0]}").exists()


def test_a_strict_sandbox_serves_only_kinds_that_declare_everything(on: Stage) -> None:
    service = serve(on, service='sandbox = "strict"')
    broken = wait_for(
        lambda: {event["module"]: event["reason"] for event in service.events("handlers.broken")},
        lambda found: "kind nap" in found and "kind counted" in found,
    )
    assert 'service.sandbox is "strict"' in broken["kind nap"]
    assert "write filesystem=Filesystem()" in broken["kind counted"]
    assert "kind act" not in broken
    assert result(on, "right") == "mail.send"


def runners(service: Service) -> list[int]:
    """The forks in which confined attempts run: children of workers."""
    workers = {int(event["pid"]) for event in service.events("child.ready") if event["child"] != "scheduler"}
    return [pid for worker in workers for pid in children(worker)]
