"""What every command takes: the options they share, and the settings that `--config` leads to."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.model.exits import EXIT_USAGE

if TYPE_CHECKING:
    from runtime.config import Config
    from runtime.registry import Registry


class WrongUse(typer.TyperException):
    """What was written on the command line is wrong; the text says how."""

    exit_code = EXIT_USAGE


def _own_or_global(ctx: typer.Context, value: Path | None) -> Path | None:
    """`--config` may stand before or after the command."""
    if value is None and ctx.parent is not None:
        value = ctx.parent.params.get("config")
    return value


ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", metavar="PATH", callback=_own_or_global, help="Settings to use."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[str, typer.Argument(metavar="ID", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100_000, help="At most so many.")]
Kind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only jobs of this kind.")]


def shown(url: str) -> str:
    """A database's URL as it may be printed."""
    from runtime.config import DatabaseConfig

    return DatabaseConfig(url=url).shown_url


def settings(path: Path | None) -> Config:
    """The settings of `path`, else of the environment, else the defaults.

    Raises:
        ConfigError: names the key.
    """
    from runtime.config import load

    return load(path, os.environ, Path.cwd())


def handlers(config: Config) -> tuple[Registry, dict[str, str]]:
    """The kinds of the configured modules, and why each of these that cannot be imported could not."""
    from runtime.registry import load, search_path

    sys.path[:0] = search_path(config.path)
    with contextlib.redirect_stdout(sys.stderr):  # what modules print is no result of ours
        return load(config.service.handlers)
