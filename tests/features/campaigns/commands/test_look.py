"""`queuectl campaign show | start | watch` say what a campaign waits for."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from tests.features.campaigns.campaigns import add_recipients
from tests.features.campaigns.commands.site import Site

LIST = "recipient,name,city\nann@a.example,Ann,Ulm\nbob@a.example,Bob,Ulm\n"


def waits(site: Site, name: str = "news") -> list[str]:
    found: dict[str, Any] = json.loads(site.said("show", name, "--json"))
    return list(found["waits_for"])


def begin_worker(db: psycopg.Connection) -> None:
    db.execute(
        "INSERT INTO workers (owner, name, action, reach) VALUES ('w', 'w', 'deliver', 'true')"
    )


def test_before_the_start(site: Site) -> None:
    assert waits(site) == ["recipients: `queuectl campaign import news FILE`"]
    site.imported(LIST)
    assert waits(site) == ["its start: `queuectl campaign start news`"]
    assert "waits for" in site.said("show", "news")
    watched = site.run("watch", "news")
    assert watched.stderr == "news waits for its start: `queuectl campaign start news`\n"


def test_no_worker_and_the_credential(site: Site, db: psycopg.Connection) -> None:
    site.imported(LIST)
    site.said("start", "news", "--rate", "6/min")
    db.execute("SELECT campaign_take()")
    assert waits(site) == ["a worker: none that delivers runs (`queuectl workers`)"]
    begin_worker(db)
    assert waits(site) == []
    site.create("other")
    ((other,),) = db.execute("SELECT id FROM campaigns WHERE name = 'other'").fetchall()
    add_recipients(db, other, 1)
    reason = "credential ses-1, until campaign news has tried all its mail or is stopped"
    assert site.said("start", "other", "--rate", "100/s").splitlines()[1:] == [
        "credential ses-1 has 100/s now, for all its campaigns; before 6/min",
        f"other waits for {reason}",
    ]
    assert waits(site, "other") == [reason]


def test_the_budget_and_mail_that_waits(site: Site, db: psycopg.Connection) -> None:
    site.imported(LIST)
    site.said("start", "news", "--rate", "1/h")
    begin_worker(db)
    db.execute("SELECT campaign_take(), campaign_feed('ses-1', 'w')")
    db.execute("UPDATE budgets SET next_at = '2100-01-01 00:00Z'")
    db.execute("UPDATE queue SET last_reply = '4.3.0 no unsubscribe_url', attempts = 1")
    free, mail = waits(site)
    assert free == "its rate: credential:ses-1 is free at 2100-01-01 00:00:00+0000"
    assert mail.startswith("message ")
    assert mail.endswith(": 4.3.0 no unsubscribe_url")
    db.execute(
        "UPDATE queue SET status = 'HOLD', hold_reason = 'virus' WHERE recipient = 'ann@a.example'"
    )
    listed = "1 of its mails on hold (`queuectl list --status hold --metadata campaign=news`)"
    assert waits(site)[-1] == f"an operator: {listed}"
    assert f"not tried again: {listed}" in site.said("retry", "news")
    db.execute("SELECT budget_set('credential:ses-1', 1.0, 0)")
    assert waits(site)[0].startswith("the next month: credential:ses-1 has no more (")


def test_stopped_halted_and_a_later_list(site: Site, db: psycopg.Connection) -> None:
    site.imported(LIST)
    site.said("start", "news")
    assert site.said("stop", "news") == "stopped 1 job of news\n"
    assert site.said("stop", "news") == "stopped 0 jobs of news: none runs\n"
    site.imported("recipient,name,city\ncid@a.example,Cid,Ulm\n")
    assert waits(site) == [
        "a further start, for 1 recipients that were imported later: "
        "`queuectl campaign start news`",
        "its resumption, because it was stopped before the other 2: "
        "`queuectl campaign resume news`",
    ]
    db.execute("UPDATE campaigns SET halted_at = now(), halted_reason = '11 of 12'")
    assert waits(site) == [
        "its resumption, because it is halted: `queuectl campaign resume news --halted`"
    ]
    refused = site.run("resume", "news")
    assert refused.exit_code == 1
    assert "`queuectl campaign resume NAME --halted`" in refused.stderr


def test_a_campaign_that_is_done(site: Site, db: psycopg.Connection) -> None:
    """A resume and a retry say that nothing is left, and a retry whom it leaves out."""
    site.imported(LIST)
    site.said("start", "news")
    books = "UPDATE campaign_recipients SET state = %s, bounced = %s WHERE number = %s"
    db.execute(books, ("failed", True, 1))
    db.execute("SELECT suppress(recipient, reason => 'bounced') FROM campaign_recipients"
               " WHERE number = 1")  # fmt: skip
    db.execute(books, ("unknown", False, 2))
    for status in ("ENQUEUED", "SENT", "LOGGED"):
        db.execute("UPDATE campaign_jobs SET status = %s", (status,))
    assert site.said("resume", "news") == (
        "news is done: no recipient is unsent; `queuectl campaign retry news` sends what failed "
        "again\n"
    )
    assert site.said("retry", "news").splitlines() == [
        "news: 1 job of it tried again",
        "1 of the recipients are suppressed, as hard bounces are: they become invalid, and get "
        "nothing (`queuectl suppression list`)",
    ]
    db.execute("SELECT campaign_take(), campaign_feed('ses-1', 'w')")
    db.execute("SELECT campaign_feed('ses-1', 'w'), campaign_finalise('1 min')")
    assert site.said("retry", "news") == (
        "news is done: none failed; --unknown takes those with an unknown outcome, 1\n"
    )
    assert site.said("resume", "news") == "news is done: no recipient is unsent\n"


def test_one_recipient(site: Site) -> None:
    site.imported(LIST)
    found = json.loads(site.said("show", "news", "--recipient", '"BOB"@a.example', "--json"))
    assert (found["number"], found["state"], found["message_id"]) == (2, "unsent", None)
    assert "bob@a.example" in site.said("show", "news", "--recipient", "bob@a.example")
    refused = site.run("show", "news", "--recipient", "dan@a.example")
    assert refused.stderr == "error: news has no recipient dan@a.example\n"


def test_a_tenant_without_the_campaign(site: Site) -> None:
    refused = site.run("show", "news", "--tenant", "shop")
    assert refused.stderr == (
        "error: there is no campaign news of tenant shop; `queuectl campaign list` has all\n"
    )
