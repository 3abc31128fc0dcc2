"""Accounts and tokens of tests, and the configuration of a collector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from pgmta.compose.template import TemplateSource, compile_template

KEYS = {"activate": "a" * 64, "recover": "b" * 64, "confirm": "d" * 64, "unsubscribe": "c" * 64}
"""Keys in hexadecimal digits, by purpose."""

URL = "https://mail.example"

_TEMPLATES = {
    "activation": TemplateSource(
        sender="shop@a.example", from_="Shop <shop@a.example>", subject="Welcome {{login}}",
        body="Hello {{login}}\n\n{{link}}\n", html='<p><a href="{{link}}">activate</a></p>',
    ),
    "recovery": TemplateSource(
        sender="shop@a.example", from_="Shop <shop@a.example>", subject="Recovery",
        body="Your code is {{code}}, for {{minutes}} minutes.\n\n{{link}}\n",
    ),
}  # fmt: skip

ACTIONS = {
    "activation": {"purpose": "activate", "key": "activate", "url": f"{URL}/activate"},
    "password_recovery": {"purpose": "recover", "key": "recover", "url": f"{URL}/recover"},
    "*": {"purpose": "confirm", "key": "confirm", "url": f"{URL}/confirm"},
}


def put_templates(db: psycopg.Connection) -> None:
    """Store the templates of both actions."""
    for name, source in _TEMPLATES.items():
        put_template(db, name, source)


def put_template(db: psycopg.Connection, name: str, source: TemplateSource) -> None:
    """Store a version of a template."""
    words = {word: sorted(places) for word, places in compile_template(source).words.items()}
    db.execute(
        "INSERT INTO pgmta.templates"
        " (name, version, sender, from_field, subject, body, html, words)"
        " SELECT %s, count(*) + 1, %s, %s, %s, %s, %s, %s FROM pgmta.templates WHERE name = %s",
        (name, source.sender, source.from_, source.subject, source.body, source.html,
         Jsonb(words), name),
    )  # fmt: skip


def add_accounts(db: psycopg.Connection, number: int, name: str = "u", **columns: Any) -> None:
    """Insert accounts NAME1, NAME2, … in one statement."""
    more = "".join(f", {column}" for column in columns)
    values = "".join(f", '{value}'" for value in columns.values())
    db.execute(
        f"INSERT INTO lifecycle.accounts (email, login{more}) SELECT %s || n || '@b.example',"
        f" %s || n{values} FROM generate_series(1, %s) AS n".encode(),
        (name, name, number),
    )


def collect(
    db: psycopg.Connection, batch: int = 10, budget: str | None = None, **changes: Any
) -> tuple[int, list[list[Any]], float | None]:
    """Collect a batch: tokens that became mail, those that can't, and seconds to wait."""
    options = {"actions": ACTIONS, "budget": budget} | changes
    row = db.execute(
        "SELECT taken, refused, wait FROM lifecycle.collect('c', 'test', %s, 'limit', %s)",
        (batch, json.dumps(options)),
    ).fetchone()
    assert row is not None
    return row[0], row[1] or [], row[2]


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Sections of queued.yaml with a collector for all actions, and files with its keys."""
    for purpose, digits in KEYS.items():
        file = folder / purpose
        if not file.exists():
            file.touch(0o600)
            file.write_text(f"{digits}\n")
    collector = {
        "name": "c", "url": URL, "limit": 10, "timeout": "1s",
    } | changes  # fmt: skip
    keys = {purpose: [purpose] for purpose in KEYS}
    return {"tokens": keys, "collectors": [collector]}
