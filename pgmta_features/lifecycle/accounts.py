"""Accounts and tokens of the schema lifecycle, as commands change them."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from pgmta.errors import ConfigError, PgmtaError
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries

_SQL = feature_queries("lifecycle")
_NOT_INSTALLED = "there is no schema lifecycle: run `queuectl lifecycle install`"


async def insert_accounts(db: OperatorConnection, accounts: Iterable[tuple[str, str]]) -> None:
    """Insert accounts of these mailboxes and logins, each in a separate transaction.

    Raises PgmtaError if the schema is not there, psycopg.Error.
    """
    try:
        for email, login in accounts:
            await db.execute(_SQL["insert_account"], {"email": email, "login": login})
    except psycopg.errors.UndefinedTable:
        raise PgmtaError(_NOT_INSTALLED) from None


async def mail_again(db: OperatorConnection, action: str | None, seconds: float) -> int:
    """Make new tokens for those that expired in the last `seconds` before their mail left.

    Returns how many. Raises ConfigError for an unknown action, PgmtaError if the schema is not
    there, psycopg.Error.
    """
    try:
        (row,) = await db.rows(_SQL["mail_again"], {"action": action, "seconds": seconds})
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction):
        raise PgmtaError(_NOT_INSTALLED) from None
    except psycopg.errors.InvalidParameterValue as error:
        hint = error.diag.message_hint
        text = f"{error.diag.message_primary}{hint and f'. {hint}'}"
        raise ConfigError([f"--action: {text}"]) from None
    return int(row["number"])
