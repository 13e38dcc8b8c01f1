"""The commands about the service, and the way in and out that all commands share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from runtime import Queue, registry
from runtime.config import Config
from runtime.edges.postgres import PostgresStore
from runtime.errors import ConfigError
from runtime.model.jobs import NodeView
from runtime.registry import Registry
from tests.cli.conftest import Tenure
from tests.helpers import places

PROGRAM = [sys.executable, "-m", "runtime"]
URL_OF_NOTHING = "postgresql://tenure:s3cret@127.0.0.1:1/none"


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return subprocess.run(
        [*PROGRAM, *words],
        check=False,
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, bool]]:
    """What `tenure run` asked the service to do."""
    from runtime.actors import service

    asked: list[tuple[Config, bool]] = []

    def serve(config: Config, *, until_idle: bool) -> int:
        asked.append((config, until_idle))
        return 1 if config.service.workers == 13 else 0

    monkeypatch.setattr(service, "run", serve)
    return asked


def test_run_hands_its_settings_and_options_to_the_service(
    bare: Tenure, served: list[tuple[Config, bool]]
) -> None:
    assert bare("run").status == 0
    assert bare("run", "--workers", "3", "--until-idle").status == 0
    assert [(config.service.workers, until_idle) for config, until_idle in served] == [(0, False), (3, True)]


def test_run_ends_with_the_exit_status_of_the_service(
    bare: Tenure, served: list[tuple[Config, bool]]
) -> None:
    assert bare("run", "--workers", "13").status == 1


def test_a_wrong_configuration_is_exit_status_2_before_anything_starts(
    bare: Tenure, served: list[tuple[Config, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_LEASE__DURATION", "1s")
    for words in (["run"], ["status"], ["push", "cli.plain"], ["jobs"], ["migrate"]):
        answer = bare(*words)
        assert (answer.status, answer.out) == (2, "")
        assert answer.err.startswith("tenure: lease.renew_every: ")
        assert answer.err.count("\n") == 1
    assert served == []


@pytest.mark.parametrize(
    "words", [["frob"], ["run", "--workers", "0"], ["run", "--nosuch"], ["status", "a", "b"]]
)
def test_wrong_use_is_one_line_and_exit_status_2(bare: Tenure, words: list[str]) -> None:
    answer = bare(*words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("tenure: ")
    assert answer.err.count("\n") == 1


def test_the_configuration_may_be_named_before_or_after_the_command(bare: Tenure) -> None:
    for words in (("--config", "none.toml", "status"), ("status", "--config", "none.toml")):
        answer = bare(*words)
        assert answer.status == 2
        assert "none.toml: cannot be read" in answer.err


def test_help_is_printed_when_asked_for_and_when_nothing_is(bare: Tenure) -> None:
    asked, nothing = bare("--help"), bare()
    assert (asked.status, nothing.status) == (0, 2)
    assert asked.out == nothing.out
    listed = re.findall(r"^  (\w+)  ", asked.out.partition("Commands:")[2], re.MULTILINE)
    assert listed == [
        "run", "push", "kick", "status", "jobs", "cancel", "retry", "reschedule", "delete", "dead", "nodes", "migrate", "check", "schedules", "job", "worktable",
    ]  # fmt: skip


def test_ctrl_c_is_exit_status_130(bare: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.actors import service

    def interrupted(config: Config, *, until_idle: bool) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(service, "run", interrupted)
    assert bare("run") == (130, "", "")


@pytest.mark.parametrize(
    ("url", "status"),
    [
        (URL_OF_NOTHING, 1),
        ("postgresql://tenure:s3cret%zz@box/none", 2),
        ("postgresql://tenure:s3@cret@box/none", 2),
        ("host=box pasword=s3cret", 2),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_without_the_password(
    bare: Tenure, monkeypatch: pytest.MonkeyPatch, url: str, status: int
) -> None:
    monkeypatch.setenv("TENURE_DATABASE_URL", url)
    for words in (["status"], ["push", "cli.plain"], ["migrate"]):
        answer = bare(*words)
        assert (answer.status, answer.out) == (status, "")
        assert answer.err.startswith("tenure: ")
        assert answer.err.count("\n") == 1
        assert "s3" not in answer.err
        assert "cret" not in answer.err
    if status == 2:
        answer = bare("run")
        assert (answer.status, "cret" in answer.out + answer.err) == (2, False)
        with pytest.raises(ConfigError) as caught, Queue(url) as queue:
            queue.counts()
        assert "cret" not in "".join(traceback.format_exception(caught.value))
    answer = bare("check")
    assert answer.status == 1
    assert "no  database: " in answer.out
    assert "cret" not in answer.out + answer.err


def test_without_our_schema_commands_say_what_to_run_and_migrate_makes_it(
    bare: Tenure, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    monkeypatch.setenv("TENURE_DATABASE_URL", dsn)
    for words in (["status"], ["push", "cli.plain"]):
        answer = bare(*words)
        assert (answer.status, answer.out) == (1, "")
        assert "run `tenure migrate`" in answer.err
    answer = bare("check")
    assert answer.status == 1
    assert "no  schema: " in answer.out
    assert "`tenure migrate`" in answer.out

    assert [bare("migrate").status for _ in range(2)] == [0, 0]
    assert bare("check").status == 0
    assert bare("push", "cli.plain").status == 0


def test_check_names_every_module_and_the_terms_of_its_kinds(tenure: Tenure) -> None:
    answer = tenure("check")
    assert answer.status == 0
    assert "ok  module tests.cli.kinds: " in answer.out
    assert "cli.scale (timeout 1m30s, 2 retries, queue images)" in answer.out
    assert "cli.plain (timeout 15m, 0 retries, queue default, kicks cli.tidy)" in answer.out
    assert (
        "cli.held (timeout 15m, 0 retries, queue default, rights none, egress https://a.example, "
        in answer.out
    )
    assert "reads /srv/in, writes nothing)" in answer.out
    assert "ok  sandbox: declared; " in answer.out

    found = tenure("check", "--json").json
    assert [(each["check"], each["ok"]) for each in found if not each["check"].startswith("module")] == [
        ("configuration", True), ("sandbox", True), ("database", True), ("schema", True),
        ("table outbox", True), ("nodes", True),
    ]  # fmt: skip


def test_check_names_the_work_tables_and_what_one_lacks(
    tenure: Tenure, schema_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_SERVICE__HANDLERS", "tests.cli.kinds")
    remedy = "; tenure worktable check outbox says what to do"
    assert (
        f"ok  table outbox: there is no table outbox; no index begins with due{remedy}\n"
        in tenure("check").out
    )
    with psycopg.connect(schema_dsn, autocommit=True) as conn:
        for lack in tenure("worktable", "check", "--json").json["outbox"]:
            conn.execute(lack["ddl"])
        assert "ok  table outbox: at most 2 attempts\n" in tenure("check").out
        conn.execute("alter table outbox alter version drop not null")
    answer = tenure("check")
    assert f"no  table outbox: version may be null{remedy}\n" in answer.out
    assert answer.status == 1


def test_check_names_the_kinds_that_a_strict_sandbox_refuses(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_SERVICE__SANDBOX", "strict")
    answer = tenure("check")
    assert answer.status == 1
    assert (
        'no  kind cli.plain: tests.cli.kinds.Plain: service.sandbox is "strict" and @job does not'
        in answer.out
    )
    assert "kind cli.held" not in answer.out


def test_check_says_who_holds_what_on_an_old_kernel(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.edges import landlock

    monkeypatch.setattr(landlock, "abi", lambda: 0)
    assert "ok  sandbox: declared; egress only inside Python; filesystem by nobody" in tenure("check").out
    monkeypatch.setenv("TENURE_SERVICE__SANDBOX", "strict")
    assert "no  sandbox: strict; egress only inside Python" in tenure("check").out
    monkeypatch.setattr(landlock, "abi", lambda: 4)
    assert "ok  sandbox: strict; TCP ports of egress by the kernel" in tenure("check").out


def test_check_says_no_to_a_module_that_cannot_be_imported(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch, apart: Path
) -> None:
    (apart / "cli_poison.py").write_text("raise RuntimeError('poison')\n")
    monkeypatch.setenv("TENURE_SERVICE__HANDLERS", "tests.cli.kinds,cli_poison,cli_missing")
    answer = tenure("check")
    assert answer.status == 1
    assert "ok  module tests.cli.kinds" in answer.out
    assert "no  module cli_poison: " in answer.out
    assert "RuntimeError: poison" in answer.out
    assert "no  module cli_missing: " in answer.out


def test_check_says_no_to_a_kind_that_asks_for_what_nobody_provides(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch, apart: Path
) -> None:
    (apart / "cli_asks.py").write_text(
        "import psycopg\n"
        "from runtime import NO_RETRY, Job, Queue, job\n"
        "class Thing: ...\n"
        "@job('cli.asks', retry=NO_RETRY)\n"
        "class Asks(Job):\n"
        "    def run(self, ctx, queue: Queue, conn: psycopg.Connection, thing: Thing): ...\n"
    )
    monkeypatch.setenv("TENURE_SERVICE__HANDLERS", "tests.cli.kinds,cli_asks")
    monkeypatch.setattr(registry, "DEFINED", Registry(registry.DEFINED.definitions))  # forgets it afterwards
    answer = tenure("check")
    assert answer.status == 1
    assert (
        "no  kind cli.asks: cli_asks.Asks.run: nothing provides its parameter 'thing'; "
        "write @provider(Thing) above a function that makes a cli_asks.Thing" in answer.out
    )


def test_check_names_a_cycle_of_kicks(tenure: Tenure, monkeypatch: pytest.MonkeyPatch, apart: Path) -> None:
    (apart / "cli_cycle.py").write_text(
        "from runtime import NO_RETRY, Job, job\n"
        "@job('cli.round', retry=NO_RETRY, kicks=('cli.round',))\n"
        "class Round(Job):\n"
        "    def run(self, ctx): ...\n"
    )
    monkeypatch.setattr(registry, "DEFINED", Registry(registry.DEFINED.definitions))
    monkeypatch.setenv("TENURE_SERVICE__HANDLERS", "tests.cli.kinds,cli_cycle")
    answer = tenure("check")
    assert answer.status == 1
    assert "no  kind cli.round: cli_cycle.Round: kicks=('cli.round',): " in answer.out
    assert "a cycle, cli.round → cli.round" in answer.out
    answer = tenure("push", "cli.round")
    assert answer.status == 2
    assert "kind cli.round is left out: " in answer.err


def test_check_says_no_to_a_wrong_configuration(bare: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_LEASE__DURATION", "1s")
    answer = bare("check")
    assert answer.status == 2
    assert answer.out.startswith("no  configuration: lease.renew_every: ")


def test_check_says_no_to_an_unhealthy_node(tenure: Tenure, store: PostgresStore) -> None:
    view = NodeView(id="n1", host="box", pid=9, version="0.1.0", state="running")
    store.report(view)
    assert tenure("check").status == 0
    store.report(NodeView(id="n2", host="box", pid=9, version="0.1.0", state="unhealthy"))
    answer = tenure("check")
    assert answer.status == 1
    assert "ok  node n1: " in answer.out
    assert "no  node n2: unhealthy" in answer.out


def test_a_reader_that_goes_away_is_met_with_silence(schema_dsn: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"TENURE_DATABASE_URL": schema_dsn, "PYTHONPATH": str(places.ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)  # what is buffered meets the closed pipe only at the end
    for words in (["jobs"], ["status", "--json"], ["--help"]):
        process = subprocess.run(
            [*PROGRAM, *words],
            check=False,
            cwd=tmp_path,
            env=environment,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=50,
        )
        assert (process.returncode, process.stderr) == (1, b"")
    os.close(writing)


def test_help_loads_neither_the_database_client_nor_the_tables(tmp_path: Path) -> None:
    code = (
        "import sys; from runtime.cli import main; main(['push', '--help']); "
        "print([name for name in ('psycopg', 'rich', 'structlog') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=50
    )
    assert answer.stdout.splitlines()[-1] == "[]"


@contextmanager
def home_of(module: str, text: str) -> Iterator[Path]:
    """A directory whose package `handlers` is this one module, with nothing else in it and no configuration."""
    with places.kept() as home:
        (home / "handlers").mkdir()
        (home / "handlers" / f"{module}.py").write_text(text)
        yield home


def test_a_worker_begins_without_parser_and_rich_and_with_what_it_shares_frozen() -> None:
    loads = (
        "import gc, sys\n"
        "from runtime import NO_RETRY, Job, job\n"
        "FROZEN = gc.get_freeze_count()\n"
        "@job('loads', retry=NO_RETRY)\n"
        "class Loads(Job):\n"
        "    def run(self, ctx):\n"
        "        ctx.log.info('loads.begins')\n"
        "        before = [name for name in ('rich', 'typer') if name in sys.modules]\n"
        "        import rich.table\n"
        "        return before, rich.table.__name__, FROZEN > 10_000\n"
    )
    with home_of("loads", loads) as home:
        id = json.loads(run("push", "loads", "--json", cwd=home).stdout)
        assert run("run", "--until-idle", "--workers", "1", cwd=home).returncode == 0
        shown = json.loads(run("status", id, "--json", cwd=home).stdout)
        assert shown["result"] == [[], "rich.table", True]


def test_a_first_push_needs_no_configuration_at_all() -> None:
    first = (
        "from runtime import NO_RETRY, Job, job\n"
        "@job('first', retry=NO_RETRY)\n"
        "class First(Job):\n"
        "    def run(self, ctx): ...\n"
    )
    with home_of("first", first) as home:
        pushed = run("push", "first", "--json", cwd=home)
        assert (pushed.returncode, pushed.stderr) == (0, "")
        shown = run("status", json.loads(pushed.stdout), "--json", cwd=home)
        assert json.loads(shown.stdout)["state"] == "queued"
        assert run("push", "second", cwd=home).returncode == 2
        assert places.processes_on(home) == {}, "the database is started for the moment only"
