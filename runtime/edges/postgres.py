"""The job store in PostgreSQL: one connection, one transaction a call, the statements of `statements.py`.

The connection is opened at the first call, so a forked child never inherits it, and opened anew after it was
lost. What the database says about being away becomes `StoreUnavailable`; every other error is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from runtime.edges import migrate, statements, values
from runtime.edges.ids import canonical
from runtime.edges.lanes import Lane, Lanes, Position
from runtime.edges.pushing import (
    Push,
    Row,
    can_copy,
    kick_all,
    kick_columns,
    push_all,
    push_new,
    push_unique,
)
from runtime.edges.statements import array, session_name
from runtime.errors import ConfigError, StoreUnavailable
from runtime.model.exits import Progress
from runtime.model.jobs import (
    ALL_KEPT,
    CHARGES,
    HISTORY_LIMIT,
    Attempt,
    Claim,
    Code,
    Counts,
    Ending,
    Exchanged,
    Holder,
    JobView,
    Kept,
    Kick,
    Lease,
    NewJob,
    NewSchedule,
    NodeView,
    Outlook,
    QueueCount,
    Renewed,
    ScheduleView,
    Settlement,
    State,
    Texts,
    Want,
)

T = TypeVar("T")

KEEPALIVE = {  # a peer that vanished without a word is noticed within about 20 s
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds
}
RETRY_ROWS = 500  # dead jobs that one transaction looks at
LANES_LIMIT = 1000  # lanes looked at by one rewinding claim; the next one goes on behind them
WORDS_LIMIT = 1000  # different notifications kept until they are asked for
TRIES = 5  # of a transaction that lost a deadlock
LARGE_ROWS = 100  # jobs with large payloads that one prune deletes
REST_ROWS = 1000  # rows that one prune deletes from the default partition

BROKEN_RULES = (psycopg.DataError, psycopg.IntegrityError, UnicodeEncodeError)

_AGAIN = ("40001", "40P01")  # serialization failure, deadlock
_READ_ONLY = "25006"  # a primary that has become a standby
_CONTENT = ("22", "54")  # classes of errors about what a value contains


def connect_by(url: str, **ours: str | int) -> dict[str, Any]:
    """What to connect with: libpq's parameters by name, of which the URL may change all that are ours."""
    return {**KEEPALIVE, **ours, **parse_url(url)}


def parse_url(url: str) -> dict[str, Any]:
    """libpq's parameters by name.

    Raises:
        ConfigError: it is none of PostgreSQL; libpq would say so with a piece of the password in its text.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigError("database.url", "is no URL or connection string of PostgreSQL") from None
    if "@" in str(given.get("host", "")).lstrip("@"):
        raise ConfigError("database.url", "has a second @; in a user's name or password write it as %40")
    return given


class PostgresStore:
    """A job store on one connection.

    Args:
        url: of the database, or a libpq connection string.
        clock: the moment that stands in place of the database's `now()`; for tests.
        prepare: False behind a transaction pooler: nothing is prepared or kept in the session, which
            makes a claim a little slower.
        application_name: what `pg_stat_activity` shows.
        connect_timeout_s: seconds to wait for a connection.
        kept: which words of an attempt are stored.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], datetime] | None = None,
        prepare: bool = True,
        application_name: str = "tenure",
        connect_timeout_s: float = 5.0,
        kept: Kept = ALL_KEPT,
    ) -> None:
        self._url = url
        self._kept = kept
        self._clock = clock
        self._prepare = prepare
        self._application_name = application_name
        self._connect_timeout_s = connect_timeout_s
        self._conn: psycopg.Connection[Any] | None = None
        self._borrowed = False
        self._listening = False
        self._words: dict[str, None] = {}  # notifications not yet asked for, in order
        self._lanes = Lanes()
        self._lanes_after: Lane = (-1, "")

    @classmethod
    def over(cls, conn: psycopg.Connection[Any], clock: Callable[[], datetime] | None = None) -> Self:
        """A store on the caller's connection, within the caller's transaction. For `push`, `kick`, `claim`
        and `send` only.

        It neither commits nor closes. What breaks a rule raises `ValueError` and, like any refused
        statement, leaves the caller's transaction to be rolled back.
        """
        store = cls("", clock=clock, prepare=False)
        store._conn = conn
        store._borrowed = True
        return store

    def close(self) -> None:
        """Close the connection; the next call opens a new one. A caller's connection is left alone."""
        if self._conn is not None and not self._borrowed:
            self._conn.close()
            self._conn = None

    @property
    def url(self) -> str:
        """Of the database, password included; empty for a caller's connection."""
        return self._url

    # -- for an event loop

    def fileno(self) -> int:
        """The descriptor to wait on for notifications; a new one after the connection was lost."""
        with self._available():
            return self._open().fileno()

    def listen(self) -> None:
        """Be notified from now on, also after the connection was lost and opened anew."""
        self._listening = True
        self._transact(lambda conn: conn.execute(statements.LISTEN))

    def caught_up(self) -> bool:
        """Whether the jobs of all pushes that stayed silent up to now can be seen.

        Pushes that would wait for each other's notifications are silent beside one that notifies. So ask a moment
        after each notification, until this is True, and then look for what is due.
        """
        [[caught_up]] = self._rows(statements.CAUGHT_UP)
        return bool(caught_up)

    def notifications(self) -> list[str]:
        """What was notified since the last call, each word once; never waits.

        Ask before waiting on `fileno`, too: another call may have taken the words off the socket.

        Raises:
            StoreUnavailable: the connection is gone; any call opens a new one.
        """
        with self._available():
            if self._conn is None:
                raise psycopg.OperationalError("the connection was lost")
            self._conn.pgconn.consume_input()
            while notify := self._conn.pgconn.notifies():
                self._heard(notify.extra.decode())
        words, self._words = list(self._words), {}
        return words

    def _heard(self, word: str) -> None:
        if len(self._words) < WORDS_LIMIT:
            self._words[word] = None

    # -- the connection

    def _open(self) -> psycopg.Connection[Any]:
        if self._conn is None:
            found = connect_by(
                self._url,
                application_name=self._application_name,
                connect_timeout=max(round(self._connect_timeout_s), 1),
            )
            threshold = 5 if self._prepare else None  # None: nothing is ever prepared
            with ExitStack() as unless_set_up:
                conn = psycopg.connect(**found, autocommit=True, prepare_threshold=threshold)
                unless_set_up.callback(conn.close)
                conn.add_notify_handler(lambda notify: self._heard(notify.payload))
                conn.execute(statements.SESSION)
                if self._prepare:
                    conn.execute(statements.PLANNER, {"local": False})
                if self._listening:
                    conn.execute(statements.LISTEN)
                unless_set_up.pop_all()
            self._conn = conn
        return self._conn

    @contextmanager
    def _available(self) -> Iterator[None]:
        """Say that the database is away where psycopg does. Let go of a connection of ours then, and of one that an
        interrupt, Ctrl-C or the end of an attempt, has left in the middle of a statement.
        """
        try:
            yield
        except psycopg.Error as error:
            if not _is_away(error):
                raise
            self._let_go()
            raise StoreUnavailable(str(error).strip() or type(error).__name__) from error
        finally:
            if self._conn and self._conn.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self._let_go()

    def _let_go(self) -> None:
        if not self._borrowed and self._conn is not None:
            conn, self._conn = self._conn, None
            with suppress(psycopg.Error):
                conn.close()

    def _transact(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do work that is one statement or one transaction, again when it lost a deadlock."""
        with self._available():
            for _ in range(1, TRIES):
                try:
                    return work(self._open())
                except psycopg.OperationalError as error:
                    if error.sqlstate not in _AGAIN or self._borrowed:
                        raise
            return work(self._open())

    def _cursor(
        self, conn: psycopg.Connection[Any], sql: str, values: Mapping[str, Any]
    ) -> psycopg.Cursor[TupleRow]:
        now = self._clock() if self._clock is not None else None
        cursor = conn.cursor(row_factory=tuple_row)
        return cursor.execute(sql.encode(), {"now": now, **values}, prepare=self._prepare)

    def _rows(self, sql: str, **values: Any) -> list[TupleRow]:
        return self._transact(lambda conn: self._cursor(conn, sql, values).fetchall())

    def _run(self, sql: str, **values: Any) -> int:
        """Carry a statement out; how many rows it changed."""
        return self._transact(lambda conn: self._cursor(conn, sql, values).rowcount)

    # -- schema

    def install(self) -> None:
        self._transact(migrate.migrate)

    def check(self) -> None:
        self._transact(migrate.check)

    # -- for applications and people

    def push(self, jobs: Sequence[NewJob]) -> list[str | None]:
        if not jobs:
            return []
        several = len(jobs) > 1 or jobs[0].unique is not None
        return self._pushed(lambda conn: self._follow(conn, push_all(jobs), several=several))

    def push_new(self, jobs: Sequence[NewJob]) -> None:
        if jobs:
            self._pushed(
                lambda conn: self._follow(conn, push_new(jobs, copy=can_copy(conn)), several=len(jobs) > 1)
            )

    def push_unique(self, job: NewJob, *, replace: bool = False) -> str | None:
        return self._pushed(lambda conn: self._follow(conn, push_unique(job, replace=replace), several=True))

    def kick(self, kicks: Sequence[Kick]) -> None:
        if kicks:
            self._pushed(lambda conn: self._follow(conn, kick_all(kicks), several=False))

    def _pushed(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        try:
            return self._transact(work)
        except BROKEN_RULES as error:
            raise _rule_broken(error) from error

    def _follow(self, conn: psycopg.Connection[Any], push: Push[T], *, several: bool) -> T:
        """Carry out the statements of a push."""
        with self._whole(conn, several=several):
            try:
                sql, given = next(push)
                while True:
                    sql, given = push.send(self._answer(conn, sql, given))
            except StopIteration as end:
                answer: T = end.value
                return answer

    def _answer(
        self, conn: psycopg.Connection[Any], sql: str, given: Mapping[str, Any] | Iterator[Row]
    ) -> list[TupleRow]:
        if isinstance(given, Mapping):
            alone = not self._borrowed and conn.pgconn.transaction_status == TransactionStatus.IDLE
            return self._cursor(conn, sql, {**given, "alone": alone}).fetchall()
        with conn.cursor(row_factory=tuple_row) as cursor, cursor.copy(sql.encode()) as copy:
            for row in given:
                copy.write_row(row)
        return []

    @contextmanager
    def _whole(self, conn: psycopg.Connection[Any], several: bool) -> Iterator[None]:
        """One transaction around several statements, unless the caller's is one anyway."""
        if several and conn.autocommit:
            with conn.transaction():
                yield
        else:
            yield

    def cancel(self, id: str) -> State | None:
        for state, _ in self._rows(statements.CANCEL, id=canonical(id)):
            return State(state)
        return None

    def reschedule(self, id: str, due: datetime | None = None, delay_s: float = 0.0) -> bool:
        values.check_due(due, f"job {id}")
        try:
            return bool(
                self._rows(statements.RESCHEDULE, id=canonical(id), due=due, delay_s=values.delay(delay_s))
            )
        except BROKEN_RULES as error:
            raise _rule_broken(error) from error

    def delete(self, id: str) -> bool:
        return bool(self._rows(statements.DELETE, id=canonical(id)))

    def retry(self, id: str) -> bool:
        return bool(self._rows(statements.RETRY, id=canonical(id)))

    def retry_all(self, kind: str) -> int:
        before, after, queued, looked_at = self.now(), None, 0, RETRY_ROWS
        while looked_at == RETRY_ROWS:
            [[after, looked_at, back, _]] = self._rows(
                statements.RETRY_ALL, kind=kind, before=before, after=after, limit=RETRY_ROWS
            )
            queued += back
        return queued

    def status(self, id: str, *, payload: bool = True) -> JobView | None:
        for row in self._rows(statements.STATUS, id=canonical(id), payload=payload):
            return _whole_view(row)
        return None

    def jobs(
        self,
        state: State | None = None,
        kind: str | None = None,
        queue: str | None = None,
        limit: int = 50,
    ) -> list[JobView]:
        rows = self._rows(statements.JOBS, state=state and state.value, kind=kind, queue=queue, limit=limit)
        return [_view(row) for row in rows]

    def dead(self, kind: str | None = None, limit: int = 50) -> list[JobView]:
        rows = self._rows(statements.DEAD, kind=kind, limit=limit)
        return [
            msgspec.structs.replace(_view(row[:-1]), attempts=[] if row[-1] is None else [_attempt(row[-1])])
            for row in rows
        ]

    def counts(self) -> Counts:
        states = {state.value: 0 for state in State}
        queues = []
        for state, queue, kind, ended, queued, running, kicked, oldest in self._rows(statements.COUNTS):
            if queue is None:
                states[state] = ended
            else:
                queues.append(
                    QueueCount(
                        queue=queue,
                        kind=kind,
                        queued=queued,
                        running=running,
                        oldest_due=oldest,
                        kicked=kicked,
                    )
                )
        states[State.QUEUED] = sum(one.queued for one in queues)
        states[State.RUNNING] = sum(one.running for one in queues)
        return Counts(states=states, queues=sorted(queues, key=lambda one: (one.queue, one.kind)))

    def waiting(self, limit: int = 100) -> list[QueueCount]:
        found = [
            QueueCount(queue=queue, kind=kind, queued=queued, running=0, oldest_due=oldest)
            for queue, kind, queued, oldest in self._rows(statements.WAITING, limit=limit)
        ]
        return sorted(found, key=lambda one: (one.queue, one.kind))

    def nodes(self) -> list[NodeView]:
        return [
            msgspec.structs.replace(msgspec.json.decode(view, type=NodeView), started=started, seen=seen)
            for started, seen, view in self._rows(statements.NODES)
        ]

    def schedule(self, schedule: NewSchedule) -> bool:
        values.check_schedule(schedule)
        try:
            [[new]] = self._rows(statements.SCHEDULE, **msgspec.structs.asdict(schedule))
        except (psycopg.DataError, psycopg.IntegrityError, UnicodeEncodeError) as error:
            raise ValueError(f"schedule {schedule.name!r} breaks a rule of the table: {error}") from error
        return bool(new)

    def unschedule(self, name: str) -> bool:
        return bool(self._rows(statements.UNSCHEDULE, name=name))

    def pause(self, name: str, paused: bool = True) -> bool:
        return bool(self._rows(statements.PAUSE, name=name, paused=paused))

    def schedules(self) -> list[ScheduleView]:
        return list(map(_schedule, self._rows(statements.SCHEDULES)))

    def now(self) -> datetime:
        [[now]] = self._rows(statements.NOW)
        assert isinstance(now, datetime)
        return now

    # -- for workers

    def exchange(self, settlements: Sequence[Settlement], want: Want | None) -> Exchanged:
        told = values.checked(settlements, self._kept)
        if not told and want is None:
            return Exchanged(kept=(), claims=())
        try:
            held, claims = self._transact(lambda conn: self._exchange(conn, told, want))
        except (psycopg.Error, UnicodeEncodeError) as error:
            if not _is_refused(error):
                raise
            held, claims = self._transact(lambda conn: self._exchange_singly(conn, told, want))
        kept = []
        for one in settlements:
            kept.append(one.lease in held)
            held.discard(one.lease)
        return Exchanged(kept=tuple(kept), claims=tuple(claims))

    def claim(self, want: Want) -> list[Claim]:
        return list(self.exchange((), want).claims)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return list(self.exchange(settlements, None).kept)

    def send(self, settlement: Settlement) -> None:
        """Settle in the caller's transaction, which holds the lease; in a pipeline without waiting for the answer."""
        self._settle(self._open(), [settlement])

    def finish(self, claim: Claim, error: str | None = None) -> bool:
        [kept] = self.settle([values.finishing(claim, error)])
        return kept

    def _exchange(
        self, conn: psycopg.Connection[Any], told: Sequence[Settlement], want: Want | None
    ) -> tuple[set[Lease], list[Claim]]:
        """Settle and claim. It is one round trip, with a rewind two, and a pipeline is one transaction by itself.

        A claim alone needs none, also with a rewind: that only looks for lanes, and the claim takes what it then finds.
        """
        if want is None:
            with self._whole(conn, several=any(one.kicks for one in told)):
                return self._held(self._settle(conn, told)), []
        rewind = want.rewind or not self._lanes
        several = bool(told) or not self._prepare
        with conn.pipeline() if several else nullcontext(), self._whole(conn, several=not self._prepare):
            if not self._prepare:
                self._cursor(conn, statements.PLANNER, {"local": True})
            settled = self._settle(conn, told) if told else None
            is_idle = rewind and not self._rewind(conn)
            walk = [] if is_idle else self._lanes.walk(want.queues)
            picked = self._pick(conn, want, walk) if walk else None
        held = set() if settled is None else self._held(settled)
        return held, [] if picked is None else self._taken(picked, walk)

    def _exchange_singly(
        self, conn: psycopg.Connection[Any], told: Sequence[Settlement], want: Want | None
    ) -> tuple[set[Lease], list[Claim]]:
        """The same after a refusal: each on its own, so that one's contents cannot harm its neighbours."""
        held: set[Lease] = set()
        with conn.transaction():
            for one in told:
                try:
                    with conn.transaction():
                        held |= self._held(self._settle(conn, [one]))
                except (psycopg.Error, UnicodeEncodeError) as error:
                    if not _is_refused(error):
                        raise
                    held |= self._held(self._settle(conn, [values.refused(one)]))
            return held, [] if want is None else self._exchange(conn, (), want)[1]

    def _settle(self, conn: psycopg.Connection[Any], told: Sequence[Settlement]) -> psycopg.Cursor[TupleRow]:
        told = sorted(told, key=lambda one: one.lease)  # the order in which every statement locks
        leases = _lease_arrays([one.lease for one in told])
        results = array(one.result for one in told)
        kicks = [(one.lease, kick) for one in told for kick in one.kicks]
        if kicks:
            by = {
                "kickers": array(lease.id for lease, _ in kicks),
                "kicker_epochs": array(lease.epoch for lease, _ in kicks),
            }
            columns = kick_columns([kick for _, kick in kicks])
            self._cursor(conn, statements.KICK_FENCED, {**leases, **by, **columns})
        if all(one.state is State.DONE for one in told):
            return self._cursor(conn, statements.DONE, {**leases, "results": results})
        return self._cursor(
            conn,
            statements.SETTLE,
            {
                **leases,
                "endings": array(one.ending for one in told),
                "budgets": array(CHARGES[one.ending] for one in told),
                "states": array(one.state for one in told),
                "delays": array(values.delay(one.delay_s) for one in told),
                "results": results,
                "codes": array(one.code for one in told),
                "errors": array(one.error.class_ if one.error else None for one in told),
                "certificates": array(_certificate_json(one) for one in told),
                "texts": array(_texts_json(one) for one in told),
                "keep": HISTORY_LIMIT,
            },
        )

    def _held(self, settled: psycopg.Cursor[TupleRow]) -> set[Lease]:
        return {Lease(row[0], row[1]) for row in settled.fetchall()}

    def _rewind(self, conn: psycopg.Connection[Any]) -> bool:
        """Look for lanes, from the most urgent one or, where there are too many, from where it last stopped.

        Returns:
            False if nothing is due in any lane.
        """
        priority, queue = self._lanes_after
        found = self._cursor(
            conn, statements.LANES, {"priority": priority, "queue": queue, "most": LANES_LIMIT}
        ).fetchall()
        self._lanes_after = found[-1][:2] if len(found) == LANES_LIMIT else (-1, "")
        due = [(priority, queue) for priority, queue, is_due in found if is_due]
        self._lanes.rewind(due)
        return bool(due) or self._lanes_after[0] >= 0

    def _pick(
        self, conn: psycopg.Connection[Any], want: Want, walk: Sequence[tuple[Lane, Position | None]]
    ) -> psycopg.Cursor[TupleRow]:
        return self._cursor(
            conn,
            statements.CLAIM,
            {
                "priorities": array(lane[0] for lane, _ in walk),
                "queues": array(lane[1] for lane, _ in walk),
                "dues": array(position and position[0] for _, position in walk),
                "ids": array(position and position[1] for _, position in walk),
                "kinds": array(want.kinds),
                "limit": max(want.limit, 0),
                "lease_s": want.lease_s,
                "node": want.holder.node,
                "worker": want.holder.worker,
                "pid": want.holder.pid,
            },
        )

    def _taken(
        self, picked: psycopg.Cursor[TupleRow], walk: Sequence[tuple[Lane, Position | None]]
    ) -> list[Claim]:
        """The claims in the order of the walk; the next one goes on behind them."""
        order = {lane: number for number, (lane, _) in enumerate(walk)}
        claims = [
            Claim(
                lease=Lease(id, epoch),
                kind=kind,
                queue=queue,
                priority=priority,
                due=due,
                attempt=attempt,
                failures=failures,
                crashes=crashes,
                payload=payload,
            )
            for id, epoch, kind, queue, priority, due, attempt, failures, crashes, payload in picked.fetchall()
        ]
        claims.sort(key=lambda one: (order[one.priority, one.queue], one.due, one.lease.id))
        last = {(one.priority, one.queue): (one.due, one.lease.id) for one in claims}
        for lane, position in last.items():
            self._lanes.pass_by(lane, position)
        return claims

    # -- for schedulers

    def renew(self, leases: Sequence[Lease], lease_s: float) -> Renewed:
        if not leases:
            return Renewed(held=frozenset(), cancelled=frozenset())
        rows = self._rows(statements.RENEW, **_lease_arrays(leases), lease_s=lease_s)
        return Renewed(
            held=frozenset(Lease(id, epoch) for id, epoch, _ in rows),
            cancelled=frozenset(Lease(id, epoch) for id, epoch, cancel in rows if cancel),
        )

    def give_back(self, leases: Sequence[Lease]) -> int:
        return len(self._rows(statements.GIVE_BACK, **_lease_arrays(leases))) if leases else 0

    def abandon(self, holder: Holder) -> int:
        rows = self._rows(statements.HELD_BY, node=holder.node, worker=holder.worker, pid=holder.pid)
        return self.give_back([Lease(*row) for row in rows])

    def reclaim(self, limit: int = 100) -> list[Lease]:
        return self._transact(lambda conn: self._reclaim(conn, limit))

    def _reclaim(self, conn: psycopg.Connection[Any], limit: int) -> list[Lease]:
        with conn.transaction():
            leases = [Lease(*row) for row in self._cursor(conn, statements.EXPIRED, {"limit": limit})]
            if leases:
                self._end_sessions(conn, leases)
                self._settle(conn, [_lost(lease) for lease in leases])
        return leases

    def end_sessions(self, leases: Sequence[Lease]) -> int:
        return self._transact(lambda conn: self._end_sessions(conn, leases)) if leases else 0

    def _end_sessions(self, conn: psycopg.Connection[Any], leases: Sequence[Lease]) -> int:
        names = array(map(session_name, leases))
        [[ended]] = self._cursor(conn, statements.END_SESSIONS, {"names": names}).fetchall()
        return int(ended)

    def overdue(self, limit: int = 100) -> list[ScheduleView]:
        return list(map(_schedule, self._rows(statements.OVERDUE, limit=limit)))

    def advance(self, name: str, due: datetime, following: datetime, job: NewJob | None) -> bool:
        return self._transact(lambda conn: self._advance(conn, name, due, following, job))

    def _advance(
        self, conn: psycopg.Connection[Any], name: str, due: datetime, following: datetime, job: NewJob | None
    ) -> bool:
        given = {"name": name, "due": due, "following": following, "ran": job.due if job else None}
        with conn.transaction():
            moved = self._cursor(conn, statements.ADVANCE, given).fetchone() is not None
            if moved and job is not None:
                self._follow(conn, push_all([job]), several=False)
        return moved

    def start_kicked(self, limit: int = 10_000) -> int:
        [[taken, _]] = self._rows(statements.START_KICKED, limit=limit)
        assert isinstance(taken, int)
        return taken

    def outlook(self, queues: Sequence[str]) -> Outlook:
        [[due_now, next_due_s, next_tick_s, lease_end_s, kicked]] = self._rows(
            statements.OUTLOOK, queues=_some(queues)
        )
        return Outlook(
            due_now=due_now,
            next_due_s=next_due_s,
            next_tick_s=next_tick_s,
            lease_end_s=lease_end_s,
            kicked=kicked,
        )

    def pending(self, kinds: Sequence[str], queues: Sequence[str]) -> bool:
        [[pending]] = self._rows(statements.PENDING, kinds=array(kinds), queues=_some(queues))
        return bool(pending)

    def progress(self, entries: Sequence[tuple[Lease, Progress]]) -> None:
        latest = {lease: values.storable_progress(progress) for lease, progress in entries}
        told = [(lease, _json(progress)) for lease, progress in latest.items() if progress is not None]
        if told:
            leases = _lease_arrays([lease for lease, _ in told])
            self._run(statements.PROGRESS, **leases, progress=array(text for _, text in told))

    def cancels(self, node: str) -> list[Lease]:
        return [Lease(*row) for row in self._rows(statements.CANCELS, node=node)]

    def report(self, node: NodeView) -> None:
        self._run(statements.REPORT, id=node.id, view=_json(node))

    def forget(self, node: str) -> None:
        self._run(statements.FORGET, id=node)

    def prune(self, finished_s: float, nodes_s: float) -> bool:
        """As the contract says, by whole days (UTC), in small steps; what it cannot lock, it leaves for next time."""
        self._run(statements.PRUNE_NODES, nodes_s=nodes_s)
        self._rows(statements.ADD_DAYS)
        if self._run(statements.PRUNE_LARGE, finished_s=finished_s, limit=LARGE_ROWS) == LARGE_ROWS:
            return True  # the others like these go before the days do
        while self._rows(statements.DROP_DAY, finished_s=finished_s) == [(True,)]:
            pass
        return self._run(statements.PRUNE_REST, finished_s=finished_s, limit=REST_ROWS) == REST_ROWS


async def push_over(conn: psycopg.AsyncConnection[Any], push: Push[T]) -> T:
    """Carry out a push in the transaction of the caller's asynchronous connection; errors as of `over`."""
    try:
        async with conn.transaction() if conn.autocommit else nullcontext():
            return await _follow_async(conn, push)
    except BROKEN_RULES as error:
        raise _rule_broken(error) from error
    except psycopg.Error as error:
        if not _is_away(error):
            raise
        raise StoreUnavailable(str(error).strip() or type(error).__name__) from error


async def _follow_async(conn: psycopg.AsyncConnection[Any], push: Push[T]) -> T:
    cursor = conn.cursor(row_factory=tuple_row)
    try:
        sql, given = next(push)
        while True:
            rows: list[TupleRow] = []
            if isinstance(given, Mapping):
                await cursor.execute(sql.encode(), {"now": None, **given}, prepare=False)
                rows = await cursor.fetchall()
            else:
                async with cursor.copy(sql.encode()) as copy:
                    for row in given:
                        await copy.write_row(row)
            sql, given = push.send(rows)
    except StopIteration as end:
        answer: T = end.value
        return answer


def _rule_broken(error: Exception) -> ValueError:
    return ValueError(f"a job or kick breaks a rule of the table: {error}")


def _is_away(error: psycopg.Error) -> bool:
    """Whether an error says that the database is away, and nothing about what was asked of it."""
    if isinstance(error, psycopg.InterfaceError) or error.sqlstate == _READ_ONLY:
        return True
    return isinstance(error, psycopg.OperationalError) and not _is_refused(error)


def _is_refused(error: Exception) -> bool:
    """Whether the database, or the driver on its behalf, refuses what a value contains."""
    if isinstance(error, psycopg.OperationalError):
        return (error.sqlstate or "")[:2] in _CONTENT
    return isinstance(error, psycopg.DataError | UnicodeEncodeError)


def _lost(lease: Lease) -> Settlement:
    return Settlement(lease=lease, ending=Ending.LEASE_LOST, state=State.QUEUED)


def _lease_arrays(leases: Iterable[Lease]) -> dict[str, str]:
    """Two arrays for `unnest`, in the order of ids, each lease once."""
    ordered = sorted(set(leases))
    return {"ids": array(one.id for one in ordered), "epochs": array(one.epoch for one in ordered)}


def _some(queues: Sequence[str]) -> str | None:
    """Null for all queues."""
    return None if "*" in queues else array(queues)


def _json(value: msgspec.Struct | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _certificate_json(settlement: Settlement) -> str | None:
    """Without its words."""
    certificate = settlement.certificate
    return (
        None
        if certificate is None
        else _json(msgspec.structs.replace(certificate, output_tail="", stack=None))
    )


def _texts_json(settlement: Settlement) -> str | None:
    """Null for none."""
    texts = values.texts_of(settlement.error, settlement.certificate)
    return None if texts == Texts() else _json(texts)


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())


def _progress(text: str | None) -> Progress | None:
    return None if text is None else msgspec.json.decode(text, type=Progress)


def _attempt(text: str) -> Attempt:
    return _in_utc(msgspec.json.decode(text, type=Attempt))


def _in_utc(attempt: Attempt) -> Attempt:
    """The same moments in UTC: what was written in another session may have another zone."""
    return msgspec.structs.replace(
        attempt,
        started=attempt.started and attempt.started.astimezone(UTC),
        ended=attempt.ended and attempt.ended.astimezone(UTC),
    )


def _view(row: TupleRow) -> JobView:
    id, kind, queue, priority, state, due, attempt, failures, crashes, interruptions, unique, created = row[
        :12
    ]
    finished, progress, code = row[12:]
    return JobView(
        id=id,
        kind=kind,
        queue=queue,
        priority=priority,
        state=State(state),
        code=values.code_of(State(state), None if code is None else Code(code)),
        due=due,
        progress=_progress(progress),
        attempt=attempt,
        failures=failures,
        crashes=crashes,
        interruptions=interruptions,
        unique=unique,
        created=created,
        finished=finished,
    )


def _schedule(row: TupleRow) -> ScheduleView:
    name, kind, spec, payload, queue, priority, overlap, missed, declared, paused, due, last, live = row
    return ScheduleView(
        name=name,
        kind=kind,
        spec=msgspec.Raw(spec.encode()),
        payload=msgspec.Raw(payload.encode()),
        queue=queue,
        priority=priority,
        overlap=overlap,
        missed=missed,
        declared=declared,
        paused=paused,
        due=due,
        last=last,
        live=live,
    )


def _whole_view(row: TupleRow) -> JobView:
    view = _view(row[:15])
    epoch, started, node, worker, pid, payload, result, history, texts = row[15:]
    attempts = []
    if history is not None:
        words = {} if texts is None else msgspec.json.decode(texts, type=dict[int, Texts])
        attempts = [
            values.with_texts(_in_utc(one), words.get(one.epoch, Texts()))
            for one in msgspec.json.decode(history, type=list[Attempt])
        ]
    if view.state in (State.RUNNING, State.DONE):  # the attempt that is told by the columns of the row
        attempts.append(
            Attempt(
                attempt=view.attempt,
                epoch=epoch,
                node=node,
                worker=worker,
                pid=pid,
                started=started,
                ended=view.finished,
                ending=Ending.DONE if view.state is State.DONE else None,
            )
        )
    return msgspec.structs.replace(view, payload=_raw(payload), result=_raw(result), attempts=attempts)
