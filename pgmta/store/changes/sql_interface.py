"""Calls the SQL functions of submission: submit, submit_mail, submit_template, cancel, status."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from pgmta.compose.submitted_mail import Mail, TemplateMail
from pgmta.store.queries import Statement, queries
from pgmta.store.queue.submit import refused, statements

_SQL = queries("sql_interface")

type Connection = psycopg.Connection[dict[str, Any]]


def submit(db: Connection, *, metadata: Mapping[str, str], **arguments: Any) -> int:
    """Submit a message by pgmta.submit with its arguments, and return the message id.

    The lines of the content end with CRLF. Raises SubmissionError, psycopg.Error.
    """
    return int(
        _call(db, _SQL["submit"], {**arguments, "metadata": json.dumps(dict(metadata))})[0]["id"]
    )


def submit_composed(db: Connection, mail: Mail | TemplateMail) -> int:
    """Submit composed mail, wake the workers, and return the message id.

    Raises SubmissionError, ValueError for a time without its zone, psycopg.Error.
    """
    return int(_call(db, statements()[mail.STATEMENT], {**mail.arguments(), "wake": True})[0]["id"])


def cancel(db: Connection, message_id: int, reason: str | None) -> int:
    """Cancel a message; return the number of recipients that were stopped.

    Raises SubmissionError, psycopg.Error.
    """
    return int(_call(db, _SQL["cancel"], {"id": message_id, "reason": reason})[0]["stopped"])


def status(db: Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the state of each recipient of these messages. Raises psycopg.Error."""
    return _call(db, _SQL["status"], {"ids": list(ids)})


def _call(db: Connection, statement: Statement, params: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        return db.execute(statement, params).fetchall()
    except psycopg.Error as error:
        raise refused(error) from error
