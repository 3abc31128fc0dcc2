"""The line in the log for each refused command: who was refused, and why."""

from __future__ import annotations

import time

import pytest
from structlog.testing import capture_logs

from smtpd.protocol import replies
from smtpd.server import log as module
from smtpd.server.log import RefusalLog
from tests.support.serving import Client, serving
from tests.support.users import add_user, log_in

RELAY = {"networks": [], "domains": ["example.org"]}


def test_a_refused_client_is_in_the_log(database: str) -> None:
    with capture_logs() as log, serving(database, relay=RELAY) as port, Client(port) as client:
        client.send(
            b"EHLO c\r\nAUTH PLAIN c2VjcmV0\r\nMAIL FROM:<a@b.example>\r\n"
            b"RCPT TO:<r@elsewhere.example>\r\nDATA\r\n"
            b"RCPT TO:<r@example.org>\r\nDATA\r\n\n.\r\n.\r\nQUIT\r\n"
        )
        client.rest()
    lines = [line for line in log if line["event"] == "refused"]
    assert {(line["client"], line["listener"]) for line in lines} == {("127.0.0.1", "here")}
    assert [(line["reply"][:9], line.get("address")) for line in lines] == [
        ("502 5.5.1", None),
        ("550 5.7.1", "r@elsewhere.example"),  # and not the 503 to DATA, which follows from it
        ("550 5.5.2", "r@example.org"),
    ]
    assert "c2VjcmV0" not in repr(log)


def test_a_flood_has_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    who = {"client": "192.0.2.1", "listener": "here", "session": "1-1"}
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    noted = RefusalLog()
    with capture_logs() as log:
        for _ in range(100):
            noted.note(replies.RELAY_DENIED, who, address="r@example.org", user="ann")
        assert len(log) == module._MAX_REFUSALS_PER_S
        now += 1
        noted.note(replies.RELAY_DENIED, who, address="r@example.org", user="ann")
        noted.note(replies.AUTH_FAILED, who, address="", user="")  # `login failed` says it
    assert (log[-1]["left_out"], log[-1]["user"]) == (100 - module._MAX_REFUSALS_PER_S, "ann")
    assert len(log) == module._MAX_REFUSALS_PER_S + 1


def test_the_limit_that_keeps_a_user_out_is_in_the_log(database: str) -> None:
    add_user(database, "ann", "right one")
    listen = [{"auth": "offered", "auth_without_tls": True}]
    limits = {"failures": {"address": 9, "user": 2}}
    with (
        capture_logs() as log,
        serving(database, listen=listen, auth=limits) as port,
        Client(port) as client,
    ):
        client.hello()
        replies = [log_in(client, "ann", word)[:3] for word in ("a", "b", "c")]
    assert replies == ["535", "535", "454"]
    (line,) = [line for line in log if line["event"] == "login refused"]
    assert (line["user"], line["client"]) == ("ann", "127.0.0.1")
    assert (line["reason"], line["limit"]) == ("too many failed logins", "auth.failures.user")
