"""Suppressions by SQL: the newer fact wins, mail that waits is withdrawn, and who may do what."""

from __future__ import annotations

import hmac
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count, islice

import psycopg
import pytest

from pgmta.model import Outcome, Reply
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.settle import Settlements
from tests.features.suppressions.campaign import Campaign
from tests.support.rows import column, fetch


def put(db: psycopg.Connection, address: str, ago: str, reason: str = "bounced") -> bool:
    query = "SELECT suppress(%s, '', 'news', %s, 'test', now() - %s::interval)"
    return bool(fetch(db, query, address, reason, ago)[0])


def test_a_transaction_may_release_an_address_and_suppress_it_again(db: psycopg.Connection) -> None:
    db.execute("SELECT suppress('joe@b.example', source => 'first')")
    with db.transaction():
        assert fetch(db, "SELECT suppression_release('joe@b.example')") == (1,)
        assert fetch(db, "SELECT suppress('joe@b.example', reason => 'complained')") == (True,)
        assert fetch(db, "SELECT suppress('joe@b.example')") == (False,)
    rows = db.execute("SELECT reason, source, released_at FROM suppressions").fetchall()
    (me,) = fetch(db, "SELECT acting()::text")
    assert rows == [("complained", me, None)]
    done = "SELECT action, who, condition = mailbox_hash('joe@b.example') FROM audit ORDER BY id"
    actions = ("add", "remove", "add", "add")
    assert db.execute(done).fetchall() == [(f"suppression {each}", me, True) for each in actions]


def test_what_nobody_dated_replaces_only_what_ends_earlier(db: psycopg.Connection) -> None:
    """A file of addresses would else end the proof of a complaint, and its undoing all."""
    names = ["complained@b.example", "full@b.example", "released@b.example", "none@b.example"]
    db.execute(
        "SELECT suppress('complained@b.example', reason => 'complained'),"
        " suppress('full@b.example', reason => 'soft_bounced', until => now() + interval '1 day'),"
        " suppress('released@b.example'), suppression_release('released@b.example')"
    )
    db.execute("UPDATE suppressions SET at = at - interval '1 day'")
    query = "SELECT suppressions_put(%s, '{}', '{}', ats => %s::timestamptz[])"
    assert fetch(db, query, names, [None] * 4) == (["older", "newer", "newer", "new"],)
    assert fetch(db, query, names[:1], ["now"]) == (["newer"],)


def test_the_newer_fact_wins(db: psycopg.Connection, campaign: Campaign) -> None:
    assert put(db, "Ann@B.example", "2 days", "unsubscribed")
    assert not put(db, "ann@b.example", "3 days")
    assert put(db, "ann@b.example", "1 day")
    assert campaign.suppressed("ann@B.EXAMPLE", "bob@b.example") == [True, False]
    assert fetch(db, "SELECT suppression_release('Ann@b.example')") == (1,)
    assert campaign.suppressed("ann@b.example") == [False]
    assert not put(db, "ann@b.example", "1 hour"), "a bounce that came late"
    assert campaign.suppressed("ann@b.example") == [False]
    assert put(db, "ann@b.example", "-1 day"), "a clock that is ahead counts as now"
    assert campaign.suppressed("ann@b.example") == [True]
    assert fetch(db, "SELECT at <= now() FROM suppressions") == (True,)


def test_tenants_scopes_and_spellings(db: psycopg.Connection, campaign: Campaign) -> None:
    for arguments in (
        "'a@b.example', 't1', ''",
        "'c@b.example', '*', 'news'",
        "'\"d.e\"@b.example'",
        "'x@b.example', until => now() + interval '1 h'",
    ):
        db.execute(f"SELECT suppress({arguments})".encode())
    db.execute("UPDATE suppressions SET until = now() WHERE address = 'x@b.example'")
    everybody = ["a@b.example", "c@b.example", "D.E@b.example", "x@b.example", '"c"@b.example']
    assert campaign.suppressed(*everybody) == [False, True, True, False, True]
    assert campaign.suppressed(*everybody, tenant="t1") == [True, True, False, False, True]
    assert campaign.suppressed(*everybody, scope="ads") == [False, False, True, False, False]
    assert campaign.suppressed('"a b"@b.example', "") == [False, True]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="no mailbox"):
        db.execute("SELECT suppress('no')")


def test_many_at_once(db: psycopg.Connection) -> None:
    outcomes = (
        "SELECT suppressions_put(ARRAY['a@x', 'a@x', 'b@x', 'F@x'], NULL, NULL, NULL, NULL,"
        " ARRAY[now() - interval '1 h', now(), NULL, NULL])"
    )
    db.execute("SELECT forget('f@x', 'suppressions')")
    assert fetch(db, outcomes) == (["older", "new", "new", "forgotten"],)
    assert fetch(db, "SELECT count(*) FROM suppressions WHERE address = 'f@x'") == (0,)


PERMANENT, LONG, SHORT = None, "2 days", "1 day"


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("untils", "left"),
    [
        ([PERMANENT, SHORT], 0),  # a full mailbox after a complaint
        ([LONG, SHORT], 0),
        ([SHORT, LONG, SHORT], 1),
        ([SHORT, PERMANENT], 1),
        ([SHORT, PERMANENT, LONG, PERMANENT], 3),
        (["-1 day", SHORT], 1),
    ],
)
def test_a_fact_that_ends_replaces_none_that_holds_for_longer(
    db: psycopg.Connection, untils: list[str | None], left: int, together: bool
) -> None:
    number = len(untils)
    facts = [("ann@b.example", str(n), f"{number - n} h", untils[n]) for n in range(number)]
    put = (
        "SELECT suppressions_put(%s, NULL, NULL, NULL, %s,"
        " ARRAY(SELECT now() - a::interval FROM unnest(%s::text[]) AS a),"
        " ARRAY(SELECT now() + u::interval FROM unnest(%s::text[]) AS u))"
    )
    for batch in [facts] if together else [[each] for each in facts]:
        db.execute(put, [list(values) for values in zip(*batch, strict=True)])
    assert column(db, "SELECT source FROM suppressions") == [str(left)]
    db.execute("SELECT suppression_release('ann@b.example')")
    db.execute("SELECT suppress('ann@b.example', until => now() + interval '1 min')")
    assert fetch(db, "SELECT until < now() + interval '2 min' FROM suppressions") == (True,)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="until: it is over"):
        db.execute("SELECT suppress('ann@b.example', until => now())")


def test_hash_is_hmac_sha256(db: psycopg.Connection, campaign: Campaign) -> None:
    """RFC 2104, against Python's."""
    pad, found = fetch(db, "SELECT inner_pad, mailbox_hash('Joe@B.example') FROM mailbox_secret")
    key = bytes(octet ^ 0x36 for octet in pad)
    assert key[32:] == bytes(32)
    assert found == "hmac:" + hmac.digest(key, b"joe@b.example", "sha256").hex()


def test_mail_that_waits_is_withdrawn(db: psycopg.Connection, campaign: Campaign) -> None:
    names = ["queued", "deferred", "flying", "begun", "other"]
    campaign.add(*(f"{name}@b.example" for name in names))
    campaign.start()
    campaign.feed()
    db.execute("UPDATE queue SET status = 'DEFERRED' WHERE recipient ~ '^deferred'")
    db.execute("UPDATE campaign_recipients SET state = 'deferred' WHERE recipient ~ '^deferred'")
    db.execute(
        "UPDATE queue SET status = 'SENDING', lease_owner = 'x', lease_since = now(),"
        " lease_token = id, lease_until = now() + interval '1 min',"
        " begun = CASE WHEN recipient ~ '^begun' THEN id END WHERE recipient ~ '^(flying|begun)'"
    )
    flying = column(db, "SELECT id FROM queue WHERE recipient ~ '^flying'")
    assert fetch(db, "SELECT campaign_may_begin(%s)", flying) == (flying,)
    for name in names[:-1]:
        assert fetch(db, "SELECT suppress(%s, '', 'news')", f"{name}@b.example") == (True,)
    # an attempt under way has the last word
    assert campaign.states() == {
        "queued@b.example": "invalid", "deferred@b.example": "invalid",
        "flying@b.example": "queued", "begun@b.example": "queued", "other@b.example": "queued",
    }  # fmt: skip
    rows = column(db, "SELECT concat_ws(' ', recipient, status) FROM queue ORDER BY id")
    assert rows == ["flying@b.example DELETE", "begun@b.example DELETE", "other@b.example QUEUED"]
    log = column(db, "SELECT concat_ws(' ', recipient, event) FROM attempts ORDER BY recipient")
    assert log == ["deferred@b.example suppressed", "queued@b.example suppressed"]
    # as the upkeep ends it, if the transaction never began
    db.execute("DELETE FROM queue WHERE recipient ~ '^flying'")
    db.execute("SELECT campaign_reconcile(10)")
    assert campaign.states()["flying@b.example"] != "queued"


async def test_a_row_in_flight_that_ends_for_it_is_in_the_books(
    db: psycopg.Connection, link: Link, campaign: Campaign
) -> None:
    """Although the suppression asked for its deletion: the log has one entry."""
    campaign.add("joe@b.example")
    campaign.start()
    campaign.feed()
    (item,) = (await Claims(link, "w", 60).claim(10, [])).items
    db.execute("SELECT suppress('joe@b.example')")
    assert column(db, "SELECT status FROM queue") == ["DELETE"]
    now, words = datetime.now(UTC), "suppressed since 2026-11-03 14:02 UTC: operator"
    ended = Outcome(item, Event.SUPPRESS, Reply(0, words), started=now, ended=now)
    assert await Settlements(link, "w").settle([ended]) == {item.id}
    found = "SELECT state, error_code, sent_at FROM campaign_recipients"
    assert fetch(db, found) == ("invalid", "suppressed", None)
    assert fetch(db, "SELECT event, attempt, reply FROM attempts") == ("suppressed", 0, words)
    assert column(db, "SELECT id FROM queue") == []


def test_a_row_that_is_locked_is_not_waited_for(
    db: psycopg.Connection, database: str, campaign: Campaign
) -> None:
    """Its outcome may be waiting for the suppression."""
    campaign.add("joe@b.example", "ann@b.example")
    campaign.start()
    campaign.feed()
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM queue WHERE recipient ~ '^joe' FOR UPDATE")
        db.execute("SET lock_timeout = '10s'; SELECT suppress('joe@b.example')")
        assert campaign.states() == {"joe@b.example": "queued", "ann@b.example": "queued"}
    db.execute("SELECT campaign_withdraw(10)")
    assert campaign.states() == {"joe@b.example": "invalid", "ann@b.example": "queued"}
    # mail that was deferred meanwhile comes back, because it may not begin
    db.execute("UPDATE campaign_recipients SET state = 'deferred' WHERE recipient ~ '^ann'")
    db.execute("INSERT INTO suppressions (address, reason) VALUES ('ann@b.example', 'operator')")
    db.execute("SELECT campaign_reconcile(10), campaign_withdraw(10)")
    assert campaign.states() == {"joe@b.example": "invalid", "ann@b.example": "invalid"}


def test_bounces_of_two_commits_take_one_order(
    db: psycopg.Connection, database: str, campaign: Campaign
) -> None:
    names = [f"{number}@b.example" for number in range(200)]
    with psycopg.connect(database, autocommit=True) as second, ThreadPoolExecutor(2) as pool:
        statement = "SELECT suppress_bounced(%s, %s, array_fill(''::text, '{200}'), %s, %s)"
        for session in (db, second):
            session.execute("SET deadlock_timeout = '100ms'")
        numbers = list(range(1, 201))
        jobs = [pool.submit(db.execute, statement, (numbers, names, numbers, numbers)),
                pool.submit(second.execute, statement,
                            (numbers, names[::-1], numbers, numbers))]  # fmt: skip
        for job in jobs:
            job.result()
    assert len(campaign.reasons()) == len(names)


def test_an_open_transaction_with_many_addresses_blocks_no_outcome(
    db: psycopg.Connection, database: str, campaign: Campaign
) -> None:
    """It has locked the parts of the sieve that the addresses of others are in, too."""
    names = (f"{number}@b.example" for number in count())
    of_one_part = (name for name in names if sha256(name.encode()).digest()[:2] == b"pg")
    first, then, *more = islice(of_one_part, 5)
    assert put(db, then, "1 day")
    db.execute("SET lock_timeout = '5 s'")
    with psycopg.connect(database) as one, psycopg.connect(database) as two:
        assert put(one, first, "1 day")
        assert put(two, more[0], "1 day")
        assert put(db, more[1], "1 day")
        assert campaign.suppressed(first, then, *more) == [False, True, False, True, False]
        one.rollback()
        two.commit()
    assert put(db, more[2], "1 day")
    assert campaign.suppressed(first, then, *more) == [False, True, True, True, True]
    assert fetch(db, "SELECT count(*) FROM suppression_sieve") == (3,), "as many as were open"


def test_suppressions_of_one_address_for_two_tenants_do_not_wait_for_each_other(
    db: psycopg.Connection, database: str
) -> None:
    db.execute("SELECT suppress('joe@b.example')")
    with psycopg.connect(database) as other:
        other.execute("SELECT suppress('joe@b.example', 'acme')")
        db.execute("SET lock_timeout = '10s'; SELECT suppress('joe@b.example', '*')")


def test_a_suppression_that_is_over_withdraws_nothing(
    db: psycopg.Connection, campaign: Campaign
) -> None:
    campaign.add("joe@b.example")
    campaign.start()
    db.execute(
        "INSERT INTO suppressions (address, reason, at, until)"
        " VALUES ('joe@b.example', 'operator', '2020-01-01', '2020-01-02')"
    )
    campaign.feed()
    db.execute("UPDATE suppressions SET source = 'changed'")
    assert campaign.states() == {"joe@b.example": "queued"}
    db.execute("UPDATE suppressions SET until = NULL")
    assert campaign.states() == {"joe@b.example": "invalid"}


def test_another_scope_or_tenant_stays(db: psycopg.Connection, campaign: Campaign) -> None:
    ads = Campaign(db, "ads", "ads")
    for each in (campaign, ads):
        each.add("joe@b.example")
        each.start()
        each.feed()
    db.execute("SELECT suppress('joe@b.example', 'other'), suppress('joe@b.example', '', 'ads')")
    assert (campaign.states(), ads.states()) == (
        {"joe@b.example": "queued"}, {"joe@b.example": "invalid"},
    )  # fmt: skip
    db.execute("SELECT suppress('joe@b.example', '*')")
    assert campaign.states() == {"joe@b.example": "invalid"}


@pytest.mark.parametrize("role", ["pgmta_web", "pgmta_submit", "pgmta_smtpd", "pgmta_reader"])
def test_other_roles_change_nothing(db: psycopg.Connection, role: str) -> None:
    db.execute(f"SET ROLE {role}".encode())
    for statement in (
        "SELECT suppress('a@b.example')",
        "SELECT suppressions_put('{a@b.example}', '{}', '{}')",
        "SELECT suppression_release('a@b.example')",
        "SELECT forget('a@b.example', 'queue', true)",
        "SELECT FROM mailbox_secret",
        "DELETE FROM suppressions",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute(statement.encode())


def test_what_came_back_for_no_mailbox_suppresses_nothing(
    db: psycopg.Connection, campaign: Campaign
) -> None:
    """A row by SQL may have any recipient: a refusal would keep its DSN in the queue."""
    for recipient in ("postmaster", f"{'x' * 300}@h.example", "a\tb@h.example", "ann@h.example"):
        db.execute(
            "INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code,"
            " event, sender, recipient, domain, worker, host, command, enhanced, reply) VALUES"
            " (now(), 1, 1, 1, 1, 250, 'delivered', 's@a.example', %s, 'h.example', 'w', 'h', '',"
            " '', '')",
            (recipient,),
        )  # fmt: skip
    returned = "UPDATE attempts SET class = 'unknown_user', returned_at = now(), returned = %s"
    db.execute(returned, ("450 4.1.1 not now",))
    assert campaign.reasons() == []
    db.execute(returned, ("550 5.1.1 nobody",))
    assert campaign.reasons() == ["ann@h.example bounced"]
