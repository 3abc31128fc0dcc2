"""Accounts of the schema lifecycle."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import psycopg

from pgmta.errors import PgmtaError
from pgmta.postgres.operator import connect_operator
from pgmta.store.queries import feature_queries

_SQL = feature_queries("lifecycle")


def insert_accounts(uri: str, accounts: Iterable[tuple[str, str]]) -> None:
    """Insert accounts of these mailboxes and logins, each in a separate transaction.

    Raises PgmtaError if the schema is not there, StoreUnavailable and psycopg.Error.
    """
    with closing(connect_operator(uri)) as db:
        try:
            for email, login in accounts:
                db.execute(_SQL["insert_account"], {"email": email, "login": login})
        except psycopg.errors.UndefinedTable:
            reason = "there is no schema lifecycle: run `queuectl lifecycle install`"
            raise PgmtaError(reason) from None
