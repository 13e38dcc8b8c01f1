"""`django.db.connection` on a database, as a project has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from psycopg.conninfo import conninfo_to_dict


@contextmanager
def connection_of_django(url: str) -> Iterator[Any]:
    import django
    from django.conf import settings
    from django.db import connection, connections

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}})
        django.setup()
    given = conninfo_to_dict(url)
    database = {"NAME": given["dbname"], "USER": given["user"], "HOST": given["host"], "PORT": given["port"]}
    connections.settings["default"].update(database)
    with closing(connections["default"]):
        yield connection
    del connections["default"]
