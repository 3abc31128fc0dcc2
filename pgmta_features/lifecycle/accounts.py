"""Accounts of the schema lifecycle."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries

_SQL = feature_queries("lifecycle")


async def insert_accounts(db: OperatorConnection, accounts: Iterable[tuple[str, str]]) -> None:
    """Insert accounts of these mailboxes and logins, each in a separate transaction.

    Raises PgmtaError if the schema is not there, psycopg.Error.
    """
    try:
        for email, login in accounts:
            await db.execute(_SQL["insert_account"], {"email": email, "login": login})
    except psycopg.errors.UndefinedTable:
        reason = "there is no schema lifecycle: run `queuectl lifecycle install`"
        raise PgmtaError(reason) from None
