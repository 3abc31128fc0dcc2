"""Accounts of the schema lifecycle."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import psycopg

from pgmta.errors import PgmtaError, StoreUnavailable
from pgmta.postgres.fit_session import writable

_INSERT = "INSERT INTO lifecycle.accounts (email, login) VALUES (%s, %s)"


def insert_accounts(uri: str, accounts: Iterable[tuple[str, str]]) -> None:
    """Insert accounts of these mailboxes and logins, each in a separate transaction.

    Raises PgmtaError if the schema is not there, StoreUnavailable and psycopg.Error.
    """
    try:
        with closing(psycopg.connect(writable(uri), autocommit=True)) as db:
            for account in accounts:
                db.execute(_INSERT, account)
    except psycopg.errors.UndefinedTable:
        raise PgmtaError("there is no schema lifecycle: run `queuectl lifecycle install`") from None
    except psycopg.OperationalError as error:
        raise StoreUnavailable(str(error).strip()) from error
