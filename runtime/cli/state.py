"""Commands that show how things stand: counts or one job, the nodes, the schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

import typer

from runtime.cli import output
from runtime.cli.settings import ConfigPath, Json, settings, shown
from runtime.model.exits import EXIT_FAILED, EXIT_OK
from runtime.model.jobs import Counts, NodeView, ScheduleView

SEEN_WITHIN = timedelta(seconds=30)  # of the database's now: a node reports every 10 s at least
LIVING = ("running", "idle", "settling")  # states of a worker that runs a job, or would at once
SERVING = ("running", "unhealthy")  # states of a node that takes new work


def status(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", show_default=False)] = None,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Show how many jobs are in each state, or one job whole."""
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        if id is None:
            counts, nodes, now, url = store.counts(), store.nodes(), store.now(), shown(store.url)
            return _overview(counts, [node for node in nodes if not is_lost(node, now)], url, json=json)
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


def schedules(json: Json = False, config: ConfigPath = None) -> int:
    """Show the recurring jobs and when each is due next."""
    found = settings(config)
    from runtime.actors.ticking import rule_of
    from runtime.queue import opened

    with opened(found) as store:
        known = store.schedules()
    if json:
        output.as_json(known)
        return EXIT_OK
    output.table(
        ("name", "kind", "queue", "when", "overlap", "missed", "state", "next five"),
        (
            (
                one.name,
                one.kind,
                one.queue,
                str(rule_of(one.spec)),
                one.overlap,
                one.missed,
                "paused" if one.paused else "due",
                "" if one.paused else ", ".join(f"{at:%Y-%m-%d %H:%M %Z}" for at in following(one)),
            )
            for one in known
        ),
        "no schedules",
    )
    return EXIT_OK


def following(schedule: ScheduleView) -> list[datetime]:
    """The next five ticks, on the clock of the schedule's zone."""
    from runtime.actors.ticking import rule_of
    from runtime.rules.schedule import describe

    rule = rule_of(schedule.spec)
    first = schedule.due
    return [first.astimezone(one.tzinfo) for one in describe(rule, 1, after=first)] + describe(
        rule, 4, after=first
    )


def is_lost(node: NodeView, now: datetime) -> bool:
    """Whether a node has not reported lately; `now` is the database's."""
    return node.seen is None or now - node.seen > SEEN_WITHIN


def is_ready(node: NodeView) -> bool:
    """Whether a node that is not lost has a worker that a new job could run in."""
    living = [each for each in node.workers if each.name.startswith("worker") and each.state in LIVING]
    return node.state in SERVING and bool(living)


def _overview(counts: Counts, seen: Sequence[NodeView], url: str, *, json: bool) -> int:
    ready = any(is_ready(node) for node in seen)
    if json:
        output.as_json(
            {
                "counts": counts.states,
                "queues": counts.queues,
                "ready": ready,
                "nodes": len(seen),
                "database_url": url,
            }
        )
        return EXIT_OK
    output.table(("state", "jobs"), counts.states.items(), "")
    if counts.queues:
        output.line()
        output.table(
            ("queue", "kind", "queued", "running", "waiting since"),
            ((one.queue, one.kind, one.queued, one.running, one.oldest_due) for one in counts.queues),
            "",
        )
    output.line()
    output.line(f"database {url}")
    if ready:
        output.line(f"ready: {len(seen)} node{'s' if len(seen) > 1 else ''}", "green")
    else:
        output.line("not ready: no node with a living worker; start one by `tenure run`", "bold red")
    return EXIT_OK
