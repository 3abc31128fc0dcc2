"""A request that is repeated with its Idempotency-Key: one mail, and the first answer."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pgmta.postgres.resources import Resources
from pgmta_features.http_api.expiry import expire_requests
from tests.features.http_api.intake.test_sending import MAIL, RAW, multipart, post, problem
from tests.features.http_api.served import ServedApi, make_key, serving_api
from tests.support.rows import column
from tests.support.waiting import until

STORED = "SELECT count(*) FROM messages"


@pytest.fixture
def second(as_api: str, tmp_path: Path) -> Iterator[ServedApi]:
    """Another process of the API."""
    (tmp_path / "second").mkdir()
    with serving_api(tmp_path / "second", as_api, "second") as daemon:
        yield daemon


def test_a_repetition_gets_the_first_answer(
    api: ServedApi, second: ServedApi, db: psycopg.Connection
) -> None:
    token, other = make_key(db, "shop"), make_key(db, "other")
    first = post(api, token, Idempotency_Key='"order-1"')
    assert (first.status, "idempotency-replayed" in first.headers) == (202, False)
    for each in (api, second):
        again = post(each, token, dict(reversed(MAIL.items())), Idempotency_Key="order-1")
        assert (again.status, again.body) == (202, first.body)
        assert again.headers["location"] == first.headers["location"]
        assert again.headers["idempotency-replayed"] == "true"
    changed = post(second, token, {**MAIL, "subject": "Order 2"}, Idempotency_Key="order-1")
    assert problem(changed) == (422, "key-reused", "")
    assert problem(post(api, token, {"messages": [MAIL]}, "/batch", Idempotency_Key="order-1"))[
        1
    ] == ("key-reused")
    # each key of the API has its own, and no program that submits by SQL has one of them
    assert post(api, other, Idempotency_Key="order-1").members != first.members
    db.execute("SELECT submit_mails(%s)", [json.dumps([{
        "sender": "a@b.example", "to": ["c@b.example"], "body": "x", "key": "order-2",
    }])])  # fmt: skip
    assert post(api, token, Idempotency_Key="order-2").status == 202
    assert post(api, token).status == post(api, token).status == 202  # without a key
    assert column(db, STORED) == [6]
    for bad in ("", "a b", "x" * 256, "a, b"):
        assert problem(post(api, token, Idempotency_Key=bad or '""'))[:2] == (400, "invalid")


def test_uploads_are_repeated_by_what_they_have(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop")

    def upload(octets: bytes, boundary: str = "") -> Any:
        body, fields = multipart(
            ('name="message"', "application/json", json.dumps(MAIL).encode()),
            ('name="f"; filename="a"', "text/plain", octets),
        )
        if boundary:
            body = body.replace(b"b51", boundary.encode())
            fields = {"Content-Type": fields["Content-Type"].replace("b51", boundary)}
        return post(api, token, body, Idempotency_Key="one", **fields)

    large = b"0123456789" * 20_000
    first, again = upload(large), upload(large, "another")
    assert (first.status, again.body) == (202, first.body)
    assert again.headers["idempotency-replayed"] == "true"
    assert problem(upload(large[:-1] + b"x"))[1] == "key-reused"
    assert problem(upload(b"small"))[1] == "key-reused"
    query = "?sender=shop%40example.org&recipients=a%40b.example"
    raw = [
        post(api, token, RAW + end, query, Content_Type="message/rfc822", Idempotency_Key="raw")
        for end in (b"", b"", b"x\r\n")
    ]
    assert raw[0].body == raw[1].body
    assert [each.status for each in raw] == [202, 202, 422]
    assert column(db, STORED) == [2]
    assert column(db, "SELECT count(*) FROM api_uploads") == [0]


def test_settings_of_the_key_are_no_part_of_a_request(
    api: ServedApi, db: psycopg.Connection
) -> None:
    token = make_key(db, "shop")
    form, fields = multipart(('name="message"', "application/json", json.dumps(MAIL).encode()))
    query = "?sender=shop%40example.org&recipients=a%40b.example"

    def send() -> list[Any]:
        return [
            post(api, token, Idempotency_Key="json"),
            post(api, token, form, Idempotency_Key="form", **fields),
            post(api, token, RAW, query, Content_Type="message/rfc822", Idempotency_Key="raw"),
        ]

    first = send()
    db.execute("UPDATE api_keys SET tenant = 't1', priority_first = 6, priority_last = 9")
    db.commit()
    until(lambda: api.send("GET", "/v1/key", token).members["tenant"] == "t1")
    again = send()
    assert [each.status for each in first] == [each.status for each in again] == [202] * 3
    assert [each.body for each in again] == [each.body for each in first]


def test_files_in_the_part_message_are_content_too(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop")

    def send(inline: str, octets: bytes = b"") -> Any:
        files = [{"name": "a", "content": b64encode(inline.encode()).decode()}]
        parts = [('name="message"', "application/json",
                  json.dumps({**MAIL, "attachments": files}).encode())]  # fmt: skip
        if octets:
            parts.append(('name="f"; filename="b"', "text/plain", octets))
        body, fields = multipart(*parts)
        return post(api, token, body, Idempotency_Key="two" if octets else "one", **fields)

    for octets in (b"", b"small", b"0123456789" * 20_000):
        first, again = send("one", octets), send("one", octets)
        assert (first.status, again.body) == (202, first.body)
        assert problem(send("two", octets))[1] == "key-reused"
        if octets:
            assert problem(send("one", octets + b"x"))[1] == "key-reused"
            db.execute("DELETE FROM api_requests")
    assert column(db, STORED) == [3]


def test_a_thousand_repetitions_at_once_are_one_mail(
    api: ServedApi, second: ServedApi, db: psycopg.Connection
) -> None:
    token = make_key(db, "shop")

    def repeat(number: int) -> tuple[int, str]:
        answer = post((api, second)[number % 2], token, Idempotency_Key="one")
        assert answer.status != 409 or problem(answer)[1] == "in-flight"
        return answer.status, answer.members.get("id", "")

    with ThreadPoolExecutor(50) as pool:
        answers = Counter(pool.map(repeat, range(1000)))
    stored = column(db, "SELECT id FROM messages")
    assert len(stored) == 1
    assert set(answers) <= {(202, str(stored[0])), (409, "")}, answers
    assert answers[202, str(stored[0])] >= 2, answers


def test_random_repetitions_are_each_request_once(
    api: ServedApi, second: ServedApi, db: psycopg.Connection
) -> None:
    """Mails and batches, good and bad, with and without a key, in any order, over two processes."""
    token = make_key(db, "shop")
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    requests: list[tuple[str, Any, int]] = []  # path, body, mails that are good
    for number in range(30):
        mails = [
            {**MAIL, "subject": f"{number} {n}", "to": [chance.choice(("bad", "a@b.example"))]}
            for n in range(chance.choice((1, 1, 3)))
        ]
        good = sum(each["to"] != ["bad"] for each in mails)
        requests.append(
            ("", mails[0], good) if len(mails) == 1 else ("/batch", {"messages": mails}, good)
        )
    work = [number for number in range(30) for _ in range(chance.randrange(1, 6))]
    chance.shuffle(work)

    def send(number: int) -> tuple[int, int, bytes]:
        path, body, _ = requests[number]
        answer = post((api, second)[number % 2], token, body, path, Idempotency_Key=f"k{number}")
        return number, answer.status, answer.body

    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(send, work)]
    found = Counter(row[0] for row in db.execute("SELECT params ->> 'subject' FROM messages"))
    assert set(found.values()) <= {1}
    numbers = Counter(int(subject.split()[0]) for subject in found)
    assert numbers == {n: good for n, (_, _, good) in enumerate(requests) if good}
    for number in range(30):
        decided = {body for n, status, body in answers if n == number and status == 202}
        assert len(decided) <= 1 or not requests[number][2], decided


def test_nobody_waits_for_a_key_that_another_process_works_on(
    api: ServedApi, db: psycopg.Connection, database: str
) -> None:
    token = make_key(db, "shop")
    with psycopg.connect(database) as other:
        # as a process that is in its group commit
        other.execute(
            "SELECT * FROM api_submit(%s)",
            [json.dumps([{"acting": "key:shop", "senders": None, "requests": [
                {"key": "one", "fingerprint": "00", "mails": [{**MAIL, "sender": "a@b.example"}]},
            ]}])],
        )  # fmt: skip
        assert problem(post(api, token, Idempotency_Key="one")) == (409, "in-flight", "")
        assert post(api, token, Idempotency_Key="two").status == 202
        other.rollback()
    assert post(api, token, Idempotency_Key="one").status == 202


async def test_keys_and_uploads_go_when_their_time_is_over(
    api: ServedApi, db: psycopg.Connection, database: str
) -> None:
    token = make_key(db, "shop")
    first = post(api, token, Idempotency_Key="one").members
    db.execute("SELECT api_upload(gen_random_uuid(), 0, 'x')")
    resources = Resources(database, "test")
    link = resources.link("upkeep")
    await expire_requests(link, 86400, 3600)
    assert post(api, token, Idempotency_Key="one").members == first
    assert column(db, "SELECT count(*) FROM api_uploads") == [1]
    await expire_requests(link, 0, 0)
    await resources.close()
    assert post(api, token, Idempotency_Key="one").members != first
    assert column(db, "SELECT count(*) FROM api_uploads") == [0]


def test_nothing_is_stored_for_what_is_no_key_that_holds(
    as_api: str, db: psycopg.Connection
) -> None:
    """A group commit may come after the end of a key whose requests it has."""
    make_key(db, "shop")
    make_key(db, "old", expires="2001-01-01")
    make_key(db, "gone")
    db.execute("UPDATE pgmta.api_keys SET revoked_at = now() WHERE name = 'gone'")
    mails = [{**MAIL, "sender": "a@b.example"}]
    sets: list[dict[str, Any]] = []
    for name in ("key:shop", "key:old", "key:gone", "key:nobody", "key:", "boss", "shop", ""):
        one = {"acting": name, "senders": None}
        sets.append({**one, "call": str(uuid4()), "mails": mails})
        requests = [{"key": "one", "fingerprint": "00", "mails": mails}]
        sets.append({**one, "requests": requests})
    with psycopg.connect(as_api, autocommit=True) as login:
        rows = login.execute("SELECT outcome FROM pgmta.api_submit(%s)", [json.dumps(sets)])
        assert [each for (each,) in rows] == ["stored"] * 2 + ["revoked"] * 14
        # an answer that was lost is still that of the first call
        db.execute("UPDATE pgmta.api_keys SET revoked_at = now()")
        rows = login.execute("SELECT outcome FROM pgmta.api_submit(%s)", [json.dumps(sets[:2])])
        assert [each for (each,) in rows] == ["stored", "replayed"]
    assert column(db, STORED) == [2]
    assert column(db, "SELECT count(*) FROM submit_calls") == [1]


@pytest.mark.slow
def test_a_database_that_is_away_for_long_is_no_lost_mail(
    api: ServedApi, db: psycopg.Connection, database: str
) -> None:
    token = make_key(db, "shop")
    with psycopg.connect(database) as lock:
        lock.execute("LOCK TABLE pgmta.messages")
        answer = post(api, token, Idempotency_Key="one")
        assert problem(answer)[0] == 503, answer
        assert "retry-after" in answer.headers
    until(lambda: post(api, token, Idempotency_Key="one").status == 202)
    assert column(db, STORED) == [1]
