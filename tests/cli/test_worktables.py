"""`tenure worktable`: what a table lacks, its stuck rows, and letting them be due again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.cli.conftest import Tenure


@pytest.fixture
def conn(schema_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(schema_dsn, autocommit=True) as made:
        yield made


def test_what_check_prints_makes_the_table(tenure: Tenure, conn: psycopg.Connection[Any]) -> None:
    answer = tenure("worktable", "check", "outbox")
    assert answer.status == 1
    assert "-- outbox: there is no table outbox" in answer.out
    lacking = tenure("worktable", "check", "--json").json
    for lack in lacking["outbox"]:
        assert lack["ddl"] in answer.out
        conn.execute(lack["ddl"])
    assert tenure("worktable", "check") == (0, "-- outbox is a work table\n", "")


def test_stuck_rows_are_listed_and_requeued(tenure: Tenure, conn: psycopg.Connection[Any]) -> None:
    conn.execute(
        "create table outbox (id text primary key, due timestamptz default now(), attempts int default 0, version int);"
        "insert into outbox values ('a', now(), 2, 1), ('b', now(), 2, 1), ('c', now(), 2, 1), ('d', now(), 1, 1)"
    )
    listed = tenure("worktable", "stuck", "outbox").out.splitlines()
    assert [line.split("\t")[:3] for line in listed] == [
        ["key", "attempts", "version"], *([key, "2", "1"] for key in "abc")
    ]  # fmt: skip
    assert tenure("worktable", "requeue", "outbox", "a", "x") == (1, "1\n", "tenure: no row x in outbox\n")
    assert tenure("worktable", "requeue", "outbox", "--all", "--json").json == {"requeued": 2}
    assert tenure("worktable", "stuck", "outbox", "--json").out == ""
    assert conn.execute("select sum(attempts), sum(version) from outbox").fetchone() == (1, 7)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stuck", "inbox"], "no WorkTable('inbox') in the modules of handlers (known: outbox)"),
        (["stuck", "outbox"], "tenure worktable check outbox says what to do"),
        (["requeue", "outbox"], "give the keys of rows, or --all"),
        (["requeue", "outbox", "a", "--all"], "give the keys of rows, or --all"),
    ],
    ids=["unknown", "no table", "no keys", "both"],
)
def test_wrong_use_is_told(tenure: Tenure, words: list[str], says: str) -> None:
    answer = tenure("worktable", *words)
    assert answer.status == 2
    assert says in answer.err
