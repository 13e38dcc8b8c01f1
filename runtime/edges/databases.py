"""Owns databases for tests: a fresh one with our schema for each, on a server that runs may share.

Each run has its own template to copy from. A run that was killed leaves its databases; the next run drops
them, and knows whose they are by an advisory lock that the server takes back from a dead session.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from runtime.edges.postgres import PostgresStore

PREFIX = "tenure_test_"
LOCKS = 0x7E57  # the class of our advisory locks

LOCK = """
-- Say that the run of this key lives, as long as this session does; false: it lives elsewhere.
-- Locks: an advisory lock of the database that we are connected to.
select pg_try_advisory_lock(%(locks)s::int, %(key)s::int)
"""

UNLOCK = """
-- Take that back.
select pg_advisory_unlock(%(locks)s::int, %(key)s::int)
"""

LEFT = """
-- The databases of runs, living or dead.
select datname from pg_database where starts_with(datname, %(prefix)s::text) order by datname
"""

CREATE = """
-- Copy a database.
-- Needs: that nobody is connected to its template.
create database {} template {}
"""

DROP = """
-- Drop a database, whoever still uses it.
drop database if exists {} with (force)
"""


class Databases:
    """Fresh databases on one server, each dropped after use. Not for several threads at once.

    Args:
        url: of a database on the server, as a URL; its account may create databases.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._key = secrets.randbelow(2**31)
        self._numbers = itertools.count(1)
        self._template = self._name("template")
        self._conn = psycopg.connect(url, autocommit=True)
        self._lock(self._key)
        self._drop_left()
        self._do(CREATE, self._template, "template0")
        store = PostgresStore(self._url_of(self._template))
        store.install()
        store.close()

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a new database that has our schema and nothing in it."""
        name = self._name(str(next(self._numbers)))
        self._do(CREATE, name, self._template)
        try:
            yield self._url_of(name)
        finally:
            self._do(DROP, name)

    def close(self) -> None:
        self._do(DROP, self._template)
        self._conn.close()

    def _name(self, what: str) -> str:
        return f"{PREFIX}{self._key:08x}_{what}"

    def _url_of(self, database: str) -> str:
        return re.sub(r"^(\w+://[^/?]*)(/[^?]*)?", rf"\1/{database}", self._url)

    def _lock(self, key: int) -> bool:
        return self._conn.execute(LOCK, {"locks": LOCKS, "key": key}).fetchall() == [(True,)]

    def _drop_left(self) -> None:
        """Drop the databases of runs that have died."""
        for [name] in self._conn.execute(LEFT, {"prefix": PREFIX}).fetchall():
            key = int(name.removeprefix(PREFIX).partition("_")[0], 16)
            if key != self._key and self._lock(key):
                self._do(DROP, name)
                self._conn.execute(UNLOCK, {"locks": LOCKS, "key": key})

    def _do(self, statement: str, *names: str) -> None:
        self._conn.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
