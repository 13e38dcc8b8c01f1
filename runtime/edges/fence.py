"""Owns the writes of a handler that its lease fences: an attempt that was replaced cannot commit them.

The fence is `tenure.fence(id, epoch)`, called once anywhere in a transaction. It makes a deferred trigger look at
the lease inside the commit, and lock the job's row from there to the end of the commit. The two other ways were
worse. A lock taken at the beginning is as safe, but held for as long as the handler likes: a cancel, the record of a
death, and with any but the weakest lock the renewal of all leases of the node, would wait for it. A statement of the
client's before its commit leaves a moment between the two, in which a machine that vanishes keeps its lock until
the server notices, and a caller can forget it. The trigger serves any driver and ORM alike, as the commit is theirs.

A transaction that is fenced carries the job and epoch in `application_name`, whosever connection it is, so that
the one who takes the lease back can end the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.abc import Params
from psycopg.pq import TransactionStatus

from runtime.edges import statements, worktables
from runtime.edges.callers import plain_connection
from runtime.edges.postgres import PostgresStore, connect_by
from runtime.edges.statements import session_name
from runtime.edges.worktables import Row, Where
from runtime.errors import LeaseLost
from runtime.model.jobs import Ending, Kick, Lease, Settlement, State
from runtime.model.worktables import WorkTable

Query = LiteralString | bytes | sql.SQL | sql.Composed

LEASE_LOST = "TEN01"  # SQLSTATE
IN_SAVEPOINT = "TEN02"
CANCEL_S = 1.0  # for the request to end a statement


@contextmanager
def attempt_connection(url: str, lease: Lease) -> Iterator[psycopg.Connection[Any]]:
    """A connection for one attempt of a handler: committed when `run` returns, rolled back when it raises."""
    conn = psycopg.connect(**{**connect_by(url), "application_name": session_name(lease)})
    try:
        yield conn
        if not conn.closed:
            conn.commit()
    finally:
        hang_up(conn)


def hang_up(conn: psycopg.Connection[Any]) -> None:
    """Close a connection, and end the statement that an exception has broken off: it would hold its locks else."""
    with suppress(psycopg.Error):
        if not conn.closed and conn.info.transaction_status is TransactionStatus.ACTIVE:
            conn.cancel_safe(timeout=CANCEL_S)
    with suppress(psycopg.Error):
        conn.close()


class Sessions:
    """The one connection that the handlers of a worker write over: opened when one first does, then reused.

    Args:
        url: of the database; empty: there is none, and a handler that asks is told so.
        clock: as of `PostgresStore`; for tests.
    """

    def __init__(self, url: str, *, clock: Callable[[], datetime] | None = None) -> None:
        self._url = url
        self.clock = clock
        self._conn: psycopg.Connection[Any] | None = None
        self._used = False  # since the last `reset`

    def anew(self) -> Sessions:
        """The same for a forked process, which must not speak on this one's connection."""
        return Sessions(self._url, clock=self.clock)

    def open(self) -> psycopg.Connection[Any]:
        """A connection that works and is in no transaction.

        Raises:
            RuntimeError: there is no database.
        """
        if not self._url:
            raise RuntimeError(
                "there is no database: give LocalQueue a PostgresStore, or tenure job run its --database"
            )
        self._used = True
        if self._conn is not None and self._is_fit(self._conn):
            return self._conn
        self.close()
        found = connect_by(self._url, application_name="tenure handler")
        conn = psycopg.connect(**found, autocommit=True, prepare_threshold=None)
        conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        self._conn = conn
        return conn

    def _is_fit(self, conn: psycopg.Connection[Any]) -> bool:
        """One round trip, once a transaction: the server may have restarted since the last."""
        if conn.closed or conn.info.transaction_status is not TransactionStatus.IDLE:
            return False
        try:
            conn.execute("")
        except psycopg.OperationalError:
            return False
        return True

    def reset(self) -> None:
        """After an attempt: let its successor find no setting, temporary table or lock of its predecessor."""
        used, self._used = self._used, False
        if self._conn is None or not used:
            return
        try:
            if self._conn.info.transaction_status is TransactionStatus.IDLE:
                self._conn.execute("discard all")
                return
        except psycopg.Error:
            pass
        self.close()

    def close(self) -> None:
        if self._conn is not None:
            hang_up(self._conn)
            self._conn = None


class Transaction:
    """A transaction under way, which commits when its block ends and the lease is current.

    Attributes:
        conn: the psycopg connection, for what `execute` does not do; it refuses to commit before the block ends.
    """

    __slots__ = ("_encode", "conn", "on_commit", "result")

    def __init__(self, conn: psycopg.Connection[Any], encode: Callable[[object], str]) -> None:
        self.conn = conn
        self._encode = encode
        self.on_commit: list[Callable[[], None]] = []  # called once it has committed
        self.result: str | None = None  # JSON text; None: the commit does not end the job

    def execute(self, query: Query, params: Params | None = None) -> psycopg.Cursor[Any]:
        """Run a statement, with values only by parameters; the cursor has its rows."""
        return self.conn.execute(query, params)

    def complete(self, result: object = None) -> None:
        """End the job as done with this commit: what was written and the end of the job happen both, or neither.

        `result` is what `run` would return, and is read as the type that `run` says it returns; what it does return
        after this is not used.

        Raises:
            PayloadInvalid: JSON cannot hold the result.
            RuntimeError: it was called before.
        """
        if self.result is not None:
            raise RuntimeError("the job is completed already in this transaction; call complete once")
        self.result = self._encode(result)


class Writes:
    """What one attempt may write under its lease.

    Args:
        encode: makes JSON text of a result, or says what is wrong with it.
        period_s: the seconds between two ticks of the job's schedule; None: it has none.
        note_end: called with True before a commit that ends the job, with False when it has failed.
    """

    def __init__(
        self,
        lease: Lease,
        sessions: Sessions,
        encode: Callable[[object], str],
        period_s: Callable[[], float | None],
        note_end: Callable[[bool], None],
    ) -> None:
        self._lease = lease
        self._sessions = sessions
        self._encode = encode
        self._period_s = period_s
        self._note_end = note_end
        self._tx: Transaction | None = None  # under way
        self._over = False
        self.completed = False  # the job is done, by a commit of this attempt
        self.kicks: Callable[[], tuple[Kick, ...]] = tuple  # what is to be kicked when the job is done

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """As `Context.transaction` says."""
        self._check_free("a transaction of this attempt is open; write with that one")
        conn = self._sessions.open()
        tx = self._tx = Transaction(conn, self._encode)
        commits = False
        try:
            with self._typed(), ExitStack() as one_trip, conn.transaction():
                conn.execute(statements.FENCE.encode(), self._values)
                name = _name_of(conn)
                yield tx
                _check_whole(conn, name)
                commits = True
                if tx.result is not None:
                    self._note_end(True)
                    one_trip.enter_context(conn.pipeline())
                    self._settle(conn, tx.result)
        except BaseException:
            if tx.result is not None:
                self._note_end(False)
            raise
        finally:
            self._tx = None
        if commits:  # it did not if the block raised psycopg.Rollback, which ends here
            self.completed = tx.result is not None
            for call in tx.on_commit:
                call()

    def claim(self, table: WorkTable, limit: int, where: Where) -> list[Row]:
        """As `Context.claim` says."""
        self._check_free(
            "claim before ctx.transaction(), not in it: a claim must outlast what fails after it"
        )
        with self.transaction() as tx:
            return worktables.claim(
                tx.conn,
                table,
                limit=limit,
                where=where,
                delays_s=table.delays_s(self._period_s()),
                clock=self._sessions.clock,
                is_open=lambda tx: tx is self._tx,
            )

    def end(self) -> None:
        """The attempt is over: whoever still holds its context can write nothing."""
        self._over = True

    def _check_free(self, if_open: str) -> None:
        if self._over:
            raise RuntimeError("the attempt is over; its context is of no use outside of run")
        if self.completed:
            raise RuntimeError("the job is completed; write in the transaction that completes it, or before")
        if self._tx is not None:
            raise RuntimeError(if_open)

    def fence(self, conn: object) -> None:
        """As `Context.fence` says."""
        if self._over:
            raise RuntimeError("the attempt is over; its context is of no use outside of run")
        plain = plain_connection(conn)
        if plain.autocommit and plain.info.transaction_status is TransactionStatus.IDLE:
            raise ValueError("conn is in no transaction, so there is nothing to fence; begin one first")
        with self._typed():
            plain.execute(statements.FENCE.encode(), self._values, prepare=False)

    def _settle(self, conn: psycopg.Connection[Any], result: str) -> None:
        """End the job. The lease is held first: so what follows finds it, or is never carried out."""
        conn.execute(statements.HOLD.encode())
        done = Settlement(
            lease=self._lease, ending=Ending.DONE, state=State.DONE, result=result, kicks=self.kicks()
        )
        PostgresStore.over(conn, self._sessions.clock).send(done)

    @property
    def _values(self) -> dict[str, Any]:
        return {"id": self._lease.id, "epoch": self._lease.epoch}

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Say `LeaseLost` where the database says that the lease is lost, and what the caller did wrong."""
        try:
            yield
        except psycopg.Error as error:
            if error.sqlstate == IN_SAVEPOINT:
                raise ValueError(
                    "conn is in a savepoint, which may be rolled back; fence before it"
                ) from error
            if error.sqlstate != LEASE_LOST:
                raise
            raise LeaseLost(self._lease.id, self._lease.epoch) from error


def _name_of(conn: psycopg.Connection[Any]) -> str | None:
    """The name of the session as the server told it last, which it does whenever it changes."""
    return conn.info.parameter_status("application_name")


def _check_whole(conn: psycopg.Connection[Any], name: str | None) -> None:
    """Refuse to go on to a commit which the server would make a rollback of, or of another transaction.

    Another one, begun where the block has ended ours, has no fence, and not the name that came with the fence.
    """
    if conn.info.transaction_status is not TransactionStatus.INTRANS or _name_of(conn) != name:
        raise RuntimeError(
            "the transaction has failed or was ended inside of its block, so it cannot commit; let the exception of "
            "a statement end the block, or run it in a savepoint: with tx.conn.transaction()"
        )
