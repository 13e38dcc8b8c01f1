"""The demonstration: a real service compresses a directory tree, loses a worker half-way, and loses no file.

It starts `tenure run` with a database and settings of its own, pushes one job a batch of files, watches as any
application may, kills one busy worker, and then checks every result against the files. Exit status: 0 all is
as it should be, 1 it is not, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for `handlers`, which is found by the directory one works in

from handlers.compress import Compress, Compressed  # noqa: E402
from runtime import Queue  # noqa: E402
from runtime.cli.output import safe  # noqa: E402
from runtime.cli.show import cause, progress_text  # noqa: E402
from runtime.config import Config, load  # noqa: E402
from runtime.edges.store import Store  # noqa: E402
from runtime.errors import Error  # noqa: E402
from runtime.model.exits import Certificate  # noqa: E402
from runtime.model.jobs import Attempt, Ending, JobView, NodeView, State  # noqa: E402
from runtime.queue import ENDED, opened  # noqa: E402

SETTINGS = """\
# Written by scripts/demo at every run.
[database]
data_dir = "postgres"

[service]
handlers = ["handlers.compress"]
shutdown_grace = "5s"

[log]
format = "json"

[retention]
finished = "1d"
"""
JOBS = 60  # about so many, whatever the size of the tree
JOB_BYTES_MIN = 128 * 1024
JOB_FILES_MAX = 1000
FIRST_BYTES = 32 * 1024  # of each worker's first job, so that something is to be seen at once
LOOK_EVERY_S = 0.25
BEGIN_WITHIN_S = 60.0  # until the first job must be running
LEAVE_WITHIN_S = 30.0  # for the service of an earlier run
STOP_WITHIN_S = 15.0
YOUNG = timedelta(seconds=0.3)  # an attempt that has hardly begun
MISSES_MAX = 20  # looks half-way that find no worker to kill, though jobs are running
KILLS_MAX = 5  # a worker may finish its job in the moment before it is killed
WORKERS_SHOWN = 16
PROBLEMS_SHOWN = 5


class Trouble(Exception):  # noqa: N818 - what one is in
    """Something is not as it should be; the text says what."""


@dataclass(frozen=True)
class Entry:
    """A file as it was found."""

    path: str  # below the root
    size: int
    changed_ns: int


@dataclass
class Batch:
    """The files of one job."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True)
class Kill:
    """What was done to a worker."""

    job: str
    worker: int
    pid: int

    def __str__(self) -> str:
        return f"killed worker {self.worker} (pid {self.pid}) with SIGKILL, in the middle of job {self.job}"


@dataclass(frozen=True)
class Sight:
    """How things are at one moment."""

    jobs: dict[str, JobView]
    nodes: list[NodeView]  # of our service
    busy: dict[int, JobView]  # by the pid of the worker that runs it
    doing: dict[int, str]  # what those workers have said, or were given

    @property
    def ended(self) -> int:
        return sum(job.state in ENDED for job in self.jobs.values())


# -- what there is to do


def listing(root: Path, spare: Path, others: set[str]) -> tuple[list[Entry], int]:
    """The files below `root`, without the directory `spare` and those of a name in `others`.

    The number is of names that are left out because they are no text, which no database holds.

    Raises:
        Trouble: `root` is no directory, cannot be read, or holds no files.
    """
    if not root.is_dir():
        raise Trouble(f"{root} is not a directory")
    found, strange = [], 0
    for directory, inner, names in os.walk(root, onerror=_refuse):
        inner[:] = [name for name in inner if name not in others and Path(directory, name) != spare]
        for name in names:
            path = Path(directory, name)
            if not _is_text(str(path)):
                strange += 1
                continue
            status = _lstat(path)
            size = status.st_size if status and stat.S_ISREG(status.st_mode) else 0
            found.append(Entry(str(path.relative_to(root)), size, status.st_mtime_ns if status else 0))
    if not found:
        raise Trouble(f"there are no files in {root}")
    return found, strange


def standard_library() -> tuple[Path, set[str]]:
    """Where it is, and the directories in it that are left out: caches, other packages, the parts of a build."""
    built = Path(sysconfig.get_config_var("LIBPL") or "config").name
    return Path(sysconfig.get_path("stdlib")), {"__pycache__", "site-packages", "dist-packages", built}


def batches(entries: Sequence[Entry], workers: int) -> list[Batch]:
    """One small batch for each worker, then the others, large files first, so that the end is no long tail."""
    rest = sorted(entries, key=lambda entry: (entry.size, entry.path))
    fit = max(JOB_BYTES_MIN, sum(entry.size for entry in entries) // JOBS)
    first = [_take(rest, FIRST_BYTES) for _ in range(workers)]
    rest.reverse()
    others = []
    while rest:
        others.append(_take(rest, fit))
    return [batch for batch in [*first, *others] if batch.entries]


def _take(rest: list[Entry], fit: int) -> Batch:
    """A batch from the head of `rest`: of `fit` bytes, or of one file that is larger."""
    count, size = 0, 0
    while count < min(len(rest), JOB_FILES_MAX) and (not count or size + rest[count].size <= fit):
        size += rest[count].size
        count += 1
    batch = Batch(rest[:count])
    del rest[:count]
    return batch


def _refuse(error: OSError) -> None:
    """A directory below the root that cannot be read is left out; so is what it holds."""
    print(f"left out: {safe(str(error))}", file=sys.stderr)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the service


class Service:
    """A `tenure run` of our own, which stops by itself should we be killed: it is told to stop when idle."""

    def __init__(self, config: Path, log: Path, mark: int) -> None:
        """Start it. `mark` is a descriptor that it keeps open for as long as it lives."""
        self._config, self._log, self._mark = config, log, mark
        self._log.unlink(missing_ok=True)  # of another user, perhaps
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runtime", "--config", str(self._config), "run", "--until-idle"],
                cwd=ROOT,
                env=_plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # a terminal's Ctrl-C is for us alone
                pass_fds=[self._mark],
            )

    def has_ended(self, within_s: float) -> bool:
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """End it: gently, and at once when that takes too long or when asked again."""
        for _ in range(2):
            self.process.terminate()
            try:
                if self.has_ended(STOP_WITHIN_S):
                    return
            except KeyboardInterrupt:
                continue
        self.process.kill()
        self.process.wait()


def _plain_environment() -> dict[str, str]:
    """The environment without settings of Tenure: those of the demonstration are in its file."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}


# -- what is to be seen


class Screen:
    """A live display on a terminal; elsewhere a few plain lines."""

    def __init__(self, total: int, files: int) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        if not sys.stdout.isatty():
            self._console = Console(highlight=False, soft_wrap=True, force_terminal=False, no_color=True)
        self._live: Live | None = None
        self._total, self._files = total, files
        self._began_s = time.monotonic()
        self._quarter = 0

    def open(self) -> None:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(safe(text), style))

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        if not self._console.is_terminal:
            for label, text in rows:
                self.say(f"{label:<9} {text}")
            return
        drawn = Table.grid(padding=(0, 2))
        for label, text in rows:
            drawn.add_row(Text(label, "bold"), Text(safe(text)))
        self._console.print(drawn, soft_wrap=False)

    def show(self, sight: Sight, done: int, files: int) -> None:
        share = done / self._total if self._total else 1.0
        overall = (
            f"{share:4.0%}  {megabytes(done)} of {megabytes(self._total)}, {files} of {self._files} files, "
            f"{sight.ended} of {len(sight.jobs)} jobs, {time.monotonic() - self._began_s:.0f} s"
        )
        if self._live:
            bar = Table.grid(padding=(0, 1))
            bar.add_row(ProgressBar(total=max(self._total, 1), completed=done, width=30), Text(overall))
            self._live.update(Group(bar, *_workers(sight)), refresh=True)
        elif share >= (self._quarter + 1) / 4 and sight.ended < len(sight.jobs):
            self._quarter = int(share * 4)
            self.say(overall.strip())


def _workers(sight: Sight) -> Iterator[Text]:
    """A line for each worker: what it is doing."""
    workers = [each for node in sight.nodes for each in node.workers if each.name.startswith("worker")]
    for worker in workers[:WORKERS_SHOWN]:
        job = sight.busy.get(worker.pid or 0)
        line = Text(f"  {worker.name:<10} ", no_wrap=True, overflow="ellipsis")
        if job is None:
            line.append(worker.state if worker.state != "running" else "between two jobs", "dim")
        else:
            line.append(f"pid {worker.pid}, attempt {job.attempt} of job …{job.id[-6:]}  ")
            line.append(safe(sight.doing[worker.pid or 0]))
        yield line
    if len(workers) > WORKERS_SHOWN:
        yield Text(f"  and {len(workers) - WORKERS_SHOWN} more", "dim")


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


# -- the demonstration


class Demo:
    """One run, from the first push to the last check."""

    def __init__(
        self, root: Path, work: dict[str, Batch], store: Store, screen: Screen, since: datetime
    ) -> None:
        """`work` is by job; nodes that started before `since` are those of earlier runs."""
        self._root = root
        self._work = work
        self._store = store
        self._screen = screen
        self._since = since
        self.kills: list[Kill] = []
        self._first_s: float | None = None

    def watch(self, service: Service, began_s: float) -> float:
        """Return when all jobs have ended, one worker having been killed half-way; seconds to the first progress.

        Raises:
            Trouble: the service cannot work.
        """
        started_s = time.monotonic()
        total = sum(batch.size for batch in self._work.values())
        misses = 0
        while True:
            gone = service.has_ended(LOOK_EVERY_S)
            sight = self._look()
            done, files = self._done(sight)
            self._screen.show(sight, done, files)
            if self._first_s is None and files:
                self._first_s = time.monotonic() - began_s
            if sight.ended == len(self._work):
                return self._first_s or 0.0
            if gone and service.process.returncode == 0:
                service.start()  # it found nothing to do, since it was there before our first push
            elif gone:
                raise Trouble(f"the service ended with status {service.process.returncode}")
            if self._first_s is None and time.monotonic() - started_s > BEGIN_WITHIN_S:
                raise Trouble(f"no job was done within {BEGIN_WITHIN_S:g} s")
            if any(node.state == "unhealthy" for node in sight.nodes):
                raise Trouble("the service says that it is unhealthy")
            if done * 2 >= total and not self._has_struck(sight) and not self._strike(sight):
                misses += any(job.state is State.RUNNING for job in sight.jobs.values())
            if misses > MISSES_MAX:
                raise Trouble("jobs are running, and the service does not tell which workers run them")

    def cancel_rest(self) -> None:
        for id, job in self._look().jobs.items():
            if job.state not in ENDED:
                self._store.cancel(id)

    def _look(self) -> Sight:
        views = self._store.jobs(kind="compress", limit=len(self._work))
        jobs = {view.id: view for view in views if view.id in self._work}
        nodes = [node for node in self._store.nodes() if node.started and node.started >= self._since]
        ours = {node.id for node in nodes}
        busy, doing = {}, {}
        for id in [id for id, job in jobs.items() if job.state is State.RUNNING][:WORKERS_SHOWN]:
            job = self._store.status(id)
            last = job.attempts[-1] if job and job.attempts else None
            if job and last and last.ending is None and last.pid and last.node in ours:
                busy[last.pid] = job
                doing[last.pid] = _doing(job, self._work[id])
        return Sight(jobs, nodes, busy, doing)

    def _done(self, sight: Sight) -> tuple[int, int]:
        """Bytes that are done, of running jobs too; files, of jobs that have ended only."""
        size, files = 0, 0
        for id, job in sight.jobs.items():
            batch = self._work[id]
            if job.state is State.DONE:
                size += batch.size
                files += len(batch.entries)
            elif job.state is State.RUNNING and job.progress is not None:
                size += min(int(job.progress.done), batch.size)
        return size, files

    def _has_struck(self, sight: Sight) -> bool:
        """Whether the last kill hit its job; until then another is to be tried, within bounds."""
        if not self.kills:
            return False
        job = sight.jobs[self.kills[-1].job]
        return len(self.kills) >= KILLS_MAX or job.crashes > 0 or job.state is not State.DONE

    def _strike(self, sight: Sight) -> bool:
        """Kill a worker that is known to run a job, rather not in its first moment, rather a small one; or none."""
        for pid, job in sorted(sight.busy.items(), key=self._order_of_kill):
            now = self._store.status(job.id)
            last = now.attempts[-1] if now and now.state is State.RUNNING and now.attempts else None
            if last and last.worker and last.pid == pid and last.ending is None:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.kills.append(Kill(job.id, last.worker, pid))
                self._screen.say(str(self.kills[-1]), "bold red")
                return True
        return False

    def _order_of_kill(self, busy: tuple[int, JobView]) -> tuple[bool, int]:
        job = busy[1]
        started = job.attempts[-1].started
        is_young = started is None or datetime.now(UTC) - started < YOUNG
        return is_young, self._work[job.id].size

    # -- the end

    def results(self) -> dict[str, tuple[JobView, Compressed]]:
        """What became of each job.

        Raises:
            Trouble: a job has no result.
        """
        found = {}
        for id in self._work:
            job = self._store.status(id)
            if job is None or job.result is None:
                state = job.state if job else "unknown"
                error = (
                    next((one.error for one in reversed(job.attempts) if one.error), None) if job else None
                )
                raise Trouble(f"job {id} is {state}{f': {error.class_}: {error.message}' if error else ''}")
            found[id] = (job, msgspec.json.decode(job.result, type=Compressed))
        return found

    def verify(self, results: dict[str, tuple[JobView, Compressed]]) -> tuple[list[str], list[str]]:
        """Compare the results with the files; what is wrong, and which files changed meanwhile."""
        wrong, changed = [], []
        crashes = 0
        for id, (job, result) in results.items():
            if [file.path for file in result.files] != [entry.path for entry in self._work[id].entries]:
                wrong.append(f"job {id} has not answered for the files that it was given")
            if job.attempt != 1 + job.crashes + job.failures + job.interruptions:
                wrong.append(f"job {id} has {job.attempt} attempts, and reasons for fewer")
            crashes += job.crashes
        if crashes > len(self.kills):
            wrong.append(f"{crashes} attempts crashed, but only {len(self.kills)} processes were killed")
        answers = Counter(file.path for _, result in results.values() for file in result.files)
        entries = {entry.path: entry for batch in self._work.values() for entry in batch.entries}
        wrong += [f"{path}: missing" for path in entries if not answers[path]]
        wrong += [f"{path}: {times} times" for path, times in answers.items() if times != 1]
        for _, result in results.values():
            for file in result.files:
                if (file.sha256 or None) == _fingerprint(self._root / file.path):
                    continue
                entry, now = entries.get(file.path), _lstat(self._root / file.path)
                if entry and (not now or now.st_size != entry.size or now.st_mtime_ns != entry.changed_ns):
                    changed.append(file.path)
                else:
                    wrong.append(f"{file.path}: the fingerprint is not that of the file")
        return wrong, changed

    def summary(
        self, results: dict[str, tuple[JobView, Compressed]], first_s: float
    ) -> list[tuple[str, str]]:
        jobs = [job for job, _ in results.values()]
        files = [file for _, result in results.values() for file in result.files]
        attempts = [one for job in jobs for one in job.attempts]
        crashed = [one for one in attempts if one.ending is Ending.CRASHED]
        bytes_in, bytes_out = sum(file.bytes_in for file in files), sum(file.bytes_out for file in files)
        cpu_s = sum(result.cpu_seconds for _, result in results.values())
        lost_s = sum(one.certificate.cpu_seconds for one in crashed if one.certificate)
        wall_s = _span(attempts).total_seconds()
        return [
            ("jobs", f"{len(jobs)}, all done"),
            ("attempts", f"{sum(job.attempt for job in jobs)}: {_shares(jobs)}"),
            *self._certificates(jobs),
            ("files", f"{len(files)}{_left_out(sum(file.problem is not None for file in files))}"),
            ("bytes", f"{megabytes(bytes_in)} in, {megabytes(bytes_out)} out{_percent(bytes_out, bytes_in)}"),
            (
                "CPU",
                f"{cpu_s:.1f} s in the jobs{f', and {lost_s:.1f} s in what was killed' if lost_s else ''}",
            ),
            ("wall", f"{wall_s:.1f} s from the start of the first job to the end of the last one"),
            (
                "speed-up",
                f"{cpu_s / max(wall_s, 0.001):.2f} over one process: the jobs' CPU seconds by the wall seconds",
            ),
            ("started", f"{first_s:.1f} s from the start to the first files that were done"),
        ]

    def _certificates(self, jobs: list[JobView]) -> Iterator[tuple[str, str]]:
        """Of each attempt that was killed: what is on record, and how soon the next one began."""
        for job in jobs:
            for one, after in zip(job.attempts, [*job.attempts[1:], None], strict=True):
                if one.ending is Ending.CRASHED and one.certificate is not None:
                    yield (
                        "killed",
                        f"attempt {one.attempt} of job {job.id}, in worker {one.worker} (pid {one.pid})",
                    )
                    yield "", _certificate(one.certificate)
                    if after and after.started and one.ended:
                        again_s = (after.started - one.ended).total_seconds()
                        yield (
                            "",
                            f"attempt {after.attempt} began {again_s:.2f} s later, in worker {after.worker}",
                        )


def _doing(job: JobView, batch: Batch) -> str:
    progress = job.progress
    if progress is None or not progress.total:
        return f"{len(batch.entries)} files from {batch.entries[0].path}"
    return f"{progress.done / progress.total:4.0%}  {progress.note}"


def _certificate(certificate: Certificate) -> str:
    text = (
        f"{cause(certificate)}, after {certificate.cpu_seconds:.1f} s of CPU and with "
        f"{certificate.peak_memory_bytes / 2**20:.0f} MiB at its peak"
    )
    last = certificate.last_progress
    return f"{text}; last heard at {progress_text(last)}" if last else text


def _span(attempts: list[Attempt]) -> timedelta:
    """From the first start to the last end."""
    starts: list[datetime] = [one.started for one in attempts if one.started]
    ends: list[datetime] = [one.ended for one in attempts if one.ended]
    return max(ends) - min(starts) if starts and ends else timedelta()


def _shares(jobs: list[JobView]) -> str:
    said = [f"{len(jobs)} first ones"]
    for name in ("crashes", "failures", "interruptions"):
        count = sum(getattr(job, name) for job in jobs)
        if count:
            said.append(f"{count} more for {name}")
    return ", ".join(said)


def _left_out(count: int) -> str:
    return f", of which {count} could not be read or are links, pipes or sockets" if count else ""


def _percent(part: int, whole: int) -> str:
    return f" ({part / whole:.1%})" if whole else ""


def _fingerprint(path: Path) -> str | None:
    """SHA-256 of a regular file, read anew; None when it cannot be read."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


# -- the way in


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Hold the place for this process.

    Raises:
        Trouble: another demonstration runs in it.
    """
    with (place / "demo.lock").open("a") as lock:
        if not _locked(lock.fileno()):
            raise Trouble(f"another demonstration is running in {place}")
        yield


@contextmanager
def service_mark(place: Path, config: Config) -> Iterator[int]:
    """A descriptor that our service keeps locked while it lives.

    The service of a run that was killed holds it still: then its jobs are cancelled, and it leaves.

    Raises:
        Trouble: it does not leave.
    """
    with (place / "service.lock").open("a") as lock:
        if not _locked(lock.fileno()):
            with opened(config) as store:
                cancel_leftovers(store)
            deadline_s = time.monotonic() + LEAVE_WITHIN_S
            while not _locked(lock.fileno()):
                if time.monotonic() > deadline_s:
                    raise Trouble("the service of an earlier run does not end")
                time.sleep(0.05)
        yield lock.fileno()


def _locked(file: int) -> bool:
    """Whether we have the lock now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def cancel_leftovers(store: Store) -> None:
    """Cancel what a run that was killed has left."""
    for state in (State.QUEUED, State.RUNNING):
        for job in store.jobs(state=state, kind="compress", limit=100_000):
            store.cancel(job.id)


def settings_in(place: Path) -> Config:
    """Write and read the settings of the demonstration."""
    path = place / "tenure.toml"
    path.unlink(missing_ok=True)  # of another user, perhaps
    path.write_text(SETTINGS)
    return load(path, {}, ROOT)


def run(root: Path, place: Path, others: set[str], began_s: float) -> None:
    """The whole demonstration.

    Raises:
        Trouble: something is not as it should be.
    """
    entries, strange = listing(root, place, others)
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        undo.enter_context(alone(place))
        config = settings_in(place)
        assert config.path is not None
        since = datetime.now(UTC)
        mark = undo.enter_context(service_mark(place, config))
        service = Service(config.path, place / "service.log", mark)
        undo.callback(service.stop)
        screen = Screen(sum(entry.size for entry in entries), len(entries))
        undo.callback(screen.close)
        screen.say(f"{len(entries)} files, {megabytes(sum(entry.size for entry in entries))}, in {root}")
        if others:
            screen.say(f"left out: directories {', '.join(sorted(others))}")
        if strange:
            screen.say(f"left out: {strange} files whose names are no text")
        store = undo.enter_context(opened(config))
        cancel_leftovers(store)
        made = batches(entries, config.worker_count)
        jobs = [Compress(root=str(root), files=[entry.path for entry in each.entries]) for each in made]
        with Queue(config=config) as queue:
            work = dict(zip(queue.push_many(jobs), made, strict=True))
        demo = Demo(root, work, store, screen, since)
        screen.say(f"{len(work)} jobs for {config.worker_count} workers of service {service.process.pid}")
        screen.open()
        try:
            first_s = demo.watch(service, began_s)
        except KeyboardInterrupt:
            screen.close()
            screen.say("stopping: the jobs that are left are cancelled")
            demo.cancel_rest()
            raise
        screen.close()
        report(demo, screen, first_s, config.path)


def report(demo: Demo, screen: Screen, first_s: float, config: Path) -> None:
    """Print what came out, and check it.

    Raises:
        Trouble: a result is wrong.
    """
    results = demo.results()
    screen.table(demo.summary(results, first_s))
    unread = [file for _, result in results.values() for file in result.files if file.problem]
    for file in unread[:PROBLEMS_SHOWN]:
        screen.say(f"not compressed: {file.path}: {file.problem}")
    wrong, changed = demo.verify(results)
    if changed:
        screen.say(f"{len(changed)} files changed meanwhile, such as {changed[0]}")
    if wrong:
        raise Trouble(
            "; ".join(wrong[:PROBLEMS_SHOWN]) + (f"; {len(wrong)} in all" if len(wrong) > 1 else "")
        )
    screen.say("verified: every file was answered for once, none is missing, none is double", "green")
    if not demo.kills:
        screen.say("no worker was killed: the work was over too soon")
    some = demo.kills[-1].job if demo.kills else next(iter(results))
    screen.say(f"to look at a job: {Path(sys.executable).parent / 'tenure'} status {some} --config {config}")


def main() -> int:
    began_s = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="scripts/demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", nargs="?", type=Path, help="the tree to compress; else the standard library")
    parser.add_argument(
        "--place", type=Path, default=ROOT / ".tenure" / "demo", help="for database, settings and log"
    )
    given = parser.parse_args()
    place = given.place.absolute()
    if given.dir is None:
        root, others = standard_library()
    else:
        root, others = given.dir.absolute(), set()
    try:
        run(root, place, others, began_s)
    except KeyboardInterrupt:
        return 130
    except (Trouble, Error) as problem:
        print(f"scripts/demo: {problem}", file=sys.stderr)
        if (place / "service.log").exists():
            print(f"scripts/demo: the service's log is {place / 'service.log'}", file=sys.stderr)
        return 1
    except PermissionError as problem:
        print(f"scripts/demo: {problem}; --place names another directory", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
