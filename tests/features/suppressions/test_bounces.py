"""Failures of attempts: which suppress, with what proof, and what becomes of a campaign's books."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg

from pgmta.errors import Stage
from pgmta.mail.answer_class import AnswerClass
from pgmta.model import Item, Outcome, Reply
from pgmta_features.suppressions.bounces import SETTLING, SOFT_SETTLING
from queued.config import Retry
from queued.config.answer_index import Answer
from queued.delivery.smtp.exchange import result_of
from queued.worker.verdict import judge
from tests.features.suppressions.campaign import Campaign, sections
from tests.support.nexthop import Do, Transaction
from tests.support.system import System
from tests.support.waiting import until

REPLIES = {  # by local part: the answer to RCPT, and whether it suppresses
    "nobody": ("550 5.1.1 User unknown", True),
    "disabled": ("550 5.2.1 The email account that you tried to reach is disabled", True),
    "full": ("552 5.2.2 Mailbox full", False),
    "full-now": ("452 4.2.2 Mailbox full", False),
    "policy": ("550 5.7.1 Message rejected due to local policy", False),
    "spam": ("554 5.7.1 Message rejected as spam", False),
    "not-now": ("450 4.1.1 User unknown, try again", False),
}


def answer(point: str, line: str, _: Transaction | None) -> Do | None:
    """Answer RCPT by the local part."""
    name = line.partition("<")[2].partition("@")[0].lower()
    return Do(line=REPLIES[name][0]) if point == "RCPT" and name in REPLIES else None


def test_hard_bounces_suppress_all_scopes_of_the_tenant(
    system: System, db: psycopg.Connection, campaign: Campaign, tmp_path: object
) -> None:
    system.queued(system.hop(answer), **sections(system.folder, "https://mail.example"))
    campaign.add("nobody@b.example", "full@b.example")
    campaign.start()
    until(lambda: set(campaign.states().values()) == {"failed"})
    assert campaign.reasons() == ["nobody@b.example bounced"]
    query = "SELECT submit('s@a.example', ARRAY[%s], 'Subject: x\r\n\r\nx\r\n', tenant => 't')"
    for name in REPLIES:
        db.execute(query, (f"{name}@c.example",))
    until(lambda: {row["recipient"].partition("@")[0] for row in system.attempts()} == {*REPLIES})
    found = db.execute(
        "SELECT s.address, s.tenant, s.scope, s.reason FROM suppressions AS s JOIN attempts AS a"
        " ON s.source = 'message ' || a.message_id AND a.recipient = s.address ORDER BY 1"
    ).fetchall()
    assert found == [
        ("disabled@c.example", "t", "", "bounced"), ("nobody@b.example", "", "", "bounced"),
        ("nobody@c.example", "t", "", "bounced"),
    ]  # fmt: skip
    (again,) = db.execute(query, ("nobody@c.example",)).fetchone() or (0,)
    (state,) = (
        db.execute("SELECT state FROM status(ARRAY[%s]::bigint[])", (again,)).fetchone() or ()
    )
    assert state == "suppressed"


def test_a_mailbox_that_is_full_for_long_is_suppressed_for_a_while(
    system: System, db: psycopg.Connection
) -> None:
    system.queued(system.hop(answer))
    mail = "SELECT submit('s@a.example', '{Full@b.example}', 'Subject: x\r\n\r\nx\r\n')"
    past = "INSERT INTO soft_bounces VALUES ('full@b.example', '', current_date - %s, %s)"
    db.execute(past, (40, 9))
    db.execute(past, (2, 2))

    def fail(number: int) -> list[tuple[int]]:
        db.execute(mail)
        until(lambda: len(system.attempts()) == number)
        return db.execute("SELECT number FROM soft_bounces ORDER BY day").fetchall()

    assert [fail(number) for number in (1, 2, 3)] == [[(2,), (n,)] for n in (1, 2, 3)], "two days"
    assert db.execute("SELECT count(*) FROM suppressions").fetchone() == (0,)
    db.execute(past, (1, 1))
    assert fail(4) == []
    assert db.execute(
        "SELECT address, scope, reason, source ~ '^message ', until > now() + interval '89 days'"
        " FROM suppressions"
    ).fetchall() == [("full@b.example", "", "soft_bounced", True, True)]


def test_soft_bounces_suppress_as_often_as_the_setting_says(
    system: System, db: psycopg.Connection
) -> None:
    """Refusals by policy never do; with 0 a full mailbox does not either."""
    soft = {"number": 2, "days": 1, "lasts": "2d"}
    queued = system.queued(system.hop(answer), suppressions={"soft_bounces": soft})

    def fail(*addresses: str) -> list[tuple[str, bool]]:
        before = len(system.attempts())
        for address in addresses:
            system.enqueue(address, on_failed="remove")
        until(lambda: len(system.attempts()) == before + len(addresses))
        return db.execute(
            "SELECT address, until BETWEEN now() + interval '47 h' AND now() + interval '2 days'"
            " FROM suppressions WHERE reason = 'soft_bounced'"
        ).fetchall()

    both = ("full@b.example", "policy@b.example")
    assert fail(*both) == []
    assert fail(*both) == [("full@b.example", True)]
    queued.reload(queued.config | {"suppressions": {"soft_bounces": {"number": 0}}})
    assert fail(*["full@c.example"] * 3) == [("full@b.example", True)]
    assert db.execute("SELECT count(*) FROM soft_bounces").fetchone() == (0,)


def test_a_domain_has_one_form(system: System, db: psycopg.Connection) -> None:
    """Mail by SMTPUTF8 may have it in U-labels, and address literals are written variously."""
    mail = (
        "INSERT INTO messages (id, size, utf8, trace, body) VALUES"
        " (nextval('message_ids'), 18, true, '', E'Subject: x\\r\\n\\r\\nx\\r\\n');"
        " INSERT INTO queue (message_id, sender, recipient, domain, on_failed) VALUES"
        " (currval('message_ids'), 's@a.example', 'nobody@bücher.example',"
        " 'xn--bcher-kva.example', 'remove'); NOTIFY pgmta_queue"
    )
    system.queued(system.hop(answer))

    def suppressed() -> bool:  # within a second of the first failure
        db.execute(mail)
        system.wait_empty()
        return "suppressed" in {row["event"] for row in system.attempts()}

    until(suppressed)
    literal = "joe@[IPv6:2001:DB8:0:0:0:0:0:1]"
    db.execute("SELECT suppress(%s)", (literal,))
    db.execute("SELECT submit('s@a.example', ARRAY[%s, 'joe@[IPv6:2001:db8::1]'],"
               " 'Subject: x\r\n\r\nx\r\n')", (literal,))  # fmt: skip
    found = db.execute("SELECT event FROM attempts WHERE recipient LIKE 'joe@%%'").fetchall()
    assert found == [("suppressed",)], "both are one recipient"
    assert db.execute("SELECT address FROM suppressions ORDER BY 1").fetchall() == [
        ("joe@[ipv6:2001:db8::1]",), ("nobody@xn--bcher-kva.example",)
    ]  # fmt: skip


def test_the_recipient_of_the_queue_is_suppressed_also_if_the_mail_expired() -> None:
    """The address was rewritten, and the answer of the full mailbox has no enhanced code."""
    now = datetime.now(UTC)
    row = Item(1, 2, "s@a.example", "r@b.example", "b.example", 1, now - timedelta(days=30), 3)
    copy = replace(row, recipient="team@c.example", original=row)

    def judged(code: int, answer_class: AnswerClass) -> Outcome:
        result = result_of(Reply(code, "Mailbox full"), "h:25", Stage.RCPT)
        return judge(copy, result, Answer(answer_class, ""), Retry(),
                     started=now, now=now, chance=0.0)  # fmt: skip

    full, gone = judged(452, AnswerClass.MAILBOX_FULL), judged(550, AnswerClass.UNKNOWN_USER)
    assert full.answer_class == AnswerClass.EXPIRED
    assert SOFT_SETTLING.arrays([full, gone])["soft_recipients"] == ["r@b.example"]
    assert SETTLING.arrays([full]) == {}
    assert SETTLING.arrays([full, gone])["bounced_recipients"] == ["r@b.example"]
