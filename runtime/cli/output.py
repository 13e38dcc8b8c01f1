"""How things are printed: JSON for programs, tables for people, tab-separated lines for pipes, and complaints.

What comes from jobs is printed without its control characters: an error text must not drive the terminal.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

WIDEST = 2000  # columns of a table on a terminal
STYLES = {  # on a terminal, of words that say how something is
    "queued": "cyan",
    "running": "yellow",
    "done": "green",
    "dead": "bold red",
    "cancelled": "dim",
    "ok": "green",
    "no": "bold red",
    "unhealthy": "bold red",
    "draining": "yellow",
    "lost": "red",
}


def as_json(value: object) -> None:
    """One JSON value on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def complain(text: str) -> None:
    """One line on standard error, whatever the text."""
    note("; ".join(part.strip() for part in text.splitlines() if part.strip()))


def note(text: str) -> None:
    """A line of ours on standard error, beside what a handler prints there."""
    sys.stderr.write(safe(f"tenure: {text}") + "\n")


def line(text: str = "", style: str = "") -> None:
    """Text of one or more lines, coloured on a terminal only."""
    if not style or not sys.stdout.isatty():
        sys.stdout.write(safe(text) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    Console(soft_wrap=True).print(Text(safe(text), style))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """A table on a terminal; in a pipe a header and lines of cells with tabs between, no cell ever left out.

    `empty` is what a terminal shows when there are no rows.
    """
    cells = [[cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [list(columns), *cells]:
            sys.stdout.write("\t".join(row) + "\n")
        return
    if not cells:
        line(empty, "dim")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        drawn.add_column(column, no_wrap=True)
    for row in cells:
        drawn.add_row(*(Text(text, STYLES.get(text, "")) for text in row))
    console = Console()
    # A row that is too long runs over the terminal's edge whole: an id cut short is of no use.
    console.width = max(
        console.width, console.measure(drawn, options=console.options.update(width=WIDEST)).maximum
    )
    console.print(drawn, crop=False)


def cell(value: object) -> str:
    """A value as one word or line; `-` for none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return moment(value)
    return " ".join(safe(str(value)).split()) or "-"


def moment(when: datetime) -> str:
    """A time in UTC to the second, the same wherever it is read."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def safe(text: str) -> str:
    """Text without control characters other than newline and tab; they are written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t " else ascii(char)[1:-1] for char in text)


def indented(text: str, by: int) -> str:
    return textwrap.indent(text.rstrip(), " " * by)
