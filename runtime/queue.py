"""The application's side: push jobs, cancel and retry them, see what became of them, wait for results.

Also where a configuration becomes a store: `opened` finds or starts the database and sees to its schema, for
the command line too. Nothing here runs handlers.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psycopg

from runtime.actors.ticking import job_of
from runtime.config import Config, DatabaseConfig, load
from runtime.config import check as check_config
from runtime.definition import LONGEST_S, Definition, Job
from runtime.edges.callers import plain_connection
from runtime.edges.embedded import Embedded
from runtime.edges.ids import canonical, new_id, new_ids
from runtime.edges.postgres import PostgresStore, parse_url
from runtime.edges.store import Store
from runtime.errors import ConfigError, JobFailed, SchemaOutdated, StoreUnavailable
from runtime.model.jobs import (
    PRIORITIES,
    QUEUE_BYTES,
    UNIQUE_BYTES,
    Counts,
    JobView,
    Missed,
    NewJob,
    NewSchedule,
    Overlap,
    ScheduleView,
    State,
    Stats,
)
from runtime.providers import provide_ours
from runtime.registry import DEFINED
from runtime.rules.nodes import is_lost, is_ready, unserved
from runtime.rules.schedule import Schedule
from runtime.rules.windows import Windows

ENDED = (State.DONE, State.DEAD, State.CANCELLED)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)  # between these two a job may be due: what every client can read
LATEST = datetime(9999, 12, 31, tzinfo=UTC)
CONNECTIONS = 8  # of one Queue at most; each is opened when so many calls are under way at once
CONNECTION_WITHIN_S = 30.0  # how long a call waits for one of them to be free
LOOK_AFTER_S = 0.02  # `wait` looks again after this, then after `LOOK_FACTOR` times as long
LOOK_FACTOR = 1.5
LOOK_AFTER_S_MAX = 0.5


class Queue:
    """Jobs of one database, for any number of threads of one process.

    Nothing is opened before the first call, so a web server may make one and fork; but a Queue that was used
    before the fork refuses to work in the child, which makes one of its own. Each call has a connection to itself;
    at most `CONNECTIONS` are open, and they stay open until `close`.

    Args:
        url: of the database. None: the database of `config`.
        config: None: the settings of `TENURE_CONFIG`, else `configs/tenure.toml`, else the defaults, which mean
            the embedded PostgreSQL.

    Raises:
        ConfigError: the URL or the settings are wrong.
    """

    def __init__(self, url: str | None = None, *, config: Config | None = None) -> None:
        if url is not None and config is not None:
            raise TypeError("give url or config, not both")
        if url == "":
            raise ConfigError("database.url", "is empty; leave it out for the database of the configuration")
        if url is not None:
            config = Config(database=DatabaseConfig(url=url))
            check_config(config)
        self._config = config if config is not None else load(None, os.environ, Path.cwd())
        self._pid: int | None = None  # the process that it was first used in
        self._closed = threading.Event()
        self._lock = threading.Lock()  # held for a moment only, except while the database is being opened
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        self._free: list[PostgresStore] = []
        self._url: str | None = None
        self._undo = ExitStack()
        self._windows = Windows()
        self._windows_lock = threading.Lock()

    def push(
        self,
        job: Job,
        *,
        after: float | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        unique: str | None = None,
        or_existing: bool = False,
        replace: bool = False,
        within: float | None = None,
        id: str | None = None,
        conn: object = None,
    ) -> str | None:
        """Queue a job; its id, or None when a job of this kind with this `unique` is queued or running.

        Args:
            after: seconds from now, by the database's clock, before it is due.
            at: when it is due, an aware time.
            priority: 0, the most urgent, to 9; None: as the kind says.
            queue: None: as the kind says.
            unique: at most 64 bytes.
            or_existing: when `unique` is taken, answer with the id of the job that has it.
            replace: when `unique` is taken by a job that is still queued, give it the due time, queue, priority and
                payload of this one, and answer with its id; None when that job is running.
            within: seconds for which this Queue remembers the kind and `unique`: another push of them meanwhile is
                None, whatever else it asks for, and does not reach the database. Only `unique` keeps a promise;
                this spares it work.
            id: a UUID; pushing an id again, for instance after a lost reply, adds nothing.
            conn: a connection in whose transaction the job is queued, so that it commits with your rows or not:
                psycopg's own, or a connection or session of SQLAlchemy, or a connection of Django, over psycopg 3.

        Raises:
            PayloadInvalid: names the field.
            ValueError: names the argument.
            StoreUnavailable: the same call may be made again, with an `id` of yours so that it adds one job.
        """
        check_taken(unique, or_existing=or_existing, replace=replace, within=within)
        if within is not None and conn is not None:
            raise ValueError("within cannot be given with conn: what it remembers would outlive a rollback")
        new = new_job(
            DEFINED.definition_of(job),
            job,
            after=after,
            at=at,
            priority=priority,
            queue=queue,
            unique=unique,
            id=id,
        )
        if conn is not None:
            over = PostgresStore.over(plain_connection(conn))
            return push_one(over, new, or_existing=or_existing, replace=replace, known=id is not None)
        with self._window(new, within) as is_open:
            if not is_open:
                return None
            with self._store() as store:
                return push_one(store, new, or_existing=or_existing, replace=replace, known=id is not None)

    def push_many(self, jobs: Iterable[Job], *, conn: object = None) -> list[str]:
        """Queue jobs in one transaction, all or none; their ids in order. `conn` and errors as of `push`.

        All are checked before the database is touched, so their payloads are held in memory meanwhile. Some hundreds
        and more go by COPY.
        """
        new = new_jobs(jobs)
        if conn is not None:
            PostgresStore.over(plain_connection(conn)).push_new(new)
        else:
            with self._store() as store:
                store.push_new(new)
        return [each.id for each in new]

    def kick(self, kind: str, *, conn: object = None) -> None:
        """Start one run of a kind whose fields all have defaults, within a second after this has committed.

        Kicks coalesce: however many there are, at most one run is on and one more to come, and a run that began
        after it follows each of them. A kick never waits for another transaction.

        Args:
            conn: as of `push`: without a commit there is no run.

        Raises:
            UnknownKind: no handler that this program has imported has that kind.
            DefinitionError: it cannot be kicked; the text says what to write.
        """
        kicks = [DEFINED.kick_of(kind)]
        if conn is not None:
            PostgresStore.over(plain_connection(conn)).kick(kicks)
        else:
            with self._store() as store:
                store.kick(kicks)

    def cancel(self, id: str) -> bool:
        """Take a queued job out, or ask for the end of a running one; False: it is neither."""
        with self._store() as store:
            return store.cancel(id) is not None

    def retry(self, id: str) -> bool:
        """Queue a dead job again from attempt 1; False: it is not dead, or its unique key is taken."""
        with self._store() as store:
            return store.retry(id)

    def retry_all(self, kind: str) -> int:
        """`retry` for every job of a kind that is dead now; how many were queued again.

        It is done in batches. When it ends in the middle, what it has queued stays, and the same call goes on.
        """
        with self._store() as store:
            return store.retry_all(kind)

    def reschedule(self, id: str, *, after: float | None = None, at: datetime | None = None) -> bool:
        """Let a queued job be due so many seconds from now, or at an aware time; False: it is not queued.

        Raises:
            ValueError: neither is given, or both, or one is wrong.
        """
        check_due(after, at)
        if after is None and at is None:
            raise ValueError("give after or at: when the job is to be due")
        with self._store() as store:
            return store.reschedule(id, at, 0.0 if after is None else float(after))

    def delete(self, id: str) -> bool:
        """Take out a job that is queued or has ended, with all that is known of it; False: it is running, or unknown.

        Nobody remembers its id: pushed again, it is a new job.
        """
        with self._store() as store:
            return store.delete(id)

    def status(self, id: str, *, payload: bool = True) -> JobView | None:
        """One job whole, or without its payload, which may be large.

        None: unknown, not committed yet, or no longer kept.
        """
        with self._store() as store:
            return store.status(id, payload=payload)

    def schedule(
        self,
        name: str,
        job: Job,
        when: Schedule,
        *,
        overlap: Overlap,
        missed: Missed,
        priority: int | None = None,
        queue: str | None = None,
    ) -> bool:
        """Run a job by the clock from now on; True when there was no schedule of that name.

        It stays until `unschedule`, whatever becomes of the code. Called again it changes what is given, and keeps
        the next due time and whether it is paused.

        Args:
            name: at most 55 bytes.
            when: `cron("0 3 * * *", zone="Europe/Berlin")` or `every("10m")`.
            overlap: "skip": a tick while the last run is on does not happen; "queue": it waits in line.
            missed: "drop" or "catch_up": ticks whose time has passed do not run, or run once for all.

        Raises:
            PayloadInvalid, ValueError: as for `push`.
        """
        new = new_schedule(name, job, when, overlap=overlap, missed=missed, priority=priority, queue=queue)
        with self._store() as store:
            return store.schedule(msgspec.structs.replace(new, due=when.next(store.now())))

    def unschedule(self, name: str) -> bool:
        """Take a schedule out; what it has pushed stays. False: no such schedule."""
        with self._store() as store:
            return store.unschedule(name)

    def pause(self, name: str) -> bool:
        """Let a schedule push nothing until `resume`; False: no such schedule."""
        with self._store() as store:
            return store.pause(name)

    def resume(self, name: str) -> bool:
        """End a pause: what was missed in it is dropped or caught up, as the schedule says."""
        with self._store() as store:
            return store.pause(name, False)

    def schedules(self) -> list[ScheduleView]:
        """All schedules, by name: those that stand in code and those that were made by `schedule`."""
        with self._store() as store:
            return store.schedules()

    def run_now(self, name: str) -> str | None:
        """Push the job of a schedule now, its ticks aside; None: no such schedule, or its last run is on."""
        with self._store() as store:
            return push_now(store, name)

    def counts(self) -> Counts:
        """How many jobs are in each state, and for each queue and kind how many are queued, running and kicked.

        It reads all live rows, so ask every few seconds at most. What has ended counts as long as it is kept.
        """
        with self._store() as store:
            return store.counts()

    def stats(self) -> Stats:
        """How many jobs are in each state, wait in each queue and since when; which of them no node serves."""
        with self._store() as store:
            return stats_of(store)

    def ready(self) -> bool:
        """Whether a job that is pushed now would run: there is the database, and a node with a living worker."""
        try:
            with self._store() as store:
                now = store.now()
                return any(is_ready(node) and not is_lost(node, now) for node in store.nodes())
        except (StoreUnavailable, SchemaOutdated):
            return False

    def wait(self, id: str, timeout: float) -> JobView:
        """The job once it is done, dead or cancelled, without its payload, which `status` reads.

        Nobody is told when a job ends, so this looks again after 20 ms, then at growing intervals of at most
        0.5 s; no connection is held in between.

        Args:
            timeout: seconds.

        Raises:
            LookupError: the id is unknown.
            TimeoutError: it has not ended yet.
        """
        deadline_s = time.monotonic() + timeout
        pause_s = LOOK_AFTER_S
        while True:
            left_s = deadline_s - time.monotonic()
            job = ended(id, self.status(id, payload=False), timeout, left_s)
            if job is not None:
                return job
            self._closed.wait(min(pause_s, left_s))  # `close` ends the pause
            pause_s = min(pause_s * LOOK_FACTOR, LOOK_AFTER_S_MAX)

    def result(self, id: str, timeout: float) -> Any:
        """What the handler returned, once the job is done.

        It is of the type that the kind's `run` says it returns, when this program defines the kind; else, and where
        it says none or Any, it is plain JSON data.

        Raises:
            JobFailed: it is dead or cancelled.
            PayloadInvalid: it is not of that type.
            LookupError, TimeoutError: as of `wait`.
        """
        return result_of(self.wait(id, timeout))

    def close(self) -> None:
        """Close the connections, and leave the embedded database. Calls under way are waited for.

        In another process than the one that used it this does nothing: the connections are not its own.
        """
        if self._pid not in (None, os.getpid()):
            return
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        for _ in range(CONNECTIONS):
            self._slots.acquire()
        for store in self._free:
            store.close()
        self._undo.close()
        self._slots.release(CONNECTIONS)  # whoever waited for one is told that it is closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _window(self, new: NewJob, within: float | None) -> Iterator[bool]:
        """Whether a push may go on; when it fails, the next one may."""
        self._check_usable()
        if within is None or new.unique is None:
            yield True
            return
        key = (new.kind, new.unique)
        with self._windows_lock:
            entered = self._windows.enter(key, within, time.monotonic())
        if not entered:
            yield False
            return
        try:
            yield True
        except BaseException:
            with self._windows_lock:
                self._windows.leave(key)
            raise

    @contextmanager
    def _store(self) -> Iterator[PostgresStore]:
        """A store that nobody else uses meanwhile."""
        self._check_usable()
        if not self._slots.acquire(timeout=CONNECTION_WITHIN_S):
            raise StoreUnavailable(f"all {CONNECTIONS} connections of the Queue are in use")
        try:
            store = self._take()
            try:
                yield store
            except BaseException:
                store.close()  # who knows what it was in the middle of; it connects again when it is needed
                raise
            finally:
                self._free.append(store)
        finally:
            self._slots.release()

    def _take(self) -> PostgresStore:
        with self._lock:
            self._check_usable()
            if self._free:
                return self._free.pop()
            if self._url is not None:
                return _store_at(self._url, self._config)
            with ExitStack() as undo:
                url = undo.enter_context(database(self._config))
                store = _store_at(url, self._config)
                undo.callback(store.close)
                _see_to_schema(store, self._config)
                self._undo = undo.pop_all()
            self._url = url
            return store

    def _check_usable(self) -> None:
        if self._closed.is_set():
            raise RuntimeError("this Queue is closed")
        if self._pid is None:
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise RuntimeError(
                f"this Queue was used in process {self._pid}, before the fork; make one in process {os.getpid()}"
            )


def new_job(
    definition: Definition,
    job: Job,
    *,
    after: float | None = None,
    at: datetime | None = None,
    priority: int | None = None,
    queue: str | None = None,
    unique: str | None = None,
    id: str | None = None,
) -> NewJob:
    """A job to be pushed, checked whole before any database is touched; the arguments are those of `Queue.push`.

    Raises:
        PayloadInvalid: names the field.
        ValueError: names the argument.
    """
    check_due(after, at)
    if priority is not None and (type(priority) is not int or not 0 <= priority < PRIORITIES):
        raise ValueError(f"priority must be a whole number from 0 to {PRIORITIES - 1}, got {priority!r}")
    if queue is not None:
        _check_queue(queue)
    if unique is not None:
        _check_text("unique", unique, UNIQUE_BYTES)
    known = new_id() if id is None else canonical(id)
    if known is None:
        raise ValueError(f"id must be a UUID, got {id!r}")
    return NewJob(
        id=known,
        kind=definition.kind,
        payload=definition.encode(job),
        queue=definition.queue if queue is None else queue,
        priority=definition.priority if priority is None else priority,
        due=at,
        delay_s=0.0 if after is None else float(after),
        unique=unique,
    )


def new_jobs(jobs: Iterable[Job]) -> list[NewJob]:
    """Jobs to be pushed as their kinds say, checked as `new_job` checks one.

    Raises:
        PayloadInvalid: names the field.
    """
    given = list(jobs)
    new = []
    for id, job in zip(new_ids(len(given)), given, strict=True):
        definition = DEFINED.definition_of(job)
        payload = definition.encode(job)
        new.append(
            NewJob(
                id=id,
                kind=definition.kind,
                payload=payload,
                queue=definition.queue,
                priority=definition.priority,
            )
        )
    return new


def new_schedule(
    name: str,
    job: Job,
    when: Schedule,
    *,
    overlap: Overlap,
    missed: Missed,
    priority: int | None = None,
    queue: str | None = None,
) -> NewSchedule:
    """A schedule whose due time is still to be set, by the store's clock; arguments and errors as of `Queue.schedule`."""
    new = new_job(DEFINED.definition_of(job), job, priority=priority, queue=queue)
    return NewSchedule(
        name=name,
        kind=new.kind,
        spec=msgspec.json.encode(when).decode(),
        payload=new.payload,
        queue=new.queue,
        priority=new.priority,
        overlap=overlap,
        missed=missed,
    )


def check_due(after: float | None, at: datetime | None) -> None:
    """Refuse what cannot be a due time.

    Raises:
        ValueError: names the argument.
    """
    if after is not None and at is not None:
        raise ValueError("give after or at, not both")
    if after is not None and not _is_delay(after):
        raise ValueError(f"after must be a number of seconds from 0 to ten years, got {after!r}")
    if at is not None:
        _check_moment(at)


def check_taken(unique: str | None, *, or_existing: bool, replace: bool, within: float | None) -> None:
    """Refuse what means nothing without a unique key, or contradicts itself.

    Raises:
        ValueError: names the argument.
    """
    for name, given in (("or_existing", or_existing), ("replace", replace), ("within", within is not None)):
        if given and unique is None:
            raise ValueError(f"{name} needs unique: the key that it is about")
    if or_existing and replace:
        raise ValueError("give or_existing or replace, not both")
    if within is not None and (not _is_delay(within) or within == 0):
        raise ValueError(f"within must be a number of seconds above 0, got {within!r}")


def push_one(store: Store, new: NewJob, *, or_existing: bool, replace: bool, known: bool) -> str | None:
    """Push a job; its id, or what is asked for when its unique key is taken.

    Args:
        known: its id may have been pushed before, since it was not made just now.
    """
    if or_existing or replace:
        return store.push_unique(new, replace=replace)
    if known or new.unique is not None:
        return store.push([new])[0]
    store.push_new([new])
    return new.id


def ended(id: str, job: JobView | None, timeout: float, left_s: float) -> JobView | None:
    """The job that is waited for, when it has ended; None: look again.

    Raises:
        LookupError: the id is unknown.
        TimeoutError: it has not ended, and nothing is left of the timeout.
    """
    if job is None:
        raise LookupError(f"no job {id}")
    if job.state in ENDED:
        return job
    if left_s <= 0:
        raise TimeoutError(f"job {id} is still {job.state} after {timeout:g} s")
    return None


def result_of(job: JobView) -> Any:
    """The result of a job that has ended, as `Queue.result` says."""
    if job.state is not State.DONE:
        raise JobFailed(job)
    if job.result is None:
        return None
    if job.kind in DEFINED.kinds:
        return DEFINED.get(job.kind).decode_result(job.result)
    return msgspec.json.decode(job.result)


def push_now(store: Store, name: str) -> str | None:
    """As `Queue.run_now`."""
    found = next((one for one in store.schedules() if one.name == name), None)
    return None if found is None else store.push([job_of(found, store.now(), new_id())])[0]


def stats_of(store: Store) -> Stats:
    """How things stand in a store."""
    counts, nodes, now = store.counts(), store.nodes(), store.now()
    living = [node for node in nodes if not is_lost(node, now)]
    dues = [one.oldest_due for one in counts.queues if one.oldest_due is not None]
    return Stats(
        now=now,
        states=counts.states,
        queues=counts.queues,
        oldest_s=(now - min(dues)).total_seconds() if dues else None,
        unserved=unserved(counts.queues, nodes, now),
        nodes=len(living),
        ready=any(map(is_ready, living)),
    )


@contextmanager
def database(config: Config) -> Iterator[str]:
    """The URL of the configured database, with the embedded one kept running meanwhile.

    Raises:
        ConfigError: the URL means nothing to PostgreSQL, or its account lacks rights.
        EmbeddedError: there is no URL, and the embedded database cannot be started.
    """
    try:
        if config.database.url:
            parse_url(config.database.url)
            yield config.database.url
        else:
            with closing(Embedded(config.database.data_dir)) as embedded:
                yield embedded.open()
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError("database.url", f"its account lacks rights: {error}") from error


@contextmanager
def connected(config: Config) -> Iterator[PostgresStore]:
    """The store of the configured database, whatever its schema. Errors as of `database`, and `StoreUnavailable`."""
    with database(config) as url, closing(_store_at(url, config)) as store:
        yield store


@contextmanager
def opened(config: Config) -> Iterator[PostgresStore]:
    """The store of the configured database; the embedded one is migrated, another must be current.

    Raises:
        ConfigError, EmbeddedError, StoreUnavailable: as of `connected`.
        SchemaOutdated: the text says what to run.
    """
    with connected(config) as store:
        _see_to_schema(store, config)
        yield store


def _store_at(url: str, config: Config) -> PostgresStore:
    return PostgresStore(url, connect_timeout_s=config.database.connect_timeout, kept=config.kept)


def _see_to_schema(store: PostgresStore, config: Config) -> None:
    if config.database.url:
        store.check()
    else:
        store.install()


def _is_delay(after: object) -> bool:
    is_number = isinstance(after, int | float) and not isinstance(after, bool) and math.isfinite(after)
    return is_number and 0 <= after <= LONGEST_S  # type: ignore[operator]


def _check_moment(at: datetime) -> None:
    if not isinstance(at, datetime):
        raise ValueError(f"at must be a datetime, got {at!r}")  # noqa: TRY004 - one error for all arguments
    if at.utcoffset() is None:
        raise ValueError(f"at must have a time zone, such as datetime.now(UTC) has; got {at.isoformat()}")
    if not EARLIEST <= at < LATEST:
        raise ValueError(f"at must be from {EARLIEST:%Y} to {LATEST:%Y-%m-%d}, got {at.isoformat()}")


def _check_queue(queue: str) -> None:
    _check_text("queue", queue, QUEUE_BYTES)
    if not queue.isprintable() or " " in queue or queue == "*" or queue.startswith("@"):
        raise ValueError(f'queue must have no spaces, not be "*" and not begin with "@", got {queue!r}')


def _check_text(argument: str, text: str, most_bytes: int) -> None:
    """Refuse what PostgreSQL cannot hold as text, and what is too long for its column."""
    try:
        fits = 0 < len(text.encode()) <= most_bytes and "\0" not in text
    except (AttributeError, UnicodeEncodeError):
        fits = False
    if not fits:
        raise ValueError(f"{argument} must be a text of 1 to {most_bytes} bytes, got {text!r}")


@contextmanager
def _of_worker(config: Config) -> Iterator[Queue]:
    with Queue(config=config) as queue:
        yield queue


provide_ours(Queue, _of_worker, of_database=True)
