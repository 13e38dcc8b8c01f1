"""Commands about single jobs: push or kick one, list them, cancel, retry, reschedule and delete them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli import output
from runtime.cli.options import ConfigPath, JobId, Json, Kind, Limit, WrongUse
from runtime.cli.settings import handlers, settings
from runtime.model.exits import EXIT_FAILED, EXIT_OK
from runtime.model.jobs import PRIORITIES, JobView, State

if TYPE_CHECKING:
    from runtime.config import Config
    from runtime.registry import Registry

After = Annotated[
    str | None, typer.Option(metavar="DURATION", help='Due so long from now, such as "10s" or "1h30m".')
]
At = Annotated[
    str | None, typer.Option(metavar="TIME", help='Due then, such as "2030-01-31T08:00:00+01:00".')
]
LISTED = ("id", "kind", "queue", "state", "code", "attempt", "due", "finished")


def push(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Its fields.")] = "{}",
    after: After = None,
    at: At = None,
    unique: Annotated[
        str | None, typer.Option(metavar="KEY", help="Refused while such a job is queued or running.")
    ] = None,
    or_existing: Annotated[
        bool, typer.Option("--or-existing", help="When KEY is taken, print the id of the job that has it.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="When a queued job has KEY, give it this due time, queue and payload."
        ),
    ] = False,
    priority: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=PRIORITIES - 1, help="0 is the most urgent, 9 the least."),
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="QUEUE", help="Else as the kind says.")] = None,
    id: Annotated[str | None, typer.Option(metavar="UUID", help="Pushing an id again adds nothing.")] = None,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Queue a job and print its id; `null` and exit status 1 when the unique key is taken."""
    found = settings(config)
    after_s, due = _duration(after), _time(at)
    for option, given in (("--or-existing", or_existing), ("--replace", replace)):
        if given and unique is None:
            raise WrongUse(f"{option} goes with --unique KEY")
    if or_existing and replace:
        raise WrongUse("write --or-existing or --replace, not both")
    from runtime.queue import new_job, opened, push_one

    definition = handlers_of(found, kind).get(kind)
    try:
        job = new_job(
            definition,
            definition.decode(payload),
            after=after_s,
            at=due,
            priority=priority,
            queue=queue,
            unique=unique,
            id=id,
        )
        with opened(found) as store:
            pushed = push_one(store, job, or_existing=or_existing, replace=replace, known=id is not None)
    except ValueError as problem:
        raise WrongUse(str(problem)) from problem
    if json:
        output.as_json(pushed)
    else:
        output.line(pushed or "null")
    return EXIT_OK if pushed is not None else EXIT_FAILED


def kick(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Start one run of a kind whose fields all have defaults; many kicks are one run."""
    found = settings(config)
    from runtime.queue import opened

    asked = handlers_of(found, kind).kick_of(kind)
    with opened(found) as store:
        store.kick([asked])
    if json:
        output.as_json({"kind": kind, "kicked": True})
    else:
        output.line("kicked")
    return EXIT_OK


def jobs(
    state: Annotated[State | None, typer.Option(help="Only jobs in this state.")] = None,
    kind: Kind = None,
    queue: Annotated[str | None, typer.Option(metavar="QUEUE", help="Only jobs of this queue.")] = None,
    limit: Limit = 50,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """List jobs, the newest first; as JSON one a line."""
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        listed = store.jobs(state=state, kind=kind, queue=queue, limit=limit)
    if json:
        for job in listed:
            output.as_json(_fields(job, "payload", "result", "attempts"))
    else:
        output.table(LISTED, ([getattr(job, name) for name in LISTED] for job in listed), "no jobs")
    return EXIT_OK


def dead(kind: Kind = None, limit: Limit = 50, json: Json = False, config: ConfigPath = None) -> int:
    """List dead jobs and why they died, the latest death first; as JSON one a line."""
    found = settings(config)
    from runtime.cli.show import reason
    from runtime.queue import opened

    with opened(found) as store:
        listed = store.dead(kind=kind, limit=limit)
    if json:
        for job in listed:
            output.as_json(_fields(job, "payload", "result"))
    else:
        output.table(
            ("id", "kind", "queue", "attempts", "finished", "code", "reason"),
            (
                (job.id, job.kind, job.queue, job.attempt, job.finished, job.code, reason(job))
                for job in listed
            ),
            "no dead jobs",
        )
    return EXIT_OK


def cancel(id: JobId, json: Json = False, config: ConfigPath = None) -> int:
    """Take a queued job out, or end a running one."""
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        state = store.cancel(id)
        text = _not_so(store.status(id), id, "queued or running") if state is None else ""
    if json:
        output.as_json({"id": id, "state": state})
    elif state is State.RUNNING:
        output.line("running: its worker is told to end it")
    elif state is not None:
        output.line(state)
    if state is None:
        output.complain(text)
        return EXIT_FAILED
    return EXIT_OK


def retry(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", show_default=False)] = None,
    all: Annotated[bool, typer.Option("--all", help="All dead jobs of the kind.")] = False,
    kind: Kind = None,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Queue a dead job again, from attempt 1; or with `--all --kind KIND` all of a kind."""
    if all:
        if kind is None or id is not None:
            raise WrongUse("--all goes with --kind KIND, and with no id")
        return _retry_all(kind, config, json=json)
    if id is None or kind is not None:
        raise WrongUse("write an id, or --all --kind KIND")
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        queued = store.retry(id)
        text = "" if queued else _not_so(store.status(id), id, "dead")
    if json:
        output.as_json({"id": id, "state": State.QUEUED if queued else None})
    elif queued:
        output.line(State.QUEUED)
    if not queued:
        output.complain(text)
        return EXIT_FAILED
    return EXIT_OK


def reschedule(
    id: JobId,
    after: After = None,
    at: At = None,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Let a queued job be due at another time."""
    found = settings(config)
    after_s, due = _duration(after), _time(at)
    if after_s is None and due is None:
        raise WrongUse("write --after DURATION or --at TIME")
    from runtime.queue import check_due, opened

    try:
        check_due(after_s, due)
    except ValueError as problem:
        raise WrongUse(str(problem)) from problem
    with opened(found) as store:
        moved = store.reschedule(id, due, after_s or 0.0)
        job = store.status(id)
    if json:
        output.as_json({"id": id, "due": job.due if moved and job else None})
    elif moved and job is not None:
        output.line(f"due {output.moment(job.due)}")
    if not moved:
        output.complain(_not_so(job, id, "queued"))
        return EXIT_FAILED
    return EXIT_OK


def delete(id: JobId, json: Json = False, config: ConfigPath = None) -> int:
    """Take out a job that is queued or has ended, with all that is known of it."""
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        deleted = store.delete(id)
        text = "" if deleted else _not_so(store.status(id), id, "queued or ended")
    if json:
        output.as_json({"id": id, "deleted": deleted})
    elif deleted:
        output.line("deleted")
    if not deleted:
        output.complain(text)
        return EXIT_FAILED
    return EXIT_OK


def _retry_all(kind: str, config: Path | None, *, json: bool) -> int:
    found = settings(config)
    from runtime.queue import opened

    with opened(found) as store:
        queued = store.retry_all(kind)
    if json:
        output.as_json({"kind": kind, "queued": queued})
    else:
        output.line(f"{queued} queued")
    return EXIT_OK


def handlers_of(config: Config, wanted: str) -> Registry:
    """The kinds of the configured modules; says what could not be imported, unless the kind is not there.

    Raises:
        UnknownKind: `wanted` is none of them; the text names the modules that could not be imported.
    """
    from runtime.errors import UnknownKind

    registry, broken = handlers(config)
    lacking = [f"{_left_out(what)}: {text.splitlines()[-1]}" for what, text in broken.items()]
    if wanted not in registry.kinds and broken:
        raise WrongUse("; ".join([str(UnknownKind(wanted, registry.kinds)), *lacking]))
    for text in lacking:
        output.complain(text)
    return registry


def _left_out(what: str) -> str:
    return f"{what} is left out" if what.startswith("kind ") else f"{what} could not be imported"


def _duration(text: str | None) -> float | None:
    from runtime.model.units import parse_duration

    try:
        return None if text is None else parse_duration(text)
    except ValueError as problem:
        raise WrongUse(f"--after: {problem}") from problem


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError as problem:
        raise WrongUse(
            f'--at: {text!r} is no time; write one such as "2030-01-31T08:00:00+01:00"'
        ) from problem


def _fields(job: JobView, *without: str) -> dict[str, object]:
    """A job as it is listed, without what the list did not ask the database for."""
    return {name: getattr(job, name) for name in job.__struct_fields__ if name not in without}


def _not_so(job: JobView | None, id: str, wanted: str) -> str:
    """Why an act changed nothing."""
    if job is None:
        return f"no job {id}"
    if job.state == wanted:
        return f"job {id} is {job.state}, but another live job has its unique key {job.unique!r}"
    return f"job {id} is {job.state}, not {wanted}"
