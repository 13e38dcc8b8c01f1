"""The demonstration, as a newcomer runs it: on a small tree, twice, after a crash, interrupted; and what it checks."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from handlers.compress import Compressed, File
from runtime.config import load
from runtime.edges.embedded import living_pid
from runtime.model.jobs import JobView, State
from runtime.queue import opened
from tests.helpers.places import ROOT
from tests.helpers.service import Service, children, is_alive
from tests.helpers.waiting import wait_for

pytestmark = pytest.mark.timeout(240)


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


demo = _module()


@pytest.fixture
def tree(place: Path) -> Path:
    """Enough to do that a worker can be killed in the middle of it."""
    root = place / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    for number in range(8):
        (root / "deep" / f"noise{number}").write_bytes(os.urandom(400_000))
    (root / "deep" / "er" / "empty").touch()
    (root / "link").symlink_to("deep/er/empty")
    return root


class Play:
    """A demonstration under way."""

    def __init__(self, process: subprocess.Popen[str], said: Path) -> None:
        self.process = process
        self._said = said

    @property
    def said(self) -> str:
        return self._said.read_text()

    def heard(self, pattern: str) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            assert self.process.poll() is None, self.said
            return re.search(pattern, self.said)

        found = wait_for(look, within_s=60)
        assert found is not None
        return found

    def family(self) -> set[int]:
        """The pids of the demonstration and of its service."""
        [service] = children(self.process.pid) - {living_pid(self._said.parent / "demo" / "postgres")}
        return {self.process.pid} | Service(self.process, self._said).family() | children(service)


@contextlib.contextmanager
def play(place: Path, *words: str) -> Iterator[Play]:
    """Run it, from a directory that is not the repository's."""
    said = place / "said"
    with (
        said.open("w") as out,
        subprocess.Popen(
            [ROOT / "scripts" / "demo", "--place", place / "demo", *words],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Play(process, said)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(40)


def watched(place: Path, *words: str) -> str:
    """What a demonstration says that ends well."""
    with play(place, *words) as playing:
        assert playing.process.wait(120) == 0, playing.said
        return playing.said


def states(place: Path) -> set[State]:
    """The states that jobs of the demonstration are in."""
    with opened(load(place / "demo" / "tenure.toml", {}, place)) as store:
        return {job.state for job in store.jobs(limit=100)}


def test_it_kills_a_worker_loses_no_file_and_does_so_again(place: Path, tree: Path) -> None:
    for _ in range(2):
        said = watched(place, str(tree))
        *_, (worker, pid, job) = (
            re.findall(  # a worker may have ended its job before it was killed: then another is
                r"killed worker (\d) \(pid (\d+)\) .* job (\S+)\n", said
            )
        )
        assert f"attempt 1 of job {job}, in worker {worker} (pid {pid})" in said
        assert "killed by SIGKILL" in said
        assert "1 more for crashes" in said
        assert "files     10, of which 1 could not be read" in said
        assert "not compressed: link: is a symbolic link" in said
        assert "verified: every file was answered for once" in said
        assert "\x1b" not in said
        assert len(said.splitlines()) < 25
    [command] = re.findall(r"to look at a job: (.*)\n", said)
    shown = subprocess.run(command.split(), check=True, cwd=place, capture_output=True, text=True, timeout=40)
    assert "attempt 1 crashed" in shown.stdout
    assert "attempt 2 done" in shown.stdout


def test_it_works_after_all_its_processes_were_killed(place: Path, tree: Path) -> None:
    with play(place, str(tree)) as playing:
        playing.heard(r"\b[1-9]\d%")
        postmaster = living_pid(place / "demo" / "postgres")
        for pid in [postmaster, *playing.family()]:
            with contextlib.suppress(ProcessLookupError):  # each pulls others down with it
                os.kill(pid, signal.SIGKILL)
        playing.process.wait(20)
    assert "verified" in watched(place, str(tree))


def test_the_service_of_a_killed_run_is_waited_for(place: Path, tree: Path) -> None:
    more = [tree / f"more{number}" for number in range(40)]  # more than it can do before the next run looks
    for path in more:
        path.write_bytes(os.urandom(400_000))
    with play(place, str(tree)) as playing:
        playing.heard(r"\b[1-9]\d%")
        family = playing.family()
        playing.process.kill()
        playing.process.wait(20)
        for path in more:
            path.unlink()
        said = watched(place, str(tree))
        assert "attempts  10: 9 first ones, 1 more for crashes" in said
        assert not {pid for pid in family if is_alive(pid)}
        assert State.CANCELLED in states(place), "what the killed run had left"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_when_interrupted(place: Path, tree: Path, signum: int) -> None:
    for number in range(40):  # more than it can do before it is interrupted
        (tree / f"more{number}").write_bytes(os.urandom(400_000))
    with play(place, str(tree)) as playing:
        playing.heard(r"jobs for")
        wait_for(lambda: State.DONE in states(place), within_s=60)
        family = playing.family()
        os.killpg(playing.process.pid, signum)  # as a terminal does
        assert playing.process.wait(20) == 130, playing.said
        assert "Traceback" not in playing.said
    assert not {pid for pid in family if is_alive(pid)}
    assert not living_pid(place / "demo" / "postgres")
    assert states(place) == {State.DONE, State.CANCELLED}


def test_two_at_once_are_refused(place: Path, tree: Path) -> None:
    with play(place, str(tree)) as playing:
        playing.heard(r"jobs for")
        with pytest.raises(demo.Trouble, match="another demonstration"):
            demo.run(tree, place / "demo", set(), 0.0)


@pytest.mark.parametrize(
    ("name", "complaint"), [("none", "is not a directory"), ("empty", "there are no files")]
)
def test_a_tree_that_is_none_is_one_clear_line(place: Path, name: str, complaint: str) -> None:
    (place / "empty").mkdir()
    with play(place, str(place / name)) as playing:
        assert playing.process.wait(40) == 1
        assert complaint in playing.said
        assert playing.said.count("\n") == 1


def test_every_file_is_in_one_batch_and_none_is_too_large() -> None:
    entries = [demo.Entry(f"file{number}", number * number, 0) for number in range(3000)]
    made = demo.batches(entries, workers=4)
    assert sorted(entry.path for batch in made for entry in batch.entries) == sorted(e.path for e in entries)
    fit = sum(entry.size for entry in entries) // demo.JOBS
    assert all(batch.size <= fit or len(batch.entries) == 1 for batch in made)
    assert all(len(batch.entries) <= demo.JOB_FILES_MAX for batch in made)
    assert len(made) < 2 * demo.JOBS


# -- what it checks


class Checked:
    """Two jobs with a file each, as they ended; a test spoils one thing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kills = 0
        self.files: dict[str, list[File]] = {}
        self.views: dict[str, JobView] = {}
        self.work: dict[str, Any] = {}
        for name in ("a", "b"):
            path = root / name
            path.write_text(name)
            status = path.stat()
            self.work[name] = demo.Batch([demo.Entry(name, status.st_size, status.st_mtime_ns)])
            self.files[name] = [File(path=name, sha256=hashlib.sha256(name.encode()).hexdigest())]
            self.views[name] = view(name)

    def verify(self) -> tuple[list[str], list[str]]:
        play = demo.Demo(self.root, self.work, None, None, datetime.now(UTC))
        play.kills = [demo.Kill("a", 1, 1)] * self.kills
        found: tuple[list[str], list[str]] = play.verify(
            {id: (self.views[id], Compressed(files=self.files[id], cpu_seconds=0.0)) for id in self.files}
        )
        return found


def view(id: str, attempt: int = 1, crashes: int = 0) -> JobView:
    now = datetime.now(UTC)
    return JobView(
        id=id, kind="compress", queue="default", priority=5, state=State.DONE, due=now, attempt=attempt,
        failures=0, crashes=crashes, interruptions=0, unique=None, created=now, finished=now,
    )  # fmt: skip


@pytest.fixture
def checked(place: Path) -> Checked:
    return Checked(place)


def test_results_that_are_right_pass(checked: Checked) -> None:
    assert checked.verify() == ([], [])


def test_a_missing_file_is_found(checked: Checked) -> None:
    checked.files["a"] = []
    assert "a: missing" in checked.verify()[0]


def test_a_file_in_two_results_is_found(checked: Checked) -> None:
    checked.files["a"] = [*checked.files["a"], *checked.files["b"]]
    assert "b: 2 times" in checked.verify()[0]


def test_a_wrong_fingerprint_is_found(checked: Checked) -> None:
    checked.files["a"] = [File(path="a", sha256="0" * 64)]
    assert checked.verify() == (["a: the fingerprint is not that of the file"], [])


def test_a_file_that_was_reported_as_unreadable_but_is_not_is_found(checked: Checked) -> None:
    checked.files["a"] = [File(path="a", problem="No such file or directory")]
    assert checked.verify() == (["a: the fingerprint is not that of the file"], [])


def test_a_file_that_changed_meanwhile_is_not_held_against_the_service(checked: Checked) -> None:
    (checked.root / "a").write_text("other")
    assert checked.verify() == ([], ["a"])


def test_an_attempt_without_a_reason_is_found(checked: Checked) -> None:
    checked.views["a"] = view("a", attempt=2)
    assert checked.verify() == (["job a has 2 attempts, and reasons for fewer"], [])


def test_a_crash_that_nobody_caused_is_found(checked: Checked) -> None:
    checked.views["a"] = view("a", attempt=2, crashes=1)
    assert checked.verify() == (["1 attempts crashed, but only 0 processes were killed"], [])
    checked.kills = 1
    assert checked.verify() == ([], [])
