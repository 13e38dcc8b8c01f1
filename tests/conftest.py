"""What every test may ask for: a directory, the run's own PostgreSQL, and databases on it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import databases, places
from tests.helpers.databases import Server

ORDER = ("rules", "model", "sim", "edges", "system")  # quick ones first; what is not named is quick


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place_in_order(item: pytest.Item) -> int:
        directory = item.path.parent.name
        return ORDER.index(directory) if directory in ORDER else 0

    items.sort(key=place_in_order)


@pytest.fixture(scope="session")
def run_place() -> Iterator[Path]:
    """The directory of this test run."""
    with places.kept() as directory:
        yield directory


@pytest.fixture
def place(run_place: Path) -> Iterator[Path]:
    """A fresh directory that every account can reach; afterwards, what runs on it is ended."""
    directory = Path(tempfile.mkdtemp(dir=run_place))
    directory.chmod(0o755)
    yield directory
    places.clear(directory)


@pytest.fixture(scope="session")
def server(run_place: Path) -> Iterator[Server]:
    """The private PostgreSQL of this test run; TENURE_TEST_POSTGRES_BIN names other binaries for it."""
    with databases.server(run_place) as running:
        yield running


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """The name of a database with our schema, to copy from."""
    from runtime.edges.postgres import PostgresStore

    server.execute("create database tenure_template template template0")
    store = PostgresStore(server.url("tenure_template"))
    store.install()
    store.close()
    return "tenure_template"


@pytest.fixture
def dsn(server: Server) -> Iterator[str]:
    """The URL of a fresh, empty database, gone after the test."""
    with server.database() as url:
        yield url


@pytest.fixture
def schema_dsn(server: Server, template: str) -> Iterator[str]:
    """The URL of a fresh database that has our schema, gone after the test."""
    with server.database(template) as url:
        yield url
