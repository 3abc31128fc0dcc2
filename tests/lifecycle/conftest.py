"""A database with the schema lifecycle, and templates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgmta.store.lifecycle.installation import install
from tests.lifecycle.tokens import put_templates
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
