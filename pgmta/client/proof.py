"""prove: whether what a program has committed over its own connection is durable."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, overload

import psycopg
from psycopg.pq import TransactionStatus

from pgmta.client.own_connection import AsyncAlchemy, call_on
from pgmta.errors import Undecided
from pgmta.postgres.durability import PROOF, UNPROVEN


@overload
def prove(connection: psycopg.AsyncConnection[Any] | AsyncAlchemy) -> Coroutine[Any, Any, None]: ...
@overload
def prove(connection: psycopg.Connection[Any]) -> None: ...
@overload
def prove(connection: Any) -> None: ...
def prove(connection: Any) -> Coroutine[Any, Any, None] | None:
    """Return when all that was committed and visible before is durable, on the standbys too.

    A program needs it if its connection broke in a COMMIT, and it then looks whether that was done.
    A COMMIT with the warning 01000 needs it too. A repetition with the same `key` needs none. The
    connection is one that `enqueue` takes, outside a transaction: the call commits one of its own,
    and waits for the synchronous standbys without a limit. Of an asynchronous one the answer is
    awaited. Raises Undecided if PostgreSQL was told to wait no longer, ValueError in a transaction,
    TypeError for another connection, and the errors of the driver.
    """
    found: Coroutine[Any, Any, None] | None = call_on(
        connection, _psycopg, _psycopg_later, _sqlalchemy, _django
    )
    return found


def _psycopg(connection: psycopg.Connection[Any]) -> None:
    _refuse(connection.info.transaction_status != TransactionStatus.IDLE)
    with _alone(connection), connection.transaction():
        connection.execute(PROOF, prepare=False)


async def _psycopg_later(connection: psycopg.AsyncConnection[Any]) -> None:
    _refuse(connection.info.transaction_status != TransactionStatus.IDLE)
    with _alone(connection):
        async with connection.transaction():
            await connection.execute(PROOF, prepare=False)


def _sqlalchemy(connection: Any, text: Any) -> None:
    _refuse(connection.in_transaction())
    try:
        own = connection.connection() if hasattr(connection, "get_bind") else connection
        with _alone(own.connection.driver_connection):
            connection.execute(text(PROOF))
            connection.commit()
    except BaseException:
        connection.rollback()
        raise


def _django(connection: Any) -> None:
    _refuse(not connection.get_autocommit())
    with connection.cursor() as cursor, _alone(connection.connection):
        cursor.execute(PROOF)


def _refuse(open_: bool) -> None:
    if open_:
        raise ValueError("connection: it is in a transaction, which has to end before a proof")


@contextmanager
def _alone(driver: Any) -> Iterator[None]:
    """Raise Undecided if PostgreSQL says anything meanwhile: it can only be the warning."""
    said: list[object] = []

    def note(*what: object) -> None:
        said.append(what)

    if hasattr(driver, "add_notice_handler"):  # psycopg
        driver.add_notice_handler(note)
        forget = partial(driver.remove_notice_handler, note)
    elif hasattr(driver, "add_log_listener"):  # asyncpg
        driver.add_log_listener(note)
        forget = partial(driver.remove_log_listener, note)
    elif hasattr(driver, "notices"):  # psycopg2 and pg8000
        forget = partial(setattr, driver, "notices", driver.notices)
        driver.notices = said
    else:
        raise TypeError(
            f"connection: its driver {type(driver).__module__} does not report warnings, so it "
            "can prove nothing: give a connection of psycopg"
        )
    try:
        yield
    finally:
        forget()
    if said:
        raise Undecided(UNPROVEN)
