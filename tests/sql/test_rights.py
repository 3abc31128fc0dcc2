"""The rights of each role to each object of the schema, compared with docs/operate/rights.md.

`python -m tests.sql.test_rights` writes the tables of the page anew.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path

import psycopg

from pgmta.postgres.embedded.embedded_server import EmbeddedServer
from pgmta.store.admin.migrate import migrate
from tests.support.database import data_folder

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "rights.md"
ROLES = ("smtpd", "queued", "operator", "reader", "submit", "web", "api")
STRANGER = "pgmta_test_stranger"

RELATIONS = """
WITH held AS (
    SELECT c.relname::text, c.relkind, role, what, has_table_privilege(role, c.oid, what) AS whole,
        (SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
         WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND c.relkind <> 'S'
             AND what <> 'DELETE' AND what <> 'TRUNCATE' AND what <> 'TRIGGER'
             AND has_column_privilege(role, c.oid, attnum,
                 CASE WHEN what IN ('DELETE', 'TRUNCATE', 'TRIGGER') THEN 'SELECT' ELSE what END)
        ) AS columns
    FROM pg_class AS c, unnest(%(roles)s::text[]) AS role,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'])
            AS what
    WHERE c.relnamespace = 'pgmta'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
        AND has_schema_privilege(role, 'pgmta', 'USAGE')
)
SELECT relname, role, lower(what) || CASE WHEN whole THEN '' ELSE ' (' || columns || ')' END
FROM held WHERE whole OR columns IS NOT NULL
UNION ALL
SELECT c.relname::text, role, lower(what) FROM pg_class AS c, unnest(%(roles)s::text[]) AS role,
    unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS what
WHERE c.relnamespace = 'pgmta'::regnamespace AND c.relkind = 'S'
    AND has_schema_privilege(role, 'pgmta', 'USAGE') AND has_sequence_privilege(role, c.oid, what)
UNION ALL
SELECT proname::text || '(' || oidvectortypes(proargtypes) || ')', role, 'execute'
FROM pg_proc, unnest(%(roles)s::text[]) AS role
WHERE pronamespace = 'pgmta'::regnamespace AND has_schema_privilege(role, 'pgmta', 'USAGE')
    AND has_function_privilege(role, pg_proc.oid, 'EXECUTE') AND prorettype <> 'trigger'::regtype
"""

OBJECTS = """
SELECT relname::text FROM pg_class WHERE relnamespace = 'pgmta'::regnamespace
    AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND relname !~ '_[0-9]{8}$'
UNION ALL
SELECT proname::text || '(' || oidvectortypes(proargtypes) || ')' FROM pg_proc
WHERE pronamespace = 'pgmta'::regnamespace
"""


def granted(db: psycopg.Connection) -> set[tuple[str, str, str]]:
    """Object, role and right of all rights, and an entry without a role for objects without."""
    roles = [f"pgmta_{role}" for role in ROLES]
    found = {
        (name, role.removeprefix("pgmta_"), right)
        for name, role, right in db.execute(RELATIONS.encode(), {"roles": roles})
    }
    named = {name for name, _, _ in found}
    rest = {name for (name,) in db.execute(OBJECTS.encode())} - named
    return found | {(name, "", "") for name in rest}


def page() -> set[tuple[str, str, str]]:
    """The same as docs/operate/rights.md has it."""
    found = set()
    for name, cell in re.findall(r"^\| `([^`]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE):
        for part in filter(None, cell.split("; ")):
            role, _, rights = part.partition(": ")
            found |= {(name, role, r) for r in re.findall(r"\w+(?: \([^)]*\))?", rights)}
        if not cell:
            found.add((name, "", ""))
    return found


def test_the_page_has_every_right_of_every_role(db: psycopg.Connection) -> None:
    real, told = granted(db), page()
    assert real - told == set(), "docs/operate/rights.md lacks them"
    assert told - real == set(), "docs/operate/rights.md has them, and the database does not"


def test_the_owner_may_do_all_and_a_stranger_nothing(db: psycopg.Connection) -> None:
    db.execute(f"DROP ROLE IF EXISTS {STRANGER}; CREATE ROLE {STRANGER}".encode())
    try:
        roles = {"roles": [STRANGER]}
        assert db.execute(RELATIONS.encode(), roles).fetchall() == []
        for (name,) in db.execute(OBJECTS.encode()).fetchall():
            if name.endswith(")"):
                continue
            db.execute(f"SET ROLE {STRANGER}".encode())
            try:
                db.execute(f"SELECT 1 FROM pgmta.{name}".encode())
            except psycopg.errors.InsufficientPrivilege:
                pass
            else:
                raise AssertionError(name)
            finally:
                db.execute("RESET ROLE")
    finally:
        db.execute(f"DROP ROLE {STRANGER}".encode())
    (owner,) = db.execute("SELECT nspowner::regrole::text FROM pg_namespace"
                          " WHERE nspname = 'pgmta'").fetchone() or ("",)  # fmt: skip
    held = {name for name, _, _ in db.execute(RELATIONS.encode(), {"roles": [owner]})}
    triggers = {
        name
        for (name,) in db.execute(
            "SELECT proname::text || '()' FROM pg_proc WHERE prorettype = 'trigger'::regtype"
            " AND pronamespace = 'pgmta'::regnamespace"
        )
    }
    every = {name for (name,) in db.execute(OBJECTS.encode())}
    assert every - held - triggers == set()


def write(db: psycopg.Connection) -> None:
    """Write the tables of the page, and keep what stands above them."""
    rights: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, role, right in granted(db):
        rights[name][role].append(right)
    kinds = {
        name: {"v": "Views", "S": "Sequences"}.get(kind, "Tables")
        for name, kind in db.execute("SELECT relname::text, relkind::text FROM pg_class"
                                     " WHERE relnamespace = 'pgmta'::regnamespace")
    }  # fmt: skip
    order = ["select", "insert", "update", "delete", "truncate", "usage", "execute"]
    text = PAGE.read_text().partition("\n## Tables")[0]
    for group in ("Tables", "Views", "Sequences", "Functions"):
        text += f"\n## {group}\n\n| {group[:-1].lower()} | who may do what |\n|---|---|\n"
        for name in sorted(rights):
            if kinds.get(name, "Functions") == group:
                cells = [
                    f"{role}: "
                    + ", ".join(sorted(held, key=lambda right: order.index(right.split()[0])))
                    for role in ROLES
                    if (held := rights[name].get(role))
                ]
                text += f"| `{name}` | {'; '.join(cells)} |\n"
    PAGE.write_text(text)


if __name__ == "__main__":
    folder = data_folder()
    server = EmbeddedServer(folder)
    server.start()
    try:
        migrate(server.uri("postgres"))
        with psycopg.connect(server.uri("postgres"), options="-c search_path=pgmta") as database:
            write(database)
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
