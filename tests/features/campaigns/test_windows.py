"""Hours of campaigns with a time zone, and a first part: the time is an argument."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors as pg_errors

from tests.features.campaigns.campaigns import books, make_campaign, statuses
from tests.features.campaigns.test_jobs import LEASE, call, end
from tests.support.rows import column, fetch

BERLIN = "Europe/Berlin"
OFFICE: dict[str, Any] = {
    "opens": "09:00",
    "closes": "17:30",
    "days": [1, 2, 3, 4, 5],
    "zone": BERLIN,
}


class Clock:
    """A database as workers see it at times of a test; `now` is after that of the machine."""

    def __init__(self, db: psycopg.Connection, now: datetime) -> None:
        self.db, self.now = db, now

    def start(self, campaign: int, **given: Any) -> list[int]:
        named = "".join(f", {name} => %({name})s" for name in given)
        query = f"SELECT campaign_start(%(id)s{named}, present => %(now)s)"
        rows = self.db.execute(query.encode(), {"id": campaign, "now": self.now, **given})
        return [row[0] for row in rows.fetchall()]

    def feed(self, credential: str = "ses-1") -> int:
        """Do a round of all duties; return how much was fed."""
        call(self.db, "campaign_withdraw", 1000, self.now)
        call(self.db, "campaign_reconcile", 1000, self.now)
        call(self.db, "campaign_finalise", LEASE, self.now)
        while call(self.db, "campaign_take", self.now):
            pass
        query = "SELECT fed FROM campaign_feed(%s, 'w', %s)"
        return int(fetch(self.db, query, credential, self.now)[0])

    def may_begin(self) -> int:
        query = "SELECT cardinality(campaign_may_begin(ARRAY(SELECT id FROM queue), %s))"
        return int(fetch(self.db, query, self.now)[0])


@pytest.fixture
def clock(db: psycopg.Connection) -> Clock:
    """A Friday, 16:00 in Berlin."""
    return Clock(db, datetime(2030, 6, 7, 16, 0, tzinfo=ZoneInfo(BERLIN)))


def window(db: psycopg.Connection, campaign: int, zone: str, at: datetime) -> tuple[Any, ...]:
    query = "SELECT w.* FROM campaigns AS c, campaign_window(c, %s, %s) AS w WHERE c.id = %s"
    return fetch(db, query, zone, at, campaign)


def test_outside_its_hours_a_campaign_leaves_the_credential_to_others(
    db: psycopg.Connection, clock: Clock
) -> None:
    campaign, other = make_campaign(db, 500, "one", **OFFICE), make_campaign(db, 3, "two")
    clock.start(campaign)
    clock.start(other)
    assert (clock.feed(), clock.may_begin()) == (200, 200)
    assert end(db, "delivered", 30) == 30
    # one was deferred, one is held by an operator, and one is in flight
    db.execute("UPDATE campaign_recipients SET state = 'deferred' WHERE number = 40")
    db.execute("UPDATE queue SET status = 'DEFERRED', attempts = 1, next_attempt = %s"
               " WHERE recipient = 'r40@h.example'", (clock.now,))  # fmt: skip
    db.execute("UPDATE queue SET status = 'HOLD' WHERE recipient = 'r41@h.example'")
    db.execute("UPDATE queue SET status = 'SENDING', attempts = 1, lease_owner = 'w',"
               " lease_since = now(), lease_token = 7, lease_until = now() + interval '1 min'"
               " WHERE recipient = 'r42@h.example'")  # fmt: skip
    clock.now += timedelta(hours=1.5)
    assert clock.may_begin() == 0
    assert clock.feed() == 0, "one is in flight"
    assert books(db, campaign) == {"unsent": 467, "queued": 3, "sent": 30}
    assert statuses(db, campaign) == ["READY"]
    db.execute("UPDATE queue SET status = 'QUEUED', lease_owner = NULL, lease_since = NULL,"
               " lease_token = NULL, lease_until = NULL, attempts = 0"
               " WHERE recipient = 'r42@h.example'")  # fmt: skip
    assert clock.feed() == 3, "of the other campaign"
    assert books(db, campaign) == {"unsent": 468, "queued": 2, "sent": 30}
    monday = datetime(2030, 6, 10, 9, 0, tzinfo=ZoneInfo(BERLIN))
    query = "SELECT next_attempt FROM queue WHERE recipient = 'r40@h.example'"
    assert column(db, query) == [monday], "its attempts count, and it waits for the window"
    assert end(db, "delivered") == 5
    clock.now = monday - timedelta(seconds=1)
    assert clock.feed() == 0
    clock.now = monday
    fed = 0
    while number := clock.feed():
        assert clock.may_begin() == number
        fed += end(db, "delivered")
    assert fed == 468
    assert books(db, campaign) == {"sent": 500}
    assert len(column(db, "SELECT DISTINCT message_id FROM campaign_recipients")) > 499


def test_mail_that_was_fed_goes_back_when_the_hours_are_over(
    db: psycopg.Connection, clock: Clock
) -> None:
    """Its job is SENT, and a retry: it goes on with what it takes."""
    campaign = make_campaign(db, 10, **OFFICE)
    clock.start(campaign)
    assert (clock.feed(), end(db, "failed", 10)) == (10, 10)
    clock.feed()
    clock.feed()
    assert statuses(db, campaign) == ["LOGGED"]
    assert call(db, "campaign_retry", campaign) == 1
    assert (clock.feed(), end(db, "failed", 4)) == (10, 4)
    clock.feed()
    assert statuses(db, campaign) == ["SENT"]
    clock.now += timedelta(days=1)
    assert clock.feed() == 0
    assert (statuses(db, campaign), books(db, campaign)) == (["READY"], {"unsent": 6, "errored": 4})
    assert call(db, "campaign_stop", campaign) == 1
    assert call(db, "campaign_resume", campaign) == 1
    clock.now += timedelta(days=2)
    assert (clock.feed(), end(db, "delivered")) == (6, 6)


def test_a_job_for_each_zone(db: psycopg.Connection, clock: Clock) -> None:
    """Programs may leave the zone out. One with its window open goes before an older job."""
    campaign = make_campaign(db, 90, **{**OFFICE, "zone_column": "tz"})
    db.execute("UPDATE campaign_recipients SET zone = (ARRAY['Asia/Tokyo', 'America/New_York',"
               " NULL])[number % 3 + 1]")  # fmt: skip
    assert len(clock.start(campaign, rate=1000)) == 3
    assert books(db, campaign) == {"unsent": 90}
    tokyo, york, berlin = (ZoneInfo(zone) for zone in ("Asia/Tokyo", "America/New_York", BERLIN))
    query = (
        "SELECT count(*) FILTER (WHERE state = 'unsent'), count(*) FROM campaign_recipients"
        " WHERE zone = %s"
    )
    assert clock.feed() == 60  # New York since an hour ago; Tokyo is asleep
    assert fetch(db, query, "Asia/Tokyo") == (30, 30)
    assert end(db, "delivered") == 60
    assert column(db, "SELECT status FROM campaign_jobs ORDER BY zone") == [
        "SENDING", "READY", "SENDING",
    ]  # fmt: skip
    clock.now = datetime(2030, 6, 10, 8, 59, tzinfo=tokyo)
    assert clock.feed() == 0
    assert not column(db, "SELECT credential FROM credential_use"), "all others are done"
    clock.now = datetime(2030, 6, 10, 9, 0, tzinfo=tokyo)
    assert (clock.feed(), end(db, "delivered")) == (30, 30)
    assert books(db, campaign) == {"sent": 90}
    assert york != berlin
    bad = make_campaign(db, 2, "bad", **{**OFFICE, "zone_column": "tz"})
    db.execute("UPDATE campaign_recipients SET zone = 'Asia/Tokio' WHERE campaign_id = %s", (bad,))
    with pytest.raises(pg_errors.InvalidParameterValue, match="no time zone") as refused:
        clock.start(bad)
    assert refused.value.diag.message_hint == "Did you mean Asia/Tokyo?"


def test_tried_mail_of_a_closed_zone_leaves_room_to_others(
    db: psycopg.Connection, clock: Clock
) -> None:
    campaign = make_campaign(db, 10, **{**OFFICE, "zone_column": "tz"})
    db.execute("UPDATE campaign_recipients SET zone = 'Asia/Tokyo' WHERE number <= 2")
    tokyo = ZoneInfo("Asia/Tokyo")
    clock.now = datetime(2030, 6, 7, 9, 0, tzinfo=tokyo)
    clock.start(campaign, rate=1)
    assert clock.feed() == 2
    # both were deferred, are claimed as the hours end, and come back
    db.execute("UPDATE campaign_recipients SET state = 'deferred' WHERE state = 'queued'")
    clock.now = datetime(2030, 6, 7, 17, 30, tzinfo=tokyo)
    db.execute("UPDATE queue SET attempts = 1, next_attempt = %s", (clock.now,))
    for _ in range(2):
        assert clock.feed() == 2, "of Berlin"
        db.execute("UPDATE queue SET status = 'HOLD' WHERE attempts = 0")
    monday = datetime(2030, 6, 10, 9, 0, tzinfo=tokyo)
    query = "SELECT DISTINCT next_attempt FROM queue WHERE attempts = 1"
    assert column(db, query) == [monday]
    assert clock.feed() == 2, "although an operator holds all that was fed"
    assert column(db, "SELECT count(*) FROM queue WHERE status = 'HOLD'") == [4]
    clock.now = monday
    clock.feed()
    assert clock.may_begin() == 2


def test_a_zone_that_the_server_knows_no_more_keeps_no_other_campaign_back(
    db: psycopg.Connection, clock: Clock
) -> None:
    """As US/Eastern after an upgrade of the operating system."""
    campaign, other = make_campaign(db, 3, "one", **OFFICE), make_campaign(db, 3, "two")
    clock.start(campaign)
    assert clock.feed() == 3
    db.execute("UPDATE queue SET status = 'DEFERRED', attempts = 1 WHERE recipient ~ 'r1'")
    clock.start(other)
    db.execute("UPDATE campaigns SET zone = 'US/Nowhere' WHERE id = %s", (campaign,))
    clock.now += timedelta(hours=8)
    assert clock.feed() == 3
    assert (statuses(db, campaign), books(db, campaign)) == (["READY"], {"unsent": 2, "queued": 1})
    assert isinstance(column(db, "SELECT max(next_attempt) FROM queue")[0], datetime)
    assert column(db, "SELECT opens_at::text FROM campaign_jobs ORDER BY id")[0] == "infinity"


@pytest.mark.parametrize(
    ("opens", "closes", "days", "at", "expected"),
    [
        # the clock skips 02:00 to 03:00 on 31 March 2030, a Sunday
        ("02:15", "02:45", [7], "2030-03-30T12:00", "2030-03-31T03:15+02:00 00:30"),
        ("02:30", "03:00", [7], "2030-03-30T12:00", "2030-04-07T02:30+02:00 00:30"),
        ("01:30", "03:30", [7], "2030-03-30T12:00", "2030-03-31T01:30+01:00 01:00"),
        ("22:00", "06:00", [6], "2030-03-30T12:00", "2030-03-30T22:00+01:00 07:00"),
        # and has 02:00 to 03:00 twice on 27 October 2030
        ("22:00", "06:00", [6], "2030-10-26T12:00", "2030-10-26T22:00+02:00 09:00"),
        ("02:30", "04:00", [7], "2030-10-26T12:00", "2030-10-27T02:30+01:00 01:30"),
        # over midnight: it is open on a day that is not named
        ("22:00", "06:00", [5], "2030-06-08T05:59", "2030-06-07T22:00+02:00 08:00"),
        ("22:00", "06:00", [5], "2030-06-08T06:00", "2030-06-14T22:00+02:00 08:00"),
        ("00:00", "24:00", [1], "2030-06-10T23:59", "2030-06-10T00:00+02:00 24:00"),
    ],
)
def test_days_that_are_not_24_hours(
    db: psycopg.Connection, opens: str, closes: str, days: list[int], at: str, expected: str
) -> None:
    campaign = make_campaign(db, 0, opens=opens, closes=closes, days=days, zone=BERLIN)
    present = datetime.fromisoformat(at).replace(tzinfo=ZoneInfo(BERLIN))
    opens_at, closes_at = window(db, campaign, BERLIN, present)
    begins, length = expected.split()
    assert opens_at == datetime.fromisoformat(begins)
    hours, minutes = length.split(":")
    assert closes_at - opens_at == timedelta(hours=int(hours), minutes=int(minutes))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.times(), st.times(), st.sets(st.integers(1, 7), min_size=1),
    st.sampled_from([BERLIN, "Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati", "UTC"]),
    st.datetimes(datetime(2029, 1, 1), datetime(2032, 1, 1)),
)  # fmt: skip
def test_a_window_is_as_the_clocks_on_the_wall_say(
    db: psycopg.Connection, opens: Any, closes: Any, days: set[int], zone: str, at: datetime
) -> None:
    """At a time that is not within a day of a change of the clock."""
    opens, closes = opens.replace(second=0, microsecond=0), closes.replace(second=0, microsecond=0)
    present = at.replace(tzinfo=UTC)
    local = present.astimezone(ZoneInfo(zone))
    around = {(present + timedelta(days=n)).astimezone(ZoneInfo(zone)).utcoffset() for n in (-9, 9)}
    if opens == closes or len(around) > 1:
        return
    with db.transaction(force_rollback=True):
        campaign = make_campaign(db, 0, opens=opens, closes=closes, days=sorted(days), zone=zone)
        opens_at, closes_at = window(db, campaign, zone, present)
    minutes = [
        present + timedelta(minutes=n) for n in (0, int((opens_at - present).total_seconds() // 60))
    ]
    for moment in (*minutes, opens_at, closes_at):
        wall = moment.astimezone(ZoneInfo(zone))
        day = wall if wall.time() >= opens or opens < closes else wall - timedelta(days=1)
        inside = (
            opens <= wall.time() < closes if opens < closes
            else wall.time() >= opens or wall.time() < closes
        )  # fmt: skip
        is_open = inside and day.isoweekday() in days
        assert is_open == (opens_at <= moment < closes_at) or moment in (minutes[1], closes_at)
    assert closes_at > present
    assert local.utcoffset() == opens_at.astimezone(ZoneInfo(zone)).utcoffset()


def test_windows_that_are_refused(db: psycopg.Connection, clock: Clock) -> None:
    for wrong, words, hint in (
        ({"opens": "09:00"}, "opens: ", "Give both"),
        ({"zone": BERLIN}, "opens: ", "Give both"),
        ({**OFFICE, "closes": "09:00"}, "closes: ", "00:00 to 24:00"),
        ({**OFFICE, "days": []}, "days: ", "1 .Monday"),
        ({**OFFICE, "days": [8]}, "days: ", "1 .Monday"),
        ({**OFFICE, "zone": "Berlin"}, "zone: ", "Did you mean Europe/Berlin"),
        ({**OFFICE, "zone": "FOO5"}, "zone: ", "pg_timezone_names"),
        # from a Friday evening to a Monday morning
        ({**OFFICE, "deadline": "2030-06-10 08:00+02", "visible_at": "2030-06-07 17:30+02"},
         "deadline: the hours of the campaign in Europe/Berlin do not begin before it",
         "They begin at 2030-06-10 07:00:00.0000."),
    ):  # fmt: skip
        with pytest.raises(pg_errors.InvalidParameterValue, match=words) as refused:
            make_campaign(db, 0, **wrong)
        assert re.search(hint, refused.value.diag.message_hint or "")
    assert not column(db, "SELECT id FROM campaigns")
    campaign = make_campaign(db, 1, **OFFICE, deadline="2030-06-10 08:00+02", present=clock.now)
    clock.now += timedelta(hours=2)
    with pytest.raises(pg_errors.InvalidParameterValue, match="do not begin"):
        clock.start(campaign)
    assert statuses(db, campaign) == []


@pytest.mark.parametrize("zones", [False, True])
def test_a_part_goes_first(db: psycopg.Connection, clock: Clock, zones: bool) -> None:
    more = {**OFFICE, "zone_column": "tz"} if zones else {}
    campaign = make_campaign(db, 100, **more)
    db.execute("UPDATE campaign_recipients SET state = 'invalid' WHERE number <= 10")
    if zones:
        db.execute("UPDATE campaign_recipients SET zone = 'America/New_York' WHERE number % 2 = 0")
    clock.start(campaign, part=Decimal("0.05"), pause=timedelta(hours=1), jobs=2)
    assert (clock.feed(), end(db, "delivered")) == (5, 5)
    assert books(db, campaign) == {"unsent": 85, "invalid": 10, "sent": 5}
    for _ in range(3):
        assert clock.feed() == 0
    clock.now += timedelta(minutes=59)
    assert clock.feed() == 0
    clock.now += timedelta(minutes=1)
    assert (clock.feed(), end(db, "delivered")) == (85, 85)
    while clock.feed():
        pass
    clock.feed()
    assert set(statuses(db, campaign)) == {"LOGGED"}


def test_a_first_part_that_fails_halts_the_rest(db: psycopg.Connection, clock: Clock) -> None:
    for number, failed in enumerate((10, 11)):
        campaign = make_campaign(db, 100, f"news {number}", f"ses-{number}")
        clock.start(campaign, part=20, pause=timedelta(0))
        assert clock.feed(f"ses-{number}") == 20
        assert (end(db, "failed", failed), end(db, "delivered")) == (failed, 20 - failed)
        while clock.feed(f"ses-{number}"):
            end(db, "delivered")
    assert books(db, campaign) == {"unsent": 80, "sent": 9, "errored": 11}, "10 of 20 are not more"
    assert call(db, "campaign_halt") == 1
    reasons = "SELECT halted_reason FROM campaigns WHERE halted_at IS NOT NULL"
    assert column(db, reasons) == ["11 of 20 mails of the first part failed"]
    # a retry sends the first part again, and the rest waits for its outcome
    assert call(db, "campaign_retry", campaign, False, True) == 2
    assert (clock.feed("ses-1"), end(db, "failed"), call(db, "campaign_halt")) == (11, 11, 0)
    clock.feed("ses-1")
    assert call(db, "campaign_halt") == 1
    assert call(db, "campaign_resume", campaign, True) == 2
    assert (call(db, "campaign_halt"), clock.feed("ses-1")) == (0, 80)


def test_a_first_part_that_is_stopped_keeps_the_rest_back(
    db: psycopg.Connection, clock: Clock
) -> None:
    campaign = make_campaign(db, 400)
    first, rest = clock.start(campaign, part=20, pause=timedelta(hours=1))
    assert (clock.feed(), end(db, "failed", 20, "unknown_user")) == (20, 20)
    assert call(db, "campaign_halt") == 1
    clock.now += timedelta(hours=2)
    assert clock.feed() == 0
    assert call(db, "campaign_resume", campaign, True) == 1
    assert clock.feed() == 200, "all of the first part were fed two hours ago"
    assert end(db, "delivered") == 200
    again = make_campaign(db, 400, "again", "ses-2")
    first, rest = clock.start(again, part=20, pause=timedelta(0))
    assert clock.feed("ses-2") == 20
    assert call(db, "job_stop", first) == 1
    for _ in range(3):
        assert clock.feed("ses-2") == 0
    assert statuses(db, again) == ["LOGGED", "READY"]
    assert call(db, "job_resume", first) == 1
    assert (clock.feed("ses-2"), end(db, "delivered", 20)) == (20, 20)
    clock.feed("ses-2")
    assert clock.feed("ses-2") == 200
    assert rest


@pytest.mark.parametrize(
    "part", [{"part": Decimal("0.05")}, {"pause": timedelta(1)}, {"part": 0, "pause": timedelta(1)},
             {"part": Decimal("1.5"), "pause": timedelta(1)}, {"part": 10, "pause": timedelta(1)},
             {"part": 2, "pause": -timedelta(1)}],
)  # fmt: skip
def test_parts_that_are_refused(db: psycopg.Connection, clock: Clock, part: dict[str, Any]) -> None:
    campaign = make_campaign(db, 10)
    with pytest.raises(pg_errors.InvalidParameterValue, match="part|pause"):
        clock.start(campaign, **part)
    assert statuses(db, campaign) == []
