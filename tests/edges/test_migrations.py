"""The schema's versions: installed once whoever starts, checked at start, refused when it is not ours."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import psycopg
import pytest

from runtime.edges import migrate
from runtime.edges.migrate import Migration
from runtime.edges.postgres import PostgresStore
from runtime.errors import SchemaOutdated


def test_an_empty_database_says_what_to_run_and_is_then_installed(dsn: str) -> None:
    store = PostgresStore(dsn)
    with pytest.raises(SchemaOutdated, match="run `tenure migrate`"):
        store.check()
    store.install()
    store.check()
    store.install()
    store.close()


def test_many_may_install_at_once(dsn: str) -> None:
    code = f"from runtime.edges.postgres import PostgresStore; PostgresStore({dsn!r}).install()"
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    errors = [process.communicate(timeout=50)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors
    with psycopg.connect(dsn) as conn:
        numbers = conn.execute("select number from tenure.migration order by number").fetchall()
        assert numbers == [(one.number,) for one in migrate.migrations()]


def test_a_missing_migration_is_said_and_applied(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrate.migrations()
    more = Migration(len(known) + 1, "next.sql", "create table tenure.more (); -- 100 % ours")
    store = PostgresStore(dsn)
    store.install()
    monkeypatch.setattr(migrate, "migrations", lambda: [*known, more])
    with pytest.raises(SchemaOutdated, match=rf"{len(known)} of {more.number}: run `tenure migrate`"):
        store.check()
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert migrate.migrate(conn) == ["next.sql"]
        assert migrate.migrate(conn) == []
    store.check()

    monkeypatch.setattr(migrate, "migrations", lambda: known)
    for act in (store.check, store.install):
        with pytest.raises(SchemaOutdated, match="newer program"):
            act()
    store.close()


def test_a_file_that_was_applied_in_another_form_is_noticed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrate.migrations()
    store = PostgresStore(dsn)
    store.install()
    edited = msgspec.structs.replace(known[0], sql=known[0].sql + "-- edited")
    monkeypatch.setattr(migrate, "migrations", lambda: [edited, *known[1:]])
    for act in (store.check, store.install):
        with pytest.raises(SchemaOutdated, match=known[0].name):
            act()
    store.close()


def test_a_migration_that_fails_leaves_nothing(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrate.migrations()
    broken = Migration(len(known) + 1, "broken.sql", "create table tenure.half (); select 1 / 0;")
    monkeypatch.setattr(migrate, "migrations", lambda: [*known, broken])
    with psycopg.connect(dsn, autocommit=True) as conn:
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate.migrate(conn)
        assert conn.execute("select max(number) from tenure.migration").fetchone() == (len(known),)
        assert conn.execute("select to_regclass('tenure.half')").fetchone() == (None,)


@pytest.mark.parametrize("one", migrate.migrations(), ids=lambda one: one.name)
def test_a_migration_says_why_what_it_locks_and_how_to_undo_it(one: Migration) -> None:
    head = re.split(r"\n(?!--)", one.sql)[0]
    for word in ("Why:", "While old code runs:", "Locks:", "Undo:"):
        assert f"-- {word}" in head
    assert "set local lock_timeout" in one.sql
