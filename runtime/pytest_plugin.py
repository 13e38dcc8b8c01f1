"""The plugin of pytest: what a project's tests may ask for, a queue in memory and fresh databases.

pytest loads it in every project beside which Tenure is installed, so it imports nothing of ours before a fixture is
asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from runtime.edges.databases import Databases
    from runtime.testing import LocalQueue

ENV_URL = "TENURE_TEST_DATABASE_URL"
DATA_DIR = ".tenure/test-postgres"  # below pytest's root directory


@pytest.fixture
def tenure_queue() -> Iterator[LocalQueue]:
    """A `runtime.testing.LocalQueue` in memory, closed after the test."""
    from runtime.testing import LocalQueue

    with LocalQueue() as queue:
        yield queue


@pytest.fixture
def tenure_url(tenure_databases: Databases) -> Iterator[str]:
    """The URL of a fresh database that has Tenure's schema, dropped after the test."""
    with tenure_databases.fresh() as url:
        yield url


@pytest.fixture(scope="session")
def tenure_databases(pytestconfig: pytest.Config) -> Iterator[Databases]:
    """Databases on the server of TENURE_TEST_DATABASE_URL, else on a private one, started once for all processes."""
    from runtime.edges.databases import Databases
    from runtime.edges.embedded import Embedded

    with ExitStack() as undo:
        url = os.environ.get(ENV_URL)
        if not url:
            url = undo.enter_context(closing(Embedded(pytestconfig.rootpath / DATA_DIR))).open()
        yield undo.enter_context(closing(Databases(url)))
