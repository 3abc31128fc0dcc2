"""A database with the schema lifecycle, and templates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta_features.lifecycle.installation import install
from tests.features.lifecycle.tokens import put_templates
from tests.scenarios.conftest import installation
from tests.support.database import fresh_database, owned_template
from tests.support.rows import fetch
from tests.support.system import System


@pytest.fixture(scope="session")
def owned(server: str) -> Iterator[tuple[str, str]]:
    """Name of a migrated database, and its owner, who is no superuser."""
    with owned_template(server) as found:
        yield found


@pytest.fixture
def database(server: str, owned: tuple[str, str]) -> Iterator[str]:
    """URI of such a database, as a superuser."""
    with _owned_database(server, owned) as uri:
        yield uri


@pytest.fixture
def accounts(database: str, db: psycopg.Connection) -> psycopg.Connection:
    """A superuser's session that sees the schema lifecycle without its name."""
    (owner,) = fetch(db, "SELECT relowner::regrole::text FROM pg_class WHERE relname = 'messages'")
    install(make_conninfo(database, user=owner))
    db.execute("SET search_path = lifecycle")
    put_templates(db)
    return db


@pytest.fixture
def system(accounts: psycopg.Connection, database: str, tmp_path: Path) -> Iterator[System]:
    yield from installation(tmp_path, database)


@pytest.fixture
def root(server: str, owned: tuple[str, str]) -> Iterator[psycopg.Connection]:
    """The same session for tests elsewhere, in another such database."""
    with _owned_database(server, owned) as uri, psycopg.connect(uri, autocommit=True) as db:
        install(make_conninfo(uri, user=owned[1]))
        put_templates(db)
        yield db


@contextmanager
def _owned_database(server: str, owned: tuple[str, str]) -> Iterator[str]:
    template, owner = owned
    with fresh_database(server, template) as uri:
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute(f"ALTER DATABASE {db.info.dbname} OWNER TO {owner}".encode())
        yield uri
