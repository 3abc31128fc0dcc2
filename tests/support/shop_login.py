"""A login of an application: it may submit mail, and owns the table of its orders."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

ORDERS = "CREATE TABLE public.orders (number integer PRIMARY KEY, mail bigint)"


@contextmanager
def shop_login(database: str, role: str = "pgmta_submit") -> Iterator[str]:
    """URI of a login with this role alone; removed afterwards."""
    login = f"shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE {role}".encode())
        owner.execute(f"GRANT ALL ON SCHEMA public TO {login}".encode())
        # as in the database of an application: the setting of the template has pgmta in it
        owner.execute(f"ALTER ROLE {login} SET search_path = public".encode())
        try:
            yield make_conninfo(database, user=login, password="x")
        finally:
            owner.execute(f"DROP OWNED BY {login}; DROP ROLE {login}".encode())


def url(uri: str, scheme: str = "postgresql") -> str:
    """Return a connection string of libpq as a URL, which all clients take."""
    given = conninfo_to_dict(uri)
    people = f"{quote(str(given['user']))}:{quote(str(given.get('password') or ''))}"
    host = str(given.get("host") or "")
    at = "" if host.startswith("/") else f"{host}:{given.get('port', 5432)}"
    more = {"host": host, "port": str(given.get("port", 5432))} if not at else {}
    return f"{scheme}://{people}@{at}/{given['dbname']}" + (f"?{urlencode(more)}" if more else "")
