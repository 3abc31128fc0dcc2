"""A database with the schema lifecycle, and templates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgmta.store.lifecycle.installation import install
from tests.lifecycle.tokens import put_templates
from tests.support.database import fresh_database, owned_template
from tests.support.system import System


@pytest.fixture
def accounts(database: str, db: psycopg.Connection) -> psycopg.Connection:
    """A session that sees the schema lifecycle without its name."""
    install(database)
    db.execute("SET search_path = lifecycle")
    put_templates(db)
    return db


@pytest.fixture
def system(accounts: psycopg.Connection, database: str, tmp_path: Path) -> Iterator[System]:
    """Daemons on that database."""
    system = System(tmp_path, database)
    yield system
    system.clean()


@pytest.fixture(scope="session")
def owned(server: str) -> Iterator[tuple[str, str]]:
    """Name of a database with the schema lifecycle, and its owner, who is no superuser."""
    with owned_template(server) as found:
        yield found


@pytest.fixture
def root(server: str, owned: tuple[str, str]) -> Iterator[psycopg.Connection]:
    """A superuser's session in a database whose owner is none."""
    template, owner = owned
    with (
        fresh_database(server, template) as uri,
        psycopg.connect(uri, autocommit=True) as db,
    ):
        db.execute(f"ALTER DATABASE {db.info.dbname} OWNER TO {owner}".encode())
        put_templates(db)
        yield db
