"""Bad requests: each has its problem, nothing of it is stored, and no memory stays with them."""

from __future__ import annotations

import json
import re
import select
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmta_features.http_api.rate import MAX_BODIES
from pgmta_features.http_api.spooled import MAX_LISTS_OF_OWNER
from tests.features.http_api.bad import bad_bodies, bad_wire
from tests.features.http_api.bad.bad_bodies import MAIL, Bad
from tests.features.http_api.served import ServedApi, make_key, serving_api
from tests.support.rows import column
from tests.support.waiting import PATIENCE, until

_MAX_ANSWER_OCTETS = 16 << 10
_MAX_GROWTH = 64 << 20  # of the process, by all bad requests; a body alone has 50 MB
_REQUEST_S = 1.0  # for a header and its body


def send(api: ServedApi, token: str, bad: Bad) -> tuple[int, str, str, str]:
    """Send a request; return status, word, pointer and detail of its problem."""
    octets: Any = bad.body.encode() if isinstance(bad.body, str) else bad.body
    if not isinstance(octets, bytes | None):
        octets = json.dumps(octets).encode()
    fields = {"Content-Type": bad.kind} if octets is not None and bad.kind else {}
    answer = api.send(bad.method, bad.path, token, octets, **fields, **bad.headers)
    assert len(answer.body) < _MAX_ANSWER_OCTETS, bad.name
    assert answer.headers["content-type"] == "application/problem+json", (bad.name, answer)
    members = answer.members
    if place := members.get("pointer"):
        assert members["errors"][0]["pointer"] == place, bad.name
    word = members["type"].removeprefix("about:blank").rpartition(":")[2]
    return answer.status, word, members.get("pointer", ""), members["detail"]


def peak(api: ServedApi) -> int:
    """Octets of memory that the process has had at most."""
    status = Path(f"/proc/{api.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


def test_what_a_request_says(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", tenant="t1")
    assert api.send("GET", "/v1/key", token).status == 200
    before, wrong = peak(api), []
    for bad in bad_bodies.ALL:
        status, word, pointer, detail = send(api, token, bad)
        expected = (bad.status, bad.word, bad.pointer)
        if (status, word, pointer) != expected or bad.named not in detail:
            wrong.append(f"{bad.name}: {expected}, not {(status, word, pointer)}: {detail}")
    assert not wrong, "\n".join(wrong)
    assert column(db, "SELECT count(*) FROM messages") == [0]
    assert peak(api) - before < _MAX_GROWTH


def test_bad_mails_of_a_batch_stop_no_other(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", tenant="t1")
    cases = [
        each
        for each in (*bad_bodies.TYPES, *bad_bodies.INJECTIONS, *bad_bodies.BASE64)
        if isinstance(each.body, dict)
    ]
    mails = [mail for each in cases for mail in (each.body, MAIL)]
    answer = api.send("POST", "/v1/messages/batch", token, {"messages": mails})
    assert answer.status == 202, answer
    results = answer.members["data"]
    assert [each["index"] for each in results] == list(range(len(mails)))
    for case, refused, stored in zip(cases, results[::2], results[1::2], strict=True):
        problem = refused["problem"]
        place = f"/messages/{refused['index']}{case.pointer}"
        assert (problem["status"], problem["pointer"]) == (case.status, place), case.name
        assert stored["id"].isdecimal(), stored
    assert column(db, "SELECT count(*) FROM messages") == [len(cases)]


def test_a_key_that_may_not(api: ServedApi, db: psycopg.Connection) -> None:
    good = make_key(db, "shop", "send")
    revoked = make_key(db, "old")
    db.execute("UPDATE pgmta.api_keys SET revoked_at = now() WHERE name = 'old'")
    db.commit()
    elsewhere = f"pgmta_{'a' * 20}_{'b' * 40}"
    cases: list[tuple[str, dict[str, str], int, str]] = [
        ("none", {}, 401, "key-missing"),
        ("another scheme", {"Authorization": f"Basic {good}"}, 401, "key-missing"),
        ("no scheme", {"Authorization": good}, 401, "key-missing"),
        ("in a cookie", {"Cookie": f"key={good}"}, 401, "key-missing"),
        ("in another field", {"X-Api-Key": good}, 401, "key-missing"),
        ("empty", {"Authorization": "Bearer "}, 401, "key-missing"),
        *(
            (name, {"Authorization": f"Bearer {token}"}, status, word)
            for name, token, status, word in [
                ("no token", "pgmta", 401, "key-refused"),
                ("half of one", good[:-10], 401, "key-refused"),
                ("a longer one", f"{good}a", 401, "key-refused"),
                ("with NUL", f"{good}%00", 401, "key-refused"),
                (
                    "another secret",
                    good[:-1] + ("b" if good[-1] == "a" else "a"),
                    401,
                    "key-refused",
                ),
                ("another id", f"pgmta_{'a' * 12}_{good.rpartition('_')[2]}", 401, "key-refused"),
                ("of other letters", "pgmta_\u00fc_\u00fc", 401, "key-refused"),
                ("of another installation", elsewhere, 401, "key-refused"),
                ("revoked", revoked, 401, "key-refused"),
                ("expired", make_key(db, "late", expires="2020-01-01"), 401, "key-expired"),
                ("far", make_key(db, "far", networks=["10.0.0.0/8"]), 403, "network-refused"),
                ("reads", make_key(db, "reader", "messages"), 403, "scope-missing"),
                ("no sender", make_key(db, "mute", senders=[]), 403, "sender-refused"),
                ("others", make_key(db, "b", senders=["@b.example"]), 403, "sender-refused"),
            ]
        ),
    ]
    wrong = []
    for name, fields, status, word in cases:
        answer = api.send("POST", "/v1/messages", "", MAIL, **fields)
        found = answer.status, answer.members["type"].rpartition(":")[2]
        if found != (status, word):
            wrong.append(f"{name}: {(status, word)}, not {answer}")
        if status == 401 and "www-authenticate" not in answer.headers:
            wrong.append(f"{name}: {answer.headers}")
    answer = api.send("POST", f"/v1/messages?key={good}", "", MAIL)  # URLs are in logs of proxies
    assert (answer.status, answer.members["type"]) == (401, "urn:pgmta:problem:key-missing")
    assert not wrong, "\n".join(wrong)
    assert column(db, "SELECT count(*) FROM messages") == [0]


def answers(api: ServedApi, octets: bytes) -> list[int]:
    """Send octets over a connection of their own; return the statuses of all answers."""
    found = b""
    with socket.create_connection(("127.0.0.1", api.port), 20) as client:
        try:
            client.sendall(octets)
            while part := client.recv(65536):
                found += part
        except ConnectionError:
            pass
    return [int(each) for each in re.findall(rb"^HTTP/\d\.\d (\d{3})", found, re.MULTILINE)]


def test_octets_that_are_no_request(as_api: str, tmp_path: Path, db: psycopg.Connection) -> None:
    with serving_api(tmp_path, as_api, limits={"request": _REQUEST_S}) as api:
        token = make_key(db, "shop").encode()
        wrong = []
        for wire in bad_wire.ALL:
            found = answers(api, wire.octets.replace(b"TOKEN", token))
            if found != ([wire.status] if wire.status else []):
                wrong.append(f"{wire.name}: {wire.status}, not {found}")
        assert not wrong, "\n".join(wrong)
        assert column(db, "SELECT count(*) FROM messages") == [0]
        assert api.send("GET", "/v1/key", token.decode()).status == 200


HEAD = (
    "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n"
    "Content-Type: application/json\r\n"
)


ENDLESS: list[tuple[str, bytes]] = [
    ("GET /v1/key HTTP/1.1\r\nX: ", b"a"),
    (HEAD + "Content-Length: 100\r\n\r\n", b" "),
    (HEAD + "Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    (
        HEAD.replace("/v1/messages", "/v1/suppressions/import").replace(
            "application/json", "text/csv"
        )
        + "Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\n \r\n",
    ),
    # endless
    (HEAD + "Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n"),
]


def test_a_request_that_does_not_end(
    as_api: str, tmp_path: Path, db: psycopg.Connection, subtests: pytest.Subtests
) -> None:
    with serving_api(tmp_path, as_api, limits={"request": _REQUEST_S}) as api, ExitStack() as stack:
        token = make_key(db, "shop")
        assert api.send("GET", "/v1/key", token).status == 200
        clients = []
        for begin, goes_on in ENDLESS:
            client = socket.create_connection(("127.0.0.1", api.port), 20)
            clients.append((stack.enter_context(client), goes_on))
            client.sendall(begin.format(token).encode())
        for client, goes_on in clients:
            with subtests.test(goes_on=goes_on[:20]):

                def is_closed(client: socket.socket = client, goes_on: bytes = goes_on) -> bool:
                    try:
                        client.sendall(goes_on)
                    except ConnectionError:
                        return True
                    return False

                until(is_closed)
        assert api.send("GET", "/v1/key", token).status == 200
        assert column(db, "SELECT count(*) FROM messages") == [0]


FORM = (
    '--b\r\nContent-Disposition: form-data; name="message"\r\nContent-Type: application/json\r\n'
    f"\r\n{json.dumps(MAIL)}\r\n--b--\r\n"
)


def begun(api: ServedApi, token: str, path: str, kind: str, body: str) -> socket.socket:
    """A connection with the beginning of a request, whose body lacks all but 20 octets."""
    client = socket.create_connection(("127.0.0.1", api.port), 20)
    client.sendall(
        f"{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body[:20]}".encode()
    )
    return client


def test_lists_of_a_tenant_leave_room_for_those_of_others(
    api: ServedApi, db: psycopg.Connection
) -> None:
    tokens = [make_key(db, name, tenant="t1") for name in ("shop", "till")]
    other, list_ = make_key(db, "other"), "address\r\nann@b.example\r\n"

    def status(token: str) -> int:
        path = "/v1/suppressions/import"
        return api.send("POST", path, token, list_, Content_Type="text/csv").status

    clients = [
        begun(api, tokens[number % 2], "POST /v1/suppressions/import", "text/csv", list_)
        for number in range(MAX_LISTS_OF_OWNER + 1)
    ]
    [refused], _, _ = select.select(clients, (), (), PATIENCE)
    assert refused.recv(65536).startswith(b"HTTP/1.1 503 ")
    assert [status(each) for each in (*tokens, other)] == [503, 503, 200]
    for client in clients:
        client.close()
    until(lambda: status(tokens[0]) == 200)


def test_a_key_that_is_revoked_while_a_body_comes(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop")
    template = {"from": "shop@example.org", "subject": "x", "body": "x"}
    requests = [
        ("POST /v1/messages", "application/json", json.dumps(MAIL)),
        ("POST /v1/messages/batch", "application/json", json.dumps({"messages": [MAIL]})),
        ("POST /v1/messages", "multipart/form-data; boundary=b", FORM),
        ("POST /v1/suppressions/import", "text/csv", "address\r\nann@b.example\r\n"),
        ("PUT /v1/templates/hello", "application/json", json.dumps(template)),
    ]
    clients = [begun(api, token, *each) for each in requests]
    assert api.send("GET", "/v1/key", token).status == 200
    db.execute("UPDATE pgmta.api_keys SET revoked_at = now()")
    db.commit()
    until(lambda: api.send("GET", "/v1/key", token).status == 401)
    for client, (_, _, body) in zip(clients, requests, strict=True):
        client.sendall(body[20:].encode())
        with client, client.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 401 "), body
    for table in ("messages", "suppressions", "templates", "api_uploads"):
        assert column(db, f"SELECT count(*) FROM {table}") == [0], table


def test_the_keys_of_a_tenant_leave_room_for_the_bodies_of_others(
    as_api: str, tmp_path: Path, db: psycopg.Connection
) -> None:
    token, second = make_key(db, "shop", tenant="t1"), make_key(db, "till", tenant="t1")
    other = make_key(db, "other")
    with serving_api(tmp_path, as_api, limits={"address_connections": 2000}) as api:
        kinds = ["application/json", "multipart/form-data; boundary=b"] * (MAX_BODIES // 2)
        open_ones = [
            begun(api, (token, second)[number % 4 // 2], "POST /v1/messages", each, FORM)
            for number, each in enumerate(kinds)
        ]

        def refused() -> bool:
            with begun(api, token, "POST /v1/messages", kinds[1], FORM) as client:
                client.settimeout(0.5)  # one that is admitted has no answer
                try:
                    return client.recv(65536).startswith(b"HTTP/1.1 429 ")
                except TimeoutError:
                    return False

        until(refused)
        assert api.send("POST", "/v1/messages", other, MAIL).status == 202
        assert api.send("GET", "/v1/key", token).status == 200
        multipart = {"Content-Type": kinds[1]}
        assert api.send("POST", "/v1/messages", other, FORM.encode(), **multipart).status == 202
        for client in open_ones:
            client.close()
        until(
            lambda: (
                api.send("POST", "/v1/messages", token, FORM.encode(), **multipart).status == 202
            )
        )
