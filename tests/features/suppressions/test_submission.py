"""Mail by SQL to suppressed addresses: the log, what its program learns, and what goes on."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

import pgmta
from tests.features.suppressions.campaign import Campaign
from tests.support.rows import attempt, column, fetch

WORDS = "suppressed since 2026-01-02 03:04 UTC: complained (message 12)"
SUPPRESS = (
    "SELECT suppress('Joe@b.example', %s, %s, 'complained', 'message 12', '2026-01-02 03:04Z')"
)


def submit(db: psycopg.Connection, *to: str, **options: Any) -> int:
    names = "".join(f", {name} => %s" for name in options)
    query = f"SELECT submit_mail('s@a.example', %s, body => 'x'{names})"
    return int(fetch(db, query, list(to), *options.values())[0])


def states(db: psycopg.Connection, message: int) -> list[tuple[str, str, str | None]]:
    query = "SELECT recipient, state, reply FROM status(ARRAY[%s]::bigint[])"
    return db.execute(query, (message,)).fetchall()


def test_the_rest_goes_and_status_has_the_words_at_once(db: psycopg.Connection) -> None:
    db.execute(SUPPRESS, ("", ""))
    with db.transaction():
        message = submit(db, "ann@b.example", "joe@B.example", "eve@b.example")
        assert sorted(states(db, message)) == [
            ("ann@b.example", "queued", None),
            ("eve@b.example", "queued", None),
            ("joe@B.example", "suppressed", WORDS),
        ]
    assert fetch(
        db, "SELECT event, attempt, code, reply, submitted_by = current_user FROM attempts"
    ) == ("suppressed", 0, 0, WORDS, True)  # fmt: skip
    alone = submit(db, "joe@b.example", send_at="2030-01-01")
    assert states(db, alone) == [("joe@b.example", "suppressed", WORDS)]
    large = "SELECT submit('s@a.example', '{joe@b.example}', %s)"
    db.execute(large, (b"Subject: x\r\n\r\n" + b"x" * 70 + b"\r\n" * 9000,))
    assert column(db, "SELECT id FROM messages") == [message], "no body is left"
    assert column(db, "SELECT count(*) FROM message_chunks") == [0]


def test_what_is_not_asked_and_what_does_not_fit(db: psycopg.Connection) -> None:
    """Other tenants and scopes, mail of operators, of SMTP, DSNs, and after the release."""
    db.execute("SELECT suppression_scope('news', 't')")
    db.execute(SUPPRESS, ("t", "news"))
    db.execute(SUPPRESS, ("u", ""))
    for options, stopped in (
        ({"tenant": "t"}, False), ({"tenant": "u"}, True), ({}, False),
        ({"tenant": "u", "metadata": '{"_exempt": 1}'}, False),
    ):  # fmt: skip
        assert states(db, submit(db, "joe@b.example", **options))[0][1] == (
            "suppressed" if stopped else "queued"
        ), options
    put = (
        "SELECT queue_put(ARRAY[new_message(next_message_id(), 1, 5::smallint, '', '', '', '',"
        " 'remove', null, %s, tenant => 'u')], ARRAY[new_row(1, 'joe@b.example', 'b.example',"
        " %s::jsonb)])"
    )
    for origin, metadata, rows in (
        ("user", "{}", 1), ("queued", "{}", 1), ("sql", "{}", 0), ("sql", '{"_scope": "x"}', 0),
        ("sql", '{"_exempt": "report"}', 1),
    ):  # fmt: skip
        assert fetch(db, put, origin, metadata) == (rows,)
    news = put.replace("'u'", "'t'")
    assert fetch(db, news, "sql", '{"_scope": "news"}') == (0,)
    row = "new_row(1, 'joe@b.example', 'b.example')"
    twice = put.replace(", ARRAY[new_row", f", {row} || ARRAY[new_row")
    assert fetch(db, twice, "sql", "{}") == (0,)
    db.execute("SELECT suppression_release('joe@b.example', 'u')")
    assert states(db, submit(db, "joe@b.example", tenant="u"))[0][1] == "queued"


def test_forgotten_persons_and_old_suppressions(db: psycopg.Connection) -> None:
    db.execute("SELECT suppress('old@b.example'); UPDATE suppressions SET until = now()")
    db.execute("SELECT forget_suppressions(mailbox_key('Joe@b.example'), '', false)")
    message = submit(db, "ann@b.example", "joe@b.example", "old@b.example", tenant="t")
    assert {r: s for r, s, _ in states(db, message)} == {
        "ann@b.example": "queued", "joe@b.example": "suppressed", "old@b.example": "queued",
    }  # fmt: skip


def test_a_long_list_and_a_long_log_are_read_by_index(db: psycopg.Connection) -> None:
    """Whatever PostgreSQL knows of their sizes."""
    attempt(db)
    db.execute("SET session_replication_role = replica")  # without triggers
    db.execute(
        "INSERT INTO suppressions (address, reason)"
        " SELECT n || '@b.example', 'operator' FROM generate_series(1, 40000) AS n;"
        "INSERT INTO suppression_sieve (part, bits)"
        " SELECT n, ~ 0::bit(2048) FROM generate_series(0, 65535) AS n;"
        " ANALYZE suppressions"
    )
    db.execute(
        "INSERT INTO attempts"
        " SELECT (jsonb_populate_record(a, jsonb_build_object('message_id', -n))).*"
        " FROM attempts AS a, generate_series(1, 10000) AS n"
    )
    db.execute("RESET session_replication_role")
    submit = "SELECT suppressed FROM submit_mails(%s)"
    mails = [
        {"sender": "s@a.example", "to": [f"{n}@b.example"], "body": "x"} for n in range(-200, 2)
    ]
    read = (
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"
        " WHERE relname ~ '^(suppressions|suppression_sieve|attempts_.*)$'"
    )
    with db.transaction():
        db.execute("SELECT suppress('joe@b.example'), suppress('1@b.example')")
        assert len(fetch(db, submit, Jsonb(mails))[0]) == 1
        assert fetch(db, read)[0] < 1000


def test_programs_learn_who_gets_nothing(db: psycopg.Connection, database: str) -> None:
    db.execute(SUPPRESS, ("*", ""))
    joe = pgmta.SuppressedRecipient("joe@b.example", WORDS)

    def mail(*to: str, key: str | None = None) -> pgmta.Mail:
        return pgmta.Mail(sender="s@a.example", to=to, subject="x", body="x", key=key)

    mails = [mail("ann@b.example"), mail("ann@b.example", "joe@b.example"), mail("bad"),
             mail("joe@b.example", key="k"), mail("joe@b.example")]  # fmt: skip
    told = [(), (joe,), (), (joe,), (joe,)]

    async def by_client() -> None:
        async with pgmta.Client(database) as client:
            assert [each.suppressed for each in await client.send_many(mails)] == told
            found = await client.send(mail("joe@b.example"))
            assert isinstance(found, pgmta.MessageId)
            assert found.suppressed == (joe,)
            assert not isinstance(await client.send(mail("ann@b.example")), pgmta.MessageId)

    asyncio.run(by_client())
    with pgmta.SyncClient(database) as client:
        assert [each.suppressed for each in client.send_many(mails[:2])] == told[:2]
    assert [each.suppressed for each in pgmta.enqueue_many(db, mails[:2])] == told[:2]
    query = "SELECT ids, suppressed FROM submit_mails(%s, call => %s)"
    given = '[{"sender": "", "from": "s@a.example", "to": ["joe@b.example"], "body": "x"}]'
    call = uuid4()
    first = fetch(db, query, given, call)
    assert first[1] == [{"index": 0, "recipient": "joe@b.example", "reason": WORDS}]
    assert fetch(db, query, given, call) == first, "the repetition has the answer of the first"


def test_an_empty_list_is_not_asked(db: psycopg.Connection, campaign: Campaign) -> None:
    """The look is a part of the expression that returns, and no function is called."""
    reads = "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'suppressions'"
    with db.transaction():
        submit(db, "ann@b.example")
        assert fetch(db, reads) == (0, 0)


def test_the_feed_of_a_campaign_is_asked_once(db: psycopg.Connection, campaign: Campaign) -> None:
    """It looks at many recipients at once; queue_put() does not look at each again."""
    db.execute(SUPPRESS, ("", ""))
    campaign.add("ann@b.example", "joe@b.example")
    campaign.start()
    calls = "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'rows_suppress'"
    with db.transaction():
        db.execute("SET LOCAL track_functions = 'pl'")
        campaign.feed()
        assert column(db, "SELECT recipient FROM queue") == ["ann@b.example"]
        assert column(db, calls) == []
        submit(db, "ann@b.example")
        assert column(db, calls) == [1]
