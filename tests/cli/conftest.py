"""`tenure` as a function: words in, exit status and both outputs out, on a fresh database."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runtime.cli import main
from runtime.edges.postgres import PostgresStore


class Answer(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Tenure = Callable[..., Answer]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty current directory and no setting and no kind but the handlers of these tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("TENURE_CONFIG", raising=False)
    monkeypatch.setenv("TENURE_SERVICE__HANDLERS", "tests.cli.kinds")
    from runtime.registry import DEFINED

    importlib.import_module("tests.cli.kinds")
    ours = {kind: each for kind, each in DEFINED._by_kind.items() if each.cls.__module__ == "tests.cli.kinds"}
    monkeypatch.setattr(DEFINED, "_by_kind", ours)
    monkeypatch.setattr(DEFINED, "_by_class", {each.cls: each for each in ours.values()})
    return tmp_path


@pytest.fixture
def bare(apart: Path, capsys: pytest.CaptureFixture[str]) -> Tenure:
    """`tenure` without a database."""

    def call(*words: str) -> Answer:
        capsys.readouterr()
        status = main(words)
        return Answer(status, *capsys.readouterr())

    return call


@pytest.fixture
def tenure(bare: Tenure, monkeypatch: pytest.MonkeyPatch, schema_dsn: str) -> Tenure:
    monkeypatch.setenv("TENURE_DATABASE_URL", schema_dsn)
    return bare


@pytest.fixture
def store(schema_dsn: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(schema_dsn)) as opened:
        yield opened
