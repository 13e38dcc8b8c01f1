"""Commands about the service and what it stands on: run it, migrate the schema, check everything."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from runtime.cli import output, serve
from runtime.cli.options import ConfigPath, Json
from runtime.cli.settings import settings, shown
from runtime.errors import ConfigError, DefinitionError, Error
from runtime.model import reach
from runtime.model.exits import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from runtime.model.units import format_duration
from runtime.rules.nodes import is_lost

if TYPE_CHECKING:
    from runtime.config import Config
    from runtime.definition import Definition
    from runtime.edges.postgres import PostgresStore


class Finding(msgspec.Struct, frozen=True):
    """One line of `tenure check`."""

    check: str
    ok: bool
    text: str


def run(
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=serve.WORKERS_MAX, help="Processes; else as configured."),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when nothing is queued or running.")
    ] = False,
    config: ConfigPath = None,
) -> int:
    """Run the service: its workers, and without a database URL also the database."""
    return serve.run(workers, until_idle, config)


def migrate(json: Json = False, config: ConfigPath = None) -> int:
    """Make or migrate the database's schema; safe to run again, and beside a running service."""
    found = settings(config)
    from runtime.queue import connected

    with connected(found) as store:
        store.install()
    if json:
        output.as_json({"schema": "current"})
    else:
        output.line("the schema is current")
    return EXIT_OK


def check(json: Json = False, config: ConfigPath = None) -> int:
    """Check the configuration, the handlers, the database and the nodes; exit status 1 unless all is well."""
    try:
        found = settings(config)
    except ConfigError as problem:
        _print([Finding("configuration", ok=False, text=str(problem))], json=json)
        return EXIT_USAGE
    where = "the defaults; there is no file" if found.path is None else str(found.path)
    findings = [
        Finding("configuration", ok=True, text=where),
        *_check_handlers(found),
        _check_sandbox(found),
        *_check_database(found),
    ]
    _print(findings, json=json)
    return EXIT_OK if all(each.ok for each in findings) else EXIT_FAILED


def _print(findings: list[Finding], *, json: bool) -> None:
    if json:
        output.as_json(findings)
        return
    for each in findings:
        output.line(
            f"{'ok' if each.ok else 'no'}  {each.check}: {output.cell(each.text)}", "" if each.ok else "red"
        )


def _check_handlers(config: Config) -> Iterator[Finding]:
    """One finding a module that defines kinds or cannot be imported, a kind that is left out, and a lacking hook."""
    from runtime.actors.worker import load_handlers
    from runtime.registry import hook

    with contextlib.redirect_stdout(sys.stderr):  # what modules print is no result of ours
        registry, broken = load_handlers(config)
        try:
            hook("service.redact", config.service.redact)
        except ConfigError as problem:
            yield Finding("redaction", ok=False, text=str(problem))
    modules: dict[str, list[str]] = {}
    for kind in registry.kinds:
        definition = registry.get(kind)
        modules.setdefault(definition.cls.__module__, []).append(_terms(definition, config.worker.timeout))
    for module, kinds in sorted(modules.items()):
        yield Finding(f"module {module}", ok=True, text=", ".join(kinds))
    for name, reason in sorted(broken.items()):
        yield Finding(name if name.startswith("kind ") else f"module {name}", ok=False, text=reason)
    if not modules and not broken:
        yield Finding(
            "handlers", ok=False, text=f"no kind is defined in {', '.join(config.service.handlers)}"
        )


def _terms(definition: Definition, default_timeout_s: float) -> str:
    limits = definition.limits(default_timeout_s)
    return (
        f"{definition.kind} (timeout {format_duration(limits.timeout_s)}, "
        f"{limits.retries} {'retry' if limits.retries == 1 else 'retries'}, queue {definition.queue}"
        f"{''.join(f', kicks {each}' for each in definition.kicks)}{reach.shown(definition.reach)})"
    )


def _check_tables(store: PostgresStore, config: Config) -> Iterator[Finding]:
    """One finding a work table that modules of handlers have; one that is not there yet may be a sample's."""
    import psycopg

    from runtime.edges.worktables import is_there, lacks
    from runtime.registry import work_tables

    try:
        tables = work_tables(config.service.handlers)
    except DefinitionError as problem:
        yield Finding("tables", ok=False, text=str(problem))
        return
    if not tables:
        return
    with psycopg.connect(store.url, autocommit=True) as conn:
        for name, table in sorted(tables.items()):
            problems = [lack.problem for lack in lacks(conn, table)]
            remedy = f"; tenure worktable check {name} says what to do"
            text = "; ".join(problems) + remedy if problems else f"at most {table.max_attempts} attempts"
            yield Finding(f"table {name}", ok=not problems or not is_there(conn, table), text=text)


def _check_sandbox(config: Config) -> Finding:
    """Who holds what kinds declare; in a strict sandbox it must be the kernel."""
    from runtime.edges import confinement

    sandbox = config.service.sandbox
    ok = sandbox != "strict" or confinement.is_held()
    return Finding("sandbox", ok=ok, text=f"{sandbox}; {confinement.held_by()}")


def _check_database(config: Config) -> Iterator[Finding]:
    """The database, and if it can be reached its schema and the nodes."""
    from runtime.queue import connected

    try:
        with connected(config) as store:
            store.now()
            yield Finding("database", ok=True, text=shown(store.url))
            yield from _check_schema(store, config)
    except ConfigError as problem:
        yield Finding("database", ok=False, text=str(problem))
    except Error as problem:
        yield Finding("database", ok=False, text=str(problem))


def _check_schema(store: PostgresStore, config: Config) -> Iterator[Finding]:
    """The schema, as a service would find it at its start, and if it is current the nodes."""
    from runtime.errors import SchemaOutdated

    try:
        if not config.database.url:
            store.install()
        store.check()
    except SchemaOutdated as problem:
        yield Finding("schema", ok=False, text=str(problem))
        return
    yield Finding("schema", ok=True, text="current")
    yield from _check_tables(store, config)
    now = store.now()
    known = [node for node in store.nodes() if not is_lost(node, now)]
    for node in known:
        processes = ", ".join(f"{each.name} {each.state}" for each in node.workers)
        yield Finding(
            f"node {node.id}", ok=node.state != "unhealthy", text=f"{node.state} on {node.host}: {processes}"
        )
    if not known:
        yield Finding("nodes", ok=True, text="none is running")
