"""PROXY headers: every form, every cut, and nothing is trusted without them."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import struct
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smtpd.protocol.proxy import ProxyError, ProxyHeader, parse
from tests.support.certificates import Certificate
from tests.support.serving import Client, serving
from tests.support.waiting import until

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
RELAY = {"networks": ["127.0.0.1", "192.0.2.7", "2001:db8::7"], "domains": ["example.org"]}
PROXY = [{"proxy": ["127.0.0.1"]}]


def binary(source: str, port: int, *, command: int = 1, extra: bytes = b"") -> bytes:
    address = ipaddress.ip_address(source)
    family = 0x11 if address.version == 4 else 0x21
    body = address.packed * 2 + struct.pack("!HH", port, 25) + extra
    return SIGNATURE + bytes((0x20 | command, family)) + struct.pack("!H", len(body)) + body


def text(source: str, port: int) -> bytes:
    kind = "TCP6" if ":" in source else "TCP4"
    return f"PROXY {kind} {source} {source} {port} 25\r\n".encode()


HEADERS = [
    (text("192.0.2.7", 4321), ("192.0.2.7", 4321)),
    (text("2001:db8::7", 1), ("2001:db8::7", 1)),
    (b"PROXY UNKNOWN\r\n", ("", 0)),
    (b"PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n", ("", 0)),
    (binary("192.0.2.7", 4321), ("192.0.2.7", 4321)),
    (binary("2001:db8::7", 4321, extra=b"\x04\x00\x03abc"), ("2001:db8::7", 4321)),
    (binary("192.0.2.7", 4321, command=0), ("", 0)),
    (SIGNATURE + b"\x20\x00\x00\x00", ("", 0)),
    (SIGNATURE + b"\x21\x31\x00\xd8" + b"x" * 216, ("", 0)),  # a Unix socket
]


@pytest.mark.parametrize(("header", "client"), HEADERS)
def test_a_header_is_read_at_its_last_octet(header: bytes, client: tuple[str, int]) -> None:
    for cut in range(len(header)):
        assert parse(header[:cut]) is None
    for rest in (b"", b"EHLO x\r\n", header):
        assert parse(header + rest) == ProxyHeader(*client, len(header))


@pytest.mark.parametrize(
    "header",
    [
        b"EHLO x\r\n",
        b"\x16\x03\x01",
        b"PROXY TCP4 192.0.2.7 192.0.2.8 4321\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::7 4321 25\r\n",
        b"PROXY TCP6 fe80::1%eth0 fe80::1%eth0 4321 25\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.8 70000 25\r\n",
        b"PROXY TCP4 localhost localhost 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY " + b"x" * 102,
        SIGNATURE + b"\x31\x11\x00\x0c" + b"x" * 12,  # version 3
        SIGNATURE + b"\x22\x11\x00\x0c" + b"x" * 12,  # an unknown command
        SIGNATURE + b"\x21\x11\x00\x0b" + b"x" * 11,
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_anything_else_is_an_error(header: bytes) -> None:
    with pytest.raises(ProxyError):
        parse(header)


@given(st.sampled_from([b"", b"PROXY ", SIGNATURE, SIGNATURE + b"\x21\x11\x00\x0c"]), st.binary())
def test_any_octets_are_a_header_an_error_or_too_few(begin: bytes, rest: bytes) -> None:
    with suppress(ProxyError):
        header = parse(begin + rest)
        assert header is None or 0 < header.length <= len(begin + rest)


def test_the_client_is_the_one_of_the_header(database: str, db: psycopg.Connection) -> None:
    with serving(database, relay=RELAY, listen=PROXY) as port:
        for header, (client, _) in HEADERS:
            with Client(port) as proxy:
                proxy.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for at in range(len(header)):
                    proxy.send(header[at : at + 1])
                assert proxy.reply()[:3] == "220"
                for command in ("EHLO c", "MAIL FROM:<a@b.example>"):
                    assert proxy.say(command)[:3] == "250"
                expected = "250" if client else "550"  # nothing is trusted without a client
                assert proxy.say("RCPT TO:<r@elsewhere.example>")[:3] == expected
                assert proxy.say("RCPT TO:<r@example.org>")[:3] == "250"
                assert proxy.say("DATA")[:3] == "354"
                proxy.send(b"Subject: x\r\n\r\nx\r\n.\r\n")
                assert proxy.reply()[:3] == "250"
    found = db.execute("SELECT trace FROM messages ORDER BY id").fetchall()
    shown = [f"({literal(client or '127.0.0.1')})" for _, (client, _) in HEADERS]
    assert all(literal in trace for (trace,), literal in zip(found, shown, strict=True))


def literal(client: str) -> str:
    return f"[IPv6:{client}]" if ":" in client else f"[{client}]"


def test_without_a_header_there_is_no_greeting(database: str) -> None:
    with serving(database, relay=RELAY, listen=PROXY) as port:
        for begin in (b"EHLO c\r\n", b"PROXY TCP4 x", b"PROXY TCP4 x y 1 2\r\n"):
            with Client(port) as client:
                client.send(begin)
                client.socket.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    assert client.rest() == []


def test_strangers_may_not_name_another_client(database: str) -> None:
    listen = [{"proxy": ["192.0.2.1"]}]
    with serving(database, relay=RELAY, listen=listen) as port, Client(port) as client:
        assert client.reply()[:3] == "220"
        assert client.say(text("192.0.2.7", 1).decode().strip())[:3] == "500"


def test_limits_count_for_the_client_of_the_header(database: str) -> None:
    limits = {"connections_per_address": 1}
    relay = {"networks": ["127.0.0.1"]}
    with serving(database, relay=relay, listen=PROXY, limits=limits) as port:
        with Client(port) as one, Client(port) as two, Client(port) as other:
            for client in (one, two):
                client.send(text("192.0.2.7", 1))
                assert client.reply()[:3] == ("220" if client is one else "421")
            other.send(text("192.0.2.8", 1))
            assert other.reply()[:3] == "220"
            assert one.say("QUIT")[:3] == "221"
            assert one.rest() == []
        with Client(port) as again:
            again.send(text("192.0.2.7", 1))
            assert again.reply()[:3] == "220"


def test_xclient_names_the_client(database: str, db: psycopg.Connection) -> None:
    listen = [{"xclient": ["127.0.0.1"]}]
    relay = {"networks": ["127.0.0.0/8", "192.0.2.7", "2001:db8::7"], "domains": ["example.org"]}
    with serving(database, relay=relay, listen=listen) as port:
        with Client(port) as client:  # trusted for nothing before it says for whom it speaks
            assert client.reply()[:3] == "220"
            assert "XCLIENT NAME ADDR" in client.say("EHLO c")
            assert rcpt(client) == "550"
            assert client.say("XCLIENT ADDR=192.0.2.7")[:3] == "503"
            assert client.say("RSET")[:3] == "250"
            for wrong in ("", "ADDR", "ADDR=x", "PORT=1", "ADDR=192.0.2.7 LOGIN=a+00", "ADDR=+0"):
                assert client.say(f"XCLIENT {wrong}".rstrip())[:3] == "501"
        for address, expected in (
            ("192.0.2.7", "250"), ("192.0.2.8", "550"), ("IPV6:2001:db8::7", "250"),
            ("[UNAVAILABLE]", "550"), ("127.0.0.1", "250"),
        ):  # fmt: skip
            with Client(port).hello() as client:
                assert client.say(f"xclient ADDR={address} NAME=[UNAVAILABLE] PORT=1")[:3] == "220"
                assert client.say("MAIL FROM:<a@b.example>")[:3] == "503"  # no EHLO
                assert "XCLIENT" not in client.say("EHLO c")
                assert rcpt(client) == expected
                assert client.say("RSET")[:3] == "250"
                # now the client itself may speak, through a proxy that passes on all octets
                assert client.say("XCLIENT ADDR=127.0.0.1")[:3] == "500"
        with Client(port, "127.0.0.5") as stranger:
            assert stranger.reply()[:3] == "220"
            assert "XCLIENT" not in stranger.say("EHLO c")
            assert stranger.say("XCLIENT ADDR=192.0.2.7")[:3] == "500"


@pytest.mark.parametrize(
    ("address", "codes"),
    [("127.0.0.2", ["554", "503", "221"]), ("127.0.0.3", ["421"]),
     ("127.0.0.4", ["220", "250", "221"])],
)  # fmt: skip
@pytest.mark.parametrize("user", ["", " LOGIN=ann"])
def test_commands_behind_xclient_wait_for_the_hooks(
    database: str, address: str, codes: list[str], user: str
) -> None:
    listen = [{"xclient": ["127.0.0.1"], "early": "allow"}]
    hooks = ["tests.smtpd.handlers.beyond:Watcher"]
    with serving(database, listen=listen, hooks=hooks) as port, Client(port).hello() as client:
        client.send(f"XCLIENT ADDR={address}{user}\r\nEHLO c\r\nQUIT\r\n".encode())
        assert [reply[:3] for reply in client.rest()] == codes


def test_xclient_names_the_user(database: str, db: psycopg.Connection) -> None:
    """LOGIN is the user that the proxy has let in, with the rights of the table of users."""
    db.execute(
        "INSERT INTO users (name, password, senders, tenant, disabled) VALUES"
        " ('ann@b.example', '$argon2id$', '{@b.example}', 't7', false),"
        " ('off', '$argon2id$', '{any}', '', true)"
    )
    listen = [{"role": "submission", "tls": "none", "auth_without_tls": True,
               "xclient": ["127.0.0.1"]}]  # fmt: skip
    relay = {"networks": [], "domains": ["example.org"]}

    def sends(client: Client, words: str, sender: str = "ann@b.example") -> str:
        assert client.reply()[:3] == "220"
        assert re.search(r"XCLIENT NAME .*LOGIN.*\n", client.say("EHLO c"))
        said = client.say(f"XCLIENT {words}")[:3]
        if said == "220":
            assert ("AUTH" in client.say("EHLO c")) == ("LOGIN=[UNAV" in words or words[-1:] == "=")
            said = client.say(f"MAIL FROM:<{sender}>")[:9]
        return said

    with serving(database, relay=relay, listen=listen) as port:
        for words, sender, expected in (
            ("ADDR=192.0.2.7 LOGIN=Ann@b.example", "x@b.example", "250 2.1.0"),
            ("LOGIN=ann+40b.example", "x@b.example", "250 2.1.0"),
            ("ADDR=192.0.2.7 LOGIN=ann@b.example", "x@c.example", "553 5.7.1"),
            ("ADDR=192.0.2.7 LOGIN=bob@b.example", "bob@b.example", "250 2.1.0"),
            ("ADDR=192.0.2.7 LOGIN=bob@b.example", "ann@b.example", "553 5.7.1"),
            ("ADDR=192.0.2.7 LOGIN=[UNAVAILABLE]", "ann@b.example", "530 5.7.0"),
            ("ADDR=192.0.2.7 LOGIN=", "ann@b.example", "530 5.7.0"),
            ("ADDR=192.0.2.7 LOGIN=off", "ann@b.example", "535"),
        ):
            with Client(port) as client:
                assert sends(client, words, sender) == expected, words
        with Client(port) as client:
            assert sends(client, "ADDR=192.0.2.7 LOGIN=ann@b.example")[:3] == "250"
            assert client.say("RCPT TO:<r@elsewhere.example>")[:3] == "250"
            assert client.say("DATA")[:3] == "354"
            assert client.say("From: ann@b.example\r\n\r\nx\r\n.")[:3] == "250"
            db.execute("UPDATE users SET disabled = true")
            again = ("MAIL FROM:<ann@b.example>", "RSET")
            until(lambda: any(client.say(words)[:3] == "421" for words in again))
    (row,) = db.execute("SELECT submitted_by, tenant, origin FROM messages").fetchall()
    assert row == ("ann@b.example", "t7", "user")


@pytest.mark.parametrize("order", ["tls", "xclient"])
def test_a_certificate_of_the_proxy_is_not_the_clients(
    database: str, tmp_path: Path, root: Certificate, files: dict[str, str], order: str
) -> None:
    """And TLS goes on after XCLIENT, where mail needs it."""
    own, own_key = root.issue("proxy.example").files(tmp_path)
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(ssl.DER_cert_to_PEM_cert(root.der))
    clients = {"authorities": str(authorities), "names": ["proxy.example"]}
    tls = "required" if order == "tls" else "offered"
    listen = [{"tls": tls, "xclient": ["127.0.0.1"], "client_certificates": clients,
               "certificates": [files]}]  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=root.der)
    context.load_cert_chain(own, own_key)

    def secure(client: Client) -> None:
        client.say("EHLO c")
        assert client.say("STARTTLS")[:3] == "220"
        client.over(context.wrap_socket(client.socket, server_hostname="mx.example"))

    def name(client: Client) -> None:
        client.say("EHLO c")
        if order == "tls":
            assert rcpt(client) == "550"
            client.say("RSET")
        assert client.say("XCLIENT ADDR=192.0.2.9")[:3] == "220"

    relay = {"networks": [], "domains": ["example.org"]}
    with serving(database, relay=relay, listen=listen) as port, Client(port) as client:
        assert client.reply()[:3] == "220"
        for step in (secure, name) if order == "tls" else (name, secure):
            step(client)
        client.say("EHLO c")
        assert rcpt(client) == "550"


def rcpt(client: Client) -> str:
    assert client.say("MAIL FROM:<a@b.example>")[:3] == "250"
    return client.say("RCPT TO:<r@elsewhere.example>")[:3]
