"""The README is true: its snippets run, its commands, settings and log events are there."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from runtime.config import TYPES, load
from tests.helpers.places import ROOT

README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


class Project:
    """A directory as the README tells a newcomer to make it, on a database of its own."""

    def __init__(self, place: Path, url: str) -> None:
        self._place = place
        self._url = url
        (
            handler,
            self.application,
            scheduled,
            asking,
            confined,
            self.tested,
            self.with_pytest,
            self.run_alone,
            *others,
        ) = blocks("python")
        (place / "handlers").mkdir()
        (place / "handlers" / "__init__.py").touch()
        (place / "handlers" / "primes.py").write_text(handler)
        (place / "handlers" / "tidy.py").write_text(scheduled)
        (place / "handlers" / "greet.py").write_text(asking)
        (place / "handlers" / "invoice.py").write_text(confined)
        for text in others:
            [name] = re.findall(r"^# (handlers/\w+\.py)", text)
            (place / name).write_text(text)

    def __call__(self, *words: str, check: bool = True) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        return subprocess.run(
            [sys.executable, *words],
            check=check,
            cwd=self._place,
            env=inherited
            | {
                "TENURE_DATABASE_URL": self._url,
                "TENURE_TEST_DATABASE_URL": self._url,
                "PYTHONPATH": f"{self._place}:{ROOT}",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            capture_output=True,
            text=True,
            timeout=50,
        ).stdout


@pytest.fixture
def project(place: Path, schema_dsn: str) -> Project:
    return Project(place, schema_dsn)


def test_the_commands_of_the_start_work_in_a_new_directory(project: Project) -> None:
    commands = re.findall(r"^tenure (.*?) +#", blocks("sh")[1], re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["run", "push", "status"]
    kind, payload = re.fullmatch(r"push (\w+) '(.*)'", commands[1]).groups()  # type: ignore[union-attr]
    id = project("-m", "runtime", "push", kind, payload).strip()
    project("-m", "runtime", "run", "--until-idle")
    assert "78498" in project("-m", "runtime", "status", id)
    assert "done" in project("-m", "runtime", "status")
    assert "0 3 * * *" in project("-m", "runtime", "schedules")


def test_the_application_gets_its_result(project: Project) -> None:
    """The service ends when nothing is left, so what the application waits for is pushed before it starts."""
    waits = "    print(queue.result(id, timeout=60))  # 168\n"
    assert waits in project.application
    id = project("-c", project.application.replace(waits, "    print(id)\n")).strip()
    project("-m", "runtime", "run", "--until-idle")
    shown = project("-m", "runtime", "jobs", "--json")
    assert shown.count('"state":"done"') == 4
    assert project("-c", f"from runtime import Queue; print(Queue().result({id!r}, timeout=60))") == "168\n"


def test_the_tests_of_handlers_pass(project: Project) -> None:
    for text in (project.tested, project.run_alone):
        project("-c", text)


def test_the_tests_of_pytest_pass(project: Project, place: Path) -> None:
    (place / "test_primes.py").write_text(project.with_pytest)
    assert "2 passed" in project("-m", "pytest", "-p", "runtime.pytest_plugin", str(place))


def test_a_kick_of_a_handler_of_sql_or_of_a_terminal_is_a_run(project: Project) -> None:
    project("-m", "runtime", "push", "sign-up", '{"user": 1}')
    [words] = re.findall(r"`tenure (kick .*?)`", README)
    project("-m", "runtime", *words.split())
    [statement] = re.findall(r"`(select tenure\.kick.*?)`", README)
    run = f"import os, psycopg\nwith psycopg.connect(os.environ['TENURE_DATABASE_URL']) as c: c.execute({statement!r})"
    project("-c", run)
    project("-m", "runtime", "run", "--until-idle")
    runs = project("-m", "runtime", "jobs", "--json", "--kind", "send-mail")
    assert runs.count('"state":"done"') in (1, 2), "that of the handler may come while the first is on"


def test_effects_happen_and_work_tables_are_worked_off(
    project: Project, place: Path, schema_dsn: str
) -> None:
    """By what the README says of them: `check` makes the tables, each kind does its part."""
    with psycopg.connect(schema_dsn, autocommit=True) as conn:
        lacking = json.loads(project("-m", "runtime", "worktable", "check", "--json", check=False))
        for lack in itertools.chain(*lacking.values()):
            conn.execute(lack["ddl"])
        conn.execute(
            "alter table outbox add address text, add text text; alter table report add title text, add path text;"
            "alter table reminder add address text, add times int default 2;"
            "create table invoice (id int, amount int, paid bool, version int default 1); create table ledger (text text);"
            "create table account (amount int); insert into account values (100);"
            "insert into invoice values (1, 30, false); insert into report (title) values ('T');"
            "insert into reminder (address) values ('a@example.org')"
        )
        paid = project("-m", "runtime", "push", "pay", '{"invoice": 1}').strip()
        for kind, payload in (("note", '{"text": "x"}'), ("remind", "{}"), ("render", "{}")):
            project("-m", "runtime", "push", kind, payload)
        project("-m", "runtime", "run", "--until-idle")
        project("-m", "runtime", "push", "send-outbox")  # what the reminder has written is there by now
        project("-m", "runtime", "run", "--until-idle")
        assert json.loads(project("-m", "runtime", "status", paid, "--json"))["result"] == 70
        assert conn.execute("select amount from account").fetchone() == (70,)
        assert conn.execute("select paid, version from invoice").fetchone() == (True, 2)
        assert conn.execute("select text from ledger").fetchall() == [("x",)]
        assert conn.execute("select due is null, address from outbox").fetchall() == [(True, "a@example.org")]
        assert conn.execute("select times, due > now() from reminder").fetchall() == [(1, True)]
        assert conn.execute("select due is null, path from report").fetchall() == [(True, "report-1.csv")]
        assert (place / "report-1.csv").read_text() == "title\nT\n"


def test_sql_of_any_language_pushes(project: Project) -> None:
    [statement] = re.findall(r"`(select tenure\.push.*?)`", README)
    run = f"import os, psycopg\nwith psycopg.connect(os.environ['TENURE_DATABASE_URL']) as c: c.execute({statement!r})"
    project("-c", run)
    assert '"kind":"primes"' in project("-m", "runtime", "jobs", "--json")


def test_the_settings_are_accepted(place: Path) -> None:
    for number, text in enumerate(blocks("toml")):
        path = place / f"{number}.toml"
        path.write_text(text)
        assert load(path, {}, place).path == path
    for variable in re.findall(r"`(TENURE_\w+__\w+)=(\w+)`", README):
        assert load(None, dict([variable]), place)
    named = set(re.findall(r"`(lease|worker|service|database)\.([a-z_]+)`", README))
    assert {".".join(each) for each in named} - logged() <= set(TYPES)


def logged() -> set[str]:
    """Every event that the service may log."""
    found = set()
    for path in (ROOT / "runtime").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[1]
            if called in ("event", "Log") and isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.add(name.value)
    return found


def test_every_event_of_the_log_is_named() -> None:
    section = README.partition("The log goes to")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z]+\.[a-z_]+)`", section)) == logged()


def test_the_scripts_and_files_that_it_names_are_there() -> None:
    for name in re.findall(r"\./(scripts/\w+)", README):
        assert os.access(ROOT / name, os.X_OK)
    for anchor in re.findall(r"\]\(#(.*?)\)", README):
        assert re.search(rf"^## {anchor.replace('-', ' ')}$", README, re.MULTILINE | re.IGNORECASE)
    for name in re.findall(r"\]\(([^#].*?)\)", README):
        assert (ROOT / name).exists()
