"""Goal: one job in the foreground, told by exit status, result and words. Method: the command, as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runtime.edges.postgres import PostgresStore
from runtime.model.jobs import Code, Ending, State
from tests.cli.conftest import Tenure
from tests.helpers.places import ROOT
from tests.helpers.service import is_alive
from tests.helpers.waiting import wait_for

Start = Callable[..., subprocess.Popen[str]]
NO_DATABASE = "postgresql://nobody@localhost:1/none"


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts `tenure job run`."""

    def begin(*words: str, url: str = NO_DATABASE, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "runtime", "job", "run", *words],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "TENURE_DATABASE_URL": url}
            | {"TENURE_SERVICE__HANDLERS": "tests.cli.runnable", "TENURE_LOG__FORMAT": "json"}
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


@pytest.fixture
def ran(start: Start) -> Callable[..., tuple[int, str, str]]:
    """Runs it: exit status, standard output, standard error."""

    def run(*words: str, **given: str) -> tuple[int, str, str]:
        with start(*words, **given) as process:
            out, err = process.communicate(timeout=30)
            return process.returncode, out, err

    return run


def test_the_result_is_printed_and_all_else_goes_to_standard_error(ran: Any) -> None:
    status, out, err = ran("run.one")
    assert (status, json.loads(out)) == (0, {"attempt": 1, "last": True})
    assert "from the handler\n" in err
    assert "\x1e" not in err, "no mark of ours"
    assert "tenure: progress 1 of 2 (50%), half\n" in err
    assert "done after" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("how", "ending", "code", "says"),
    [
        ("raise", "dead", "handler_failed", "ValueError: no luck"),
        ("die", "crashed", "crashed", "killed by SIGKILL"),
        ("snooze", "snoozed", None, "snoozed"),
    ],
)
def test_what_is_not_done_is_exit_status_1_and_says_why(
    ran: Any, how: str, ending: str, code: str | None, says: str
) -> None:
    status, out, err = ran("run.one", json.dumps({"how": how}), "--json")
    outcome = json.loads(out)
    assert (status, outcome["ending"], outcome["code"], outcome["result"]) == (1, ending, code, None)
    assert outcome["progress"] == {"done": 1, "total": 2, "note": "half"}
    assert says in err
    if how == "die":
        assert outcome["certificate"]["output_tail"] == "from the handler\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run.none",), "no handler for kind 'run.none'"),
        (("cli.scale", "[]"), "payload of 'cli.scale': Expected `object`"),
        (("cli.scale", '{"path": 1}'), "path: Expected `str`"),
        ((), "Missing argument 'KIND'"),
    ],
)
def test_wrong_use_is_exit_status_2_and_runs_nothing(bare: Tenure, words: tuple[str, ...], says: str) -> None:
    answer = bare("job", "run", *words)
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_all_that_was_started(start: Start, tmp_path: Path, signum: int) -> None:
    note = tmp_path / "pid"
    with start("run.family", json.dumps({"path": str(note)})) as process:
        child = int(wait_for(lambda: note.exists() and note.read_text()))
        title = Path(f"/proc/{process.pid}/cmdline").read_text()
        assert is_alive(child)
        process.send_signal(signum)
        out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, "")
    assert not is_alive(child)
    assert str(note) not in title, "the payload is no longer on the command line"


def test_a_handler_that_asks_for_the_database_runs_as_a_row_of_it(
    ran: Any, schema_dsn: str, store: PostgresStore
) -> None:
    status, out, _ = ran("run.asks", url=schema_dsn)
    state, pushed = json.loads(out)
    assert (status, state) == (0, "running")
    [view] = store.jobs(kind="run.asks")
    assert view.state is State.DONE
    assert [one.state for one in store.jobs(kind="run.one") if one.id == pushed] == [State.QUEUED]
    with psycopg.connect(schema_dsn) as conn:
        assert conn.execute("table said").fetchall() == [(uuid.UUID(view.id),)]


def test_a_handler_with_a_right_for_the_database_runs_as_a_row_of_it(
    ran: Any, schema_dsn: str, store: PostgresStore
) -> None:
    status, out, _ = ran("run.writes", url=schema_dsn)
    assert status == 0
    view = store.status(json.loads(out))
    assert view is not None
    assert view.state is State.DONE


def test_a_row_ends_with_its_one_attempt(ran: Any, schema_dsn: str, store: PostgresStore) -> None:
    given = {"url": schema_dsn, "TENURE_SERVICE__STORE_ERROR_TEXT": "false"}
    status, out, err = ran("run.asks", '{"fail": true}', **given)
    assert (status, out) == (1, "")
    assert "ValueError: no luck" in err
    assert ran("run.one", '{"how": "snooze"}', "--database", **given)[0] == 1
    snoozed, failed = (store.status(job.id) for job in store.jobs())
    assert snoozed is not None
    assert failed is not None
    assert (snoozed.state, snoozed.attempts[0].ending) == (State.CANCELLED, Ending.SNOOZED)
    assert (failed.state, failed.code) == (State.DEAD, Code.HANDLER_FAILED)
    error = failed.attempts[0].error
    assert error is not None
    assert (error.class_, error.message) == ("ValueError", ""), "the settings hold for a row"
