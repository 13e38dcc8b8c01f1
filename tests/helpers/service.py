"""A running service for tests: real processes on a real database, watched by their log and by rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg.rows import namedtuple_row

from runtime.edges.ids import new_id
from runtime.edges.postgres import PostgresStore
from runtime.model.jobs import JobView, NewJob, State
from tests.helpers.places import ROOT
from tests.helpers.waiting import wait_for

CONFIG = """
[database]
url = "{url}"
[service]
handlers = [{handlers}]
workers = {workers}
{service}
[lease]
duration = "2s"
renew_every = "500ms"
reclaim_every = "500ms"
[worker]
{worker}
[log]
format = "json"
level = "debug"
"""


@dataclass
class Service:
    """One `tenure run`."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def supervisor(self) -> int:
        """The pid of the supervisor, the one child of the process that was started."""
        [found] = children(self.pid)
        return found

    def events(self, name: str, **fields: object) -> list[dict[str, Any]]:
        found = []
        for line in self.log.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                entry = json.loads(line)
                if entry.get("event") == name and all(entry.get(k) == v for k, v in fields.items()):
                    found.append(entry)
        return found

    def ready(self, workers: int = 2) -> Service:
        wait_for(
            lambda: {e["child"] for e in self.events("child.ready")} if self.alive else self.log.read_text(),
            lambda names: len(names) > workers and not isinstance(names, str),
            within_s=30,
        )
        return self

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def family(self) -> set[int]:
        """The pids of all its processes, itself included."""
        found, fresh = set(), {self.pid}
        while fresh:
            found |= fresh
            fresh = {child for pid in fresh for child in children(pid)} - found
        return found

    def stop(self, signum: int = signal.SIGTERM, within_s: float = 30.0) -> int:
        self.process.send_signal(signum)
        return self.process.wait(within_s)


def children(pid: int) -> set[int]:
    """The pids of a process's children; none when it ends meanwhile."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):
                found.update(int(child) for child in (task / "children").read_text().split())
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Stage:
    """A database, a directory, and the services that play on them."""

    url: str
    place: Path
    services: list[Service] = field(default_factory=list)
    workers: int = 2

    def __post_init__(self) -> None:
        self.store = PostgresStore(self.url)
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(
                "create table if not exists effect (n bigint generated always as identity, job uuid, attempt int,"
                " what text, pid int, value text, at timestamptz default clock_timestamp())"
            )

    def run(
        self,
        *words: str,
        workers: int | None = None,
        handlers: tuple[str, ...] = ("tests.system.jobs",),
        service: str = "",
        worker: str = "",
        url: str | None = None,
        env: dict[str, str] | None = None,
        wrap: tuple[str, ...] = (),
        ready: bool = True,
        **popen: Any,
    ) -> Service:
        number = len(self.services)
        workers = self.workers if workers is None else workers
        config = self.place / f"tenure{number}.toml"
        config.write_text(
            CONFIG.format(
                url=url or self.url,
                handlers=", ".join(f'"{name}"' for name in handlers),
                workers=workers,
                service=service,
                worker=worker,
            )
        )
        log = self.place / f"service{number}.log"
        environment = (
            os.environ | {"EFFECTS_URL": self.url, "PYTHONPATH": f"{ROOT}:{self.place}"} | (env or {})
        )
        popen.setdefault("stdin", subprocess.DEVNULL)
        popen.setdefault("start_new_session", True)
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*wrap, sys.executable, "-m", "runtime", "--config", str(config), "run", *words],
                cwd=self.place,
                env=environment,
                stdout=popen.pop("stdout", out),
                stderr=popen.pop("stderr", out),
                **popen,
            )
        found = Service(process, log)
        self.services.append(found)
        return found.ready(workers) if ready else found

    def push(self, kind: str, _delay_s: float = 0.0, **payload: object) -> str:
        job = NewJob(id=new_id(), kind=kind, payload=msgspec.json.encode(payload).decode(), delay_s=_delay_s)
        [id] = self.store.push([job])
        assert id is not None
        return id

    def push_many(self, kind: str, count: int, **payload: object) -> list[str]:
        text = msgspec.json.encode(payload).decode()
        ids = self.store.push([NewJob(id=new_id(), kind=kind, payload=text) for _ in range(count)])
        return [id for id in ids if id is not None]

    def effects(self, job: str | None = None, what: str | None = None) -> list[Any]:
        with psycopg.connect(self.url, row_factory=namedtuple_row) as conn:
            return conn.execute(
                "select attempt, what, pid, value, at from effect where (%s::uuid is null or job = %s::uuid)"
                " and (%s::text is null or what = %s::text) order by n",
                (job, job, what, what),
            ).fetchall()

    def started(self, job: str, attempt: int = 1, within_s: float = 20.0) -> Any:
        """The row that an attempt wrote when it began, once it is there."""
        return wait_for(
            lambda: [e for e in self.effects(job, "start") if e.attempt == attempt], within_s=within_s
        )[0]

    def ended(self, job: str, state: State = State.DONE, within_s: float = 30.0) -> JobView:
        view = wait_for(
            lambda: self.store.status(job),
            lambda view: view is not None and view.state is state,
            within_s=within_s,
        )
        assert view is not None
        return view

    def all_ended(self, within_s: float = 30.0) -> dict[str, int]:
        """The counts by state, once nothing is queued or running."""
        return wait_for(
            lambda: self.store.counts().states,
            lambda states: not states.get("queued") and not states.get("running"),
            within_s=within_s,
        )

    def close(self) -> None:
        self.store.close()
        for service in self.services:
            if service.alive:
                for pid in service.family():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                service.process.send_signal(signal.SIGTERM)
                try:
                    service.process.wait(1)
                except subprocess.TimeoutExpired:
                    for pid in service.family():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    service.process.wait(10)


@contextlib.contextmanager
def stage(url: str, place: Path) -> Iterator[Stage]:
    """A stage whose services are gone afterwards."""
    made = Stage(url, place)
    try:
        yield made
    finally:
        made.close()
