"""Operators, workers, recipients and providers at the same time: no deadlock, and exact books."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.features.campaigns.campaigns import books, make_campaign
from tests.features.campaigns.test_changes import HAD, put_version
from tests.features.campaigns.test_jobs import LEASE, call, end
from tests.support.rows import column

RECIPIENTS, VERSIONS = 2000, 60
ROUNDS, SESSIONS = 250, 6
ANY = "SELECT {} FROM {} WHERE {} ORDER BY random() LIMIT {}"
NOTE = (
    "SELECT callbacks_note(ARRAY(SELECT DISTINCT host FROM attempts), NULL::text[], %(messages)s,"
    " %(rows)s, %(kinds)s, array_fill(NULL::text, ARRAY[%(n)s]), array_fill(''::text,"
    " ARRAY[%(n)s]), array_fill(''::text, ARRAY[%(n)s]), array_fill(''::text, ARRAY[%(n)s]),"
    " array_fill(now(), ARRAY[%(n)s]))"
)


class Session:
    """Does one thing after the other by chance, in a connection of its own."""

    def __init__(self, db: psycopg.Connection, campaigns: list[int], seed: int) -> None:
        self.db, self.campaigns = db, campaigns
        self.fate = random.Random(seed)

    def once(self) -> None:
        campaign = self.fate.choice(self.campaigns)
        self.fate.choice([
            self.feed, self.feed, self.answer, self.answer, self.refuse, self.tend, self.tend,
            self.react, self.provider, self.operator, self.change,
        ])(campaign)  # fmt: skip

    def feed(self, _: int) -> None:
        call(self.db, "campaign_take")
        self.db.execute("SELECT campaign_feed(%s, 'w')", (self.fate.choice("ab"),))

    def answer(self, _: int) -> None:
        with self.db.transaction():
            self.db.execute(
                "SELECT rows_log(ARRAY(SELECT id FROM queue ORDER BY id LIMIT 20"
                " FOR UPDATE SKIP LOCKED), 'delivered')"
            )
            end(self.db, "delivered", 20)

    def refuse(self, _: int) -> None:
        """As settle does: the suppressions come first."""
        with self.db.transaction():
            rows = self.db.execute(
                "SELECT id, recipient, tenant, message_id FROM queue ORDER BY id LIMIT 3"
                " FOR UPDATE SKIP LOCKED"
            ).fetchall()
            if rows:
                ids, recipients, tenants, messages = map(list, zip(*rows, strict=True))
                bounced = "SELECT suppress_bounced(%s, %s, %s, %s, %s)"
                self.db.execute(bounced, (ids, recipients, tenants, messages, ids[:1]))
                end(self.db, "failed", 3, "policy")

    def tend(self, campaign: int) -> None:
        self.db.execute("SELECT campaign_halt(), campaign_withdraw(100), campaign_reconcile(100)")
        self.db.execute("SELECT campaign_finalise(%s)", (LEASE / 60,))
        books(self.db, campaign)

    def react(self, campaign: int) -> None:
        function = self.fate.choice(["unsubscribe", "link_complaint"])
        number = self.fate.randrange(1, RECIPIENTS)
        self.db.execute(f"SELECT {function}(%s, %s, current_date)".encode(), (campaign, number))

    def provider(self, _: int) -> None:
        query = ANY.format("message_id, row_id", "attempts", "true", 3)
        if rows := self.db.execute(query.encode()).fetchall():
            kinds = self.fate.choices(["complained", "bounced", "failed", "delivered"], k=len(rows))
            given: dict[str, Any] = {"messages": [row[0] for row in rows], "n": len(rows),
                                     "rows": [row[1] for row in rows], "kinds": kinds}  # fmt: skip
            self.db.execute(NOTE.encode(), given)

    def operator(self, campaign: int) -> None:
        if self.fate.random() < 0.1:
            call(self.db, "campaign_stop", campaign)
        elif self.fate.random() < 0.1:
            call(self.db, "campaign_retry", campaign, True, True)
        else:
            call(self.db, "campaign_resume", campaign, True)

    def change(self, campaign: int) -> None:
        what = self.fate.randrange(3)
        if what == 0:
            query = "SELECT campaign_exchange(%s, 'hello', (SELECT t.version FROM templates AS t"
            query += " JOIN campaigns AS c ON c.id = %s WHERE t.id <> c.template_id"
            query += " ORDER BY random() LIMIT 1), 'why')"
            self.db.execute(query.encode(), (campaign, campaign))
        elif what == 1:
            chosen = ANY.format("recipient", "campaign_recipients", f"campaign_id = {campaign}", 2)
            query = f"SELECT campaign_remove(%s, ARRAY({chosen}))"
            self.db.execute(query.encode(), (campaign,))
        else:  # the hours of a job are over
            query = "UPDATE campaign_jobs SET closes_at = now() - interval '1 s' WHERE id = ({})"
            query = query.format(ANY.format("id", "campaign_jobs", f"campaign_id = {campaign}", 1))
            self.db.execute(query.encode())


@pytest.mark.slow
def test_all_at_once(database: str, db: psycopg.Connection) -> None:
    hours = {"opens": "00:00", "closes": "23:59:59", "zone_column": "tz"}
    campaigns = [make_campaign(db, RECIPIENTS, f"c{n}", "aab"[n], scope="news", **hours)
                 for n in range(3)]  # fmt: skip
    db.execute("UPDATE campaign_recipients SET zone = (ARRAY['UTC', 'Asia/Tokyo'])[number % 3]")
    for version in range(2, VERSIONS):
        put_version(db, version)
    for campaign in campaigns:
        db.execute(
            "SELECT campaign_start(%s, part => 0.05, pause => '1 s', jobs => 2)", (campaign,)
        )
    problems: Counter[str] = Counter()
    failed = threading.Event()

    def work(seed: int) -> None:
        with psycopg.connect(database, autocommit=True) as mine:
            session = Session(mine, campaigns, seed)
            for _ in range(ROUNDS):
                try:
                    session.once()
                except psycopg.errors.InvalidParameterValue as error:
                    # another session has taken it out, or the template is that of the campaign
                    problems[error.diag.message_primary or ""] += 1
                except BaseException:
                    failed.set()
                    raise
                if failed.is_set():
                    break

    with ThreadPoolExecutor(SESSIONS) as pool:
        list(pool.map(work, range(SESSIONS)))
    for campaign in campaigns:
        books(db, campaign)
    for sums in ("bounced", "unsubscribed", "complained"):
        counted = (
            f"SELECT sum({sums})::integer FROM campaign_counts GROUP BY campaign_id"
            " ORDER BY campaign_id"
        )
        marked = (
            f"SELECT (count(*) FILTER (WHERE {sums}))::integer FROM campaign_recipients"
            " GROUP BY campaign_id ORDER BY campaign_id"
        )
        assert column(db, counted) == column(db, marked)
    rows = db.execute(HAD).fetchall()
    assert all(said == message for _, said, message in rows)
    assert all(text.startswith(("recipients: ", "template: ")) for text in problems)
