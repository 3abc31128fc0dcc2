"""submit_mails(): each kind of mail, and errors that are about one mail alone."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import fields
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg_errors

from pgmta import Attachment, Mail, TemplateMail
from pgmta.store.admin.migrate import migrate
from tests.sql.test_composed import ALL, SOURCE, put_template, submit
from tests.support.bad_mail import Bad
from tests.support.database import OCTETS, fresh_database
from tests.support.rows import column, fetch

MAIL: dict[str, Any] = {
    "sender": "shop@example.org", "to": ["bob@example.com"], "subject": "Hello", "body": "x",
}  # fmt: skip
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
RAW = b"Date: x\r\nMessage-ID: <1@a.example>\r\nSubject: x\r\n\r\n\xff\r\n"
BY_OCTETS = {"sender": "shop@example.org", "recipients": ["bob@example.com"], "content": 0}
BY_TEMPLATE = {
    "template": "receipt", "recipient": "Bob <bob@example.com>", "params": {"name": 1, "number": 2},
}  # fmt: skip
OPTIONS = {
    "send_at": "2035-01-31T09:30:00.5+01:00", "deadline": "2035-02-01t00:00:00z", "priority": 7.0,
    "metadata": {"a": [None], "_partid": "2", "_trace": TRACE}, "key": "k", "tenant": "acme",
    "on_failed": "remove", "once": True,
}  # fmt: skip


VARIES = re.compile(r"(?<=SQL id )\d+|(?<=\t)..., .. ... .{13} \+0000|(?<=^<)\d+\.[0-9a-f]{16}")
OTHER = {"id", "message_id", "ts", "next_attempt", "received_at"}


def stored(db: psycopg.Connection) -> list[dict[str, Any]]:
    """Everything in both tables without times and numbers, and no rows any more."""
    rows = (
        db.execute("SELECT to_jsonb(m) FROM messages AS m ORDER BY id").fetchall()
        + db.execute("SELECT to_jsonb(q) FROM queue AS q ORDER BY id").fetchall()
    )
    db.execute("DELETE FROM queue")
    return [
        {
            name: VARIES.sub("N", value) if name in ("trace", "message_id_header") else value
            for name, value in row.items()
            if name not in OTHER
        }
        for (row,) in rows
    ]


@pytest.fixture
def db(db: psycopg.Connection) -> psycopg.Connection:
    """A database with the template `receipt`."""
    put_template(db, "receipt", SOURCE)
    return db


def given(mail: Mail | TemplateMail) -> dict[str, Any]:
    """Mail of Python as an object of JSON, with null for arguments that are None."""
    left = {name: getattr(mail, name) for name in (each.name for each in fields(mail))}
    left["attachments"] = [
        {"name": file.name, "type": file.type, "content_id": file.content_id,
         "content": base64.b64encode(file.content).decode()}
        for file in left["attachments"]
    ]  # fmt: skip
    return {name.rstrip("_"): value for name, value in left.items()}


def many(
    db: psycopg.Connection, mails: list[Any], contents: list[bytes] | None = None
) -> tuple[list[int | None], list[dict[str, Any]]]:
    """The ids, and the problems."""
    query = "SELECT ids, problems FROM pgmta.submit_mails(%s, %s)"
    ids, problems = fetch(db, query, json.dumps(mails), contents or [])
    return ids, problems or []


def test_a_bad_mail_is_refused_as_submit(db: psycopg.Connection) -> None:
    mails: list[dict[str, Any]] = []
    wanted: list[dict[str, Any]] = []
    for make, good, bad in ALL:
        with pytest.raises(pg_errors.InvalidParameterValue) as refused:
            submit(db, make(**{**good, **bad.arguments}))
        said = refused.value.diag
        wanted.append({
            "index": len(mails) + 1, "argument": said.column_name, "code": said.sqlstate,
            "message": said.message_primary, "detail": said.message_detail,
            "hint": said.message_hint,
        })  # fmt: skip
        mails += [given(make(**good)), given(make(**{**good, **bad.arguments}))]
    ids, problems = many(db, mails)
    assert problems == wanted
    assert len(ALL) >= 50
    assert [number is None for number in ids] == [False, True] * len(ALL)
    assert column(db, "SELECT id FROM messages ORDER BY id") == sorted(filter(None, ids))


def test_each_kind_is_stored_as_submit(db: psycopg.Connection) -> None:
    options = (
        "send_at => '2035-01-31 08:30:00.5Z', deadline => '2035-02-01Z', priority => 7,"
        f""" metadata => '{json.dumps(OPTIONS["metadata"])}', key => 'k', tenant => 'acme',"""
        " on_failed => 'remove', once => true"
    )
    octets = base64.b64encode(RAW).decode()
    parts = "submit_mail('shop@example.org', '{bob@example.com}', 'Hello', 'x'"
    raw = "submit('shop@example.org', '{bob@example.com}', %(raw)b"
    words = json.dumps(BY_TEMPLATE["params"])
    for statement, mail in (
        (raw, BY_OCTETS),
        (raw, {**BY_OCTETS, "content": octets}),
        (f"submit_template('receipt', 'Bob <bob@example.com>', '{words}'", BY_TEMPLATE),
        (parts, MAIL),
        (parts + """, headers => '{"X-A": "b"}'""", {**MAIL, "headers": {"X-A": "b"}}),
    ):
        for more, named in ({}, ""), (OPTIONS, ", " + options):
            db.execute(f"SELECT {statement}{named})".encode(), {"raw": RAW})
            one_by_one = stored(db)
            db.execute("DELETE FROM idempotency_keys")
            assert many(db, [{**mail, **more}], [RAW])[1] == []
            assert stored(db) == one_by_one
            db.execute("DELETE FROM idempotency_keys")


VARIED: list[dict[str, Any]] = [
    {"cc": ["ann@example.com"], "bcc": ["ann@example.com", "ann@EXAMPLE.com"]},
    {"to": ["Bob <bob@example.com>", "ann@example.com"], "from": "Shop <shop@example.org>"},
    {"to": [], "bcc": ["Zoë van 't Hoog <zoe@xn--bcher-kva.example>", "<ann@b.example>"]},
    {"from": "<é@x.y>", "to": ['"B \\"x\\", C" <b@b.example>\t', "é@b.example", "a@[192.0.2.1]"]},
    {"bcc": ["é@b.example"], "reply_to": "Jürgen <j.k+shop@mail.example.org>"},
    {"html": '<p>"x" \\ \t é</p>', "body": "a\r\nb\nc\u0001\\u0000 <x> 😀"},
    {"subject": 'Grüße: "heute" \u3000', "priority": 0, "on_failed": "bounce", "once": True},
    {"tenant": "acme.shop", "metadata": {"order": 4711, "to": None, "_trace": TRACE}},
    {"to": [f"r{n % 40}@b.example" for n in range(60)], "subject": " "},
    {"to": ["+491701234567", "+49 (170) 1234568"], "subject": "", "body": "x"},
]


def test_mail_is_stored_alike_alone_and_among_others(db: psycopg.Connection) -> None:
    for changes in VARIED:
        mail = {**MAIL, **changes}
        assert fetch(db, "SELECT problem FROM submit_tried(%s, '{}')", json.dumps(mail)) == (None,)
        one = stored(db)
        assert many(db, [mail])[1] == []
        assert stored(db) == one, changes
        assert len(many(db, [mail, {}, mail])[1]) == 1
        messages, rows = ([r for r in one if ("trace" in r) is kind] for kind in (True, False))
        assert stored(db) == messages * 2 + rows * 2, changes


def test_files_are_base64_or_places_in_contents(db: psycopg.Connection) -> None:
    file = {"name": "a.bin", "content": 1}
    coded = {"name": "b.bin", "content": "//8=", "type": "a/b", "content_id": None}
    ids, problems = many(
        db,
        [{**MAIL, "attachments": [file, coded]}, {**BY_TEMPLATE, "attachments": [coded]}],
        [RAW, b"\0\1"],
    )
    assert problems == []
    by_function = submit(
        db,
        Mail(
            sender="shop@example.org", to=["bob@example.com"], subject="Hello", body="x",
            attachments=[Attachment("a.bin", b"\0\1"), Attachment("b.bin", b"\xff\xff", "a/b")],
        ),
    )  # fmt: skip
    tail = "SELECT regexp_replace(encode(body, 'escape'), '--=_[^\\r]*', '', 'g') FROM messages"
    assert column(db, tail + " WHERE id = %s", ids[0]) == column(
        db, tail + " WHERE id = %s", by_function
    )


BAD = [
    Bad({**MAIL, "subjet": "x"}, "subjet", "no such key"),
    Bad({**MAIL, "attachments": [{"name": "a", "contents": "eA=="}]}, "attachments", '"contents"'),
    Bad({**MAIL, "attachments": ["a.pdf"]}, "attachments", "no JSON object"),
    Bad({**MAIL, "attachments": [{"name": "a"}]}, "attachments.0", "neither base64"),
    Bad({**MAIL, "attachments": [{"name": "a", "content": 9}]}, "attachments.0", "no such place"),
    Bad(
        {**MAIL, "attachments": [{"name": "a", "content": [0]}]}, "attachments.0", "neither base64"
    ),
    Bad({**MAIL, "attachments": [{"name": 7, "content": 0}]}, "attachments", "no text"),
    Bad({**BY_OCTETS, "content": -1}, "content", "no such place"),
    Bad({**BY_OCTETS, "content": 0.5}, "content", "no such place"),
    Bad({**BY_OCTETS, "content": 1e300}, "content", "no such place"),
    Bad({**BY_OCTETS, "content": 2}, "content", "no such place"),
    Bad({**BY_OCTETS, "content": "RGF0ZTo"}, "content", "no base64"),
    Bad({**BY_OCTETS, "content": "Ü"}, "content", "no base64"),
    Bad({**BY_OCTETS, "content": {}}, "content", "neither base64"),
    Bad({**BY_OCTETS, "content": True}, "content", "neither base64"),
    Bad({**BY_OCTETS, "recipients": []}, "recipients", "none"),
    Bad({**BY_OCTETS, "to": ["a@b.example"]}, "to", "no such key"),
    Bad({**BY_TEMPLATE, "version": 1.5}, "version", "no whole number"),
    Bad({**BY_TEMPLATE, "version": 1 << 40}, "version", "no whole number"),
    Bad({**BY_TEMPLATE, "recipient": ["a@b.example"]}, "recipient", "no text"),
    Bad({**BY_TEMPLATE, "params": [1]}, "params", "no JSON object"),
    Bad({**BY_TEMPLATE, "subject": "x"}, "subject", "no such key"),
    Bad({**BY_TEMPLATE, "template": 7}, "template", "no text"),
    Bad({**MAIL, "to": [7]}, "to", "no list of texts"),
    Bad({**MAIL, "to": "bob@example.com"}, "to", "no list of texts"),
    Bad({**MAIL, "subject": 7}, "subject", "no text"),
    Bad({**MAIL, "body": 7}, "body", "no text"),
    Bad({**MAIL, "html": True}, "html", "no text"),
    Bad({**MAIL, "tenant": 7}, "tenant", "no text"),
    Bad({**MAIL, "from": ["a@b.example"]}, "from", "no text"),
    Bad({**MAIL, "cc": {}}, "cc", "no list of texts"),
    Bad({**MAIL, "once": "yes"}, "once", "neither true"),
    Bad({**MAIL, "once": "true"}, "once", "neither true"),
    Bad({**MAIL, "priority": "5"}, "priority", "no whole number"),
    Bad({**MAIL, "send_at": "2035-01-31 09:30"}, "send_at", "RFC 3339"),
    Bad({**MAIL, "send_at": "2035-02-30T09:30:00Z"}, "send_at", "RFC 3339"),
    Bad({**MAIL, "send_at": f"2035-01-31T09:30:00.{'0' * 99}Z"}, "send_at", "RFC 3339"),
    Bad({**MAIL, "send_at": "infinity"}, "send_at", "RFC 3339"),
    Bad({**MAIL, "deadline": 7}, "deadline", "RFC 3339"),
    Bad({**MAIL, "metadata": "x"}, "metadata", "no JSON object"),
    Bad({**MAIL, "metadata": {"_trace": "x"}}, "metadata", "traceparent"),
    Bad({**MAIL, "metadata": json.loads('{"a":' * 300 + "1" + "}" * 300)}, "metadata", "deep"),
    Bad({**MAIL, "headers": json.loads("[" * 3000 + "]" * 3000)}, "headers", "no JSON object"),
]


def test_a_key_or_value_that_json_allows_is_named(db: psycopg.Connection) -> None:
    for bad in BAD:
        ids, problems = many(db, [MAIL, bad.arguments, BY_OCTETS, MAIL], [RAW, b""])
        [problem] = problems
        assert problem["argument"] == bad.argument, problem
        assert bad.words in problem["message"], problem
        assert (problem["index"], problem["code"]) == (1, "22023")
        assert problem["hint"]
        assert [number is None for number in ids] == [False, True, False, False]
    for each in (None, 7, "x", [], [MAIL]):
        [problem] = many(db, [MAIL, each])[1]
        assert "a mail is no JSON object" in problem["message"]
    for key, hint in {
        "subjet": "subject", "Subject": "subject", "from_": "from", "reply-to": "reply_to",
        "sendAt": "send_at", "recipients": "",
    }.items():  # fmt: skip
        [problem] = many(db, [{**MAIL, key: "x"}])[1]
        assert problem["hint"].startswith(f"Did you mean {hint}?" if hint else "It may have attach")
    [problem] = many(db, [{**MAIL, "x" * 5000: "x"}])[1]
    assert len(problem["argument"]) == 100
    assert problem["hint"].startswith("It may have ")


@pytest.mark.parametrize("key", ["send_at", "deadline"])
def test_a_zone_that_postgresql_has_not_is_named(db: psycopg.Connection, key: str) -> None:
    for zone, good in (("+15:59", True), ("-15:59", True), ("+16:00", False), ("-23:59", False)):
        ids, problems = many(db, [{**MAIL, key: f"2035-01-31T09:30:00{zone}"}])
        assert (ids != [None]) is good
        assert [each["argument"] for each in problems] == ([] if good else [key])


def test_a_null_is_as_if_the_key_were_missing(db: psycopg.Connection) -> None:
    nulls = dict.fromkeys([*OPTIONS, "cc", "bcc", "reply_to", "from", "html", "headers", "template",
                           "attachments", "content"])  # fmt: skip
    many(db, [MAIL])
    without = stored(db)
    assert many(db, [{**nulls, **MAIL}])[1] == []
    assert stored(db) == without


def test_text_that_is_no_list_ends_the_call(db: psycopg.Connection) -> None:
    for mails, state in (
        ("{}", "22023"), ("null", "22023"), (None, "22023"), ('"x"', "22023"),
        ('[{"subject": "\\u0000"}]', "22P05"), ('[{"subject": "\\ud800"}]', "22P02"),
        ("[" * 300_000, "54001"), ("[", "22P02"),
    ):  # fmt: skip
        with pytest.raises(psycopg.Error) as refused:
            db.execute("SELECT pgmta.submit_mails(%s)", (mails,))
        assert refused.value.sqlstate == state


def test_odd_json_and_arrays(db: psycopg.Connection) -> None:
    assert many(db, []) == ([], [])
    assert fetch(db, "SELECT ids FROM submit_mails('[]', NULL)") == ([],)
    twice = json.dumps([MAIL]).replace('"body"', '"sender": "x", "sender": "a@a.example", "body"')
    assert fetch(db, "SELECT problems FROM submit_mails(%s)", twice) == (None,)
    assert column(db, "SELECT sender FROM queue") == ["a@a.example"]
    raw = json.dumps([{**BY_OCTETS, "content": 1}])
    for contents in ("NULL", "'[5:6]={x,y}'::bytea[]", "'{{x,y}}'::bytea[]", "'{x,NULL}'::bytea[]"):
        ids, problems = fetch(db, f"SELECT ids, problems FROM submit_mails('{raw}', {contents})")
        assert ids == [None]
        assert problems[0]["argument"] == "content"
    shifted = "array_fill('Subject: x'::bytea || '\\x0d0a0d0a', ARRAY[2], ARRAY[5])"
    assert fetch(db, f"SELECT problems FROM submit_mails('{raw}', {shifted})") == (None,)


def test_a_large_call(db: psycopg.Connection) -> None:
    """The ids are in the order of the mails, whichever way each of them went."""
    mails: list[dict[str, Any]] = []
    for number in range(2500):
        mail = {**MAIL, "to": [f"r{number}@b.example"], "cc": ["x@b.example", "y@b.example"]}
        if number % 100 == 7:
            mail["headers"] = {"X-A": "b"}
        if number % 500 == 11:
            mail["to"] = ["nobody"]
        mails.append(mail)
    ids, problems = many(db, mails)
    assert [each["index"] for each in problems] == [11, 511, 1011, 1511, 2011]
    found: dict[str, int] = dict(
        db.execute("SELECT recipient, message_id FROM queue WHERE recipient ~ '^r'").fetchall()
    )
    assert ids == [found.get(mail["to"][0]) for mail in mails]
    assert column(db, "SELECT count(*) FROM queue") == [3 * 2495]


def test_a_large_call_takes_no_more_time_a_mail(db: psycopg.Connection) -> None:
    """Plain mail goes in by slices of 1,000: in longer arrays PostgreSQL looks too long."""
    query = """SELECT calls FROM pg_stat_xact_user_functions
        WHERE funcname = 'queue_put' AND schemaname = 'pgmta'"""
    mails = [{**MAIL, "subject": str(number)} for number in range(2001)]
    with db.transaction():
        db.execute("SET LOCAL track_functions = 'all'")
        ids, problems = many(db, mails)
        assert fetch(db, query) == (3,)
    assert (len(ids), problems) == (2001, [])
    stored = db.execute("SELECT id, params ->> 'subject' FROM messages").fetchall()
    assert dict(zip(ids, (mail["subject"] for mail in mails), strict=True)) == dict(stored)


def test_another_trace_is_the_same_message(db: psycopg.Connection) -> None:
    traced = [{**MAIL, "key": "k", "metadata": {"_trace": TRACE[:-1] + end}} for end in "01"]
    traced += [{**MAIL, "key": "k", "metadata": {}}, {**MAIL, "key": "k", "metadata": {"a": 1}}]
    ids, [problem] = many(db, traced)
    assert (ids[0] is not None, ids[1], ids[2], ids[3]) == (True, ids[0], ids[0], None)
    assert (problem["argument"], problem["code"]) == ("key", "23505")
    raw = [{**BY_OCTETS, "key": "r", "metadata": each["metadata"]} for each in traced[:2]]
    assert len(set(many(db, raw, [RAW])[0])) == 1


def test_a_database_of_octets_takes_characters_only(server: str) -> None:
    with fresh_database(server, options=OCTETS) as uri:
        migrate(uri)
        with psycopg.connect(uri, autocommit=True, client_encoding="UTF8") as db:
            text = json.dumps([{**MAIL, "to": ["Zoë <z@b.example>"]}], ensure_ascii=False)
            query = "SELECT ids, problems FROM pgmta.submit_mails((%s)::jsonb)"
            assert fetch(db, query, text)[1] is None
            assert column(db, "SELECT params -> 'to' FROM pgmta.messages") == [
                [["Zoë", "z@b.example"]]
            ]
            broken = query.replace("(%s)", "replace(%s, E'\\303\\253', E'\\303')")
            ids, [problem] = fetch(db, broken, text)
            assert (ids, problem["argument"]) == ([None], "to")
            assert "octets that are no character" in problem["message"]
