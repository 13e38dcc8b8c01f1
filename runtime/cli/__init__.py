"""The command line: one module a command group; a command parses, opens, calls one function, prints and closes.

Here is the way in and the way out: which commands there are, and which exit status an error has. What a command
needs is imported by that command, so that `tenure --help` and `tenure push` start quickly.

Exit status: 0 done, 1 it failed or the answer is no, 2 wrong use or configuration, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TextIO

import typer

from runtime.cli import jobs, output, service, state
from runtime.cli.one import job
from runtime.cli.schedules import schedules
from runtime.cli.worktables import worktable
from runtime.errors import ConfigError, DefinitionError, Error, PayloadInvalid, UnknownKind
from runtime.model.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE

WRONG_USE = (ConfigError, DefinitionError, PayloadInvalid, UnknownKind)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, of this process's arguments by default; its exit status.

    Results go to standard output, complaints to standard error, each of one line that begins with `tenure: `.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a narrow encoding is no reason to fail
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        return EXIT_FAILED
    return status


def _run(argv: list[str]) -> int:
    words = [*argv] or ["--help"]  # is used up
    try:
        with typer.main.get_command(_app()).make_context("tenure", words) as context:
            status: int = context.command.invoke(context)
    except typer.Exit as exit:  # of --help
        return exit.exit_code if argv else EXIT_USAGE
    except typer.TyperException as error:
        return _refused(error.format_message(), error.exit_code)
    except WRONG_USE as error:
        return _refused(str(error), EXIT_USAGE)
    except Error as error:
        return _refused(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


def _app() -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # help is plain: loading rich would take longer than all the rest
        help="Run CPU-heavy Python jobs in isolated processes, durably, on PostgreSQL.",
    )
    app.callback()(_global_options)
    for command in (
        service.run,
        jobs.push,
        jobs.kick,
        state.status,
        jobs.jobs,
        jobs.cancel,
        jobs.retry,
        jobs.reschedule,
        jobs.delete,
        jobs.dead,
        state.nodes,
        service.migrate,
        service.check,
    ):
        app.command()(command)
    app.add_typer(schedules)
    app.add_typer(job)
    app.add_typer(worktable)
    return app


def _global_options(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Settings; else TENURE_CONFIG names them, else configs/tenure.toml, else the defaults.",
        ),
    ] = None,
) -> None:
    """Read by the commands, which take the same option; see `settings.ConfigPath`."""


def _refused(text: str, status: int) -> int:
    output.complain(text)
    return status


def _discard(stream: TextIO) -> None:
    """Nobody reads any more: let what is still buffered go nowhere, in silence."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
