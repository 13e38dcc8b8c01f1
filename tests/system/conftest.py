"""A stage for each test: a database of its own and the services on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cut import Cut, cut_in
from tests.helpers.service import Stage, stage


@pytest.fixture
def on(schema_dsn: str, place: Path) -> Iterator[Stage]:
    with stage(schema_dsn, place) as made:
        yield made


@pytest.fixture
def cut(schema_dsn: str) -> Iterator[Cut]:
    """A wire to the test's database that the test can cut."""
    with cut_in(schema_dsn) as wire:
        yield wire
