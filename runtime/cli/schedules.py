"""Commands about recurring jobs: list them, pause, resume and remove one, and run one between its ticks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli import output
from runtime.cli.options import ConfigPath, Json
from runtime.cli.settings import settings
from runtime.model.exits import EXIT_FAILED, EXIT_OK
from runtime.model.jobs import ScheduleView

if TYPE_CHECKING:
    from runtime.edges.store import Store

ScheduleName = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]

schedules = typer.Typer(name="schedules", add_completion=False, rich_markup_mode=None)


@schedules.callback(invoke_without_command=True)
def listing(ctx: typer.Context, json: Json = False, config: ConfigPath = None) -> int:
    """Show the recurring jobs and when each is due next; or pause, resume, remove or run one."""
    if ctx.invoked_subcommand is not None:
        return EXIT_OK
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


@schedules.command()
def pause(name: ScheduleName, json: Json = False, config: ConfigPath = None) -> int:
    """Let a schedule make no jobs until it is resumed."""
    return _done(name, "paused", lambda store: store.pause(name), config, json=json)


@schedules.command()
def resume(name: ScheduleName, json: Json = False, config: ConfigPath = None) -> int:
    """End a pause."""
    return _done(name, "resumed", lambda store: store.pause(name, False), config, json=json)


@schedules.command()
def remove(name: ScheduleName, json: Json = False, config: ConfigPath = None) -> int:
    """Take a schedule out; one that stands in code comes back when a service starts."""
    return _done(name, "removed", lambda store: store.unschedule(name), config, json=json)


@schedules.command()
def run(name: ScheduleName, json: Json = False, config: ConfigPath = None) -> int:
    """Push the job of a schedule now and print its id; `null` and exit status 1 when its last run is on."""
    found = settings(config)
    from runtime.queue import opened, push_now

    with opened(found) as store:
        known = any(one.name == name for one in store.schedules())
        id = push_now(store, name)
    if not known:
        output.complain(f"no schedule {name}")
    if json:
        output.as_json(id)
    elif known:
        output.line(id or "null")
    return EXIT_FAILED if id is None else EXIT_OK


def _done(name: str, said: str, act: Callable[[Store], bool], config: Path | None, *, json: bool) -> int:
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        done = act(store)
    if json:
        output.as_json({"name": name, "state": said if done else None})
    elif done:
        output.line(said)
    if not done:
        output.complain(f"no schedule {name}")
    return EXIT_OK if done else EXIT_FAILED
