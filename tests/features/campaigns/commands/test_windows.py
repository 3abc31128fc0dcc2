"""Hours, days, time zones and a first part as commands take and show them."""

from __future__ import annotations

import json
import re

import psycopg
import pytest

from pgmta.command import instant
from pgmta.errors import ConfigError
from pgmta_features.campaigns.commands.hours import hours_text, read_days, read_hours
from tests.features.campaigns.commands.site import Site
from tests.features.campaigns.commands.test_look import begin_worker, waits
from tests.support.rows import column, fetch

GIVEN = ("--template", "hello", "--credential", "ses-1")
LIST = "recipient,name,city,tz\n{}"


@pytest.mark.parametrize(
    ("text", "days", "shown"),
    [
        ("Mon-Fri", [1, 2, 3, 4, 5], "Mon-Fri 08:00-24:00 UTC"),
        ("sat - tue", [1, 2, 6, 7], "Mon,Tue,Sat,Sun 08:00-24:00 UTC"),
        ("Tuesday, thu", [2, 4], "Tue,Thu 08:00-24:00 UTC"),
        ("Wed-Wed Mon", [1, 3], "Mon,Wed 08:00-24:00 UTC"),
        ("Mon-Sun", [1, 2, 3, 4, 5, 6, 7], "08:00-24:00 UTC"),
    ],
)
def test_days_and_hours(text: str, days: list[int], shown: str) -> None:
    assert read_days(text) == days
    opens, closes = read_hours("8:00 - 24:00")
    assert hours_text(opens, closes, days, "UTC") == shown


@pytest.mark.parametrize("text", ["9-17", "09:00", "24:00-06:00", "09:00-24:30", "09:00-9:00"])
def test_hours_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--hours"):
        read_hours(text)


def test_bad_options_store_nothing(site: Site, db: psycopg.Connection) -> None:
    for options, words in (
        (["--hours", "09:00-17:00", "--days", "Mon,Tus"], "did you mean Tue?"),
        (["--hours", "09:00-17:00", "--days", ","], "--days: it names no day"),
        (["--days", "Mon"], "they count only with --hours"),
        (["--hours", "09:00-17:00", "--zone", "Europe/Berln"], "Did you mean Europe/Berlin?"),
        # the clocks of Berlin skip this time
        (["--hours", "09:00-17:00", "--zone", "Europe/Berlin", "--at", "2030-03-31 02:30"],
         "there is no 02:30"),
        (["--hours", "02:00-03:00", "--at", "2030-06-07T09:00:00Z", "--deadline",
          "2030-06-07T18:00:00Z"], "hours of the campaign in UTC do not begin before it"),
        (["--at", "2030-06-08T09:00:00Z", "--deadline", "2030-06-07T18:00:00Z"],
         "deadline: the campaign begins no sooner"),
        (["--hours", "09:00-17:00", "--zone-column", "Recipient"], "this column has the mailbox"),
    ):  # fmt: skip
        result = site.run("create", "other", *GIVEN, *options)
        assert result.exit_code != 0
        assert words in result.stderr
    site.imported("recipient,name,city\n" + "".join(f"r{n}@a.example,N,C\n" for n in range(10)))
    for options, words in (
        (["--first", "5%"], "need each other"), (["--wait", "1h"], "need each other"),
        (["--first", "100%", "--wait", "1h"], "nor a share above 0%"),
        (["--first", "x", "--wait", "1h"], "5%"),
        (["--first", "10", "--wait", "1h"], "leaves none for later"),
        (["--first", "1.5", "--wait", "1h"], "nor a share above 0%"),
        (["--first", "1", "--wait", "x"], "--wait"),
    ):  # fmt: skip
        result = site.run("start", "news", *options)
        assert result.exit_code != 0
        assert words in result.stderr
    assert column(db, "SELECT name FROM campaigns") == ["news"]
    assert column(db, "SELECT id FROM campaign_jobs") == []


def test_time_zones_of_a_list(site: Site, db: psycopg.Connection) -> None:
    """An unknown one is a bad line, and a blank one is that of the campaign."""
    options = ["--hours", "09:00-17:00", "--days", "Mon-Fri", "--zone", "europe/berlin",
               "--zone-column", "tz"]  # fmt: skip
    said = site.said("create", "other", *GIVEN, *options)
    assert said.endswith("recipient, city, name, tz; it sends Mon-Fri 09:00-17:00 Europe/Berlin, "
                         "or as tz says\n")  # fmt: skip
    rows = "a@a.example,A,B,asia/tokyo\nb@a.example,A,B,Asia/Tokio\nc@a.example,A,B, \n"
    result = site.run("import", "other", site.file(LIST.format(rows)))
    assert result.exit_code == 1
    assert "list.csv:3: tz: there is no time zone 'Asia/Tokio'; did you mean Asia/Tokyo?" in (
        result.stderr
    )
    zones = db.execute("SELECT recipient, zone FROM campaign_recipients ORDER BY number").fetchall()
    assert zones == [("a@a.example", "Asia/Tokyo"), ("c@a.example", "Europe/Berlin")]
    refused = site.run("import", "other", site.file("recipient,name,city,zone\n"))
    assert "there is no column tz" in refused.stderr
    params = ["--sql", "SELECT 'd@a.example' AS recipient, 'A' AS name, 'B' AS city, 'UTC' AS z"]
    site.said("import", "other", *params, "--column", "tz=z")
    left = db.execute(
        "SELECT left_out.* FROM campaigns AS c, campaign_add(c.id, '{e@a.example,f@a.example}',"
        """ ARRAY['{"name": 1, "city": 2, "tz": "utc"}', '{"name": 1, "city": 2, "tz": "x"}']"""
        "::jsonb[]) AS left_out WHERE c.name = 'other'"
    ).fetchall()
    assert left == [(2, "f@a.example", "tz: there is no such time zone")]
    assert column(db, "SELECT zone FROM campaign_recipients WHERE number > 2") == ["UTC", "UTC"]


def test_what_a_campaign_with_hours_waits_for(site: Site, db: psycopg.Connection) -> None:
    site.said("create", "other", *GIVEN, "--hours", "09:00-17:00", "--zone", "Asia/Tokyo",
              "--zone-column", "tz")  # fmt: skip
    lines = "".join(f"r{n}@a.example,N,C,{'' if n % 2 else 'UTC'}\n" for n in range(10))
    site.said("import", "other", site.file(LIST.format(lines)))
    site.said("start", "other", "--first", "20%", "--wait", "1h", "--rate", "10/s")
    begin_worker(db)
    db.execute("UPDATE campaign_jobs SET closes_at = now() + interval '2 d', opens_at = now() +"
               " CASE zone WHEN 'UTC' THEN -interval '1 min' ELSE interval '1 d' END")  # fmt: skip
    tomorrow, later = fetch(db, "SELECT opens_at, opens_at + pause FROM campaign_jobs"
                                " WHERE pause IS NOT NULL AND zone = 'Asia/Tokyo'")  # fmt: skip
    assert waits(site, "other") == [
        f"its first part: the rest goes after it, not before {instant(later)}, because of "
        "Asia/Tokyo",
        f"its hours in Asia/Tokyo, which begin at {instant(tomorrow)}",
    ]
    db.execute("SELECT campaign_take(), campaign_feed('ses-1', 'w'), campaign_feed('ses-1', 'w')")
    db.execute("UPDATE campaign_jobs SET opens_at = now() - interval '1 min'")
    db.execute("SELECT campaign_take(), campaign_feed('ses-1', 'w'), campaign_feed('ses-1', 'w')")
    (when,) = fetch(
        db,
        "SELECT to_char(max(fed_at) + interval '1 h', 'YYYY-MM-DD HH24:MI') FROM campaign_jobs",
    )
    said, *_ = waits(site, "other")
    assert said.startswith(f"its first part: the rest goes at {when}")
    db.execute("UPDATE campaign_jobs SET pause = NULL, opens_at = '2100-06-07 00:00+00'"
               " WHERE status = 'READY'")  # fmt: skip
    (begin,) = column(db, "SELECT DISTINCT opens_at FROM campaign_jobs WHERE status = 'READY'")
    assert waits(site, "other") == [
        f"its hours in {zone}, which begin at {instant(begin)}" for zone in ("Asia/Tokyo", "UTC")
    ]
    assert json.loads(site.said("show", "other", "--json"))["queued"] == 2


def test_show_has_the_settings_and_the_hours_after_the_first_part(
    site: Site, db: psycopg.Connection
) -> None:
    """The rest goes an hour after the first part: its hours are over by then."""
    options = ["--scope", "news", "--sender", "shop@a.example", "--priority", "8"]
    site.said("create", "other", *GIVEN, *options, "--hours", "00:00-24:00", "--zone", "UTC")
    site.said("import", "other", site.file("recipient,name,city\na@a.example,N,C\nb@a.example,,\n"))
    made = json.loads(
        site.said("start", "other", "--first", "1", "--wait", "10d", "--rate", "1/s", "--json")
    )
    assert (len(made["jobs"]), made["rate"], made["rate_before"]) == (2, 1, None)
    begin_worker(db)
    db.execute("SELECT campaign_take(), campaign_feed('ses-1', 'w'), campaign_feed('ses-1', 'w')")
    db.execute("UPDATE campaigns SET days = ARRAY[(extract(isodow FROM now() + interval '12 d'))]"
               " WHERE name = 'other'")  # fmt: skip
    shown = site.said("show", "other")
    for line in ("scope +news", "sender +shop@a.example", "priority +8",
                 r"hours +\w+ 00:00-24:00 UTC", "estimated wait +2s, once it sends"):  # fmt: skip
        assert re.search(rf"^{line}$", shown, re.MULTILINE), shown
    (day,) = fetch(db, "SELECT date_trunc('day', now() + interval '12 d', 'UTC')")
    assert f"its hours in UTC, which begin at {instant(day)}" in shown
    settings = json.loads(site.said("show", "other", "--json"))["settings"]
    assert (settings["opens"], settings["closes"], settings["deadline"]) == ("00:00", "24:00", None)
