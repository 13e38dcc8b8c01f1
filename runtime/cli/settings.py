"""The settings that `--config` leads to, and the handlers that they name."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.config import Config
    from runtime.registry import Registry


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
