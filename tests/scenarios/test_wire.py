"""Rows and content that SQL has put into the queue: nothing of it becomes a command."""

from __future__ import annotations

import random
import smtplib

import psycopg
import pytest

from tests.support.nexthop import EXTENSIONS
from tests.support.system import System
from tests.support.waiting import PATIENCE, until

TEXT = b"Subject: x\r\n\r\nx\r\n"
ATTACK = TEXT + b"\0.\r\nMAIL FROM:<evil@example.org>\r\nRCPT TO:<a@b.example>\r\nDATA\r\n"
TRACE = "Received: by test\r\n"
CHUNK = 8096
HELD = "mail is not fit to be sent"
GONE = "5.3.0 its content is not in the database"


def put(
    system: System,
    *recipients: str,
    content: bytes = TEXT,
    trace: str = TRACE,
    sender: str = "sender@example.org",
    cut: int = 0,
    domain: str = "hop.example",
) -> int:
    """Insert a message by SQL, in chunks of `cut` octets if given; return its message id."""
    parts = [content[n : n + cut] for n in range(0, len(content), cut)] if cut else []
    with psycopg.connect(system.uri) as db:
        found = db.execute(
            "INSERT INTO messages (id, size, trace, body, chunks)"
            " VALUES (nextval('message_ids'), %s, %s, %s, %s) RETURNING id",
            (len(content), trace, b"" if parts else content, len(parts)),
        ).fetchone()
        assert found
        for position, part in enumerate(parts):
            db.execute(
                "INSERT INTO message_chunks (message_id, position, data) VALUES (%s, %s, %s)",
                (found[0], position, part),
            )
        for recipient in recipients:
            db.execute(
                "INSERT INTO queue (message_id, sender, sender_domain, recipient, domain)"
                " VALUES (%s, %s, queue_sender_domain(%s), %s, %s)",  # unchecked, as an old row is
                (found[0], sender, sender, recipient, domain),
            )
        db.execute("NOTIFY pgmta_queue")
    return int(found[0])


def last_replies(system: System) -> dict[str, str]:
    return {
        row["recipient"]: row["last_reply"] for row in system.queue() if row["status"] == "HOLD"
    }


def test_an_address_that_is_no_argument_is_held_and_the_others_go(system: System) -> None:
    hop = system.hop()
    queued = system.queued(hop)
    malformed = [
        "a\r\nRSET\r\n@hop.example",
        "a@hop.example> NOTIFY=NEVER",
        "a b@hop.example",
        "a@hop.example\x1b[2J",
        "é\u202e@hop.example",
        "",
        f"{'l' * 300}@hop.example",
        # too long, and too odd to compress, for the index of the log
        f"{random.Random(1).randbytes(3000).hex()}@hop.example",
    ]
    fine = [
        "good@hop.example",
        '"a b"@hop.example',
        "a..b@hop.example",
        "Postmaster",
        "ü@hop.example",
    ]
    put(system, *malformed, *fine)
    put(system, "x@hop.example", sender="a\r\nQUIT@b.example")
    put(system, "null@hop.example", sender="")
    system.wait_queue(lambda rows: len(rows) == 9 and {r["status"] for r in rows} == {"HOLD"})
    assert sorted(hop.deliveries()) == sorted([*fine, "null@hop.example"])
    held = last_replies(system)
    for recipient in malformed:
        assert held[recipient].startswith("5.1.3 recipient address is malformed: "), recipient
        assert held[recipient].isprintable()
        assert system.events(recipient[:600]) == ["failed"]
    assert held["x@hop.example"].startswith("5.1.7 sender address is malformed: ")
    until(lambda: sum(entry["rows"] for entry in queued.events(HELD)) == 9)
    assert {entry["reason"][:5] for entry in queued.events(HELD)} <= {"5.1.3", "5.1.7"}
    assert not [c for c in hop.commands if c.startswith(("RSET", "NOTIFY"))]


@pytest.mark.parametrize("able", [True, False])
def test_an_address_beyond_ascii_goes_only_where_it_is_known(system: System, able: bool) -> None:
    hop = system.hop(extensions=EXTENSIONS if able else ("PIPELINING",))
    system.queued(hop)
    put(system, "ü@hop.example", "u@hop.example")
    if able:
        system.wait_empty()
        assert {t.asked[0]: "SMTPUTF8" in t.mail for t in hop.kept} == {
            "ü@hop.example": True, "u@hop.example": False
        }  # fmt: skip
    else:
        rows = system.wait_queue(lambda rows: [r["status"] for r in rows] == ["HOLD"])
        assert rows[0]["last_reply"].startswith("5.6.7")
        assert hop.deliveries() == {"u@hop.example": 1}
        assert all(command.isascii() for command in hop.commands)


@pytest.mark.slow
@pytest.mark.parametrize("able", [True, False])
def test_an_ascii_local_part_needs_no_smtputf8(system: System, able: bool) -> None:
    """Also a sender, a small and a large mail of a client that says SMTPUTF8, and an ORCPT."""
    hop = system.hop(extensions=EXTENSIONS if able else ("PIPELINING", "8BITMIME", "DSN"))
    system.queued(hop)
    smtpd = system.smtpd()
    mail = b"Subject: x\r\nTo: bob@xn--grn-ioa.test\r\n\r\n"
    with smtplib.SMTP("127.0.0.1", smtpd.port, "client.example", timeout=PATIENCE) as client:
        client.command_encoding = "utf-8"
        client.ehlo()
        for size in (1, 200_000):
            for command in ("MAIL FROM:<app@grün.test> SMTPUTF8",
                            "RCPT TO:<bob@grün.test> ORCPT=utf-8;bob@grün.test"):  # fmt: skip
                code, said = client.docmd(command)
                assert code == 250, said
            assert client.data(mail + b"text\r\n" * size)[0] == 250
    system.wait_empty()
    assert len(hop.kept) == 2
    for transaction in hop.kept:
        assert transaction.asked == ["bob@xn--grn-ioa.test"]
        assert "<app@xn--grn-ioa.test>" in transaction.mail
        assert "SMTPUTF8" not in transaction.mail
    assert all(command.isascii() for command in hop.commands)
    if not able:
        assert any("ORCPT=utf-8;bob@gr\\x{FC}n.test" in c for c in hop.commands), hop.commands
    assert {each["recipient"] for each in system.attempts("bob@grün.test")} == {"bob@grün.test"}


def test_a_domain_beyond_ascii_is_its_a_labels(system: System) -> None:
    hop, stranger = system.hop(), system.hop()
    system.queued(routes={"xn--fa-hia.example": hop.target, "*": stranger.target})
    put(system, "a@xn--fa-hia.example", domain="faß.example")
    put(system, "b@hop.example", domain="ü_x.example")
    rows = system.wait_queue(lambda rows: [r["status"] for r in rows] == ["HOLD"])
    assert rows[0]["last_reply"].startswith("5.1.2 domain is malformed: ")
    assert hop.deliveries() == {"a@xn--fa-hia.example": 1}
    assert not stranger.kept


def test_content_that_ends_early_for_somebody_is_held(system: System) -> None:
    hop = system.hop()
    queued = system.queued(hop)
    large = b"x" * 98 + b"\r\n"
    before = large * (20 * CHUNK // 100)  # larger than what comes with a claim
    cut = -(-len(before) // CHUNK) * CHUNK  # the attack is across the edge of two chunks
    padding = b"y" * (cut - len(before) - 3) + b"\r\n\0"
    put(system, "inline@hop.example", content=ATTACK)
    put(system, "lf@hop.example", content=b"Subject: x\r\n\r\nx\n.\r\nMAIL\r\n")
    put(system, "end@hop.example", content=b"Subject: x\r\n\r\nx\n.")
    put(system, "chunks@hop.example", content=ATTACK, cut=17)
    put(system, "stream@hop.example", content=before + padding + b".\r\nMAIL\r\n", cut=CHUNK)
    put(system, "good@hop.example", content=b"Subject: x\r\n\r\na\nb\rc\0d\r\n.\r\n")
    put(system, "large@hop.example", content=before, cut=CHUNK)
    system.wait_queue(lambda rows: len(rows) == 5 and {r["status"] for r in rows} == {"HOLD"})
    for recipient, reply in last_replies(system).items():
        assert reply.startswith("5.6.0 content can't be sent: A lone dot"), recipient
        assert system.events(recipient) == ["failed"]
    until(lambda: sum(entry["rows"] for entry in queued.events(HELD)) == 5)
    assert sorted(hop.deliveries()) == ["good@hop.example", "large@hop.example"]
    assert not [command for command in hop.commands if "evil" in command]
    # what streams begins, and is cut off without its final dot
    assert {t.asked[0] for t in hop.transactions if not t.kept} <= {
        "stream@hop.example", "chunks@hop.example"
    }  # fmt: skip


def test_reject_holds_every_bare_newline(system: System) -> None:
    hop = system.hop()
    system.queued(hop, delivery={"bare_newlines": "reject"})
    put(system, "bare@hop.example", content=b"Subject: x\r\n\r\na\nb\r\n")
    put(system, "cut@hop.example", content=b"Subject: x\r\n\r\na\r\n", cut=16)
    rows = system.wait_queue(lambda rows: [r["status"] for r in rows] == ["HOLD"])
    assert rows[0]["last_reply"] == "5.6.0 content can't be sent: Bare CR or LF is not allowed"
    assert hop.deliveries() == {"cut@hop.example": 1}


def test_a_trace_that_is_no_header_field_is_held(system: System) -> None:
    hop = system.hop()
    system.queued(hop)
    for number, trace in enumerate(
        [
            "Received: by test",
            "Received: by test\n",
            "Received: a\r\n.\r\n",
            "Received: a\r\n\r\nbody\r\n",
            "Received: a\r\n\t\r\n",
            "\r\n",
            " folded\r\n",
            "Received: a\rb\r\n",
        ]
    ):
        put(system, f"bad{number}@hop.example", trace=trace)
    put(system, "none@hop.example", trace="")
    put(system, "two@hop.example", trace="A: b\r\n\tc\r\nX-Trace: é\r\n")
    system.wait_queue(lambda rows: len(rows) == 8 and {r["status"] for r in rows} == {"HOLD"})
    assert {reply[:11] for reply in last_replies(system).values()} == {"5.6.0 trace"}
    assert sorted(hop.deliveries()) == ["none@hop.example", "two@hop.example"]


def test_odd_numbers_of_a_row_harm_it_alone(system: System) -> None:
    hop = system.hop()
    empty = put(system, "empty@hop.example")
    system.ask("UPDATE messages SET chunks = -1 WHERE id = %s", empty)
    put(system, "token@hop.example", "negative@hop.example", "good@hop.example")
    system.ask("UPDATE queue SET lease_token = 5 WHERE recipient LIKE 'token%%'")
    system.ask("UPDATE queue SET attempts = -7 WHERE recipient LIKE 'negative%%'")
    system.queued(hop)
    system.wait_status(empty="HOLD")
    names = ("good", "negative", "token")
    assert hop.deliveries() == {f"{name}@hop.example": 1 for name in names}
    assert sorted(system.events("token@hop.example")) == ["delivered", "unknown"]
    assert system.rows()["empty@hop.example"]["last_reply"] == GONE


def test_the_sender_of_large_content_that_no_host_may_get_is_told(system: System) -> None:
    """The DSN has the header alone: the content would stop it too."""
    hop = system.hop()
    lines = TEXT + b"0123456789abcdef" * 4096 * 20  # 1.3 MB
    smuggled = put(system, "smuggled@hop.example", content=lines + b"\n.\n", cut=CHUNK)
    gap = put(system, "gap@hop.example", content=lines + b"\r\n", cut=CHUNK)
    system.ask("DELETE FROM message_chunks WHERE message_id = %s AND position = 9", gap)
    system.ask("UPDATE queue SET on_failed = 'bounce'")
    system.queued(hop, bounces={"content": "10MB", "gather": "0s"})
    hop.wait(lambda: len(hop.kept) == 2)
    system.wait_empty()
    contents = [(each.content or b"").replace(b"\r\n ", b" ") for each in hop.kept]
    for reply in (GONE, "5.6.0 content can't be sent"):
        assert sum(reply.encode() in content for content in contents) == 1
    for content in contents:
        assert b"text/rfc822-headers" in content
        assert b"Subject: x" in content
    assert [each.recipients for each in hop.kept] == [["sender@example.org"]] * 2
    reported = system.ask("SELECT message_id FROM reports ORDER BY message_id")
    assert [row["message_id"] for row in reported] == [smuggled, gap]
