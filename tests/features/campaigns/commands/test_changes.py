"""`queuectl campaign template | remove | copy | delete --wait`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg

from tests.features.campaigns.commands.site import HELLO, Site
from tests.features.campaigns.commands.test_look import LIST, begin_worker
from tests.scenarios.test_composed import put_template
from tests.sql.test_roles import acting
from tests.support.rows import column
from tests.support.waiting import until

AUDITED = "SELECT action, details FROM audit ORDER BY id DESC LIMIT 1"
DONE = "SELECT count(*) FROM campaign_jobs WHERE status <> 'STOPPED'"


def test_another_template(site: Site, db: psycopg.Connection) -> None:
    site.imported(LIST)
    put_template(db, "hello", replace(HELLO, body="Dear {{name}}, {{town}}.\n"))
    put_template(db, "hello", replace(HELLO, body="Dear {{name}}.\n", sender="new@a.example"))
    refused = site.run("template", "news", "hello", "--version", "2")
    assert refused.exit_code == 1
    assert "template: town: a word is missing (recipient 1)" in refused.stderr
    assert "Did you mean hello?" in site.run("template", "news", "helo").stderr
    assert "There is hello" in site.run("template", "news", "zoo").stderr
    refused = site.run("template", "news", "hello", "--version", "7")
    assert "There is version 1, 2, 3" in refused.stderr
    site.said("start", "news", "--rate", "1/h", "--jobs", "2")
    db.execute("SELECT campaign_take(), campaign_feed('ses-1', 'w')")
    assert "Give it in a line" in site.run("template", "news", "hello").stderr
    db.execute("UPDATE campaign_recipients SET message_id = NULL, state = 'unsent'"
               " WHERE number = 2")  # fmt: skip
    said = site.said("template", "news", "hello", "--reason", "a typo")
    assert site.said("preview", "news", "2", "--text").splitlines()[0] == "Dear Bob."
    assert said.startswith("news has template hello version 3 now, for 1 unsent recipients")
    assert said.endswith("; sender: new@a.example\n")
    action, details = db.execute(AUDITED).fetchall()[0]
    assert (action, details["version"], details["reason"]) == ("campaign template", 3, "a typo")
    db.execute("UPDATE campaign_recipients SET message_id = nextval('message_ids')"
               " WHERE number = 2")  # fmt: skip
    assert [row[11:13] for row in site.exported()] == [
        ["template", "version"], ["hello", "1"], ["hello", "3"],
    ]  # fmt: skip
    found = json.loads(site.said("show", "news", "--recipient", "bob@a.example", "--json"))
    assert (found["template"], found["version"]) == ("hello", 3)
    found = json.loads(site.said("show", "news", "--json"))
    assert [(row["version"], row["reason"]) for row in found["templates"]] == [
        (1, None), (3, "a typo"),
    ]  # fmt: skip
    assert "hello version 3, since" in site.said("show", "news")
    site.create("own", "--sender", "own@a.example", "--version", "1")
    assert json.loads(site.said("template", "own", "hello", "--json"))["sender"] == "own@a.example"


def test_a_list_that_was_checked_for_another_template(
    site: Site, db: psycopg.Connection, database: str
) -> None:
    """It may lack words of the new one."""
    site.imported(LIST)
    put_template(db, "hello", replace(HELLO, body="Dear {{name}}.\n"))
    slow = "SELECT 'x@a.example' AS recipient, 'N' AS name, 'C' AS city, pg_advisory_lock(5)::text"
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(database, autocommit=True) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT pg_advisory_lock(5)")
        running = pool.submit(site.run, "import", "news", "--sql", slow)
        until(lambda: column(db, waits) == [1])
        other.execute("SELECT campaign_exchange(id, 'hello') FROM campaigns")
        other.execute("SELECT pg_advisory_unlock(5)")
        refused = running.result()
    assert refused.exit_code == 1
    assert "exchanged meanwhile: nothing was imported" in refused.stderr
    assert len(site.recipients()) == 2


def test_taken_out(site: Site, db: psycopg.Connection) -> None:
    site.imported(LIST)
    site.imported("recipient,name,city\ncid@a.example,Cid,Ulm\ndan@a.example,Dan,Ulm\n")
    db.execute("UPDATE campaign_recipients SET state = 'sent' WHERE number IN (1, 4)")
    assert site.run("remove", "news").exit_code == 2
    refused = site.run("remove", "news", "--recipient", "x@a.example")
    assert 'no such recipient; "x@a.example"' in refused.stderr
    said = site.said("remove", "news", "--recipient", "ANN@a.example", "--recipient",
                     "bob@a.example")  # fmt: skip
    assert said == (
        "took 1 recipients out of news; 1 had their mail, or it is in flight, and stay\n"
    )
    action, details = db.execute(AUDITED).fetchall()[0]
    assert (action, details) == ("campaign remove", {"kept": 1})
    assert "It has the lists 1 to 2" in site.run("remove", "news", "--list", "3").stderr
    lists = json.loads(site.said("show", "news", "--json"))["lists"]
    assert [(row["number"], row["name"], row["first"], row["last"]) for row in lists] == [
        (1, "list.csv", 1, 2), (2, "list.csv", 3, 4),
    ]  # fmt: skip
    assert json.loads(site.said("remove", "news", "--list", "2", "--json")) == {
        "removed": 1, "kept": 1,
    }  # fmt: skip
    assert column(db, "SELECT recipient FROM campaign_recipients ORDER BY 1") == [
        "ann@a.example", "dan@a.example",
    ]  # fmt: skip


def test_a_copy(site: Site, db: psycopg.Connection) -> None:
    site.imported(LIST)
    db.execute("UPDATE campaign_recipients SET state = 'failed' WHERE number = 1")
    db.execute("SELECT suppress('bob@a.example')")
    assert site.said("copy", "news", "two").endswith(": 2 recipients, 1 of them suppressed\n")
    assert "1 recipients" in site.said("copy", "news", "three", "--state", "failed")
    assert " 0 recip" in site.said("copy", "news", "four", "--without-recipients")
    refused = site.run("copy", "news", "two")
    assert 'there is a campaign "two" already' in refused.stderr
    assert "did you mean news?" in site.run("copy", "new", "five").stderr
    deadline = ["--deadline", "2001-01-01T00:00:00Z"]
    assert "deadline: it is over" in site.run("copy", "news", "five", *deadline).stderr


def test_a_campaign_that_runs_is_deleted(site: Site, db: psycopg.Connection) -> None:
    site.imported(LIST)
    site.said("start", "news")
    db.execute("SELECT campaign_take(), campaign_feed('ses-1', 'w')")
    assert "is not done" in site.run("delete", "news", "--yes").stderr
    refused = site.run("delete", "news", "--yes", "--wait")
    assert "news is stopped; no worker that delivers runs" in refused.stderr
    begin_worker(db)
    site.said("resume", "news")
    with ThreadPoolExecutor(1) as pool:
        deleted = pool.submit(site.said, "delete", "news", "--yes", "--wait")
        until(lambda: column(db, DONE) == [0])
        db.execute("SELECT campaign_withdraw(100), campaign_finalise('1 min')")
        assert deleted.result() == "deleted news with 2 recipients\n"
    assert column(db, "SELECT count(*) FROM queue") == [0]
    site.create("other")
    assert "deleted other" in site.said("delete", "other", "--yes", "--wait")


def test_an_operator_may_do_all_of_it(site: Site, database: str, db: psycopg.Connection) -> None:
    """And a reader may look."""
    put_template(db, "hello", replace(HELLO, body="Dear {{name}}.\n"))
    site.uri = acting(database, "pgmta_operator")
    site.configure({})
    hours = "--hours", "09:00-17:30", "--days", "Mon-Fri", "--zone-column", "tz"
    site.create("own", "--version", "1", *hours)
    site.said("import", "own", site.file(LIST.replace("\n", ",Asia/Tokyo\n").replace(
        "city,Asia/Tokyo", "city,tz")))  # fmt: skip
    site.said("template", "own", "hello")
    site.said("start", "own", "--first", "1", "--wait", "1h")
    for shown in ("show", "export"):
        site.said(shown, "own")
    site.said("copy", "own", "two")
    site.said("remove", "two", "--list", "1")
    site.said("stop", "own")
    assert "no worker" in site.run("delete", "own", "--yes", "--wait").stderr
    site.uri = acting(database, "pgmta_reader")
    site.configure({})
    for shown in ("show", "export"):
        site.said(shown, "own")
