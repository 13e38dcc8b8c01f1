"""Commands that show how things stand: counts or one job, the nodes, the schedules."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer

from runtime.cli import output
from runtime.cli.settings import ConfigPath, Json, settings
from runtime.errors import Error
from runtime.model.exits import EXIT_FAILED, EXIT_OK
from runtime.model.jobs import Counts, NodeView, WorkerView
from runtime.model.units import format_duration

SEEN_WITHIN = timedelta(seconds=30)  # of the database's now: a node reports every 10 s at least
LIVING = ("running", "idle", "settling")  # states of a worker that can do a job, or will at once


def status(
    id: Annotated[str | None, typer.Argument(metavar="ID", show_default=False)] = None,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Show how many jobs are in each state, or one job whole."""
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        if id is not None:
            job = store.status(id)
        else:
            counts, nodes, now = store.counts(), store.nodes(), store.now()
    if id is None:
        seen = [node for node in nodes if not is_lost(node, now)]
        _overview(counts, seen, now, found.database.shown_url, json)
        return EXIT_OK
    if job is None:
        raise NoSuchJob(id)
    if json:
        output.as_json(job)
    else:
        from runtime.cli.show import show

        show(job)
    return EXIT_OK
