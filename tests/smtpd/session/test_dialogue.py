"""SMTP sessions over a raw socket, against a real database."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.database import fresh_database
from tests.support.serving import Client, serving
from tests.support.waiting import until

CONFIG = {
    "relay": {"networks": ["127.0.0.2"], "domains": ["example.org", "*.sub.example", "mx.example"]},
    "limits": {"recipients": 100, "message_size": "10KB", "hops": 3},
    "content": {"bare_newlines": "guard"},
}

HELO = "EHLO client.example > 250"
MAIL = "MAIL FROM:<s@a.example> > 250 2.1.0"
RCPT = "RCPT TO:<r@example.org> > 250 2.1.5"
DATA = "DATA > 354"
OK = r". > 250 2.0.0 [0-9]+ queued$"

CASES: dict[str, list[str]] = {
    "greeting words": [
        "EHLO c > 250-mx.example\n250-SIZE 10240\n250-8BITMIME\n250-SMTPUTF8\n250-PIPELINING\n"
        "250-CHUNKING\n250-LIMITS RCPTMAX=100\n250-DSN\n250 ENHANCEDSTATUSCODES$",
        "HELO c > 250 mx.example$", "STARTTLS > 454", "AUTH PLAIN AGEAYg== > 500",
    ],
    "without a name": [
        "MAIL FROM:<a@b> > 503 5.5.1", "RCPT TO:<r@example.org> > 503 5.5.1", "DATA > 503 5.5.1",
        "EHLO > 501", "HELO > 501", "QUIT now > 501", "QUIT > 221",
    ],
    "small words": [
        "NOOP > 250", "NOOP x > 250", "RSET > 250", "HELP > 214 2.0.0", "HELP MAIL > 214",
        "EXPN all > 502", "VRFY > 501",
        "VRFY r@example.org > 252", "VRFY \udcff\r\udcfe > 252",
    ],
    "syntax of MAIL": [
        HELO, "MAIL > 501 5.5.4", "MAIL FROM > 501", "MAIL TO:<a@b> > 501", "MAIL FROM:<a@b > 501",
        "MAIL FROM: > 501", "MAIL FROM:<a> > 553 5.1.7", "MAIL FROM:<a@-b> > 553 5.1.7",
        "MAIL FROM:<a b@c> > 553", "MAIL FROM:<ü@b> > 553 5.1.7 .*SMTPUTF8",
        "MAIL FROM:<\udcff@b> SMTPUTF8 > 553", f"MAIL FROM:<{'l' * 250}@b.example> > 553",
        "MAIL FROM:<a\r@b> > 553", "MAIL FROM:<a\0@b> > 553", "RCPT TO:<r@example.org> > 503 5.5.1",
        "MAIL FROM:<a@b>SIZE=1 > 501 5.5.4 Syntax", "MAIL FROM:<<a@b>> > 501 5.5.4 Syntax",
        "MAIL FROM:<a@b>\x0b > 501", "MAIL FROM:<a@b>\xa0 > 501",
        "mail from:<a@b>  body=8bitmime  size=5 \t > 250",
    ],
    "parameters": [
        HELO, "MAIL FROM:<a@b> SIZE=10241 > 552 5.3.4", "MAIL FROM:<a@b> SIZE=x > 501",
        "MAIL FROM:<a@b> SIZE=² > 501", "MAIL FROM:<a@b> SIZE > 501",
        f"MAIL FROM:<a@b> SIZE={'9' * 40} > 501", "MAIL FROM:<a@b> BODY=BINARYMIME > 501",
        "MAIL FROM:<a@b> RET=ALL > 501 5.5.4", "MAIL FROM:<a@b> ü\udcff=1 > 555",
        *(f"MAIL FROM:<a@b> {words} > 501 5.5.4 .*twice" for words in (
            "SIZE=1 SIZE=1", "SIZE=1 BODY=7BIT size=2", "BODY=7BIT BODY=8BITMIME",
            "SMTPUTF8 smtputf8", "RET=HDRS SIZE=1 ret=HDRS", "ENVID=a ENVID=a",
        )),
        "MAIL FROM:<a@b> SMTPUTF8=1 > 555", "MAIL FROM:<a@b> SIZE=10240 > 250",
        "RCPT TO:<r@example.org> NOTIFY=EVER > 501",
        "RCPT TO:<r@example.org> NOTIFY=DELAY ORCPT=rfc822;a notify=DELAY > 501 5.5.4 .*twice",
        "RCPT TO:<r@example.org> \udcff > 555",
    ],
    "only spaces between parameters, and no control characters": [
        HELO, *(f"MAIL FROM:<a@b> {words} > 501 5.5.4" for words in (
            "SIZE=1\tBODY=7BIT", "SIZE=1\x0bBODY=7BIT", "SIZE=1\u2028BODY=7BIT", "SIZE=1\x0b",
            "ENVID=+0D+0A", "ENVID=a+00", "ENVID=+7F",
        )),
        MAIL, "RCPT TO:<r@example.org>NOTIFY=NEVER > 501",
        "RCPT TO:<r@example.org> NOTIFY=DELAY\tORCPT=rfc822;a > 501",
        "RCPT TO:<r@example.org> ORCPT=rfc822;a+0D+0Ab > 501",
        "RCPT TO:<r@example.org>   NOTIFY=DELAY  ORCPT=rfc822;a+20b \t > 250",
    ],
    "syntax of RCPT": [
        HELO, MAIL, "RCPT > 501", "RCPT FROM:<a@b> > 501", "RCPT TO:<r@example.org > 501",
        "RCPT TO:<> > 553 5.1.3", "RCPT TO:<r> > 553", "RCPT TO:<ü@example.org> > 553",
        "RCPT TO:<r@[IPv6:::1%\rx]> > 553", "DATA > 503 5.5.1 No valid",
    ],
    "one transaction at a time": [
        HELO, MAIL, "MAIL FROM:<b@a.example> > 503 5.5.1", RCPT, "DATA now > 501", "RSET > 250",
        "RCPT TO:<r@example.org> > 503 5.5.1", MAIL, "EHLO again > 250", MAIL,
    ],
    "no open relay": [
        HELO, MAIL, "RCPT TO:<r@elsewhere.example> > 550 5.7.1", "RCPT TO:<r@sub.example> > 550",
        "RCPT TO:<r@a.sub.example> > 250", "RCPT TO:<@example.org:r@elsewhere.example> > 550",
        "RCPT TO:<r%elsewhere.example@example.org> > 550 5.7.1",
        'RCPT TO:<"r@elsewhere.example"@example.org> > 550 5.7.1',
        "RCPT TO:<elsewhere.example!r@example.org> > 550 5.7.1",
        "RCPT TO:<r@elsewhere.example@example.org> > 553",
        "RCPT TO:<r@example.org.elsewhere.example> > 550", "RCPT TO:<r@[127.0.0.1]> > 550",
        "RCPT TO:<Postmaster> > 250", "RCPT TO:<r@EXAMPLE.ORG> > 250",
    ],
    "too many recipients": [
        HELO, MAIL, *(f"RCPT TO:<r{n}@example.org> > 250" for n in range(100)),
        "RCPT TO:<r100@example.org> > 452 4.5.3", "RCPT TO:<r0@Example.org> > 250", DATA, OK,
    ],
    "size in DATA": [
        HELO, MAIL, RCPT, DATA, "x" * 10239 + "\r\n. > 552 5.3.4", "NOOP > 250",
        MAIL, RCPT, DATA, "x" * 10238 + "\r\n" + OK,
    ],
    "loops": [
        HELO, MAIL, RCPT, DATA, "Received: x\r\n" * 4 + "\r\n. > 554 5.4.6",
        MAIL, RCPT, DATA, "Received: x\r\n" * 3 + "\r\nReceived: y\r\n" + OK,
    ],
    "long lines": [
        HELO, "NOOP " + "x" * 2043 + " > 250", "NOOP " + "x" * 2044 + " > 500",
        "NOOP " + "x" * 200_000 + " > 500", "NOOP > 250",
        f"MAIL FROM:<{'l' * 200}@{'d' * 40}.example>{' ' * 1000}BODY=8BITMIME > 250",
        "HELO c > 250", "NOOP " + "x" * 2044 + " > 500", "NOOP > 250",
    ],
    "content after a refused DATA": [
        HELO, "DATA > 503", "X > 500", MAIL, "DATA > 503", "X-Mailer: y > 503 5.5.1 Content",
    ],
    "unknown commands": ["\udcff > 500", " > 500", *["X > 500"] * 2, "X > 502"],
}  # fmt: skip


@pytest.fixture(scope="module")
def database(server: str, template: str) -> Iterator[str]:
    with fresh_database(server, template) as uri:
        yield uri


@pytest.fixture(scope="module")
def port(database: str) -> Iterator[int]:
    with serving(database, **CONFIG) as port:
        yield port


@pytest.fixture
def client(port: int, db: psycopg.Connection) -> Iterator[Client]:
    db.execute("DELETE FROM queue")
    with Client(port) as client:
        assert client.reply() == "220 mx.example ESMTP pgmta"
        yield client


@pytest.mark.parametrize("name", CASES)
def test_dialogue(client: Client, name: str) -> None:
    for step in CASES[name]:
        command, _, expected = step.rpartition(" > ")
        reply = client.say(command)
        assert re.match(expected, reply), f"{command[:70]!r}: {reply!r}, not {expected!r}"


def stored(db: psycopg.Connection) -> list[tuple[str, list[str], bytes]]:
    """Sender, recipients and content of each message."""
    return db.execute(
        "SELECT max(q.sender), array_agg(q.recipient ORDER BY q.id), m.body "
        "FROM messages m JOIN queue q ON q.message_id = m.id GROUP BY m.id ORDER BY m.id"
    ).fetchall()


def test_what_is_stored(client: Client, db: psycopg.Connection) -> None:
    for command in (
        "EHLO [IPv6:::1]", "MAIL FROM:<> SMTPUTF8", "RCPT TO:<ü@example.org>",
        "RCPT TO:<postmaster>", "RCPT TO:<r@Example.org>", "RCPT TO:<r@Example.org>",
        "RCPT TO:<@a,@b:r@example.ORG>", "RCPT TO:<R@example.org>", "DATA",
    ):  # fmt: skip
        assert client.say(command)[0] in "23"
    body = "Subject: ü\r\n\r\n.\r\x00\n\udcff..\r\n"
    reply = client.say(body.replace("\r\n.", "\r\n..") + ".")
    number = int(reply.split()[2])
    recipients = ["ü@example.org", "postmaster@mx.example", "r@Example.org", "R@example.org"]
    raw = body.encode("utf-8", "surrogateescape")
    assert stored(db) == [("", recipients, raw)]
    (message,) = db.execute("SELECT id, size, utf8, chunks, trace FROM messages").fetchall()
    assert message[:4] == (number, len(raw), True, 0)
    assert re.fullmatch(
        rf"Received: from \[IPv6:::1\] \(\[127\.0\.0\.1\]\)\r\n"
        rf"\tby mx\.example \(pgmta\) with UTF8SMTP id {number};\r\n\t[^\r\n]+ \+0000\r\n",
        message[4],
    )
    domains = db.execute("SELECT DISTINCT domain FROM queue ORDER BY 1").fetchall()
    assert domains == [("example.org",), ("mx.example",)]
    assert client.say("HELO c")[:3] == "250"
    for command in ("MAIL FROM:s@a.example", "RCPT TO:r@example.org", "DATA"):
        assert client.say(command)[0] in "23"
    assert client.say(".").endswith("queued")
    assert stored(db)[1] == ("s@a.example", ["r@example.org"], b"")
    (trace,) = db.execute("SELECT trace FROM messages ORDER BY id DESC LIMIT 1").fetchone() or ("",)
    assert re.search(r" with SMTP id \d+;\r\n", trace)


def transaction(name: str, body: str) -> str:
    return f"MAIL FROM:<{name}@a.example>\r\nRCPT TO:<{name}@example.org>\r\nDATA\r\n{body}.\r\n"


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_everything_pipelined_and_the_clients_side_closed(
    client: Client, db: psycopg.Connection, size: int
) -> None:
    wire = "EHLO c\r\n" + transaction("a", "one\r\n..\r\n") + transaction("b", "") + "QUIT\r\n"
    for start in range(0, len(wire), size):
        client.send(wire[start : start + size].encode())
    client.socket.shutdown(socket.SHUT_WR)
    codes = [reply[:3] for reply in client.rest()]
    assert codes == ["250", *["250", "250", "354", "250"] * 2, "221"]
    assert [(recipients, body) for _, recipients, body in stored(db)] == [
        (["a@example.org"], b"one\r\n.\r\n"),
        (["b@example.org"], b""),
    ]


def test_a_client_that_goes_away_in_its_data_leaves_nothing(
    client: Client, db: psycopg.Connection
) -> None:
    client.send(b"EHLO c\r\n" + transaction("a", "cut off").encode()[:-4])
    client.socket.shutdown(socket.SHUT_WR)
    assert [reply[:3] for reply in client.rest()] == ["250", "250", "250", "354"]
    assert stored(db) == []


def test_strict_servers_take_no_bare_newline_and_limits_of_connections_hold(
    database: str, db: psycopg.Connection
) -> None:
    config = {"relay": {"networks": ["127.0.0.2"]}, "limits": {"connections": 1}}
    with serving(database, **config) as port:
        with Client(port, "127.0.0.2") as client:
            with Client(port) as other:
                assert other.rest() == [
                    "421 4.7.0 mx.example Too many connections, try again later"
                ]
            assert client.reply()[:3] == "220"
            for command in ("EHLO c", "MAIL FROM:<a@b>", "RCPT TO:<any@where.example>", "DATA"):
                assert client.say(command)[0] in "23"
            assert client.say("a\nb\r\n.").startswith("550 5.5.2")

        def served() -> bool:
            with Client(port) as again:
                if again.reply()[:3] != "220":
                    return False
                for command in ("EHLO c", "MAIL FROM:<a@b>"):
                    assert again.say(command)[:3] == "250"
                assert again.say("RCPT TO:<any@where.example>")[:3] == "550"
                return True

        until(served, describe="the place of the first connection free again")
