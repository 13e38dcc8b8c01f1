"""Owns the schema's versions: applies the numbered files of `migrations/` and says whether they are all there.

Files only ever go forward. Each runs in a transaction of its own that takes one advisory lock first and
looks again at what has been applied, so any number of programs may start at once on an empty database.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
from psycopg import Connection
from psycopg.rows import tuple_row

from runtime.errors import SchemaOutdated

_FILE = re.compile(r"(\d{4})_\w+\.sql")

LOCK = """
-- Let one migrator at a time go on.
-- Locks: an advisory lock until the transaction ends; others wait.
select pg_advisory_xact_lock(7310031)
"""

PREPARE = """
-- Make the place where applied migrations are recorded.
-- Needs: LOCK is held, since "if not exists" alone may collide.
create schema if not exists tenure;
create table if not exists tenure.migration (
    number integer primary key,
    name text not null,
    sum text not null,  -- of the file as it was applied
    applied timestamptz not null default now()
);
"""

INSTALLED = """
-- Whether anything was ever applied here.
select to_regclass('tenure.migration') is not null
"""

APPLIED = """
-- The number of the latest migration; 0: none.
select coalesce(max(number), 0) from tenure.migration
"""

RECORD = """
-- Record that a migration was applied.
-- Holds: each number once.
insert into tenure.migration (number, name, sum) values (%(number)s::int, %(name)s::text, %(sum)s::text)
"""

SUMS = """
-- What was applied, in order.
select sum from tenure.migration order by number
"""


class Migration(msgspec.Struct, frozen=True):
    """One numbered file."""

    number: int
    name: str
    sql: str

    @property
    def sum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


def migrations() -> list[Migration]:
    """All files of this program, in order; they are numbered from 1 without a gap."""
    folder = Path(__file__).parent / "migrations"
    found = sorted(file for file in folder.iterdir() if _FILE.fullmatch(file.name))
    known = [Migration(int(file.name[:4]), file.name, file.read_text("utf-8")) for file in found]
    assert [one.number for one in known] == list(range(1, len(known) + 1)), "numbered without a gap"
    return known


def migrate(conn: Connection[Any]) -> list[str]:
    """Apply what is missing; the names of what was applied. `conn` is in autocommit mode.

    Raises:
        SchemaOutdated: the database has been migrated by a newer program.
    """
    known = migrations()
    applied: list[str] = []
    while not (_installed(conn) and _current(conn, known)):
        with conn.transaction():
            conn.execute(LOCK)
            conn.execute(PREPARE, prepare=False)
            missing = known[_number(conn) :]  # read again under the lock: another migrator may have been here
            if missing:
                conn.execute(missing[0].sql.encode(), prepare=False)
                given = {"number": missing[0].number, "name": missing[0].name, "sum": missing[0].sum}
                conn.execute(RECORD, given)
                applied.append(missing[0].name)
    return applied


def check(conn: Connection[Any]) -> None:
    """Return when the schema is the one this program needs.

    Raises:
        SchemaOutdated: it is not; the text says what to run.
    """
    known = migrations()
    if not _installed(conn):
        raise SchemaOutdated("the database has no schema of ours yet: run `tenure migrate`")
    if not _current(conn, known):
        raise SchemaOutdated(f"the schema is at {_number(conn)} of {len(known)}: run `tenure migrate`")


def _installed(conn: Connection[Any]) -> bool:
    [there] = conn.cursor(row_factory=tuple_row).execute(INSTALLED).fetchall()[0]
    return bool(there)


def _number(conn: Connection[Any]) -> int:
    [number] = conn.cursor(row_factory=tuple_row).execute(APPLIED).fetchall()[0]
    return int(number)


def _current(conn: Connection[Any], known: list[Migration]) -> bool:
    """Whether all of them have been applied, and as they are."""
    sums = [sum for (sum,) in conn.cursor(row_factory=tuple_row).execute(SUMS).fetchall()]
    if len(sums) > len(known):
        raise SchemaOutdated(
            f"the schema is at {len(sums)}, this program knows {len(known)}: a newer program has migrated it, "
            "upgrade this one"
        )
    for one, sum in zip(known, sums, strict=False):
        if one.sum != sum:
            raise SchemaOutdated(
                f"{one.name} was applied here in another form, by a version that was never released: save what you "
                "need, `drop schema tenure cascade`, and run `tenure migrate`"
            )
    return len(sums) == len(known)
