"""LMTP sessions (RFC 2033)."""

from __future__ import annotations

import psycopg
import pytest

from smtpd.config import SmtpdConfig
from tests.support.serving import Client, serving

LMTP = {"listen": [{"protocol": "lmtp", "role": "internal"}]}


def recipients(uri: str) -> list[str]:
    with psycopg.connect(uri) as db:
        return [row[0] for row in db.execute("SELECT recipient FROM queue ORDER BY id")]


def test_one_bad_recipient_of_three_is_told_alone(database: str) -> None:
    relay = {"networks": [], "domains": ["ours.example"]}
    with serving(database, relay=relay, **LMTP) as port, Client(port) as client:
        client.reply()
        client.say("LHLO me")
        client.say("MAIL FROM:<s@x.example>")
        names = ("a@ours.example", "b@theirs.example", "c@ours.example")
        assert [client.say(f"RCPT TO:<{name}>")[:3] for name in names] == ["250", "550", "250"]
        assert client.say("DATA")[:3] == "354"
        client.send(b"Subject: x\r\n\r\nx\r\n.\r\nQUIT\r\n")
        assert [reply[:3] for reply in client.rest()] == ["250", "250", "221"]
    assert recipients(database) == ["a@ours.example", "c@ours.example"]


def test_each_accepted_rcpt_has_its_reply(database: str) -> None:
    """Also one that is given twice; and none is left over for the next transaction."""
    with serving(database, **LMTP) as port, Client(port) as client:
        client.reply()
        assert client.say("EHLO me").startswith("500")
        assert client.say("HELO me").startswith("500")
        extensions = client.say("LHLO me")
        assert "PIPELINING" in extensions
        assert "CHUNKING" not in extensions
        assert client.say("BDAT 0 LAST").startswith("500")
        for round in range(2):
            client.send(
                b"MAIL FROM:<>\r\nRCPT TO:<a@x.example>\r\nRCPT TO:<bad\r\n"
                b"RCPT TO:<b@x.example>\r\nRCPT TO:<a@x.example>\r\nDATA\r\n"
            )
            assert [client.reply()[:3] for _ in range(6)] == [
                "250",
                "250",
                "501",
                "250",
                "250",
                "354",
            ]
            client.send(b"Subject: %d\r\n\r\n.\r\nNOOP\r\n" % round)
            texts = [client.reply() for _ in range(3)]
            assert len(set(texts)) == 1
            assert texts[0].startswith("250 2.0.0")
            assert client.reply() == "250 2.0.0 Ok"
        client.send(b"MAIL FROM:<>\r\nRCPT TO:<a@x.example>\r\nRSET\r\nMAIL FROM:<>\r\n")
        client.send(b"RCPT TO:<c@x.example>\r\nDATA\r\n")
        assert [client.reply()[:3] for _ in range(6)] == ["250", "250", "250", "250", "250", "354"]
        client.send(b"x\r\n.\r\nQUIT\r\n")
        assert [reply[:3] for reply in client.rest()] == ["250", "221"]
    assert recipients(database) == ["a@x.example", "b@x.example"] * 2 + ["c@x.example"]
    with psycopg.connect(database) as db:
        (trace,) = db.execute("SELECT trace FROM messages LIMIT 1").fetchone() or ()
    assert " with LMTP id " in trace


def test_a_refusal_of_content_is_repeated(database: str) -> None:
    limits = {"message_size": 1000}
    with serving(database, limits=limits, **LMTP) as port, Client(port) as client:
        client.reply()
        client.say("LHLO me")
        client.send(b"MAIL FROM:<>\r\nRCPT TO:<a@x.example>\r\nRCPT TO:<b@x.example>\r\nDATA\r\n")
        assert [client.reply()[:3] for _ in range(4)] == ["250", "250", "250", "354"]
        client.send(b"x" * 1500 + b"\r\n.\r\nNOOP\r\n")
        assert [client.reply()[:9] for _ in range(3)] == ["552 5.3.4", "552 5.3.4", "250 2.0.0"]


def test_port_25_is_not_for_lmtp() -> None:
    with pytest.raises(ValueError, match="must not use port 25"):
        SmtpdConfig.model_validate({"listen": [{"protocol": "lmtp", "port": 25}]})


def test_mail_whose_recipients_a_hook_alone_names_has_one_reply(database: str) -> None:
    hooks = ["tests.smtpd.handlers.changing:Archiver"]
    with serving(database, hooks=hooks, **LMTP) as port, Client(port) as client:
        client.reply()
        client.say("LHLO me")
        for content, reply in (("x\r\n", "250"), ("x\n.\ny\r\n", "550"), ("x\r\n", "250")):
            assert client.say("MAIL FROM:<>") == "250 2.1.0 Noted"
            assert client.say("DATA")[:3] == "354"
            assert client.say(f"\r\n{content}.")[:3] == reply
            assert client.say("NOOP")[:3] == "250"
        client.send(b"QUIT\r\n")
        assert [reply[:3] for reply in client.rest()] == ["221"]
    assert recipients(database) == ["archive@x.example"] * 2
