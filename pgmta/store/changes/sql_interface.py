"""Calls the SQL functions of submission: submit, cancel, status."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from pgmta.errors import SubmissionError
from pgmta.store.queries import queries

_SQL = queries("sql_interface")

type Connection = psycopg.Connection[dict[str, Any]]


def submit(db: Connection, metadata: Mapping[str, str], **arguments: Any) -> int:
    """Submit a message by pgmta.submit with its arguments, and return the message id.

    The lines of the content end with CRLF. Raises SubmissionError, psycopg.Error.
    """
    return int(_call(db, "submit", {**arguments, "metadata": json.dumps(dict(metadata))})[0]["id"])


def cancel(db: Connection, message_id: int, reason: str | None) -> int:
    """Cancel a message; return the number of recipients that were stopped.

    Raises SubmissionError, psycopg.Error.
    """
    return int(_call(db, "cancel", {"id": message_id, "reason": reason})[0]["stopped"])


def status(db: Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the state of each recipient of these messages. Raises psycopg.Error."""
    return _call(db, "status", {"ids": list(ids)})


def _call(db: Connection, name: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        return db.execute(_SQL[name], params).fetchall()
    except psycopg.Error as error:
        if not error.diag.column_name:
            raise
        said = (error.diag.message_primary, error.diag.message_detail, error.diag.message_hint)
        raise SubmissionError(". ".join(text.rstrip(".") for text in said if text)) from error
