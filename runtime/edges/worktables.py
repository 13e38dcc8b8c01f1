"""Owns the statements on work tables: claiming rows, writing to them by version, and what a table must have.

Every name of the application's is put into a statement by `psycopg.sql`, every value by a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from runtime.edges import statements
from runtime.errors import RowChanged
from runtime.model.worktables import CLAIM_MAX, WorkTable

if TYPE_CHECKING:
    from runtime.edges.fence import Transaction

Where = Mapping[str, object] | sql.Composable | None

_COUNTS = ("smallint", "integer", "bigint")
_VERSIONS = ("integer", "bigint")  # a version rises for as long as the row lives
_NOW = ("now()", "CURRENT_TIMESTAMP", "statement_timestamp()", "clock_timestamp()", "transaction_timestamp()")


# -- rows


class Row:
    """A row of a work table that this attempt has claimed. `row["address"]` is a column as the claim found it.

    Each write needs the transaction of a `with ctx.transaction() as tx`, and expects the row at the version where
    this attempt left it.

    Attributes:
        key: the value of its primary key.
        version: of the row now, as far as this attempt knows; what it wrote within a savepoint does not show here.
        attempts: how often it has been claimed, this time included.
        is_last: no claim follows this one, unless the row is requeued.
        ref: `table/key`: names the row in a log, or as an idempotency key for others.
    """

    def __init__(
        self,
        table: WorkTable,
        values: dict[str, Any],
        clock: Callable[[], datetime] | None,
        is_open: Callable[[object], bool],
    ) -> None:
        """`clock` as of `PostgresStore`; `is_open` says whether something is the transaction under way."""
        self._table = table
        self._clock = clock
        self._is_open = is_open
        self._written: tuple[object, int] | None = None  # a transaction, and the version the row has in it
        self._ours: list[str] = []  # subtransactions that have written it, if they were not rolled back
        self.values: Mapping[str, Any] = values
        self.key: Any = values[table.key]
        self.version: int = values[table.version]
        self.attempts: int = values[table.attempts]
        self.is_last = self.attempts >= table.max_attempts
        self.ref = f"{table.name}/{self.key}"

    def __getitem__(self, column: str) -> Any:
        return self.values[column]

    def __repr__(self) -> str:
        return f"<Row {self.ref} version {self.version}>"

    def update(self, tx: Transaction, /, **values: object) -> None:
        """Write columns and leave the row as it is otherwise: it is due again unless it is done before.

        Raises:
            RowChanged: it is not at the expected version, or gone.
            ValueError: there is no such transaction under way, or a column is not for this method.
        """
        self._write(tx, values, {})

    def done(self, tx: Transaction, /, **values: object) -> None:
        """Write columns and let the row be due no more; errors as of `update`."""
        self._write(tx, values, {self._table.due: sql.SQL("null")})

    def requeue(self, tx: Transaction, /, at: datetime | None = None, **values: object) -> None:
        """Write columns and let the row be due at `at`, now by default, with all its attempts; errors as of `update`."""
        self._write(tx, values, {self._table.due: self._due(at), self._table.attempts: sql.SQL("0")})

    def release(self, tx: Transaction, /, at: datetime | None = None, **values: object) -> None:
        """Write columns and give the claim back, for what is no failure of this row, such as a server that is down.

        The claim is not counted, and the row is due at `at`, now by default; errors as of `update`.
        """
        before = sql.Literal(self.attempts - 1)
        self._write(tx, values, {self._table.due: self._due(at), self._table.attempts: before})

    def _due(self, at: datetime | None) -> sql.Composable:
        if at is not None and at.tzinfo is None:
            raise ValueError(f"at must have a time zone, got {at!r}")
        if at is None and self._clock is not None:
            at = self._clock()
        return sql.SQL("now()") if at is None else sql.Literal(at)

    def remove(self, tx: Transaction, /) -> None:
        """Delete the row; errors as of `update`."""
        self._carry_out(tx, statements.REMOVE_ROW, {})

    def _write(
        self, tx: Transaction, values: Mapping[str, object], ours: Mapping[str, sql.Composable]
    ) -> None:
        table = self._table
        for column in (table.key, table.due, table.attempts, table.version):
            if column in values:
                raise ValueError(
                    f"{column!r} of {table.name} is written by done, requeue, release and the claim itself"
                )
        named = {f"value{number}": value for number, value in enumerate(values.values())}
        assigned = dict(zip(values, map(sql.Placeholder, named), strict=True)) | dict(ours)
        assignments = sql.SQL("").join(
            sql.SQL(", {} = {}").format(_identifier(column), value) for column, value in assigned.items()
        )
        version, within = self._carry_out(tx, statements.WRITE_ROW, named, assignments=assignments)
        if within is not None:
            self._ours.append(within)  # nobody tells us if its savepoint is rolled back
            return
        self._written = (tx, version)
        tx.on_commit.append(lambda: self._commit(version))

    def _carry_out(
        self, tx: Transaction, statement: str, values: Mapping[str, object], **parts: sql.Composable
    ) -> tuple[Any, ...]:
        if not self._is_open(tx):
            raise ValueError("give the tx of the ctx.transaction() that is under way")
        expected = self.version
        if self._written is not None and self._written[0] is tx:
            expected = self._written[1]
        ours = {"key": self.key, "version": expected, "ours": self._ours}
        found: tuple[Any, ...] | None = tx.execute(
            _named(statement, self._table, **parts), {**values, **ours}
        ).fetchone()
        if found is None:
            raise RowChanged(self.ref, expected)
        return found

    def _commit(self, version: int) -> None:
        self.version = version


def claim(
    conn: psycopg.Connection[Any],
    table: WorkTable,
    *,
    limit: int,
    where: Where,
    delays_s: Sequence[float],
    clock: Callable[[], datetime] | None,
    is_open: Callable[[object], bool],
) -> list[Row]:
    """As `Context.claim` says, in the transaction of `conn`."""
    if type(limit) is not int or not 1 <= limit <= CLAIM_MAX:
        raise ValueError(f"limit must be a whole number from 1 to {CLAIM_MAX}, got {limit!r}")
    condition, values = _condition(conn, where)
    now = None if clock is None else clock()
    ours = {"now": now, "max_attempts": table.max_attempts, "limit": limit, "delays": list(delays_s)}
    with conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute(_named(statements.CLAIM_ROWS, table, where=condition), {**ours, **values})
        return [Row(table, values, clock, is_open) for values in cursor]


def _condition(conn: psycopg.Connection[Any], where: Where) -> tuple[sql.Composable, dict[str, object]]:
    """A condition on the rows of a table, and the values of its parameters."""
    if where is None:
        return sql.SQL("true"), {}
    if isinstance(where, sql.Composable):
        return sql.SQL(f"({where.as_string(conn).replace('%', '%%')})"), {}
    if not isinstance(where, Mapping):
        raise TypeError(
            'where takes columns with their values, {"kind": "letter"}, or a psycopg.sql.SQL("…").format(…), '
            f"got {type(where).__name__}"
        )
    values = {f"where{number}": value for number, value in enumerate(where.values())}
    equal = [
        sql.SQL("{} is not distinct from {}").format(_identifier(column), sql.Placeholder(name))
        for column, name in zip(where, values, strict=True)
    ]
    return sql.SQL(" and ").join(equal) if equal else sql.SQL("true"), values


def _named(statement: str, table: WorkTable, **parts: sql.Composable) -> sql.Composed:
    """A statement of `statements.py`, which has parameters, with the names of a table."""
    return sql.SQL(statement).format(
        table=_identifier(*table.parts),
        key=_identifier(table.key),
        due=_identifier(table.due),
        attempts=_identifier(table.attempts),
        version=_identifier(table.version),
        **parts,
    )


def _identifier(*parts: str) -> sql.Identifier:
    """A name in a statement that has parameters, where a percent sign is written twice."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))


# -- for people


class Stuck(NamedTuple):
    """A row that no claim takes any more."""

    key: str
    attempts: int
    version: int
    due: datetime


class Lack(NamedTuple):
    """What a table does not have, and the statement that gives it that."""

    problem: str
    ddl: str


def stuck(conn: psycopg.Connection[Any], table: WorkTable, limit: int) -> list[Stuck]:
    """The rows past their attempts, the longest due first."""
    rows = conn.execute(
        _named(statements.STUCK_ROWS, table), {"max_attempts": table.max_attempts, "limit": limit}
    )
    return [Stuck(*row) for row in rows]


def requeue_stuck(conn: psycopg.Connection[Any], table: WorkTable) -> int:
    """Let all stuck rows be due now, with all their attempts; how many."""
    return conn.execute(
        _named(statements.REQUEUE_STUCK, table), {"max_attempts": table.max_attempts}
    ).rowcount


def requeue(conn: psycopg.Connection[Any], table: WorkTable, key: str) -> bool:
    """Let a row be due now, with all its attempts; False: there is no such row.

    Raises:
        ValueError: the text is no value of the key's type.
    """
    try:
        return conn.execute(_named(statements.REQUEUE_ROW, table), {"key": key}).rowcount > 0
    except psycopg.DataError as error:
        raise ValueError(f"{key!r} is no key of {table.name}: {error}") from error


def is_there(conn: psycopg.Connection[Any], table: WorkTable) -> bool:
    """Whether there is a table of its name."""
    return bool(_columns(conn, table))


def _columns(conn: psycopg.Connection[Any], table: WorkTable) -> dict[str, tuple[Any, ...]]:
    """By name its type, whether it is not null, and its default; empty: there is no such table."""
    given = {"table": sql.Identifier(*table.parts).as_string(conn)}
    return {row[0]: row[1:] for row in conn.execute(statements.COLUMNS.encode(), given)}


def lacks(conn: psycopg.Connection[Any], table: WorkTable) -> list[Lack]:
    """What the table must have to be a work table and has not."""
    name = sql.Identifier(*table.parts)
    given = {"table": name.as_string(conn)}
    columns = _columns(conn, table)
    indexes = {(column, bool(unique)) for column, unique in conn.execute(statements.INDEXES.encode(), given)}
    found: list[Lack] = []

    def lack(problem: str, ddl: str, **names: sql.Composable) -> None:
        text = sql.SQL(ddl).format(table=name, **names).as_string(conn)
        found.append(Lack(problem, f"{text};"))

    if not columns:
        lack(
            f"there is no table {table.name}",
            "create table {table} (\n    {key} bigint generated always as identity primary key,\n"
            "    {due} timestamptz default now(),\n    {attempts} integer not null default 0,\n"
            "    {version} integer not null default 1\n)",
            **{part: sql.Identifier(getattr(table, part)) for part in ("key", "due", "attempts", "version")},
        )
    else:
        _check_columns(table, columns, lack)
        if table.key in columns and (table.key, True) not in indexes:
            lack(
                f"{table.key} alone is not unique",
                "alter table {table} add unique ({column})",
                column=sql.Identifier(table.key),
            )
    if not any(column == table.due for column, _ in indexes):
        lack(
            f"no index begins with {table.due}",
            "create index concurrently on {table} ({column}) where {column} is not null",
            column=sql.Identifier(table.due),
        )
    return found


def _check_columns(table: WorkTable, columns: Mapping[str, Sequence[Any]], lack: Callable[..., None]) -> None:
    if table.key not in columns:
        lack(
            f"there is no column {table.key}",
            "alter table {table} add column {column} bigint generated always as identity unique",
            column=sql.Identifier(table.key),
        )
    elif not columns[table.key][1]:
        lack(
            f"{table.key} may be null, and names the row",
            "alter table {table} alter column {column} set not null",
            column=sql.Identifier(table.key),
        )
    due = sql.Identifier(table.due)
    if table.due not in columns:
        lack(
            f"there is no column {table.due}",
            "alter table {table} add column {column} timestamptz default now()",
            column=due,
        )
    else:
        type_, not_null, default = columns[table.due]
        if type_ != "timestamp with time zone":
            lack(
                f"{table.due} is {type_}, which names no moment",
                "alter table {table} alter column {column} type timestamptz",
                column=due,
            )
        if not_null:
            lack(
                f"{table.due} cannot be null, so no row could be done",
                "alter table {table} alter column {column} drop not null",
                column=due,
            )
        if default not in _NOW:
            lack(
                f"{table.due} has the default {default or 'null'}, so a new row would not be due",
                "alter table {table} alter column {column} set default now()",
                column=due,
            )
    for name, first, types in ((table.attempts, 0, _COUNTS), (table.version, 1, _VERSIONS)):
        column = sql.Identifier(name)
        if name not in columns:
            lack(
                f"there is no column {name}",
                "alter table {table} add column {column} integer not null default {first}",
                column=column,
                first=sql.Literal(first),
            )
            continue
        type_, not_null, default = columns[name]
        if type_ not in types:
            lack(
                f"{name} is {type_}; it counts, so it must be {' or '.join(types)}",
                "alter table {table} alter column {column} type integer using {column}::integer",
                column=column,
            )
        if default is None:
            lack(
                f"{name} has no default",
                "alter table {table} alter column {column} set default {first}",
                column=column,
                first=sql.Literal(first),
            )
        if not not_null:
            lack(
                f"{name} may be null",
                "alter table {table} alter column {column} set not null",
                column=column,
            )
