"""The sums of `campaign show` are those of the export, and outlive the recipients."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from typing import Any

import psycopg

from tests.features.campaigns.commands.site import Site

SUMS = ("unsent", "queued", "sent", "errored", "invalid", "unknown",
        "bounced", "unsubscribed", "complained")  # fmt: skip
FAILURES = ("failed", "invalid", "unknown", "deferred")
AS_COUNTED = {"deferred": "queued", "failed": "errored"}
ANSWERS = [
    ("550", "5.1.1 unknown_user"), ("550", "5.7.1 policy"), ("452", "4.2.2 full"),
    ("554", "policy"), ("suppressed", None), ("63016", "UNREACHABLE sub"), (None, None),
    ("expired", "5.4.7"),
]  # fmt: skip
SPLIT = {  # class and code as `show` has them
    ("550", "5.1.1 unknown_user"): ("unknown_user", "550 5.1.1"),
    ("550", "5.7.1 policy"): ("policy", "550 5.7.1"), ("452", "4.2.2 full"): ("full", "452 4.2.2"),
    ("63016", "UNREACHABLE sub"): ("UNREACHABLE sub", "63016"),
    ("expired", "5.4.7"): (None, "expired 5.4.7"), (None, None): (None, None),
    ("suppressed", None): (None, "suppressed"), ("554", "policy"): ("policy", "554"),
}  # fmt: skip


def shown(site: Site, name: str = "news") -> tuple[dict[str, int], dict[Any, int]]:
    """The sums and the failures that `show` has."""
    found = json.loads(site.said("show", name, "--json"))
    assert sum(found[key] for key in SUMS[:6]) == found["recipients"]
    failures = {
        (row["state"], row["class"], row["code"]): row["number"] for row in found["failures"]
    }
    return {key: found[key] for key in SUMS if found[key]}, failures


def exported(site: Site, name: str = "news") -> tuple[dict[str, int], dict[Any, int]]:
    """The same, summed over the lines of `export`."""
    text = site.said("export", name)
    sums: Counter[str] = Counter()
    failures: Counter[Any] = Counter()
    for line in csv.DictReader(io.StringIO(text, newline="")):
        sums[AS_COUNTED.get(line["state"], line["state"])] += 1
        sums.update(key for key in SUMS[6:] if line[key] == "t")
        if line["state"] in FAILURES:
            answer = line["error_code"] or None, line["error_sub_type"] or None
            failures[line["state"], *SPLIT[answer]] += 1
    return dict(sums), dict(failures)


def test_random_outcomes(site: Site, db: psycopg.Connection) -> None:
    lines = "".join(f"r{n}@a.example,N,C\n" for n in range(300))
    site.imported(f"recipient,name,city\n{lines}")
    site.said("start", "news")
    for status in ("ENQUEUED", "SENT", "LOGGED"):
        db.execute("UPDATE campaign_jobs SET status = %s", (status,))
    fate = random.Random(50)
    states = ("unsent", "queued", "deferred", "sent", "failed", "invalid", "unknown")
    for _ in range(5):
        changes = [
            (fate.choice(states), *fate.choice(ANSWERS), *(fate.random() < 0.1 for _ in range(3)),
             fate.randrange(1, 301)) for _ in range(150)
        ]  # fmt: skip
        with db.cursor() as cursor:
            cursor.executemany(
                "UPDATE campaign_recipients SET state = %s, error_code = %s, error_sub_type = %s,"
                " bounced = %s, unsubscribed = %s, complained = %s WHERE number = %s", changes,
            )  # fmt: skip
        assert shown(site) == exported(site)
    before = shown(site)
    assert len(before[1]) > 20
    assert "unknown_user" in site.said("show", "news")
    db.execute("ALTER TABLE campaign_jobs DISABLE TRIGGER USER")
    db.execute("UPDATE campaign_jobs SET changed_at = now() - interval '1 year'")
    db.execute("UPDATE campaigns SET created_at = now() - interval '1 year'")
    while db.execute("SELECT recipients_expire('30 days', 70)").fetchone() != (0,):
        assert shown(site) == before
    assert site.exported()[1:] == []
    assert shown(site) == before
