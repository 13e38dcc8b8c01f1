"""The connection of psycopg behind what a caller has at hand: psycopg's own, SQLAlchemy's or Django's.

Neither library is imported: what counts is how the thing behaves.
"""

from __future__ import annotations

import inspect
from typing import Any

import psycopg


def plain_connection(given: object) -> psycopg.Connection[Any]:
    """The connection whose transaction the caller is in; one of SQLAlchemy begins its transaction here.

    Raises:
        TypeError: there is no connection of psycopg 3 behind it.
    """
    found: Any = given
    method = getattr(found, "connection", None)
    if callable(method) and not inspect.iscoroutinefunction(method):  # a session of SQLAlchemy
        found = method()
    if callable(getattr(found, "ensure_connection", None)):  # Django's, which connects when it is first used
        found.ensure_connection()
        found = found.connection
    elif callable(getattr(found, "in_transaction", None)) and hasattr(found, "connection"):
        if not found.in_transaction():
            found.begin()  # else its commit, which knows of no transaction, would do nothing
        found = getattr(found.connection, "driver_connection", None)
    if not isinstance(found, psycopg.Connection):
        behind = "" if found is given else f", over {type(found).__module__}.{type(found).__qualname__}"
        raise TypeError(
            "conn must be a connection of psycopg 3, or one of SQLAlchemy or Django over psycopg 3, got "
            f"{type(given).__qualname__}{behind}"
        )
    return found
