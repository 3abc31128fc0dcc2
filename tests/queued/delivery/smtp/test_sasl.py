"""The login of a client: mechanisms, what needs TLS, and secrets in no reason."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from dataclasses import dataclass, field

import pytest

from pgmta.errors import DeliveryError, Stage
from queued.config import Timeouts
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp import sasl
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.smtp.smtp_parameters import SmtpLogin
from tests.support.rawhop import run

NONCE = "rOprNGfwEbeRWgbNEkqO"
# RFC 7677, section 3
SCRAM = [
    ("n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
     "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"),
    ("c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
     "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
     "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="),
]  # fmt: skip


def text(challenge: str) -> bytes:
    return b"334 " + b64encode(challenge.encode()) + b"\r\n"


@dataclass
class Server:
    """Says the replies one after the other, and keeps the commands."""

    replies: list[bytes]
    offers: bytes = b"PLAIN LOGIN SCRAM-SHA-256"
    heard: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 x\r\n")
        await reader.readline()
        writer.write(b"250-x\r\n250 AUTH %s\r\n" % self.offers)
        for reply in self.replies:
            self.heard.append((await reader.readline()).decode().strip())
            writer.write(reply)
        await reader.readline()
        writer.close()


def login(server: Server, *mechanisms: str, password: str = "pencil", clear: bool = True) -> None:
    async def main() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            session = ClientSession(ClientProtocol(Timeouts(command=1)), Host("hop", 587))
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: session.connection, "127.0.0.1", port)
            await session.open("client.example")
            who = SmtpLogin(
                "relay", "user", password, mechanisms or ("SCRAM-SHA-256", "PLAIN", "LOGIN")
            )
            try:
                await sasl.authenticate(session, who, clear=clear)
                assert not session.connection.closed
            except DeliveryError:
                assert session.connection.closed
                raise
            finally:
                session.connection.abort()

    run(main())


def test_plain_and_login() -> None:
    server = Server([b"235 2.7.0 Ok\r\n"])
    login(server, "PLAIN")
    assert server.heard == ["AUTH PLAIN " + b64encode(b"\0user\0pencil").decode()]
    server = Server([text("Username:"), text("Password:"), b"235 Ok\r\n"], b"LOGIN")
    login(server, password="père")
    assert server.heard == [
        "AUTH LOGIN",
        b64encode(b"user").decode(),
        b64encode("père".encode()).decode(),
    ]


def test_scram_as_in_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl, "_nonce", lambda: NONCE)
    server = Server([text(SCRAM[0][1]), text(SCRAM[1][1]), b"235 2.7.0 Ok\r\n"])
    login(server)
    assert server.heard[0] == "AUTH SCRAM-SHA-256 " + b64encode(SCRAM[0][0].encode()).decode()
    assert b64decode(server.heard[1]).decode() == SCRAM[1][0]
    assert server.heard[2] == ""


BROKEN = {
    "other signature": [text(SCRAM[0][1]), text("v=AAAA"), b"235 Ok\r\n"],
    "no signature": [text(SCRAM[0][1]), b"235 Ok\r\n"],
    "at once": [b"235 Ok\r\n"],
    "other nonce": [text("r=abc,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")],
    "many iterations": [text(f"r={NONCE}x,s=W22Z,i=99999999")],
    "few iterations": [text(f"r={NONCE}x,s=W22Z,i=1")],
    "odd iterations": [text(f"r={NONCE}x,s=W22Z,i=²")],
    "odd salt": [text(f"r={NONCE}x,s=!!,i=4096")],
    "no base64": [b"334 r=x\r\n"],
    "no UTF-8": [b"334 " + b64encode(b"\xff") + b"\r\n"],
    "more": [text(SCRAM[0][1]), text(SCRAM[1][1]), text("more")],
}


@pytest.mark.parametrize("replies", BROKEN.values(), ids=BROKEN.keys())
def test_server_that_does_not_know_the_password(
    replies: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl, "_nonce", lambda: NONCE)
    with pytest.raises(DeliveryError, match=r"^4\.7\.0 AUTH SCRAM-SHA-256: ") as caught:
        login(Server(replies))
    assert not caught.value.permanent
    assert caught.value.stage is Stage.AUTH


def test_no_password_without_tls() -> None:
    server = Server([b"235 Ok\r\n"])
    with pytest.raises(DeliveryError, match="AUTH needs TLS"):
        login(server, clear=False)
    assert server.heard in ([], ["QUIT"])


def test_nothing_that_both_know() -> None:
    with pytest.raises(DeliveryError, match="does not offer AUTH PLAIN or LOGIN") as caught:
        login(Server([], b"GSSAPI CRAM-MD5"), "PLAIN", "LOGIN")
    assert not caught.value.permanent


def test_no_secret_in_a_reason() -> None:
    """The server repeats what it got."""
    words = b64encode(b"\0user\0pencil")
    for said in (b"pencil, AUTH PLAIN " + words, b"%70%65%6e%63%69%6c", b"PENCIL".hex().encode()):
        with pytest.raises(DeliveryError) as caught:
            login(Server([b"535 5.7.8 No: " + said + b"\r\n"]), "PLAIN")
        assert caught.value.code == 535
        assert not caught.value.permanent
        assert caught.value.line == "5.7.8 (left out)"


@pytest.mark.parametrize(
    ("given", "prepared"),
    [("pencil", "pencil"), ("I\u00adX", "IX"), ("\u00aa", "a"), ("\u00a0x", " x")],
)
def test_saslprep(given: str, prepared: str) -> None:
    """Examples of RFC 4013, section 3."""
    assert sasl.prepared(given) == prepared
    with pytest.raises(ValueError, match="forbidden"):
        sasl.prepared("\u0007é")
