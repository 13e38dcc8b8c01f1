"""The command line: one module a command group; a command parses, opens, calls one function, prints and closes.

Here is the way in and the way out: a service is run without the parser of all other commands, and each error has its
exit status.

Exit status: 0 done, 1 it failed or the answer is no, 2 wrong use or configuration, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from runtime.cli import output, serve
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
    try:
        if (asked := serve.parse(argv)) is not None:
            return serve.run(*asked)
        from runtime.cli import commands  # and typer, of which a service has no need

        return commands.invoke(argv)
    except WRONG_USE as error:
        output.complain(str(error))
        return EXIT_USAGE
    except Error as error:
        output.complain(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _discard(stream: TextIO) -> None:
    """Nobody reads any more: let what is still buffered go nowhere, in silence."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
