"""The connection of an operator's command."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row, tuple_row

from pgmta.errors import LoginRefused, StoreUnavailable
from pgmta.postgres import instants
from pgmta.postgres.locate import LOOK_IN_PGMTA, writable
from pgmta.postgres.pooler import forbid_pooler

_SHUT_OUT = """
SELECT quote_ident(current_user) WHERE NOT has_schema_privilege(to_regnamespace('pgmta'), 'USAGE')
"""


def connect_operator(uri: str) -> psycopg.Connection[dict[str, Any]]:
    """Open the blocking connection of a command, in autocommit, with rows as dictionaries.

    Of several servers it takes one that takes writes, or else any. Raises StoreUnavailable, also if
    a pooler stands before the server.
    """
    wishes = dict.fromkeys((writable(uri), uri))
    for wish in wishes:
        try:
            connection = psycopg.connect(
                wish, autocommit=True, row_factory=dict_row, application_name="pgmta queuectl"
            )
            try:
                prepare(connection)
            except BaseException:
                connection.close()
                raise
            return connection
        except psycopg.OperationalError as error:
            failure = error
    raise StoreUnavailable(str(failure).strip()) from failure


class OperatorLink:
    """Has the separate connection of a command. Raises StoreUnavailable when it opens."""

    def __init__(self, uri: str) -> None:
        self._db = connect_operator(uri)

    def close(self) -> None:
        """End the connection."""
        self._db.close()


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Make a connection look in schema pgmta, and read every time that PostgreSQL can store.

    Raises StoreUnavailable if a pooler stands before the server; LoginRefused if the login has no
    role of pgmta; psycopg.Error.
    """
    forbid_pooler(connection, {"search_path": "pgmta"})
    for statement in LOOK_IN_PGMTA:
        connection.execute(statement)
    for (name,) in connection.cursor(row_factory=tuple_row).execute(_SHUT_OUT):
        raise LoginRefused(
            f"the login {name} has no role of pgmta: a superuser runs `GRANT pgmta_operator TO "
            f"{name};`, or pgmta_reader, which changes nothing (docs/sql.md)"
        )
    # to compile a query of a command takes longer than the query, over many partitions
    connection.execute("SET jit = off")
    instants.register(connection)
