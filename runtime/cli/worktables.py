"""Commands about work tables: what one lacks, which rows are stuck, and letting them be due again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli import output
from runtime.cli.options import ConfigPath, Json, Limit, WrongUse
from runtime.cli.settings import handlers, settings
from runtime.model.exits import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    import psycopg

    from runtime.model.worktables import WorkTable

TableName = Annotated[str, typer.Argument(metavar="TABLE", show_default=False)]

worktable = typer.Typer(name="worktable", add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@worktable.callback()
def group() -> None:
    """Look at the tables of the application whose rows are work."""


@worktable.command()
def check(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", show_default=False)] = None,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Print the statements that a work table lacks, or those of all; exit status 1 when there are any."""
    from runtime.edges.worktables import lacks

    with _opened(table, config) as (tables, conn):
        found = {one.name: lacks(conn, one) for one in tables}
    if json:
        output.as_json({name: [lack._asdict() for lack in lacking] for name, lacking in found.items()})
    else:
        for name, lacking in found.items():
            if not lacking:
                output.line(f"-- {name} is a work table")
            for lack in lacking:
                output.line(f"-- {name}: {lack.problem}\n{lack.ddl}")
    return EXIT_FAILED if any(found.values()) else EXIT_OK


@worktable.command()
def stuck(table: TableName, limit: Limit = 50, json: Json = False, config: ConfigPath = None) -> int:
    """List the rows that were claimed as often as they may be, the longest due first; as JSON one a line."""
    from runtime.edges import worktables

    with _opened(table, config) as ([found], conn):
        rows = worktables.stuck(conn, found, limit)
    if json:
        for row in rows:
            output.as_json(row._asdict())
    else:
        output.table(worktables.Stuck._fields, rows, "no row is stuck")
    return EXIT_OK


@worktable.command()
def requeue(
    table: TableName,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY...", show_default=False)] = None,
    all: Annotated[bool, typer.Option("--all", help="All rows that are stuck.")] = False,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Let rows be due now, with all their attempts; exit status 1 when one of them is not there."""
    if all == bool(keys):
        raise WrongUse("give the keys of rows, or --all")
    from runtime.edges import worktables

    with _opened(table, config) as ([found], conn):
        try:
            done = {key: worktables.requeue(conn, found, key) for key in keys or ()}
        except ValueError as problem:
            raise WrongUse(str(problem)) from problem
        count = worktables.requeue_stuck(conn, found) if all else sum(done.values())
    if json:
        output.as_json({"requeued": count})
    else:
        output.line(str(count))
    for key, there in done.items():
        if not there:
            output.complain(f"no row {key} in {found.name}")
    return EXIT_OK if len(done) == sum(done.values()) else EXIT_FAILED


@contextmanager
def _opened(name: str | None, path: Path | None) -> Iterator[tuple[list[WorkTable], psycopg.Connection[Any]]]:
    """The work table of that name, or all that the handlers know, and a connection to the database."""
    found = settings(path)
    import psycopg

    from runtime.queue import connected
    from runtime.registry import work_tables

    _, broken = handlers(found)
    for module, reason in broken.items():
        output.complain(f"{module} could not be imported: {reason.splitlines()[-1]}")
    known = work_tables(found.service.handlers)
    if name is not None and name not in known:
        raise WrongUse(
            f"no WorkTable({name!r}) in the modules of handlers (known: {', '.join(sorted(known)) or 'none'})"
        )
    with connected(found) as store:
        store.now()  # says in plain words that the database cannot be reached
        with psycopg.connect(store.url, autocommit=True) as conn:
            try:
                yield [known[name]] if name is not None else list(known.values()), conn
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
                problem = str(error).splitlines()[0]
                raise WrongUse(f"{problem}; tenure worktable check {name} says what to do") from error
