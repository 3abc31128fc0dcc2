"""Times from PostgreSQL that Python's calendar does not have: infinity, BC, years over 9999.

The loader extends psycopg's TimestamptzLoader, which is undocumented. Checked with psycopg 3.3.9;
tests/pgmta/test_private_names.py fails when it changes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.types.datetime import TimestamptzLoader

_FIRST = datetime(2, 1, 1, tzinfo=UTC)
_LAST = datetime(9998, 1, 1, tzinfo=UTC)


class _Text(TimestamptzLoader):
    def load(self, data: Any) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            return _FIRST if text.startswith(b"-") or text.endswith(b"BC") else _LAST


def register(connection: psycopg.BaseConnection[Any]) -> None:
    """Make the connection read such times as the first or last year of the calendar."""
    connection.adapters.register_loader("timestamptz", _Text)
