"""Databases for tests: the PostgreSQL of a test run, and fresh databases on it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from runtime.edges.embedded import Embedded


class Server:
    """A running PostgreSQL; its databases are made and dropped here."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count(1)

    def url(self, database: str) -> str:
        return self._url.replace("/postgres?", f"/{database}?")

    def execute(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            conn.execute(statement)

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """The URL of a fresh database, copied from `template` and dropped afterwards, whoever still uses it."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"create database {name} template {template}")
        try:
            yield self.url(name)
        finally:
            self.execute(f"drop database if exists {name} with (force)")


def bin_dir() -> Path | None:
    """The PostgreSQL to test with: TENURE_TEST_POSTGRES_BIN names its directory; None: the wheel's."""
    given = os.environ.get("TENURE_TEST_POSTGRES_BIN")
    return Path(given) if given else None


@contextmanager
def server(place: Path) -> Iterator[Server]:
    """A server in that directory. It does not wait for the disk: nobody pulls the plug of a test."""
    embedded = Embedded(place / "server", bin_dir=bin_dir())
    running = Server(embedded.open())
    try:
        running.execute("alter system set fsync = off")
        running.execute("select pg_reload_conf()")
        yield running
    finally:
        embedded.close()
