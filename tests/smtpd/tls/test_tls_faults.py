"""Clients that break TLS, or do it slowly: nothing stays of them, and other sessions go on."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from smtpd.server.server import Server
from smtpd.tls import server_handshake
from tests.support.certificates import Certificate
from tests.support.serving import Client, serving
from tests.support.waiting import PATIENCE, until

NAMES = [f"{letter}.example" for letter in "ab"]
LIMITS = {
    "connections": 3000,
    "connections_per_address": 3000,
    "new_connections_per_address": 100_000,
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder, root = tmp_path_factory.mktemp("tls"), Certificate.root()
    files = [root.issue(name).files(folder) for name in NAMES]
    return [{"certificate": str(path), "key": str(key)} for path, key in files]


def hello(name: str = NAMES[0]) -> bytes:
    """The first octets of a client's handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def over(client: Client) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client.over(context.wrap_socket(client.socket, server_hostname=NAMES[0]))


def reset(client: Client) -> None:
    """Close the connection by a reset."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # by the SNI
@pytest.mark.parametrize("implicit", [True, False], ids=["implicit", "starttls"])
def test_a_handshake_ends_at_any_octet(
    database: str, certificates: list[dict[str, str]], servers: list[Server], implicit: bool
) -> None:
    listen = [{"tls": "implicit"}] if implicit else [{}]
    first, strange = hello(), hello().replace(b"a.example", b"\xff.example")
    wrong = [b"EHLO c\r\n" * 50, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 99_000]
    with (
        serving(database, listen=listen, certificates=certificates, limits=LIMITS) as port,
        Client(port) as beside,
    ):
        if implicit:
            over(beside)
        assert beside.reply()[:3] == "220"
        for data in (*(first[:cut] for cut in range(0, len(first), 13)), first, strange, *wrong):
            for cuts_off in (False, True):
                with Client(port) as client:
                    if not implicit:
                        client.hello()
                        assert client.say("STARTTLS")[:3] == "220"
                    with suppress(ConnectionError):
                        client.send(data)
                    if cuts_off:
                        reset(client)
        assert beside.say("EHLO c")[:3] == "250"
        until(lambda: len(servers[0]._members) == 1)


@pytest.mark.slow
def test_half_open_handshakes_end(
    database: str,
    certificates: list[dict[str, str]],
    servers: list[Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They count as connections, harm no other session, and have an end."""
    monkeypatch.setattr(server_handshake, "_HANDSHAKE_TIMEOUT_S", 3.0)
    begin = hello()
    listen = [{"tls": "implicit"}]
    with (
        serving(database, listen=listen, certificates=certificates, limits=LIMITS) as port,
        ExitStack() as stack,
    ):
        half = [stack.enter_context(Client(port)) for _ in range(400)]
        for number, client in enumerate(half):
            client.send(begin[: number % len(begin)])
        with Client(port) as client:
            over(client)
            client.hello()
            until(lambda: len(servers[0]._members) == 1)
            assert client.say("NOOP")[:3] == "250"
        for each in half:
            with suppress(ConnectionError):
                assert b"".join(iter(partial(each.socket.recv, 10_000), b""))[:1] in (b"", b"\x16")


def test_a_session_over_tls_ends_with_its_last_reply(
    database: str, certificates: list[dict[str, str]], servers: list[Server]
) -> None:
    """Although the client sends on, and does not wait for a reply."""
    listen = [{"tls": "implicit", "early": "allow"}]
    with serving(database, listen=listen, certificates=certificates, limits={"errors": 3}) as port:
        with Client(port) as client:
            over(client)
            client.socket.settimeout(PATIENCE)
            with suppress(OSError):
                client.send(b"EHLO c\r\n" + b"DATA\r\n" * 20_000)
            assert [reply[:3] for reply in client.rest()] == ["220", "250", *["503"] * 3, "421"]
        until(lambda: not servers[0]._members)


def test_smtpd_stops_during_handshakes(
    database: str, certificates: list[dict[str, str]], tmp_path: Path
) -> None:
    listen = [{"tls": "implicit"}]
    with ExitStack() as stack:
        with serving(database, listen=listen, certificates=certificates, limits=LIMITS) as port:
            half = [stack.enter_context(Client(port)) for _ in range(20)]
            for client in half:
                client.send(hello()[:100])
            whole = stack.enter_context(Client(port))
            over(whole)
            assert whole.reply()[:3] == "220"
        assert [reply[:3] for reply in whole.rest()] == ["421"]
        for client in half:
            with suppress(ConnectionError):
                assert client.rest() == []
