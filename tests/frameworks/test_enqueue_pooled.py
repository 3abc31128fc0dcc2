"""Mail by each library, behind a pooler in transaction mode: it goes with its order or not at all.

The library prepares nothing and sets nothing on the one connection that all of them share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection as django_connection
from django.db import transaction as django_transaction
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import pgmta
from pgmta.django import EmailBackend
from tests.frameworks.django_settings import django_on
from tests.support.pooler import pgbouncer
from tests.support.rows import column
from tests.support.shop_login import shop_login, url

TABLE = "CREATE TABLE public.orders (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
INSERT = "INSERT INTO public.orders VALUES (%s)"
NAMED = text("INSERT INTO public.orders VALUES (:number)")
ROUNDS = 7  # psycopg prepares a statement that it has executed five times
NO_CACHE: dict[str, Any] = {"prepare_threshold": None}
STATE = """
SELECT (SELECT array_agg(name || '=' || setting ORDER BY name) FROM pg_settings
        WHERE source = 'session' AND name NOT IN ('client_encoding', 'DateStyle', 'TimeZone',
            'application_name', 'standard_conforming_strings')),  -- pgbouncer sets these
    (SELECT count(*) FROM pg_prepared_statements),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""


@dataclass(frozen=True)
class Order:
    """An order with its mail; an undone one is in a savepoint that is rolled back."""

    number: int
    undone: bool = False

    @property
    def mail(self) -> pgmta.Mail:
        return pgmta.Mail(
            sender="shop@example.org", to=[f"o{self.number}@example.com"], subject="Order", body="."
        )


Way = Callable[[str, Sequence[Order], bool], Awaitable[None]]


async def psycopg_sync(uri: str, orders: Sequence[Order], commit: bool) -> None:
    with psycopg.connect(uri) as db:
        db.execute("SELECT 1", prepare=False)  # so transaction() makes savepoints
        for each in orders:
            with db.transaction(force_rollback=each.undone):
                db.execute(INSERT, (each.number,), prepare=False)
                pgmta.enqueue(db, each.mail)
        db.commit() if commit else db.rollback()


async def psycopg_async(uri: str, orders: Sequence[Order], commit: bool) -> None:
    async with await psycopg.AsyncConnection.connect(uri) as db:
        await db.execute("SELECT 1", prepare=False)
        for each in orders:
            async with db.transaction(force_rollback=each.undone):
                await db.execute(INSERT, (each.number,), prepare=False)
                await pgmta.enqueue(db, each.mail)
        await (db.commit() if commit else db.rollback())


@contextmanager
def _engine(uri: str) -> Iterator[Engine]:
    engine = create_engine(url(uri, "postgresql+psycopg"), connect_args=NO_CACHE)
    try:
        yield engine
    finally:
        engine.dispose()


async def sqlalchemy_connection(uri: str, orders: Sequence[Order], commit: bool) -> None:
    with _engine(uri) as engine, engine.connect() as db:
        for each in orders:
            savepoint = db.begin_nested()
            db.execute(NAMED, {"number": each.number})
            pgmta.enqueue(db, each.mail)
            savepoint.rollback() if each.undone else savepoint.commit()
        db.commit() if commit else db.rollback()


async def sqlalchemy_session(uri: str, orders: Sequence[Order], commit: bool) -> None:
    with _engine(uri) as engine, Session(engine) as session:
        for each in orders:
            savepoint = session.begin_nested()
            session.execute(NAMED, {"number": each.number})
            pgmta.enqueue(session, each.mail)
            savepoint.rollback() if each.undone else savepoint.commit()
        session.commit() if commit else session.rollback()


async def _sqlalchemy_async(
    db: AsyncConnection | AsyncSession, orders: Sequence[Order], commit: bool
) -> None:
    for each in orders:
        savepoint = await db.begin_nested()
        await db.execute(NAMED, {"number": each.number})
        await pgmta.enqueue(db, each.mail)
        await (savepoint.rollback() if each.undone else savepoint.commit())
    await (db.commit() if commit else db.rollback())


@asynccontextmanager
async def _async_engine(
    uri: str, driver: str = "psycopg", end: str = "", **options: Any
) -> AsyncIterator[AsyncEngine]:
    address = url(uri, f"postgresql+{driver}") + end
    engine = create_async_engine(address, connect_args=options or NO_CACHE)
    try:
        yield engine
    finally:
        await engine.dispose()


async def sqlalchemy_async_connection(uri: str, orders: Sequence[Order], commit: bool) -> None:
    async with _async_engine(uri) as engine, engine.connect() as db:
        await _sqlalchemy_async(db, orders, commit)


async def sqlalchemy_async_session(uri: str, orders: Sequence[Order], commit: bool) -> None:
    async with _async_engine(uri) as engine, AsyncSession(engine) as session:
        await _sqlalchemy_async(session, orders, commit)


async def sqlalchemy_asyncpg(uri: str, orders: Sequence[Order], commit: bool) -> None:
    end, options = "?prepared_statement_cache_size=0", {"statement_cache_size": 0}
    unnamed = {"prepared_statement_name_func": lambda: ""}
    async with (
        _async_engine(uri, "asyncpg", end, **options, **unnamed) as engine,
        AsyncSession(engine) as session,
    ):
        await _sqlalchemy_async(session, orders, commit)


async def django(uri: str, orders: Sequence[Order], commit: bool) -> None:
    def work() -> None:
        with django_on(uri), django_transaction.atomic():
            for each in orders:
                with django_transaction.atomic(), django_connection.cursor() as cursor:
                    cursor.execute(INSERT, [each.number])
                    pgmta.enqueue(django_connection, each.mail)
                    django_transaction.set_rollback(each.undone)
            django_transaction.set_rollback(not commit)

    await sync_to_async(work)()


WAYS = [
    psycopg_sync, psycopg_async, sqlalchemy_connection, sqlalchemy_session,
    sqlalchemy_async_connection, sqlalchemy_async_session, sqlalchemy_asyncpg, django,
]  # fmt: skip


@pytest.fixture
def pooled(database: str) -> Iterator[str]:
    with shop_login(database) as shop:
        with psycopg.connect(shop, autocommit=True) as db:
            db.execute(TABLE.encode())
        with pgbouncer(shop) as uri:
            yield uri


def state(uri: str) -> Any:
    with psycopg.connect(uri, autocommit=True) as db:
        return db.execute(STATE.encode(), prepare=False).fetchone()


@pytest.mark.needs("pgbouncer")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_mail_goes_with_its_order(way: Way, pooled: str, db: psycopg.Connection) -> None:
    before, kept = state(pooled), list(range(1, 20))
    await way(pooled, [Order(number, undone=number == 0) for number in range(20)], True)
    await way(pooled, [Order(number) for number in range(30, 40)], False)
    with pytest.raises(Exception, match="duplicate key value"):  # the COMMIT
        await way(pooled, [Order(40), Order(1)], True)
    assert sorted(column(db, "SELECT number FROM public.orders")) == kept
    sent = column(db, "SELECT recipient FROM queue ORDER BY message_id")
    assert sent == [f"o{number}@example.com" for number in kept]
    assert state(pooled) == before


@pytest.mark.needs("pgbouncer")
async def test_one_connection_prepares_nothing(pooled: str) -> None:
    before = state(pooled)
    with psycopg.connect(pooled, autocommit=True) as db:
        for number in range(ROUNDS):
            pgmta.enqueue(db, Order(number).mail)
    async with await psycopg.AsyncConnection.connect(pooled, autocommit=True) as later:
        for number in range(ROUNDS):
            await pgmta.enqueue(later, Order(number).mail)
    assert state(pooled) == before


@pytest.mark.needs("pgbouncer")
def test_djangos_backend_prepares_nothing(pooled: str, db: psycopg.Connection) -> None:
    before = state(pooled)
    with django_on(pooled):
        from django.core.mail import EmailMessage

        for number in range(ROUNDS):
            group = [EmailMessage(str(number), ".", to=[f"{n}@example.com"]) for n in range(2)]
            assert EmailBackend(alias="test").send_messages(group) == 2
    assert len(column(db, "SELECT id FROM queue")) == 2 * ROUNDS
    assert state(pooled) == before
