"""Old campaigns, templates and tokens go when their time is over, and nothing else."""

from __future__ import annotations

import psycopg
import pytest

from pgmta_features.lifecycle.installation import install
from tests.features.lifecycle.tokens import add_accounts, put_template
from tests.features.suppressions.campaign import SOURCE, Campaign
from tests.support.rows import column, fetch

MONTH = "'30 days', 2"


def ended(db: psycopg.Connection, campaign: Campaign, days: int) -> None:
    """Let a campaign have ended so long ago."""
    campaign.add(*(f"r{number}@b.example" for number in range(5)))
    campaign.start()
    db.execute("UPDATE campaigns SET created_at = now() - interval '1 year'")
    job = (campaign.id,)
    for status in ("STOPPED", "LOGGED"):
        db.execute(
            f"UPDATE campaign_jobs SET status = '{status}' WHERE campaign_id = %s".encode(), job
        )
    db.execute("ALTER TABLE campaign_jobs DISABLE TRIGGER USER")
    db.execute(
        "UPDATE campaign_jobs SET changed_at = now() - make_interval(days => %s)"
        " WHERE campaign_id = %s", (days, campaign.id),
    )  # fmt: skip
    db.execute("ALTER TABLE campaign_jobs ENABLE TRIGGER USER")


def test_recipients_before_campaigns(db: psycopg.Connection, campaign: Campaign) -> None:
    ended(db, campaign, 31)
    late = Campaign(db, "late")
    ended(db, late, 29)
    waits = Campaign(db, "waits")
    waits.add("x@b.example")
    db.execute("UPDATE campaigns SET created_at = now() - interval '1 year', visible_at = now()"
               " WHERE name = 'waits'")  # fmt: skip
    assert fetch(db, f"SELECT campaigns_expire({MONTH})") == (0,), "it has recipients"
    removed = [fetch(db, f"SELECT recipients_expire({MONTH})")[0] for _ in range(4)]
    assert removed == [2, 2, 1, 0]
    assert (len(late.states()), len(waits.states())) == (5, 1)
    assert fetch(db, f"SELECT campaigns_expire({MONTH})") == (1,)
    assert column(db, "SELECT name FROM campaigns ORDER BY 1") == ["late", "waits"]


def test_templates_that_nothing_has(db: psycopg.Connection) -> None:
    for _ in range(4):
        put_template(db, "t", SOURCE)
    _, mail, used, new = column(db, "SELECT id FROM templates ORDER BY version")
    db.execute("SELECT submit_template('t', 'a@b.example', '{\"name\": \"x\", \"unsubscribe\": \"https://y.example\"}',"
               " version => 2)")  # fmt: skip
    db.execute("SELECT campaign_create('c', 'k', 't', version => 3)")
    assert fetch(db, "SELECT templates_expire('1 hour', 10)") == (0,), "they were replaced just now"
    assert fetch(db, "SELECT templates_expire('0', 10)") == (1,)
    assert column(db, "SELECT id FROM templates ORDER BY 1") == [mail, used, new]
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        db.execute("DELETE FROM templates")
    db.execute("SET ROLE pgmta_operator")
    db.execute("SET pgmta.writer = 'expiry'")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute("DELETE FROM templates")


def test_tokens_and_collections(db: psycopg.Connection, database: str) -> None:
    assert fetch(db, f"SELECT lifecycle_expire('1 day', {MONTH})") == (0,), "no such schema"
    install(database)
    add_accounts(db, 3)
    db.execute("UPDATE lifecycle.tokens SET expires_at = expires_at - 31 * 86400 WHERE id < 3")
    db.execute(
        "INSERT INTO lifecycle.collections"
        " (collector, worker, reason, wanted, taken, began_at, ended_at)"
        " SELECT 'c', 'w', 'limit', 1, 1, now(), now() - interval '40 days' * n"
        " FROM generate_series(0, 3) AS n"
    )
    removed = "SELECT lifecycle_expire('30 days', '60 days', 10)"
    assert (fetch(db, removed), fetch(db, removed)) == ((4,), (0,))
    assert fetch(db, "SELECT count(*) FROM lifecycle.tokens") == (1,)


def test_a_schema_of_another_owner_is_not_touched(db: psycopg.Connection) -> None:
    db.execute("CREATE SCHEMA lifecycle")
    db.execute("CREATE TABLE lifecycle.installation ()")
    db.execute("ALTER TABLE lifecycle.installation OWNER TO pgmta_reader")
    assert fetch(db, f"SELECT lifecycle_expire('1 day', {MONTH})") == (0,)
