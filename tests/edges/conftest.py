"""Stores to test: both kinds behind one fixture, and one clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from runtime.edges import pushing
from runtime.edges.memory import MemoryStore
from runtime.edges.postgres import PostgresStore
from runtime.edges.store import Store
from tests.helpers.databases import Server


class Clock:
    """The store's now: stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


# Every table that a store writes to.
EMPTY = "truncate tenure.job, tenure.finished, tenure.dead, tenure.payload, tenure.schedule, tenure.kick, tenure.node"


@pytest.fixture(scope="module")
def module_dsn(server: Server, template: str) -> Iterator[str]:
    """The URL of a database with our schema that the tests of one module share."""
    with server.database(template) as url:
        yield url


@pytest.fixture
def clean_dsn(module_dsn: str) -> str:
    """The URL of the module's database, emptied: a tenth of the time that a fresh one takes."""
    with psycopg.connect(module_dsn, autocommit=True) as conn:
        conn.execute(EMPTY)
    return module_dsn


@pytest.fixture
def postgres(clean_dsn: str, clock: Clock) -> Iterator[PostgresStore]:
    store = PostgresStore(clean_dsn, clock=clock)
    yield store
    store.close()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even one new job go by COPY."""
    monkeypatch.setattr(pushing, "COPY_ROWS", 1)


@pytest.fixture(params=["copied", "in a list", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How new jobs go."""
    if request.param == "copied":
        monkeypatch.setattr(pushing, "COPY_ROWS", 1)
    return str(request.param)


@pytest.fixture(params=["memory", "postgres", "pooled"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Store]:
    """Each kind of store; `pooled` is PostgreSQL with nothing kept in the session."""
    if request.param == "memory":
        yield MemoryStore(clock)
        return
    made = PostgresStore(
        request.getfixturevalue("clean_dsn"), clock=clock, prepare=request.param == "postgres"
    )
    yield made
    made.close()
