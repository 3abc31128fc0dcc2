"""Campaigns for tests: a template, recipients, and their counts."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

STATES = ("unsent", "queued", "sent", "errored", "invalid", "unknown")


def make_campaign(
    db: psycopg.Connection,
    recipients: int,
    name: str = "news",
    credential: str = "ses-1",
    **more: Any,
) -> int:
    """Make a campaign with recipients r1@h.example, r2@h.example …; return its id."""
    db.execute(
        "INSERT INTO templates (tenant, name, version, sender, from_field, subject, body, words)"
        " VALUES ('', 'hello', 1, 'shop@a.example', 'shop@a.example',"
        " 'Hello {{name}}', 'Dear {{name}}',"
        """ '{"name": ["body", "subject"]}') ON CONFLICT DO NOTHING"""
    )
    given = sql.SQL("").join(
        sql.SQL(", {} => {}").format(sql.Identifier(key), sql.Literal(value))
        for key, value in more.items()
    )
    query = sql.SQL("SELECT campaign_create({}, {}, 'hello'{})").format(name, credential, given)
    ((made,),) = db.execute(query).fetchall()
    add_recipients(db, made, recipients)
    return int(made)


def add_recipients(db: psycopg.Connection, campaign: int, number: int) -> None:
    db.execute(
        "INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params)"
        " SELECT %s, n, 'r' || n || '@h.example', 'h.example', jsonb_build_object('name', 'N' || n)"
        " FROM generate_series(1, %s) AS n",
        (campaign, number),
    )


def books(db: psycopg.Connection, campaign: int) -> dict[str, int]:
    """Return the counts of a campaign, which are those of its rows."""
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        columns = ", ".join(STATES)
        query = f"SELECT recipients, {columns} FROM campaign_statistics WHERE id = %s"
        (row,) = db.execute(query, (campaign,)).fetchall()
        rows = db.execute(
            "SELECT CASE state WHEN 'deferred' THEN 'queued' WHEN 'failed' THEN 'errored'"
            " ELSE state END, count(*) FROM campaign_recipients WHERE campaign_id = %s GROUP BY 1",
            (campaign,),
        ).fetchall()
    found = dict(zip(STATES, map(int, row[1:]), strict=True))
    assert sum(found.values()) == row[0]
    assert found == dict.fromkeys(STATES, 0) | dict(rows)
    return {state: number for state, number in found.items() if number}


def statuses(db: psycopg.Connection, campaign: int) -> list[str]:
    """Return the statuses of its jobs in order."""
    query = "SELECT status FROM campaign_jobs WHERE campaign_id = %s ORDER BY id"
    return [row[0] for row in db.execute(query, (campaign,))]
