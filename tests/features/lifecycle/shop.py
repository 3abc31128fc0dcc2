"""The application of docs/programs/lifecycle.md, with its five actions."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

from pgmta.compose.template import TemplateSource
from tests.features.lifecycle.tokens import add_accounts, put_template
from tests.support.rows import column, fetch

PAGE = Path(__file__).parents[3] / "docs" / "programs" / "lifecycle.md"

MAILS = {
    "invitation": "{{host}} invites you to the team {{team}}: {{link}}",
    "magic_link": "Log in, {{login}}: {{link}}",
    "change_of_address": "Change to {{new_email}}, asked for by {{login}}: {{link}}",
    "deletion": "Delete your account: {{link}} with the code {{code}}",
    "newsletter": "Confirm that {{email}} wants {{list}}: {{link}}",
}
"""Bodies of the mail of each action."""

NOTED = """
CREATE TABLE shop.calls (number bigserial, action text);
DO $do$
DECLARE
    found record;
BEGIN
    FOR found IN SELECT name, calls FROM lifecycle.actions WHERE calls IS NOT NULL LOOP
        EXECUTE format($f$
            CREATE FUNCTION shop.noted_%1$s(account text, email text, data jsonb) RETURNS boolean
            LANGUAGE plpgsql AS $body$
            BEGIN
                INSERT INTO shop.calls (action) VALUES (%1$L);
                PERFORM pg_advisory_xact_lock_shared(1);  -- a test may stop it here
                RETURN %2$s(account, email, data);
            END $body$$f$, found.name, found.calls);
        UPDATE lifecycle.actions SET calls = 'shop.noted_' || name WHERE name = found.name;
    END LOOP;
END $do$;
"""
"""Each call of a function leaves a row, in its transaction."""


def put_mail(db: psycopg.Connection, name: str, body: str) -> None:
    """Store a version of a template."""
    source = TemplateSource(sender="shop@a.example", from_="shop@a.example", subject="", body=body)
    put_template(db, name, source)


def examples() -> list[str]:
    """Return the SQL of the section of the page, a block an action."""
    section = PAGE.read_text().partition("## Actions\n")[2].partition("\n## ")[0]
    return re.findall(r"```sql\n(.*?)```", section, re.DOTALL)


def open_shop(db: psycopg.Connection) -> str:
    """Make what the page says before it asks for mail; return the owner."""
    for name, body in MAILS.items():
        put_mail(db, name, body)
    (owner,) = fetch(
        db, "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'lifecycle'"
    )
    made = "".join(block.partition("SELECT lifecycle.ask")[0] for block in examples())
    db.execute(f"SET ROLE {owner}; {made} {NOTED} RESET ROLE".encode())
    add_accounts(db, 3, "ann", status="active")
    return str(owner)


def calls(db: psycopg.Connection) -> list[str]:
    """Return the actions whose functions were called."""
    return column(db, "SELECT action FROM shop.calls ORDER BY number")
