"""Django in the process of the tests: its database is that of the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.db import connections
from psycopg.conninfo import conninfo_to_dict

_KEYS = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}


def database_settings(uri: str) -> dict[str, Any]:
    """An entry of DATABASES for a connection string."""
    given = conninfo_to_dict(uri)
    known = {_KEYS[key]: value for key, value in given.items() if key in _KEYS}
    return {"ENGINE": "django.db.backends.postgresql", "DISABLE_SERVER_SIDE_CURSORS": True, **known}


def configure(uri: str, **more: Any) -> None:
    """Configure Django once in this process, with a second database that has no queue."""
    if not settings.configured:
        settings.configure(
            DATABASES={
                "default": database_settings(uri),
                "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            },
            USE_TZ=True,
            **more,
        )
        os.environ.pop("DJANGO_SETTINGS_MODULE", None)
        django.setup()


@contextmanager
def django_on(uri: str) -> Iterator[None]:
    """Let the database `default` of Django be this one."""
    configure(
        uri,
        MAILERS={"default": {"BACKEND": "pgmta.django.EmailBackend"}},
        DEFAULT_FROM_EMAIL="Shop <shop@example.org>",
    )
    connection = connections["default"]
    connection.close()
    connection.settings_dict.update({"HOST": "", "PORT": "", "PASSWORD": ""})
    connection.settings_dict.update(database_settings(uri))
    yield
    connections.close_all()
