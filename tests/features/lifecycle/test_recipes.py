"""The recipes of mailroom run by psql, and the schema comes and goes."""

from __future__ import annotations

import re
import subprocess
import uuid
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo
from psycopg.errors import FeatureNotSupported

from pgmta.errors import MigrationError
from pgmta.postgres.embedded.programs import tool
from pgmta_features.lifecycle.installation import install, remove, schema_text
from queued.cli.queuectl import main
from tests.support.rows import fetch

PAGE = Path(__file__).parents[3] / "docs" / "programs" / "lifecycle.md"

NEW = "INSERT INTO accounts (email, login)\n\tVALUES ('user@example.com', 'user123');"
CONSUME = """UPDATE
	tokens
SET
	consumed_at = extract(epoch FROM now())
WHERE
	account = 1
	AND action = 'activation';"""

_WAITING = """
WITH token_data AS (
    SELECT t.account, t.secret, t.code, t.expires_at, t.id, t.action, a.email, a.login
    FROM jobs JOIN tokens t ON t.id > jobs.last_seq AND t.expires_at > EXTRACT(EPOCH FROM NOW())
        AND t.consumed_at IS NULL AND t.action IN ('activation', 'password_recovery')
    JOIN accounts a ON a.id = t.account AND (t.action = 'activation' AND a.status = 'provisioned'
        OR t.action = 'password_recovery' AND a.status = 'active')
    WHERE jobs.job_type = '{}' ORDER BY id ASC LIMIT 10
)"""
DEQUEUE = (
    _WAITING.format("mailroom") + """, updated_jobs AS (
    UPDATE jobs SET last_seq = (SELECT MAX(id) FROM token_data)
    WHERE EXISTS (SELECT 1 FROM token_data) RETURNING last_seq
) SELECT td.action, td.email, td.login, td.secret, td.code FROM token_data td""",
    _WAITING.format("user_action_queue") + """
UPDATE jobs SET last_seq = (SELECT MAX(id) FROM token_data)
WHERE job_type = 'user_action_queue' AND EXISTS (SELECT 1 FROM token_data)
RETURNING (SELECT json_agg(token_data) FROM token_data)""",
)  # fmt: skip
"""The statements by which both versions of mailroom take tokens."""


def psql(database: str, *statements: str) -> str:
    """Return the output of psql for statements, each sent alone."""
    given = ["SET search_path = lifecycle", *statements]
    result = subprocess.run(
        [tool("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
         *(part for each in given for part in ("-c", each)), database],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    return result.stdout.strip()


def account(database: str) -> dict[str, str]:
    """The account of the recipes, by column."""
    names = [
        "status", "created_at", "status_changed_at", "activated_at", "suspended_at",
        "unsuspended_at",
    ]  # fmt: skip
    values = psql(database, f"SELECT {', '.join(names)} FROM accounts WHERE id = 1").split("|")
    return dict(zip(names, values, strict=True))


def test_the_recipes_have_the_printed_effects(accounts: psycopg.Connection, database: str) -> None:
    assert psql(database, "SELECT * FROM jobs;") == "mailroom|0"
    heard = psql(database, "LISTEN token_insert", "LISTEN token_inserted", NEW, "SELECT 1")
    for channel in ("token_insert", "token_inserted"):
        assert f'Asynchronous notification "{channel}" received' in heard
    new = account(database)
    created = new.pop("created_at")
    assert new.pop("status") == "provisioned"
    assert set(new.values()) == {""}
    token = psql(database, "SELECT * FROM tokens WHERE account = 1;").split("|")
    assert token[:2] == ["1", "activation"]
    assert len(bytes.fromhex(token[2].removeprefix("\\x"))) == 32
    assert token[3].isdigit()
    assert len(token[3]) == 5
    assert token[4:8] == ["1", str(int(created) + 900), "", created]
    psql(database, CONSUME)
    active = account(database)
    assert active["status"] == "active"
    assert active["activated_at"] == active["status_changed_at"] != ""
    psql(database, "UPDATE accounts SET status = 'suspended' WHERE id = 1;")
    suspended = account(database)
    assert suspended["suspended_at"] != "" == suspended["unsuspended_at"]
    psql(database, "UPDATE accounts SET status = 'active' WHERE id = 1;")
    again = account(database)
    assert again["status"] == "active"
    assert again["unsuspended_at"] != "" == again["suspended_at"]
    assert again["activated_at"] == active["activated_at"]
    psql(database, "UPDATE accounts SET status = 'active' WHERE id = 1;")
    assert account(database) == again
    heard = psql(
        database, "LISTEN token_insert",
        "INSERT INTO tokens (account, action) VALUES (1, 'activation')", "SELECT 1",
    )  # fmt: skip
    assert 'notification "token_insert" received' in heard


def test_an_application_runs_the_recipes_with_the_rights_of_the_page(
    root: psycopg.Connection,
) -> None:
    """In a database whose owner is no superuser, by a login without other rights."""
    role = f"shop_{uuid.uuid4().hex[:8]}"
    (rights,) = re.findall(r"```sql\n(GRANT USAGE ON SCHEMA .*?)```", PAGE.read_text(), re.DOTALL)
    root.execute(f"CREATE ROLE {role} LOGIN".encode())
    root.execute(re.sub(r"\bshop\b", role, rights).encode())
    try:
        with psycopg.connect(make_conninfo(root.info.dsn, user=role), autocommit=True) as app:
            app.execute(NEW.encode())
            app.execute("INSERT INTO tokens (account, action) VALUES (1, 'activation')")
            assert fetch(app, "SELECT count(*) FROM tokens WHERE account = 1") == (2,)
            app.execute(CONSUME.encode())
            assert fetch(app, "SELECT status::text FROM accounts WHERE id = 1") == ("active",)
            app.execute("UPDATE accounts SET status = 'suspended', email = 'x@b.example'")
            app.execute("DELETE FROM accounts")
            for statement in DEQUEUE:
                for _ in range(2):  # with and without a token
                    with pytest.raises(FeatureNotSupported, match="has no number") as caught:
                        app.execute(statement.encode())
                    assert "`queuectl lifecycle collect` prints" in (
                        caught.value.diag.message_hint or ""
                    )
                    app.execute("INSERT INTO accounts (email, login) VALUES (now(), now())")
    finally:
        root.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_names_of_the_first_version(accounts: psycopg.Connection, database: str) -> None:
    psql(database, NEW)
    assert psql(database, "SELECT * FROM user_action_queue") == "user_action_queue|0"
    secret = psql(database, "SELECT secret FROM hex_tokens")
    assert len(bytes.fromhex(secret)) == 32


def test_install_remove_install(database: str, db: psycopg.Connection) -> None:
    assert install(database)
    assert not install(database)
    db.execute("INSERT INTO lifecycle.accounts (email, login) VALUES ('u@b.example', 'u')")
    with pytest.raises(MigrationError, match=r"lifecycle\.accounts has 1 rows: delete them first"):
        remove(database)
    db.execute("DELETE FROM lifecycle.accounts")
    assert remove(database)
    assert not remove(database)
    assert install(database)
    assert fetch(db, "SELECT count(*) FROM lifecycle.tokens") == (0,)


def test_the_commands(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGMTA_DATABASE_URI", database)
    run = CliRunner()
    for command, output in [
        ("install", "installed schema lifecycle"),
        ("install", "schema lifecycle is installed already"),
        ("remove", "removed schema lifecycle"),
        ("remove", "there is no schema lifecycle"),
    ]:
        result = run.invoke(main, ["lifecycle", command])
        assert (result.exit_code, result.stdout) == (0, f"{output}\n")
    result = run.invoke(main, ["lifecycle", "demo"])
    assert result.exit_code == 1
    assert "run `queuectl lifecycle install`" in result.stderr
    assert run.invoke(main, ["lifecycle", "sql"]).stdout.rstrip() == schema_text().rstrip()


def test_the_printed_statements_install_it(database: str, db: psycopg.Connection) -> None:
    with db.transaction():
        db.execute(schema_text().encode())
    assert not install(database)


def test_a_schema_of_others_is_left_alone(database: str, db: psycopg.Connection) -> None:
    db.execute("CREATE SCHEMA lifecycle")
    with pytest.raises(MigrationError, match="which pgmta did not install"):
        install(database)
    assert not remove(database)


def test_only_the_owner_installs_it(database: str, db: psycopg.Connection) -> None:
    acting = psycopg.conninfo.make_conninfo(database, options="-c role=pgmta_queued")
    with pytest.raises(MigrationError, match="does not own the schema pgmta"):
        install(acting)
