"""A campaign from its list to its report: hours in three zones, a first part, another template.

The time is an argument, and another session looks at the books meanwhile.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from tests.features.campaigns.campaigns import books
from tests.features.campaigns.commands.site import HELLO, Site
from tests.features.campaigns.commands.test_sums import exported, shown
from tests.features.campaigns.test_windows import Clock
from tests.scenarios.test_composed import put_template
from tests.support.rows import column, fetch

ZONES = ("Asia/Tokyo", "Europe/Berlin", "America/New_York")
BAD = (
    "no mailbox,Jörg,Köln,UTC\n", "a@x.example,Jörg\n", "b@x.example,Jörg,Köln,Europe/Berln\n",
    "@x.example,Jörg,Köln,UTC\n", "c@x.example,Jörg,Köln,UTC,more\n",
    "d@x.example,Jörg,Köln,Mars\n", "\"e@x.example\"f,Jörg,Köln,UTC\n",
)  # fmt: skip
OUTCOMES = [  # state, code, sub type, and how often of 100
    ("sent", "", "", 88), ("failed", "550", "5.1.1 unknown_user", 2),
    ("failed", "550", "5.7.1 policy", 3), ("failed", "554", "policy", 2), ("unknown", "", "", 2),
    ("deferred", "452", "4.2.2 full", 3),
]  # fmt: skip
FLYING = (
    "SELECT q.id, q.message_id, r.number, r.zone, q.attempts FROM queue AS q"
    " JOIN campaign_recipients AS r ON r.message_id = q.message_id"
    " WHERE q.next_attempt <= %s ORDER BY q.id"
)


class Run:
    """Workers that feed a campaign, and next hops that answer by chance."""

    def __init__(self, clock: Clock, campaign: int) -> None:
        self.clock, self.campaign, self.db = clock, campaign, clock.db
        self.fate = random.Random(7)
        self.deferred = 0

    def hour(self) -> None:
        """Feed and answer until nothing is left to do at this hour."""
        while self.clock.feed() + self.answer():
            pass

    def answer(self) -> int:
        """Write outcomes for all mail that is due; return how much."""
        rows = self.db.execute(FLYING, (self.clock.now,)).fetchall()
        if not rows:
            return 0
        ids = [row[0] for row in rows]
        may = "SELECT campaign_may_begin(%s, %s)"
        assert set(fetch(self.db, may, ids, self.clock.now)[0]) == set(ids)
        for *_, zone, _ in rows:
            local = self.clock.now.astimezone(ZoneInfo(zone))
            assert 9 <= local.hour < 17, zone
            assert local.isoweekday() < 6
        weights = [outcome[3] for outcome in OUTCOMES]
        found = self.fate.choices(OUTCOMES, weights, k=len(rows))
        waits = [row[0] for row, outcome in zip(rows, found, strict=True)
                 if outcome[0] == "deferred"]  # fmt: skip
        gone = [row for row in ids if row not in set(waits)]
        self.deferred += len(waits)
        with self.db.transaction():
            self.db.execute("SELECT rows_log(%s, 'delivered')", (gone,))
            self.db.execute("DELETE FROM queue WHERE id = ANY (%s)", (gone,))
            self.db.execute(
                "UPDATE queue SET status = 'DEFERRED', attempts = attempts + 1,"
                " next_attempt = %s WHERE id = ANY (%s)",
                (self.clock.now + timedelta(hours=2), waits),
            )
            number = len(rows)
            self.db.execute(
                "SELECT campaign_outcomes(array_fill(%s::bigint, ARRAY[%s]), %s::integer[], %s,"
                " %s, %s, %s, %s, %s, array_fill(%s::timestamptz, ARRAY[%s]),"
                " array_fill(%s::timestamptz, ARRAY[%s]), %s)",
                (
                    self.campaign, number, [row[2] for row in rows], [row[1] for row in rows], ids,
                    *([outcome[at] for outcome in found] for at in (0,)),
                    [outcome[2] == "5.1.1 unknown_user" for outcome in found],
                    *([outcome[at] for outcome in found] for at in (1, 2)),
                    self.clock.now, number, self.clock.now, number, ids,
                ),
            )  # fmt: skip
        for row, outcome in zip(rows, found, strict=True):
            if outcome[0] == "sent":
                self._react(row[1], row[2])
        return len(rows)

    def _react(self, message: int, number: int) -> None:
        chance = self.fate.random()
        if chance < 0.02:
            query = "SELECT unsubscribe(%s, %s, current_date)"
            assert fetch(self.db, query, self.campaign, number) == (True,)
        elif chance < 0.03:
            query = "SELECT link_complaint(%s, %s, current_date)"
            assert fetch(self.db, query, self.campaign, number) == (True,)
        elif chance < 0.04:
            self.db.execute(
                "UPDATE attempts SET complained_at = now() WHERE message_id = %s", (message,)
            )
        elif chance < 0.05:
            self.db.execute(
                "UPDATE attempts SET returned_at = now(), class = 'unknown_user',"
                " returned = '550 5.1.1 no' WHERE message_id = %s", (message,),
            )  # fmt: skip


def rows_of(number: int) -> list[str]:
    return [f"r{n}@h.example,Jörg {n},Köln,{ZONES[n % 3]}\n" for n in range(1, number + 1)]


@pytest.mark.parametrize("number", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_books_are_exact_at_each_look(
    tmp_path: Path, database: str, db: psycopg.Connection, number: int
) -> None:
    site = Site(tmp_path, database, db)
    created = site.create("news", "--hours", "09:00-17:00", "--days", "Mon-Fri", "--zone-column",
                          "tz", "--scope", "news")  # fmt: skip
    campaign = int(created["id"])
    db.execute("SELECT suppress('r' || n || '@h.example') FROM generate_series(50, 60) AS n")
    lines = rows_of(number)
    for n, bad in enumerate(BAD, 1):
        lines.insert(n * number // 9, bad)
    content = "".join(["recipient,name,city,tz\n", *lines]).encode("latin-1")
    counts: dict[str, Any] = site.imported(content, code=1)
    assert (counts["imported"], counts["bad"], counts["suppressed"]) == (number, 7, 11)
    site.said("start", "news", "--first", "5%", "--wait", "1h")
    # a Friday: New York is open, Tokyo and Berlin have gone home
    clock = Clock(db, datetime(2030, 6, 7, 12, 0, tzinfo=ZoneInfo("America/New_York")))
    run = Run(clock, campaign)
    over, looks = threading.Event(), Counter[str]()

    def look() -> None:
        with psycopg.connect(database, autocommit=True) as mine:
            while not over.wait(0.02):
                looks.update(books(mine, campaign).keys())
                looks["looks"] += 1

    first = -(-(number - 11) * 5 // 100)
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            run.hour()
            had = "SELECT count(*) FROM campaign_recipients WHERE message_id IS NOT NULL"
            assert 0 < fetch(db, had)[0] < first
            for _ in range(12 * 6):
                clock.now += timedelta(hours=2)
                run.hour()
                if fetch(db, had)[0] == first:
                    break
            put_template(db, "hello", replace(HELLO, subject="Hello again, {{name}}"))
            site.said("template", "news", "hello", "--reason", "the subject had a typo")
            for _ in range(12 * 9):
                clock.now += timedelta(hours=2)
                run.hour()
                if not column(db, "SELECT id FROM campaign_jobs WHERE status <> 'LOGGED'"):
                    break
        finally:
            over.set()
        looking.result()
    found = json.loads(site.said("show", "news", "--json"))
    assert (found["unsent"], found["queued"], found["jobs"]) == (0, 0, {"LOGGED": 6})
    assert shown(site) == exported(site)
    assert min(shown(site)[0].get(key, 0) for key in ("unsubscribed", "complained", "bounced")) > 0
    versions = Counter(row[12] for row in site.exported()[1:])
    assert versions["1"] == first
    assert versions["1"] + versions["2"] == number - versions[""]
    assert versions[""] == found["invalid"]
    assert run.deferred > 0
    assert looks["looks"] > 3
