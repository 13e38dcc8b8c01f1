"""The plugin of pytest, in projects of its own users."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import psycopg
import pytest

from runtime import pytest_plugin
from runtime.edges.databases import PREFIX, Databases
from tests.helpers import places
from tests.helpers.databases import Server
from tests.helpers.places import ROOT
from tests.helpers.waiting import wait_for

pytest_plugins = ["pytester"]

TESTS = """
    import pytest
    from runtime import NO_RETRY, Job, Queue, job

    @job("plug.add", retry=NO_RETRY)
    class Add(Job):
        one: int
        two: int = 2

        def run(self, ctx):
            return self.one + self.two

    def test_in_memory(tenure_queue):
        id = tenure_queue.push(Add(one=1))
        assert tenure_queue.drain() == 1
        assert tenure_queue.result(id) == 3

    @pytest.mark.parametrize("one", [1, 2])
    def test_on_postgres(tenure_url, one):
        with Queue(tenure_url) as queue:
            assert queue.counts().states["queued"] == 0, "it is fresh"
            queue.push(Add(one=one))
            assert queue.counts().states["queued"] == 1
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with tests, whether or not this checkout is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv(pytest_plugin.ENV_URL, raising=False)
    pytester.makepyfile(TESTS)
    return pytester


def run(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "runtime.pytest_plugin", "-p", "no:cacheprovider", *words)


def databases(server: Server) -> set[str]:
    with psycopg.connect(server.url("postgres")) as conn:
        rows = conn.execute("select datname from pg_database where starts_with(datname, %s)", [PREFIX])
        return {name for [name] in rows}


def test_each_test_has_a_fresh_queue_or_database(
    project: pytest.Pytester, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pytest_plugin.ENV_URL, server.url("postgres"))
    run(project).assert_outcomes(passed=3)
    assert databases(server) == set()
    assert not (project.path / ".tenure").exists(), "the server that is named is used"


def test_without_a_server_a_private_one_is_started_and_ended(project: pytest.Pytester, place: Path) -> None:
    run(project, f"--rootdir={place}", "-k", "postgres").assert_outcomes(passed=2, deselected=1)
    assert (place / pytest_plugin.DATA_DIR).is_dir()
    assert places.processes_on(place) == {}


def test_a_run_drops_what_a_killed_one_left_and_nothing_of_a_living_one(server: Server) -> None:
    killed, living = Databases(server.url("postgres")), Databases(server.url("postgres"))
    with living.fresh() as url:
        killed._conn.close()  # its lock goes when its session has ended, which is soon

        def run_another() -> set[str]:
            Databases(server.url("postgres")).close()
            return databases(server)

        assert wait_for(run_another, lambda left: killed._template not in left) == {
            living._template,
            url.partition("?")[0].rpartition("/")[2],
        }
        with psycopg.connect(url) as conn:
            assert conn.execute("select count(*) from tenure.job").fetchall() == [(0,)]
    living.close()
    assert databases(server) == set()


def test_a_project_that_does_not_use_it_pays_for_no_import() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import runtime.pytest_plugin;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "runtime"


def test_pytest_finds_it_where_tenure_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"tenure": pytest_plugin.__name__}
