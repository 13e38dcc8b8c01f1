"""`tenure job run`: one job in the foreground, for whoever writes its handler."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli import output
from runtime.cli.jobs import handlers_of
from runtime.cli.options import ConfigPath, Json, WrongUse
from runtime.cli.settings import settings
from runtime.model.exits import EXIT_FAILED, EXIT_OK, Progress
from runtime.model.jobs import Attempt
from runtime.model.units import format_duration

if TYPE_CHECKING:
    from runtime.testing import Outcome

LINE_MAX = 8 * 1024  # bytes of a line that are held back until it ends

job = typer.Typer(name="job", add_completion=False, rich_markup_mode=None)


@job.callback()
def group() -> None:
    """Work on one job by hand."""


@job.command()
def run(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Its fields.")] = "{}",
    database: Annotated[
        bool,
        typer.Option(
            "--database", help="As a row of the database, also if its handler asks for no database."
        ),
    ] = False,
    json: Json = False,
    config: ConfigPath = None,
) -> int:
    """Run a job now, in a process of its own under its limits, once; print its result.

    What it prints, its progress and why it failed go to standard error.
    """
    found = settings(config)
    definition = handlers_of(found, kind).get(kind)
    asked = definition.decode(payload)
    from runtime import foreground
    from runtime.providers import unservable
    from runtime.testing import Show

    if lacking := unservable([definition], found.service.sandbox):
        raise WrongUse(lacking[kind])
    printed = Printed()
    try:
        outcome = foreground.run(asked, found, Show(printed.add, _print_progress), in_database=database)
    finally:
        printed.end()
    _explain(outcome)
    if json:
        output.as_json(outcome)
    elif outcome.done:
        output.as_json(outcome.result)
    return EXIT_OK if outcome.done else EXIT_FAILED


class Printed:
    """What the handler prints, as it is, for its author reads it; by whole lines, since others write there too."""

    def __init__(self) -> None:
        self._begun = bytearray()  # the last line, which has no end yet

    def add(self, data: bytes) -> None:
        self._begun += data
        end = max(self._begun.rfind(b"\n"), self._begun.rfind(b"\r")) + 1
        if end == 0 and len(self._begun) > LINE_MAX:
            end = len(self._begun)
        self._write(bytes(self._begun[:end]))
        del self._begun[:end]

    def end(self) -> None:
        if self._begun:
            self._write(bytes(self._begun) + b"\n")

    def _write(self, data: bytes) -> None:
        sys.stderr.flush()
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


def _print_progress(progress: Progress) -> None:
    from runtime.cli.show import progress_text

    output.note(f"progress {progress_text(progress)}")


def _explain(outcome: Outcome) -> None:
    took = format_duration(outcome.seconds)
    if outcome.done:
        output.note(f"{outcome.kind} {outcome.id} done after {took}")
        return
    from runtime.cli.show import SAID, of_attempt

    said = SAID[outcome.ending]
    code = f": {outcome.code}" if outcome.code is not None else ""
    output.note(f"{outcome.kind} {outcome.id} {said} after {took}{code}")
    with contextlib.redirect_stdout(sys.stderr):
        of_attempt(Attempt(attempt=1, epoch=1, error=outcome.error, certificate=outcome.certificate))
