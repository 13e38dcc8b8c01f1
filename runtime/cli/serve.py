"""`tenure run` by itself, for a service keeps all that is loaded before it forks, in each of its processes.

So its plain words are parsed here. What looks in any way different is left to the parser of all commands, which
also has the complaints and the help.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from runtime.cli.settings import settings

WORKERS_MAX = 1024
_COUNT = re.compile("[0-9]{1,4}")


class Asked(NamedTuple):
    """How a service is to be run."""

    workers: int | None = None  # None: as configured
    until_idle: bool = False
    config: Path | None = None


def parse(words: Sequence[str]) -> Asked | None:
    """What the words of a command line ask for; None: they are not plainly those of `tenure run`."""
    asked, named, rest = Asked(), False, deque(words)
    while rest:
        word = rest.popleft()
        option, is_given, value = word.partition("=")
        match option:
            case "run" if word == option and not named:
                named = True
                continue
            case "--until-idle" if word == option and named:
                asked = asked._replace(until_idle=True)
                continue
            case "--config":
                pass
            case "--workers" if named:
                pass
            case _:
                return None
        if not is_given and rest:
            value = rest.popleft()
        if not value or value.startswith("-"):
            return None
        if option == "--config":
            asked = asked._replace(config=Path(value))
        elif _COUNT.fullmatch(value) and 1 <= int(value) <= WORKERS_MAX:
            asked = asked._replace(workers=int(value))
        else:
            return None
    return asked if named else None


def run(workers: int | None, until_idle: bool, config: Path | None) -> int:
    """Run the service until it is told to stop; its exit status.

    Raises:
        ConfigError: the settings are wrong; it names the key.
        Error: as of `runtime.actors.service.run`.
    """
    found = settings(config)
    if workers is not None:
        found = msgspec.structs.replace(
            found, service=msgspec.structs.replace(found.service, workers=workers)
        )
    with _hidden("rich"):  # structlog would load it, 5 MiB, to colour tracebacks that no line of ours has
        from runtime.actors import service

    return service.run(found, until_idle=until_idle)


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """What is imported inside finds that `package` is not installed, unless it is loaded already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # as the import system defines it
    try:
        yield
    finally:
        del sys.modules[package]
