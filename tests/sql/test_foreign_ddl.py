"""An event trigger of others that refuses our tables is named."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.errors import MigrationError
from pgmta.store.admin.migrate import migrate
from queued.cli.doctor.server_checks import ServerChecks
from tests.support.database import fresh_database
from tests.support.operating import diagnosed

TRIGGER = """
CREATE TABLE public.ddl_log (tag text);
CREATE FUNCTION public.log_ddl() RETURNS event_trigger LANGUAGE plpgsql {} AS
$$ BEGIN INSERT INTO {}ddl_log VALUES (tg_tag); END $$;
CREATE EVENT TRIGGER log_ddl ON ddl_command_end EXECUTE FUNCTION public.log_ddl();
"""


@pytest.fixture
def owner(server: str) -> Iterator[tuple[str, psycopg.Connection]]:
    """URI of an owner who is no superuser, and a superuser's connection, to an empty database."""
    name = f"owner_{uuid.uuid4().hex[:8]}"
    with fresh_database(server) as uri, psycopg.connect(uri, autocommit=True) as db:
        db.execute(f"CREATE ROLE {name} LOGIN".encode())
        try:
            db.execute(f"ALTER DATABASE {db.info.dbname} OWNER TO {name}".encode())
            yield make_conninfo(uri, user=name), db
        finally:
            db.execute("DROP EVENT TRIGGER IF EXISTS log_ddl")
            db.execute(f"ALTER DATABASE {db.info.dbname} OWNER TO CURRENT_USER".encode())
            db.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


@pytest.mark.parametrize("schema", ["", "public."])
def test_it_is_named(owner: tuple[str, psycopg.Connection], schema: str) -> None:
    uri, db = owner
    db.execute(TRIGGER.format("", schema).encode())
    with pytest.raises(MigrationError, match=r"ddl_log.*function public\.log_ddl\(\)"):
        migrate(uri)
    db.execute(
        "ALTER FUNCTION public.log_ddl() SECURITY DEFINER;"
        "ALTER FUNCTION public.log_ddl() SET search_path = public"
    )
    migrate(uri)
    assert diagnosed(uri, lambda examination: ServerChecks(examination).days()) == []
    db.execute(
        "DO $$ BEGIN EXECUTE 'DROP TABLE pgmta.attempts_'"
        " || to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD'); END $$"
    )
    (found,) = diagnosed(uri, lambda examination: ServerChecks(examination).days())
    assert "log_ddl" in found.remedy
