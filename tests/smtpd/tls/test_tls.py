"""TLS with clients: STARTTLS, TLS from the first octet, and certificates."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from functools import partial
from typing import Any

import psycopg

from tests.support.certificates import Certificate
from tests.support.serving import Client, serving

RELAY = {"networks": ["127.0.0.1"], "domains": ["example.org"]}
MAIL = ("MAIL FROM:<a@b.example>", "RCPT TO:<r@example.org>", "DATA")


def context(root: Certificate) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(cadata=root.der)
    return made


def secure(client: Client, root: Certificate, name: str = "mx.example") -> ssl.SSLSocket:
    """Do the handshake of the client."""
    secured = context(root).wrap_socket(client.socket, server_hostname=name)
    client.over(secured)
    return secured


def deliver(client: Client) -> None:
    for command in MAIL:
        assert client.say(command)[0] in "23"
    client.send(b"Subject: x\r\n\r\nx\r\n.\r\n")
    assert client.reply()[:3] == "250"


def test_starttls_forgets_what_came_before(
    database: str, db: psycopg.Connection, files: dict[str, Any], root: Certificate
) -> None:
    with serving(database, relay=RELAY, certificates=[files]) as port, Client(port) as client:
        assert client.reply()[:3] == "220"
        assert "STARTTLS" in client.say("EHLO c")
        assert client.say("STARTTLS now")[:3] == "501"
        assert client.say(MAIL[0])[:3] == "250"
        assert client.say("STARTTLS")[:9] == "220 2.0.0"
        session = secure(client, root)
        assert session.version() == "TLSv1.3"
        assert client.say(MAIL[0])[:3] == "503"  # no EHLO
        assert "STARTTLS" not in client.say("EHLO c")
        assert client.say("RCPT TO:<r@example.org>")[:3] == "503"  # no MAIL
        assert client.say("STARTTLS")[:3] == "503"
        deliver(client)
        client.send(b"NOOP\r\nNOOP\r\nQUIT\r\n")
        assert [reply[:3] for reply in client.rest()] == ["250", "250", "221"]
    assert len(db.execute("SELECT FROM queue").fetchall()) == 1


def test_implicit_tls(
    database: str, db: psycopg.Connection, files: dict[str, Any], root: Certificate
) -> None:
    listen = [{"tls": "implicit", "certificates": [files]}]
    with serving(database, relay=RELAY, listen=listen) as port:
        for _ in range(3):
            with Client(port) as client:
                secure(client, root)
                client.hello()
                deliver(client)
    assert len(db.execute("SELECT FROM queue").fetchall()) == 3


INJECTED = b"NOOP\r\nEHLO x\r\nMAIL FROM:<evil@b.example>\r\n"


def test_input_after_starttls_ends_the_session(database: str, files: dict[str, Any]) -> None:
    """Whether it comes with the command, or before the handshake, cut at any octet."""
    data = b"STARTTLS\r\n" + INJECTED
    cuts = range(len(b"STARTTLS\r\n"), len(data) + 1)
    limits = {"connections_per_address": 1000, "new_connections_per_address": 1000}
    with serving(database, limits=limits, certificates=[files]) as port, ExitStack() as stack:
        clients = [stack.enter_context(Client(port)) for _ in cuts]
        for cut, client in zip(cuts, clients, strict=True):
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.hello()
            client.send(data[:cut])
            client.send(data[cut:])
        for cut, client in zip(cuts, clients, strict=True):
            answer = b"".join(iter(partial(client.socket.recv, 1000), b""))
            if cut == len(data):
                assert answer[:4] == b"421 "
            else:  # both ways, the last octets were read by themselves
                assert answer[:4] == b"421 " or answer[:9] == b"220 2.0.0"
            assert b"250" not in answer
