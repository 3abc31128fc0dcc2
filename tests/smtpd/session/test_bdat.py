"""BDAT (RFC 3030): chunks of every size in every split, wrong ones, and what may follow them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgmta.mail.newlines import Mode, check
from pgmta.model import PART_OCTETS
from smtpd.message.bdat import Chunks, parse
from tests.support.database import fresh_database
from tests.support.serving import Client, serving
from tests.support.waiting import until

CONFIG = {
    "limits": {"message_size": "2MB"},
    "content": {"bare_newlines": "guard"},
}
START = ["EHLO c > 250", "MAIL FROM:<s@a.example> > 250", "RCPT TO:<r@b.example> > 250"]
OK = r"250 2.0.0 [0-9]+ queued$"

CASES: dict[str, list[str]] = {
    "one chunk": [*START, f"BDAT 5 LAST|x\r\ny\n > {OK}", "DATA > 503 5.5.1 Send MAIL"],
    "several, and words in small letters": [
        *START, "bdat 3|abc > 250 2.0.0 3 octets", "BDAT 0 > 250 2.0.0 0 octets",
        f"bdat 4 last|d\r\n. > {OK}", "BDAT 1 LAST|x > 503 5.5.1 Send MAIL", "NOOP > 250",
    ],
    "an empty last one": [*START, "BDAT 3|abc > 250", f"BDAT 0 LAST > {OK}"],
    "nothing at all": [*START, f"BDAT 0 LAST > {OK}"],
    "what it has no meaning in": [*START, f"BDAT 18 LAST|x\r\n.\r\nRSET\r\nQUIT\r\n > {OK}"],
    "out of order": [
        "BDAT 6|QUIT\r\n > 503 5.5.1 Send MAIL", "EHLO c > 250", "BDAT 6 LAST|QUIT\r\n > 503",
        "MAIL FROM:<s@a.example> > 250", "BDAT 6|QUIT\r\n > 503 5.5.1 No valid",
        "BDAT 6 LAST|QUIT\r\n > 503 5.5.1 Send MAIL", "NOOP > 250",
    ],
    "only BDAT and RSET after BDAT": [
        *START, "BDAT 1|x > 250", "RCPT TO:<q@b.example> > 503 5.5.1 Only", "DATA > 503 5.5.1 Only",
        "MAIL FROM:<s@a.example> > 503", "NOOP > 250", "RSET > 250", *START[1:], "DATA > 354",
        f"y\r\n. > {OK}",
    ],
    "no chunk after another command": [
        *START, "BDAT 1|x > 250", "MAIL FROM:<t@a.example> > 503 5.5.1 Only",
        "RCPT TO:<q@b.example> > 503 5.5.1 Only", "BDAT 6|QUIT\r\n > 503 5.5.1 Only",
        "BDAT 1 LAST|x > 503 5.5.1 Send MAIL", *START[1:], f"BDAT 1 LAST|z > {OK}",
    ],
    "EHLO ends it": [*START, "BDAT 1|x > 250", *START, f"BDAT 1 LAST|z > {OK}"],
    "a lone dot after a bare LF": [
        *START, "BDAT 5|a\n.\r\n > 550 5.5.2", "BDAT 5 LAST|b\r\nc\n > 503", *START[1:],
        f"BDAT 4 LAST|b\r\nc > {OK}",
    ],
    "a lone dot across chunks": [*START, "BDAT 2|a\n > 250", "BDAT 2|.\r > 550", "NOOP > 250"],
    "an end that the final CRLF completes": [*START, "BDAT 3 LAST|a\n. > 550 5.5.2"],
    "a dot after CRLF": [*START, f"BDAT 4 LAST|a\r\n. > {OK}"],
    "no number": [*START, "BDAT > 501 5.5.4"], "a negative number": [*START, "BDAT -1 > 501"],
    "a sign": [*START, "BDAT +1 > 501"], "other digits": [*START, "BDAT ² LAST > 501"],
    "hexadecimal": [*START, "BDAT 0x1 LAST > 501"],
    "too long": [*START, f"BDAT {'9' * 19} > 501"],
    "another word": [*START, "BDAT 1 FIRST > 501"],
    "more than it takes": [*START, "BDAT 99999999 > 552"],
    "more in all": [
        *START, "BDAT 1500000|" + "x" * 1_500_000 + " > 250",
        "BDAT 600000 LAST|" + "x" * 600_000 + " > 552 5.3.4", "NOOP > 250",
    ],
}  # fmt: skip
ENDING = {name for name, steps in CASES.items() if re.search(" > (501|552)", steps[-1])}


@pytest.fixture(scope="module")
def database(server: str, template: str) -> Iterator[str]:
    with fresh_database(server, template) as uri:
        yield uri


@pytest.fixture(scope="module")
def port(database: str) -> Iterator[int]:
    with serving(database, **CONFIG) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[Client]:
    with Client(port) as client:
        client.reply()
        yield client


@pytest.mark.parametrize("name", CASES)
def test_dialogue(client: Client, name: str) -> None:
    for step in CASES[name]:
        command, _, expected = step.rpartition(" > ")
        line, _, content = command.partition("|")
        client.send(f"{line}\r\n{content}".encode())
        reply = client.reply()
        assert re.match(expected, reply), f"{command[:70]!r}: {reply!r}, not {expected!r}"
    if name in ENDING:
        assert client.rest() == []  # it is unknown where the next command begins


def bodies(db: psycopg.Connection) -> list[bytes]:
    """The content of each message, also of one in chunks."""
    rows = db.execute(
        "SELECT m.body, (SELECT string_agg(c.data, ''::bytea ORDER BY c.position) "
        "FROM message_chunks c WHERE c.message_id = m.id) FROM messages m ORDER BY m.id"
    ).fetchall()
    return [bytes(body or parts or b"") for body, parts in rows]


WIRE = (
    "EHLO c\r\n"
    "MAIL FROM:<a@a.example>\r\nRCPT TO:<a@b.example>\r\nBDAT 7\r\n\r\n.\r\nab"
    "BDAT 0\r\nBDAT 10 LAST\r\nQUIT\r\nc\n.x"
    "MAIL FROM:<b@a.example>\r\nRCPT TO:<b@b.example>\r\nBDAT 6\r\nRSET\r\nRSET\r\n"
    "MAIL FROM:<c@a.example>\r\nRCPT TO:<c@b.example>\r\nBDAT 0 LAST\r\nQUIT\r\n"
)


def test_every_split_of_pipelined_chunks(port: int, db: psycopg.Connection) -> None:
    codes = ["250"] + ["250"] * 5 + ["250"] * 3 + ["250"] + ["250"] * 3 + ["221"]
    for at in range(1, len(WIRE)):
        db.execute("DELETE FROM queue")
        with Client(port) as client:
            client.reply()
            client.send(WIRE[:at].encode())
            client.send(WIRE[at:].encode())
            assert [reply[:3] for reply in client.rest()] == codes, at
        assert bodies(db) == [b"\r\n.\r\nabQUIT\r\nc\n.x", b""], at


cuts = st.lists(st.integers(0, 200), max_size=20)
noisy = st.lists(
    st.sampled_from([b"\r", b"\n", b".", b"\r\n", b"\r\n.", b"a", b"BDAT 5\r\n", b"\x00", b"\xff"]),
    max_size=30,
).map(b"".join)


def cut_up(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(n for n in at if n < len(data))})
    return [data[a:b] for a, b in pairwise(edges)]


@given(noisy, cuts, cuts, noisy)
@example(b"a\n.\n", [1, 2, 3], [1, 2, 3], b"")
@example(b"a\r\n.", [], [2, 3], b"QUIT\r\n")
def test_chunks_give_back_any_content_and_judge_it_as_a_whole(
    content: bytes, chunks: list[int], reads: list[int], after: bytes
) -> None:
    modes: tuple[Mode, Mode] = ("guard", "reject")
    for mode in modes:
        wire_form, found = Chunks(mode), b""
        sizes = [len(part) for part in cut_up(content, chunks)] or [0]
        at = 0
        for number, size in enumerate(sizes, 1):
            wire_form.begin_chunk(size, last=number == len(sizes))
            chunk, at = content[at : at + size], at + size
            for part in cut_up(chunk, reads)[:-1]:
                found += wire_form.feed(part)
                assert wire_form.rest is None
            last = (cut_up(chunk, reads) or [b""])[-1]
            found += wire_form.feed(last + after)
            assert wire_form.rest == after
        assert wire_form.done
        assert found == content
        assert bool(wire_form.guard.problem) == bool(check(content, mode))


@given(st.text(max_size=25))
@example("5 LAST")
@example("5 LAST LAST")
def test_arguments_are_digits_and_perhaps_last(argument: str) -> None:
    found = parse(argument)
    assert bool(found) == bool(re.fullmatch(r"[0-9]{1,18}( +LAST)? *", argument, re.IGNORECASE))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from([0, 1, 700, 8096, 8097, 70_000, PART_OCTETS]), max_size=6))
@example([PART_OCTETS, PART_OCTETS, 1])
def test_any_sizes_arrive_as_one_message(
    port: int, db: psycopg.Connection, sizes: list[int]
) -> None:
    db.execute("DELETE FROM queue")
    body = b"".join(bytes([97 + n]) * size for n, size in enumerate(sizes))
    with Client(port) as client:
        client.reply()
        for step in START:
            client.say(step.partition(" > ")[0])
        wire = b"".join(
            b"BDAT %d\r\n" % size + bytes([97 + n]) * size for n, size in enumerate(sizes)
        )
        client.send(wire + b"BDAT 0 LAST\r\nQUIT\r\n")
        replies = client.rest()
    if len(body) > 2 << 20:
        assert replies[-2][:3] == "503"
        assert bodies(db) == []
    else:
        assert [reply[:3] for reply in replies] == ["250"] * (len(sizes) + 1) + ["221"]
        assert bodies(db) == [body]


@pytest.mark.parametrize("end", ["QUIT", "RSET", "EHLO c", ""])
def test_chunks_without_a_last_one_leave_nothing(
    port: int, db: psycopg.Connection, end: str
) -> None:
    def stored() -> bool:
        return bool(db.execute("SELECT FROM message_chunks LIMIT 1").fetchall())

    db.execute("DELETE FROM queue")
    until(lambda: not stored(), describe="an empty database")
    with Client(port) as client:
        client.reply()
        for step in START:
            client.say(step.partition(" > ")[0])
        for _ in range(2):
            client.send(b"BDAT %d\r\n" % (PART_OCTETS + 1) + b"x" * (PART_OCTETS + 1))
            assert client.reply()[:3] == "250"
        until(stored, describe="chunks in the database")
        if end:
            assert client.say(end)[0] == "2"
            until(lambda: not stored(), describe="their removal")
    until(lambda: not stored(), describe="their removal")
    assert bodies(db) == []
