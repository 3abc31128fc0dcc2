"""Recipients by SQL: campaign_add(), and campaign_test()."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.scenarios.test_composed import put_template
from tests.sql.test_roles import acting
from tests.support.rows import column
from tests.support.waiting import until

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s"
ROWS = (
    "SELECT number, recipient, domain, params, state, error_code FROM campaign_recipients"
    " ORDER BY number"
)


@pytest.fixture
def campaign(db: psycopg.Connection) -> int:
    """A campaign with the words name, shop and code."""
    put_template(db, "hello")
    (made,) = column(db, "SELECT campaign_create('news', 'ses-1', 'hello')")
    return int(made)


def words(**given: Any) -> Jsonb:
    return Jsonb({"name": "Ann", "shop": "A", "code": 1, **given})


def add(
    db: psycopg.Connection, campaign: int, *given: tuple[str | None, Jsonb]
) -> list[tuple[Any, ...]]:
    query = "SELECT * FROM campaign_add(%s, %s, %s)"
    addresses, params = [each[0] for each in given], [each[1] for each in given]
    return db.execute(query, (campaign, addresses, params)).fetchall()


def test_what_fits_is_added_and_the_rest_is_named(
    campaign: int, database: str, db: psycopg.Connection
) -> None:
    db.execute("INSERT INTO suppressions (address, reason) VALUES ('s@x.example', 'bounced')")
    with psycopg.connect(acting(database, "pgmta_operator"), autocommit=True) as operator:
        left = add(
            operator, campaign, ("a@x.example", words(more=[1])), ("A@X.example", words()),
            ("no", words()), (None, words()), ("b@x.example", Jsonb({"name": "B"})),
            ("c@x.example", words(name="a\nb")), ("d@x.example", Jsonb([])),
            ("S@x.example", words(name=None)), ("e@x.example", words(code="x" * 70_000)),
            ("f@x.example", words(shop={})),
        )  # fmt: skip
        assert left == [
            (2, "A@X.example", "it is there twice"), (3, "no", "it is no mailbox"),
            (4, None, "it is no mailbox"), (5, "b@x.example", "code: a word is missing"),
            (6, "c@x.example", "name: a word of a header field: it has a line end"),
            (7, "d@x.example", "code: a word is missing"),
            (9, "e@x.example", "the words are over 65536 octets"),
            (10, "f@x.example", "shop: a word is no text, number or boolean"),
        ]  # fmt: skip
        assert add(operator, campaign, ('"a"@x.example', words()), ("g@Y.example", words())) == [
            (1, '"a"@x.example', "the campaign has it already")
        ]
    ann = {"name": "Ann", "shop": "A", "code": "1"}
    assert db.execute(ROWS).fetchall() == [
        (1, "a@x.example", "x.example", ann, "unsent", None),
        (2, "S@x.example", "x.example", {**ann, "name": ""}, "invalid", "suppressed"),
        (3, "g@Y.example", "y.example", ann, "unsent", None),
    ]
    assert add(db, campaign) == []


def test_numbers_and_mailboxes_are_not_mixed(campaign: int, db: psycopg.Connection) -> None:
    mailbox = "it is a mailbox, and the campaign goes to telephone numbers"
    first = [("a@x.example", words()), ("+491701234567", words()), ("no", words())]
    assert add(db, campaign, *first, ("+491701234568", words())) == [
        (1, "a@x.example", mailbox), (3, "no", "it is no mailbox")
    ]  # fmt: skip
    assert add(db, campaign, ("b@x.example", words())) == [(1, "b@x.example", mailbox)]
    with pytest.raises(psycopg.Error, match=f"recipient: {mailbox}"):
        db.execute("SELECT campaign_test(%s, 'a@x.example', %s)", (campaign, words()))
    db.execute("SELECT campaign_test(%s, '+491701234567', %s)", (campaign, words()))


def test_calls_that_are_refused(campaign: int, database: str, db: psycopg.Connection) -> None:
    with pytest.raises(errors.NoDataFound, match="there is no campaign 99"):
        add(db, 99, ("a@x.example", words()))
    with pytest.raises(psycopg.Error, match="recipients: it is no list"):
        db.execute("SELECT campaign_add(%s, NULL)", (campaign,))
    with pytest.raises(psycopg.Error, match="params: there are not as many as recipients"):
        db.execute("SELECT campaign_add(%s, '{a@x.example}', '{}')", (campaign,))
    with pytest.raises(psycopg.Error, match="params: code: a word is missing"):
        db.execute("SELECT campaign_test(%s, 'a@x.example')", (campaign,))
    with pytest.raises(psycopg.Error, match="recipient: it is no mailbox"):
        db.execute("SELECT campaign_test(%s, 'a', %s)", (campaign, words()))
    for role in ("pgmta_reader", "pgmta_submit", "pgmta_queued"):
        refused = pytest.raises(errors.InsufficientPrivilege)
        with psycopg.connect(acting(database, role)) as other, refused:
            add(other, campaign, ("a@x.example", words()))
    assert column(db, "SELECT count(*) FROM campaign_recipients") == [0]
    assert column(db, "SELECT count(*) FROM queue") == [0]


def test_a_test_goes_out_as_mail_of_the_campaign(campaign: int, db: psycopg.Connection) -> None:
    db.execute("SELECT budget_set('credential:ses-1', 10, NULL)")
    db.execute("UPDATE campaigns SET scope = 'news', priority = 8, sender = 'other@a.example'")
    (message,) = column(db, "SELECT campaign_test(%s, 'me@x.example', %s)", campaign, words())
    row = db.execute(
        "SELECT q.sender, q.priority, q.once, q.metadata, m.params FROM queue AS q"
        " JOIN messages AS m ON m.id = q.message_id WHERE m.id = %s", (message,),
    ).fetchone()  # fmt: skip
    assert row == (
        "other@a.example", 8, True,
        {"campaign": "news", "credential": "ses-1", "_budget": "credential:ses-1",
         "_scope": "news", "_exempt": "test"},
        {"to": [["", "me@x.example"]], "words": {"name": "Ann", "shop": "A", "code": "1"},
         "unsubscribe": {"campaign": campaign, "number": 0}},
    )  # fmt: skip


def test_a_campaign_is_not_deleted_beside_an_import(
    campaign: int, database: str, db: psycopg.Connection
) -> None:
    with psycopg.connect(database) as importing, ThreadPoolExecutor(1) as pool:
        add(importing, campaign, ("a@x.example", words()))
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("SELECT campaign_stop(%s)", (campaign,))  # does not wait
            deleting = pool.submit(other.execute, "SELECT campaign_delete(%s)", (campaign,))
            until(lambda: column(db, WAITS, other.info.backend_pid) == [1], describe="the lock")
            importing.commit()
            assert deleting.result().fetchone() == (1,)
    assert column(db, "SELECT count(*) FROM campaign_recipients") == [0]
    assert column(db, "SELECT count(*) FROM campaign_counts") == [0]
