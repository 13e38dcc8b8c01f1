"""What commands take alike: the options they share, and how wrong use of one is said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.model.exits import EXIT_USAGE


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
