"""Commands that show how things stand: counts or one job, and the nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from runtime.cli import output
from runtime.cli.options import ConfigPath, Json
from runtime.cli.settings import settings, shown
from runtime.model.exits import EXIT_FAILED, EXIT_OK
from runtime.model.jobs import Stats
from runtime.rules.nodes import is_lost


def status(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", show_default=False)] = None,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Show how many jobs are in each state, or one job whole."""
    found = settings(config)
    from runtime.queue import opened, stats_of

    with opened(found) as store:
        if id is None:
            return _overview(stats_of(store), shown(store.url), json=json)
        job = store.status(id)
    if json:
        output.as_json(job)
    elif job is not None:
        from runtime.cli.show import show

        show(job)
    if job is None:
        output.complain(f"no job {id}")
        return EXIT_FAILED
    return EXIT_OK


def nodes(json: Json = False, config: ConfigPath = None) -> int:
    """Show the nodes and what each of their processes is doing."""
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        known, now = store.nodes(), store.now()
    if json:
        output.as_json(known)
        return EXIT_OK
    rows = [
        (node.id, node.host, "lost" if is_lost(node, now) else node.state, each.name, each.pid, *doing)
        for node in known
        for each in node.workers
        for doing in [(each.state, each.kind, each.job)]
    ]
    output.table(
        ("node", "host", "node state", "process", "pid", "state", "kind", "job"), rows, "no node is running"
    )
    return EXIT_OK


def _overview(stats: Stats, url: str, *, json: bool) -> int:
    if json:
        output.as_json(
            {
                "counts": stats.states,
                "queues": stats.queues,
                "unserved": stats.unserved,
                "ready": stats.ready,
                "nodes": stats.nodes,
                "database_url": url,
            }
        )
        return EXIT_OK
    output.table(("state", "jobs"), stats.states.items(), "")
    if stats.queues:
        output.line()
        output.table(
            ("queue", "kind", "queued", "running", "kicked", "waiting since"),
            (
                (one.queue, one.kind, one.queued, one.running, one.kicked, one.oldest_due)
                for one in stats.queues
            ),
            "",
        )
    if stats.unserved:
        output.line()
        output.line("unserved: due, and no node knows the kind or takes the queue", "bold red")
        output.table(
            ("kind", "queue", "queued", "waiting since"),
            ((one.kind, one.queue, one.queued, one.oldest_due) for one in stats.unserved),
            "",
        )
    output.line()
    output.line(f"database {url}")
    if stats.ready:
        output.line(f"ready: {stats.nodes} node{'s' if stats.nodes > 1 else ''}", "green")
    else:
        output.line("not ready: no node with a living worker; start one by `tenure run`", "bold red")
    return EXIT_OK
