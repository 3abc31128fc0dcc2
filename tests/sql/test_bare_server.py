"""Migrations on a server that has no roles of pgmta yet."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator

import psycopg
import pytest

from pgmta.postgres.embedded.embedded_server import EmbeddedServer
from pgmta.store.admin.migrate import migrate
from pgmta_features.lifecycle.installation import install
from tests.sql.test_roles import ROLES, acting
from tests.sql.test_surface import one
from tests.support.database import memory_folder, with_database


@pytest.fixture
def bare_server() -> Iterator[str]:
    """URI of a server without pgmta's roles; its databases p0 … p3 belong to `plain`."""
    folder = memory_folder()
    server = EmbeddedServer(folder)
    server.start()
    uri = server.uri("postgres")
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("CREATE ROLE plain")
        for number in range(4):
            db.execute(f"CREATE DATABASE p{number} OWNER plain".encode())
    yield uri
    server.stop("immediate")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_an_owner_without_createrole_gets_everything_but_the_roles(bare_server: str) -> None:
    uri = with_database(bare_server, "p0")
    warnings: list[str] = []
    migrate(acting(uri, "plain"), warnings.append)
    assert len(warnings) == 1
    assert "call pgmta.grants()" in warnings[0]
    with psycopg.connect(uri, autocommit=True) as db:
        assert one(db, "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'pgmta%'") == 0
        db.execute("CREATE ROLE pgmta_smtpd")
        db.execute("SET ROLE plain")
        assert sorted(one(db, "SELECT grants()")) == sorted(ROLES[1:])
        db.execute("RESET ROLE; SET ROLE pgmta_smtpd")
        assert one(db, "SELECT nextval('message_ids')") == 1


@pytest.mark.slow
def test_lifecycle_gives_rights_to_roles_that_come_later(bare_server: str) -> None:
    uri = with_database(bare_server, "p0")
    migrate(acting(uri, "plain"))
    assert install(acting(uri, "plain"))
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("CREATE ROLE pgmta_web")
        db.execute("SET ROLE plain")
        missing = one(db, "SELECT lifecycle.grants()")
        assert missing == ["pgmta_operator", "pgmta_queued", "pgmta_reader", "pgmta_submit"]
        needed = one(db, "SELECT lifecycle.binding_role()")
        db.execute("RESET ROLE")
        db.execute(needed.encode())
        db.execute("SET ROLE plain")
        assert one(db, "SELECT lifecycle.binding_role()") is None
        db.execute("RESET ROLE; SET ROLE pgmta_web")
        refused = "SELECT why FROM lifecycle.token_consume('x', 'activation')"
        assert one(db, refused) == "unknown"


@pytest.mark.slow
def test_databases_of_one_server_migrate_at_the_same_moment(bare_server: str) -> None:
    errors: list[Exception] = []

    def run(name: str) -> None:
        try:
            migrate(with_database(bare_server, name))
        except Exception as error:  # whatever it is, the test reports it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(f"p{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for number in range(4):
        with psycopg.connect(with_database(bare_server, f"p{number}")) as db:
            assert one(db, "SELECT grants()") == []
            db.execute("SET ROLE pgmta_reader")
            db.execute("TABLE queue_overview")
