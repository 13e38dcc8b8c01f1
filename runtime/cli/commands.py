"""Which commands there are, and what is said of words that fit none. The work of each group is in a module beside.

What a command needs is imported by that command, so that `tenure --help` and `tenure push` start quickly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli import jobs, output, service, state
from runtime.cli.one import job
from runtime.cli.schedules import schedules
from runtime.cli.worktables import worktable
from runtime.model.exits import EXIT_USAGE


def invoke(argv: list[str]) -> int:
    """Run the command that these words name; its exit status.

    Raises:
        Error: of the command.
    """
    words = [*argv] or ["--help"]  # is used up
    try:
        with typer.main.get_command(_app()).make_context("tenure", words) as context:
            status: int = context.command.invoke(context)
    except typer.Exit as exit:  # of --help
        return exit.exit_code if argv else EXIT_USAGE
    except typer.TyperException as error:
        output.complain(error.format_message())
        return error.exit_code
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
    """Read by the commands, which take the same option; see `options.ConfigPath`."""
