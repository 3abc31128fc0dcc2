"""Applications with a users table of their own, in databases whose owner has no other right."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from click.testing import CliRunner, Result
from psycopg.conninfo import make_conninfo

from pgmta.postgres.embedded.programs import tool
from pgmta.store.admin.migrate import migrate
from queued.cli.queuectl import main
from tests.features.lifecycle.tokens import put_templates
from tests.support.database import fresh_database

_DJANGO = """
import sys, django
from django.conf import settings
from django.core.management import call_command
from psycopg.conninfo import conninfo_to_dict
given = conninfo_to_dict(sys.argv[1])
keys = {"dbname": "NAME", "user": "USER", "host": "HOST", "port": "PORT"}
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"], USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql",
        "OPTIONS": {"options": "-c search_path=public"},
        **{keys[key]: value for key, value in given.items() if key in keys}}})
django.setup()
exec(sys.argv[2])
"""


class Application(NamedTuple):
    """A users table: how it is made and bound, and a row of it by a number `n`, not activated."""

    made: str
    bind: list[str]
    table: str
    columns: str
    row: str
    id: str
    email: str
    active: str
    suspend: str


DJANGO = Application(
    "", ["auth_user", "--active", "is_active"], "auth_user",
    "username, password, email, is_active, first_name, last_name, is_staff, is_superuser,"
    " date_joined",
    "'u' || n, '!', 'u' || n || '@b.example', false, 'Ann', '', false, false, now()",
    "id", "email", "is_active", "is_active = false",
)  # fmt: skip

UUID = Application(
    "CREATE TYPE public.member_state AS ENUM ('new', 'ok', 'off');"
    "CREATE TABLE public.members (member uuid PRIMARY KEY DEFAULT gen_random_uuid(), mail text"
    " NOT NULL, state public.member_state NOT NULL DEFAULT 'new', lang varchar(5), phone integer"
    " UNIQUE, CONSTRAINT named CHECK (mail LIKE '%@%'));",
    ["members", "--email", "mail", "--status", "state", "--status-words",
     "new=provisioned,ok=active,off=suspended", "--language", "lang"],
    "public.members", "mail, lang", "'u' || n || '@b.example', 'de'", "member", "mail",
    "state = 'ok'", "state = 'off'",
)  # fmt: skip

CAPITALS = Application(
    'CREATE SCHEMA "My Shop$pgmta$"; CREATE TABLE "My Shop$pgmta$"."Users" ("Id" varchar(40)'
    ' PRIMARY KEY, "EMail" varchar(254) NOT NULL, "UserName" varchar(100) UNIQUE, "ConfirmedAt"'
    ' timestamptz, "Blocked" boolean, "FirstName" text);',
    ['"My Shop$pgmta$"."Users"', "--login", "UserName", "--confirmed", "confirmedat",
     "--blocked", "Blocked", "--words", "FirstName"],
    '"My Shop$pgmta$"."Users"', '"Id", "EMail", "UserName", "FirstName"',
    "'c' || n, 'u' || n || '@b.example', 'u' || n, 'Ann'", '"Id"', '"EMail"',
    '"ConfirmedAt" IS NOT NULL', '"Blocked" = true',
)  # fmt: skip

OWN = Application(
    "", [], "lifecycle.accounts", "email, login", "'u' || n || '@b.example', 'u' || n", "id",
    "email", "status = 'active'", "status = 'suspended'",
)  # fmt: skip


def django(uri: str, code: str) -> None:
    """Run code in a process with Django on this database."""
    subprocess.run([sys.executable, "-c", _DJANGO, uri, code], check=True, timeout=120)


@contextmanager
def plain_template(server: str) -> Iterator[tuple[str, str]]:
    """Name of a migrated database, and of its owner, who is no superuser and may make no role."""
    owner = f"plain_{uuid.uuid4().hex[:8]}"
    with fresh_database(server) as uri, psycopg.connect(server, autocommit=True) as db:
        name = psycopg.conninfo.conninfo_to_dict(uri)["dbname"]
        db.execute(f"CREATE ROLE {owner} LOGIN; ALTER DATABASE {name} OWNER TO {owner}".encode())
        migrate(make_conninfo(uri, user=owner))
        yield str(name), owner
        with psycopg.connect(uri, autocommit=True) as last:
            last.execute(f"DROP SCHEMA pgmta CASCADE; DROP OWNED BY {owner}".encode())
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"DROP ROLE {owner}".encode())


@contextmanager
def plain_database(server: str, template: tuple[str, str]) -> Iterator[str]:
    """URI of a copy as its owner, with templates of mail."""
    name, owner = template
    with fresh_database(server, name) as uri:
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute(f"ALTER DATABASE {db.info.dbname} OWNER TO {owner}".encode())
            put_templates(db)
        yield make_conninfo(uri, user=owner)


def queuectl(uri: str, *arguments: str) -> Result:
    """The result of `queuectl lifecycle …` on this database."""
    return CliRunner().invoke(main, ["lifecycle", *arguments], env={"PGMTA_DATABASE_URI": uri})


def dump(uri: str, *but: str) -> str:
    """The statements that make what is there, but for the schema pgmta and others."""
    left_out = [part for schema in ("pgmta", *but) for part in ("-N", schema)]
    result = subprocess.run(
        [tool("pg_dump"), "--schema-only", *left_out, uri],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    # a random word is in two lines
    return "\n".join(line for line in result.stdout.splitlines() if "restrict" not in line)
