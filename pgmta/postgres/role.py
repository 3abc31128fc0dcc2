"""The group role that a login needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from pgmta.errors import PgmtaError

ROLE_QUESTION = """
SELECT quote_ident(current_user), to_regrole(%(role)s::text) IS NOT NULL,
    coalesce(pg_has_role(to_regrole(%(role)s::text), 'USAGE'), false),
    to_regnamespace('pgmta') IS NOT NULL, has_schema_privilege(to_regnamespace('pgmta'), 'USAGE')
"""
"""Asks about this session and a `role`. Its one row is the `answer` of `lacking`."""

GRANTS: Final = "the owner of the schema runs `SELECT pgmta.grants();`"
"""The remedy for rights that a role has lost, as by a restore without privileges."""


_TEMPORARY = """
SELECT quote_ident(current_database()), quote_ident(current_user)
WHERE NOT has_database_privilege(current_database(), 'TEMPORARY')
"""


async def require_temporary(db: psycopg.AsyncConnection[Any]) -> None:
    """Raise PgmtaError with the remedy if the login may make no temporary tables.

    Every login may, unless somebody has taken the right from PUBLIC.
    """
    async with db.cursor(row_factory=tuple_row) as cursor:
        found = await (await cursor.execute(_TEMPORARY)).fetchone()
    if found:
        database, login = found
        raise PgmtaError(
            "rows wait in a temporary table, for which the login lacks the right: the owner of the "
            f"database runs `GRANT TEMPORARY ON DATABASE {database} TO {login};`"
        )


def group_of(program: str) -> str:
    """Return the group role of a daemon's logins."""
    return f"pgmta_{program}"


def lacking(role: str, answer: Sequence[Any]) -> str:
    """Return what the login lacks to work in the role, with the statement that mends it.

    Return '' if it has the role, and the role may use schema pgmta, or if there is no such schema.
    """
    login, made, member, schema, usage = answer
    if not schema or (member and usage):
        return ""
    if member:
        return f"the role {role} lacks rights in schema pgmta: {GRANTS}"
    grant = f"`GRANT {role} TO {login};`"
    if made:
        return f"the login {login} is not in the role {role}: run {grant} as a superuser"
    return (
        f"the role {role} is missing: run `CREATE ROLE {role};` and {grant} as a superuser, and "
        "`SELECT pgmta.grants();` as the owner of schema pgmta"
    )
