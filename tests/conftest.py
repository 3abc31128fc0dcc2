"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.database import PrivateServer, fresh_database, server_uri, template_database


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of the server under test (POSTERN_TEST_URI, or an embedded PostgreSQL 18)."""
    return server_uri(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """Name of a migrated database."""
    with template_database(server) as name:
        yield name


@pytest.fixture
def database(server: str, template: str) -> Iterator[str]:
    """URI of an empty, migrated database of this test's own."""
    with fresh_database(server, template) as uri:
        yield uri


@pytest.fixture
def db(database: str) -> Iterator[psycopg.Connection]:
    """A connection to `database`, in autocommit."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def private_server(tmp_path: Path) -> Iterator[PrivateServer]:
    """A PostgreSQL that the test may crash."""
    server = PrivateServer(tmp_path / "private")
    yield server
    server.crash()
