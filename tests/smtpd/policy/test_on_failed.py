"""Failures are bounced or held: by listener, network and user."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg
import pytest

from smtpd.commands.listener import Bouncing
from smtpd.config import SmtpdConfig
from tests.support.serving import Client, serving
from tests.support.users import add_user, log_in


def bouncing(**config: Any) -> Bouncing:
    listener = {key: config.pop(key) for key in ("on_failed", "bounces") if key in config}
    found = SmtpdConfig.model_validate({"listen": [listener], "bounces": config.pop("rules", [])})
    return Bouncing(found, found.listen[0])


def test_one_word_for_every_client_needs_no_look() -> None:
    assert bouncing().always == "bounce"
    assert bouncing(bounces="none").always == "hold"
    assert bouncing(on_failed="remove").always == "remove"
    assert bouncing(on_failed="hold", rules=[{"users": ["a"], "for": "anybody"}]).always == "hold"
    assert bouncing(bounces="authenticated").always == ""
    assert bouncing(rules=[{"users": ["a"], "for": "none"}]).always == ""


RULES = [
    {"networks": ["192.0.2.0/24"], "users": ["news"], "for": "anybody"},
    {"users": ["News", "list@example.org"], "for": "none"},
    {"networks": ["192.0.2.0/24", "2001:db8::/32"], "for": "authenticated"},
    {"networks": ["198.51.100.7"], "for": "none"},
]


@pytest.mark.parametrize("usual", ["anybody", "authenticated", "none"])
def test_the_first_rule_that_fits_decides(usual: str) -> None:
    here = bouncing(bounces=usual, rules=RULES)
    clients = ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "198.51.100.7", "203.0.113.1", "")
    for client, user, identified in itertools.product(
        clients, ("", "news", "LIST@example.org", "other"), (True, False)
    ):
        near, known = client.endswith("192.0.2.1"), identified
        word = usual
        if user == "news" and near:
            word = "anybody"
        elif user in ("news", "LIST@example.org"):
            word = "none"
        elif near or client == "2001:db8::1":
            word = "authenticated"
        elif client == "198.51.100.7":
            word = "none"
        told = {"anybody": True, "authenticated": known, "none": False}[word]
        found = here.choose(client, user, identified=identified)
        assert found == ("bounce" if told else "hold"), (client, user, identified)


def send(port: int, sender: str, source: str = "127.0.0.1", user: str = "") -> None:
    with Client(port, source) as client:
        assert client.reply()[:3] == "220"
        assert "250" in client.say("EHLO x.example")
        if user:
            assert log_in(client, user, "secret")[:3] == "235"
        for line in (f"MAIL FROM:<{sender}>", "RCPT TO:<r@b.example>"):
            assert client.say(line)[:3] == "250"
        assert client.say("DATA")[:3] == "354"
        assert client.say(f"From: {sender}\r\n\r\nx\r\n.")[:3] == "250"


def test_rows_say_what_becomes_of_mail_that_fails(database: str, db: psycopg.Connection) -> None:
    for user in ("shop", "news"):
        add_user(database, user, "secret", any_sender=True)
    listen = [{"name": "here", "early": "allow", "auth": "offered", "auth_without_tls": True,
               "bounces": "authenticated"}]  # fmt: skip
    rules = [
        {"users": ["news"], "for": "none"},
        {"networks": ["127.0.0.9"], "for": "anybody"},
    ]
    with serving(database, listen=listen, bounces=rules) as port:
        send(port, "stranger@a.example")
        send(port, "shop@a.example", user="shop")
        send(port, "news@a.example", user="news")
        send(port, "near@a.example", "127.0.0.9")
    with serving(database) as port:
        send(port, "plain@a.example")
        send(port, "")
    found = db.execute("SELECT sender, on_failed FROM queue ORDER BY id").fetchall()
    assert found == [
        ("stranger@a.example", "hold"),
        ("shop@a.example", "bounce"),
        ("news@a.example", "hold"),
        ("near@a.example", "bounce"),
        ("plain@a.example", "bounce"),
        ("", "bounce"),
    ]
