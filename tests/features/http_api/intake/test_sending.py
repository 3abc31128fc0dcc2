"""Mail in each form: what is stored of it, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from pgmta_features.http_api.api import Api
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.intake.mails import Batch
from tests.features.http_api.served import ServedApi, make_key
from tests.sql.test_composed import SOURCE, put_template
from tests.support.rows import column, fetch
from tests.support.waiting import PATIENCE, until
from tests.web.web import Answer

MAIL: dict[str, Any] = {
    "from": "Shop <shop@example.org>", "to": ["Ann <ann@b.example>"], "subject": "Order 1",
    "body": "Thank you.",
}  # fmt: skip
RAW = b"From: Shop <shop@example.org>\r\nBcc: eve@b.example\r\nSubject: Raw\r\n\r\nHello\r\n"
BOUNDARY = "b51"


def post(api: ServedApi, token: str, body: Any = None, path: str = "", **headers: str) -> Answer:
    """Send mail; the key's `Idempotency-Key` and the like are `headers`."""
    return api.send("POST", f"/v1/messages{path}", token, MAIL if body is None else body, **headers)


def multipart(*parts: tuple[str, str, bytes]) -> tuple[bytes, dict[str, str]]:
    """A body of multipart/form-data, and its header field; a part is its Content-Disposition."""
    lines = b""
    for about, kind, content in parts:
        lines += f"--{BOUNDARY}\r\nContent-Disposition: form-data; {about}\r\n".encode()
        lines += f"Content-Type: {kind}\r\n\r\n".encode() + content + b"\r\n"
    fields = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return lines + f"--{BOUNDARY}--\r\n".encode(), fields


def problem(answer: Answer) -> tuple[int, str, str]:
    """Status, word and pointer of a problem."""
    members = answer.members
    assert answer.headers["content-type"] == "application/problem+json", answer
    return answer.status, members["type"].rpartition(":")[2], members.get("pointer", "")


def content(db: psycopg.Connection, message_id: str) -> bytes:
    """The stored content."""
    (found,) = column(
        db,
        "SELECT CASE WHEN chunks = 0 THEN body ELSE (SELECT string_agg(data, '' ORDER BY position)"
        " FROM message_chunks AS c WHERE c.message_id = m.id) END FROM messages AS m"
        f" WHERE id = {int(message_id)}",
    )
    return bytes(found)


def test_each_form_of_mail_is_stored_for_its_key(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", tenant="t1", priorities=(2, 5))
    put_template(db, "hello", SOURCE)
    large = bytes(range(256)) * 1000
    files = [
        {"name": "a.txt", "type": "text/plain", "content": base64.b64encode(b"small").decode()}
    ]
    answers = [
        post(api, token, {**MAIL, "attachments": files, "metadata": {"order": 1}, "priority": 2}),
        post(api, token, {"template": "hello", "recipient": "ann@b.example",
                          "params": {"name": "Ann", "number": 7}}),
    ]  # fmt: skip
    envelope = {"sender": "shop@example.org", "recipients": "a@b.example, c@b.example"}
    answers.append(post(api, token, RAW, f"?{urlencode(envelope)}", Content_Type="message/rfc822"))
    # as a file of Unix, with another ending, and beside a list of recipients
    unix = RAW.replace(b"\r\n", b"\n") + large.replace(b"\r", b"x").replace(b"\0", b"y")
    body, fields = multipart(
        ('name="message"', "application/json",
         json.dumps({"sender": "", "recipients": ["d@b.example"]}).encode()),
        ('name="content"', "message/rfc822", unix),
    )  # fmt: skip
    answers.append(post(api, token, body, **fields))
    body, fields = multipart(
        ('name="message"', "application/json", json.dumps({**MAIL, "attachments": files}).encode()),
        ('name="file"; filename="large.bin"', "application/octet-stream", large),
        ("name=file; filename*=UTF-8''small%20%E2%82%AC.bin", "application/octet-stream", b"s"),
        ('name="file"; filename="more.bin"', "application/octet-stream", large[::-1]),
    )
    answers.append(post(api, token, body, **fields))
    assert [each.status for each in answers] == [202] * 5, answers
    ids = [each.members["id"] for each in answers]
    assert [each.headers["location"] for each in answers] == [f"/v1/messages/{n}" for n in ids]
    stored = db.execute("SELECT id::text, submitted_by, tenant FROM messages ORDER BY id")
    assert stored.fetchall() == [(number, "key:shop", "t1") for number in ids]
    assert fetch(db, "SELECT priority, metadata, sender FROM queue ORDER BY id LIMIT 1") == (
        2, {"order": 1}, "shop@example.org",
    )  # fmt: skip
    recipients = "SELECT recipient FROM queue WHERE message_id::text = ANY (%s) ORDER BY id"
    found = [row[0] for row in db.execute(recipients, [ids[2:4]])]
    assert found == ["a@b.example", "c@b.example", "d@b.example"]
    raw = content(db, ids[2])
    assert raw.endswith(RAW.replace(b"Bcc: eve@b.example\r\n", b"")), raw
    assert raw.startswith(b"Date: ")
    converted = content(db, ids[3])
    assert b"Bcc" not in converted
    assert converted.endswith(unix.replace(b"\n", b"\r\n")[-1000:])
    tail = content(db, ids[4])
    encoded = [base64.b64encode(each)[:70] for each in (large, large[::-1], b"s", b"small")]
    assert all(each in tail for each in encoded)
    assert tail.index(b"a.txt") < tail.index(b"large.bin") < tail.index(b"small%20%E2%82%AC.bin")
    assert column(db, "SELECT count(*) FROM api_uploads") == [0]


WRONG: list[tuple[dict[str, Any], tuple[int, str, str]]] = [
        ({"from": "x@other.example"}, (403, "sender-refused", "/from")),
        ({"sender": "x@other.example"}, (403, "sender-refused", "/sender")),
        # as the database reads it: the last address counts
        ({"from": "<shop@example.org> <x@other.example>"}, (403, "sender-refused", "/from")),
        ({"sender": "", "from": "x@other.example"}, (403, "sender-refused", "/from")),
        ({"sender": "", "from": None}, (422, "invalid", "/from")),
        ({"from": None}, (422, "invalid", "/sender")),
        ({"tenant": "other"}, (403, "tenant-refused", "/tenant")),
        ({"to": ["nobody"]}, (422, "invalid", "/to")),
        ({"to": []}, (422, "invalid", "/to")),
        ({"subject": "a\r\nBcc: eve@b.example"}, (422, "invalid", "/subject")),
        ({"subjekt": "x"}, (422, "invalid", "/subjekt")),
        ({"priority": "5"}, (422, "invalid", "/priority")),
        ({"priority": 4}, (403, "priority-refused", "/priority")),
        ({"priority": 6}, (403, "priority-refused", "/priority")),
        ({"metadata": {"credential": "ses-b"}},
         (403, "credential-refused", "/metadata/credential")),
        ({"metadata": {"_partid": "w2"}}, (422, "invalid", "/metadata/_partid")),
        ({"template": "hello"}, (422, "invalid", "/to")),
        ({"recipient": "ann@b.example"}, (422, "invalid", "/recipient")),
        ({"attachments": [{"name": "a", "content": "?"}]}, (422, "invalid", "/attachments/0")),
        ({"send_at": "tomorrow"}, (422, "invalid", "/send_at")),
        ({"key": "1"}, (422, "invalid", "/key")),
    ]  # fmt: skip


def test_what_is_wrong_is_named_and_nothing_stored(
    api: ServedApi, db: psycopg.Connection, subtests: pytest.Subtests
) -> None:
    token = make_key(db, "shop", tenant="t1")
    for number, (changes, expected) in enumerate(WRONG):
        with subtests.test(changes=changes):
            mail = {name: value for name, value in {**MAIL, **changes}.items() if value is not None}
            answer = post(api, token, mail, Idempotency_Key=f"{number}")
            assert problem(answer) == expected, answer
            if "subjekt" in mail:
                assert "subject" in answer.members["detail"]
            assert column(db, "SELECT count(*) FROM messages") == [number]
            # the request is mended, and repeated with its key
            assert post(api, token, MAIL, Idempotency_Key=f"{number}").status == 202


def test_from_of_templates_and_contents_has_to_be_of_the_key(
    api: ServedApi, db: psycopg.Connection
) -> None:
    token = make_key(db, "shop", senders=["shop@example.org"])
    put_template(db, "hello", SOURCE)
    put_template(db, "word", replace(SOURCE, from_="{{name}} <{{author}}>"))
    put_template(db, "other", replace(SOURCE, from_="Other <other@example.org>"))

    def by(template: str, **params: object) -> dict[str, Any]:
        words = {"name": "Ann", "number": 1, **params}
        return {"template": template, "recipient": "ann@b.example", "params": words}

    assert post(api, token, by("hello")).status == 202
    assert post(api, token, by("word", author="Shop@Example.org")).status == 202
    refused = [by("word", author="x@other.example"), by("other")]
    for mail in refused:
        answer = post(api, token, mail)
        assert problem(answer) == (403, "sender-refused", "/template"), answer
        assert "shop@example.org" in answer.members["detail"]
    answer = post(api, token, {"messages": [*refused, MAIL]}, "/batch", Idempotency_Key="b")
    results = answer.members["data"]
    assert [each.get("problem", {}).get("status") for each in results] == [403, 403, None]
    assert results[0]["problem"]["pointer"] == "/messages/0/template"
    assert column(db, "SELECT count(*) FROM messages") == [3]
    query = urlencode({"sender": "shop@example.org", "recipients": "a@b.example"})
    for header in (
        b"From: x@other.example\r\n", b"Subject: none\r\n",
        b"From: shop@example.org\r\nFrom: x@other.example\r\n",
        b"From: shop@example.org, x@other.example\r\n",
        b"From: shop@example.org\r\nSender: ceo@bank.example\r\n",
        b"Sender: shop@example.org\r\nFrom: shop@example.org\r\nsender: shop@example.org\r\n",
    ):  # fmt: skip
        answer = post(api, token, header + b"\r\nx\r\n", f"?{query}", Content_Type="message/rfc822")
        assert problem(answer) == (403, "sender-refused", ""), answer
    # a key with any sender may send each of them: alone, in a batch, with an Idempotency-Key
    free = make_key(db, "free", senders=["any"])
    assert post(api, free, by("other")).status == 202
    assert post(api, free, by("other"), Idempotency_Key="c").status == 202
    for headers in ({}, {"Idempotency_Key": "d"}):
        answer = post(api, free, {"messages": [*refused, MAIL]}, "/batch", **headers)
        assert all("id" in each for each in answer.members["data"]), answer
    nobody = make_key(db, "nobody", senders=[])
    assert problem(post(api, nobody, by("hello"))) == (403, "sender-refused", "")
    assert problem(post(api, nobody)) == (403, "sender-refused", "")
    assert column(db, "SELECT count(*) FROM messages") == [3 + 8]
    assert column(db, "SELECT count(*) FROM api_uploads") == [0]


def test_a_key_for_any_tenant_names_one(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", tenant="*", senders=["any"])
    for tenant in ("t1", "t2", None):
        mail = {**MAIL, "from": f"x@{tenant}.example", "tenant": tenant}
        assert post(api, token, mail).status == 202
    assert column(db, "SELECT tenant FROM messages ORDER BY id") == ["t1", "t2", ""]


def test_each_mail_of_a_batch_has_its_result(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop")
    db.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        " IF NEW.params ->> 'subject' = 'odd' THEN RAISE EXCEPTION 'no odd mail'; END IF;"
        " RETURN NEW; END$$;"
        "CREATE TRIGGER no BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION no()"
    )
    mails = [
        {**MAIL, "subject": f"Order {n}"} for n in range(300)
    ]  # fmt: skip
    mails[7] = {**MAIL, "to": ["bad"]}
    mails[8] = mails[250] = {**MAIL, "subject": "odd"}
    mails[9] = {**MAIL, "from": "x@other.example"}
    mails[10] = ["no object"]  # type: ignore[call-overload]
    answer = post(api, token, {"messages": mails}, "/batch", Idempotency_Key="b")
    assert answer.status == 202, answer
    data = answer.members["data"]
    assert [each["index"] for each in data] == [*range(300)]
    problems = {each["index"]: each["problem"] for each in data if "problem" in each}
    found = {n: (each["status"], each.get("pointer")) for n, each in problems.items()}
    assert found == {
        7: (422, "/messages/7/to"), 8: (422, "/messages/8"), 9: (403, "/messages/9/from"),
        10: (422, "/messages/10"), 250: (422, "/messages/250"),
    }  # fmt: skip
    assert "no odd mail" in problems[8]["detail"]
    subjects = db.execute("SELECT id::text, params ->> 'subject' FROM messages").fetchall()
    expected = {each["id"]: mails[each["index"]]["subject"] for each in data if "id" in each}
    assert dict(subjects) == expected
    assert len(expected) == 295
    # small requests of others are written elsewhere
    writer = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ 'large requests'"
    assert column(db, f"{writer} AND datname = current_database()") == [1]
    again = post(api, token, {"messages": mails}, "/batch", Idempotency_Key="b")
    assert (again.members, again.headers["idempotency-replayed"]) == (answer.members, "true")
    # an error of the batch as a whole
    for messages in ([], [MAIL] * 1001):
        assert problem(post(api, token, {"messages": messages}, "/batch"))[:2] == (422, "invalid")


def test_suppressed_recipients_are_named(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop")
    db.execute("SELECT suppressions_put('{ann@b.example}', '{\"\"}', '{\"\"}', '{operator}')")
    answer = post(api, token, Idempotency_Key="one")
    again = post(api, token, Idempotency_Key="one")
    [suppressed] = answer.members["suppressed"]
    assert suppressed["recipient"] == "ann@b.example"
    assert again.members == answer.members
    batch = post(api, token, {"messages": [MAIL]}, "/batch")
    assert batch.members["data"][0]["suppressed"][0]["recipient"] == "ann@b.example"


BAD_UPLOADS: list[tuple[list[tuple[str, str, bytes]], tuple[int, str]]] = [
        ([('name="file"; filename="a"', "text/plain", b"x")], (422, "invalid")),
        ([('name="message"', "application/json", b"{")], (400, "not-json")),
        ([('name="message"', "application/json", b"x" * (2 << 20))], (413, "body-size")),
        ([('name="message"', "application/json", json.dumps(MAIL).encode()),
          ('name="file"', "text/plain", b"no filename")], (422, "invalid")),
        ([('name="message"', "application/json", json.dumps(MAIL).encode()),
          ('name="f"; filename="a"', "text/plain\r\nContent-Encoding: gzip", b"")],
         (415, "body-type")),
        ([('name="message"', "application/json",
           b'{"sender": "shop@example.org", "recipients": ["a@b.example"]}'),
          ('name="content"', "message/rfc822", RAW + b"a\nb\r\n" + b"x" * 100_000)],
         (422, "invalid")),
    ]  # fmt: skip


def test_a_bad_upload_leaves_nothing(
    api: ServedApi, db: psycopg.Connection, subtests: pytest.Subtests
) -> None:
    token = make_key(db, "shop")
    for parts, expected in BAD_UPLOADS:
        with subtests.test(parts=str(parts)[:100]):
            body, fields = multipart(*parts)
            assert problem(post(api, token, body, **fields))[:2] == expected
            assert column(db, "SELECT count(*) FROM messages") == [0]
            assert column(db, "SELECT count(*) FROM api_uploads") == [0]


def test_a_message_is_no_longer_than_the_database_allows(
    api: ServedApi, db: psycopg.Connection
) -> None:
    token = make_key(db, "shop")
    db.execute("UPDATE submit_settings SET message_size = 100000")
    body, fields = multipart(
        ('name="message"', "application/json", json.dumps(MAIL).encode()),
        ('name="f"; filename="a"', "text/plain", b"x" * 300_000),
    )
    assert problem(post(api, token, body, **fields)) == (413, "body-size", "")
    whole, _, _ = body.rpartition(b"--")
    answer = post(api, token, whole[: len(whole) - 300_000 + 90_000], **fields)
    assert problem(answer)[0] == 400, answer
    query = f"?{urlencode({'sender': 'shop@example.org', 'recipients': 'a@b.example'})}"
    for path, kind, size, begin in [
        (query, "message/rfc822", 300_000, RAW + b"x" * 50_000),
        ("", fields["Content-Type"], 10_000_000, body[:100_000]),
    ]:
        head = (
            f"POST /v1/messages{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", api.port), PATIENCE) as client:
            client.sendall(head.encode() + begin)  # the rest never comes
            assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
    until(lambda: column(db, "SELECT count(*) FROM api_uploads") == [0])


def test_a_key_names_its_credentials_and_priorities(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", credentials=["ses-a"], priorities=(6, 8))
    envelope = urlencode({"sender": "shop@example.org", "recipients": "a@b.example"})
    raw = {"Content_Type": "message/rfc822"}
    for wanted in ({"metadata": {"credential": "ses-a"}}, {"priority": 8}):
        assert post(api, token, {**MAIL, **wanted}).status == 202
    assert post(api, token, RAW, f"?{envelope}", **raw).status == 202
    refused = post(api, token, RAW, f"?{envelope}&priority=0", **raw)
    assert problem(refused)[:2] == (403, "priority-refused")
    bad: list[Any] = ["ses-b", "SES-A", ["ses-a"], 7, {"a": 1}, "*", ""]
    mails = [{**MAIL, "metadata": {"credential": each}} for each in bad]
    for each in post(api, token, {"messages": mails}, "/batch").members["data"]:
        assert each["problem"]["type"] == "urn:pgmta:problem:credential-refused", each
    body, fields = multipart(
        ('name="message"', "application/json",
         json.dumps({"sender": "shop@example.org", "recipients": ["a@b.example"],
                     "metadata": {"credential": "ses-b"}}).encode()),
        ('name="content"', "message/rfc822", RAW),
    )  # fmt: skip
    assert problem(post(api, token, body, **fields))[1] == "credential-refused"
    stored = db.execute("SELECT priority, metadata ->> 'credential' FROM queue ORDER BY id")
    assert stored.fetchall() == [(6, "ses-a"), (8, None), (6, None)]


async def test_a_batch_of_mistakes_leaves_others_their_turn() -> None:
    api = Api.unserved()
    [batch] = [each for each in api.operations if each.path == "/v1/messages/batch"]
    senders = tuple(f"user{number:06d}@example.org" for number in range(50))
    mails = [{**MAIL, "from": f"usr{number}@example.org"} for number in range(200)]
    body = Batch.model_validate({"messages": mails})
    caller = Caller("shop", "", frozenset({"send"}), senders, "own")
    call: Any = SimpleNamespace(caller=caller, body=body, key="")
    working: asyncio.Task[Any] = asyncio.create_task(batch.handler(call))  # type: ignore[arg-type]
    turns = 0
    while not working.done():
        await asyncio.wait([working], timeout=0)
        turns += 1
    assert turns > 5
    assert {each["problem"]["status"] for each in working.result().body["data"]} == {403}
