"""Handlers that tests of `tenure job run` run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

import psycopg

from runtime import Context, Job, Queue, Retry, Snooze, job


@job("run.one", retry=Retry(5), timeout=30)
class One(Job):
    how: Literal["ok", "raise", "die", "snooze"] = "ok"

    def run(self, ctx: Context) -> Any:
        print("from the handler")
        ctx.progress(1, 2, "half")
        match self.how:
            case "raise":
                raise ValueError("no luck")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "snooze":
                raise Snooze(60)
        return {"attempt": ctx.attempt, "last": ctx.last}


@job("run.family", retry=Retry(5), timeout=30)
class Family(Job):
    """Waits, with a child that has left its group."""

    path: str

    def run(self, ctx: Context) -> None:
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        note = Path(self.path)
        note.with_suffix(".new").write_text(str(child.pid))
        note.with_suffix(".new").rename(note)
        time.sleep(60)


@job("run.writes", retry=Retry(5), timeout=30, rights=("things.write",))
class Writes(Job):
    def run(self, ctx: Context) -> str:
        with ctx.transaction() as tx:
            tx.complete(ctx.id)
        return ctx.id


@job("run.asks", retry=Retry(5), timeout=30)
class Asks(Job):
    fail: bool = False

    def run(self, ctx: Context, queue: Queue, conn: psycopg.Connection) -> Any:
        conn.execute("create table said (id uuid)")
        conn.execute("insert into said values (%s)", (ctx.id,))
        if self.fail:
            raise ValueError("no luck")
        view = queue.status(ctx.id)
        return [view.state if view else None, queue.push(One())]
